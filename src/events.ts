// What happens, told to whoever listens. Types only. At most once: a process that dies tells nothing more, so an effect that
// must happen belongs into a job and not behind an event.

import type { InvocationReport, JobId, SkipReason, TickFate } from "./model.ts";

/** The job an event is about. */
interface OfJob {
  readonly invocationId: string;
  readonly tickId: string;
  readonly jobId: JobId;
  readonly kind: string;
  readonly attempt: number;
}

/** How long its handler ran, in milliseconds, waiting for its turn not counted; null where it never started. */
interface Ran {
  readonly ms: number | null;
}

/**
 * Everything `onEvent` can get; more types may come. A job's end is told when its tick's fate is known, so `job.done` is
 * committed. No event carries a payload, a key or an error's text: `code` says what went wrong, and the job itself the rest.
 */
export type PgclaimEvent =
  | { readonly type: "invocation.started"; readonly invocationId: string; readonly trigger: string }
  | {
      readonly type: "invocation.ended";
      readonly invocationId: string;
      readonly trigger: string;
      readonly ended: InvocationReport["ended"];
      readonly ticks: number;
      readonly claimed: number;
      readonly done: number;
      readonly ms: number;
      readonly code: string | null;
    }
  /** Attempts whose holder died, found by this wake. The database tells how many; their jobs run again under new numbers. */
  | { readonly type: "jobs.crashed"; readonly invocationId: string; readonly count: number }
  | {
      readonly type: "schedule.fired";
      readonly invocationId: string;
      readonly schedule: string;
      readonly jobs: readonly JobId[];
      /** Jobs that a unique key kept out, by the job that has it. */
      readonly duplicates: readonly JobId[];
    }
  | {
      readonly type: "tick.ended";
      readonly invocationId: string;
      readonly tickId: string;
      readonly fate: TickFate;
      readonly quarantined: boolean;
      readonly claimed: number;
      readonly skipped: Readonly<Partial<Record<SkipReason, number>>>;
      readonly ms: number;
      readonly code: string | null;
    }
  /** Its handler is about to be called. `lateMs`: how long it was due, by this process's clock. */
  | (OfJob & { readonly type: "job.started"; readonly lateMs: number })
  | (OfJob & Ran & { readonly type: "job.done" })
  /** An attempt failed; the next one is due at `dueAt`, ISO 8601. */
  | (OfJob & Ran & { readonly type: "job.failed"; readonly code: string | null; readonly dueAt: string | null })
  /** A dead letter. `code` is null where the handler asked for it. */
  | (OfJob & Ran & { readonly type: "job.dead"; readonly code: string | null })
  | (OfJob & Ran & { readonly type: "job.snoozed"; readonly dueAt: string | null })
  | (OfJob & Ran & { readonly type: "job.cancelled" })
  /** A dead letter: its deadline had passed before it could start. */
  | (OfJob & { readonly type: "job.missed" })
  /** Handed back: the budget ended, a job before it in its key did not end done, or nobody knows what the fence wrote. */
  | (OfJob & Ran & { readonly type: "job.released" })
  /** Its tick is lost, through no fault of its own: it runs again. */
  | (OfJob & Ran & { readonly type: "job.interrupted" })
  /** Its tick is lost or unknown; the next wake finds out what becomes of it. */
  | (OfJob & Ran & { readonly type: "job.unsettled" })
  /** A dead letter that halts its ordering key, as this deployment defines the kind. Comes behind its `job.dead` or `job.missed`. */
  | (OfJob & { readonly type: "key.halted" })
  /** Claimed, and the fence did not grant it: somebody else has put this attempt on record. */
  | (OfJob & { readonly type: "fence.refused" });

/**
 * Told of each event, in order, in the middle of the work: it must be quick. What it answers is not waited for, and what it
 * throws costs a log line and nothing else.
 */
export type OnEvent = (event: PgclaimEvent) => void;
