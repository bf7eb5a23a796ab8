// report: what happened -> TickReport, InvocationReport and one structured log line. Counts and names, never payloads.

import { describeError, PgclaimError, withoutConnectionStrings } from "./errors.ts";
import type { ClaimAnswer, FinishRow, TickFacts } from "./gateway.ts";
import { counts } from "./limits.ts";
import type {
  Claim,
  FiredSchedule,
  InvocationReport,
  JobId,
  JobResult,
  Outcome,
  ReportedError,
  SkipReason,
  TickFate,
  TickReport,
  Trigger,
} from "./model.ts";
import { storableText } from "./storable.ts";

/** Where log lines go: one object each, ready for JSON. */
export type Log = (entry: LogEntry) => void;

export interface LogEntry {
  readonly level: "debug" | "info" | "warn" | "error";
  readonly event: string;
  readonly [fact: string]: unknown;
}

/** From the most talkative to none at all. `debug`: a line for each event, see `PgclaimEvent`. */
export const logLevels = ["debug", "info", "warn", "error", "silent"] as const;
export type LogLevel = (typeof logLevels)[number];

/** The default log: one line of JSON on the console. No connection string gets there, whoever put it into a line. */
export const consoleLog: Log = (entry) => {
  const line = JSON.stringify(entry, (_, value: unknown) =>
    typeof value === "string" ? withoutConnectionStrings(value) : value,
  );
  if (entry.level === "error") console.error(line);
  else if (entry.level === "warn") console.warn(line);
  else if (entry.level === "debug") console.debug(line);
  else console.log(line);
};

/** The same log from a level on, and a line that cannot be written (a fact that is no JSON, a log that is broken) costs that line only. */
export function guardedLog(log: Log, level: LogLevel = "info"): Log {
  const least = logLevels.indexOf(level);
  return (entry) => {
    if (logLevels.indexOf(entry.level) < least) return;
    try {
      log(entry);
    } catch (error) {
      try {
        log({
          level: "error",
          event: "pgclaim.log",
          message: `A line "${entry.event}" is lost: ${describeError(error)}`,
        });
      } catch {
        // There is nowhere left to say it.
      }
    }
  };
}

/** What a tick has measured so far; the report is made of it at the end. */
export interface TickNotes {
  readonly tickId: string;
  readonly quarantined: boolean;
  claim: ClaimAnswer | null;
  outcomes: ReadonlyMap<JobId, Outcome>;
  runMs: ReadonlyMap<JobId, number>;
  rows: readonly FinishRow[];
  /** The job that held the turn when the session went. */
  turn: JobId | null;
  /** Whether settle marked the attempts interrupted. */
  marked: boolean;
  oneShots: number;
  claimMs: number;
  fenceMs: number;
  handlersMs: number;
  finishMs: number;
}

/** The facts of a tick known before its fate is: what finish and settle store in the tick's row. */
export function tickFacts(
  notes: TickNotes,
  soFar: Pick<TickFacts, "trigger" | "n" | "startedAt" | "wakeMs" | "connectMs" | "roundTrips" | "totalMs">,
): TickFacts {
  return {
    ...soFar,
    skips: (notes.claim?.skips ?? []).slice(0, counts.storedSkips),
    quarantined: notes.quarantined,
    claimed: notes.claim?.claims.length ?? 0,
    skipped: notes.claim?.skipped ?? {},
    claimMs: notes.claimMs,
    fenceMs: notes.fenceMs,
    runMs: notes.handlersMs,
  };
}

export function tickReport(
  notes: TickNotes,
  end: {
    readonly fate: TickFate;
    readonly sessionRoundTrips: number;
    readonly handlerQueries: number;
    readonly totalMs: number;
    readonly error: PgclaimError | null;
  },
): TickReport {
  const jobs = (notes.claim?.claims ?? []).map((claim) => jobResult(claim, notes, end.fate));
  const count = (result: JobResult["result"]) => jobs.filter((job) => job.result === result).length;
  return {
    tickId: notes.tickId,
    fate: end.fate,
    quarantined: notes.quarantined,
    claimed: jobs.length,
    done: count("done"),
    retried: count("retried"),
    dead: count("dead"),
    snoozed: count("snoozed"),
    cancelled: count("cancelled"),
    missed: count("missed"),
    atRisk: (notes.claim?.claims ?? []).filter((claim) => claim.atRisk && !claim.missed).length,
    released: count("released"),
    skipped: notes.claim?.skipped ?? {},
    skips: notes.claim?.skips ?? [],
    jobs,
    roundTrips: { session: end.sessionRoundTrips, oneShot: notes.oneShots },
    handlerQueries: end.handlerQueries,
    claimMs: notes.claimMs,
    fenceMs: notes.fenceMs,
    runMs: notes.handlersMs,
    finishMs: notes.finishMs,
    totalMs: end.totalMs,
    ...(end.error === null ? {} : { error: reportedError(end.error) }),
  };
}

function jobResult(claim: Claim, notes: TickNotes, fate: TickFate): JobResult {
  const facts = { jobId: claim.jobId, kind: claim.kind, attempt: claim.attempt };
  const runMs = notes.runMs.get(claim.jobId);
  const timed = runMs === undefined ? facts : { ...facts, runMs };
  if (fate === "lost") {
    return { ...timed, result: notes.marked && notes.turn !== claim.jobId ? "interrupted" : "unsettled" };
  }
  if (fate === "unknown") return { ...timed, result: "unsettled" };
  const outcome = notes.outcomes.get(claim.jobId);
  if (outcome === undefined) return { ...facts, result: "refused" };
  if (outcome.type === "released") return { ...timed, result: "released" };
  if (outcome.type === "missed") return { ...facts, result: "missed" };
  const row = notes.rows.find((candidate) => candidate.jobId === claim.jobId);
  if (row === undefined) return { ...timed, ...withoutRow(outcome) };
  if (row.state === "cancelled") return { ...timed, result: "cancelled" };
  if (row.state === "dead") return { ...timed, result: "dead", ...codeOf(outcome, row) };
  if (outcome.type === "snoozed") return { ...timed, result: "snoozed", dueAt: row.dueAt.toISOString() };
  return { ...timed, result: "retried", dueAt: row.dueAt.toISOString(), ...codeOf(outcome, row) };
}

/**
 * A committed job finish answered nothing of: it is done, or the answer to COMMIT was lost and settle knew no more than the
 * tick's fate. Then a failure is told as retried, although it may have been the last one allowed.
 */
function withoutRow(outcome: Exclude<Outcome, { type: "released" | "missed" }>): Pick<JobResult, "result" | "code"> {
  switch (outcome.type) {
    case "done":
      return { result: "done" };
    case "failed":
      return { result: "retried", code: outcome.code };
    case "dead":
      return { result: "dead" };
    case "snoozed":
      return { result: "snoozed" };
    case "cancelled":
      return { result: "cancelled" };
    default:
      return outcome satisfies never;
  }
}

function codeOf(outcome: Outcome, row: FinishRow): { code?: string } {
  if (outcome.type === "failed") return { code: outcome.code };
  // A handler that ended done and whose enqueue was refused by finish.
  if (outcome.type === "done" || outcome.type === "snoozed")
    return row.error === null ? {} : { code: "PGCLAIM_TURN_FAILED" };
  return {};
}

/** An error as reports carry it. */
export function reportedError(error: unknown): ReportedError {
  if (error instanceof PgclaimError) return { code: error.code, message: error.message };
  return { code: "PGCLAIM_INTERNAL", message: describeError(error) };
}

/** What woke an invocation, as one word or two. */
export function triggerName(trigger: Trigger): string {
  switch (trigger.type) {
    case "cron":
      return `cron ${trigger.cron}`.trimEnd();
    case "http":
      return `http ${trigger.by}`;
    case "manual":
      return "manual";
    default:
      return trigger satisfies never;
  }
}

/** The same, as the database keeps it: storable, and 200 characters at most. */
export function storedTriggerName(trigger: Trigger): string {
  return storableText(triggerName(trigger).slice(0, 200));
}

/** What an invocation has measured so far. */
export interface InvocationNotes {
  readonly invocationId: string;
  readonly trigger: Trigger;
  readonly startedAt: string;
  readonly ticks: TickReport[];
  crashed: number;
  revision: number | null;
  supersededBy: number | null;
  fired: FiredSchedule[];
  faults: InvocationReport["faults"];
  /** One-shots and session messages outside ticks: wake, register, an empty claim's rollback is inside. */
  oneShots: number;
  wakeMs: number;
  connectMs: number;
}

export function invocationReport(
  notes: InvocationNotes,
  end: { readonly ended: InvocationReport["ended"]; readonly totalMs: number; readonly error: ReportedError | null },
): InvocationReport {
  const { ticks } = notes;
  const sum = (of: (tick: TickReport) => number) => ticks.reduce((total, tick) => total + of(tick), 0);
  const skipped: Partial<Record<SkipReason, number>> = {};
  for (const tick of ticks) {
    for (const [reason, n] of Object.entries(tick.skipped) as [SkipReason, number][])
      skipped[reason] = (skipped[reason] ?? 0) + n;
  }
  return {
    invocationId: notes.invocationId,
    trigger: triggerName(notes.trigger),
    startedAt: notes.startedAt,
    ended: end.ended,
    claimed: sum((tick) => tick.claimed),
    done: sum((tick) => tick.done),
    retried: sum((tick) => tick.retried),
    dead: sum((tick) => tick.dead),
    snoozed: sum((tick) => tick.snoozed),
    cancelled: sum((tick) => tick.cancelled),
    missed: sum((tick) => tick.missed),
    atRisk: sum((tick) => tick.atRisk),
    released: sum((tick) => tick.released),
    skipped,
    crashed: notes.crashed,
    revision: notes.revision,
    supersededBy: notes.supersededBy,
    fired: notes.fired,
    roundTrips: {
      session: sum((tick) => tick.roundTrips.session),
      oneShot: notes.oneShots + sum((tick) => tick.roundTrips.oneShot),
    },
    wakeMs: notes.wakeMs,
    connectMs: notes.connectMs,
    totalMs: end.totalMs,
    ticks,
    faults: notes.faults,
    ...(end.error === null ? {} : { error: end.error }),
  };
}

/** The one line an invocation leaves in the log. */
export function invocationLine(report: InvocationReport): LogEntry {
  const { ticks, faults, ...facts } = report;
  const level =
    report.error !== undefined
      ? "error"
      : report.dead + report.missed + report.crashed + faults.length > 0
        ? "warn"
        : "info";
  return {
    level,
    event: "pgclaim.invocation",
    ...facts,
    ...(faults.length > 0 ? { faults } : {}),
    ticks: ticks.map(({ jobs, skips, ...tick }) => ({
      ...tick,
      // Failures by name; what went well is counted above.
      failed: jobs.filter((job) => job.code !== undefined || job.result === "dead" || job.result === "missed"),
      firstSkips: skips.slice(0, 5),
    })),
  };
}
