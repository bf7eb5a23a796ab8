// The fence: a number is granted to one tick and to no other, for ever. Answers may be lost and messages may come late;
// each history here delivers them in an order a network could.

import { describe, expect, it } from "vitest";
import {
  all,
  alter,
  attempts,
  claimer,
  claimOn,
  crash,
  enqueue,
  enqueueOne,
  failure,
  fence,
  finish,
  ids,
  install,
  job,
  kill,
  newTick,
  outcomes,
  pidOf,
  reap,
  runTick,
  settle,
  the,
  waitsForLock,
} from "./support.ts";

describe("fence grants", () => {
  it("what was claimed, in the order asked, and puts it on record as started by this tick", async () => {
    const world = await install();
    const [x, y, z] = await enqueue(world.sql, 3);
    const session = await claimer(world);
    const jobs = [z, x, y].map((id) => ({ id: String(id), n: 1 }));
    expect(ids(await fence(world.sql, { tick: session.tick, jobs }))).toEqual([z, x, y]);
    for (const { id } of jobs) {
      expect(await attempts(world.sql, id)).toEqual([
        { n: 1, tick: session.tick, quarantined: false, outcome: null, error: null },
      ]);
    }
  });

  it("nothing for an empty list, an unknown job, or a job that is gone", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await runTick(world);
    const tick = newTick();
    expect(await fence(world.sql, { tick, jobs: [] })).toEqual([]);
    expect(
      await fence(world.sql, {
        tick,
        jobs: [
          { id: "424242", n: 1 },
          { id, n: 2 },
        ],
      }),
    ).toEqual([]);
    expect(await world.value("select count(*)::int from pgclaim.attempt where outcome is null")).toBe(0);
  });

  it("again, with the same text, when the same tick repeats itself because the answer was lost", async () => {
    const world = await install();
    await enqueue(world.sql, 3, "a", { n: 1 });
    const session = await claimer(world);
    const first = await fence(world.sql, session);
    expect(first).toHaveLength(3);
    expect(await fence(world.sql, session)).toEqual(first);
    expect(await world.value("select count(*)::int from pgclaim.attempt")).toBe(3);
  });

  it("only the rest when some of the numbers are another tick's", async () => {
    const world = await install();
    const [taken, free] = await enqueue(world.sql, 2);
    const jobs = [taken, free].map((id) => ({ id: String(id), n: 1 }));
    await fence(world.sql, { tick: newTick(), jobs: [the(jobs)] });
    expect(ids(await fence(world.sql, { tick: newTick(), jobs }))).toEqual([free]);
  });

  it("the mark of quarantine with the number", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await fence(world.sql, { tick: newTick(), jobs: [{ id, n: 1 }], quarantined: true });
    expect(the(await attempts(world.sql, id))).toMatchObject({ quarantined: true, outcome: null });
  });

  it("the payload as it was stored: 64-bit numbers, escapes, duplicate-free keys", async () => {
    const world = await install();
    const stored = '{"big": 9223372036854775807, "tiny": 0.1234567890123456789, "text": "ä\\"\\\\\\n漢 \\u2028"}';
    const { rows } = await world.sql.query("select job_id from pgclaim.enqueue('a', $1::jsonb)", [stored]);
    const session = await claimer(world);
    const [grant] = await fence(world.sql, session);
    expect(grant?.id).toBe(the(rows).job_id);
    expect(grant?.payload).toContain("9223372036854775807");
    expect(grant?.payload).toContain("0.1234567890123456789");
    expect(await world.value("select $1::jsonb = $2::jsonb", [grant?.payload, stored])).toBe(true);
  });

  it("one idempotency key for every attempt of a job, another for every other job and installation", async () => {
    const world = await install();
    const elsewhere = await install();
    // Worlds are copies of one template, seed included; a second installation draws its own.
    await elsewhere.sql.query("update pgclaim.installation set seed = seed # 1");
    const [x, y] = await enqueue(world.sql, 2);
    const key = async (db: typeof world.sql, id: string | undefined, n: number) => {
      const tick = newTick();
      const grant = the(await fence(db, { tick, jobs: [{ id: String(id), n }] }));
      await settle(db, { tick, jobs: [grant] });
      return grant.key;
    };
    const first = await key(world.sql, x, 1);
    expect(await key(world.sql, x, 2)).toBe(first);
    expect(await key(world.sql, y, 1)).not.toBe(first);
    expect(await enqueueOne(elsewhere.sql)).toBe(x);
    expect(await key(elsewhere.sql, x, 1)).not.toBe(first);
  });
});

describe("fence refuses", () => {
  it("every other tick, however often it asks", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const owner = newTick();
    await fence(world.sql, { tick: owner, jobs: [{ id, n: 1 }] });
    const other = { tick: newTick(), jobs: [{ id, n: 1 }] };
    expect(await fence(world.sql, other)).toEqual([]);
    expect(await fence(world.sql, other)).toEqual([]);
    expect(the(await attempts(world.sql, id)).tick).toBe(owner);
  });

  it("every number at or below the job's own, even where no row is left of it", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await world.sql.query("update pgclaim.job set attempt = 3 where id = $1", [id]);
    for (const n of [1, 2, 3]) expect(await fence(world.sql, { tick: newTick(), jobs: [{ id, n }] })).toEqual([]);
    expect(await attempts(world.sql, id)).toEqual([]);
    expect(await fence(world.sql, { tick: newTick(), jobs: [{ id, n: 4 }] })).toHaveLength(1);
  });

  it("any level but READ COMMITTED", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await world.sql.query("begin isolation level repeatable read");
    const error = await failure(fence(world.sql, { tick: newTick(), jobs: [{ id, n: 1 }] }));
    await world.sql.query("rollback");
    expect(error.code).toBe("PC001");
  });

  it("the second of two ticks that ask for one number at the same instant, once the first has committed", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const [one, two] = [await world.connect(), await world.connect()];
    await one.query("begin isolation level read committed");
    const jobs = [{ id, n: 1 }];
    expect(await fence(one, { tick: newTick(), jobs })).toHaveLength(1);
    const pid = await pidOf(two);
    const late = fence(two, { tick: newTick(), jobs });
    await waitsForLock(world, pid);
    await one.query("commit");
    expect(await late).toEqual([]);
  });

  it("nobody for a transaction that did not commit", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const [one, two] = [await world.connect(), await world.connect()];
    await one.query("begin isolation level read committed");
    const jobs = [{ id, n: 1 }];
    await fence(one, { tick: newTick(), jobs });
    const pid = await pidOf(two);
    const late = fence(two, { tick: newTick(), jobs });
    await waitsForLock(world, pid);
    await one.query("rollback");
    expect(await late).toHaveLength(1);
  });
});

describe("fence is durable", () => {
  // What fence saw is read by a trigger on the row it writes: the setting is local and gone afterwards.
  it.each([
    ["off", "on"],
    ["local", "local"],
    ["on", "on"],
    ["remote_apply", "remote_apply"],
  ])("with synchronous_commit %s it writes with %s", async (given, used) => {
    const world = await install();
    await world.sql.query(`
      create table seen (setting text);
      create function see() returns trigger language plpgsql as
        $$ begin insert into seen values (current_setting('synchronous_commit')); return null; end $$;
      create constraint trigger see after insert on pgclaim.attempt deferrable initially deferred
        for each row execute function see()`);
    const id = await enqueueOne(world.sql);
    await world.sql.query(`set synchronous_commit = ${given}`);
    await fence(world.sql, { tick: newTick(), jobs: [{ id, n: 1 }] });
    expect(await world.value("select setting from seen")).toBe(used);
    expect(await world.value("select current_setting('synchronous_commit')")).toBe(given);
  });
});

describe("a late fence of a dead tick grants nothing", () => {
  const dead = newTick();

  it("after its number was burned", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    const session = await claimer(world);
    await finish(session.client, session.tick, all(session.jobs, "released"));
    expect(await fence(world.sql, session)).toEqual([]);
    expect(ids(await runTick(world))).toEqual(ids(session.jobs));
  });

  it("after settle marked it interrupted", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    await kill(world, session.pid);
    expect(await settle(world.sql, session)).toBe("lost");
    expect(await fence(world.sql, session)).toEqual([]);
    expect(await outcomes(world.sql, id)).toEqual(["interrupted"]);
    expect(await runTick(world)).toEqual([{ id, n: 2 }]);
  });

  it("after the reaper closed it", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await crash(world);
    expect(await reap(world.sql)).toBe(1);
    expect(await fence(world.sql, session)).toEqual([]);
    expect(await outcomes(world.sql, id)).toEqual(["crashed"]);
  });

  it("after another tick failed the job under that number", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    expect(await runTick(world, {}, "failed")).toEqual([{ id, n: 1 }]);
    expect(await fence(world.sql, { tick: dead, jobs: [{ id, n: 1 }] })).toEqual([]);
    expect(await outcomes(world.sql, id)).toEqual(["failed"]);
  });

  it("after another tick finished the job", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await runTick(world);
    expect(await fence(world.sql, { tick: dead, jobs: [{ id, n: 1 }] })).toEqual([]);
    expect(await outcomes(world.sql, id)).toEqual(["done"]);
  });

  it("that another tick is running: the number is the runner's, and the runner ends in peace", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const runner = await claimer(world);
    await fence(world.sql, runner);
    expect(await fence(world.sql, { tick: dead, jobs: [{ id, n: 1 }] })).toEqual([]);
    await finish(runner.client, runner.tick, all(runner.jobs, "done"));
    expect(await outcomes(world.sql, id)).toEqual(["done"]);
  });
});

describe("a late fence that comes first", () => {
  it("takes the number from a live tick, which does nothing with the job; the next wake frees it", async () => {
    const world = await install();
    const [id, other] = await enqueue(world.sql, 2);
    const live = await claimer(world);
    // Its session died before ours began, its message was on the way: same number, other tick.
    await fence(world.sql, { tick: newTick(), jobs: [{ id: String(id), n: 1 }] });
    const granted = await fence(world.sql, live);
    expect(ids(granted)).toEqual([other]);
    // While the live tick holds the job's lock nobody can tell, so the reaper leaves it.
    expect(await reap(world.sql)).toBe(0);
    await finish(live.client, live.tick, all(granted, "done"));
    expect(await reap(world.sql)).toBe(1);
    expect(await job(world.sql, String(id))).toMatchObject({ attempt: 1, suspect: true, failures: 0 });
    expect(await runTick(world, { quarantined: true })).toEqual([{ id, n: 2 }]);
  });
});

describe("housekeeping in the fence of a looping invocation", () => {
  const housekeep = (tick: string, jobs: readonly { id: string; n: number }[]) =>
    JSON.stringify({ tick, quarantined: false, jobs, reapSlice: 100, dueSlice: 100 });

  it("reaps the dead and promotes what is due, and leaves its own tick alone", async () => {
    const world = await install();
    const [dead, due, own] = await enqueue(world.sql, 3);
    await world.sql.query("update pgclaim.job set state = 'scheduled' where id = any ($1)", [[due, own]]);
    await crash(world);
    await world.sql.query("update pgclaim.job set state = 'ready' where id = $1", [own]);
    const session = await claimer(world);
    expect(ids(session.jobs)).toEqual([own]);
    const { rows } = await world.sql.query("select job_id from pgclaim.fence_v1($1)", [
      housekeep(session.tick, session.jobs),
    ]);
    expect(rows).toEqual([{ job_id: own }]);
    expect(await outcomes(world.sql, String(dead))).toEqual(["crashed"]);
    expect((await job(world.sql, String(due))).state).toBe("ready");
    expect(await outcomes(world.sql, String(own))).toEqual([null]);
  });

  it("never costs a grant: where it fails, the fence stands", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await alter(world.sql, "pgclaim.promote_due(integer)", [["promoted integer := 0;", "promoted integer := 1 / 0;"]]);
    const session = await claimOn(await world.connect());
    const { rows } = await world.sql.query("select job_id from pgclaim.fence_v1($1)", [
      housekeep(session.tick, session.jobs),
    ]);
    expect(rows).toEqual([{ job_id: id }]);
    expect(await outcomes(world.sql, id)).toEqual([null]);
  });
});
