// The promises this demo can check, each with the evidence it found. What could not be checked says so, and counts as
// failed.

import type { Call } from "./authority.ts";
import type { Sent } from "./input.ts";
import { duration, plural } from "./paper.ts";
import type { InvocationLine, Stage } from "./stage.ts";
import type { Held, Ledger, Recovery } from "./watch.ts";

export type Verdict = {
  readonly promise: string;
  /** null: could not be checked. */
  readonly ok: boolean | null;
  readonly evidence: string;
};

export type Findings = {
  readonly sent: Sent;
  readonly held: Held;
  readonly locksGoneMs: number;
  /** Exactly the killed process's invocations ended without an answer. */
  readonly onlyVictimDied: boolean;
  readonly recoveries: readonly Recovery[];
  readonly ledger: Ledger;
  readonly calls: readonly Call[];
  readonly locksLeft: number;
  readonly sessionsLeft: number;
  readonly stage: Stage;
};

export function verdicts(found: Findings): Verdict[] {
  const { sent, held, ledger, recoveries, calls, stage } = found;
  const jobs = sent.jobIds.length;
  const committed = stage.lines.flatMap(({ ticks }) => ticks).filter(({ fate }) => fate === "committed");
  const odd = committed.filter((tick) => !fitsRoundTrips(tick));
  const inCrash = new Set(held.attempts.map(({ jobId }) => jobId));
  const recovered = recoveries.filter(({ jobId, done, afterMs }) => inCrash.has(jobId) && done && afterMs !== null);
  const keys = new Set(calls.map(({ key }) => key));
  const tokens = new Set(calls.map(({ fencingToken }) => fencingToken));
  const callers = new Set(calls.map(({ fencingToken }) => fencingToken.split("/")[0]));
  return [
    {
      promise: "No job is lost: each one that was enqueued is done",
      ok: ledger.done === jobs && ledger.left === 0 && sent.surprises.length === 0,
      evidence: `${jobs} enqueued, ${ledger.done} done`,
    },
    {
      promise: "Effects in the database and a job's completion commit together, exactly once",
      ok:
        ledger.activity === sent.events &&
        ledger.activityDeliveries === sent.events &&
        ledger.receipts === sent.enqueued &&
        ledger.receiptJobs === ledger.reportJobsDone &&
        ledger.receipts === ledger.reportJobsDone,
      evidence: `${ledger.activity} activity rows of ${sent.events}, ${ledger.receipts} receipts of ${sent.enqueued}`,
    },
    {
      promise: "Two invocations never hold one job",
      ok: ledger.attempts < jobs ? null : ledger.overlaps === 0 && overlapping(calls) === 0,
      evidence: `${plural(ledger.attempts, "attempt")}, ${ledger.overlaps} overlap; ${overlapping(calls)} at the authority`,
    },
    {
      promise: "A dead invocation's locks go with it: no lease",
      ok: held.attempts.length === 0 ? null : Number.isFinite(found.locksGoneMs),
      evidence: Number.isFinite(found.locksGoneMs)
        ? `${plural(held.locks, "lock")} gone after ${duration(found.locksGoneMs)}`
        : `${plural(held.locks, "lock")} still held`,
    },
    {
      promise: "Its jobs are claimed again and done",
      ok: held.attempts.length === 0 ? null : recovered.length === held.attempts.length,
      evidence: `${recovered.length} of ${held.attempts.length}`,
    },
    {
      promise: "A crash is noticed and counted, job by job, and nobody else is charged for it",
      ok:
        held.attempts.length === 0
          ? null
          : ledger.crashed === held.attempts.length && ledger.dead === 0 && found.onlyVictimDied,
      evidence: `${plural(ledger.crashed, "crashed attempt")} found, ${plural(ledger.dead, "dead letter")}`,
    },
    {
      promise: "While handlers call out, their transaction has no xid and no snapshot",
      ok: held.transactions === 0 ? null : held.withXidOrSnapshot === 0,
      evidence: `${held.withXidOrSnapshot} of ${plural(held.transactions, "transaction")} had one`,
    },
    {
      promise: "A job keeps its idempotency key on every attempt; a fencing token never comes twice",
      // Nothing is shown where no job has called twice.
      ok: calls.length === callers.size ? null : keys.size === callers.size && tokens.size === calls.length,
      evidence: `${plural(calls.length, "call")} of ${plural(callers.size, "job")}: ${plural(keys.size, "key")}, ${plural(tokens.size, "token")}`,
    },
    {
      promise: "A tick costs 2 round trips and 1 one-shot, and k turns k + 1 more, whatever the batch",
      ok: committed.length === 0 ? null : odd.length === 0,
      evidence: `${committed.length - odd.length} of ${plural(committed.length, "tick")}, up to ${Math.max(0, ...committed.map(({ claimed }) => claimed))} jobs`,
    },
    {
      promise: "A webhook is stored once, with its job; a forged one not at all",
      ok: sent.duplicates === sent.redelivered && sent.refused === sent.forged && ledger.events === sent.events,
      evidence: `${sent.duplicates} of ${sent.redelivered} redeliveries known, ${sent.refused} of ${sent.forged} forged refused`,
    },
    {
      promise: "Nothing stays behind: no lock, no open attempt, no connection",
      ok: found.locksLeft === 0 && ledger.openAttempts === 0 && found.sessionsLeft === 0,
      evidence: `${plural(found.locksLeft, "lock")}, ${ledger.openAttempts} open, ${plural(found.sessionsLeft, "connection")}`,
    },
  ];
}

/** Here every job that ends done has used `tx`, and one that is retried has failed before it did: turns are what is done. */
function fitsRoundTrips({ done, roundTrips }: InvocationLine["ticks"][number]): boolean {
  return roundTrips.session === 2 + (done === 0 ? 0 : done + 1) && roundTrips.oneShot === 1;
}

/** Calls with one key that were under way at the same time. */
function overlapping(calls: readonly Call[]): number {
  return calls.filter((call) =>
    calls.some(
      (other) =>
        other !== call &&
        other.key === call.key &&
        other.arrivedAt <= call.arrivedAt &&
        (other.endedAt === null || other.endedAt > call.arrivedAt),
    ),
  ).length;
}
