// Retry: when a failed job is due again, when it is a dead letter, and what an operator can do with that.

import { beforeEach, describe, expect, it } from "vitest";
import * as z from "zod";
import { deadLetter, defineJob, type RetryOptions, retryIn, snooze } from "../../../src/index.ts";
import {
  effect,
  effects,
  effectTable,
  invoke,
  makeDue,
  numbered,
  rendezvous,
  upTo,
  watchUnhandled,
  workTick,
} from "../../support/engine.ts";
import { setup, transports, type World } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

/** Milliseconds from the end of the last attempt to when the job is due, by the database's clock. */
function waits(world: World): Promise<{ id: string; ms: number }[]> {
  return world.rows(
    `select j.id, extract(epoch from j.run_at - (select max(a.ended_at) from pgclaim.attempt a where a.job_id = j.id))::float8 * 1000 as ms
     from pgclaim.job j order by j.id`,
  );
}

describe.each(transports)("a failed job over %s", (transport) => {
  async function failing(retry: RetryOptions, count = 1) {
    const world = await setup();
    const job = defineJob({
      kind: "fails",
      payload: numbered,
      retry,
      run() {
        throw new Error("as it does");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], batch: 100 });
    await claimer.enqueueMany(
      job,
      upTo(count).map((n) => ({ n })),
    );
    return { world, claimer };
  }

  it("waits between half and all of a step that doubles up to the cap", async () => {
    const { world, claimer } = await failing({ minBackoff: "100s", maxBackoff: "350s", maxAttempts: 6 }, 40);
    for (const step of [100_000, 200_000, 350_000, 350_000]) {
      expect(workTick(await invoke(claimer))).toMatchObject({ retried: 40 });
      const drawn = (await waits(world)).map(({ ms }) => ms);
      expect(Math.min(...drawn)).toBeGreaterThanOrEqual(step / 2 - 1_000);
      expect(Math.max(...drawn)).toBeLessThanOrEqual(step + 1_000);
      // Forty draws that all lie in one half would be no jitter.
      expect(Math.max(...drawn) - Math.min(...drawn)).toBeGreaterThan(step / 8);
      await makeDue(world);
    }
  });

  it("waits minBackoff, jittered, where the backoff is fixed", async () => {
    const { world, claimer } = await failing({ backoff: "fixed", minBackoff: "100s" });
    for (let i = 0; i < 3; i++) {
      await invoke(claimer);
      const [wait] = await waits(world);
      expect(wait?.ms).toBeGreaterThan(49_000);
      expect(wait?.ms).toBeLessThan(101_000);
      await makeDue(world);
    }
  });

  it("waits exactly what a function answers for the n-th failure", async () => {
    const asked: number[] = [];
    const { world, claimer } = await failing({
      backoff(failures) {
        asked.push(failures);
        return `${failures * 10}m`;
      },
    });
    for (const n of [1, 2, 3]) {
      await invoke(claimer);
      const [wait] = await waits(world);
      expect(Math.abs((wait?.ms ?? 0) - n * 600_000)).toBeLessThan(1_000);
      await makeDue(world);
    }
    expect(asked).toEqual([1, 2, 3]);
  });

  it.each([
    [
      "throws",
      () => {
        throw new Error("no idea");
      },
    ],
    ["answers nonsense", () => "soon" as "5s"],
  ])("falls back to minBackoff where the function %s, and says so in the log", async (_what, backoff) => {
    const { world, claimer } = await failing({ backoff, minBackoff: "100s" });
    expect(await invoke(claimer)).toMatchObject({ retried: 1 });
    const [wait] = await waits(world);
    expect(wait?.ms).toBeGreaterThan(49_000);
    expect(wait?.ms).toBeLessThan(101_000);
    expect(world.log.filter(({ event }) => event === "pgclaim.job")).toHaveLength(1);
  });

  it("is a dead letter after maxAttempts, with reason, last error and every attempt on record", async () => {
    const { world, claimer } = await failing({ maxAttempts: 3 });
    for (const dead of [0, 0, 1]) {
      expect(await invoke(claimer)).toMatchObject({ dead, retried: 1 - dead });
      await makeDue(world);
    }
    expect(await invoke(claimer)).toMatchObject({ ended: "idle" });
    expect(await claimer.job("1")).toMatchObject({
      state: "dead",
      deadReason: "attempts",
      failures: 3,
      attempt: 3,
      lastError: expect.stringContaining("as it does"),
      attempts: [1, 2, 3].map((n) => ({
        n,
        outcome: "failed",
        error: expect.stringContaining("PGCLAIM_HANDLER_THREW"),
      })),
    });
  });

  it("keeps its idempotency key over attempts and processes, and never an attempt's number", async () => {
    const world = await setup();
    const seen: string[][] = [];
    const job = defineJob({
      kind: "keyed",
      payload: numbered,
      run({ job: { idempotencyKey, attempt, failures, maxAttempts } }) {
        seen.push([idempotencyKey, `${attempt}/${failures}/${maxAttempts}`]);
        throw new Error("again");
      },
    });
    await world.claimer(transport, { jobs: [job] }).enqueueMany(job, [{ n: 1 }, { n: 2 }]);
    for (let i = 0; i < 2; i++) {
      await invoke(world.claimer(transport, { jobs: [job] }));
      await makeDue(world);
    }
    const [one, two] = [seen[0]?.[0], seen[1]?.[0]];
    expect(one).not.toBe(two);
    // After a jittered wait either may come first.
    expect(seen.map(([key, facts]) => `${key} ${facts}`).sort()).toEqual(
      [`${one} 1/0/8`, `${one} 2/1/8`, `${two} 1/0/8`, `${two} 2/1/8`].sort(),
    );
  });
});

describe.each(transports)("an answer over %s", (transport) => {
  it("retryIn sets the wait exactly and counts; snooze sets it and does not count", async () => {
    const world = await setup();
    await effectTable(world);
    const until = new Date(Date.now() + 7_200_000);
    const job = defineJob({
      kind: "answers",
      payload: numbered,
      retry: { maxAttempts: 2 },
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        if (n === 1) return retryIn("30m");
        return n === 2 ? snooze("40m") : snooze(until);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const report = await invoke(claimer);
    expect(report).toMatchObject({ retried: 1, snoozed: 2 });
    const [one, two] = await waits(world);
    expect(Math.abs((one?.ms ?? 0) - 1_800_000)).toBeLessThan(1_000);
    expect(Math.abs((two?.ms ?? 0) - 2_400_000)).toBeLessThan(1_000);
    expect(workTick(report).jobs[2]?.dueAt).toBe(until.toISOString());
    expect(await world.rows("select failures from pgclaim.job order by id")).toEqual([
      { failures: 1 },
      { failures: 0 },
      { failures: 0 },
    ]);
    await makeDue(world);
    expect(await invoke(claimer)).toMatchObject({ dead: 1, snoozed: 2 });
    expect(await effects(world)).toEqual([2, 2, 3, 3]);
  });

  it("snooze to the past or by nothing is due at once, and the job goes on in the same invocation", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "steps",
      payload: z.object({}),
      async run({ tx, job: { attempt } }) {
        await effect(tx, attempt);
        if (attempt === 1) return snooze("0s");
        return attempt === 2 ? snooze(new Date(0)) : undefined;
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueue(job, {});
    expect(await invoke(claimer)).toMatchObject({ snoozed: 2, done: 1 });
    expect(await effects(world)).toEqual([1, 2, 3]);
  });
});

describe.each(transports)("an operator over %s", (transport) => {
  it("retries a dead letter with fresh attempts, and discards one for good", async () => {
    const world = await setup();
    let broken = true;
    const job = defineJob({
      kind: "dies",
      payload: numbered,
      retry: { maxAttempts: 1 },
      run: () => (broken ? deadLetter("broken") : undefined),
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    expect(await claimer.retry("1")).toEqual({ type: "not-dead", state: "ready" });
    expect(await invoke(claimer)).toMatchObject({ dead: 2 });
    expect(await claimer.job("1")).toMatchObject({ state: "dead", deadReason: "handler", lastError: "broken" });
    expect(await claimer.retry("1")).toMatchObject({ type: "retried" });
    expect(await claimer.job("1")).toMatchObject({ state: "ready", failures: 0, attempt: 1, deadReason: null });
    expect(await claimer.discard("2")).toEqual({ type: "discarded" });
    expect(await claimer.job("2")).toMatchObject({ state: "discarded" });
    expect(await claimer.discard("2")).toEqual({ type: "not-dead", state: "discarded" });
    expect(await claimer.retry("77")).toEqual({ type: "not-found" });
    broken = false;
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
    expect(await claimer.job("1")).toMatchObject({
      state: "done",
      attempt: 2,
      attempts: [{ outcome: "failed" }, { outcome: "done" }],
    });
    expect(await world.locks()).toBe(0);
  });

  it("is told busy about a job that runs", async () => {
    const world = await setup();
    const meeting = rendezvous();
    const job = defineJob({ kind: "runs", payload: numbered, run: () => meeting.meet(1) });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueue(job, { n: 1 });
    const invocation = invoke(claimer);
    await meeting.arrived(1);
    expect(await claimer.job("1")).toMatchObject({ state: "running" });
    expect(await claimer.retry("1")).toEqual({ type: "busy" });
    expect(await claimer.discard("1")).toEqual({ type: "busy" });
    meeting.release(1);
    expect(await invocation).toMatchObject({ done: 1 });
  });

  it("gives a job that crashed to death its crashes back, and it runs alone first", async () => {
    const world = await setup();
    const job = defineJob({ kind: "killer", payload: numbered, maxCrashes: 1, run() {} });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueue(job, { n: 1 });
    await world.sql.query("update pgclaim.job set suspect = true, attempt = 1");
    await world.sql.query(
      "insert into pgclaim.attempt (job_id, n, tick, quarantined) values (1, 2, gen_random_uuid(), true)",
    );
    expect(await invoke(claimer)).toMatchObject({ crashed: 1, claimed: 0 });
    expect(await claimer.job("1")).toMatchObject({ state: "dead", deadReason: "crashed", attempt: 2, failures: 0 });
    expect(await claimer.retry("1")).toMatchObject({ type: "retried" });
    const report = await invoke(claimer);
    expect(workTick(report)).toMatchObject({ quarantined: true, done: 1 });
    expect(await claimer.job("1")).toMatchObject({ state: "done", attempt: 3 });
  });
});
