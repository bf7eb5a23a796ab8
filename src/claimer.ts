// createClaimer: definitions and a database in; enqueue, invoke and inspect out. It holds no connection.

import { type Clock, systemClock } from "./clock.ts";
import type { Database } from "./database.ts";
import { type AnyJobDefinition, assertKnownKeys, integer, type JobDefinition, queueName } from "./define.ts";
import { type Duration, parseDuration, show } from "./duration.ts";
import { jobRequest, type When } from "./enqueue.ts";
import { UsageError } from "./errors.ts";
import type { CallerClient } from "./gateway.ts";
import { invoke, policies } from "./invocation.ts";
import { counts, type LimitOptions, type Limits, readLimits, timerMs } from "./limits.ts";
import type { Enqueued, InvocationReport, JobId, JobRequest, JobView, OperatorAnswer, Trigger } from "./model.ts";
import { nearest } from "./nearest.ts";
import { postgresGateway } from "./postgres.ts";
import { consoleLog, guardedLog, type Log } from "./report.ts";
import type { InputOf, StandardSchema } from "./standard_schema.ts";

export interface ClaimerOptions {
  /** The kinds this deployment knows; those with a handler are run. */
  readonly jobs: readonly AnyJobDefinition[];
  /** The transport: `neonDatabase(url)` or `pgDatabase(url)`. */
  readonly database: Database;
  /** The installation's schema. Default `"pgclaim"`. */
  readonly schema?: string;
  /** Queues to draw from, the first one first. Default `["default"]` and every queue a kind names. */
  readonly queues?: readonly string[];
  /** Jobs of one tick, 1 to 200. Default 25. A tick commits or vanishes as a whole, so a crash repeats that many calls. */
  readonly batch?: number;
  /** Handlers doing external work at once, 1 to 100. Default 4: a Worker lets six connections wait. */
  readonly concurrency?: number;
  /** Ticks of one invocation, or `"none"` for no limit but the budget. Default `"none"`. */
  readonly maxTicks?: number | "none";
  /** How long an invocation may take. Defaults: `http` `"25s"`, `cron` `"55s"`. */
  readonly budget?: { readonly http?: Duration; readonly cron?: Duration };
  /** How long finished jobs stay in history, or `"forever"`. Default `"7d"`. Unfinished jobs and dead letters are never pruned. */
  readonly retention?: { readonly done?: Duration | "forever" };
  readonly limits?: LimitOptions;
  /** Where structured log lines go. Default: JSON on the console. */
  readonly log?: Log;
  readonly clock?: Clock;
}

export interface InvokeOptions {
  /** How long this invocation may take; the trigger's default otherwise. */
  readonly budget?: Duration;
}

export interface EnqueueOptions extends When {
  /** The caller's own connection: the job commits with the caller's transaction, or vanishes with it. */
  readonly client?: CallerClient;
}

export interface EnqueueRequest extends When {
  readonly kind: string;
  readonly payload: unknown;
}

export interface Claimer {
  /** Kinds known here. */
  readonly kinds: readonly string[];
  /** The longest budget of an HTTP trigger, in milliseconds. */
  readonly httpBudgetMs: number;
  /**
   * Runs one invocation: wake, connect, ticks, close, report.
   *
   * Errors: never rejects for what the world or a handler does, the report's `error` says it; a UsageError for a wrong
   *         `budget`.
   */
  invoke(trigger: Trigger, options?: InvokeOptions): Promise<InvocationReport>;
  /**
   * Enqueues one job.
   *
   * Errors: PGCLAIM_INVALID_PAYLOAD with a path, PGCLAIM_PAYLOAD_TOO_LARGE, PGCLAIM_UNKNOWN_KIND, PGCLAIM_INVALID_OPTION;
   *         the database's.
   * SQL:    select job_id, type from pgclaim.enqueue_v1($1)
   */
  enqueue<S extends StandardSchema>(
    job: JobDefinition<S>,
    payload: InputOf<S>,
    options?: EnqueueOptions,
  ): Promise<Enqueued>;
  /** Enqueues up to 1,000 jobs of a kind, all of them or none. */
  enqueueMany<S extends StandardSchema>(
    job: JobDefinition<S>,
    payloads: readonly InputOf<S>[],
    options?: EnqueueOptions,
  ): Promise<readonly Enqueued[]>;
  /** Enqueues by name, for callers that have no definition at hand: up to 1,000 jobs, all of them or none. */
  enqueueByKind(
    requests: readonly EnqueueRequest[],
    options?: { readonly client?: CallerClient },
  ): Promise<readonly Enqueued[]>;
  /** One job with its attempts, finished ones too; null where there is none. */
  job(id: JobId): Promise<JobView | null>;
  /** Gives a dead letter a fresh set of attempts. */
  retry(id: JobId): Promise<OperatorAnswer>;
  /** Takes a dead letter out for good; it stays in history. */
  discard(id: JobId): Promise<OperatorAnswer>;
}

const optionKeys = [
  "jobs",
  "database",
  "schema",
  "queues",
  "batch",
  "concurrency",
  "maxTicks",
  "budget",
  "retention",
  "limits",
  "log",
  "clock",
];

/**
 * Makes a claimer. Opens nothing.
 *
 * Errors: PGCLAIM_INVALID_OPTION, PGCLAIM_DUPLICATE_KIND, PGCLAIM_KIND_FITS_NO_TRIGGER.
 */
export function createClaimer(options: ClaimerOptions): Claimer {
  assertKnownKeys(options, optionKeys, "createClaimer()");
  const clock = options.clock ?? systemClock;
  const limits = readLimits(options.limits);
  const budget = readBudget(options, limits);
  const definitions = readJobs(options.jobs, budget, limits);
  const gateway = postgresGateway({ database: options.database, clock, limits, schema: options.schema ?? "pgclaim" });
  const digest = once(() => digestOf(definitions));
  const invocation = {
    gateway,
    clock,
    limits,
    log: guardedLog(options.log ?? consoleLog),
    definitions,
    digest,
    queues: readQueues(options, definitions),
    batch: integer("createClaimer()", "batch", options.batch ?? counts.batch, 1, counts.maxBatch),
    concurrency: integer(
      "createClaimer()",
      "concurrency",
      options.concurrency ?? counts.concurrency,
      1,
      counts.maxConcurrency,
    ),
    maxTicks: readMaxTicks(options.maxTicks ?? "none"),
    historyMs: readRetention(options),
  };

  async function insert(requests: readonly JobRequest[], client?: CallerClient): Promise<readonly Enqueued[]> {
    if (requests.length === 0) return [];
    let answer = await gateway.enqueue(requests, client);
    if (
      answer.type === "refused" &&
      answer.reason === "unknown-kind" &&
      definitions.has(requests[answer.i]?.kind ?? "")
    ) {
      // Known here and not in the database: this deployment has not been triggered yet. The refusal was a value, so a
      // caller's transaction is still whole.
      await gateway.register({ digest: await digest(), kinds: policies(definitions) });
      answer = await gateway.enqueue(requests, client);
    }
    if (answer.type === "enqueued") return answer.ids.map((id) => ({ type: "enqueued", id }));
    throw refusal(answer, requests);
  }

  function known(kind: string, at = ""): AnyJobDefinition {
    const definition = definitions.get(kind);
    if (definition !== undefined) return definition;
    const kinds = [...definitions.keys()];
    const near = nearest(kind, kinds);
    throw new UsageError(
      "PGCLAIM_UNKNOWN_KIND",
      `Job kind ${JSON.stringify(kind)} is not registered here; ${near === null ? `known kinds: ${kinds.map((one) => `"${one}"`).join(", ") || "none"}.` : `did you mean "${near}"?`} Add it to createClaimer({ jobs }).`,
      { path: `${at}kind` },
    );
  }

  return {
    kinds: [...definitions.keys()],
    httpBudgetMs: budget.httpMs,

    async invoke(trigger, invokeOptions = {}) {
      const usual = trigger.type === "http" ? budget.httpMs : budget.cronMs;
      const budgetMs = invokeOptions.budget === undefined ? usual : timerMs(invokeOptions.budget, "budget");
      return invoke(invocation, trigger, budgetMs);
    },

    async enqueue(job, payload, enqueueOptions = {}) {
      const { client, ...when } = enqueueOptions;
      const request = await jobRequest(known(job.kind), payload, when);
      const [enqueued] = await insert([request], client);
      if (enqueued === undefined) throw new Error("the database answered no job");
      return enqueued;
    },

    async enqueueMany(job, payloads, enqueueOptions = {}) {
      const { client, ...when } = enqueueOptions;
      assertCount(payloads.length);
      const definition = known(job.kind);
      const requests: JobRequest[] = [];
      for (const [i, payload] of payloads.entries())
        requests.push(await jobRequest(definition, payload, when, `jobs[${i}].`));
      return insert(requests, client);
    },

    async enqueueByKind(requests, enqueueOptions = {}) {
      assertCount(requests.length);
      const checked: JobRequest[] = [];
      for (const [i, { kind, payload, ...when }] of requests.entries()) {
        const at = requests.length === 1 ? "" : `jobs[${i}].`;
        checked.push(await jobRequest(known(kind, at), payload, when, at));
      }
      return insert(checked, enqueueOptions.client);
    },

    job: (id) => gateway.job(assertJobId(id)),
    retry: (id) => gateway.retry(assertJobId(id)),
    discard: (id) => gateway.discard(assertJobId(id)),
  };
}

function refusal(
  answer: { readonly i: number; readonly reason: string; readonly detail: string },
  requests: readonly JobRequest[],
): UsageError {
  const kind = requests[answer.i]?.kind ?? "";
  const at = requests.length > 1 ? `jobs[${answer.i}].` : "";
  switch (answer.reason) {
    case "unknown-kind":
      return new UsageError(
        "PGCLAIM_UNKNOWN_KIND",
        `No kind "${kind}" in the database. A kind is registered when a deployment that defines it first runs; a transaction above READ COMMITTED cannot see it before it begins again.`,
        { path: `${at}kind` },
      );
    case "payload-too-large":
      return new UsageError(
        "PGCLAIM_PAYLOAD_TOO_LARGE",
        `job "${kind}": the payload has ${answer.detail}. Store the data elsewhere and send its key.`,
        { path: `${at}payload` },
      );
    default:
      return new UsageError("PGCLAIM_INVALID_PAYLOAD", `job "${kind}": the database refused it: ${answer.reason}.`, {
        path: `${at}payload`,
      });
  }
}

function assertCount(n: number): void {
  if (n <= counts.maxEnqueue) return;
  throw new UsageError(
    "PGCLAIM_INVALID_OPTION",
    `${n} jobs in one call; expected at most ${counts.maxEnqueue}. Send them in several calls.`,
  );
}

const maxJobId = 9_223_372_036_854_775_807n;

/** Refuses what is no job id: a positive 64-bit integer as text. Errors: PGCLAIM_INVALID_OPTION. */
export function assertJobId(id: unknown): JobId {
  if (typeof id === "string" && /^[1-9]\d{0,18}$/.test(id) && BigInt(id) <= maxJobId) return id;
  throw new UsageError("PGCLAIM_INVALID_OPTION", `job id is ${show(id)}; expected a positive 64-bit integer as text.`, {
    path: "id",
  });
}

interface Budget {
  readonly httpMs: number;
  readonly cronMs: number;
}

function readBudget(options: ClaimerOptions, limits: Limits): Budget {
  const given = options.budget ?? {};
  assertKnownKeys(given, ["http", "cron"], "budget");
  const budget = {
    httpMs: timerMs(given.http ?? "25s", "budget.http"),
    cronMs: timerMs(given.cron ?? "55s", "budget.cron"),
  };
  for (const [name, ms] of Object.entries(budget)) {
    if (ms > limits.reserveMs) continue;
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `budget.${name.slice(0, -2)} is ${ms} ms; expected more than limits.reserve, ${limits.reserveMs} ms.`,
    );
  }
  return budget;
}

function readJobs(
  jobs: readonly AnyJobDefinition[],
  budget: Budget,
  limits: Limits,
): ReadonlyMap<string, AnyJobDefinition> {
  if (!Array.isArray(jobs)) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `createClaimer(): jobs is ${show(jobs)}; expected an array of defineJob() results.`,
      { path: "jobs" },
    );
  }
  const definitions = new Map<string, AnyJobDefinition>();
  const longestMs = Math.max(budget.httpMs, budget.cronMs) - limits.reserveMs;
  for (const [i, job] of jobs.entries()) {
    if (typeof job?.kind !== "string" || typeof job.policy !== "object") {
      throw new UsageError(
        "PGCLAIM_INVALID_OPTION",
        `createClaimer(): jobs[${i}] is ${show(job)}; expected what defineJob() answers.`,
        { path: `jobs[${i}]` },
      );
    }
    if (definitions.has(job.kind)) {
      throw new UsageError(
        "PGCLAIM_DUPLICATE_KIND",
        `Job kind "${job.kind}" is defined twice in createClaimer({ jobs }); expected one definition for each kind.`,
      );
    }
    if (job.run !== null && job.policy.timeoutMs > longestMs) {
      throw new UsageError(
        "PGCLAIM_KIND_FITS_NO_TRIGGER",
        `job "${job.kind}": timeout is ${job.policy.timeoutMs} ms, and no trigger leaves more than ${longestMs} ms (budget.http ${budget.httpMs} ms, budget.cron ${budget.cronMs} ms, less limits.reserve ${limits.reserveMs} ms). Shorten the timeout or raise a budget.`,
      );
    }
    definitions.set(job.kind, job);
  }
  return definitions;
}

function readQueues(options: ClaimerOptions, definitions: ReadonlyMap<string, AnyJobDefinition>): readonly string[] {
  if (options.queues !== undefined) {
    if (!Array.isArray(options.queues) || options.queues.length === 0) {
      throw new UsageError("PGCLAIM_INVALID_OPTION", `queues is ${show(options.queues)}; expected at least one name.`, {
        path: "queues",
      });
    }
    return options.queues.map((queue: unknown, i) => queueName(queue, `queues[${i}]`));
  }
  return [...new Set(["default", ...[...definitions.values()].map(({ policy }) => policy.queue)])];
}

function readMaxTicks(value: unknown): number {
  return value === "none"
    ? Number.POSITIVE_INFINITY
    : integer("createClaimer()", "maxTicks", value, 1, 1_000_000, ', or "none"');
}

function readRetention(options: ClaimerOptions): number | null {
  const given = options.retention ?? {};
  assertKnownKeys(given, ["done"], "retention");
  return given.done === "forever" ? null : parseDuration(given.done ?? "7d", "retention.done");
}

async function digestOf(definitions: ReadonlyMap<string, AnyJobDefinition>): Promise<string> {
  const text = new TextEncoder().encode(JSON.stringify(policies(definitions)));
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", text));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | null = null;
  return () => {
    made ??= make();
    return made;
  };
}
