// createClaimer: definitions and a database in; enqueue, invoke and inspect out. It holds no connection.

import {
  type ClaimerOptions,
  deploymentOf,
  optionKeys,
  readBudget,
  readJobs,
  readLogLevel,
  readMaxTicks,
  readOnEvent,
  readQueueMax,
  readQueueNames,
  readQueues,
  readRetention,
  readSchedules,
  readTelemetry,
  readTickSlots,
} from "./claimer_options.ts";
import { systemClock } from "./clock.ts";
import { type AnyJobDefinition, assertKnownKeys, integer, type JobDefinition, queueName } from "./define.ts";
import { type Duration, show } from "./duration.ts";
import { jobRequest, requestDigest, type When } from "./enqueue.ts";
import { UsageError } from "./errors.ts";
import type { CallerClient, EnqueueOnceAnswer } from "./gateway.ts";
import type { Inspector, Operator } from "./inspection.ts";
import { invoke } from "./invocation.ts";
import { kicker } from "./kick.ts";
import { counts, readLimits, timerMs } from "./limits.ts";
import type {
  Enqueued,
  InvocationReport,
  JobId,
  JobRequest,
  JobView,
  OperatorAnswer,
  ScheduleView,
  Trigger,
} from "./model.ts";
import { nearest } from "./nearest.ts";
import { Observer } from "./observe.ts";
import { postgresInspector, postgresOperator } from "./operations.ts";
import { postgresGateway } from "./postgres.ts";
import { notOnce, refusal } from "./refusal.ts";
import { consoleLog, guardedLog } from "./report.ts";
import { scheduleName } from "./schedule.ts";
import type { InputOf, StandardSchema } from "./standard_schema.ts";

export interface InvokeOptions {
  /** How long this invocation may take; the trigger's default otherwise. */
  readonly budget?: Duration;
  /** The queues to serve, the first one first; the claimer's otherwise. */
  readonly queues?: readonly string[];
}

export interface EnqueueOptions extends When {
  /**
   * Wakes an invocation once the job is committed, see `kick` of `createClaimer`. With `client` the commit is the caller's,
   * so the answer carries `kick()`, to be called after it.
   */
  readonly kick?: boolean;
  /** The caller's own connection: the job commits with the caller's transaction, or vanishes with it. */
  readonly client?: CallerClient;
}

export interface EnqueueRequest extends When {
  readonly kind: string;
  readonly payload: unknown;
}

export interface EnqueueByKindOptions {
  readonly client?: CallerClient;
  /**
   * Enqueues once for this key: asked again within a day, the same jobs are answered and nothing is enqueued. 1 to 255
   * characters; a key of another database role is another key. Not together with `client`.
   */
  readonly idempotencyKey?: string;
  /** What enqueues them, for their record: `api`, `cli`, `dashboard`. At most 200 characters are kept. */
  readonly source?: string;
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
  ): Promise<Enqueued & { readonly kick?: () => Promise<void> }>;
  /** Enqueues up to 1,000 jobs of a kind, all of them or none. */
  enqueueMany<S extends StandardSchema>(
    job: JobDefinition<S>,
    payloads: readonly InputOf<S>[],
    options?: EnqueueOptions,
  ): Promise<readonly Enqueued[]>;
  /**
   * Enqueues by name, for callers that have no definition at hand: up to 1,000 jobs, all of them or none.
   *
   * Errors: as `enqueue`; PGCLAIM_IDEMPOTENCY_CONFLICT for an `idempotencyKey` that was used with other jobs.
   */
  enqueueByKind(requests: readonly EnqueueRequest[], options?: EnqueueByKindOptions): Promise<readonly Enqueued[]>;
  /** One job with its attempts, finished ones too; null where there is none. */
  job(id: JobId): Promise<JobView | null>;
  /** Gives a dead letter a fresh set of attempts. */
  retry(id: JobId): Promise<OperatorAnswer>;
  /** Takes a dead letter out for good; it stays in history. A key it has halted goes on. */
  discard(id: JobId): Promise<OperatorAnswer>;
  /** Lets the jobs of its ordering key pass a dead letter; it stays one. */
  skip(id: JobId): Promise<OperatorAnswer>;
  /** Cancels a job: one that waits at once, one that runs by its signal. */
  cancel(id: JobId): Promise<OperatorAnswer>;
  /** Claims nothing more of a queue; what runs runs on. Answers whether that changed anything. */
  pauseQueue(queue: string): Promise<boolean>;
  resumeQueue(queue: string): Promise<boolean>;
  /** Every schedule of the installation, with its last and next occurrence. */
  schedules(): Promise<readonly ScheduleView[]>;
  /** Fires no more until resumed; occurrences that pass meanwhile are lost. */
  pauseSchedule(name: string): Promise<boolean>;
  resumeSchedule(name: string): Promise<boolean>;
  /** The reads of the dashboard, the API and the CLI. */
  readonly inspect: Inspector;
  /** What a person does to jobs, written into their record. */
  readonly operate: Operator;
  /** Registers the kinds and schedules, as the first invocation of a deployment does. */
  register(): Promise<void>;
}

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
  const installation = { database: options.database, clock, limits, schema: options.schema ?? "pgclaim" };
  const gateway = postgresGateway(installation);
  const log = guardedLog(options.log ?? consoleLog, readLogLevel(options.logLevel ?? "info"));
  const schedules = options.schedules === undefined ? null : readSchedules(options.schedules, definitions);
  const queueMax = readQueueMax(options.queueMax ?? {});
  const queues = readQueues(options, definitions);
  const deployment = once(() => deploymentOf(definitions, schedules, queueMax, queues));
  const kick = options.kick === undefined ? null : kicker(options.kick, log);
  const observer = new Observer({
    clock,
    definitions,
    onEvent: readOnEvent(options.onEvent),
    telemetry: readTelemetry(options.telemetry),
    debug: ({ type, ...facts }) => log({ level: "debug", event: `pgclaim.${type}`, ...facts }),
    warn: (message) => log({ level: "warn", event: "pgclaim.observe", message }),
  });
  const invocation = {
    observer,
    gateway,
    clock,
    limits,
    log,
    definitions,
    deployment,
    tickSlots: readTickSlots(options.tickSlots ?? "none"),
    queues,
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

  async function insert(
    checked: readonly JobRequest[],
    { client, idempotencyKey: key, source }: EnqueueByKindOptions = {},
  ): Promise<readonly Enqueued[]> {
    const trace = observer.activeTrace();
    const origin = { ...(trace === null ? {} : { trace }), ...(source === undefined ? {} : { source }) };
    const requests = checked.map((request) => ({ ...origin, ...request }));
    if (requests.length === 0) return [];
    const digest = key === undefined ? "" : await requestDigest(checked);
    const send = (): Promise<EnqueueOnceAnswer> =>
      key === undefined ? gateway.enqueue(requests, client) : gateway.enqueueOnce({ key, digest, jobs: requests });
    let answer = await send();
    if (
      answer.type === "refused" &&
      answer.reason === "unknown-kind" &&
      definitions.has(requests[answer.i]?.kind ?? "")
    ) {
      // Known here and not in the database: this deployment has not been triggered yet. The refusal was a value, so a
      // caller's transaction is still whole.
      await gateway.register(await deployment());
      answer = await send();
    }
    if (answer.type === "enqueued") return answer.jobs;
    throw answer.type === "refused" ? refusal(answer, requests) : notOnce(answer.type);
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
      if (invokeOptions.queues === undefined) return invoke(invocation, trigger, budgetMs);
      return invoke({ ...invocation, queues: readQueueNames(invokeOptions.queues) }, trigger, budgetMs);
    },

    async enqueue(job, payload, enqueueOptions = {}) {
      const { client, kick: wanted, ...when } = enqueueOptions;
      const wake = kickFor(wanted);
      const request = await jobRequest(known(job.kind), payload, when);
      const [enqueued] = await insert([request], { ...(client === undefined ? {} : { client }) });
      if (enqueued === undefined) throw new Error("the database answered no job");
      if (wake === null) return enqueued;
      if (client !== undefined) return { ...enqueued, kick: wake };
      await wake();
      return enqueued;
    },

    async enqueueMany(job, payloads, enqueueOptions = {}) {
      const { client, kick: wanted, ...when } = enqueueOptions;
      const wake = kickFor(wanted);
      if (wake !== null && client !== undefined) {
        throw new UsageError(
          "PGCLAIM_INVALID_OPTION",
          "enqueueMany() got kick and client; kick after your commit, with enqueue()'s answer or POST /api/trigger.",
          { path: "kick" },
        );
      }
      assertCount(payloads.length);
      const definition = known(job.kind);
      const requests: JobRequest[] = [];
      for (const [i, payload] of payloads.entries())
        requests.push(await jobRequest(definition, payload, when, `jobs[${i}].`));
      const enqueued = await insert(requests, { ...(client === undefined ? {} : { client }) });
      await wake?.();
      return enqueued;
    },

    async enqueueByKind(requests, enqueueOptions = {}) {
      assertOnce(enqueueOptions);
      assertCount(requests.length);
      const checked: JobRequest[] = [];
      for (const [i, { kind, payload, ...when }] of requests.entries()) {
        const at = requests.length === 1 ? "" : `jobs[${i}].`;
        checked.push(await jobRequest(known(kind, at), payload, when, at));
      }
      return insert(checked, enqueueOptions);
    },

    job: (id) => gateway.job(assertJobId(id)),
    retry: (id) => gateway.retry(assertJobId(id)),
    discard: (id) => gateway.discard(assertJobId(id)),
    skip: (id) => gateway.skip(assertJobId(id)),
    cancel: (id) => gateway.cancel(assertJobId(id)),
    pauseQueue: (queue) => gateway.pauseQueue(queueName(queue, "queue")),
    resumeQueue: (queue) => gateway.resumeQueue(queueName(queue, "queue")),
    schedules: () => gateway.schedules(),
    pauseSchedule: (name) => gateway.pauseSchedule(scheduleName(name)),
    inspect: postgresInspector(installation),
    operate: postgresOperator(installation),
    resumeSchedule: (name) => gateway.resumeSchedule(scheduleName(name)),

    async register() {
      await gateway.register(await deployment());
    },
  };

  function kickFor(wanted: boolean | undefined): (() => Promise<void>) | null {
    if (wanted === undefined || wanted === false) return null;
    if (wanted !== true) {
      throw new UsageError("PGCLAIM_INVALID_OPTION", `enqueue(): kick is ${show(wanted)}; expected true or false.`, {
        path: "kick",
      });
    }
    if (kick !== null) return kick;
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      "enqueue() got kick: true, and createClaimer() has no kick; expected kick: { url, secret } there.",
      { path: "kick" },
    );
  }
}

function assertOnce(options: EnqueueByKindOptions): void {
  assertKnownKeys(options, ["client", "idempotencyKey", "source"], "enqueueByKind()");
  const { client, idempotencyKey: key } = options;
  if (key === undefined) return;
  if (typeof key === "string" && /^[\x20-\x7e]{1,255}$/.test(key) && client === undefined) return;
  throw new UsageError(
    "PGCLAIM_INVALID_OPTION",
    client === undefined
      ? `enqueueByKind(): idempotencyKey is ${show(key)}; expected 1 to 255 printable ASCII characters.`
      : "enqueueByKind() got idempotencyKey and client; a caller's own transaction decides by itself whether it happened.",
    { path: "idempotencyKey" },
  );
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

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | null = null;
  return () => {
    made ??= make();
    return made;
  };
}
