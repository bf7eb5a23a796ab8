// What a handler may answer. Values, because an answer is not an accident; a throw is a failed attempt.

import { type Duration, parseDuration, show } from "./duration.ts";
import { UsageError } from "./errors.ts";

// Registered, so that two copies of the package in one bundle understand each other.
const tag = Symbol.for("pgclaim.answer");

/** An answer made by `done`, `retryIn`, `deadLetter` or `snooze`. */
export type Answer = { readonly [tag]: true } & (
  | { readonly type: "done" }
  | { readonly type: "retryIn"; readonly ms: number }
  | { readonly type: "deadLetter"; readonly reason: string }
  | { readonly type: "snooze"; readonly ms: number | null; readonly at: string | null }
);

/** The job is finished; the same as returning nothing. Effects on `tx` commit with it. */
export function done(): Answer {
  return { [tag]: true, type: "done" };
}

/** This attempt failed; try again after `wait`. Counts against `maxAttempts`. Effects on `tx` are rolled back. */
export function retryIn(wait: Duration): Answer {
  return { [tag]: true, type: "retryIn", ms: parseDuration(wait, "retryIn()") };
}

/** No retry can help; the job becomes a dead letter with this reason. Effects on `tx` are rolled back. */
export function deadLetter(reason: string): Answer {
  if (typeof reason !== "string" || reason === "") {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `deadLetter() got ${show(reason)}; expected a reason people can read.`,
    );
  }
  return { [tag]: true, type: "deadLetter", reason };
}

/**
 * Not yet, or go on later: due again at an instant, or after a length. Counts against nothing, and effects on `tx`
 * commit, so long work can be cut into steps that each leave their progress behind.
 */
export function snooze(until: Duration | Date): Answer {
  if (!(until instanceof Date)) return { [tag]: true, type: "snooze", ms: parseDuration(until, "snooze()"), at: null };
  if (Number.isNaN(until.getTime())) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      'snooze() got an invalid Date; expected an instant, or a duration such as "10m".',
    );
  }
  return { [tag]: true, type: "snooze", ms: null, at: until.toISOString() };
}

/** Whether a handler's return value is one of ours. Anything else it returns means done. */
export function isAnswer(value: unknown): value is Answer {
  return typeof value === "object" && value !== null && tag in value;
}
