// The promises this demo can check, each with the evidence it found. What could not be checked says so, and counts as
// failed.

import { overlapping, overtaking, slack } from "./audit.ts";
import type { Call } from "./authority.ts";
import type { Sent } from "./input.ts";
import { duration, plural } from "./paper.ts";
import type { InvocationLine, Stage } from "./stage.ts";
import type { Followers, Held, Ledger, Recovery, Reported } from "./watch.ts";

/** What "report.transaction" says its deadline is. */
const WINDOW_MS = 15 * 60_000;

/** More than lies between two readings of the database's clock in one enqueue. */
const MOMENT_MS = 5_000;

/** How often a tick asks whether one of its jobs is to be cancelled: `limits.cancelPoll`. */
const CANCEL_POLL_MS = 2_000;

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
  readonly followers: Followers;
  readonly reported: readonly Reported[];
  readonly calls: readonly Call[];
  readonly locksLeft: number;
  readonly sessionsLeft: number;
  readonly stage: Stage;
};

export function verdicts(found: Findings): Verdict[] {
  return [...ofJobs(found), ...ofReports(found), ...ofTicks(found)];
}

function ofJobs(found: Findings): Verdict[] {
  const { sent, held, ledger, recoveries, calls } = found;
  const jobs = sent.jobIds.length;
  const together = overlapping(calls, ({ key }) => key).length;
  const inCrash = new Set(held.attempts.map(({ jobId }) => jobId));
  const recovered = recoveries.filter(({ jobId, done, afterMs }) => inCrash.has(jobId) && done && afterMs !== null);
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
      ok: ledger.attempts < jobs ? null : ledger.overlaps === 0 && together === 0,
      evidence: `${plural(ledger.attempts, "attempt")}, ${ledger.overlaps} overlap; ${together} at the authority`,
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
  ];
}

/** What the authority and the database say of the reports. */
function ofReports({ sent, held, ledger, reported, calls }: Findings): Verdict[] {
  const { transactions } = sent;
  const accounts = Map.groupBy(transactions, ({ account }) => account);
  const heldReports = held.attempts.filter(({ orderingKey }) => orderingKey !== null).length;
  const forGood = new Set(reported.map(({ token }) => token));
  const overtook = overtaking(calls, transactions, ({ fencingToken }) => forGood.has(fencingToken)).length;
  const receipts = Map.groupBy(reported, ({ account }) => account);
  const inOrder = [...accounts].filter(([account, posted]) => {
    const theirs = receipts.get(account) ?? [];
    return theirs.length === posted.length && theirs.every((one, i) => one.transactionId === posted[i]?.transactionId);
  }).length;
  const together = overlapping(calls, ({ account }) => account).length;
  const keys = new Set(calls.map(({ key }) => key));
  const tokens = new Set(calls.map(({ fencingToken }) => fencingToken));
  const callers = new Set(calls.map(({ fencingToken }) => fencingToken.split("/")[0]));
  const names = new Set(calls.map(({ transactionId }) => transactionId));
  const windowed = reported.filter(({ windowMs: ms }) => ms !== null && Math.abs(ms - WINDOW_MS) < MOMENT_MS).length;
  const left = slack(calls, transactions, WINDOW_MS);
  const inside = left.filter((ms) => ms >= 0);
  return [
    {
      promise: "An account's reports arrive in the order in which its transactions came in, over failures and a crash",
      // Over a crash it is shown only if jobs with an ordering key were among what was killed.
      ok: overtook > 0 || inOrder < accounts.size ? false : heldReports === 0 ? null : true,
      evidence: `${overtook} of ${plural(calls.length, "call")} overtook one; receipts in order in ${inOrder} of ${plural(accounts.size, "account")}`,
    },
    {
      promise: "Never two reports of one account at the same time",
      ok: calls.length < transactions.length ? null : together === 0,
      evidence: `${together} of ${plural(calls.length, "call")}`,
    },
    {
      promise:
        "A transaction that is in already is a duplicate, with the first one's job: one job, one key, one report",
      ok:
        sent.known === sent.again &&
        sent.enqueued === transactions.length &&
        names.size === transactions.length &&
        keys.size === transactions.length &&
        ledger.receipts === transactions.length,
      evidence: `${sent.known} of ${sent.again} known; ${plural(keys.size, "key")}, ${plural(ledger.receipts, "receipt")} for ${transactions.length}`,
    },
    {
      promise: "Each report arrives inside its window of 15 minutes",
      ok: windowed === transactions.length && inside.length === transactions.length,
      evidence: `${inside.length} of ${transactions.length}, with ${(Math.min(...inside) / 60_000).toFixed(1)} min left at least; ${windowed} had that deadline`,
    },
    {
      promise: "A job keeps its idempotency key on every attempt; a fencing token never comes twice",
      // Nothing is shown where no job has called twice.
      ok: calls.length === callers.size ? null : keys.size === callers.size && tokens.size === calls.length,
      evidence: `${plural(calls.length, "call")} of ${plural(callers.size, "job")}: ${plural(keys.size, "key")}, ${plural(tokens.size, "token")}`,
    },
  ];
}

function ofTicks(found: Findings): Verdict[] {
  const { sent, held, ledger, followers, calls, stage } = found;
  const committed = stage.lines.flatMap(({ ticks }) => ticks).filter(({ fate }) => fate === "committed");
  const odd = committed.filter((tick) => !fitsRoundTrips(tick, followers));
  const looks = Map.groupBy(calls, ({ fencingToken: token }) => (followers.tokens.has(token) ? "behind" : "first"));
  const seen = (group: "behind" | "first") =>
    (looks.get(group) ?? []).flatMap(({ fencingToken }) => stage.visibleAtCall.get(fencingToken) ?? []);
  const visible = (group: "behind" | "first") => seen(group).filter((it) => it).length;
  return [
    {
      // Those behind call out after the first write, and README says so: how many is told, not promised.
      promise:
        "While handlers call out, their transaction has no xid and no snapshot, save for jobs behind another of their key",
      ok:
        held.transactions === 0 || seen("first").length === 0 ? null : held.withXidOrSnapshot + visible("first") === 0,
      evidence: `${visible("first")} of ${plural(seen("first").length, "call")}; behind another ${visible("behind")} of ${seen("behind").length}`,
    },
    {
      promise:
        "A tick costs 2 round trips, k turns k + 1 more, a job behind another of its key 1 at most; 1 one-shot, and 1 at most for each 2 s of handlers",
      ok: committed.length === 0 ? null : odd.length === 0,
      evidence: `${committed.length - odd.length} of ${plural(committed.length, "tick")}, up to ${Math.max(0, ...committed.map(({ claimed }) => claimed))} jobs${odd.slice(0, 1).map(({ done, runMs, roundTrips }) => `; ${roundTrips.session} and ${roundTrips.oneShot} for ${done} done in ${duration(runMs)}`)}`,
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

/**
 * Here every job that ends done has used `tx`, and one that is retried has failed before it did: turns are what is done.
 *
 * The end of a turn opens the next one in the same message, unless a job that stood behind is free to start now: that one
 * calls out first, and the next turn is opened by a message of its own. So a job behind that ends done costs one more. One
 * that fails, or is handed back because its timeout does not fit any more, does so only if somebody else's turn comes next.
 */
function fitsRoundTrips(
  { tickId, done, runMs, roundTrips }: InvocationLine["ticks"][number],
  { ticks }: Followers,
): boolean {
  const behind = ticks.get(tickId) ?? { done: 0, free: 0 };
  const turns = done === 0 ? 0 : done + 1;
  return (
    roundTrips.session >= 2 + turns + behind.done &&
    roundTrips.session <= 2 + turns + behind.free &&
    roundTrips.oneShot >= 1 &&
    roundTrips.oneShot <= 1 + Math.floor(runMs / CANCEL_POLL_MS)
  );
}
