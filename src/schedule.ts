// Schedules: cron rules that enqueue jobs. The rule is parsed by croner; what is due, the database's clock decides, which
// comes with wake's answer; who fires, a compare-and-set in the database decides.

import { Cron } from "croner";
import type { AnyJobDefinition, JobDefinition } from "./define.ts";
import { assertKnownKeys } from "./define.ts";
import { show } from "./duration.ts";
import { jobRequest } from "./enqueue.ts";
import { UsageError } from "./errors.ts";
import type { InputOf, StandardSchema } from "./standard_schema.ts";

/** What happens to occurrences nobody was awake for. */
export type CatchUp = "all" | "last" | "none";

export interface Schedule<S extends StandardSchema = StandardSchema> {
  /** Unique in this deployment: 1 to 200 letters, digits and `. _ : -`. */
  readonly name: string;
  /** Five fields: minute, hour, day of month, month, day of week (0 and 7 are Sunday). */
  readonly cron: string;
  /**
   * IANA name, for example `"Europe/Zurich"`. Default `"UTC"`. A time of day that a zone skips in spring fires once, at
   * the first instant after the gap; one that comes twice in autumn fires once, the first time. Rules whose hour is `*`
   * or a step follow real time.
   */
  readonly timeZone?: string;
  readonly job: JobDefinition<S>;
  readonly payload: InputOf<S>;
  /** `"last"` (default): one job for all that were missed; `"all"`: one for each; `"none"`: none that is over two minutes late. */
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
  /** What makes two definitions the same. */
  readonly definition: string;
}

/** Occurrences one firing enqueues at most; with `"all"`, the next wake goes on where this one stopped. */
export const maxOccurrences = 500;

/** With `"none"`, what is older than this when a trigger comes was missed: two periods of a one-minute cron. */
export const lateAfterMs = 120_000;

/** A schedule with a typed payload. Errors: PGCLAIM_INVALID_OPTION. */
export function defineSchedule<S extends StandardSchema>(schedule: Schedule<S>): Schedule<S> {
  assertSchedule(schedule as unknown as AnySchedule);
  return schedule;
}

/** Checks a schedule. An expression that can never fire is refused. Errors: PGCLAIM_INVALID_OPTION. */
export function assertSchedule(schedule: AnySchedule): void {
  const name: unknown = schedule?.name;
  if (typeof name !== "string" || !/^[A-Za-z0-9._:-]{1,200}$/.test(name)) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `schedule name is ${show(name)}; expected 1 to 200 letters, digits and . _ : -.`,
      { path: "name" },
    );
  }
  const where = `schedule "${name}"`;
  assertKnownKeys(schedule, ["name", "cron", "timeZone", "job", "payload", "catchUp"], where);
  const refuse = (option: string, value: unknown, expected: string): UsageError =>
    new UsageError("PGCLAIM_INVALID_OPTION", `${where}: ${option} is ${show(value)}; ${expected}.`, { path: option });
  if (typeof schedule.job?.kind !== "string") throw refuse("job", schedule.job, "expected what defineJob() answers");
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
  let first: Date | null;
  try {
    // Any instant will do: whether a rule can fire at all does not depend on when one asks.
    first = rule(schedule.cron, timeZone).nextRun(new Date(Date.UTC(2024, 0, 1)));
  } catch (error) {
    throw refuse(
      "cron",
      schedule.cron,
      `it cannot be read (${error instanceof Error ? error.message : "no reason given"})`,
    );
  }
  if (first === null) throw refuse("cron", schedule.cron, "no date fits it, so it would never fire");
}

function isTimeZone(name: string): boolean {
  try {
    new Intl.DateTimeFormat("en", { timeZone: name });
    return true;
  } catch {
    return false;
  }
}

function rule(cron: string, timeZone: string): Cron {
  // Paused: croner's own timers have no business here.
  return new Cron(cron, { timezone: timeZone, paused: true, mode: "5-part" });
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
  return { ...row, definition: JSON.stringify(row) };
}

/** What a due schedule has to do. */
export interface Firing {
  readonly occurrences: readonly Date[];
  readonly newNextAt: Date;
}

/**
 * The occurrences of a due schedule.
 *
 * Shape:  nextAt is its next occurrence as stored, or, for a fresh one, when it was registered; now is the database's clock.
 * Clock:  the database's, passed in.
 */
export function firing(
  row: ScheduleRow,
  due: { readonly nextAt: Date; readonly fresh: boolean; readonly now: Date },
): Firing {
  const cron = rule(row.cron, row.timeZone);
  const first = due.fresh ? cron.nextRun(due.nextAt) : due.nextAt;
  const occurrences: Date[] = [];
  if (first !== null && first <= due.now) {
    if (row.catchUp === "all") {
      for (
        let at: Date | null = first;
        at !== null && at <= due.now && occurrences.length < maxOccurrences;
        at = cron.nextRun(at)
      ) {
        occurrences.push(at);
      }
    } else {
      // Looked for from the end: a minute's rule after a month's outage has missed 43,000.
      const last = cron.previousRuns(1, due.now)[0];
      const at = last === undefined || last < first ? first : last;
      if (row.catchUp === "last" || due.now.getTime() - at.getTime() <= lateAfterMs) occurrences.push(at);
    }
  }
  const after = row.catchUp === "all" ? (occurrences.at(-1) ?? due.nextAt) : due.now;
  // A rule that can fire at all fires again; the far future keeps a row that says otherwise from being asked for ever.
  const next = first !== null && first > due.now ? first : cron.nextRun(after);
  return { occurrences, newNextAt: next ?? new Date(Date.UTC(9999, 0, 1)) };
}

/** The first occurrence after an instant. */
export function nextOccurrence(
  { cron, timeZone }: { readonly cron: string; readonly timeZone: string },
  after: Date,
): Date {
  return rule(cron, timeZone).nextRun(after) ?? new Date(Date.UTC(9999, 0, 1));
}
