// What the person on call is shown, as types. No behaviour. Lengths in integer milliseconds, instants as ISO 8601 in UTC by the
// database's clock, ids as text.

import type { AttemptView, Enqueued, JobId, SkipReason } from "./model.ts";

/** A count that stops at a cap: `n` of them, or at least so many. */
export interface Count {
  readonly n: number;
  readonly capped: boolean;
}

/** A page of a list. `next` is the cursor of the page behind it, null at the end. */
export interface Page<T> {
  readonly items: readonly T[];
  readonly next: string | null;
  /**
   * Where a filter has no index: how many rows were looked at, in the list's order, before the search stopped. Null where
   * the answer is complete.
   */
  readonly searched: number | null;
  /** The database's clock. */
  readonly now: string;
}

/** States a list of jobs can be asked for. `retrying` is scheduled after a failure; `running` is proved by the lock table. */
export const listStates = [
  "ready",
  "running",
  "scheduled",
  "retrying",
  "blocked",
  "dead",
  "done",
  "discarded",
  "cancelled",
] as const;
export type ListState = (typeof listStates)[number];

/** Which jobs. Every field narrows; none is guessed. */
export interface JobFilter {
  /** Not given: all unfinished ones and dead letters, the newest id first. */
  readonly state?: ListState;
  readonly queue?: string;
  readonly kind?: string;
  readonly orderingKey?: string;
  readonly uniqueKey?: string;
  /** Contained in the payload: `{"orderId": "42"}`. Looked for among the first 10,000 that match the rest. */
  readonly payload?: Readonly<Record<string, unknown>>;
  /** Dead letters: the reason, and a fingerprint as `deadGroups` gives it. */
  readonly reason?: "attempts" | "handler" | "crashed" | "missed";
  readonly fingerprint?: string;
  /** Dead since, or finished since. */
  readonly since?: string;
}

export interface JobsRequest extends JobFilter {
  readonly cursor?: string;
  /** Jobs of a page, 1 to 200; 50. */
  readonly limit?: number;
}

/**
 * Why a job is not running, from its row, its key's head, its queue and the lock table:
 * `scheduled`, `backoff`, `behind` (a job id), `halted` (a job id), `busy` (a lock name), `limit` (a limit's name),
 * `paused` (its queue), `running`, `suspect` (waits for a tick of its own), `due` (nothing is in its way: the next trigger
 * takes it), `ended`, `dead`.
 */
export interface Why {
  readonly reason:
    | "scheduled"
    | "backoff"
    | "behind"
    | "halted"
    | "busy"
    | "limit"
    | "paused"
    | "running"
    | "suspect"
    | "due"
    | "ended"
    | "dead";
  /** The job, lock, limit or queue that is meant. */
  readonly what: string | null;
}

/** A line of a list. */
export interface JobRow {
  readonly id: JobId;
  readonly kind: string;
  readonly queue: string;
  readonly state: ListState;
  readonly priority: number | null;
  readonly attempt: number;
  readonly failures: number;
  readonly maxAttempts: number | null;
  readonly runAt: string;
  readonly enqueuedAt: string;
  /** When it died or finished. */
  readonly endedAt: string | null;
  readonly deadReason: "attempts" | "handler" | "crashed" | "missed" | null;
  readonly deadlineAt: string | null;
  /** Deadline minus now (finished: minus its end); negative is missed. Null without a deadline. */
  readonly slackMs: number | null;
  readonly orderingKey: string | null;
  readonly uniqueKey: string | null;
  readonly why: Why;
  /** The first 200 characters of its last error. */
  readonly error: string | null;
  /** The first 160 characters of its payload as text; null where it has more than 2,048 bytes. */
  readonly preview: string | null;
  readonly payloadBytes: number;
}

/** A name a job needs, and who has it now. */
export interface LockView {
  readonly class: "job" | "key" | "exclusive" | "shared" | "limit";
  readonly name: string;
  /** Null: free, or nobody that this role may see. */
  readonly heldBy: { readonly pid: number; readonly sinceMs: number | null; readonly mine: boolean } | null;
  /** Limits: slots taken and how many there are. */
  readonly taken: number | null;
  readonly max: number | null;
}

export interface ActionView {
  readonly at: string;
  readonly verb: string;
  readonly actor: string;
  readonly detail: string | null;
}

export interface JobDetail extends JobRow {
  readonly suspect: boolean;
  readonly revision: number | null;
  readonly place: string | null;
  readonly trace: string | null;
  readonly source: string | null;
  readonly idempotencyKey: string;
  readonly lastError: string | null;
  /** The first 65,536 characters of the payload, as text; never parsed, so that 64-bit numbers survive. */
  readonly payloadText: string;
  readonly payloadCut: boolean;
  /** The newest 100. */
  readonly attempts: readonly (AttemptView & { readonly invocationId: string | null })[];
  readonly actions: readonly ActionView[];
  readonly locks: readonly LockView[];
  /** Of its ordering key: jobs waiting behind it. */
  readonly behind: Count | null;
}

export interface DeadGroup {
  readonly kind: string;
  readonly reason: string;
  /** Digest of the error's first line without its numbers; a filter of `jobs`. */
  readonly fingerprint: string;
  readonly example: string | null;
  /** Died in the last hour, 3 hours, 24 hours, 3 days, 7 days, and ever. */
  readonly counts: {
    readonly h1: number;
    readonly h3: number;
    readonly h24: number;
    readonly d3: number;
    readonly d7: number;
    readonly all: number;
  };
}

export interface KeyRow {
  readonly orderingKey: string;
  readonly gate: string;
  readonly kind: string;
  readonly halted: boolean;
  readonly haltedAt: string | null;
  readonly head: JobId;
  readonly headState: ListState;
  readonly headError: string | null;
  /** The job that would run if the head were skipped. */
  readonly next: JobId | null;
  readonly behind: Count;
  readonly oldestEnqueuedAt: string | null;
  readonly worstSlackMs: number | null;
}

export interface QueueRow {
  readonly name: string;
  readonly pausedAt: string | null;
  readonly max: number | null;
  /** Live, by one probe. */
  readonly oldestReadyMs: number | null;
  readonly nextDueAt: string | null;
  readonly running: number;
  /** Sampled, see `sampledAt` of the overview. */
  readonly depth: Readonly<Partial<Record<"ready" | "scheduled" | "retrying" | "blocked" | "dead", Count>>>;
  readonly donePerMinute: number;
  readonly lateMs: { readonly p50: number | null; readonly p95: number | null };
}

export interface KindRow {
  readonly name: string;
  readonly queue: string;
  readonly revision: number;
  readonly priority: number;
  readonly timeoutMs: number;
  readonly maxAttempts: number;
  readonly maxCrashes: number;
  readonly deadlineMs: number | null;
  readonly orderingKey: string | null;
  readonly uniqueKey: string | null;
  readonly locks: readonly string[];
  readonly whenDead: "halt" | "skip";
  /** Whether the deployment in force defines it. */
  readonly registered: boolean;
  readonly waiting: Count;
}

export interface TriggerRow {
  readonly name: string;
  readonly type: "cron" | "http" | "manual";
  readonly firstSeenAt: string;
  readonly lastSeenAt: string;
  readonly lastWorkAt: string | null;
  /** What is expected between two of them: of a cron expression, else the median of the last 20. Null: nothing is expected. */
  readonly everyMs: number | null;
  readonly status: "ok" | "late" | "silent" | "unexpected";
  /** Oldest first, 60 of them, the last one being the current minute. */
  readonly minutes: readonly { readonly woken: number; readonly worked: number }[];
}

/** One point of a chart. A minute nobody recorded is absent. */
export interface Point {
  readonly at: string;
  readonly done: number;
  readonly failed: number;
  readonly dead: number;
  readonly p50Ms: number | null;
  readonly p95Ms: number | null;
  readonly claimed: number;
  readonly skipped: number;
}

export interface Series {
  readonly from: string;
  readonly to: string;
  readonly stepMs: number;
  readonly points: readonly Point[];
}

export interface Overview<Queue = QueueRow, Trigger = TriggerRow> {
  readonly now: string;
  readonly database: string;
  readonly schema: string;
  readonly migration: number;
  /** When `depth` was counted; null: never yet. */
  readonly sampledAt: string | null;
  readonly depth: Readonly<Record<"ready" | "scheduled" | "retrying" | "blocked" | "dead", Count>>;
  readonly running: number;
  readonly longestRunMs: number | null;
  readonly oldestReadyMs: number | null;
  readonly nextDueAt: string | null;
  /** Live, to 1,000. */
  readonly dead: Count;
  readonly newestDeadAt: string | null;
  readonly haltedKeys: Count;
  readonly behindHalted: Count;
  /** Dead letters that missed their deadline, live, to 1,000. */
  readonly missed: Count;
  /** Unfinished jobs with a deadline, each to 10,000: late, below a minute, ... */
  readonly slack: {
    readonly late: Count;
    readonly under1m: Count;
    readonly under5m: Count;
    readonly under15m: Count;
    readonly over15m: Count;
    readonly tightestMs: number | null;
    readonly tightest: JobId | null;
    /** Slack below the kind's p95 from due to done, or a retry that is due after the deadline. */
    readonly atRisk: Count;
  };
  readonly historyRows: number | null;
  readonly queues: readonly Queue[];
  readonly triggers: readonly Trigger[];
  /** Kinds with waiting jobs that no deployment in force defines. */
  readonly unregistered: readonly string[];
}

export interface TickRow {
  readonly tickId: string;
  readonly invocationId: string;
  readonly trigger: string | null;
  /** Ordinal in its invocation, from 1. */
  readonly n: number | null;
  readonly startedAt: string | null;
  readonly decidedAt: string;
  readonly outcome: "committed" | "lost";
  readonly quarantined: boolean;
  readonly claimed: number;
  readonly outcomes: Readonly<Partial<Record<string, number>>>;
  readonly skipped: Readonly<Partial<Record<SkipReason, number>>>;
  readonly roundTrips: { readonly session: number; readonly oneShot: number } | null;
  readonly wakeMs: number | null;
  readonly connectMs: number | null;
  readonly claimMs: number | null;
  readonly fenceMs: number | null;
  readonly runMs: number | null;
  /** From the tick's start until its finish was sent. */
  readonly totalMs: number | null;
}

export interface TicksRequest {
  readonly trigger?: string;
  readonly outcome?: "committed" | "lost";
  readonly cursor?: string;
  /** 1 to 200; 50. */
  readonly limit?: number;
}

export interface InvocationDetail {
  readonly invocationId: string;
  readonly now: string;
  readonly ticks: readonly (TickRow & {
    readonly skips: readonly {
      readonly jobId: JobId;
      readonly kind: string;
      readonly reason: SkipReason;
      readonly lock?: string;
    }[];
    readonly jobs: readonly {
      readonly jobId: JobId;
      readonly kind: string | null;
      readonly attempt: number;
      readonly outcome: string | null;
      readonly startedAt: string;
      readonly endedAt: string | null;
      readonly error: string | null;
    }[];
  })[];
}

export interface Holder {
  readonly pid: number;
  /** Null where this role may not see the session. */
  readonly user: string | null;
  readonly applicationName: string | null;
  readonly state: string | null;
  readonly stateMs: number | null;
  readonly transactionMs: number | null;
  /** Exact, for `terminate`; null where hidden. */
  readonly transactionStart: string | null;
  readonly invocationId: string | null;
  readonly tickId: string | null;
  readonly jobs: readonly {
    readonly id: JobId;
    readonly kind: string;
    readonly attempt: number;
    readonly sinceMs: number;
  }[];
  /** Names it holds that we can name; and keys in our range that we cannot. */
  readonly names: readonly { readonly class: string; readonly name: string; readonly shared: boolean }[];
  readonly unknownKeys: readonly string[];
}

export interface Holders {
  readonly now: string;
  readonly holders: readonly Holder[];
  readonly capped: boolean;
  /** Open attempts whose lock is free: the next wake closes them as crashed. */
  readonly gone: readonly {
    readonly id: JobId;
    readonly kind: string;
    readonly attempt: number;
    readonly sinceMs: number;
  }[];
}

/** What /metrics prints, from one round trip. */
export interface MetricsView {
  readonly now: string;
  readonly kinds: readonly {
    readonly kind: string;
    readonly queue: string;
    readonly done: number;
    readonly retried: number;
    readonly dead: number;
    readonly snoozed: number;
    readonly released: number;
    readonly cancelled: number;
    readonly missed: number;
    /** Counts for each bucket of `lateBoundsMs`, and one more above them; not cumulative. */
    readonly late: readonly number[];
    readonly lateMs: number;
  }[];
  readonly ticks: {
    readonly committed: number;
    readonly lost: number;
    readonly claimed: number;
    readonly skipped: Readonly<Partial<Record<SkipReason, number>>>;
  };
}

/** Bounds, in milliseconds, of the histogram from due to done; pinned against late_bounds_ms() in SQL by a test. */
export const lateBoundsMs = [
  50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000,
] as const;

/** The reads of the dashboard, the API and the CLI. Each is one round trip, read only and bounded in time. */
export interface Inspector {
  overview(): Promise<Overview>;
  /** At most 240 points; windows up to 7 days. */
  series(request: { readonly windowMs: number; readonly kind?: string; readonly queue?: string }): Promise<Series>;
  jobs(request: JobsRequest): Promise<Page<JobRow>>;
  job(id: JobId): Promise<JobDetail | null>;
  /** The whole payload as text. */
  payload(id: JobId): Promise<string | null>;
  /** How many match, to 10,000, and what a bulk action is frozen at: the highest id among them, of all jobs where more match. */
  count(filter: JobFilter): Promise<Count & { readonly upTo: JobId | null; readonly searched: number | null }>;
  /** Over the newest 10,000 dead letters. */
  deadGroups(): Promise<{
    readonly groups: readonly DeadGroup[];
    readonly searched: number;
    readonly cut: boolean;
    readonly now: string;
  }>;
  keys(request: {
    readonly halted?: boolean;
    readonly cursor?: string;
    readonly limit?: number;
  }): Promise<Page<KeyRow>>;
  queues(): Promise<readonly QueueRow[]>;
  kinds(): Promise<readonly KindRow[]>;
  triggers(): Promise<readonly TriggerRow[]>;
  ticks(request: TicksRequest): Promise<Page<TickRow>>;
  invocation(id: string): Promise<InvocationDetail | null>;
  holders(): Promise<Holders>;
  metrics(): Promise<MetricsView>;
}

/** Who acts, as it is written into the job's record: `api`, `dashboard`, `cli`. Never a secret. */
export type Actor = string;

export type BulkVerb = "retry" | "discard" | "cancel";

export interface BulkAnswer {
  /** Jobs changed by this call. */
  readonly changed: number;
  /** Looked at and left alone: they had changed meanwhile, or were locked. */
  readonly left: number;
  /** Whether more match; call again with the same filter and `upTo`, and this cursor. */
  readonly more: boolean;
  readonly cursor: string | null;
}

/** The changes a person makes. Each in a short transaction of its own, and written into the job's record with its actor. */
export interface Operator {
  retry(id: JobId, by: Actor): Promise<OperateAnswer>;
  discard(id: JobId, by: Actor): Promise<OperateAnswer>;
  skip(id: JobId, by: Actor): Promise<OperateAnswer>;
  cancel(id: JobId, by: Actor): Promise<OperateAnswer>;
  /** Of a job that waits: when it is due. `runAt` is ISO 8601. */
  reschedule(id: JobId, runAt: string, by: Actor): Promise<OperateAnswer>;
  /**
   * One slice of at most 1,000 jobs, one commit. Only jobs up to `upTo`, so that what dies later is not swept in. `retry`
   * and `discard` take dead letters, `cancel` what waits.
   */
  bulk(request: {
    readonly verb: BulkVerb;
    readonly filter: JobFilter;
    readonly upTo: JobId;
    readonly cursor?: string;
    /** Spreads the retries over so many milliseconds. */
    readonly spreadMs?: number;
    readonly limit?: number;
    readonly by: Actor;
  }): Promise<BulkAnswer>;
  /** Enqueues what the schedule would, now; its own occurrences stay. */
  runSchedule(
    name: string,
    by: Actor,
  ): Promise<{ readonly type: "enqueued"; readonly job: Enqueued } | { readonly type: "not-found" }>;
  /** Ends the transaction of a backend that still holds one of our locks and still has this transaction start. */
  terminate(request: {
    readonly pid: number;
    readonly transactionStart: string;
    readonly by: Actor;
  }): Promise<"terminated" | "gone">;
}

export type OperateAnswer =
  | {
      readonly type:
        | "retried"
        | "discarded"
        | "skipped"
        | "cancelled"
        | "requested"
        | "rescheduled"
        | "busy"
        | "not-found";
    }
  /** `retry`, `discard`, `skip`: it is no dead letter. `cancel`: it has ended. `reschedule`: it does not wait. */
  | { readonly type: "not-dead" | "not-waiting"; readonly state: string };
