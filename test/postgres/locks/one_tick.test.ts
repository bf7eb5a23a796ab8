// Jobs of one tick that share a name: the session holds it once, so it is the run that keeps them apart. Each handler leaves
// when it began and ended; the order is checked from that, and that strangers did overlap, so that the check means something.

import { beforeEach, describe, expect, it } from "vitest";
import * as z from "zod";
import { systemClock } from "../../../src/clock.ts";
import { defineJob } from "../../../src/index.ts";
import {
  effect,
  effects,
  effectTable,
  invoke,
  rendezvous,
  upTo,
  watchUnhandled,
  workTick,
} from "../../support/engine.ts";
import { setup, transports } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

interface Stay {
  readonly n: number;
  began: number;
  ended: number;
}

/** Records stays; the clock is a count of events, so nothing depends on time. */
function diary() {
  const stays: Stay[] = [];
  let clock = 0;
  return {
    stays,
    async stay(n: number, inside: () => Promise<unknown>): Promise<void> {
      const stay = { n, began: ++clock, ended: Number.NaN };
      stays.push(stay);
      try {
        // Long enough for anybody who may start to have started.
        for (let turn = 0; turn < 10; turn++) await new Promise((resolve) => setImmediate(resolve));
        await inside();
      } finally {
        stay.ended = ++clock;
      }
    },
    overlaps(a: number, b: number): boolean {
      const [x, y] = [a, b].map((n) => stays.find((stay) => stay.n === n));
      if (x === undefined || y === undefined) throw new Error(`${a} or ${b} did not run`);
      return x.began < y.ended && y.began < x.ended;
    },
    order: (): number[] => [...stays].sort((a, b) => a.began - b.began).map(({ n }) => n),
  };
}

const payload = z.object({ n: z.number(), name: z.string() });

describe.each(transports)("over %s, jobs of one tick", (transport) => {
  const kinds = (diaryOf: ReturnType<typeof diary>) => {
    const run = ({ payload: { n }, tx }: { payload: { n: number }; tx: Parameters<typeof effect>[0] }) =>
      diaryOf.stay(n, () => effect(tx, n));
    return {
      exclusive: defineJob({ kind: "exclusive", payload, locks: ["{name}"], run }),
      shared: defineJob({ kind: "shared", payload, sharedLocks: ["{name}"], run }),
      slots: defineJob({ kind: "slots", payload, limits: [{ name: "{name}", max: 2 }], run }),
    };
  };

  it.each([
    ["exclusive", "exclusive"],
    ["shared", "exclusive"],
    ["exclusive", "shared"],
  ] as const)("%s and then %s run one after the other, strangers beside them", async (first, second) => {
    const world = await setup();
    await effectTable(world);
    const book = diary();
    const jobs = kinds(book);
    const claimer = world.claimer(transport, { jobs: Object.values(jobs), concurrency: 10, maxTicks: 1 });
    await claimer.enqueue(jobs[first], { n: 1, name: "n" });
    await claimer.enqueue(jobs[second], { n: 2, name: "n" });
    await claimer.enqueue(jobs.exclusive, { n: 3, name: "other" });
    const tick = workTick(await invoke(claimer));
    expect(tick).toMatchObject({ claimed: 3, done: 3, fate: "committed" });
    expect(book.overlaps(1, 2)).toBe(false);
    expect(book.order().indexOf(1)).toBeLessThan(book.order().indexOf(2));
    expect(book.overlaps(1, 3)).toBe(true);
    expect(await effects(world)).toEqual([1, 2, 3]);
  });

  it("sharers run beside each other, the exclusive one after all of them, the sharers behind it after it", async () => {
    const world = await setup();
    await effectTable(world);
    const book = diary();
    const { exclusive, shared } = kinds(book);
    const claimer = world.claimer(transport, { jobs: [exclusive, shared], concurrency: 10, maxTicks: 1 });
    for (const n of [1, 2, 3]) await claimer.enqueue(shared, { n, name: "n" });
    await claimer.enqueue(exclusive, { n: 4, name: "n" });
    for (const n of [5, 6]) await claimer.enqueue(shared, { n, name: "n" });
    expect(workTick(await invoke(claimer))).toMatchObject({ done: 6 });
    for (const [a, b] of [
      [1, 2],
      [2, 3],
      [1, 3],
      [5, 6],
    ] as const)
      expect(book.overlaps(a, b), `${a}, ${b}`).toBe(true);
    for (const n of [1, 2, 3, 5, 6]) expect(book.overlaps(4, n), `4, ${n}`).toBe(false);
    expect(book.order().indexOf(4)).toBe(3);
  });

  it("three in a row on one name keep their order, with a failure in the middle", async () => {
    const world = await setup();
    await effectTable(world);
    const book = diary();
    const job = defineJob({
      kind: "row",
      payload,
      limits: [{ name: "wide", max: 10 }], // waits at no gate of width 2
      locks: ["{name}"],
      retry: { minBackoff: "1h", maxBackoff: "1h" },
      run: ({ payload: { n }, tx }) =>
        book.stay(n, async () => {
          await effect(tx, n);
          if (n === 2) throw new Error("the second one fails");
        }),
    });
    const claimer = world.claimer(transport, { jobs: [job], concurrency: 10, maxTicks: 1 });
    await claimer.enqueueMany(
      job,
      [1, 2, 3].map((n) => ({ n, name: "n" })),
    );
    await world.sql.query("update pgclaim.job set state = 'ready'");
    expect(workTick(await invoke(claimer))).toMatchObject({ done: 2, retried: 1 });
    expect(book.order()).toEqual([1, 2, 3]);
    expect([book.overlaps(1, 2), book.overlaps(2, 3), book.overlaps(1, 3)]).toEqual([false, false, false]);
    expect(await effects(world)).toEqual([1, 3]);
  });

  it("do not exceed a limit of two, and use both of its slots", async () => {
    const world = await setup();
    await effectTable(world);
    const book = diary();
    const { slots } = kinds(book);
    const claimer = world.claimer(transport, { jobs: [slots], concurrency: 10, maxTicks: 1 });
    await claimer.enqueueMany(
      slots,
      upTo(6).map((n) => ({ n, name: "n" })),
    );
    await world.sql.query("update pgclaim.job set state = 'ready'");
    expect(workTick(await invoke(claimer))).toMatchObject({ claimed: 6, done: 6 });
    let most = 0;
    for (const stay of book.stays)
      most = Math.max(
        most,
        book.stays.filter((other) => book.overlaps(stay.n, other.n) && other.began <= stay.began).length,
      );
    expect(most).toBe(2);
  });
});

describe("a job that waits for another of its tick", () => {
  it("starts when that one has been stopped by its timeout", async () => {
    const world = await setup();
    const order: number[] = [];
    const job = defineJob({
      kind: "k",
      payload,
      timeout: "100ms",
      locks: ["{name}"],
      run({ payload: { n }, signal }) {
        order.push(n);
        if (n !== 1) return;
        return new Promise<void>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
      },
    });
    const claimer = world.claimer("pg", { jobs: [job], maxTicks: 1 });
    await claimer.enqueueMany(
      job,
      [1, 2].map((n) => ({ n, name: "n" })),
    );
    expect(workTick(await invoke(claimer))).toMatchObject({ done: 1, retried: 1 });
    expect(order).toEqual([1, 2]);
  });

  it("is handed back when that one has used up the time, and runs in the next tick", async () => {
    const world = await setup();
    const meeting = rendezvous();
    const job = defineJob({
      kind: "k",
      payload,
      timeout: "10s",
      locks: ["{name}"],
      run: ({ payload: { n } }) => meeting.meet(n),
    });
    let passed = 0;
    const clock = { ...systemClock, now: () => systemClock.now() + passed };
    const claimer = world.claimer("pg", { jobs: [job], maxTicks: 1, clock });
    await claimer.enqueueMany(
      job,
      [1, 2].map((n) => ({ n, name: "n" })),
    );
    const report = invoke(claimer, { budget: "20s" });
    await meeting.arrived(1);
    // Past the instant at which another ten seconds would still have fitted.
    passed = 8_000;
    meeting.release(1);
    expect(workTick(await report)).toMatchObject({ done: 1, released: 1 });
    meeting.release(2);
    expect(workTick(await invoke(claimer))).toMatchObject({ done: 1 });
  });
});
