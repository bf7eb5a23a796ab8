// enqueue: on its own, on the caller's client, and everything it refuses, with the path of the fault and never the value.

import { Client as NeonClient, types as neonTypes } from "@neondatabase/serverless";
import pg from "pg";
import { beforeEach, describe, expect, it, onTestFinished } from "vitest";
import * as z from "zod";
import { type CallerClient, defineJob, type JobDefinition } from "../../../src/index.ts";
import {
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  plain,
  results,
  upTo,
  watchUnhandled,
  workTick,
} from "../../support/engine.ts";
import { setup, transports, type World } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

const anything = z.unknown();

type Caller = CallerClient & { query(text: string): Promise<{ rows: unknown[] }> };

const callers = {
  "pg Client": async (world: World): Promise<Caller> => await world.connect(),
  "pg Pool client": async (world: World): Promise<Caller> => {
    const pool = new pg.Pool({ connectionString: world.url, max: 1 });
    pool.on("error", () => {});
    const client = await pool.connect();
    onTestFinished(async () => {
      client.release(true);
      await pool.end();
    });
    return client;
  },
  "neon Client": async (world: World): Promise<Caller> => {
    const client = new NeonClient(world.url);
    client.neonConfig.wsProxy = (host, port) => `127.0.0.1:${world.bridge.port}/v2?address=${host}:${port}`;
    client.neonConfig.useSecureWebSocket = false;
    client.neonConfig.pipelineConnect = false;
    client.on("error", () => {});
    await client.connect();
    onTestFinished(() => client.end().catch(() => {}));
    return client;
  },
};

describe.each(Object.entries(callers))("enqueue on a caller's %s", (_name, connect) => {
  it("commits and rolls back with the caller's data", async () => {
    const world = await setup();
    await effectTable(world);
    await world.sql.query("create table invoice (id integer)");
    const job = plain();
    const claimer = world.claimer("pg", { jobs: [job] });
    const client = await connect(world);
    await client.query("begin");
    await client.query("insert into invoice values (1)");
    expect(await claimer.enqueue(job, { n: 1 }, { client })).toEqual({
      type: "enqueued",
      id: expect.stringMatching(/^\d+$/),
    });
    // Not committed, so nobody's.
    expect(await invoke(claimer)).toMatchObject({ ended: "idle" });
    await client.query("commit");
    await client.query("begin");
    await client.query("insert into invoice values (2)");
    expect(await claimer.enqueueMany(job, [{ n: 2 }, { n: 3 }], { client })).toHaveLength(2);
    await client.query("rollback");
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
    expect(await world.rows("select id from invoice")).toEqual([{ id: 1 }]);
    await expectWhole(world, { effects: [1] });
  });

  it("registers a kind on the way that the database does not know, and the caller's transaction is whole", async () => {
    const world = await setup();
    await effectTable(world);
    await world.sql.query("create table invoice (id integer)");
    const job = plain();
    const claimer = world.claimer("pg", { jobs: [job] });
    const client = await connect(world);
    await client.query("begin");
    await client.query("insert into invoice values (1)");
    await claimer.enqueue(job, { n: 1 }, { client });
    await client.query("insert into invoice values (2)");
    await client.query("commit");
    expect(await world.rows("select id from invoice order by id")).toEqual([{ id: 1 }, { id: 2 }]);
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
  });

  it("says what to do where a transaction above READ COMMITTED cannot see the kind, and leaves it whole", async () => {
    const world = await setup();
    await world.sql.query("create table invoice (id integer)");
    const job = plain();
    const claimer = world.claimer("pg", { jobs: [job] });
    const client = await connect(world);
    await client.query("begin isolation level repeatable read");
    await client.query("insert into invoice values (1)");
    await expect(claimer.enqueue(job, { n: 1 }, { client })).rejects.toMatchObject({ code: "PGCLAIM_UNKNOWN_KIND" });
    await client.query("commit");
    expect(await world.value("select count(*)::integer from invoice")).toBe(1);
    await client.query("begin isolation level serializable");
    expect(await claimer.enqueue(job, { n: 1 }, { client })).toMatchObject({ type: "enqueued" });
    await client.query("commit");
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(1);
  });

  it("passes on what an aborted transaction says, with a code", async () => {
    const world = await setup();
    const job = plain();
    const claimer = world.claimer("pg", { jobs: [job] });
    await claimer.enqueue(job, { n: 1 });
    const client = await connect(world);
    await client.query("begin");
    await client.query("select 1 / 0").catch(() => {});
    await expect(claimer.enqueue(job, { n: 2 }, { client })).rejects.toMatchObject({
      code: "PGCLAIM_QUERY_FAILED",
      cause: { code: "25P02" },
    });
    await client.query("rollback");
  });
});

describe.each(transports)("enqueue over %s", (transport) => {
  it("takes 1,000 jobs in one call, in order, and refuses 1,001", async () => {
    const world = await setup();
    const job = plain();
    const claimer = world.claimer(transport, { jobs: [job] });
    const enqueued = await claimer.enqueueMany(
      job,
      upTo(1_000).map((n) => ({ n })),
    );
    expect(enqueued).toHaveLength(1_000);
    expect(
      await world.value(
        "select bool_and((payload ->> 'n')::bigint = id - 1 + (select min(id) from pgclaim.job) ) from pgclaim.job",
      ),
    ).toBe(true);
    expect(enqueued.map(({ id }) => id)).toEqual(
      (await world.rows<{ id: string }>("select id from pgclaim.job order by id")).map(({ id }) => id),
    );
    await expect(
      claimer.enqueueMany(
        job,
        upTo(1_001).map((n) => ({ n })),
      ),
    ).rejects.toMatchObject({ code: "PGCLAIM_INVALID_OPTION" });
    expect(await claimer.enqueueMany(job, [])).toEqual([]);
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(1_000);
  });

  it("enqueues all or none, and names the one that is wrong", async () => {
    const world = await setup();
    const job = plain();
    const big = defineJob({ kind: "big", payload: z.object({ text: z.string() }) });
    const claimer = world.claimer(transport, { jobs: [job, big] });
    await expect(claimer.enqueueMany(job, [{ n: 1 }, { n: "2" as unknown as number }])).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_PAYLOAD",
      path: "jobs[1].payload.n",
    });
    await expect(claimer.enqueueMany(big, [{ text: "x" }, { text: "x".repeat(1_048_577) }])).rejects.toMatchObject({
      code: "PGCLAIM_PAYLOAD_TOO_LARGE",
    });
    await expect(
      claimer.enqueueByKind([
        { kind: "plain", payload: { n: 1 } },
        { kind: "plian", payload: { n: 2 } },
      ]),
    ).rejects.toMatchObject({ code: "PGCLAIM_UNKNOWN_KIND", message: expect.stringContaining('"plain"') });
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(0);
    expect(await claimer.enqueueByKind([{ kind: "plain", payload: { n: 1 } }])).toEqual([
      { type: "enqueued", id: expect.any(String) },
    ]);
  });

  it("takes a payload at the limit, and refuses one byte more", async () => {
    const world = await setup();
    const job = defineJob({
      kind: "big",
      payload: z.object({ text: z.string() }),
      run: ({ payload }) => void expect(payload.text.length).toBe(1_048_576 - 12),
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await expect(claimer.enqueue(job, { text: "x".repeat(1_048_577 - 12) })).rejects.toMatchObject({
      code: "PGCLAIM_PAYLOAD_TOO_LARGE",
    });
    await claimer.enqueue(job, { text: "x".repeat(1_048_576 - 12) });
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
  });

  const secret = "do-not-repeat-me";
  const circle: { self?: unknown; secret: string } = { secret };
  circle.self = circle;
  const withHole: unknown[] = [1];
  withHole[2] = secret;
  let deep: unknown = secret;
  for (let i = 0; i < 101; i++) deep = [deep];
  it.each([
    ["a NUL in a text", { a: [`${secret}\0`] }, "payload.a[0]"],
    ["half a surrogate pair", { a: `${secret}\ud800` }, "payload.a"],
    ["a NUL in a key", { a: { "x\0": secret } }, "payload.a"],
    ["a bigint", { a: 1n, secret }, "payload.a"],
    ["NaN", { a: { b: Number.NaN }, secret }, "payload.a.b"],
    ["an infinity", { a: Number.NEGATIVE_INFINITY, secret }, "payload.a"],
    ["a cycle", circle, "payload.self"],
    ["a Date", { at: new Date(), secret }, "payload.at"],
    ["a Map", { map: new Map([[secret, 1]]) }, "payload.map"],
    ["undefined in an array", { list: [1, undefined, secret] }, "payload.list[1]"],
    ["a hole in an array", { list: withHole }, "payload.list[1]"],
    ["a function", { run: () => secret }, "payload.run"],
    ["a symbol", { s: Symbol(secret) }, "payload.s"],
    ["undefined at the top", undefined, "payload"],
    ["101 levels", deep, expect.stringMatching(/^payload(\[0\]){100}$/)],
  ])("refuses %s with its path, and never the value", async (_what, payload, path) => {
    const world = await setup();
    const job = defineJob({ kind: "anything", payload: anything });
    const claimer = world.claimer(transport, { jobs: [job] });
    const error: unknown = await claimer.enqueue(job, payload).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ family: "usage", code: "PGCLAIM_INVALID_PAYLOAD", path });
    expect(String(error)).not.toContain(secret);
    expect(JSON.stringify(error)).not.toContain(secret);
  });

  it("refuses a payload of the wrong shape with the path of the fault, and never the value", async () => {
    const world = await setup();
    const job = defineJob({
      kind: "order",
      payload: z.object({ lines: z.array(z.object({ sku: z.string().max(3), amount: z.int() })) }),
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    const error: unknown = await claimer
      .enqueue(job, {
        lines: [
          { sku: "abc", amount: 1 },
          { sku: secret, amount: 2 },
        ],
      })
      .catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: "PGCLAIM_INVALID_PAYLOAD", path: "payload.lines[1].sku" });
    expect(String(error)).not.toContain(secret);
  });

  it("stores any JSON as it is: scalars, null, deep, unusual keys", async () => {
    const world = await setup();
    const seen: unknown[] = [];
    const job = defineJob({ kind: "anything", payload: anything, run: ({ payload }) => void seen.push(payload) });
    const claimer = world.claimer(transport, { jobs: [job] });
    const payloads = [
      null,
      true,
      0,
      -0.5,
      1e300,
      "",
      "'; drop table x; --\\ $1 $2",
      [],
      {},
      { "": 1, "a.b": [null], __proto__x: 2 },
      ["𝄞", "\u007f"],
    ];
    for (const payload of payloads) await claimer.enqueue(job, payload);
    expect(await invoke(claimer)).toMatchObject({ done: payloads.length });
    expect(seen).toEqual(payloads);
  });

  it.each([
    ["both runAt and delay", { runAt: new Date(), delay: "1s" }],
    ["an invalid Date", { runAt: new Date(Number.NaN) }],
    ["a year past 9999", { runAt: new Date(8.64e15) }],
    ["a year before 1", { runAt: new Date("-000001-01-01T00:00:00Z") }],
    ["a text for a Date", { runAt: "2026-01-01" as unknown as Date }],
    ["a bare number", { delay: 5 as unknown as "5s" }],
    ["a negative delay", { delay: "-5s" as unknown as "5s" }],
    ["ten years and a day", { delay: "3651d" }],
  ] as const)("refuses %s", async (_what, when) => {
    const world = await setup();
    const job = plain();
    const claimer = world.claimer(transport, { jobs: [job] });
    await expect(claimer.enqueue(job, { n: 1 }, when)).rejects.toMatchObject({ code: "PGCLAIM_INVALID_OPTION" });
  });

  it("holds a job until it is due, by the database's clock", async () => {
    const world = await setup();
    await effectTable(world);
    const job = plain();
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueue(job, { n: 1 }, { delay: "1h" });
    await claimer.enqueue(job, { n: 2 }, { runAt: new Date("9999-12-31T23:59:59Z") });
    await claimer.enqueue(job, { n: 3 }, { runAt: new Date("0001-01-01T00:00:00Z") });
    await claimer.enqueue(job, { n: 4 }, { delay: "0s" });
    await claimer.enqueue(job, { n: 5 }, { delay: "3650d" });
    expect(await invoke(claimer)).toMatchObject({ done: 2 });
    expect(await effects(world)).toEqual([3, 4]);
    await world.sql.query("update pgclaim.job set run_at = clock_timestamp() where payload ->> 'n' = '1'");
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
    expect(await effects(world)).toEqual([1, 3, 4]);
  });

  it("fails an attempt whose stored payload does not fit, with its code, and the handler never sees it", async () => {
    const world = await setup();
    await effectTable(world);
    const seen: number[] = [];
    const job = defineJob({
      kind: "plain",
      payload: numbered,
      retry: { maxAttempts: 1 },
      async run({ payload: { n }, tx }) {
        seen.push(n);
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await invoke(claimer);
    for (const payload of ['{"n": "x-marks-it"}', '"text"', "null", '{"n": 2}'])
      await world.sql.query("select pgclaim.enqueue('plain', $1::jsonb)", [payload]);
    const tick = workTick(await invoke(claimer));
    const invalid = "dead:PGCLAIM_STORED_PAYLOAD_INVALID";
    expect(results(tick)).toEqual([invalid, invalid, invalid, "done"]);
    expect(seen).toEqual([2]);
    expect(await world.value("select last_error from pgclaim.job order by id limit 1")).toMatch(/payload\.n/);
    expect(await world.value("select string_agg(last_error, '') from pgclaim.job")).not.toContain("x-marks-it");
  });

  it("gives a handler what its schema makes of the stored payload, once", async () => {
    const world = await setup();
    const seen: unknown[] = [];
    const job = defineJob({
      kind: "transformed",
      payload: z.object({ n: z.number().transform((n) => n + 1), more: z.string().default("more") }),
      run: ({ payload }) => void seen.push(payload),
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueue(job, { n: 1 });
    await invoke(claimer);
    expect(seen).toEqual([{ n: 2, more: "more" }]);
  });

  it("refuses a definition this claimer does not have", async () => {
    const world = await setup();
    const claimer = world.claimer(transport, { jobs: [plain()] });
    const other: JobDefinition<typeof numbered> = defineJob({ kind: "plane", payload: numbered });
    await expect(claimer.enqueue(other, { n: 1 })).rejects.toMatchObject({
      code: "PGCLAIM_UNKNOWN_KIND",
      path: "kind",
    });
  });
});

describe.each(transports)("ids over %s", (transport) => {
  const ids = ["2147483647", "2147483648", "4294967295", "4294967296", "9007199254740993", "9223372036854775806"];

  it.each(["the drivers' usual types", "int8 as number, timestamps as text, and json unparsed"])(
    "stay exact around 2^31, 2^32, 2^53 and near 2^63, with %s",
    async (how) => {
      const world = await setup();
      await effectTable(world);
      if (how !== "the drivers' usual types") overrideTypes();
      const seen: string[] = [];
      const job = defineJob({
        kind: "plain",
        payload: numbered,
        async run({ job: { id, enqueuedAt, runAt }, payload: { n }, tx }) {
          seen.push(id);
          expect(enqueuedAt).toBeInstanceOf(Date);
          expect(runAt).toBeInstanceOf(Date);
          if (n === 3) throw new Error("once");
          await effect(tx, n);
        },
      });
      const claimer = world.claimer(transport, { jobs: [job] });
      for (const [i, id] of ids.entries()) {
        await world.sql.query(`alter table pgclaim.job alter column id restart with ${id}`);
        expect(await claimer.enqueue(job, { n: i })).toEqual({ type: "enqueued", id });
      }
      const report = await invoke(claimer);
      expect(report).toMatchObject({ done: 5, retried: 1 });
      expect(seen).toEqual(ids);
      expect(workTick(report).jobs.map(({ jobId }) => jobId)).toEqual(ids);
      expect(await world.rows("select job_id::text as id from pgclaim.history order by job_id")).toEqual(
        ids.filter((_, i) => i !== 3).map((id) => ({ id })),
      );
      expect(await claimer.job("4294967296")).toMatchObject({
        id: "4294967296",
        state: "scheduled",
        attempts: [{ n: 1, outcome: "failed" }],
      });
      expect(await world.locks()).toBe(0);
    },
  );

  function overrideTypes(): void {
    const { builtins } = pg.types;
    const overrides: [number, (text: string) => unknown][] = [
      [builtins.INT8, Number],
      [builtins.INT4, (text) => BigInt(text)],
      [builtins.TIMESTAMPTZ, (text) => text],
      [builtins.JSONB, (text) => text],
      [builtins.JSON, (text) => text],
    ];
    for (const types of [pg.types, neonTypes]) {
      for (const [oid, parse] of overrides) {
        const before = types.getTypeParser(oid);
        types.setTypeParser(oid, parse as never);
        onTestFinished(() => void types.setTypeParser(oid, before as never));
      }
    }
  }

  it("that are no ids are refused before the database is asked", async () => {
    const world = await setup();
    const claimer = world.claimer(transport, { jobs: [plain()] });
    for (const id of ["0", "-1", "1.5", "9223372036854775808", "", "1 or 1", "١"]) {
      expect(() => claimer.job(id)).toThrow(expect.objectContaining({ code: "PGCLAIM_INVALID_OPTION" }));
    }
    expect(await claimer.job("9223372036854775807")).toBeNull();
  });
});
