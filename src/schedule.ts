// Schedules: cron rules that enqueue jobs. When a rule fires, cron.ts says; what is due, the database's clock decides, which
// comes with wake's answer; who fires, a compare-and-set in the database decides.

import { lastUntil, nextAfter, parseRule } from "./cron.ts";
import type { AnyJobDefinition, JobDefinition } from "./define.ts";
import { assertKnownKeys } from "./define.ts";
import { show } from "./duration.ts";
import { jobRequest } from "./enqueue.ts";
import { UsageError } from "./errors.ts";
import { type InputOf, issueAtOnce, type StandardSchema } from "./standard_schema.ts";
import { assertStorable } from "./storable.ts";

/** What happens to occurrences nobody was awake for. */
export type CatchUp = "all" | "last" | "none";

export interface Schedule<S extends StandardSchema = StandardSchema> {
  /** Unique in this deployment: 1 to 200 letters, digits and `. _ : -`. */
  readonly name: string;
  /**
   * Five fields: minute, hour, day of month, month, day of week (0 and 7 are Sunday). If both day fields are restricted, a
   * day that fits one of them fits.
   */
  readonly cron: string;
  /**
   * IANA name, for example `"Europe/Zurich"`. Default `"UTC"`. Where a zone's clocks are changed, the hour field decides:
   *
   * - A fixed hour (a number, a list, a range, also one with a step: `2`, `2,14`, `0-23/2`) means times of day, and each of
   *   them happens once. All that the zone skips in spring happen together, once, at the first instant after the gap. One
   *   that comes twice in autumn happens the first time.
   * - `*` and `*` with a step mean real time: the rule fires whenever the clocks show a time that fits. So a skipped one
   *   does not fire and one that comes twice fires twice, and `0 * * * *` fires every 60 minutes through both.
   */
  readonly timeZone?: string;
  readonly job: JobDefinition<S>;
  readonly payload: InputOf<S>;
  /**
   * `"last"` (default): one job for all that were missed, with the last one's `runAt`; `"all"`: one for each, 500 at a
   * trigger for all schedules together; `"none"`: none that is over two minutes late when a trigger comes.
   */
  readonly catchUp?: CatchUp;
}

/** Any schedule, whatever its payload. */
export interface AnySchedule {
  readonly name: string;
  readonly cron: string;
  readonly timeZone?: string;
  readonly job: AnyJobDefinition;
  readonly payload: unknown;
  readonly catchUp?: CatchUp;
}

/** A schedule as it is registered. */
export interface ScheduleRow {
  readonly name: string;
  readonly cron: string;
  readonly timeZone: string;
  readonly kind: string;
  readonly payload: unknown;
  readonly catchUp: CatchUp;
  /** Digest of the six above: an old deployment cannot fire a newer rule. */
  readonly definition: string;
}

/** Occurrences one wake enqueues, give or take one for each schedule; with `"all"`, the next goes on where it stopped. */
export const maxOccurrences = 500;

/** With `"none"`, what is older than this when a trigger comes was missed: two periods of a one-minute cron. */
export const lateAfterMs = 120_000;

/** A schedule with a typed payload. Errors: PGCLAIM_INVALID_OPTION, PGCLAIM_INVALID_PAYLOAD. */
export function defineSchedule<S extends StandardSchema>(schedule: Schedule<S>): Schedule<S> {
  assertSchedule(schedule as unknown as AnySchedule);
  return schedule;
}

/**
 * Checks a schedule. An expression that can never fire is refused, and so is a payload that does not fit, unless its schema
 * answers later: then the first invocation refuses it. Errors: PGCLAIM_INVALID_OPTION, PGCLAIM_INVALID_PAYLOAD.
 */
export function assertSchedule(schedule: AnySchedule): void {
  const name = scheduleName(schedule?.name);
  const where = `schedule "${name}"`;
  assertKnownKeys(schedule, ["name", "cron", "timeZone", "job", "payload", "catchUp"], where);
  const refuse = (option: string, value: unknown, expected: string): UsageError =>
    new UsageError("PGCLAIM_INVALID_OPTION", `${where}: ${option} is ${show(value)}; ${expected}.`, { path: option });
  if (typeof schedule.job?.kind !== "string" || typeof schedule.job.policy !== "object")
    throw refuse("job", schedule.job, "expected what defineJob() answers");
  if (schedule.catchUp !== undefined && !["all", "last", "none"].includes(schedule.catchUp)) {
    throw refuse("catchUp", schedule.catchUp, 'expected "all", "last" or "none"');
  }
  const timeZone: unknown = schedule.timeZone ?? "UTC";
  if (typeof timeZone !== "string" || !isTimeZone(timeZone)) {
    throw refuse("timeZone", timeZone, 'expected an IANA name, for example "Europe/Zurich"');
  }
  if (typeof schedule.cron !== "string" || schedule.cron.trim().split(/\s+/).length !== 5) {
    throw refuse("cron", schedule.cron, 'expected five fields, for example "30 2 * * *"');
  }
  let first: number | null;
  try {
    // Any instant will do: whether a rule can fire at all does not depend on when one asks.
    first = nextAfter(parseRule(schedule.cron, timeZone), Date.UTC(2024, 0, 1));
  } catch (error) {
    throw refuse(
      "cron",
      schedule.cron,
      `it cannot be read (${error instanceof Error ? error.message : "no reason given"})`,
    );
  }
  if (first === null) throw refuse("cron", schedule.cron, "no date fits it, so it would never fire");
  assertPayload(schedule.job, schedule.payload, where);
}

/** Checks a schedule's name. Errors: PGCLAIM_INVALID_OPTION. */
export function scheduleName(value: unknown): string {
  if (typeof value === "string" && /^[A-Za-z0-9._:-]{1,200}$/.test(value)) return value;
  throw new UsageError(
    "PGCLAIM_INVALID_OPTION",
    `schedule name is ${show(value)}; expected 1 to 200 letters, digits and . _ : -.`,
    { path: "name" },
  );
}

function assertPayload({ kind, payload: schema }: AnyJobDefinition, payload: unknown, where: string): void {
  assertStorable(payload, `${where}: payload`, kind);
  const issue = issueAtOnce(schema, payload, `${where}: payload`);
  if (issue === null) return;
  throw new UsageError("PGCLAIM_INVALID_PAYLOAD", `job "${kind}": ${issue.path}: ${issue.message}`, {
    path: issue.path,
  });
}

function isTimeZone(name: string): boolean {
  try {
    new Intl.DateTimeFormat("en", { timeZone: name });
    return true;
  } catch {
    return false;
  }
}

/** A schedule as rows take it, its payload validated. Errors: PGCLAIM_INVALID_PAYLOAD. */
export async function scheduleRow(schedule: AnySchedule): Promise<ScheduleRow> {
  const request = await jobRequest(schedule.job, schedule.payload, {}, `schedule "${schedule.name}": `);
  const row = {
    name: schedule.name,
    cron: schedule.cron,
    timeZone: schedule.timeZone ?? "UTC",
    kind: schedule.job.kind,
    payload: request.payload,
    catchUp: schedule.catchUp ?? "last",
  };
  return { ...row, definition: await digestOf(row) };
}

async function digestOf(row: object): Promise<string> {
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(JSON.stringify(row))));
  return Array.from(bytes.subarray(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What a due schedule has to do. */
export interface Firing {
  readonly occurrences: readonly Date[];
  readonly newNextAt: Date;
}

/**
 * The occurrences of a due schedule, oldest first.
 *
 * Shape:  nextAt is its next occurrence as stored, or, for a fresh one, when it was registered or resumed; at most `limit`
 *         occurrences. Where more are due with `"all"`, newNextAt is the first of those that are left.
 * Clock:  the database's, passed in as `now`.
 */
export function firing(
  row: ScheduleRow,
  due: { readonly nextAt: Date; readonly fresh: boolean; readonly now: Date },
  limit = maxOccurrences,
): Firing {
  const rule = parseRule(row.cron, row.timeZone);
  const now = due.now.getTime();
  const first = due.fresh ? nextAfter(rule, due.nextAt.getTime()) : due.nextAt.getTime();
  if (first === null || first > now) return { occurrences: [], newNextAt: toDate(first) };
  if (row.catchUp === "all") {
    const occurrences: Date[] = [];
    let at: number | null = first;
    for (; at !== null && at <= now && occurrences.length < limit; at = nextAfter(rule, at))
      occurrences.push(new Date(at));
    return { occurrences, newNextAt: toDate(at) };
  }
  const last = lastUntil(rule, first, now);
  const fires = row.catchUp === "last" || now - last <= lateAfterMs;
  return { occurrences: fires ? [new Date(last)] : [], newNextAt: toDate(nextAfter(rule, now)) };
}

/** The first occurrence after an instant. */
export function nextOccurrence(
  { cron, timeZone }: { readonly cron: string; readonly timeZone: string },
  after: Date,
): Date {
  return toDate(nextAfter(parseRule(cron, timeZone), after.getTime()));
}

/** A rule that can fire at all fires again; the far future keeps a row that says otherwise from being asked for ever. */
function toDate(at: number | null): Date {
  return new Date(at ?? Date.UTC(9999, 0, 1));
}
