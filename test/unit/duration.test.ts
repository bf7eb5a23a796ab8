import { describe, expect, it } from "vitest";
import { parseDuration } from "../../src/duration.ts";

describe("parseDuration", () => {
  it.each([
    ["250ms", 250],
    ["20s", 20_000],
    ["15m", 900_000],
    ["1.5h", 5_400_000],
    ["7d", 604_800_000],
    ["0ms", 0],
    ["3650d", 315_360_000_000],
  ])("reads %s", (text, ms) => {
    expect(parseDuration(text, "timeout")).toBe(ms);
  });

  it("refuses a bare number and shows the unit to write", () => {
    expect(() => parseDuration(20, 'job "receipt.send": timeout')).toThrow(
      'job "receipt.send": timeout is 20; write the unit, for example "20s".',
    );
  });

  it.each(["20", "20 s", "-1s", "1e3s", "s", "", "20sec", "1.5ms", "3651d", "NaNs", "0x10s", null, undefined, {}, []])(
    "refuses %j",
    (value) => {
      expect(() => parseDuration(value, "timeout")).toThrow(
        expect.objectContaining({ code: "PGCLAIM_INVALID_OPTION", path: "timeout" }),
      );
    },
  );
});
