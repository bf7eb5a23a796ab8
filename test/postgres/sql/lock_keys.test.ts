// Lock keys are pinned by literal values: two releases that disagree about a key would both hold one job. Collisions and
// the ends of the id range are put there by hand, since no test can enqueue 2^32 jobs.

import { describe, expect, it } from "vitest";
import { migrate } from "../../../src/cli/migrate.ts";
import {
  all,
  attempts,
  claim,
  claimer,
  claimOn,
  crash,
  enqueue,
  enqueueOne,
  fence,
  finish,
  ids,
  insertJob,
  install,
  job,
  locksOf,
  newTick,
  outcomes,
  reap,
  register,
  runTick,
  the,
} from "./support.ts";

const TWO_32 = 4_294_967_296n;
const MAX_ID = 9_223_372_036_854_775_807n;

describe("job_key", () => {
  it.each([
    // namespace, job id, key
    ["1", "1", "4294967297"],
    ["1048577", "1", "4503603922337793"],
    ["1048577", "2147483647", "4503606069821439"],
    ["1048577", "2147483648", "4503606069821440"],
    ["1048577", "4294967295", "4503608217305087"],
    ["1048577", "4294967296", "4503603922337792"],
    ["1048577", "4294967297", "4503603922337793"],
    ["1048577", "9223372036854775807", "4503608217305087"],
    ["2147483647", "4294967295", "9223372036854775807"],
  ])("of namespace %s and id %s is %s", async (namespace, id, key) => {
    const world = await install();
    expect(await world.value("select pgclaim.job_key($1, $2)", [namespace, id])).toBe(key);
  });
});

describe("name_key", () => {
  it.each([
    ["order", "account:7", "0", "-1097220154673300548"],
    ["order", "account:7", "1", "2745452220866753892"],
    ["lock", "account:7", "0", "4403785937917748674"],
    ["order", "Ä ß 漢", "-1", "6795391329170878901"],
    ["order", "", "9223372036854775807", "-3677976440890673006"],
  ])("of class %s, name %j and seed %s is %s", async (kind, name, seed, key) => {
    const world = await install();
    expect(await world.value("select pgclaim.name_key($1, $2, $3)", [kind, name, seed])).toBe(key);
  });

  it("does not depend on the collation of the name", async () => {
    const world = await install();
    await world.sql.query("create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)");
    expect(await world.rows("select pgclaim.name_key('lock', $1::text collate blind, 0) as a", ["account:7"])).toEqual([
      { a: "4403785937917748674" },
    ]);
  });
});

describe("namespaces", () => {
  it("start above a base between 2^20 and 2^30, and are distinct for every kind", async () => {
    const names = Array.from({ length: 200 }, (_, i) => ({ name: `kind-${i}` }));
    const world = await install(names);
    const base = await world.value<number>("select namespace_base from pgclaim.installation");
    expect(base).toBeGreaterThanOrEqual(2 ** 20);
    expect(base).toBeLessThan(2 ** 30);
    const spaces = (await world.rows<{ namespace: number }>("select namespace from pgclaim.kind")).map(
      (row) => row.namespace,
    );
    expect(new Set(spaces).size).toBe(200);
    expect(Math.min(...spaces)).toBeGreaterThan(base);
    expect(Math.max(...spaces)).toBeLessThanOrEqual(base + 200);
  });

  it("and the seed of names belong to one installation, also where two live in one database", async () => {
    const world = await install();
    await migrate({ client: world.sql, schema: "second" });
    const [one, two] = await world.rows<{ seed: string }>(
      "select seed from pgclaim.installation union all select seed from second.installation",
    );
    expect(one?.seed).not.toBe(two?.seed);
    await register(world.sql, [{ name: "only-here" }]);
    expect(await world.value("select count(*)::int from second.kind")).toBe(0);
  });

  it("stay what they are when the kinds are registered again, with others before and after them", async () => {
    const world = await install([{ name: "m" }, { name: "n" }]);
    const read = async () =>
      Object.fromEntries(
        (
          await world.rows<{ name: string; namespace: number }>(
            "select name, namespace from pgclaim.kind where name in ('m', 'n')",
          )
        ).map((row) => [row.name, row.namespace]),
      );
    const before = await read();
    await register(world.sql, [{ name: "a" }, { name: "m", maxAttempts: 9 }, { name: "n" }, { name: "z" }]);
    await register(world.sql, [{ name: "n", priority: 0 }, { name: "b" }, { name: "m" }]);
    expect(await read()).toEqual(before);
    expect(await world.value("select count(distinct namespace) = count(*) from pgclaim.kind")).toBe(true);
  });
});

describe("ids at the ends of the range", () => {
  // Around 2^31 the sign of an integer, around 2^32 the carry into the namespace, above 2^53 what a double would lose,
  // at 2^63 - 1 everything. No two share their low 32 bits.
  const interesting = [
    1n,
    2n ** 31n - 1n,
    2n ** 31n,
    2n ** 31n + 1n,
    TWO_32 - 1n,
    TWO_32,
    2n ** 53n + 7n,
    MAX_ID - 1n,
  ].map(String);

  it("are claimed, fenced and finished", async () => {
    const world = await install();
    for (const id of interesting) await insertJob(world.sql, id);
    const session = await claimer(world);
    expect([...ids(session.jobs)].sort()).toEqual([...interesting].sort());
    expect(await locksOf(world, session.pid)).toBe(interesting.length);
    const granted = await fence(world.sql, session);
    expect([...ids(granted)].sort()).toEqual([...interesting].sort());
    await finish(session.client, session.tick, all(session.jobs, "done"));
    expect(await world.value("select count(*)::int from pgclaim.history where outcome = 'done'")).toBe(
      interesting.length,
    );
    expect(await world.value("select count(*)::int from pgclaim.job")).toBe(0);
  });

  it("are reaped after a crash, and only then", async () => {
    const world = await install();
    for (const id of interesting) await insertJob(world.sql, id);
    const session = await claimer(world);
    await fence(world.sql, session);
    expect(await reap(world.sql)).toBe(0);
    await session.client.query("rollback");
    expect(await reap(world.sql)).toBe(interesting.length);
    for (const id of interesting) expect(await outcomes(world.sql, id)).toEqual(["crashed"]);
  });

  it("include the very last one that a sequence can give", async () => {
    const world = await install();
    await world.sql.query(`alter table pgclaim.job alter column id restart with ${MAX_ID}`);
    expect(await enqueueOne(world.sql)).toBe(String(MAX_ID));
    await crash(world);
    expect(await reap(world.sql)).toBe(1);
    expect(await job(world.sql, String(MAX_ID))).toMatchObject({ suspect: true, attempt: 1, state: "ready" });
    expect(ids(await runTick(world, { quarantined: true }))).toEqual([String(MAX_ID)]);
    expect(await world.value("select job_id from pgclaim.history")).toBe(String(MAX_ID));
  });

  it("run over 2^31 and 2^32 in one batch without a hole", async () => {
    const world = await install();
    for (const edge of [2n ** 31n, TWO_32]) {
      await world.sql.query(`alter table pgclaim.job alter column id restart with ${edge - 5n}`);
      const enqueued = await enqueue(world.sql, 10);
      expect(enqueued).toEqual(Array.from({ length: 10 }, (_, i) => String(edge - 5n + BigInt(i))));
      expect(ids(await runTick(world))).toEqual(enqueued);
    }
  });
});

describe("a collision of two jobs of one kind, 2^32 apart", () => {
  const pair = ["17", String(17n + TWO_32)] as const;

  it("costs the second of two sessions one skip, and both jobs end done", async () => {
    const world = await install();
    for (const id of pair) await insertJob(world.sql, id);
    const one = await claimer(world, { batch: 1 });
    expect(ids(one.jobs)).toEqual([pair[0]]);
    const two = await claimer(world);
    expect(two.jobs).toEqual([]);
    expect(two.skips).toEqual({ [pair[0]]: "busy", [pair[1]]: "busy" });
    await two.client.query("rollback");
    await fence(world.sql, one);
    await finish(one.client, one.tick, all(one.jobs, "done"));
    expect(ids(await runTick(world))).toEqual([pair[1]]);
    expect(await world.rows("select job_id, outcome from pgclaim.history order by job_id")).toEqual(
      pair.map((id) => ({ job_id: id, outcome: "done" })),
    );
  });

  it("costs one tick one skip, because a lock is re-entrant and one lock cannot stand for two jobs", async () => {
    const world = await install();
    for (const id of pair) await insertJob(world.sql, id);
    const session = await claimer(world);
    expect(ids(session.jobs)).toEqual([pair[0]]);
    expect(session.skips).toEqual({ [pair[1]]: "busy" });
    expect(await locksOf(world, session.pid)).toBe(1);
    await fence(world.sql, session);
    await finish(session.client, session.tick, all(session.jobs, "done"));
    expect(ids(await runTick(world))).toEqual([pair[1]]);
  });

  it("does not let the reaper take a running job for a dead one", async () => {
    const world = await install();
    for (const id of pair) await insertJob(world.sql, id);
    const one = await claimer(world, { batch: 1 });
    await fence(world.sql, one);
    // As if the other had died: its attempt is open, its key is the running one's.
    await fence(world.sql, { tick: newTick(), jobs: [{ id: pair[1], n: 1 }] });
    expect(await reap(world.sql)).toBe(0);
    await finish(one.client, one.tick, all(one.jobs, "done"));
    expect(await reap(world.sql)).toBe(1);
    expect(the(await attempts(world.sql, pair[1]))).toMatchObject({ n: 1, outcome: "crashed" });
  });
});

describe("keys of others", () => {
  it("do not block a job: its bare id, its id in two halves, a hash of its id or kind, one namespace further", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const stranger = await world.connect();
    await stranger.query(
      `select pg_advisory_lock($1::bigint), pg_advisory_lock(0, $1::integer), pg_advisory_lock(hashtext($1::text)),
         pg_advisory_lock(hashtext('a')), pg_advisory_lock(hashtext('a'), $1::integer),
         pg_advisory_lock((k.namespace::bigint << 32) | (($1::bigint + 1) & 4294967295))
       from pgclaim.kind k where k.name = 'b'`,
      [id],
    );
    const session = await claimer(world);
    expect(ids(session.jobs)).toEqual([id]);
  });

  it("in two halves that equal namespace and id do not block it either, since Postgres keeps the two spaces apart", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await (await world.connect()).query(
      "select pg_advisory_lock(k.namespace, $1::integer) from pgclaim.kind k where k.name = 'a'",
      [id],
    );
    expect(ids((await claimer(world)).jobs)).toEqual([id]);
  });

  it("that equal the job's key block it: this is the lock", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const other = await world.connect();
    await other.query(
      "select pg_advisory_lock_shared(pgclaim.job_key(k.namespace, $1)) from pgclaim.kind k where k.name = 'a'",
      [id],
    );
    const client = await world.connect();
    expect((await claimOn(client)).skips).toEqual({ [id]: "busy" });
    await other.query("select pg_advisory_unlock_all()");
    expect(ids((await claim(client)).jobs)).toEqual([id]);
  });
});

describe("try_job_lock", () => {
  it("is false for a kind nobody registered, since nobody can hold it", async () => {
    const world = await install();
    expect(await world.value("select pgclaim.try_job_lock('nobody', 1)")).toBe(false);
    expect(await world.value("select pgclaim.try_job_lock('a', 1)")).toBe(true);
  });
});
