import { describe, expect, it } from "vitest";
import { enterTick, isQuarantineRunning, trackUnsettled } from "../../src/latch.ts";
import { gate } from "../support/gate.ts";

// One clock for the file: the latch is the isolate's, and so is this test's.
const at = (now: number) => ({ now, expiresAt: now + 100 });

describe("enterTick", () => {
  it("lets ordinary ticks overlap, and keeps a quarantined one out of their company in both directions", () => {
    const first = enterTick({ quarantined: false, ...at(0) });
    const second = enterTick({ quarantined: false, ...at(0) });
    expect(first).not.toBeNull();
    expect(second).not.toBeNull();
    expect(enterTick({ quarantined: true, ...at(1) })).toBeNull();
    first?.();
    first?.(); // leaving twice must not count twice
    expect(enterTick({ quarantined: true, ...at(1) })).toBeNull();
    second?.();

    const alone = enterTick({ quarantined: true, ...at(2) });
    expect(alone).not.toBeNull();
    expect(isQuarantineRunning(3)).toBe(true);
    expect(enterTick({ quarantined: false, ...at(3) })).toBeNull();
    expect(enterTick({ quarantined: true, ...at(3) })).toBeNull();
    alone?.();
    expect(isQuarantineRunning(3)).toBe(false);
  });

  it("keeps a quarantined tick out while a handler of an earlier tick ignores its abort", async () => {
    const handler = gate();
    trackUnsettled(handler.promise, 2_000);
    expect(enterTick({ quarantined: true, ...at(1_000) })).toBeNull();
    enterTick({ quarantined: false, ...at(1_000) })?.();
    handler.fail(new Error("at last"));
    await handler.promise.catch(() => {});
    await Promise.resolve();
    const leave = enterTick({ quarantined: true, ...at(1_000) });
    expect(leave).not.toBeNull();
    leave?.();
  });

  it("forgets a handler that never ends, and a tick whose invocation was ended in the middle, at their expiry", () => {
    trackUnsettled(new Promise(() => {}), 5_000);
    expect(enterTick({ quarantined: true, ...at(4_999) })).toBeNull();
    expect(enterTick({ quarantined: true, now: 5_000, expiresAt: 5_100 })).not.toBeNull(); // and nobody leaves this one
    expect(isQuarantineRunning(5_099)).toBe(true);
    expect(enterTick({ quarantined: false, ...at(5_099) })).toBeNull();
    expect(isQuarantineRunning(5_100)).toBe(false);
    enterTick({ quarantined: false, ...at(5_100) })?.();
  });
});
