// What defineJob refuses of names, limits and what goes with them, by name of the option. Rendering is the database's.

import { describe, expect, it } from "vitest";
import * as z from "zod";
import { defineJob } from "../../src/define.ts";
import { keyTemplate, maxTemplateLength } from "../../src/key_template.ts";

const payload = z.object({ a: z.string(), b: z.object({ c: z.number() }) });
const define = (options: Record<string, unknown>) => () => defineJob({ kind: "k", payload, ...options } as never);
const invalid = (message: string) =>
  expect.objectContaining({ code: "PGCLAIM_INVALID_OPTION", message: expect.stringContaining(message) });

describe("keyTemplate", () => {
  it.each(["a", "a:{a}", "{a}", "{a}:{b.c}", "{a} {b}", "{_a1}", "a%{a}", "{a}é{b}", "x".repeat(maxTemplateLength)])(
    "takes %s",
    (template) => {
      expect(keyTemplate(template, "locks[0]")).toBe(template);
    },
  );

  it.each([
    [undefined, "expected a template"],
    [null, "expected a template"],
    [7, "expected a template"],
    ["", "expected a template"],
    ["x".repeat(maxTemplateLength + 1), "at most 200 characters"],
    ["@kind/x", "begin with @"],
    ["@{a}", "begin with @"],
    ["a\0b", "cannot be stored"],
    ["a\ud800", "cannot be stored"],
    ["{a", "a path of the payload in braces"],
    ["a}", "a path of the payload in braces"],
    ["{}", "a path of the payload in braces"],
    ["{a.}", "a path of the payload in braces"],
    ["{.a}", "a path of the payload in braces"],
    ["{a b}", "a path of the payload in braces"],
    ["{0}", "a path of the payload in braces"],
    ["{a.0}", "a path of the payload in braces"],
    ["{{a}}", "a path of the payload in braces"],
    ["{a}{b}", "a sign such as :"],
    ["{a}x{b}", "a sign such as :"],
    ["{a}%{b}", "a sign such as :"],
    ["{a}:{b}9{c}", "a sign such as :"],
  ])("refuses %j", (template, why) => {
    expect(() => keyTemplate(template, "locks[0]")).toThrow(invalid(why));
    expect(() => keyTemplate(template, "locks[0]")).toThrow(invalid("locks[0] is "));
  });
});

describe("defineJob", () => {
  it.each([
    [{ orderingKey: 7 }, 'job "k": orderingKey is 7'],
    [{ uniqueKey: "{a}{a}" }, 'job "k": uniqueKey is'],
    [{ locks: "a" }, "locks is"],
    [{ locks: ["a", "{a"] }, "locks[1] is"],
    [{ locks: Array(17).fill("a") }, "expected at most 16 templates"],
    [{ sharedLocks: { a: 1 } }, "sharedLocks is"],
    [{ sharedLocks: ["{a}{a}"] }, "sharedLocks[0] is"],
    [{ sharedLocks: Array(17).fill("a") }, "expected at most 16 templates"],
    [{ limits: "a" }, "limits is"],
    [{ limits: ["a"] }, "limits[0] is"],
    [{ limits: [null] }, "limits[0] is"],
    [{ limits: Array(9).fill({ name: "a", max: 1 }) }, "expected at most 8 limits"],
    [{ limits: [{ name: "a", max: 0 }] }, "limits[0].max is 0; expected an integer from 1 to 1000"],
    [{ limits: [{ name: "a", max: 1001 }] }, "limits[0].max is 1001"],
    [{ limits: [{ name: "a", max: 1.5 }] }, "limits[0].max is 1.5"],
    [{ limits: [{ name: "a" }] }, "limits[0].max is undefined"],
    [{ limits: [{ name: "@queue/x", max: 1 }] }, "limits[0].name is"],
    [{ limits: [{ name: "a", maximum: 1 }] }, 'unknown option "maximum"'],
    [{ max: 0 }, "max is 0; expected an integer from 1 to 1000"],
    [{ max: 1001 }, "max is 1001"],
    [{ whenDead: "stop" }, 'whenDead is "stop" (string); expected "halt" or "skip"'],
  ])("refuses %j", (options, message) => {
    expect(define(options)).toThrow(invalid(message));
  });

  it("takes as many as it says", () => {
    const { policy } = defineJob({
      kind: "k",
      payload,
      locks: Array<"a:{a}">(16).fill("a:{a}"),
      sharedLocks: ["c:{b.c}"],
      limits: [
        ...Array<{ name: "t:{a}"; max: number }>(7).fill({ name: "t:{a}", max: 1 }),
        { name: "all", max: 1_000 },
      ],
      max: 3,
    });
    expect(policy.locks).toHaveLength(16);
    expect(policy.limitNames).toHaveLength(9);
    expect(policy.limitNames.at(-1)).toBe("@kind/k");
    expect(policy.limitMaxes.slice(-2)).toEqual([1_000, 3]);
  });
});
