import { describe, expect, it } from "vitest";
import { type Clock, timedOut, wait, within } from "../../src/clock.ts";
import { gate } from "../support/gate.ts";

/** A clock that moves when told to. */
function manualClock() {
  let now = 0;
  const timers = new Set<{ at: number; callback: () => void }>();
  const clock: Clock = {
    now: () => now,
    date: () => new Date(now),
    random: () => 0,
    timer(ms, callback) {
      const timer = { at: now + ms, callback };
      timers.add(timer);
      return () => timers.delete(timer);
    },
  };
  const advance = (ms: number) => {
    now += ms;
    for (const timer of [...timers]) {
      if (timer.at > now) continue;
      timers.delete(timer);
      timer.callback();
    }
  };
  return { clock, advance, pending: () => timers.size };
}

describe("within", () => {
  it("answers timedOut when the time ran out, and ignores what comes later", async () => {
    const { clock, advance } = manualClock();
    const late = gate<number>();
    const answer = within(clock, 100, late.promise);
    advance(100);
    late.fail(new Error("late"));
    expect(await answer).toBe(timedOut);
  });

  it("leaves no timer behind when the promise settles", async () => {
    const { clock, pending } = manualClock();
    expect(await within(clock, 100, Promise.resolve(1))).toBe(1);
    await expect(within(clock, 100, Promise.reject(new Error("no")))).rejects.toThrow("no");
    expect(pending()).toBe(0);
  });
});

describe("wait", () => {
  it("ends early when the signal aborts, and leaves neither timer nor listener behind", async () => {
    const { clock, pending } = manualClock();
    const controller = new AbortController();
    const waiting = wait(clock, 1_000, controller.signal);
    controller.abort();
    await waiting;
    expect(pending()).toBe(0);
    await wait(clock, 1_000, controller.signal);
  });
});
