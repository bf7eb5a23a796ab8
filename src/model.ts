// The nouns, as types. No behaviour.

/** A job's id: a 64-bit integer as text, because a JavaScript number cannot hold it. */
export type JobId = string;

/** What woke an invocation. */
export type Trigger =
  | { readonly type: "cron"; readonly cron: string; readonly scheduledAt: Date | null }
  | { readonly type: "http"; readonly by: string }
  | { readonly type: "manual" };

/** A job whose locks this tick holds; `attempt` is the number its fence asks for, counted from 1. */
export interface Claim {
  readonly jobId: JobId;
  readonly attempt: number;
  readonly kind: string;
  /** Jobs of this tick that must have ended before it starts: they share a name with it. */
  readonly after: readonly JobId[];
  /** The job before it in its ordering key, which must have ended done. */
  readonly behind: JobId | null;
  /** Its deadline has passed: it is not started, it becomes a dead letter. */
  readonly missed: boolean;
  /** Its slack is below its timeout. */
  readonly atRisk: boolean;
}

/** Why a candidate was left alone. */
export type SkipReason =
  | "busy" // another transaction holds its lock
  | "stale" // finished or moved between the scan and the lock
  | "open-attempt" // its last holder died; the next wake closes that attempt
  | "unknown-kind" // no definition of this kind in this deployment
  | "newer-revision" // enqueued under a newer deployment's policy
  | "unfit" // its timeout does not fit the time that is left
  | "alone" // of a kind that runs in a tick of its own
  | "limit-full" // every slot of a limit is taken
  | "behind" // another job of its ordering key stands before it
  | "reserved" // an older job has reserved one of its names
  | "cancelled" // its cancel was asked for while it ran; the next wake takes it out
  | "tick-slots"; // as many ticks run as the installation allows

export interface Skip {
  readonly jobId: JobId;
  readonly kind: string;
  readonly reason: SkipReason;
  /** The busy name, for `busy`, `limit-full` and `reserved`. */
  readonly lock?: string;
}

/** A job on record as started by this tick, with what its handler needs. */
export interface Grant {
  readonly jobId: JobId;
  readonly attempt: number;
  readonly kind: string;
  /** The stored payload as JSON text; parsed job by job, so that one bad payload fails one job. */
  readonly payload: string;
  readonly idempotencyKey: string;
  readonly runAt: Date;
  readonly enqueuedAt: Date;
  readonly failures: number;
  readonly deadlineAt: Date | null;
  /** W3C traceparent of whoever enqueued it. */
  readonly trace: string | null;
}

/** A job as it goes to the database: validated, its payload proven to be JSON. */
export interface JobRequest {
  readonly kind: string;
  readonly payload: unknown;
  /** Instant in UTC, ISO 8601. */
  readonly runAt?: string;
  readonly delayMs?: number;
  /** Instant in UTC, ISO 8601. */
  readonly deadlineAt?: string;
  readonly priority?: number;
  /** W3C traceparent. */
  readonly trace?: string;
  /** What enqueues it: `api`, `cli`, `dashboard`, `schedule <name>`, `job <id>`; at most 200 characters. */
  readonly source?: string;
}

/** How an attempt ended, as `run` saw it. */
export type Outcome =
  | { readonly type: "done"; readonly enqueue: readonly JobRequest[] }
  | { readonly type: "failed"; readonly error: string; readonly code: string; readonly inMs: number | null }
  | { readonly type: "dead"; readonly error: string }
  | {
      readonly type: "snoozed";
      readonly inMs: number | null;
      readonly at: string | null;
      readonly enqueue: readonly JobRequest[];
    }
  | { readonly type: "released"; readonly why: "budget" | "burned" | "behind" }
  | { readonly type: "cancelled" }
  | { readonly type: "missed" };

/** Where a job stands. `running` is derived from the lock table, the row never says it. */
export type JobState = "scheduled" | "ready" | "blocked" | "running" | "dead" | "done" | "discarded" | "cancelled";

/** What became of one job of a tick. */
export interface JobResult {
  readonly jobId: JobId;
  readonly kind: string;
  readonly attempt: number;
  readonly result:
    | "done"
    | "retried"
    | "dead"
    | "snoozed"
    | "released"
    | "interrupted"
    | "unsettled"
    | "refused"
    | "cancelled"
    | "missed";
  /** Code of the error of a failed attempt. */
  readonly code?: string;
  /** When a retried or snoozed job is due again, ISO 8601. */
  readonly dueAt?: string;
  readonly runMs?: number;
}

/** How a tick ended. `unknown` only while the database cannot be asked. */
export type TickFate = "committed" | "lost" | "unknown" | "empty" | "refused";

/** What one tick did. Lengths in integer milliseconds, ids as text. */
export interface TickReport {
  readonly tickId: string;
  readonly fate: TickFate;
  readonly quarantined: boolean;
  readonly claimed: number;
  readonly done: number;
  readonly retried: number;
  readonly dead: number;
  readonly cancelled: number;
  /** Jobs whose deadline had passed before they could start; dead letters now. */
  readonly missed: number;
  /** Jobs started with less slack to their deadline than their timeout. */
  readonly atRisk: number;
  readonly snoozed: number;
  /** Handed back untouched: the budget ended, or the fence's answer never came. */
  readonly released: number;
  /** Count of skips for each reason. */
  readonly skipped: Partial<Record<SkipReason, number>>;
  /** The skips by name, at most `maxSkips` of them. */
  readonly skips: readonly Skip[];
  readonly jobs: readonly JobResult[];
  /** Messages that waited for an answer, handlers' own queries not counted. */
  readonly roundTrips: { readonly session: number; readonly oneShot: number };
  /** Statements that handlers sent through `tx`. */
  readonly handlerQueries: number;
  readonly claimMs: number;
  readonly fenceMs: number;
  readonly runMs: number;
  readonly finishMs: number;
  readonly totalMs: number;
  readonly error?: ReportedError;
}

export interface ReportedError {
  readonly code: string;
  readonly message: string;
}

/** A schedule that was fired. */
export interface FiredSchedule {
  readonly schedule: string;
  /** Those it enqueued or, by a unique key, changed. */
  readonly jobs: readonly JobId[];
  /** Those that have the unique key of an occurrence, which was therefore not enqueued; maybe dead letters. */
  readonly duplicates: readonly JobId[];
}

/** What one invocation did; the answer of every trigger. */
export interface InvocationReport {
  readonly invocationId: string;
  readonly trigger: string;
  readonly startedAt: string;
  /** `empty`: nothing left. `busy`: this isolate runs a quarantined tick. `error`: see `error`. */
  readonly ended: "idle" | "empty" | "budget" | "max-ticks" | "busy" | "error";
  readonly claimed: number;
  readonly done: number;
  readonly retried: number;
  readonly dead: number;
  readonly cancelled: number;
  /** Jobs whose deadline had passed before they could start; dead letters now. */
  readonly missed: number;
  /** Jobs started with less slack to their deadline than their timeout. */
  readonly atRisk: number;
  readonly snoozed: number;
  readonly released: number;
  readonly skipped: Partial<Record<SkipReason, number>>;
  /** Attempts found whose holder had died. */
  readonly crashed: number;
  /** The number of this deployment in the database; null where the invocation did not get that far. */
  readonly revision: number | null;
  /**
   * A newer deployment that has changed a kind of this one, or changed or dropped a schedule, null without any. What it
   * enqueues is skipped here as `newer-revision`. Passes by itself during a deploy; after a rollback somebody with the run
   * role says so: `select pgclaim.use_revision_v1(<revision>)`.
   */
  readonly supersededBy: number | null;
  /** Schedules fired, see {@link FiredSchedule}. */
  readonly fired: readonly FiredSchedule[];
  readonly roundTrips: { readonly session: number; readonly oneShot: number };
  readonly wakeMs: number;
  readonly connectMs: number;
  readonly totalMs: number;
  readonly ticks: readonly TickReport[];
  /** Housekeeping steps that failed inside wake, by SQLSTATE. They never stop the work. */
  readonly faults: readonly { readonly step: string; readonly sqlstate: string }[];
  readonly error?: ReportedError;
}

/** One job as `inspect` and the API show it. */
export interface JobView {
  readonly id: JobId;
  readonly kind: string;
  readonly queue: string;
  readonly state: JobState;
  readonly attempt: number;
  readonly failures: number;
  readonly suspect: boolean;
  readonly runAt: string;
  readonly enqueuedAt: string;
  readonly finishedAt: string | null;
  readonly deadAt: string | null;
  readonly deadReason: "attempts" | "handler" | "crashed" | "missed" | null;
  readonly lastError: string | null;
  readonly payload: unknown;
  readonly orderingKey: string | null;
  /** Its place in the line of its key, drawn at COMMIT. */
  readonly place: string | null;
  readonly uniqueKey: string | null;
  readonly deadlineAt: string | null;
  /** Names it needs while it runs. */
  readonly locks: readonly string[] | null;
  readonly attempts: readonly AttemptView[];
}

/** A schedule as `inspect` shows it. */
export interface ScheduleView {
  readonly name: string;
  readonly cron: string;
  readonly timeZone: string;
  readonly kind: string;
  readonly catchUp: "all" | "last" | "none";
  readonly nextAt: Date;
  readonly lastAt: Date | null;
  readonly pausedAt: Date | null;
  /** SQLSTATE of the last firing, if it failed. */
  readonly fault: string | null;
}

export interface AttemptView {
  readonly n: number;
  readonly tick: string;
  readonly quarantined: boolean;
  readonly startedAt: string;
  readonly endedAt: string | null;
  readonly outcome: "done" | "failed" | "snoozed" | "released" | "interrupted" | "crashed" | "cancelled" | null;
  readonly error: string | null;
}

/** What `enqueue` answers. Only `enqueued` and `successor` are new jobs; `id` is the job that stands for the request. */
export interface Enqueued {
  /**
   * `duplicate`: another job has the unique key, nothing changed. `replaced`, `rescheduled`: that job was changed.
   * `successor`: that job runs right now, so this new one follows it.
   */
  readonly type: "enqueued" | "duplicate" | "replaced" | "rescheduled" | "successor";
  readonly id: JobId;
}

/** What operator verbs answer. */
export type OperatorAnswer =
  | { readonly type: "retried" }
  | { readonly type: "discarded" }
  | { readonly type: "skipped" }
  | { readonly type: "cancelled" }
  /** The job runs; its handler's signal aborts within seconds. */
  | { readonly type: "requested" }
  | { readonly type: "busy" }
  | { readonly type: "not-found" }
  | { readonly type: "not-dead"; readonly state: string };
