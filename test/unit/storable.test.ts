import { describe, expect, it } from "vitest";
import { assertStorable, maxErrorLength, maxPayloadDepth, storableText } from "../../src/storable.ts";

function nested(levels: number): unknown {
  let value: unknown = 1;
  for (let i = 0; i < levels; i++) value = [value];
  return value;
}

describe("assertStorable", () => {
  it("takes what JSON takes", () => {
    const value = { a: [1, -0, "x", true, null, { b: "\u{1f600}" }], ["__proto__"]: { c: 1 }, left: undefined };
    expect(() => assertStorable(value, "payload", "a")).not.toThrow();
    expect(() => assertStorable(Object.create(null), "payload", "a")).not.toThrow();
  });

  it("takes the same object twice, which is no cycle", () => {
    const shared = { a: 1 };
    expect(() => assertStorable([shared, shared], "payload", "a")).not.toThrow();
  });

  const cycle: Record<string, unknown> = {};
  cycle.deep = { self: cycle };
  it.each([
    ["NUL in text", { a: [{ b: "x\0y" }] }, "payload.a[0].b"],
    ["NUL in a key", { "k\0": 1 }, "payload"],
    ["a lone high surrogate", { a: "\ud800" }, "payload.a"],
    ["a lone low surrogate", { a: "x\udc00y" }, "payload.a"],
    ["bigint", { a: 1n }, "payload.a"],
    ["NaN", { a: Number.NaN }, "payload.a"],
    ["Infinity", [Number.POSITIVE_INFINITY], "payload[0]"],
    ["a cycle", cycle, "payload.deep.self"],
    ["Date", { at: new Date(0) }, "payload.at"],
    ["Map", { m: new Map() }, "payload.m"],
    ["a function", { f: () => 1 }, "payload.f"],
    ["a symbol", { s: Symbol("x") }, "payload.s"],
    ["undefined in an array", [undefined], "payload[0]"],
    ["undefined itself", undefined, "payload"],
    ["one level too many", nested(maxPayloadDepth + 1), `payload${"[0]".repeat(maxPayloadDepth)}`],
  ])("refuses %s, naming the path and never the value", (_, value, path) => {
    expect(() => assertStorable(value, "payload", "a")).toThrow(
      expect.objectContaining({ code: "PGCLAIM_INVALID_PAYLOAD", path }),
    );
  });

  it("takes the last level that is allowed", () => {
    expect(() => assertStorable(nested(maxPayloadDepth), "payload", "a")).not.toThrow();
  });
});

describe("storableText", () => {
  it("replaces what Postgres cannot store", () => {
    expect(storableText("a\0b\ud800c")).toBe("a\u2400b\ufffdc");
  });

  it("cuts at its limit, and a pair that the cut splits becomes storable", () => {
    const text = storableText(`${"x".repeat(maxErrorLength - 1)}\u{1f600}`);
    expect(text).toBe(`${"x".repeat(maxErrorLength - 1)}\ufffd ...`);
    expect(storableText("x".repeat(maxErrorLength))).toBe("x".repeat(maxErrorLength));
  });
});
