// What a person does to one job: every verb by one function, each change with its record, nothing without a change; the due time
// of a job that waits; a schedule now; and the end of a session that holds our locks and of no other one.

import { describe, expect, it } from "vitest";
import { roleOf } from "../../support/roles.ts";
import { install as installLocks, stateOf } from "../locks/support.ts";
import { claimLine, installOrdered, line, put } from "../order/support.ts";
import {
  attempts,
  begin,
  claimer,
  enqueueOne,
  fence,
  history,
  type Installation,
  ids,
  install,
  job,
  outcomes,
  pidOf,
  policy,
  reap,
  runTick,
  sqlState,
  the,
  waitsForLock,
  wake,
} from "../sql/support.ts";
import { actions, ask, operate } from "./acting.ts";

const later = "2031-05-01T12:00:00.000Z";
const past = "2001-01-01T00:00:00.000Z";

async function dead(world: Installation): Promise<string> {
  const id = await enqueueOne(world.sql);
  await runTick(world, {}, "dead");
  return id;
}

describe("operate_v1", () => {
  it.each([
    ["retry", "retried", "ready"],
    ["discard", "discarded", null],
    ["skip", "skipped", "dead"],
  ])("%s of a dead letter is done once and recorded once", async (verb, type, state) => {
    const world = await install();
    const id = await dead(world);
    expect(await operate(world.sql, verb, id)).toEqual({ type });
    expect(await actions(world, id)).toEqual([`${verb} test`]);
    if (state !== null) expect((await job(world.sql, id)).state).toBe(state);
    if (verb !== "skip") {
      expect(await operate(world.sql, verb, id)).toMatchObject({ type: "not-dead" });
      expect(await actions(world)).toHaveLength(1);
    }
  });

  it("cancels what waits at once and what runs by a flag, and records both", async () => {
    const world = await install();
    const [waiting, running] = [await enqueueOne(world.sql), await enqueueOne(world.sql, "b")];
    const session = await claimer(world, { kinds: ["b"] });
    expect(await operate(world.sql, "cancel", waiting)).toEqual({ type: "cancelled" });
    expect(await operate(world.sql, "cancel", running)).toEqual({ type: "requested" });
    await session.client.query("rollback");
    expect(await actions(world)).toEqual(["cancel test", "cancel test"]);
    expect((await history(world.sql)).map(({ outcome }) => outcome)).toEqual(["cancelled"]);
  });

  it("records nothing where nothing was changed", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    for (const verb of ["retry", "discard", "skip"])
      expect(await operate(world.sql, verb, id)).toEqual({ type: "not-dead", state: "ready" });
    for (const verb of ["retry", "discard", "skip", "cancel"]) {
      expect(await operate(world.sql, verb, "4711")).toEqual({ type: "not-found" });
      expect(await operate(world.sql, verb, "99999999999999999999")).toEqual({ type: "not-found" });
    }
    expect(await actions(world)).toEqual([]);
  });

  it.each([
    ["no verb", { id: "1" }],
    ["another verb", { verb: "drop", id: "1" }],
    ["no id", { verb: "retry" }],
    ["an id that is none", { verb: "retry", id: "1; drop" }],
    ["no due time", { verb: "reschedule", id: "1" }],
    ["a due time that is none", { verb: "reschedule", id: "1", runAt: "soon" }],
    ["a due time beyond all clocks", { verb: "reschedule", id: "1", runAt: "infinity" }],
  ])("refuses %s", async (_, request) => {
    const world = await install();
    expect(await sqlState(ask(world.sql, "operate_v1", request))).toBe("PC003");
  });

  it("keeps an actor printable and short, and takes the database role for one that is not said", async () => {
    const world = await install();
    const id = await dead(world);
    await operate(world.sql, "retry", id, { by: `\u001b[2J\n${"x".repeat(200)}` });
    await runTick(world, {}, "dead");
    const { client, name } = await roleOf(world, "operate");
    await operate(client, "retry", id, { by: null });
    const rows = await world.rows<{ actor: string }>("select actor from pgclaim.action order by id");
    expect(rows.map(({ actor }) => actor)).toEqual([`[2J ${"x".repeat(96)}`, name]);
  });
});

describe("reschedule", () => {
  it("moves what is due to a later time and back, and its rank with it; says from when to when", async () => {
    const world = await install([{ name: "a", targetLatencyMs: 60_000 }]);
    const id = await enqueueOne(world.sql);
    await world.sql.query("update pgclaim.job set run_at = '2026-01-01T00:00:00Z'");
    expect(await operate(world.sql, "reschedule", id, { runAt: later })).toEqual({ type: "rescheduled" });
    expect(await job(world.sql, id)).toMatchObject({
      state: "scheduled",
      run_at: new Date(later),
      rank: new Date("2031-05-01T12:01:00.000Z"),
    });
    expect(await runTick(world)).toEqual([]);
    expect(await actions(world)).toEqual(["reschedule test 2026-01-01T00:00:00Z to 2031-05-01T12:00:00Z"]);
    expect(await operate(world.sql, "reschedule", id, { runAt: past })).toEqual({ type: "rescheduled" });
    expect(ids(await runTick(world))).toEqual([id]);
  });

  it("takes the kind's deadline along, and leaves one that somebody asked for", async () => {
    const world = await installOrdered([{ name: "a", deadlineMs: 3_600_000 }]);
    const usual = await enqueueOne(world.sql);
    const { rows } = await world.sql.query<{ job_id: string }>("select job_id from pgclaim.enqueue_v1($1)", [
      JSON.stringify({ jobs: [{ kind: "a", payload: {}, deadlineAt: "2030-01-01T00:00:00Z" }] }),
    ]);
    const asked = the(rows).job_id;
    for (const id of [usual, asked]) await operate(world.sql, "reschedule", id, { runAt: later });
    expect(await world.rows("select deadline_at, rank = deadline_at as ranked from pgclaim.job order by id")).toEqual([
      { deadline_at: new Date("2031-05-01T13:00:00.000Z"), ranked: true },
      { deadline_at: new Date("2030-01-01T00:00:00.000Z"), ranked: true },
    ]);
  });

  it("of an ordering key's head keeps its place: the key waits with it, and goes on with it", async () => {
    const world = await installOrdered();
    const [first, second] = [await put(world.sql, "x", 1), await put(world.sql, "x", 2)];
    expect(await operate(world.sql, "reschedule", first, { runAt: later })).toEqual({ type: "rescheduled" });
    expect(await line(world.sql, "x")).toEqual(["1 scheduled", "2 blocked"]);
    expect(await runTick(world)).toEqual([]);
    // One behind it moves its due time and nothing else.
    expect(await operate(world.sql, "reschedule", second, { runAt: later })).toEqual({ type: "rescheduled" });
    expect(await line(world.sql, "x")).toEqual(["1 scheduled", "2 blocked"]);
    expect(await operate(world.sql, "reschedule", second, { runAt: past })).toEqual({ type: "rescheduled" });
    expect(await operate(world.sql, "reschedule", first, { runAt: past })).toEqual({ type: "rescheduled" });
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked"]);
    expect(ids(await runTick(world))).toEqual([first, second]);
  });

  it("of a limit or a name gives the room to the next one", async () => {
    const world = await installLocks();
    await world.sql.query("select pgclaim.register_v1($1)", [
      JSON.stringify({
        digest: "narrow",
        kinds: [{ ...policy({ name: "narrow" }), limitNames: ["t:{k}"], limitMaxes: [1] }],
      }),
    ]);
    const [first, second] = [
      await enqueueOne(world.sql, "narrow", { k: 1 }),
      await enqueueOne(world.sql, "narrow", { k: 1 }),
    ];
    expect([await stateOf(world, first), await stateOf(world, second)]).toEqual(["ready", "blocked"]);
    await operate(world.sql, "reschedule", first, { runAt: later });
    expect([await stateOf(world, first), await stateOf(world, second)]).toEqual(["scheduled", "ready"]);
    await operate(world.sql, "reschedule", second, { runAt: later });
    await operate(world.sql, "reschedule", first, { runAt: past });
    expect([await stateOf(world, first), await stateOf(world, second)]).toEqual(["ready", "scheduled"]);
  });

  it("is busy while the job runs, also where its holder has just died, and leaves the job as it was", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    await fence(world.sql, session);
    expect(await operate(world.sql, "reschedule", id, { runAt: later })).toEqual({ type: "busy" });
    await session.client.query("rollback");
    const before = await job(world.sql, id);
    expect(await operate(world.sql, "reschedule", id, { runAt: later })).toEqual({ type: "busy" });
    expect(await job(world.sql, id)).toEqual(before);
    await reap(world.sql);
    expect(await operate(world.sql, "reschedule", id, { runAt: later })).toEqual({ type: "rescheduled" });
    expect(await outcomes(world.sql, id)).toEqual(["crashed"]);
  });

  it("answers what does not wait: a dead letter, a finished one, none at all", async () => {
    const world = await install();
    const id = await dead(world);
    const ask = () => operate(world.sql, "reschedule", id, { runAt: later });
    expect(await ask()).toEqual({ type: "not-waiting", state: "dead" });
    await operate(world.sql, "discard", id);
    expect(await ask()).toEqual({ type: "not-waiting", state: "discarded" });
    expect(await operate(world.sql, "reschedule", "4711", { runAt: later })).toEqual({ type: "not-found" });
    expect(await actions(world)).toEqual(["discard test"]);
  });

  it("waits for the gate's lock", async () => {
    const world = await installOrdered();
    const id = await put(world.sql, "x", 1);
    const other = await world.connect();
    await other.query("begin; select pgclaim.lock_gates('{order:k:x}')");
    const operator = await world.connect();
    const pid = await pidOf(operator);
    const done = operate(operator, "reschedule", id, { runAt: later });
    await waitsForLock(world, pid);
    await other.query("commit");
    expect(await done).toEqual({ type: "rescheduled" });
  });
});

const schedule = {
  name: "nightly",
  cron: "0 3 * * *",
  timeZone: "UTC",
  kind: "a",
  payload: { n: 7 },
  catchUp: "all",
  definition: "d",
};

const withSchedule = (world: Installation, more: object = {}) =>
  world.sql.query("select pgclaim.register_v1($1)", [
    JSON.stringify({
      digest: `schedule ${JSON.stringify(more)}`,
      kinds: [{ ...policy({ name: "a" }), ...more }],
      queues: ["default"],
      schedules: [schedule],
    }),
  ]);

describe("run_schedule_v1", () => {
  it("enqueues what the schedule would, says so in its record, and leaves the schedule alone", async () => {
    const world = await install();
    await withSchedule(world);
    const before = await world.rows("select * from pgclaim.schedule");
    const answer = await ask<{ job: { id: string } }>(world.sql, "run_schedule_v1", { name: "nightly", by: "cli" });
    const { id } = answer.job;
    expect(answer).toEqual({ type: "enqueued", job: { type: "enqueued", id } });
    expect(await world.rows("select kind, payload, source, state from pgclaim.job")).toEqual([
      { kind: "a", payload: { n: 7 }, source: "schedule nightly", state: "ready" },
    ]);
    expect(await actions(world, id)).toEqual(["run-schedule cli schedule nightly"]);
    expect(await world.rows("select * from pgclaim.schedule")).toEqual(before);
  });

  it("answers a name that is none, and records nothing of a job that a unique key kept out", async () => {
    const world = await install();
    await withSchedule(world, { uniqueKey: "{n}" });
    const run = (name: string) => ask<object>(world.sql, "run_schedule_v1", { name, by: "cli" });
    expect(await run("daily")).toEqual({ type: "not-found" });
    expect(await run("nightly")).toMatchObject({ job: { type: "enqueued" } });
    expect(await run("nightly")).toMatchObject({ job: { type: "duplicate" } });
    expect(await actions(world)).toHaveLength(1);
  });

  it("is an operator's to call, who may enqueue nothing else, whatever stands in his search_path", async () => {
    const world = await install();
    await withSchedule(world);
    const { client } = await roleOf(world, "operate");
    await client.query("create table pg_temp.schedule as select 'evil'::text as name; set search_path = pg_temp");
    expect(await ask<object>(client, "run_schedule_v1", { name: "nightly", by: "cli" })).toMatchObject({
      job: { type: "enqueued" },
    });
    expect(await world.value("select source from pgclaim.job")).toBe("schedule nightly");
    expect(await sqlState(client.query("select pgclaim.enqueue('a')"))).toBe("42501");
  });
});

const startOf = (world: Installation, pid: number): Promise<string> =>
  world.value<string>("select to_json(xact_start) #>> '{}' from pg_stat_activity where pid = $1", [pid]);

describe("terminate_v1", () => {
  const end = (db: Installation["sql"], pid: number, transactionStart: string) =>
    ask<{ type: string }>(db, "terminate_v1", { pid, transactionStart, by: "cli" });

  it("ends a session that holds a job's lock, and records it with the job", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    await fence(world.sql, session);
    expect(await end(world.sql, session.pid, await startOf(world, session.pid))).toEqual({ type: "terminated" });
    expect(await world.rows("select from pg_stat_activity where pid = $1", [session.pid])).toEqual([]);
    expect(await actions(world, id)).toEqual([`terminate cli pid ${session.pid}`]);
    expect(await wake(world.sql)).toMatchObject({ crashed: 1 });
    expect((await attempts(world.sql, id)).map(({ outcome }) => outcome)).toEqual(["crashed"]);
  });

  it("leaves a session alone that is in another transaction by now, to the microsecond", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    const session = await claimer(world);
    const start = await startOf(world, session.pid);
    await session.client.query("rollback");
    expect(await end(world.sql, session.pid, start)).toEqual({ type: "gone" });
    await begin(session.client);
    await session.client.query("select pgclaim.try_job_lock('a', 1)");
    expect(await end(world.sql, session.pid, start)).toEqual({ type: "gone" });
    const almost = await world.value<string>("select to_json($1::timestamptz + interval '1 microsecond') #>> '{}'", [
      await startOf(world, session.pid),
    ]);
    expect(await end(world.sql, session.pid, almost)).toEqual({ type: "gone" });
    expect((await session.client.query("select 1 as alive")).rows).toEqual([{ alive: 1 }]);
    expect(await actions(world)).toEqual([]);
  });

  it.each([
    ["none", "select 1"],
    ["somebody's own key", "select pg_advisory_xact_lock(42)"],
    ["a pair of small keys", "select pg_advisory_xact_lock(namespace, 1) from pgclaim.kind"],
    ["a shared key that is not ours", "select pg_advisory_xact_lock_shared(-4611686018427387904)"],
  ])("leaves a session alone whose locks are not ours: %s", async (_, lock) => {
    const world = await install();
    const other = await world.connect();
    await other.query("begin");
    await other.query(lock);
    const pid = await pidOf(other);
    expect(await end(world.sql, pid, await startOf(world, pid))).toEqual({ type: "gone" });
    expect((await other.query("select 1 as alive")).rows).toEqual([{ alive: 1 }]);
  });

  it("leaves a session alone that holds the same key in another database", async () => {
    const [world, elsewhere] = [await install(), await install()];
    await enqueueOne(elsewhere.sql);
    const session = await claimer(elsewhere);
    const start = await startOf(world, session.pid);
    expect(await end(world.sql, session.pid, start)).toEqual({ type: "gone" });
    await session.client.query("rollback");
  });

  it("ends a caller that keeps a gate: its trigger has fired long before its commit", async () => {
    const world = await installOrdered();
    await put(world.sql, "before", 1);
    await put(world.sql, "x", 1);
    const caller = await world.connect();
    await caller.query("begin");
    await put(caller, "x", 2);
    await caller.query("set constraints all immediate");
    const pid = await pidOf(caller);
    expect(await end(world.sql, pid, await startOf(world, pid))).toEqual({ type: "terminated" });
    expect(await line(world.sql, "x")).toEqual(["1 ready"]);
  });

  it("takes the right to see a session and the right to end it", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    const runner = await roleOf(world, "run");
    const operator = await roleOf(world, "operate");
    const session = await claimLine(world, {}, runner.client);
    const start = await startOf(world, session.pid);
    expect(await end(operator.client, session.pid, start)).toEqual({ type: "gone" });
    await world.sql.query(`grant pg_read_all_stats to ${operator.name}`);
    expect(await sqlState(end(operator.client, session.pid, start))).toBe("42501");
    await world.sql.query(`grant pg_signal_backend to ${operator.name}`);
    expect(await end(operator.client, session.pid, start)).toEqual({ type: "terminated" });
  });

  it.each([
    { transactionStart: later },
    { pid: "x", transactionStart: later },
    { pid: 1 },
    { pid: 1, transactionStart: "yesterday-ish" },
  ])("refuses %j", async (request) => {
    const world = await install();
    expect(await sqlState(ask(world.sql, "terminate_v1", request))).toBe("PC003");
  });
});

describe("error_fingerprint", () => {
  it("is the same for errors that differ in their numbers, and stays what it is", async () => {
    const world = await install();
    const print = (error: string | null) => world.value<string>("select pgclaim.error_fingerprint($1)", [error]);
    const one = await print("PGCLAIM_HANDLER_THREW: Error: order 42 of 7f3a9c1e22 is gone\n    at a.ts:1");
    expect(await print("PGCLAIM_HANDLER_THREW: Error: order 7 of 00ff00ff11 is gone\n    at b.ts:2")).toBe(one);
    expect(await print("PGCLAIM_HANDLER_THREW: Error: order 7 of 00ff00ff11 was gone")).not.toBe(one);
    expect(one).toMatch(/^[0-9a-f]{12}$/);
    expect([one, await print(null)]).toMatchInlineSnapshot(`
      [
        "9d6b534c8cbc",
        "d41d8cd98f00",
      ]
    `);
  });
});
