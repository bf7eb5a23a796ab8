// From a definition and a payload to a request the database can take: validated, and proven to be storable JSON.

import { type AnyJobDefinition, assertKnownKeys, integer } from "./define.ts";
import { type Duration, parseDuration, show } from "./duration.ts";
import { UsageError } from "./errors.ts";
import type { JobRequest } from "./model.ts";
import { validate } from "./standard_schema.ts";
import { assertStorable } from "./storable.ts";
import { parseTraceparent } from "./telemetry.ts";

export interface When {
  /** Not before this instant. */
  readonly runAt?: Date;
  /** Not before this long from now, by the database's clock. Not together with `runAt`. */
  readonly delay?: Duration;
  /** When the job has to be finished; the kind's `deadline` otherwise. */
  readonly deadlineAt?: Date;
  /** 0 to 3, smaller runs first; the kind's otherwise. Only a database role that may run jobs may choose it. */
  readonly priority?: 0 | 1 | 2 | 3;
  /** W3C traceparent to store with the job, so that its run is told as part of that trace. See `telemetry` for the usual way. */
  readonly trace?: string;
}

/** Instants Postgres and JavaScript both can hold. */
const years = { first: 1, last: 9_999 } as const;

/** Whether a value is a Date that the database takes as JSON writes it. */
export function isStorableInstant(value: unknown): boolean {
  const year = value instanceof Date ? value.getUTCFullYear() : Number.NaN;
  return year >= years.first && year <= years.last;
}

/**
 * Checks one job. What is stored is what the caller passed, not what the schema made of it: it is parsed again before
 * run, and a transform must not run twice.
 *
 * Shape:  (definition, payload, when) -> JobRequest; `at` is what stands before the paths in errors: `jobs[2].`
 * Errors: PGCLAIM_INVALID_PAYLOAD with the path and never the value; PGCLAIM_INVALID_OPTION.
 */
export async function jobRequest(
  job: AnyJobDefinition,
  payload: unknown,
  when: When = {},
  at = "",
): Promise<JobRequest> {
  // Before the schema: a schema may follow a cycle for ever.
  assertStorable(payload, `${at}payload`, job.kind);
  const result = await validate(job.payload, payload, `${at}payload`);
  if (!result.ok) {
    throw new UsageError(
      "PGCLAIM_INVALID_PAYLOAD",
      `job "${job.kind}": ${result.issue.path}: ${result.issue.message}`,
      { path: result.issue.path },
    );
  }
  return { kind: job.kind, payload: payload ?? null, ...due(job.kind, when, at) };
}

/** What the same request has in common whenever it is sent: everything but its trace, in whatever order its fields come. */
export async function requestDigest(requests: readonly JobRequest[]): Promise<string> {
  const text = JSON.stringify(requests.map(({ trace: _, source: __, ...rest }) => sorted(rest)));
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The same JSON value with the fields of its objects in order, as pairs: a field may be named like an index. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return ["array", value.map(sorted)];
  if (typeof value !== "object" || value === null) return value;
  const fields = Object.entries(value).filter(([, field]) => field !== undefined);
  return ["object", fields.sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, field]) => [name, sorted(field)])];
}

function due(kind: string, when: When, at: string): Omit<JobRequest, "kind" | "payload"> {
  assertKnownKeys(when, ["runAt", "delay", "deadlineAt", "priority", "trace"], `job "${kind}"`);
  const { runAt, delay, deadlineAt, priority, trace } = when;
  if (runAt !== undefined && delay !== undefined) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `job "${kind}": runAt and delay are both set; expected one of them.`,
      { path: `${at}delay` },
    );
  }
  return {
    ...(delay === undefined ? {} : { delayMs: parseDuration(delay, `job "${kind}": delay`) }),
    ...(runAt === undefined ? {} : { runAt: instant(kind, "runAt", runAt, at) }),
    ...(deadlineAt === undefined ? {} : { deadlineAt: instant(kind, "deadlineAt", deadlineAt, at) }),
    ...(priority === undefined
      ? {}
      : { priority: integer(`job "${kind}"`, "priority", priority, 0, 3, ". Smaller runs first") }),
    ...(trace === undefined ? {} : { trace: traceparent(kind, trace, at) }),
  };
}

function traceparent(kind: string, value: unknown, at: string): string {
  if (typeof value === "string" && parseTraceparent(value) !== null) return value;
  throw new UsageError(
    "PGCLAIM_INVALID_OPTION",
    `job "${kind}": trace is ${show(value)}; expected a W3C traceparent, 00-<32 hex digits>-<16 hex digits>-<2 hex digits>.`,
    { path: `${at}trace` },
  );
}

function instant(kind: string, option: string, value: unknown, at: string): string {
  if (value instanceof Date && isStorableInstant(value)) return value.toISOString();
  throw new UsageError(
    "PGCLAIM_INVALID_OPTION",
    `job "${kind}": ${option} is ${value instanceof Date ? "no instant between the years 1 and 9999" : show(value)}; expected a Date.`,
    { path: `${at}${option}` },
  );
}
