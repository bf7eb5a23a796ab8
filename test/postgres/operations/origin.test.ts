// Where a job comes from: its trace and its source, from whoever enqueues it to the handler and into history, by every way out.

import { describe, expect, it } from "vitest";
import * as z from "zod";
import { deadLetter, defineJob } from "../../../src/index.ts";
import { invoke } from "../../support/engine.ts";
import { roleOf } from "../../support/roles.ts";
import { setup, transports } from "../../support/world.ts";
import { claimer, type Db, fence, install, policy, runTick, the } from "../sql/support.ts";
import { operate } from "./acting.ts";

const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

async function put(db: Db, more: Readonly<Record<string, unknown>>, kind = "a"): Promise<string> {
  const { rows } = await db.query<{ job_id: string }>("select job_id from pgclaim.enqueue_v1($1)", [
    JSON.stringify({ jobs: [{ kind, payload: { k: 1 }, ...more }] }),
  ]);
  return the(rows).job_id;
}

describe("enqueue_v1", () => {
  it("stores both, and neither where none is said", async () => {
    const world = await install();
    await put(world.sql, { trace, source: "api" });
    await put(world.sql, {});
    expect(await world.rows("select trace, source from pgclaim.job order by id")).toEqual([
      { trace, source: "api" },
      { trace: null, source: null },
    ]);
  });

  it.each([
    ["nothing", ""],
    ["a number", 42],
    ["an object", { a: 1 }],
    ["capitals", trace.toUpperCase()],
    ["an id of zeros", "00-00000000000000000000000000000000-b7ad6b7169203331-01"],
    ["a parent of zeros", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"],
    ["the version that is none", trace.replace(/^00/, "ff")],
    ["something behind version 00", `${trace}-more`],
    ["a line more", `${trace}\n`],
    ["a book", `01${trace.slice(2)}-${"x".repeat(500)}`],
  ])("drops a trace that is none, and keeps its job: %s", async (_, wrong) => {
    const world = await install();
    const id = await put(world.sql, { trace: wrong, source: "api" });
    expect(await world.rows("select id, trace, source from pgclaim.job")).toEqual([{ id, trace: null, source: "api" }]);
  });

  it("takes the trace of a later version", async () => {
    const world = await install();
    const later = `01${trace.slice(2)}-what-comes`;
    await put(world.sql, { trace: later });
    expect(await world.value("select trace from pgclaim.job")).toBe(later);
  });

  it("keeps 200 printable characters of a source", async () => {
    const world = await install();
    await put(world.sql, { source: `\u001b[31m\n${"é".repeat(300)}` });
    expect(await world.value("select source from pgclaim.job")).toBe(`[31m ${"é".repeat(195)}`);
  });

  it("believes a source of who may run or operate, and of nobody else; a trace of anybody", async () => {
    const world = await install();
    const [enqueuer, runner, both] = [
      await roleOf(world, "enqueue"),
      await roleOf(world, "run"),
      await roleOf(world, "operate"),
    ];
    await world.sql.query("select pgclaim.grant_v1('enqueue', $1)", [both.name]);
    for (const { client } of [enqueuer, runner, both]) await put(client, { trace, source: "schedule nightly" });
    expect(await world.rows("select trace, source from pgclaim.job order by id")).toEqual([
      { trace, source: null },
      { trace, source: "schedule nightly" },
      { trace, source: "schedule nightly" },
    ]);
  });

  it("gives a job that is replaced the origin of what replaces it, and one that is moved keeps its own in history", async () => {
    const world = await install([]);
    await world.sql.query("select pgclaim.register_v1($1)", [
      JSON.stringify({
        digest: "unique",
        kinds: [
          { ...policy({ name: "a" }), uniqueKey: "{k}", onConflict: "replace", orderingKey: "{g}" },
          { ...policy({ name: "b" }), uniqueKey: "{k}", onConflict: "reschedule" },
        ],
      }),
    ]);
    const payload = { k: 1, g: 1 };
    await put(world.sql, { payload, source: "one", trace });
    await put(world.sql, { payload, source: "two" });
    await put(world.sql, { payload, source: "one", trace }, "b");
    await put(world.sql, { payload, source: "two" }, "b");
    expect(await world.rows("select kind, source, trace from pgclaim.job order by kind")).toEqual([
      { kind: "a", source: "two", trace: null },
      { kind: "b", source: "one", trace },
    ]);
    await put(world.sql, { payload: { k: 1, g: 2 }, source: "three" });
    expect(await world.rows("select source, outcome from pgclaim.history")).toEqual([
      { source: "two", outcome: "cancelled" },
    ]);
  });
});

describe("the way to history", () => {
  it.each(["done", "discard", "cancel", "cancel while it runs"])("by %s keeps both", async (how) => {
    const world = await install();
    const id = await put(world.sql, { trace, source: "api" });
    if (how === "done") await runTick(world);
    if (how === "discard") {
      await runTick(world, {}, "dead");
      await operate(world.sql, "discard", id);
    }
    if (how === "cancel") await operate(world.sql, "cancel", id);
    if (how === "cancel while it runs") {
      const session = await claimer(world);
      await operate(world.sql, "cancel", id);
      await session.client.query("rollback");
      await world.sql.query("select pgclaim.cancel_requested(9)");
    }
    expect(await world.rows("select job_id, trace, source from pgclaim.history")).toEqual([
      { job_id: id, trace, source: "api" },
    ]);
  });

  it("fence_v1 answers the trace beside what it answered before", async () => {
    const world = await install();
    await put(world.sql, { trace });
    const session = await claimer(world);
    await fence(world.sql, session);
    const { rows } = await world.sql.query("select * from pgclaim.fence_v1($1)", [
      JSON.stringify({ tick: session.tick, quarantined: false, jobs: session.jobs }),
    ]);
    expect(Object.keys(the(rows as object[]))).toEqual([
      "job_id",
      "attempt",
      "kind",
      "payload",
      "idempotency_key",
      "run_at",
      "enqueued_at",
      "failures",
      "deadline_at",
      "trace",
    ]);
    expect(the(rows)).toMatchObject({ trace });
    await session.client.query("rollback");
  });
});

describe.each(transports)("a handler (%s)", (transport) => {
  it("is told the trace of its job, and hands it on with what it enqueues, whose source is the job", async () => {
    const world = await setup();
    const seen: (string | null)[] = [];
    const next = defineJob({ kind: "next", payload: z.object({}), run() {} });
    const job = defineJob({
      kind: "a",
      payload: z.object({ tx: z.boolean() }),
      async run({ trace: mine, enqueue, tx, payload }) {
        seen.push(mine);
        if (payload.tx) await tx.query("select 1");
        await enqueue(next, {}, { delay: "1h" });
      },
    });
    const engine = world.claimer(transport, { jobs: [job, next] });
    const [by, silent] = [await engine.enqueue(job, { tx: true }, { trace }), await engine.enqueue(job, { tx: false })];
    expect(await invoke(engine)).toMatchObject({ done: 2 });
    expect(seen.sort()).toEqual([null, trace].sort());
    expect(await world.rows("select source, trace from pgclaim.job order by trace nulls last")).toEqual([
      { source: `job ${by.id}`, trace },
      { source: `job ${silent.id}`, trace: null },
    ]);
    expect(await world.rows("select job_id, trace, source from pgclaim.history order by job_id")).toEqual([
      { job_id: by.id, trace, source: null },
      { job_id: silent.id, trace: null, source: null },
    ]);
  });

  it("that dies leaves a dead letter with its origin", async () => {
    const world = await setup();
    const job = defineJob({ kind: "a", payload: z.object({}), run: () => deadLetter("no") });
    const engine = world.claimer(transport, { jobs: [job] });
    await engine.enqueueByKind([{ kind: "a", payload: {}, trace }], { source: "cli" });
    await invoke(engine);
    expect(await world.rows("select state, trace, source from pgclaim.job")).toEqual([
      { state: "dead", trace, source: "cli" },
    ]);
  });

  it("of a schedule has the schedule as its source", async () => {
    const world = await setup();
    const job = defineJob({ kind: "a", payload: z.object({}), run() {} });
    const engine = world.claimer(transport, {
      jobs: [job],
      schedules: [{ name: "minutely", cron: "* * * * *", job, payload: {}, catchUp: "last" }],
    });
    await engine.register();
    await world.sql.query("update pgclaim.schedule set next_at = now() - interval '2 minutes', fresh = false");
    expect(await invoke(engine)).toMatchObject({ done: 1 });
    expect(await world.rows("select source from pgclaim.history")).toEqual([{ source: "schedule minutely" }]);
  });
});
