// defineJob: what a kind is, checked when it is defined. The policy goes to the database, the handler stays here.

import type { Answer } from "./answers.ts";
import { type Duration, parseDuration, show } from "./duration.ts";
import { UsageError } from "./errors.ts";
import { type KeyTemplate, keyTemplate } from "./key_template.ts";
import type { Enqueued, JobId } from "./model.ts";
import { nearest } from "./nearest.ts";
import type { InputOf, OutputOf, StandardSchema } from "./standard_schema.ts";

/** How failed attempts are repeated. */
export interface RetryOptions {
  /** Attempts in all, the first one counts. 1 to 1,000, default 8. Attempts that crash count apart, see `maxCrashes`. */
  readonly maxAttempts?: number;
  /**
   * `"exponential"` (default) doubles from `minBackoff` to `maxBackoff`, `"fixed"` always waits `minBackoff`, a function
   * answers the wait after the n-th failure, n from 1. The first two draw between half and all of the step.
   */
  readonly backoff?: "exponential" | "fixed" | ((failures: number) => Duration);
  /** Wait after the first failure. Default `"5s"`. */
  readonly minBackoff?: Duration;
  /** The wait never grows past this. Default `"1h"`. */
  readonly maxBackoff?: Duration;
}

/** What a handler knows of its job. */
export interface JobFacts {
  readonly id: JobId;
  readonly kind: string;
  /** Counts every start, from 1; never the same number twice. (id, attempt) is a fencing token. */
  readonly attempt: number;
  readonly maxAttempts: number;
  /** The same on every attempt: give it to whoever you call, so that a repeated call takes effect once. */
  readonly idempotencyKey: string;
  readonly enqueuedAt: Date;
  readonly runAt: Date;
  /** When the job has to be finished, null without a deadline. */
  readonly deadlineAt: Date | null;
  /** Handled failures so far. */
  readonly failures: number;
}

/** The claiming transaction, as a handler sees it. */
export interface Tx {
  /**
   * Runs one statement in the claiming transaction. The first call waits until it is this handler's turn and every other
   * handler of the tick has ended or waits as well, so do external work before it.
   *
   * Shape:  as `pg`'s `query(text, values)`: rows as objects; bigint and numeric come back as text.
   * Errors: the database's own; PGCLAIM_TX_CLOSED after the handler ended or timed out; PGCLAIM_TX_CONTROL for BEGIN,
   *         COMMIT, ROLLBACK, SAVEPOINT and the like; PGCLAIM_HANDLER_ABORTED when the session is gone.
   */
  query<Row = Record<string, unknown>>(text: string, values?: readonly unknown[]): Promise<QueryResult<Row>>;
}

export interface QueryResult<Row> {
  readonly rows: Row[];
  readonly rowCount: number | null;
}

/** Enqueues another job from inside a handler; it commits with this job's completion or not at all. */
export type EnqueueInHandler = <S extends StandardSchema>(
  job: JobDefinition<S>,
  payload: InputOf<S>,
  options?: {
    readonly runAt?: Date;
    readonly delay?: Duration;
    readonly deadlineAt?: Date;
    readonly priority?: 0 | 1 | 2 | 3;
    /** W3C traceparent to store with the job; this run's own otherwise. */
    readonly trace?: string;
  },
) => Promise<{ readonly type: "deferred" }>;

/** What a handler gets. */
export interface HandlerContext<Payload> {
  /** Parsed again by the schema, just before this run. */
  readonly payload: Payload;
  readonly job: JobFacts;
  readonly tx: Tx;
  /** Aborts at the timeout, when the session is lost, and when the invocation has to end. */
  readonly signal: AbortSignal;
  readonly enqueue: EnqueueInHandler;
  /**
   * W3C traceparent of this run, for calls that no instrumentation adds it to; without `telemetry.tracer` that of whoever
   * enqueued the job, null where there is none.
   */
  readonly trace: string | null;
  /** One structured line with the job's id, kind and attempt on it. */
  readonly log: (message: string, facts?: Record<string, unknown>) => void;
}

/** An answer, or nothing, which means done. */
// biome-ignore lint/suspicious/noConfusingVoidType: a handler that returns nothing is written without a return
export type Handler<Payload> = (context: HandlerContext<Payload>) => Promise<Answer | void> | Answer | void;

/** At most `max` jobs at a time for a name. Slots are locks, so a crash never leaks one. */
export interface Limit<T extends string = string> {
  /** A template over the payload, `"tenant:{tenant}"`; without a placeholder it counts all jobs of that name. */
  readonly name: T;
  /** 1 to 1,000. */
  readonly max: number;
}

export interface JobSpec<
  S extends StandardSchema,
  O extends string = string,
  L extends string = string,
  R extends string = string,
  M extends string = string,
  U extends string = string,
> {
  /** The stable name, in the database and in logs: 1 to 200 characters of letters, digits and `. _ : -`. */
  readonly kind: string;
  /** A Standard Schema, for example zod's. Validated at enqueue and again before run. */
  readonly payload: S;
  /** How long one attempt may run, waiting for its turn not counted. Default `"15s"`. */
  readonly timeout?: Duration;
  readonly retry?: RetryOptions;
  /** Crashes while running alone until the job is a dead letter. 1 to 100, default 3. */
  readonly maxCrashes?: number;
  /** A tick of its own for each job: a crash beside others never repeats its external calls. Default false. */
  readonly alone?: boolean;
  /** Named set of jobs a trigger draws from. Default `"default"`. */
  readonly queue?: string;
  /** 0 to 3, smaller runs first. Default 1. */
  readonly priority?: 0 | 1 | 2 | 3;
  /** Within a priority, jobs are ordered by due time plus this. Default `"5m"`. */
  readonly targetLatency?: Duration;
  /**
   * Jobs that share it run one at a time, in the order in which their enqueues committed, also across retries and crashes:
   * `"account:{account}"`. A template over the payload, checked at compile time, rendered in the database.
   */
  readonly orderingKey?: O & KeyTemplate<O, InputOf<S>>;
  /**
   * What a dead letter does to its ordering key. `"halt"` (default): nothing behind it runs until a person retries, skips
   * or discards it. `"skip"`: the others pass; retried, it goes to the end.
   */
  readonly whenDead?: "halt" | "skip";
  /** Named resources the job needs for itself while it runs: all of them or it waits. At most 16. */
  readonly locks?: readonly (L & KeyTemplate<L, InputOf<S>>)[];
  /** Named resources it shares with other sharers, and with no job that has one of them in `locks`. At most 16. */
  readonly sharedLocks?: readonly (R & KeyTemplate<R, InputOf<S>>)[];
  /**
   * At most n jobs at a time for a name. At most 8. The first one with a placeholder is where jobs wait, so that those of one
   * busy tenant do not hide the others. A new `max` holds for jobs that wait already.
   */
  readonly limits?: readonly Limit<M & KeyTemplate<M, InputOf<S>>>[];
  /** At most this many jobs of the kind at a time, 1 to 1,000. */
  readonly max?: number;
  /** Refuses a second job of this kind with the same key, while the first is unfinished (dead letters are) or for `uniqueFor`. */
  readonly uniqueKey?: U & KeyTemplate<U, InputOf<S>>;
  /** Once per period instead of while unfinished, for example `"1h"`. The key outlives the job. */
  readonly uniqueFor?: Duration;
  /**
   * `"keep"` (default): the new one is not inserted. `"replace"`: the waiting one takes the new payload, due time, deadline
   * and priority, with all attempts before it; one that runs is followed by the new one. `"reschedule"`: the waiting one
   * takes the new due time only. So with a `delay` both debounce: the job runs that long after the last enqueue. `"keep"`
   * with `uniqueFor` throttles: one job a period.
   */
  readonly onConflict?: "keep" | "replace" | "reschedule";
  /** When the job has to be finished, counted from when it is due. Within a priority the earliest deadline runs first. */
  readonly deadline?: Duration;
  /** What happens to a job whose deadline passed before it started. `"dead"` (default): a dead letter, `missed`. `"run"`. */
  readonly whenMissed?: "dead" | "run";
  readonly run?: Handler<OutputOf<S>>;
}

/** The policy of a kind as the database keeps it. Lengths in integer milliseconds. */
export interface KindPolicy {
  readonly name: string;
  readonly queue: string;
  readonly priority: number;
  readonly targetLatencyMs: number;
  readonly timeoutMs: number;
  readonly maxAttempts: number;
  readonly maxCrashes: number;
  readonly backoff: "exponential" | "fixed" | "custom";
  readonly minBackoffMs: number;
  readonly maxBackoffMs: number;
  readonly alone: boolean;
  readonly orderingKey: string | null;
  readonly whenDead: "halt" | "skip";
  readonly locks: readonly string[];
  readonly sharedLocks: readonly string[];
  readonly limitNames: readonly string[];
  readonly limitMaxes: readonly number[];
  readonly uniqueKey: string | null;
  readonly uniqueForMs: number | null;
  readonly onConflict: "keep" | "replace" | "reschedule";
  readonly deadlineMs: number | null;
  readonly whenMissed: "dead" | "run";
}

/** A kind, as `enqueue` and `createClaimer` take it. */
export interface JobDefinition<S extends StandardSchema = StandardSchema> {
  readonly kind: string;
  readonly payload: S;
  readonly policy: KindPolicy;
  /** Wait after the n-th failure, where `retry.backoff` is a function. */
  readonly backoff: ((failures: number) => Duration) | null;
  readonly run: Handler<OutputOf<S>> | null;
  /** The same definition with a handler: a client can import the definition and leave the handler out of its bundle. */
  handle(run: Handler<OutputOf<S>>): JobDefinition<S>;
}

/** Any definition, whatever its payload. */
// A handler's payload type stands on the input side, so the only common supertype takes `never`.
export interface AnyJobDefinition {
  readonly kind: string;
  readonly payload: StandardSchema;
  readonly policy: KindPolicy;
  readonly backoff: ((failures: number) => Duration) | null;
  readonly run: Handler<never> | null;
}

export type { Enqueued };

const specKeys = [
  "kind",
  "payload",
  "timeout",
  "retry",
  "maxCrashes",
  "alone",
  "queue",
  "priority",
  "targetLatency",
  "run",
  "orderingKey",
  "whenDead",
  "locks",
  "sharedLocks",
  "limits",
  "max",
  "uniqueKey",
  "uniqueFor",
  "onConflict",
  "deadline",
  "whenMissed",
];
const retryKeys = ["maxAttempts", "backoff", "minBackoff", "maxBackoff"];

/**
 * Defines a kind of job.
 *
 * Errors: PGCLAIM_INVALID_OPTION, naming the kind, the option and what was expected; unknown options are errors too.
 */
export function defineJob<
  S extends StandardSchema,
  const O extends string = string,
  const L extends string = string,
  const R extends string = string,
  const M extends string = string,
  const U extends string = string,
>(spec: JobSpec<S, O, L, R, M, U>): JobDefinition<S> {
  const kind = spec?.kind;
  if (typeof kind !== "string" || !/^[A-Za-z0-9._:-]{1,200}$/.test(kind)) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `kind is ${show(kind)}; expected 1 to 200 letters, digits and . _ : -, for example "receipt.send".`,
      { path: "kind" },
    );
  }
  const where = `job "${kind}"`;
  assertKnownKeys(spec, specKeys, where);
  const schema: unknown = spec.payload;
  if ((typeof schema !== "object" && typeof schema !== "function") || schema === null || !("~standard" in schema)) {
    throw invalid(where, "payload", schema, "expected a Standard Schema, for example z.object({ ... }) of zod");
  }
  const retry = spec.retry ?? {};
  assertKnownKeys(retry, retryKeys, `${where}: retry`);
  const backoff = retry.backoff ?? "exponential";
  if (typeof backoff !== "function" && backoff !== "exponential" && backoff !== "fixed") {
    throw invalid(where, "retry.backoff", backoff, 'expected "exponential", "fixed" or a function');
  }
  const minBackoffMs = parseDuration(retry.minBackoff ?? "5s", `${where}: retry.minBackoff`);
  const maxBackoffMs = parseDuration(retry.maxBackoff ?? "1h", `${where}: retry.maxBackoff`);
  if (maxBackoffMs < minBackoffMs) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `${where}: retry.maxBackoff is ${maxBackoffMs} ms, below retry.minBackoff, ${minBackoffMs} ms.`,
    );
  }
  const timeoutMs = parseDuration(spec.timeout ?? "15s", `${where}: timeout`);
  if (timeoutMs === 0) throw invalid(where, "timeout", spec.timeout, "expected more than 0");
  if (spec.alone !== undefined && typeof spec.alone !== "boolean")
    throw invalid(where, "alone", spec.alone, "expected true or false");
  if (spec.run !== undefined && typeof spec.run !== "function")
    throw invalid(where, "run", spec.run, "expected a function");
  const policy: KindPolicy = {
    name: kind,
    queue: queueName(spec.queue ?? "default", `${where}: queue`),
    priority: integer(where, "priority", spec.priority ?? 1, 0, 3, ". Smaller runs first"),
    targetLatencyMs: parseDuration(spec.targetLatency ?? "5m", `${where}: targetLatency`),
    timeoutMs,
    maxAttempts: integer(where, "retry.maxAttempts", retry.maxAttempts ?? 8, 1, 1_000),
    maxCrashes: integer(where, "maxCrashes", spec.maxCrashes ?? 3, 1, 100),
    backoff: typeof backoff === "function" ? "custom" : backoff,
    minBackoffMs,
    maxBackoffMs,
    alone: spec.alone ?? false,
    ...resources(where, kind, spec),
  };
  return definition(spec.payload, policy, typeof backoff === "function" ? backoff : null, spec.run ?? null);
}

/** Limits of a lock set; every lock is an entry of the server's lock table. */
const maxNames = 16;
const maxLimits = 8;
const maxSlots = 1_000;

/** The options below, before they are checked. */
interface ResourceOptions {
  readonly orderingKey?: unknown;
  readonly whenDead?: unknown;
  readonly locks?: unknown;
  readonly sharedLocks?: unknown;
  readonly limits?: unknown;
  readonly max?: unknown;
  readonly uniqueKey?: unknown;
  readonly uniqueFor?: unknown;
  readonly onConflict?: unknown;
  readonly deadline?: unknown;
  readonly whenMissed?: unknown;
}

/** What the job needs while it runs, and when. */
function resources(where: string, kind: string, spec: ResourceOptions) {
  const names = (option: "locks" | "sharedLocks"): string[] => {
    const value: unknown = spec[option] ?? [];
    if (!Array.isArray(value) || value.length > maxNames)
      throw invalid(where, option, value, `expected at most ${maxNames} templates`);
    return value.map((name: unknown, i) => keyTemplate(name, `${where}: ${option}[${i}]`));
  };
  // Of no length, a key would never be taken and a deadline always be missed.
  const length = (option: "uniqueFor" | "deadline", value: unknown): number => {
    const ms = parseDuration(value, `${where}: ${option}`);
    if (ms === 0) throw invalid(where, option, value, "expected more than 0");
    return ms;
  };
  const limits: unknown = spec.limits ?? [];
  if (!Array.isArray(limits) || limits.length > maxLimits)
    throw invalid(where, "limits", limits, `expected at most ${maxLimits} limits`);
  for (const [i, limit] of limits.entries()) {
    if (typeof limit !== "object" || limit === null)
      throw invalid(where, `limits[${i}]`, limit, 'expected { name: "tenant:{tenant}", max: 5 }');
    assertKnownKeys(limit, ["name", "max"], `${where}: limits[${i}]`);
  }
  const named = limits.map(({ name, max }: Limit, i) => ({
    name: keyTemplate(name, `${where}: limits[${i}].name`),
    max: integer(where, `limits[${i}].max`, max, 1, maxSlots),
  }));
  // Named by the payload first: the first limit is where jobs wait, and one busy tenant must not hide the others.
  if (spec.max !== undefined) named.push({ name: `@kind/${kind}`, max: integer(where, "max", spec.max, 1, maxSlots) });
  if (spec.uniqueFor !== undefined && spec.uniqueKey === undefined)
    throw invalid(where, "uniqueFor", spec.uniqueFor, "expected uniqueKey beside it");
  return {
    orderingKey: spec.orderingKey === undefined ? null : keyTemplate(spec.orderingKey, `${where}: orderingKey`),
    whenDead: oneOf(where, "whenDead", spec.whenDead ?? "halt", ["halt", "skip"] as const),
    locks: names("locks"),
    sharedLocks: names("sharedLocks"),
    limitNames: named.map(({ name }) => name),
    limitMaxes: named.map(({ max }) => max),
    uniqueKey: spec.uniqueKey === undefined ? null : keyTemplate(spec.uniqueKey, `${where}: uniqueKey`),
    uniqueForMs: spec.uniqueFor === undefined ? null : length("uniqueFor", spec.uniqueFor),
    onConflict: oneOf(where, "onConflict", spec.onConflict ?? "keep", ["keep", "replace", "reschedule"] as const),
    deadlineMs: spec.deadline === undefined ? null : length("deadline", spec.deadline),
    whenMissed: oneOf(where, "whenMissed", spec.whenMissed ?? "dead", ["dead", "run"] as const),
  };
}

function oneOf<T extends string>(where: string, option: string, value: unknown, known: readonly T[]): T {
  const found = known.find((one) => one === value);
  if (found !== undefined) return found;
  throw invalid(where, option, value, `expected ${known.map((one) => `"${one}"`).join(" or ")}`);
}

function definition<S extends StandardSchema>(
  payload: S,
  policy: KindPolicy,
  backoff: ((failures: number) => Duration) | null,
  run: Handler<OutputOf<S>> | null,
): JobDefinition<S> {
  return {
    kind: policy.name,
    payload,
    policy,
    backoff,
    run,
    handle: (handler) => definition(payload, policy, backoff, handler),
  };
}

/** Checks a queue's name: 1 to 100 letters, digits and `. _ : -`. Errors: PGCLAIM_INVALID_OPTION. */
export function queueName(value: unknown, where: string): string {
  if (typeof value === "string" && /^[A-Za-z0-9._:-]{1,100}$/.test(value)) return value;
  throw new UsageError(
    "PGCLAIM_INVALID_OPTION",
    `${where} is ${show(value)}; expected 1 to 100 letters, digits and . _ : -.`,
    { path: where },
  );
}

/** Refuses an option nobody knows, naming the nearest known one. Errors: PGCLAIM_INVALID_OPTION. */
export function assertKnownKeys(options: object, known: readonly string[], where: string): void {
  for (const key of Object.keys(options)) {
    if (known.includes(key)) continue;
    const near = nearest(key, known);
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `${where}: unknown option "${key}"; ${near === null ? `known: ${known.join(", ")}` : `did you mean "${near}"?`}`,
      { path: key },
    );
  }
}

/** Checks an integer option. Errors: PGCLAIM_INVALID_OPTION. */
export function integer(where: string, option: string, value: unknown, min: number, max: number, more = ""): number {
  if (typeof value === "number" && Number.isInteger(value) && value >= min && value <= max) return value;
  throw invalid(where, option, value, `expected an integer from ${min} to ${max}${more}`);
}

function invalid(where: string, option: string, value: unknown, expected: string): UsageError {
  return new UsageError("PGCLAIM_INVALID_OPTION", `${where}: ${option} is ${show(value)}; ${expected}.`, {
    path: option,
  });
}
