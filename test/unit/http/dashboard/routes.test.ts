import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { filterOf } from "../../../../src/http/dashboard/filters.ts";
import { filterQuery, hrefs, localPath } from "../../../../src/http/dashboard/routes.ts";

function queryOf(address: string): Record<string, string> {
  return Object.fromEntries(new URL(address, "http://x").searchParams);
}

describe("addresses", () => {
  it("carry a filter there and back, whatever is in it", () => {
    const text = fc.string({ minLength: 1, maxLength: 60, unit: "grapheme" }).filter((s) => s.trim() === s);
    fc.assert(
      fc.property(
        fc.record(
          {
            state: fc.constantFrom("ready", "dead", "done"),
            queue: text,
            kind: text,
            orderingKey: text,
            uniqueKey: text,
            fingerprint: text,
            payload: fc.oneof(text, fc.boolean(), fc.maxSafeInteger(), fc.constant(null)).map((v) => ({ a: { b: v } })),
            since: fc.constant("2026-11-30T14:00:00.000Z"),
          },
          { requiredKeys: [] },
        ),
        (filter) => {
          const read = filterOf(queryOf(hrefs.jobs(filter)));
          expect(read).toEqual({ filter, cursor: undefined, faults: [], unknown: [] });
        },
      ),
    );
  });

  it("leave out what is not given", () => {
    expect(hrefs.jobs({}, { cursor: undefined, tz: "" })).toBe("/jobs");
    expect(filterQuery({})).toEqual(expect.objectContaining({ state: undefined }));
  });

  it.each([
    ["/dead?kind=a&did=retried&n=3&left=0", "/dead?kind=a"],
    ["//evil.example/x", "/"],
    ["/\\evil.example", "/"],
    ["https://evil.example", "/"],
    ["javascript:alert(1)", "/"],
    ["/\t/evil.example", "/"],
    [undefined, "/"],
    ["jobs", "/"],
    ["/jobs/7?tz=Europe%2FZurich", "/jobs/7?tz=Europe%2FZurich"],
    ["/../../jobs", "/jobs"],
  ])("lead back to ours only: %s", (back, path) => expect(localPath(back)).toBe(path));
});

describe("a filter", () => {
  it("names what is wrong, and what it does not know", () => {
    const { faults, unknown } = filterOf({ state: "tired", since: "yesterday", reason: "boredom", colour: "red" });
    expect(faults).toHaveLength(3);
    expect(faults.join()).toContain('state is "tired"');
    expect(unknown).toEqual(["colour"]);
  });

  it("reads one condition on the payload", () => {
    const of = (payload: string) => filterOf({ payload }).filter.payload;
    expect(of("orderId:42")).toEqual({ orderId: 42 });
    expect(of('payload.account.id:"7"')).toEqual({ account: { id: "7" } });
    expect(of("transactionId:tx_9")).toEqual({ transactionId: "tx_9" });
    expect(Object.getPrototypeOf(of("__proto__.a:1"))).toBe(Object.prototype);
  });

  it("refuses a number it could not carry, and a text without a path", () => {
    expect(filterOf({ payload: "n:9007199254740993" }).faults[0]).toContain("more digits");
    expect(filterOf({ payload: "tx_9" }).faults[0]).toContain("expected a path and a value");
    expect(filterOf({ key: "x".repeat(501) }).faults[0]).toContain("500 characters");
  });
});
