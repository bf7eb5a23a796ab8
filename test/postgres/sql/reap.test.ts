// The reaper and quarantine: a crash is an open attempt whose job lock is free, never a matter of age. Who crashed beside
// others is only suspected; who crashes alone is charged; nobody else is.

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
  type JobRow,
  job,
  kill,
  newTick,
  outcomes,
  reap,
  runTick,
  the,
} from "./support.ts";

const msFromNow = (date: Date) => Number(date) - Date.now();

/** Makes a scheduled job due now, as time would. */
const elapse = (world: Installation) =>
  world.sql.query("update pgclaim.job set state = 'ready', run_at = clock_timestamp() where state = 'scheduled'");

/** A job that crashed once beside others and is a suspect now. */
async function suspect(world: Installation): Promise<string> {
  const id = await enqueueOne(world.sql);
  await crash(world);
  expect(await reap(world.sql)).toBe(1);
  return id;
}

describe("reap", () => {
  it("closes nothing while the holder's transaction lives, however old the attempt is", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    await fence(world.sql, session);
    await world.sql.query("update pgclaim.attempt set started_at = now() - interval '1 year'");
    expect(await reap(world.sql)).toBe(0);
    await finishOnly(session.client, session.tick, all(session.jobs, "done"));
    expect(await reap(world.sql)).toBe(0);
    await session.client.query("commit");
    expect(await reap(world.sql)).toBe(0);
    expect(await outcomes(world.sql, id)).toEqual(["done"]);
  });

  it("closes an attempt the moment its holder is gone, however young it is", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    await fence(world.sql, session);
    await kill(world, session.pid);
    expect(await reap(world.sql)).toBe(1);
    expect(await attempts(world.sql, id)).toMatchObject([{ n: 1, tick: session.tick, outcome: "crashed" }]);
    expect(await reap(world.sql)).toBe(0);
  });

  it("leaves a job whose row somebody has, without waiting for it", async () => {
    const world = await install();
    const [held, free] = await enqueue(world.sql, 2);
    await crash(world);
    const other = await world.connect();
    await other.query("begin");
    await other.query("select from pgclaim.job where id = $1 for update", [held]);
    await world.sql.query("set lock_timeout = '100ms'");
    expect(await reap(world.sql)).toBe(1);
    expect(await outcomes(world.sql, String(held))).toEqual([null]);
    expect(await outcomes(world.sql, String(free))).toEqual(["crashed"]);
    await other.query("rollback");
    expect(await reap(world.sql)).toBe(1);
  });

  it("gives its locks back when its transaction ends, and writes nothing when that rolls back", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await crash(world);
    const reaper = await world.connect();
    await reaper.query("begin isolation level read committed");
    expect(await reap(reaper)).toBe(1);
    expect(await reap(world.sql)).toBe(0);
    expect((await claimer(world, { quarantined: true })).jobs).toEqual([]);
    await reaper.query("rollback");
    expect(await world.locks()).toBe(0);
    expect(await outcomes(world.sql, id)).toEqual([null]);
    expect(await reap(world.sql)).toBe(1);
  });

  it("only closes the attempt where the job's row is gone", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await crash(world);
    await world.sql.query("delete from pgclaim.job");
    expect(await reap(world.sql)).toBe(0);
    expect(await outcomes(world.sql, id)).toEqual(["crashed"]);
  });

  it("leaves a dead letter dead, and takes only the number over", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await runTick(world, {}, "dead");
    const before = await job(world.sql, id);
    await fence(world.sql, { tick: newTick(), jobs: [{ id, n: 2 }] });
    expect(await reap(world.sql)).toBe(1);
    expect(await job(world.sql, id)).toEqual({ ...before, attempt: 2 });
  });

  it("looks at no more than its slice", async () => {
    const world = await install();
    await enqueue(world.sql, 10);
    await crash(world);
    expect(await reap(world.sql, 0)).toBe(0);
    expect(await reap(world.sql, 4)).toBe(4);
    expect(await reap(world.sql, 6)).toBe(6);
    expect(await reap(world.sql, 6)).toBe(0);
  });

  it("reaches a dead attempt behind 300 running ones with a slice of 10, because its start rotates", async () => {
    const world = await install();
    await enqueue(world.sql, 301);
    const running = await claimer(world, { batch: 300 });
    await fence(world.sql, running);
    const dead = await crash(world);
    expect(dead.jobs).toHaveLength(1);
    await world.sql.query("select setseed(0.25)");
    let looks = 0;
    while ((await reap(world.sql, 10)) === 0) expect(++looks).toBeLessThan(1_000);
    expect(await outcomes(world.sql, the(ids(dead.jobs)))).toEqual(["crashed"]);
  });

  it("by five at once closes each attempt once", async () => {
    const world = await install();
    await enqueue(world.sql, 50);
    await crash(world, { batch: 50 });
    const reapers = await Promise.all(Array.from({ length: 5 }, () => world.connect()));
    const found = await Promise.all(reapers.map((reaper) => reap(reaper)));
    expect(found.reduce((sum, n) => sum + n, 0)).toBe(50);
  });
});

describe("a crash beside others", () => {
  it("makes each of them a suspect that is due at once, and charges nobody", async () => {
    const world = await install([{ name: "a", maxCrashes: 1 }]);
    const enqueued = await enqueue(world.sql, 3);
    const before: JobRow[] = [];
    for (const id of enqueued) before.push(await job(world.sql, id));
    await crash(world);
    expect(await reap(world.sql)).toBe(3);
    for (const [i, id] of enqueued.entries()) {
      expect(await job(world.sql, id)).toEqual({ ...before[i], attempt: 1, suspect: true });
    }
  });
});

describe("a crash in quarantine", () => {
  it("is charged: the job waits its backoff, and is dead at maxCrashes", async () => {
    const world = await install([
      { name: "a", maxCrashes: 3, minBackoffMs: 60_000, maxBackoffMs: 600_000, targetLatencyMs: 1_000 },
    ]);
    const id = await suspect(world);
    for (const [charge, least, most] of [
      [1, 30_000, 60_000],
      [2, 60_000, 120_000],
    ] as const) {
      await crash(world, { quarantined: true });
      expect(await reap(world.sql)).toBe(1);
      const row = await job(world.sql, id);
      expect(row).toMatchObject({ state: "scheduled", suspect: true, attempt: charge + 1, failures: 0 });
      expect(msFromNow(row.run_at)).toBeGreaterThan(least - 5_000);
      expect(msFromNow(row.run_at)).toBeLessThanOrEqual(most + 50);
      expect(Math.abs(Number(row.rank) - Number(row.run_at) - 1_000)).toBeLessThan(50);
      await elapse(world);
    }
    await crash(world, { quarantined: true });
    expect(await reap(world.sql)).toBe(1);
    const row = await job(world.sql, id);
    expect(row).toMatchObject({ state: "dead", dead_reason: "crashed", suspect: true, attempt: 4, failures: 0 });
    expect(row.last_error).toContain("3 times");
    expect(await outcomes(world.sql, id)).toEqual(["crashed", "crashed", "crashed", "crashed"]);
    expect((await claimer(world, { quarantined: true })).jobs).toEqual([]);
  });

  it("is the last at maxCrashes 1", async () => {
    const world = await install([{ name: "a", maxCrashes: 1 }]);
    const id = await suspect(world);
    await crash(world, { quarantined: true });
    await reap(world.sql);
    expect((await job(world.sql, id)).state).toBe("dead");
  });

  it("never counts failures, and failures never count as crashes", async () => {
    const world = await install([{ name: "a", maxCrashes: 2, maxAttempts: 3, minBackoffMs: 0, maxBackoffMs: 0 }]);
    const id = await suspect(world);
    await crash(world, { quarantined: true });
    await reap(world.sql);
    await elapse(world);
    await runTick(world, { quarantined: true }, "failed");
    expect(await job(world.sql, id)).toMatchObject({ failures: 1, suspect: false });
    await runTick(world, {}, "failed");
    expect(await job(world.sql, id)).toMatchObject({ failures: 2, state: "ready" });
    await crash(world);
    await reap(world.sql);
    expect(await job(world.sql, id)).toMatchObject({ state: "ready", suspect: true, failures: 2 });
    // The charge from before still stands: this is the second.
    await crash(world, { quarantined: true });
    await reap(world.sql);
    expect(await job(world.sql, id)).toMatchObject({ state: "dead", dead_reason: "crashed", failures: 2 });
  });

  it("from before an operator's retry counts no more, and the job runs in quarantine first", async () => {
    const world = await install([{ name: "a", maxCrashes: 2, minBackoffMs: 0, maxBackoffMs: 0 }]);
    const id = await suspect(world);
    for (let i = 0; i < 2; i++) {
      await crash(world, { quarantined: true });
      await reap(world.sql);
      await elapse(world);
    }
    expect((await job(world.sql, id)).state).toBe("dead");
    expect(await world.value("select pgclaim.retry_v1($1) ->> 'type'", [id])).toBe("retried");
    expect(await job(world.sql, id)).toMatchObject({ state: "ready", suspect: true, crash_base: 3, attempt: 3 });
    expect((await claimer(world)).jobs).toEqual([]);
    await crash(world, { quarantined: true });
    await reap(world.sql);
    expect((await job(world.sql, id)).state).toBe("scheduled");
    await elapse(world);
    await crash(world, { quarantined: true });
    await reap(world.sql);
    expect((await job(world.sql, id)).state).toBe("dead");
  });
});

describe("quarantine", () => {
  it("keeps suspects out of normal claims and everybody else out of quarantined ones, one at a time", async () => {
    const world = await install();
    const suspects = await enqueue(world.sql, 3);
    await crash(world);
    await reap(world.sql);
    const normal = await enqueue(world.sql, 2);
    const plain = await claimer(world);
    expect(ids(plain.jobs)).toEqual(normal);
    expect(plain.skips).toEqual({});
    const first = await claimer(world, { quarantined: true, batch: 25 });
    expect(ids(first.jobs)).toEqual([suspects[0]]);
    const second = await claimer(world, { quarantined: true, batch: 25 });
    expect(ids(second.jobs)).toEqual([suspects[1]]);
    expect(second.skips).toEqual({ [String(suspects[0])]: "busy" });
  });

  it("ends for a job that a handler of it has ended, and it runs in company again", async () => {
    for (const outcome of ["failed", "snoozed"] as const) {
      const world = await install();
      const id = await suspect(world);
      expect(await runTick(world, { quarantined: true }, outcome)).toEqual([{ id, n: 2 }]);
      expect(await runTick(world)).toEqual([{ id, n: 3 }]);
    }
  });

  it("goes on for a job that was handed back or interrupted", async () => {
    const world = await install();
    const id = await suspect(world);
    await runTick(world, { quarantined: true }, "released");
    expect((await job(world.sql, id)).suspect).toBe(true);
    expect((await claimer(world)).jobs).toEqual([]);
  });
});

describe("ten jobs of which one kills its invocation", () => {
  it("end with nine done and one dead letter: no innocent is charged or dies", async () => {
    const world = await install([{ name: "a", maxCrashes: 3, minBackoffMs: 0, maxBackoffMs: 0 }]);
    const enqueued = await enqueue(world.sql, 10);
    const killer = the(enqueued, 4);
    let ticks = 0;
    for (;;) {
      expect(++ticks).toBeLessThan(40);
      await reap(world.sql);
      await elapse(world);
      const normal = await claimer(world);
      const quarantined = normal.jobs.length === 0;
      if (quarantined) await normal.client.query("rollback");
      const session = quarantined ? await claimer(world, { quarantined }) : normal;
      if (session.jobs.length === 0) break;
      await fence(world.sql, { ...session, quarantined });
      if (ids(session.jobs).includes(killer)) await kill(world, session.pid);
      else await finish(session.client, session.tick, all(session.jobs, "done"));
    }
    expect(await world.value("select count(*)::int from pgclaim.history where outcome = 'done'")).toBe(9);
    expect(await world.rows("select id, dead_reason, attempt from pgclaim.job")).toEqual([
      { id: killer, dead_reason: "crashed", attempt: 4 },
    ]);
    expect(
      await world.value(
        "select count(*)::int from pgclaim.attempt where quarantined and outcome = 'crashed' and job_id <> $1",
        [killer],
      ),
    ).toBe(0);
  });
});
