// A change to many jobs: in slices, of what was there when somebody looked, bounded in rows and in waiting. What is busy is left.

import { describe, expect, it } from "vitest";
import { roleOf } from "../../support/roles.ts";
import { finished, installOrdered, keyed, line, put } from "../order/support.ts";
import {
  claimer,
  type Db,
  enqueue,
  enqueueOne,
  fence,
  type Installation,
  ids,
  install,
  job,
  policy,
  runTick,
  sqlState,
  the,
} from "../sql/support.ts";
import { actions, ask, bulk, bulkAll } from "./acting.ts";

const dead = { state: "dead" };

/** Dead letters of one kind, straight into the table. Answers their ids, ascending. */
async function bury(db: Db, count: number, kind = "a", payload: unknown = {}, error = "boom"): Promise<string[]> {
  const made = await enqueue(db, count, kind, payload);
  await db.query(
    `update pgclaim.job set state = 'dead', dead_reason = 'attempts', last_error = $2,
       dead_at = now() - interval '1 hour' + id * interval '1 ms'
     where id = any ($1)`,
    [made, error],
  );
  return made;
}

const count = (world: Installation, state: string): Promise<number> =>
  world.value("select count(*)::integer from pgclaim.job where state = $1", [state]);

describe("a slice", () => {
  it("has 1,000 jobs at most, says whether there is more, and writes a record for each job", async () => {
    const world = await install();
    await bury(world.sql, 2_300);
    const first = await bulk(world.sql, { verb: "retry", filter: dead });
    expect(first).toEqual({ changed: 1_000, left: 0, more: true, cursor: expect.any(String) });
    expect(await bulkAll(world.sql, { verb: "retry", filter: dead, cursor: first.cursor })).toEqual({
      changed: 1_300,
      left: 0,
      calls: 2,
    });
    expect([await count(world, "dead"), await count(world, "ready")]).toEqual([0, 2_300]);
    expect(await world.value("select count(distinct job_id)::integer from pgclaim.action where verb = 'retry'")).toBe(
      2_300,
    );
    expect((await actions(world))[0]).toBe("retry test in bulk");
  });

  it("gives each job a fresh set of attempts, as retry does", async () => {
    const world = await install();
    const [id] = (await bury(world.sql, 1)) as [string];
    await world.sql.query("update pgclaim.job set attempt = 4, failures = 4, suspect = true");
    await bulk(world.sql, { verb: "retry", filter: dead });
    expect(await job(world.sql, id)).toMatchObject({ state: "ready", failures: 0, crash_base: 4, suspect: true });
  });

  it("takes no job that was not there when somebody looked", async () => {
    const world = await install();
    const old = await bury(world.sql, 3);
    const [fresh] = (await bury(world.sql, 1)) as [string];
    expect(await bulkAll(world.sql, { verb: "discard", filter: dead, upTo: the(old, 2) })).toMatchObject({
      changed: 3,
    });
    expect(await world.rows("select id from pgclaim.job")).toEqual([{ id: fresh }]);
    expect(await world.value("select count(*)::integer from pgclaim.history where outcome = 'discarded'")).toBe(3);
  });

  it("reaches all that matched, where they are too many to be counted", async () => {
    const world = await install();
    const old = await bury(world.sql, 5);
    // The lowest id died last, so the highest ones are not among those that are counted.
    await world.sql.query("update pgclaim.job set dead_at = now() - id * interval '1 s'");
    const counted = await ask<{ n: number; upTo: string }>(world.sql, "count_jobs_v1", { ...dead, cap: 2 });
    const [fresh] = (await bury(world.sql, 1)) as [string];
    expect(await bulkAll(world.sql, { verb: "discard", filter: dead, upTo: counted.upTo })).toMatchObject({
      changed: old.length,
    });
    expect(await world.rows("select id from pgclaim.job")).toEqual([{ id: fresh }]);
  });

  it("spreads the retries evenly, and records when each is due", async () => {
    const world = await install();
    await bury(world.sql, 4);
    await bulk(world.sql, { verb: "retry", filter: dead, spreadMs: 400_000 });
    expect(
      await world.rows(
        `select state, round(extract(epoch from run_at - min(run_at) over ()))::integer as after,
           rank = run_at + interval '300 s' as ranked from pgclaim.job order by id`,
      ),
    ).toEqual(
      ["ready", "scheduled", "scheduled", "scheduled"].map((state, i) => ({ state, after: 100 * i, ranked: true })),
    );
    expect((await actions(world))[3]).toMatch(/^retry test in bulk, due \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/);
  });

  it("looks at 10,000 rows at most where a filter has no index, and goes on from there", async () => {
    const world = await install();
    const [oldest] = (await bury(world.sql, 1, "a", { rare: true })) as [string];
    await bury(world.sql, 10_500);
    const request = { verb: "discard", filter: { payload: { rare: true }, state: "dead" } };
    const first = await bulk(world.sql, request);
    expect(first).toMatchObject({ changed: 0, left: 0, more: true });
    expect(await bulk(world.sql, { ...request, cursor: first.cursor })).toEqual({
      changed: 1,
      left: 0,
      more: false,
      cursor: null,
    });
    expect(await world.rows("select job_id from pgclaim.history")).toEqual([{ job_id: oldest }]);
  });
});

describe("a filter", () => {
  const kinds = [
    { name: "a", orderingKey: "k:{k}", whenDead: "skip" as const },
    { name: "b", queue: "slow", uniqueKey: "{k}" },
  ];

  it.each([
    ["kind", { kind: "b" }],
    ["queue", { queue: "slow" }],
    ["orderingKey", { orderingKey: "k:1" }],
    ["uniqueKey", { uniqueKey: "2" }],
    ["payload", { payload: { k: "1" } }],
    ["reason", { reason: "crashed" }],
    ["fingerprint", { fingerprint: "b" }],
    ["since", { since: "2020-01-01T00:00:00Z" }],
  ])("%s narrows, and nothing else is touched", async (name, filter) => {
    const world = await install(kinds);
    const [one] = await bury(world.sql, 1, "a", { k: "1" }, "a 1");
    const [two] = await bury(world.sql, 1, "b", { k: "2" }, "b 1");
    await world.sql.query("update pgclaim.job set dead_reason = 'crashed' where kind = 'b'");
    await world.sql.query("update pgclaim.job set dead_at = '2019-01-01' where kind = 'a'");
    const wanted = name === "orderingKey" || name === "payload" ? one : two;
    const print = await world.value("select pgclaim.error_fingerprint('b 7')");
    const sent = name === "fingerprint" ? { fingerprint: print } : filter;
    expect(await bulkAll(world.sql, { verb: "discard", filter: sent })).toEqual({ changed: 1, left: 0, calls: 1 });
    expect(await world.rows("select job_id from pgclaim.history")).toEqual([{ job_id: wanted }]);
  });

  it("of a state that the verb does not take finds nothing", async () => {
    const world = await install();
    await bury(world.sql, 1);
    await enqueueOne(world.sql);
    const nothing = { changed: 0, left: 0, more: false, cursor: null };
    for (const verb of ["retry", "discard"])
      expect(await bulk(world.sql, { verb, filter: { state: "ready" } })).toEqual(nothing);
    for (const filter of [dead, { reason: "attempts" }, { state: "done" }])
      expect(await bulk(world.sql, { verb: "cancel", filter })).toEqual(nothing);
    expect([await count(world, "dead"), await count(world, "ready")]).toEqual([1, 1]);
  });

  it.each([
    ["no verb", { filter: dead }],
    ["another verb", { verb: "skip", filter: dead }],
    ["no filter", { verb: "retry" }],
    ["a filter without a field", { verb: "cancel", filter: { kind: null } }],
    ["a state that is none", { verb: "cancel", filter: { state: "waiting" } }],
    ["a limit beyond a slice", { verb: "retry", filter: dead, limit: 1_001 }],
    ["an upper id that is none", { verb: "retry", filter: dead, upTo: "all" }],
    ["a spread beyond a week", { verb: "retry", filter: dead, spreadMs: 604_800_001 }],
    ["a spread of half a millisecond", { verb: "retry", filter: dead, spreadMs: 0.5 }],
    ["a cursor of another list", { verb: "retry", filter: dead, cursor: "WyJrZXkiLDEsIjEiXQ" }],
  ])("that is wrong is refused and changes nothing: %s", async (_, request) => {
    const world = await install();
    await bury(world.sql, 1);
    expect(await sqlState(bulk(world.sql, request))).toBe("PC003");
    expect(await count(world, "dead")).toBe(1);
  });
});

describe("cancel", () => {
  it("takes out what waits, flags what runs, and leaves dead letters", async () => {
    const world = await installOrdered([keyed, { name: "b" }]);
    const [grave] = await bury(world.sql, 1, "b");
    for (const n of [1, 2]) await put(world.sql, "x", n);
    const [scheduled] = (await enqueue(world.sql, 1, "b")) as [string];
    await world.sql.query("update pgclaim.job set state = 'scheduled', run_at = now() + interval '1 h' where id = $1", [
      scheduled,
    ]);
    const [running] = (await enqueue(world.sql, 1, "b")) as [string];
    const session = await claimer(world, { kinds: ["b"] });
    await fence(world.sql, session);
    const filter = { queue: "default" };
    expect(await bulk(world.sql, { verb: "cancel", filter })).toMatchObject({ changed: 4, left: 0, more: false });
    expect(await world.rows("select id from pgclaim.job order by id")).toEqual([{ id: grave }, { id: running }]);
    expect(await world.rows("select job_id from pgclaim.cancel_request")).toEqual([{ job_id: running }]);
    // Asked for already: that changes nothing any more.
    expect(await bulk(world.sql, { verb: "cancel", filter })).toMatchObject({ changed: 0, left: 1 });
    expect(await actions(world)).toHaveLength(4);
    await session.client.query("rollback");
    await runTick(world, { kinds: ["b"] });
    await world.sql.query("select pgclaim.reap(9); select pgclaim.cancel_requested(9)");
  });

  it("frees unique keys, and lets the next of each gate through", async () => {
    const world = await install([{ name: "a", ...{ limitNames: ["t:{t}"], limitMaxes: [1], uniqueKey: "{k}" } }]);
    for (const k of [1, 2, 3]) await enqueueOne(world.sql, "a", { t: 1, k });
    expect([await count(world, "ready"), await count(world, "blocked")]).toEqual([1, 2]);
    expect(await bulk(world.sql, { verb: "cancel", filter: { state: "ready" } })).toMatchObject({ changed: 1 });
    expect([await count(world, "ready"), await count(world, "blocked")]).toEqual([1, 1]);
    expect(await world.rows("select key from pgclaim.unique_key order by key")).toEqual([{ key: "2" }, { key: "3" }]);
  });
});

describe("order", () => {
  it("is kept: a halted key goes on with its head, which runs before those behind it", async () => {
    const world = await installOrdered();
    for (const k of ["x", "y"]) await put(world.sql, k, 1);
    await runTick(world, {}, "dead");
    for (const k of ["x", "y"]) await put(world.sql, k, 2);
    expect(await line(world.sql, "x")).toEqual(["1 dead", "2 blocked"]);
    expect(await bulk(world.sql, { verb: "retry", filter: dead })).toMatchObject({ changed: 2 });
    expect(await line(world.sql, "y")).toEqual(["1 ready", "2 blocked"]);
    await runTick(world);
    // History has a tick's jobs by place.
    expect(await finished(world.sql)).toEqual([1, 1, 2, 2]);
  });

  it("is a new one for those whom others have passed: at the end of their key, in the order they had", async () => {
    const world = await installOrdered([{ ...keyed, whenDead: "skip" }]);
    for (const n of [1, 2, 3]) await put(world.sql, "x", n);
    for (const _ of [1, 2, 3]) await runTick(world, { batch: 1 }, "dead");
    await put(world.sql, "x", 4);
    expect(await bulk(world.sql, { verb: "retry", filter: dead })).toMatchObject({ changed: 3 });
    expect(await line(world.sql, "x")).toEqual(["4 ready", "1 blocked", "2 blocked", "3 blocked"]);
  });

  it("of a key waits with a head that is due later", async () => {
    const world = await installOrdered();
    for (const k of ["x", "y"]) await put(world.sql, k, 1);
    await runTick(world, {}, "dead");
    for (const k of ["x", "y"]) await put(world.sql, k, 2);
    await bulk(world.sql, { verb: "retry", filter: dead, spreadMs: 3_600_000 });
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked"]);
    expect(await line(world.sql, "y")).toEqual(["1 scheduled", "2 blocked"]);
  });
});

describe("what is busy", () => {
  it("by a job's lock is left and counted; the others are changed", async () => {
    const world = await install();
    const [locked, free] = (await bury(world.sql, 2)) as [string, string];
    const other = await world.connect();
    await other.query(`begin; select pgclaim.try_job_lock('a', ${locked})`);
    expect(await bulk(world.sql, { verb: "discard", filter: dead })).toMatchObject({ changed: 1, left: 1 });
    expect(await world.rows("select job_id from pgclaim.history")).toEqual([{ job_id: free }]);
    await other.query("rollback");
  });

  it("by a gate that somebody keeps is left within a second, with all its jobs", async () => {
    const world = await installOrdered([{ ...keyed, whenDead: "skip" }]);
    for (const k of ["x", "y"]) await put(world.sql, k, 1);
    await runTick(world, {}, "dead");
    const other = await world.connect();
    await other.query("begin; select pgclaim.lock_gates('{order:k:x}')");
    await world.sql.query("set statement_timeout = '3s'");
    expect(await bulk(world.sql, { verb: "retry", filter: dead })).toMatchObject({ changed: 1, left: 1 });
    expect([await line(world.sql, "x"), await line(world.sql, "y")]).toEqual([["1 dead"], ["1 ready"]]);
    await other.query("commit");
    expect(await bulk(world.sql, { verb: "retry", filter: dead })).toMatchObject({ changed: 1, left: 0 });
  });

  it("by a caller that replaces a running job and waits for our gate at its commit does not close a circle", async () => {
    const world = await install([
      { name: "a", ...{ orderingKey: "g", uniqueKey: "{k}", onConflict: "replace" } },
      { name: "b", ...{ orderingKey: "g" } },
    ]);
    const running = await enqueueOne(world.sql, "a", { k: 1 });
    const session = await claimer(world);
    await fence(world.sql, session);
    expect(ids(session.jobs)).toEqual([running]);
    const waiting = await enqueueOne(world.sql, "b");
    // It has the flag of the running job, and at its commit it wants the gate.
    const caller = await world.connect();
    await caller.query("begin");
    await caller.query(`select pgclaim.enqueue('a', '{"k": 1}')`);
    await world.sql.query("set statement_timeout = '3s'");
    expect(await bulk(world.sql, { verb: "cancel", filter: { queue: "default" } })).toMatchObject({
      changed: 1,
      left: 1,
    });
    await caller.query("commit");
    expect(await world.rows("select from pgclaim.job where id = $1", [waiting])).toEqual([]);
    await session.client.query("rollback");
    await world.sql.query("select pgclaim.reap(9); select pgclaim.cancel_requested(9)");
  });

  it("by nothing but a slow commit is waited for, and seen as it stands then", async () => {
    const world = await installOrdered();
    const [x, y] = [await put(world.sql, "x", 1), await put(world.sql, "y", 1)];
    await runTick(world, {}, "dead");
    const other = await world.connect();
    await other.query("begin");
    await other.query("select pgclaim.retry_v1($1)", [x]);
    const operator = await world.connect();
    expect(await bulk(operator, { verb: "discard", filter: dead })).toMatchObject({ changed: 1, left: 1 });
    await other.query("commit");
    expect(await world.rows("select job_id from pgclaim.history")).toEqual([{ job_id: y }]);
  });
});

describe("a role that operates", () => {
  it("may do all of it with an empty search_path", async () => {
    const world = await install([
      { ...policy({ name: "a" }), ...{ orderingKey: "{k}" } },
      { ...policy({ name: "b" }), ...{ limitNames: ["l:{k}"], limitMaxes: [1], uniqueKey: "{k}" } },
    ]);
    const { client } = await roleOf(world, "operate");
    await bury(world.sql, 2, "a", { k: 1 });
    await bury(world.sql, 1, "b", { k: 1 });
    expect(await bulk(client, { verb: "retry", filter: dead })).toMatchObject({ changed: 3 });
    expect(await bulk(client, { verb: "cancel", filter: { kind: "a" } })).toMatchObject({ changed: 2 });
    const session = await claimer(world);
    expect(await bulk(client, { verb: "cancel", filter: { kind: "b" } })).toMatchObject({ changed: 1 });
    await session.client.query("rollback");
    await world.sql.query("update pgclaim.job set state = 'dead', dead_at = now(), dead_reason = 'handler'");
    expect(await bulk(client, { verb: "discard", filter: dead })).toMatchObject({ changed: 1 });
  });
});
