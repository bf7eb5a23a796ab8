import { describe, expect, it } from "vitest";
import * as z from "zod";
import { deadLetter, done, retryIn, snooze } from "../../src/answers.ts";
import { defineJob } from "../../src/define.ts";

const payload = z.object({ orderId: z.string() });
const define = (options: Record<string, unknown>) => () =>
  defineJob({ kind: "receipt.send", payload, ...options } as never);

describe("defineJob", () => {
  it("fills in the documented defaults", () => {
    expect(defineJob({ kind: "receipt.send", payload }).policy).toEqual({
      name: "receipt.send",
      queue: "default",
      priority: 1,
      targetLatencyMs: 300_000,
      timeoutMs: 15_000,
      maxAttempts: 8,
      maxCrashes: 3,
      backoff: "exponential",
      minBackoffMs: 5_000,
      maxBackoffMs: 3_600_000,
      alone: false,
      orderingKey: null,
      whenDead: "halt",
      locks: [],
      sharedLocks: [],
      limitNames: [],
      limitMaxes: [],
      uniqueKey: null,
      uniqueForMs: null,
      onConflict: "keep",
      deadlineMs: null,
      whenMissed: "dead",
    });
  });

  it.each([
    [{ kind: "" }, "kind is"],
    [{ kind: "a b" }, "kind is"],
    [{ kind: "x".repeat(201) }, "kind is"],
    [{ payload: {} }, "payload is a object; expected a Standard Schema"],
    [{ timeout: 20 }, 'job "receipt.send": timeout is 20; write the unit, for example "20s".'],
    [{ timeout: "none" }, 'job "receipt.send": timeout is "none" (string); expected a duration'],
    [{ timeout: "0s" }, "timeout is"],
    [
      { priority: "high" },
      'job "receipt.send": priority is "high" (string); expected an integer from 0 to 3. Smaller runs first.',
    ],
    [{ priority: 4 }, "priority is 4"],
    [{ maxCrashes: 0 }, "maxCrashes is 0"],
    [{ alone: 1 }, "alone is 1"],
    [{ queue: "a b" }, "queue is"],
    [{ run: "x" }, "run is"],
    [{ retry: { maxAttempts: 0 } }, "retry.maxAttempts is 0"],
    [{ retry: { maxAttempts: 1_001 } }, "retry.maxAttempts is 1001"],
    [{ retry: { backoff: "linear" } }, 'expected "exponential", "fixed" or a function'],
    [{ retry: { minBackoff: "2h", maxBackoff: "1h" } }, "below retry.minBackoff"],
    [{ retry: { maxRetries: 3 } }, 'unknown option "maxRetries"'],
    [{ uniqueKey: "" }, "uniqueKey is"],
    [{ uniqueKey: "{orderId}{orderId}" }, "two placeholders need a sign"],
    [{ uniqueFor: "1h" }, 'uniqueFor is "1h" (string); expected uniqueKey beside it'],
    [{ uniqueKey: "{orderId}", uniqueFor: 60 }, 'uniqueFor is 60; write the unit, for example "60s".'],
    [{ uniqueKey: "{orderId}", uniqueFor: "0s" }, 'uniqueFor is "0s" (string); expected more than 0.'],
    [{ onConflict: "drop" }, 'onConflict is "drop" (string); expected "keep" or "replace" or "reschedule".'],
    [{ deadline: 15 }, 'deadline is 15; write the unit, for example "15s".'],
    [{ deadline: "0ms" }, 'deadline is "0ms" (string); expected more than 0.'],
    [{ whenMissed: "skip" }, 'whenMissed is "skip" (string); expected "dead" or "run".'],
    [{ timout: "20s" }, 'unknown option "timout"; did you mean "timeout"?'],
  ])("refuses %j", (options, message) => {
    expect(define(options)).toThrow(
      expect.objectContaining({ code: "PGCLAIM_INVALID_OPTION", message: expect.stringContaining(message) }),
    );
  });

  it("adds a handler to a definition without changing it", () => {
    const definition = defineJob({ kind: "a", payload });
    const handled = definition.handle(() => {});
    expect(definition.run).toBeNull();
    expect(handled.run).toBeTypeOf("function");
    expect(handled.policy).toBe(definition.policy);
  });
});

describe("answers", () => {
  it("refuse what they cannot mean", () => {
    expect(() => retryIn(5 as never)).toThrow('retryIn() is 5; write the unit, for example "5s".');
    expect(() => snooze(new Date(Number.NaN))).toThrow("invalid Date");
    expect(() => deadLetter("")).toThrow("expected a reason");
    expect(done().type).toBe("done");
    expect(snooze(new Date(0))).toMatchObject({ at: "1970-01-01T00:00:00.000Z", ms: null });
  });
});
