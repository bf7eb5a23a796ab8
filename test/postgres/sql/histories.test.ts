// Histories in which a weaker protocol loses, doubles or blames a job: each was the shortest counterexample to it, played
// here message by message on real sessions. Titles say what must hold.

import { describe, expect, it } from "vitest";
import {
  all,
  alter,
  attempts,
  claim,
  claimer,
  claimOn,
  crash,
  enqueue,
  enqueueOne,
  failure,
  fence,
  finish,
  finishOnly,
  type Installation,
  ids,
  install,
  job,
  kill,
  newTick,
  outcomes,
  pidOf,
  reap,
  runTick,
  type Session,
  settle,
  the,
  waitsForLock,
  wake,
} from "./support.ts";

const QUICK = { name: "a", maxCrashes: 3, minBackoffMs: 0, maxBackoffMs: 0 } as const;

/** Makes what waits for its backoff due, as time would. */
const elapse = (world: Installation) =>
  world.sql.query("update pgclaim.job set state = 'ready' where state = 'scheduled'");

const ageADay = (world: Installation) =>
  world.sql.query(
    "update pgclaim.attempt set started_at = started_at - interval '2 days', ended_at = ended_at - interval '2 days'",
  );

/** A fence that has read the job and then stands still before it writes, until the returned function lets it go. */
async function slowFence(world: Installation, session: Pick<Session, "tick" | "jobs">) {
  await world.sql.query(`
    create function stand_still() returns trigger language plpgsql as
      $$ begin perform pg_advisory_lock_shared(4711); perform pg_advisory_unlock_shared(4711); return new; end $$;
    create trigger stand_still before insert on pgclaim.attempt for each row
      when (new.tick = '${session.tick}') execute function stand_still()`);
  const barrier = await world.connect();
  await barrier.query("select pg_advisory_lock(4711)");
  const messenger = await world.connect();
  const pid = await pidOf(messenger);
  const granted = fence(messenger, session);
  await waitsForLock(world, pid);
  return async () => {
    await barrier.query("select pg_advisory_unlock(4711)");
    return granted;
  };
}

describe("a fence that has read the job before another tick used its number", () => {
  it("grants nothing when it writes after that tick failed the job", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const lost = await claimer(world);
    const deliver = await slowFence(world, lost);
    await kill(world, lost.pid);
    expect(await runTick(world, {}, "failed")).toEqual([{ id, n: 1 }]);
    expect(await deliver()).toEqual([]);
    expect(await outcomes(world.sql, id)).toEqual(["failed"]);
    expect(await runTick(world)).toEqual([{ id, n: 2 }]);
  });

  it("would start the number twice if closed rows were deleted at once", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const lost = await claimer(world);
    const deliver = await slowFence(world, lost);
    await kill(world, lost.pid);
    expect(await runTick(world, {}, "failed")).toEqual([{ id, n: 1 }]);
    await world.sql.query("delete from pgclaim.attempt");
    expect((await deliver()).map(({ id, n }) => ({ id, n }))).toEqual([{ id, n: 1 }]);
    // Put right, for what every test must leave behind.
    await world.sql.query("delete from pgclaim.attempt");
  });

  it("grants nothing when it writes after that tick finished the job", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const lost = await claimer(world);
    const deliver = await slowFence(world, lost);
    await kill(world, lost.pid);
    expect(await runTick(world)).toEqual([{ id, n: 1 }]);
    expect(await deliver()).toEqual([]);
    expect(await outcomes(world.sql, id)).toEqual(["done"]);
  });
});

describe("a late fence of a number that was burned and pruned", () => {
  it("opens nothing below the job's own number", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const burned = await claimer(world);
    await finish(burned.client, burned.tick, all(burned.jobs, "released"));
    expect(await runTick(world, {}, "failed")).toEqual([{ id, n: 2 }]);
    await ageADay(world);
    expect((await wake(world.sql)).pruned).toBe(2);
    expect(await attempts(world.sql, id)).toEqual([]);
    expect(await fence(world.sql, burned)).toEqual([]);
    expect(await attempts(world.sql, id)).toEqual([]);
    await elapse(world);
    expect(await runTick(world)).toEqual([{ id, n: 3 }]);
  });
});

describe("a number that settle wrote before its fence arrived", () => {
  it("outlives pruning until the job's own number has passed it, so that no second attempt opens beside a live one", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const lost = await claimer(world);
    await kill(world, lost.pid);
    await settle(world.sql, lost);
    await ageADay(world);
    await wake(world.sql);
    const live = await claimer(world);
    expect(live.jobs).toEqual([{ id, n: 2 }]);
    await fence(world.sql, live);
    expect(await fence(world.sql, lost)).toEqual([]);
    expect(await outcomes(world.sql, id)).toEqual(["interrupted", null]);
    await finish(live.client, live.tick, all(live.jobs, "done"));
  });
});

describe("a job with an open attempt", () => {
  it("is claimed by nobody before the reaper has closed it, although its lock is free", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await crash(world);
    expect(await world.locks()).toBe(0);
    for (const quarantined of [false, true]) {
      const session = await claimer(world, { quarantined });
      expect(session.jobs).toEqual([]);
      await session.client.query("rollback");
    }
    await reap(world.sql);
    expect(await runTick(world, { quarantined: true })).toEqual([{ id, n: 2 }]);
  });

  it("would be claimed and have two open attempts if claim did not look", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await alter(
      world.sql,
      "pgclaim.claim_v1(jsonb)",
      [
        [
          "when exists (select from pgclaim.attempt o where o.job_id = j.id and o.outcome is null) then 'open-attempt'",
          "when false then 'open-attempt'",
        ],
      ],
      "pgclaim.claim_careless",
    );
    await crash(world);
    const client = await world.connect();
    await client.query("begin");
    const { jobs } = await claim(client, {}, "pgclaim.claim_careless");
    expect(jobs).toEqual([{ id, n: 2 }]);
    await fence(world.sql, { tick: newTick(), jobs });
    expect(await outcomes(world.sql, id)).toEqual([null, null]);
    await world.sql.query("delete from pgclaim.attempt");
  });
});

describe("an attempt whose tick lives", () => {
  it("is not reaped at any moment between claim and commit", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    expect(await reap(world.sql)).toBe(0);
    await fence(world.sql, session);
    expect(await reap(world.sql)).toBe(0);
    await session.client.query(
      "create temp table effect (x int) on commit drop; savepoint turn; insert into effect values (1)",
    );
    expect(await reap(world.sql)).toBe(0);
    await session.client.query("rollback to turn; release turn");
    expect(await reap(world.sql)).toBe(0);
    await finishOnly(session.client, session.tick, all(session.jobs, "failed", { inMs: 0 }));
    expect(await reap(world.sql)).toBe(0);
    await session.client.query("commit");
    expect(await reap(world.sql)).toBe(0);
    expect(await outcomes(world.sql, id)).toEqual(["failed"]);
  });

  it("would be reaped if its locks had been taken after a savepoint that is rolled back: claim comes first", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    const client = await world.connect();
    await client.query("begin; savepoint turn");
    const { jobs } = await claim(client);
    await fence(world.sql, { tick: newTick(), jobs });
    await client.query("rollback to turn");
    expect(await reap(world.sql)).toBe(1);
  });
});

describe("a killer", () => {
  it("stays alone until a handler of it has ended, so that it kills its neighbours once and no more", async () => {
    const world = await install([QUICK]);
    const [killer, innocent] = (await enqueue(world.sql, 2)) as [string, string];
    await crash(world);
    await reap(world.sql);
    // Quarantine: the killer kills again, its innocent neighbour ends, and the killer does not get company again.
    for (let kills = 1; kills <= 2; kills++) {
      const session = await claimer(world, { quarantined: true });
      expect(ids(session.jobs)).toEqual([killer]);
      await fence(world.sql, { ...session, quarantined: true });
      await kill(world, session.pid);
      await reap(world.sql);
      await elapse(world);
      expect((await job(world.sql, killer)).suspect).toBe(true);
      const neighbour = await enqueueOne(world.sql);
      expect(ids(await runTick(world))).toEqual([neighbour]);
      if (kills === 1) expect(await runTick(world, { quarantined: true })).toEqual([{ id: innocent, n: 2 }]);
    }
    await crash(world, { quarantined: true });
    await reap(world.sql);
    expect(await job(world.sql, killer)).toMatchObject({ state: "dead", dead_reason: "crashed", attempt: 4 });
    expect(await outcomes(world.sql, innocent)).toEqual(["crashed", "done"]);
  });
});

describe("a healthy suspect", () => {
  const aSuspect = async (world: Installation) => {
    const id = await enqueueOne(world.sql);
    await crash(world);
    await reap(world.sql);
    return id;
  };

  it("is not charged when its fence's answers are lost: the number is burned, and the late fence opens nothing", async () => {
    const world = await install([QUICK]);
    const id = await aSuspect(world);
    const session = await claimer(world, { quarantined: true });
    // Neither answer came; perhaps the messages are still under way. The session ends the tick with the burn.
    await finish(session.client, session.tick, all(session.jobs, "released"));
    expect(await fence(world.sql, { ...session, quarantined: true })).toEqual([]);
    expect(await reap(world.sql)).toBe(0);
    expect(await outcomes(world.sql, id)).toEqual(["crashed", "released"]);
    expect(await runTick(world, { quarantined: true })).toEqual([{ id, n: 3 }]);
  });

  it("would be charged if the tick just rolled back and the fence arrived afterwards", async () => {
    const world = await install([QUICK]);
    const id = await aSuspect(world);
    const session = await claimer(world, { quarantined: true });
    await session.client.query("rollback");
    await fence(world.sql, { ...session, quarantined: true });
    expect(await reap(world.sql)).toBe(1);
    expect(await attempts(world.sql, id)).toMatchObject([{}, { outcome: "crashed", quarantined: true }]);
  });

  // That nothing else runs in its isolate is the latch's work, which is TypeScript; here is what it is for.
  it.each(["after it", "before it", "before it, in a tick that was lost, whose handler went on"])(
    "would be charged if a killer ran in the same isolate, started %s",
    async (order) => {
      const world = await install([QUICK]);
      const id = await aSuspect(world);
      const killer = await enqueueOne(world.sql);
      const suspect = () => claimer(world, { quarantined: true });
      const others = () => claimer(world);
      const [first, second] =
        order === "after it" ? [await suspect(), await others()] : [await others(), await suspect()];
      const [quarantined, normal] = order === "after it" ? [first, second] : [second, first];
      expect([ids(quarantined.jobs), ids(normal.jobs)]).toEqual([[id], [killer]]);
      await fence(world.sql, normal);
      if (order.includes("lost")) {
        await kill(world, normal.pid);
        await settle(world.sql, normal);
      }
      await fence(world.sql, { ...quarantined, quarantined: true });
      // One process, so both go at once.
      if (!order.includes("lost")) await kill(world, normal.pid);
      await kill(world, quarantined.pid);
      await reap(world.sql);
      expect(await attempts(world.sql, id)).toMatchObject([{}, { outcome: "crashed", quarantined: true }]);
    },
  );

  it("is not charged when settle comes before its fence", async () => {
    const world = await install([QUICK]);
    const id = await aSuspect(world);
    const session = await claimer(world, { quarantined: true });
    await kill(world, session.pid);
    await settle(world.sql, { ...session, quarantined: true });
    expect(await fence(world.sql, { ...session, quarantined: true })).toEqual([]);
    expect(await reap(world.sql)).toBe(0);
    expect(await outcomes(world.sql, id)).toEqual(["crashed", "interrupted"]);
    expect(await runTick(world, { quarantined: true })).toEqual([{ id, n: 3 }]);
  });

  it("is not charged when settle meets its fence half way", async () => {
    const world = await install([QUICK]);
    const id = await aSuspect(world);
    const session = await claimer(world, { quarantined: true });
    await kill(world, session.pid);
    const messenger = await world.connect();
    await messenger.query("begin isolation level read committed");
    await fence(messenger, { ...session, quarantined: true });
    const settler = await world.connect();
    const pid = await pidOf(settler);
    const settling = settle(settler, { ...session, quarantined: true });
    await waitsForLock(world, pid);
    await messenger.query("commit");
    expect(await settling).toBe("lost");
    expect(await outcomes(world.sql, id)).toEqual(["crashed", "interrupted"]);
  });
});

/** Fresh invocations, one after another, until nothing is due any more; `act` plays each tick. */
async function drain(
  world: Installation,
  act: (session: Session, quarantined: boolean) => Promise<void>,
): Promise<number> {
  for (let ticks = 0; ; ticks++) {
    expect(ticks).toBeLessThan(30);
    await reap(world.sql);
    await elapse(world);
    const client = await world.connect();
    let quarantined = false;
    let session = await claimOn(client);
    if (session.jobs.length === 0) {
      await client.query("rollback");
      quarantined = true;
      session = await claimOn(client, { quarantined });
    }
    if (session.jobs.length === 0) {
      await client.end();
      return ticks;
    }
    await fence(world.sql, { ...session, quarantined });
    await act(session, quarantined);
    await client.end().catch(() => {});
  }
}

describe("a job that loses its session in its own turn, every time", () => {
  it("ends as a dead letter, and the one beside it ends done, unblamed", async () => {
    const world = await install([QUICK]);
    const [culprit, innocent] = (await enqueue(world.sql, 2)) as [string, string];
    await drain(world, async (session, quarantined) => {
      if (!ids(session.jobs).includes(culprit)) {
        await finish(session.client, session.tick, all(session.jobs, "done"));
        return;
      }
      await kill(world, session.pid);
      expect(await settle(world.sql, { ...session, quarantined, turn: culprit })).toBe("lost");
    });
    expect(await job(world.sql, culprit)).toMatchObject({ state: "dead", dead_reason: "crashed" });
    expect(await outcomes(world.sql, innocent)).toEqual(["interrupted", "done"]);
  });
});

describe("a job whose effects make finish fail, every time", () => {
  it("ends as a dead letter, and the one beside it ends done", async () => {
    const world = await install([QUICK]);
    await world.sql.query(`
      create table parent (id bigint primary key);
      create table effect (id bigint references parent deferrable initially deferred)`);
    const [culprit, innocent] = (await enqueue(world.sql, 2)) as [string, string];
    await drain(world, async (session, quarantined) => {
      if (ids(session.jobs).includes(culprit)) await session.client.query("insert into effect values (1)");
      await finishOnly(session.client, session.tick, all(session.jobs, "done"));
      const commit = await session.client.query("commit").then(
        () => null,
        (error: unknown) => error,
      );
      if (commit === null) return;
      // Its own account, not a lost connection: nobody is marked, the attempts stay open.
      expect(await settle(world.sql, { ...session, quarantined, mark: false })).toBe("lost");
    });
    expect(await job(world.sql, culprit)).toMatchObject({ state: "dead", dead_reason: "crashed" });
    expect(await outcomes(world.sql, innocent)).toEqual(["crashed", "done"]);
    expect(await world.value("select count(*)::int from effect")).toBe(0);
  });
});

describe("a tick that was declared lost", () => {
  it("never commits, although its finish had been sent and its session lived on behind a half-open connection", async () => {
    const world = await install();
    await world.sql.query("create table effect (id bigint)");
    const id = await enqueueOne(world.sql);
    const halfOpen = await claimer(world);
    await fence(world.sql, halfOpen);
    await halfOpen.client.query("insert into effect values (1)");
    expect(await settle(world.sql, halfOpen)).toBe("lost");
    // The message that was under way arrives now.
    expect(await failure(finish(halfOpen.client, halfOpen.tick, all(halfOpen.jobs, "done")))).toMatchObject({
      code: "23505",
      constraint: "tick_pkey",
    });
    await halfOpen.client.query("rollback");
    expect(await runTick(world)).toEqual([{ id, n: 2 }]);
    expect(await world.value("select count(*)::int from effect")).toBe(0);
    expect(await outcomes(world.sql, id)).toEqual(["interrupted", "done"]);
  });

  it("is never declared lost after it has committed, although the answer to COMMIT was lost", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    await fence(world.sql, session);
    await finish(session.client, session.tick, all(session.jobs, "done"));
    await kill(world, session.pid);
    expect(await settle(world.sql, session)).toBe("committed");
    expect(the(await outcomes(world.sql, id))).toBe("done");
  });
});
