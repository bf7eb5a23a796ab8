// Lengths of time as people write them, "20s", and as the program carries them, integer milliseconds. Pure.

import { UsageError } from "./errors.ts";

const unitMs = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** A number and its unit: `"250ms"`, `"20s"`, `"15m"`, `"1.5h"`, `"7d"`. A bare number is refused. */
export type Duration = `${number}${keyof typeof unitMs}`;

/** Ten years: past it a length is a mistake, and it keeps every sum inside a timestamp. */
const maxDurationMs = 3_650 * unitMs.d;

/**
 * Reads a duration.
 *
 * Units:  integer milliseconds, 0 to 3,650 days.
 * Errors: PGCLAIM_INVALID_OPTION, naming `where`.
 */
export function parseDuration(value: unknown, where: string): number {
  const refuse = (expected: string): UsageError =>
    new UsageError("PGCLAIM_INVALID_OPTION", `${where} is ${show(value)}; ${expected}`, { path: where });
  if (typeof value === "number") throw refuse(`write the unit, for example "${value}s".`);
  const match = typeof value === "string" ? /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(value) : null;
  if (match === null) throw refuse('expected a duration: a number and ms, s, m, h or d, for example "20s".');
  const ms = Number(match[1]) * unitMs[match[2] as keyof typeof unitMs];
  if (!Number.isInteger(ms)) throw refuse("expected a whole number of milliseconds.");
  if (ms > maxDurationMs) throw refuse("expected at most 3650d.");
  return ms;
}

/** A value as an error message shows it: short, quoted, with its type. For options, never for payloads. */
export function show(value: unknown): string {
  if (typeof value === "string") return `${JSON.stringify(value.slice(0, 60))} (string)`;
  if (typeof value === "number" || typeof value === "boolean" || value === null || value === undefined)
    return String(value);
  return Array.isArray(value) ? "an array" : `a ${typeof value}`;
}
