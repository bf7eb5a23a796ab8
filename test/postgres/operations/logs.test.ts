// Log lines: their level, and that nothing gets into them that nobody put there for it: no payload, no key, no secret, no
// connection string, no text of a handler's error.

import { beforeEach, describe, expect, it, vi } from "vitest";
import * as z from "zod";
import { pgDatabase } from "../../../src/adapters/node.ts";
import { createApp } from "../../../src/http/app.ts";
import { type ClaimerOptions, createClaimer, deadLetter, defineJob, type LogEntry } from "../../../src/index.ts";
import { invoke, numbered, quick, upTo, watchUnhandled, wire, workTick } from "../../support/engine.ts";
import { setup, transports } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

/** In every place that is nobody's business. */
const secret = "SECRET-4711";

describe.each(transports)("lines over %s", (transport) => {
  it("carry no payload, key, error text, secret or connection string, at the most talkative level", async () => {
    const world = await setup();
    const lines: LogEntry[] = [];
    const payload = z.object({ n: z.number(), pin: z.string() });
    const job = defineJob({
      kind: "leaky",
      payload,
      orderingKey: "key:{pin}:{n}",
      uniqueKey: "unique:{pin}:{n}",
      locks: ["lock:{pin}:{n}"],
      timeout: "300ms",
      async run({ payload: { n, pin }, tx, signal, enqueue }) {
        if (n === 1) throw new Error(pin);
        if (n === 2) return deadLetter(pin);
        if (n === 3) await tx.query(`select $1::integer`, [pin]); // the server quotes the value
        if (n === 4) await tx.query(`select '${pin}' from`); // a syntax error
        if (n === 5) throw { code: "40001", message: pin }; // looks like the server's own
        if (n === 6) await enqueue(job, { n: 7, pin: 7 as unknown as string });
        if (n === 8) await new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error(pin))));
        return;
      },
    });
    const options: Omit<ClaimerOptions, "database"> = {
      jobs: [job],
      limits: quick,
      logLevel: "debug",
      log: (entry) => lines.push(entry),
      kick: { url: `http://127.0.0.1:1/${secret}`, secret },
    };
    const claimer = world.claimer(transport, options);
    await claimer.enqueueMany(
      job,
      upTo(8).map((n) => ({ n, pin: secret })),
    );
    await claimer.enqueue(job, { n: 9, pin: secret }, { kick: true });
    const report = await invoke(claimer);
    expect(report.ticks[0]?.jobs.map(({ result }) => result)).toHaveLength(9);
    expect(report.dead + report.retried).toBe(7);
    // A payload that its schema refuses, at run.
    await world.sql.query(
      "update pgclaim.job set payload = jsonb_build_object('n', $1::text), run_at = now() where state = 'scheduled'",
      [secret],
    );
    await invoke(claimer);
    // Refused at enqueue, by HTTP.
    const app = createApp({ claimer: () => claimer, secrets: { enqueue: secret }, log: (entry) => lines.push(entry) });
    const answer = await app.request("/api/jobs", {
      method: "POST",
      headers: { authorization: `Bearer ${secret}`, "content-type": "application/json" },
      body: JSON.stringify({ kind: "leaky", payload: { n: secret, pin: secret } }),
    });
    expect(answer.status).toBe(400);
    expect(lines.map(({ event }) => event)).toEqual(
      expect.arrayContaining(["pgclaim.invocation", "pgclaim.kick", "pgclaim.job.failed", "pgclaim.key.halted"]),
    );
    expect(lines.filter((line) => JSON.stringify(line).includes(secret))).toEqual([]);
  });

  it("of a session that breaks carry what the network said and no more", async () => {
    const world = await setup();
    const lines: LogEntry[] = [];
    const broken = await wire(world, transport);
    const job = defineJob({ kind: "plain", payload: z.object({ pin: z.string() }), run() {} });
    const claimer = broken.claimer({ jobs: [job], logLevel: "debug", log: (entry) => lines.push(entry) });
    await claimer.enqueue(job, { pin: secret });
    broken.breakSession({ contains: "finish_v1", at: "before", how: "reset" });
    const report = await invoke(claimer);
    expect(workTick(report).error?.code).toBe("PGCLAIM_TX_LOST");
    expect(lines.some(({ level }) => level === "error")).toBe(true);
    expect(lines.filter((line) => JSON.stringify(line).includes(secret))).toEqual([]);
  });
});

describe("a database that cannot be reached", () => {
  it("is told without its address's password", async () => {
    const lines: LogEntry[] = [];
    const database = pgDatabase(`postgres://user:${secret}@127.0.0.1:1/app`);
    const job = defineJob({ kind: "plain", payload: numbered, run() {} });
    const claimer = createClaimer({ jobs: [job], database, limits: quick, log: (entry) => lines.push(entry) });
    expect(await invoke(claimer)).toMatchObject({ ended: "error" });
    expect(lines.some(({ level }) => level === "error")).toBe(true);
    expect(JSON.stringify(lines)).not.toContain(secret);
  });
});

describe("levels", () => {
  it.each([
    ["debug", ["debug", "info", "info"]],
    ["info", ["info", "info"]],
    ["warn", []],
    ["silent", []],
  ] as const)("%s logs that and what is worse", async (logLevel, expected) => {
    const world = await setup();
    const job = defineJob({ kind: "talks", payload: numbered, run: ({ log }) => log("a word", { n: 1 }) });
    const claimer = world.claimer("pg", { jobs: [job], logLevel });
    await claimer.enqueue(job, { n: 1 });
    await invoke(claimer);
    const levels = world.log.map(({ level }) => level);
    expect(levels.filter((level) => level !== "debug")).toEqual(expected.filter((level) => level !== "debug"));
    expect(levels.includes("debug")).toBe(logLevel === "debug");
  });

  it("error and silent differ by the errors", async () => {
    for (const [logLevel, count] of [
      ["error", 1],
      ["silent", 0],
    ] as const) {
      const lines: LogEntry[] = [];
      const database = pgDatabase("postgres://user@127.0.0.1:1/app");
      const claimer = createClaimer({ jobs: [], database, limits: quick, logLevel, log: (entry) => lines.push(entry) });
      await invoke(claimer);
      expect(lines).toHaveLength(count);
    }
  });

  it("that do not exist are refused when the claimer is made", () => {
    const make = (options: object) => () =>
      createClaimer({
        jobs: [],
        database: pgDatabase("postgres://user@127.0.0.1:1/app"),
        ...options,
      } as ClaimerOptions);
    expect(make({ logLevel: "trace" })).toThrow(
      'logLevel is "trace" (string); expected one of debug, info, warn, error, silent.',
    );
    expect(make({ onEvent: "log" })).toThrow('onEvent is "log" (string); expected a function.');
    expect(make({ telemetry: { tracer: {} } })).toThrow("telemetry.tracer is");
    expect(make({ telemetry: { trazer: {} } })).toThrow('did you mean "tracer"?');
  });

  it("hide a connection string that a handler puts into a line of the default log", async () => {
    const world = await setup();
    const said: string[] = [];
    const spy = vi.spyOn(console, "log").mockImplementation((line: string) => void said.push(line));
    const job = defineJob({
      kind: "talks",
      payload: numbered,
      run: ({ log }) =>
        log("connecting", { to: `"postgres://user:${secret}@host/db"`, deep: [{ a: `postgresql://${secret}@h` }] }),
    });
    const claimer = createClaimer({ jobs: [job], database: world.database("pg") });
    await claimer.enqueue(job, { n: 1 });
    await invoke(claimer);
    spy.mockRestore();
    const line = JSON.parse(said.find((text) => text.includes("connecting")) ?? "") as { to: string };
    expect(line.to).toBe('"postgres://(hidden)"');
    expect(said.join()).not.toContain(secret);
  });
});
