import { describe, expect, it } from "vitest";
import { enterTick, isQuarantineRunning, trackUnsettled } from "../../src/latch.ts";
import { gate } from "../support/gate.ts";

describe("enterTick", () => {
  it("lets ordinary ticks overlap, and keeps a quarantined one out of their company in both directions", () => {
    const first = enterTick({ quarantined: false });
    const second = enterTick({ quarantined: false });
    expect(first).not.toBeNull();
    expect(second).not.toBeNull();
    expect(enterTick({ quarantined: true })).toBeNull();
    first?.();
    first?.(); // leaving twice must not count twice
    expect(enterTick({ quarantined: true })).toBeNull();
    second?.();

    const alone = enterTick({ quarantined: true });
    expect(alone).not.toBeNull();
    expect(isQuarantineRunning()).toBe(true);
    expect(enterTick({ quarantined: false })).toBeNull();
    expect(enterTick({ quarantined: true })).toBeNull();
    alone?.();
    expect(isQuarantineRunning()).toBe(false);
  });

  it("keeps a quarantined tick out while a handler of an earlier tick ignores its abort", async () => {
    const handler = gate();
    trackUnsettled(handler.promise);
    expect(enterTick({ quarantined: true })).toBeNull();
    enterTick({ quarantined: false })?.();
    handler.fail(new Error("at last"));
    await handler.promise.catch(() => {});
    await Promise.resolve();
    const leave = enterTick({ quarantined: true });
    expect(leave).not.toBeNull();
    leave?.();
  });
});
