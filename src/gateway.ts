// The verbs the engine may ask of Postgres. An interface; postgres.ts speaks the SQL behind it.
// "One-shot" is a single short transaction beside the session; "session" is the claiming connection.

import type { KindPolicy, QueryResult } from "./define.ts";
import type {
  Claim,
  Enqueued,
  Grant,
  JobId,
  JobRequest,
  JobView,
  OperatorAnswer,
  ScheduleView,
  Skip,
  SkipReason,
  TickReport,
  Trigger,
} from "./model.ts";
import type { Firing, ScheduleRow } from "./schedule.ts";

export interface WakeAnswer {
  /** The number of this deployment's kinds, null while the database does not know their digest. */
  readonly revision: number | null;
  /** A newer deployment that has changed a kind or schedule of this one, null without any. */
  readonly supersededBy: number | null;
  readonly ready: boolean;
  readonly suspects: boolean;
  readonly crashed: number;
  /** Schedules of ours that are due, with their next occurrence; of a fresh one, when it was registered or resumed. */
  readonly schedules: readonly {
    readonly name: string;
    readonly definition: string;
    readonly nextAt: string;
    readonly fresh: boolean;
  }[];
  /** The database's clock. */
  readonly now: string;
  readonly faults: readonly { readonly step: string; readonly sqlstate: string }[];
}

/** A number sent to the fence. */
export interface Numbered {
  readonly jobId: JobId;
  readonly attempt: number;
}

export interface ClaimRequest {
  readonly tickId: string;
  readonly queues: readonly string[];
  readonly kinds: readonly string[];
  readonly unfit: readonly string[];
  readonly revision: number;
  readonly batch: number;
  readonly quarantined: boolean;
  /** Ticks at once in this installation, null for no limit. */
  readonly tickSlots: number | null;
  /** How long this tick's transaction may live from now on; the server ends it a grace period later. */
  readonly hardMs: number;
}

export interface ClaimAnswer {
  readonly claims: readonly Claim[];
  readonly skips: readonly Skip[];
  readonly skipped: Partial<Record<SkipReason, number>>;
  /** Jobs that have waited too long for their names; they should reserve them now. */
  readonly starved: readonly JobId[];
  /** The backend that holds the locks, to cancel its query through a one-shot. */
  readonly backendPid: number;
}

/** One job's line in finish. */
export interface FinishJob extends Numbered {
  readonly outcome: "done" | "failed" | "dead" | "snoozed" | "released" | "cancelled" | "missed";
  readonly error?: string;
  readonly inMs?: number;
  readonly at?: string;
  readonly enqueue?: readonly JobRequest[];
}

export interface FinishRow {
  readonly jobId: JobId;
  readonly state: "ready" | "scheduled" | "blocked" | "dead" | "cancelled";
  readonly dueAt: Date;
  readonly error: string | null;
}

/** What a tick's row keeps of it, written by finish or settle before its fate is known. Counts and names, never payloads. */
export interface TickFacts
  extends Pick<
    TickReport,
    "quarantined" | "claimed" | "skipped" | "claimMs" | "fenceMs" | "runMs" | "totalMs" | "roundTrips"
  > {
  /** What woke its invocation. */
  readonly trigger: string;
  /** Ordinal in its invocation, from 1. */
  readonly n: number;
  /** ISO 8601, by the clock of the invocation. */
  readonly startedAt: string;
  /** Of its invocation. */
  readonly wakeMs: number;
  readonly connectMs: number;
  /** The first 25 of them. */
  readonly skips: readonly Skip[];
}

export interface FinishRequest {
  readonly tickId: string;
  readonly invocationId: string;
  readonly report: Partial<TickFacts>;
  readonly jobs: readonly FinishJob[];
}

export interface SettleRequest {
  readonly tickId: string;
  readonly invocationId: string;
  readonly report: Partial<TickFacts>;
  readonly jobs: readonly Numbered[];
  /** Whether attempts become interrupted; not when finish failed on its own account. */
  readonly mark: boolean;
  /** The job that held the turn when the session went. */
  readonly turn: JobId | null;
  readonly quarantined: boolean;
}

export type EnqueueAnswer =
  | { readonly type: "enqueued"; readonly jobs: readonly Enqueued[] }
  | { readonly type: "refused"; readonly i: number; readonly reason: string; readonly detail: string };

/** `conflict`: the key was used with another digest. `busy`: the first call with it has not ended within two seconds. */
export type EnqueueOnceAnswer = EnqueueAnswer | { readonly type: "conflict" } | { readonly type: "busy" };

/** What a deployment registers under its digest. */
export interface Deployment {
  readonly kinds: readonly KindPolicy[];
  /** All of its schedules; null where it was given none, which leaves those of others alone. */
  readonly schedules: readonly ScheduleRow[] | null;
  /** The queues it serves. Schedules of their kinds that it does not have are removed. */
  readonly queues: readonly string[];
  /** Limits of whole queues. */
  readonly queueMax: Readonly<Record<string, number>>;
}

/** A connection the caller owns; the job commits with whatever the caller does on it. */
export interface CallerClient {
  // biome-ignore lint/suspicious/noExplicitAny: drivers disagree about this signature, only its first form is used
  query(text: string, values?: any[]): Promise<{ rows: unknown[] }>;
}

/** The claiming connection: one client, one transaction at a time. */
export interface Session {
  /** Aborts when the session is gone, with the error as its reason. */
  readonly lost: AbortSignal;
  /** Our messages that waited for an answer, so far. */
  readonly roundTrips: number;
  /** Statements of handlers, so far. */
  readonly handlerQueries: number;
  /** Opens the connection. Errors: PGCLAIM_CONNECT_FAILED, PGCLAIM_AUTHENTICATION_FAILED. */
  connect(): Promise<void>;
  /** BEGIN, the transaction's limits and claim, in one message. */
  claim(request: ClaimRequest): Promise<ClaimAnswer>;
  /** Ends a transaction in which nothing was fenced. */
  rollback(): Promise<void>;
  /** Opens a handler's turn under its own savepoint. */
  beginTurn(timeLeftMs: number): Promise<void>;
  /** One statement of the handler whose turn it is, extended protocol. */
  query<Row>(text: string, values: readonly unknown[]): Promise<QueryResult<Row>>;
  /** Checks and keeps the turn's effects; with `next` it opens the next turn in the same message. */
  endTurn(turn: { readonly enqueue: readonly JobRequest[]; readonly next: number | null }): Promise<void>;
  /** Undoes the turn's effects; with `next` it opens the next turn in the same message. */
  failTurn(turn: { readonly next: number | null }): Promise<void>;
  /** The outcomes of the whole tick and COMMIT, in one message. Errors: the driver's own. */
  finish(request: FinishRequest): Promise<readonly FinishRow[]>;
  /** Closes within its limit, then hard. Never rejects. */
  close(): Promise<void>;
}

/** A due schedule with what it has to do, as compare-and-set on its next occurrence and its definition. */
export interface FireRequest extends Firing {
  readonly name: string;
  readonly definition: string;
  /** As wake gave it. */
  readonly nextAt: string;
}

export interface FireAnswer {
  /** Without those that somebody else fired meanwhile. Jobs that are new or were changed by it, and those that kept one out. */
  readonly fired: readonly {
    readonly name: string;
    readonly jobs: readonly JobId[];
    readonly duplicates: readonly JobId[];
  }[];
  readonly faults: readonly { readonly name: string; readonly sqlstate: string }[];
  /** Whether anything is due in these queues now. */
  readonly ready: boolean;
}

export interface Gateway {
  wake(request: {
    readonly digest: string;
    readonly queues: readonly string[];
    /** Definitions of the schedules we have; others are not ours to fire. */
    readonly schedules: readonly string[];
    readonly historyMs: number | null;
    /** What woke us, to be recorded; without it nothing is. */
    readonly trigger?: { readonly name: string; readonly type: Trigger["type"] };
  }): Promise<WakeAnswer>;
  register(request: Deployment & { readonly digest: string }): Promise<number>;
  /** Fires schedules that nobody has fired meanwhile. */
  fire(request: {
    readonly queues: readonly string[];
    readonly schedules: readonly FireRequest[];
  }): Promise<FireAnswer>;
  session(): Session;
  fence(request: {
    readonly tickId: string;
    readonly quarantined: boolean;
    readonly jobs: readonly Numbered[];
  }): Promise<readonly Grant[]>;
  settle(request: SettleRequest): Promise<"committed" | "lost">;
  /** Reserves the names of jobs a claim was refused, so that others let them pass. */
  reserve(jobs: readonly JobId[]): Promise<void>;
  /** Which of these running jobs somebody wants cancelled. */
  cancelled(jobs: readonly JobId[]): Promise<readonly JobId[]>;
  cancelQuery(request: { readonly pid: number; readonly kind: string; readonly jobId: JobId }): Promise<boolean>;
  /** All or none; in the caller's transaction when `client` is given, else in a one-shot. */
  enqueue(requests: readonly JobRequest[], client?: CallerClient): Promise<EnqueueAnswer>;
  /** All or none, once for each key of this database role: whoever asks again is answered the same. A refusal keeps no key. */
  enqueueOnce(request: {
    readonly key: string;
    readonly digest: string;
    readonly jobs: readonly JobRequest[];
  }): Promise<EnqueueOnceAnswer>;
  job(id: JobId): Promise<JobView | null>;
  retry(id: JobId): Promise<OperatorAnswer>;
  discard(id: JobId): Promise<OperatorAnswer>;
  skip(id: JobId): Promise<OperatorAnswer>;
  cancel(id: JobId): Promise<OperatorAnswer>;
  /** Whether that changed anything. */
  pauseQueue(name: string): Promise<boolean>;
  resumeQueue(name: string): Promise<boolean>;
  schedules(): Promise<readonly ScheduleView[]>;
  pauseSchedule(name: string): Promise<boolean>;
  resumeSchedule(name: string): Promise<boolean>;
}
