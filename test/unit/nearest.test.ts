import { describe, expect, it } from "vitest";
import { nearest } from "../../src/nearest.ts";

describe("nearest", () => {
  it.each([
    ["recipt.send", "receipt.send"],
    ["receipt.sned", "receipt.send"],
    ["invoice.void", null],
    ["", null],
  ])("of %j is %j", (name, expected) => {
    expect(nearest(name, ["receipt.send", "order.ship"])).toBe(expected);
  });

  it("finds nothing among nothing", () => {
    expect(nearest("a", [])).toBeNull();
  });
});
