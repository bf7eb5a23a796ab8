import { describe, expect, it } from "vitest";
import { readLimits, timerMs } from "../../src/limits.ts";

describe("limits", () => {
  it("have the documented defaults", () => {
    expect(readLimits()).toEqual({
      connectMs: 10_000,
      oneShotMs: 10_000,
      messageMs: 10_000,
      closeMs: 1_000,
      reserveMs: 3_000,
      serverGraceMs: 5_000,
      settleMs: 10_000,
      unsettledMs: 60_000,
      cancelPollMs: 2_000,
      reserveAfterMs: 30_000,
    });
  });

  it("end where a timer still holds them", () => {
    expect(timerMs("24h", "budget")).toBe(86_400_000);
    expect(() => timerMs("25h", "budget")).toThrow("budget is 90000000 ms; expected at most 24h.");
    expect(() => readLimits({ settle: "2d" })).toThrow(
      expect.objectContaining({ code: "PGCLAIM_INVALID_OPTION", path: "limits.settle" }),
    );
    expect(() => readLimits({ setle: "2s" } as never)).toThrow('did you mean "settle"?');
  });
});
