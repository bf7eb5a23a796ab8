// settle decides the fate of a tick whose session is gone. What it must never do: blame a job for a lost session, except
// the one whose turn it was, or let a tick commit that it has declared lost.

import { describe, expect, it } from "vitest";
import {
  all,
  attempts,
  claimer,
  crash,
  enqueue,
  enqueueOne,
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
  reap,
  runTick,
  type Session,
  settle,
  sqlState,
  the,
} from "./support.ts";

/** Jobs claimed and fenced by a session that was then lost; the invocation lives. */
async function lost(world: Installation, options = {}): Promise<Session> {
  const session = await claimer(world, options);
  await fence(world.sql, { ...session, ...options });
  await kill(world, session.pid);
  return session;
}

/** One job that lost its session `times` times, each settled at once; answers the last settle's request. */
async function interrupt(world: Installation, times: number, options = {}): Promise<Session> {
  for (let i = 1; i < times; i++) await settle(world.sql, await lost(world, options));
  const session = await lost(world, options);
  await settle(world.sql, session);
  return session;
}

describe("settle marks", () => {
  it("every number sent as interrupted, charges nobody, and the jobs are free at once", async () => {
    const world = await install();
    const enqueued = await enqueue(world.sql, 3);
    const session = await lost(world);
    expect(await settle(world.sql, session)).toBe("lost");
    for (const id of enqueued) {
      expect(await outcomes(world.sql, id)).toEqual(["interrupted"]);
      expect(await job(world.sql, id)).toMatchObject({ suspect: false, failures: 0, attempt: 0, state: "ready" });
    }
    expect(await reap(world.sql)).toBe(0);
    expect(await runTick(world)).toEqual(enqueued.map((id) => ({ id, n: 2 })));
  });

  it("all but the job that held the turn, which the reaper then finds", async () => {
    const world = await install();
    const [culprit, innocent] = await enqueue(world.sql, 2);
    const session = await lost(world);
    expect(await settle(world.sql, { ...session, turn: String(culprit) })).toBe("lost");
    expect(await outcomes(world.sql, String(culprit))).toEqual([null]);
    expect(await outcomes(world.sql, String(innocent))).toEqual(["interrupted"]);
    expect(await reap(world.sql)).toBe(1);
    expect((await job(world.sql, String(culprit))).suspect).toBe(true);
    expect((await job(world.sql, String(innocent))).suspect).toBe(false);
  });

  it("nothing without mark: the tick is lost, its attempts stay open for the reaper", async () => {
    const world = await install();
    const enqueued = await enqueue(world.sql, 2);
    const session = await lost(world);
    expect(await settle(world.sql, { ...session, mark: false })).toBe("lost");
    expect(await reap(world.sql)).toBe(2);
    for (const id of enqueued) expect(await outcomes(world.sql, id)).toEqual(["crashed"]);
  });

  it("a number whose fence has not arrived yet, so that it is closed before it could open", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    await kill(world, session.pid);
    expect(await settle(world.sql, session)).toBe("lost");
    expect(await attempts(world.sql, id)).toMatchObject([{ n: 1, tick: session.tick, outcome: "interrupted" }]);
    expect(await fence(world.sql, session)).toEqual([]);
  });

  it("no number that lies at or below the job's own and has no row: it was closed and pruned long ago", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await world.sql.query("update pgclaim.job set attempt = 1 where id = $1", [id]);
    expect(await settle(world.sql, { tick: newTick(), jobs: [{ id, n: 1 }] })).toBe("lost");
    expect(await attempts(world.sql, id)).toEqual([]);
  });

  it("no attempt of another tick under the same number", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const owner = await crash(world);
    const stranger = { tick: newTick(), jobs: owner.jobs };
    expect(await settle(world.sql, stranger)).toBe("lost");
    expect(await outcomes(world.sql, id)).toEqual([null]);
    await reap(world.sql);
    expect(await settle(world.sql, { ...stranger, tick: newTick() })).toBe("lost");
    expect(await outcomes(world.sql, id)).toEqual(["crashed"]);
  });

  it("no job that is gone", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await lost(world);
    await world.sql.query("delete from pgclaim.attempt; delete from pgclaim.job");
    expect(await settle(world.sql, session)).toBe("lost");
    expect(await attempts(world.sql, id)).toEqual([]);
  });

  it("no attempt that ended by itself: done, failed, snoozed and released stay what they are", async () => {
    const world = await install();
    for (const outcome of ["failed", "snoozed", "released"] as const) {
      const id = await enqueueOne(world.sql);
      const session = await claimer(world);
      await fence(world.sql, session);
      await finish(session.client, session.tick, all(session.jobs, outcome, { inMs: 60_000 }));
      // The row of the tick is gone, as if a week had passed; the zombie settles now.
      await world.sql.query("delete from pgclaim.tick");
      expect(await settle(world.sql, session)).toBe("lost");
      expect(await outcomes(world.sql, id)).toEqual([outcome]);
      await world.sql.query("delete from pgclaim.tick; delete from pgclaim.attempt; delete from pgclaim.job");
    }
  });
});

describe("settle after the reaper", () => {
  it("takes the crash back, in quarantine also the charge", async () => {
    const world = await install([{ name: "a", maxCrashes: 2, minBackoffMs: 0, maxBackoffMs: 0 }]);
    const id = await enqueueOne(world.sql);
    await crash(world);
    await reap(world.sql);
    const session = await crash(world, { quarantined: true });
    await reap(world.sql);
    expect(await outcomes(world.sql, id)).toEqual(["crashed", "crashed"]);
    expect(await settle(world.sql, { ...session, quarantined: true })).toBe("lost");
    expect(await outcomes(world.sql, id)).toEqual(["crashed", "interrupted"]);
    // Had the charge stood, the next one would be the second and the job dead.
    await world.sql.query("select pgclaim.promote_due(10)");
    await crash(world, { quarantined: true });
    await reap(world.sql);
    expect((await job(world.sql, id)).state).not.toBe("dead");
    await world.sql.query("select pgclaim.promote_due(10)");
    await crash(world, { quarantined: true });
    await reap(world.sql);
    expect(await job(world.sql, id)).toMatchObject({ state: "dead", dead_reason: "crashed" });
  });

  it("takes nothing back once the job is dead", async () => {
    const world = await install([{ name: "a", maxCrashes: 1 }]);
    const id = await enqueueOne(world.sql);
    await crash(world);
    await reap(world.sql);
    const session = await crash(world, { quarantined: true });
    await reap(world.sql);
    expect((await job(world.sql, id)).state).toBe("dead");
    expect(await settle(world.sql, { ...session, quarantined: true })).toBe("lost");
    expect(await outcomes(world.sql, id)).toEqual(["crashed", "crashed"]);
    expect((await job(world.sql, id)).state).toBe("dead");
  });
});

describe("settle of a committed tick", () => {
  it("answers committed and changes nothing, however often", async () => {
    const world = await install();
    const [done, failed] = await enqueue(world.sql, 2);
    const session = await claimer(world);
    await fence(world.sql, session);
    await finish(session.client, session.tick, [
      { id: String(done), n: 1, outcome: "done" },
      { id: String(failed), n: 1, outcome: "failed", inMs: 0 },
    ]);
    for (const mark of [true, false, true]) expect(await settle(world.sql, { ...session, mark })).toBe("committed");
    expect(await outcomes(world.sql, String(done))).toEqual(["done"]);
    expect(await outcomes(world.sql, String(failed))).toEqual(["failed"]);
  });
});

describe("settle repeated", () => {
  it("answers lost again and changes nothing more, also when the jobs have gone on meanwhile", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await lost(world);
    expect(await settle(world.sql, session)).toBe("lost");
    const snapshot = await attempts(world.sql, id);
    expect(await settle(world.sql, session)).toBe("lost");
    expect(await attempts(world.sql, id)).toEqual(snapshot);
    await runTick(world);
    expect(await settle(world.sql, session)).toBe("lost");
    expect(await outcomes(world.sql, id)).toEqual(["interrupted", "done"]);
  });

  it("by twenty at once gives one answer", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    const session = await lost(world);
    const clients = await Promise.all(Array.from({ length: 20 }, () => world.connect()));
    const fates = await Promise.all(clients.map((client) => settle(client, session)));
    expect(new Set(fates)).toEqual(new Set(["lost"]));
    expect(await world.value("select count(*)::int from pgclaim.tick")).toBe(1);
  });
});

describe("interruptions in a row", () => {
  it("make a job a suspect at the fifth, without a charge", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await interrupt(world, 4);
    expect((await job(world.sql, id)).suspect).toBe(false);
    await interrupt(world, 1);
    expect(await job(world.sql, id)).toMatchObject({ suspect: true, state: "ready", failures: 0 });
    expect((await claimer(world)).jobs).toEqual([]);
    const quarantined = await claimer(world, { quarantined: true });
    expect(quarantined.jobs).toEqual([{ id, n: 6 }]);
    await fence(world.sql, { ...quarantined, quarantined: true });
    await finish(quarantined.client, quarantined.tick, all(quarantined.jobs, "snoozed", { inMs: 0 }));
    expect((await job(world.sql, id)).suspect).toBe(false);
  });

  it("are counted anew after anything else came between", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await interrupt(world, 4);
    await runTick(world, {}, "released");
    await interrupt(world, 4);
    expect((await job(world.sql, id)).suspect).toBe(false);
    await interrupt(world, 1);
    expect((await job(world.sql, id)).suspect).toBe(true);
  });

  it("wait for the job's lock where a half-open session still has it, and are seen by the next settle", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await interrupt(world, 4);
    const halfOpen = await claimer(world);
    await fence(world.sql, halfOpen);
    expect(await settle(world.sql, halfOpen)).toBe("lost");
    expect((await job(world.sql, id)).suspect).toBe(false);
    await kill(world, halfOpen.pid);
    expect(await settle(world.sql, halfOpen)).toBe("lost");
    expect((await job(world.sql, id)).suspect).toBe(true);
  });
});

describe("settle waits", () => {
  it("no longer than two seconds for a finish that does not end, and can then be repeated", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    const session = await claimer(world);
    await fence(world.sql, session);
    await finishOnly(session.client, session.tick, all(session.jobs, "done"));
    const started = performance.now();
    expect(await sqlState(settle(world.sql, session))).toBe("55P03");
    expect(performance.now() - started).toBeLessThan(6_000);
    await session.client.query("commit");
    expect(await settle(world.sql, session)).toBe("committed");
    expect(await world.value("select current_setting('lock_timeout')")).toBe("0");
  });

  it("for nobody's job lock: the tick is declared lost while its session is still there", async () => {
    const world = await install();
    const enqueued = await enqueue(world.sql, 3);
    const halfOpen = await claimer(world);
    await fence(world.sql, halfOpen);
    expect(await settle(world.sql, halfOpen)).toBe("lost");
    expect(ids(halfOpen.jobs)).toEqual(enqueued);
    // Nobody else can start them while the old transaction lives.
    const other = await claimer(world);
    expect(other.jobs).toEqual([]);
    expect(other.skipped).toEqual({ busy: 3 });
  });

  it("for nothing at another level: it refuses", async () => {
    const world = await install();
    const client = await world.connect();
    await client.query("begin isolation level serializable");
    expect(await sqlState(settle(client, { tick: newTick(), jobs: [] }))).toBe("PC001");
  });
});

describe("a number in a tick that settles", () => {
  it("keeps the mark of quarantine it was fenced with, and gets the tick's where settle wrote it first", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await crash(world);
    await reap(world.sql);
    const session = await claimer(world, { quarantined: true });
    await kill(world, session.pid);
    await settle(world.sql, { ...session, quarantined: true });
    expect(the(await attempts(world.sql, id), 1)).toMatchObject({ quarantined: true, outcome: "interrupted" });
    expect((await job(world.sql, id)).suspect).toBe(true);
  });
});
