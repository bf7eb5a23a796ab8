// A job as a terminal shows it: a line of a list, and all of one.

import type { JobDetail, JobRow, ListState, LockView, Why } from "../inspection.ts";
import { ago, type Cell, length, number, type Style, safe, slack, utc } from "./format.ts";
import type { Output } from "./output.ts";

const stateStyles: Readonly<Partial<Record<ListState, Style>>> = {
  dead: "bad",
  retrying: "warn",
  blocked: "warn",
  running: "strong",
  done: "good",
};

export function jobTitles(state: ListState | undefined): readonly string[] {
  if (state === "dead") return ["job", "kind", "died", "reason", "failed", "key", "error"];
  if (state === "done" || state === "discarded" || state === "cancelled")
    return ["job", "kind", "queue", "ended", "failed", "error"];
  return ["job", "kind", "queue", "state", "failed", "due", "slack", "why not running"];
}

export function jobRow(job: JobRow, now: string, state: ListState | undefined): readonly (string | Cell)[] {
  const attempts = job.maxAttempts === null ? `${job.failures}` : `${job.failures} of ${job.maxAttempts}`;
  if (state === "dead") {
    return [
      job.id,
      job.kind,
      ago(job.endedAt, now),
      { text: job.deadReason ?? "-", style: "bad" },
      attempts,
      job.orderingKey ?? "-",
      job.error ?? "-",
    ];
  }
  if (state === "done" || state === "discarded" || state === "cancelled")
    return [job.id, job.kind, job.queue, ago(job.endedAt, now), attempts, job.error ?? "-"];
  return [
    job.id,
    job.kind,
    job.queue,
    painted(job.state),
    attempts,
    ago(job.runAt, now),
    slack(job.slackMs),
    whyText(job.why),
  ];
}

function painted(state: ListState): Cell {
  const style = stateStyles[state];
  return style === undefined ? { text: state } : { text: state, style };
}

/** Why a job is not running, in a few words. */
export function whyText({ reason, what }: Why): string {
  switch (reason) {
    case "behind":
      return `behind ${what ?? "another job"}`;
    case "halted":
      return `key halted by ${what ?? "a dead letter"}`;
    case "busy":
      return `busy: ${what ?? "a name"}`;
    case "limit":
      return `limit full: ${what ?? "a limit"}`;
    case "paused":
      return `queue paused: ${what ?? ""}`.trimEnd();
    case "suspect":
      return "waits for a tick of its own";
    case "due":
      return "due: the next trigger takes it";
    case "scheduled":
    case "backoff":
    case "running":
    case "ended":
    case "dead":
      return reason;
    default:
      return reason satisfies never;
  }
}

/** Prints all of a job, a fact a line. */
export function showJob(out: Output, job: JobDetail, now: string): void {
  const fact = (name: string, value: string | null | undefined) => {
    if (value !== null && value !== undefined && value !== "") out.line(`${name.padEnd(16)}${safe(value)}`);
  };
  const at = (instant: string | null) => (instant === null ? null : `${utc(instant)}  (${ago(instant, now)})`);
  out.line(out.paint(safe(`Job ${job.id}  ${job.kind}  ${job.state}`), stateStyles[job.state] ?? "strong"));
  fact("queue", job.queue);
  fact("why", whyText(job.why));
  fact(
    "attempts",
    `${job.attempt} begun, ${job.failures} failed${job.maxAttempts === null ? "" : `, ${job.maxAttempts} allowed`}`,
  );
  fact("enqueued", at(job.enqueuedAt));
  fact("due", at(job.runAt));
  fact("deadline", at(job.deadlineAt));
  fact("slack", job.slackMs === null ? null : slack(job.slackMs));
  fact("ended", at(job.endedAt));
  fact("dead because", job.deadReason);
  fact("suspect", job.suspect ? "yes: it runs alone, its last holder died" : null);
  fact("ordering key", job.orderingKey);
  fact("behind it", job.behind === null ? null : `${number(job.behind.n)}${job.behind.capped ? "+" : ""}`);
  fact("unique key", job.uniqueKey);
  fact("idempotency key", job.idempotencyKey);
  fact("enqueued by", job.source);
  fact("trace", job.trace);
  locks(out, job.locks);
  attempts(out, job, now);
  actions(out, job, now);
  if (job.lastError !== null) block(out, "error", job.lastError);
  block(out, `payload, ${number(job.payloadBytes)} bytes`, job.payloadText);
  if (job.payloadCut) out.note(`The payload goes on: pgclaim jobs show ${job.id} --payload`);
}

function locks(out: Output, views: readonly LockView[]): void {
  if (views.length === 0) return;
  out.line();
  out.table(
    ["lock", "name", "held by"],
    views.map(({ class: name, name: text, heldBy, taken, max }) => [
      name,
      text,
      heldBy !== null
        ? `pid ${heldBy.pid}${heldBy.sinceMs === null ? "" : ` for ${length(heldBy.sinceMs)}`}`
        : taken !== null && max !== null
          ? `${taken} of ${max} taken`
          : "free",
    ]),
  );
}

function attempts(out: Output, job: JobDetail, now: string): void {
  if (job.attempts.length === 0) return;
  out.line();
  out.table(
    ["attempt", "started", "ran", "outcome", "invocation", "error"],
    job.attempts.map((attempt) => [
      String(attempt.n),
      ago(attempt.startedAt, now),
      attempt.endedAt === null ? "-" : length(Date.parse(attempt.endedAt) - Date.parse(attempt.startedAt)),
      attempt.outcome ?? "open",
      attempt.invocationId ?? "-",
      attempt.error?.split("\n", 1)[0] ?? "-",
    ]),
  );
}

function actions(out: Output, job: JobDetail, now: string): void {
  if (job.actions.length === 0) return;
  out.line();
  out.table(
    ["when", "what", "who", "detail"],
    job.actions.map(({ at, verb, actor, detail }) => [ago(at, now), verb, actor, detail ?? "-"]),
  );
}

function block(out: Output, title: string, text: string): void {
  out.line();
  out.line(title);
  for (const line of text.split("\n")) out.line(`  ${safe(line)}`);
}
