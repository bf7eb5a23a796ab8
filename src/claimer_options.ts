// The options of createClaimer, and how each of them is read: checked when the claimer is made, in one place.

import type { Clock } from "./clock.ts";
import type { Database } from "./database.ts";
import { type AnyJobDefinition, assertKnownKeys, integer, queueName } from "./define.ts";
import { type Duration, parseDuration, show } from "./duration.ts";
import { UsageError } from "./errors.ts";
import type { OnEvent } from "./events.ts";
import type { Deployment } from "./gateway.ts";
import type { KickOptions } from "./kick.ts";
import { type LimitOptions, type Limits, timerMs } from "./limits.ts";
import { type Log, type LogLevel, logLevels } from "./report.ts";
import { type AnySchedule, assertSchedule, scheduleRow } from "./schedule.ts";
import { type Telemetry, telemetryKeys } from "./telemetry.ts";

export interface ClaimerOptions {
  /** The kinds this deployment knows; those with a handler are run. */
  readonly jobs: readonly AnyJobDefinition[];
  /** The transport: `neonDatabase(url)` or `pgDatabase(url)`. */
  readonly database: Database;
  /** The installation's schema. Default `"pgclaim"`. */
  readonly schema?: string;
  /** Queues to draw from, the first one first. Default `["default"]` and every queue a kind names. */
  readonly queues?: readonly string[];
  /** Jobs of one tick, 1 to 200. Default 25. A tick commits or vanishes as a whole, so a crash repeats that many calls. */
  readonly batch?: number;
  /** Handlers doing external work at once, 1 to 100. Default 4: a Worker lets six connections wait. */
  readonly concurrency?: number;
  /** Ticks of one invocation, or `"none"` for no limit but the budget. Default `"none"`. */
  readonly maxTicks?: number | "none";
  /** How long an invocation may take. Defaults: `http` `"25s"`, `cron` `"55s"`. */
  readonly budget?: { readonly http?: Duration; readonly cron?: Duration };
  /** How long finished jobs stay in history, or `"forever"`. Default `"7d"`. Unfinished jobs and dead letters are never pruned. */
  readonly retention?: { readonly done?: Duration | "forever" };
  /**
   * Cron rules that enqueue jobs; many of them behind one cron trigger. A newer deployment removes those of its queues that
   * it no longer lists, `[]` all of them; without this option schedules are left alone, as an app that only enqueues must.
   */
  readonly schedules?: readonly AnySchedule[];
  /** Jobs of a whole queue at a time: `{ reports: 10 }`. It is where jobs wait that no other limit or name holds up. */
  readonly queueMax?: Readonly<Record<string, number>>;
  /** Ticks at once in this installation, 1 to 1,000, or `"none"` (default): so that a pooler is never overrun. */
  readonly tickSlots?: number | "none";
  /** How `enqueue(..., { kick: true })` wakes an invocation. */
  readonly kick?: KickOptions;
  readonly limits?: LimitOptions;
  /** Where structured log lines go. Default: JSON on the console. */
  readonly log?: Log;
  /** The least level that is logged. Default `"info"`; `"debug"` adds a line for each event, `"silent"` logs nothing. */
  readonly logLevel?: LogLevel;
  /** Told of what happens, at most once and for watching only. */
  readonly onEvent?: OnEvent;
  /** OpenTelemetry: spans, metrics, and trace context from enqueue to run. */
  readonly telemetry?: Telemetry;
  readonly clock?: Clock;
}

export const optionKeys = [
  "jobs",
  "database",
  "schema",
  "queues",
  "batch",
  "concurrency",
  "maxTicks",
  "budget",
  "retention",
  "schedules",
  "queueMax",
  "tickSlots",
  "kick",
  "limits",
  "log",
  "logLevel",
  "onEvent",
  "telemetry",
  "clock",
];

export interface Budget {
  readonly httpMs: number;
  readonly cronMs: number;
}

export function readBudget(options: ClaimerOptions, limits: Limits): Budget {
  const given = options.budget ?? {};
  assertKnownKeys(given, ["http", "cron"], "budget");
  const budget = {
    httpMs: timerMs(given.http ?? "25s", "budget.http"),
    cronMs: timerMs(given.cron ?? "55s", "budget.cron"),
  };
  for (const [name, ms] of Object.entries(budget)) {
    if (ms > limits.reserveMs) continue;
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `budget.${name.slice(0, -2)} is ${ms} ms; expected more than limits.reserve, ${limits.reserveMs} ms.`,
    );
  }
  return budget;
}

export function readJobs(
  jobs: readonly AnyJobDefinition[],
  budget: Budget,
  limits: Limits,
): ReadonlyMap<string, AnyJobDefinition> {
  if (!Array.isArray(jobs)) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `createClaimer(): jobs is ${show(jobs)}; expected an array of defineJob() results.`,
      { path: "jobs" },
    );
  }
  const definitions = new Map<string, AnyJobDefinition>();
  const longestMs = Math.max(budget.httpMs, budget.cronMs) - limits.reserveMs;
  for (const [i, job] of jobs.entries()) {
    if (typeof job?.kind !== "string" || typeof job.policy !== "object") {
      throw new UsageError(
        "PGCLAIM_INVALID_OPTION",
        `createClaimer(): jobs[${i}] is ${show(job)}; expected what defineJob() answers.`,
        { path: `jobs[${i}]` },
      );
    }
    if (definitions.has(job.kind)) {
      throw new UsageError(
        "PGCLAIM_DUPLICATE_KIND",
        `Job kind "${job.kind}" is defined twice in createClaimer({ jobs }); expected one definition for each kind.`,
      );
    }
    if (job.run !== null && job.policy.timeoutMs > longestMs) {
      throw new UsageError(
        "PGCLAIM_KIND_FITS_NO_TRIGGER",
        `job "${job.kind}": timeout is ${job.policy.timeoutMs} ms, and no trigger leaves more than ${longestMs} ms (budget.http ${budget.httpMs} ms, budget.cron ${budget.cronMs} ms, less limits.reserve ${limits.reserveMs} ms). Shorten the timeout or raise a budget.`,
      );
    }
    definitions.set(job.kind, job);
  }
  return definitions;
}

export function readQueues(
  options: ClaimerOptions,
  definitions: ReadonlyMap<string, AnyJobDefinition>,
): readonly string[] {
  if (options.queues !== undefined) return readQueueNames(options.queues);
  return [...new Set(["default", ...[...definitions.values()].map(({ policy }) => policy.queue)])];
}

/** The queues of a claimer, or of one invocation: at least one. Errors: PGCLAIM_INVALID_OPTION. */
export function readQueueNames(queues: readonly string[]): readonly string[] {
  if (!Array.isArray(queues) || queues.length === 0) {
    throw new UsageError("PGCLAIM_INVALID_OPTION", `queues is ${show(queues)}; expected at least one name.`, {
      path: "queues",
    });
  }
  return queues.map((queue: unknown, i) => queueName(queue, `queues[${i}]`));
}

export function readQueueMax(queueMax: Readonly<Record<string, number>>): Readonly<Record<string, number>> {
  for (const [queue, max] of Object.entries(queueMax)) {
    queueName(queue, "queueMax");
    integer("createClaimer()", `queueMax.${queue}`, max, 1, 1_000);
  }
  return queueMax;
}

export function readTickSlots(value: unknown): number | null {
  return value === "none" ? null : integer("createClaimer()", "tickSlots", value, 1, 1_000, ', or "none"');
}

export function readSchedules(
  schedules: readonly AnySchedule[],
  definitions: ReadonlyMap<string, AnyJobDefinition>,
): readonly AnySchedule[] {
  if (!Array.isArray(schedules)) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `createClaimer(): schedules is ${show(schedules)}; expected an array of defineSchedule() results.`,
      { path: "schedules" },
    );
  }
  const names = new Set<string>();
  for (const schedule of schedules) {
    assertSchedule(schedule);
    if (names.has(schedule.name)) {
      throw new UsageError(
        "PGCLAIM_INVALID_OPTION",
        `schedule "${schedule.name}" is defined twice in createClaimer({ schedules }).`,
        { path: "schedules" },
      );
    }
    names.add(schedule.name);
    if (!definitions.has(schedule.job.kind)) {
      throw new UsageError(
        "PGCLAIM_UNKNOWN_KIND",
        `schedule "${schedule.name}" enqueues "${schedule.job.kind}", which is not in createClaimer({ jobs }).`,
        { path: "schedules" },
      );
    }
  }
  return schedules;
}

export function readLogLevel(value: unknown): LogLevel {
  const level = logLevels.find((one) => one === value);
  if (level !== undefined) return level;
  throw new UsageError(
    "PGCLAIM_INVALID_OPTION",
    `createClaimer(): logLevel is ${show(value)}; expected one of ${logLevels.join(", ")}.`,
    { path: "logLevel" },
  );
}

export function readOnEvent(value: unknown): OnEvent | null {
  if (value === undefined) return null;
  if (typeof value === "function") return value as OnEvent;
  throw new UsageError("PGCLAIM_INVALID_OPTION", `createClaimer(): onEvent is ${show(value)}; expected a function.`, {
    path: "onEvent",
  });
}

/** What must be there of each part; a wrong one is told now and not in the middle of a tick. */
const telemetryParts = [
  ["tracer", "startSpan"],
  ["meter", "createCounter"],
  ["trace", "setSpan"],
  ["context", "with"],
] as const;

export function readTelemetry(value: Telemetry = {}): Telemetry {
  if (typeof value !== "object" || value === null) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `createClaimer(): telemetry is ${show(value)}; expected { tracer, meter, trace, context }.`,
      { path: "telemetry" },
    );
  }
  assertKnownKeys(value, telemetryKeys, "telemetry");
  for (const [part, method] of telemetryParts) {
    const given: unknown = value[part];
    if (given === undefined || typeof (given as Record<string, unknown> | null)?.[method] === "function") continue;
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `telemetry.${part} is ${show(given)}; expected OpenTelemetry's, with ${method}().`,
      { path: `telemetry.${part}` },
    );
  }
  return value;
}

export function readMaxTicks(value: unknown): number {
  return value === "none"
    ? Number.POSITIVE_INFINITY
    : integer("createClaimer()", "maxTicks", value, 1, 1_000_000, ', or "none"');
}

export function readRetention(options: ClaimerOptions): number | null {
  const given = options.retention ?? {};
  assertKnownKeys(given, ["done"], "retention");
  return given.done === "forever" ? null : parseDuration(given.done ?? "7d", "retention.done");
}

/** What is registered, in an order that does not depend on how the code lists it, and its digest. */
export async function deploymentOf(
  definitions: ReadonlyMap<string, AnyJobDefinition>,
  schedules: readonly AnySchedule[] | null,
  queueMax: Readonly<Record<string, number>>,
  queues: readonly string[],
): Promise<Deployment & { readonly digest: string }> {
  const rows = schedules === null ? null : await Promise.all(schedules.map(scheduleRow));
  const byName = (a: { readonly name: string }, b: { readonly name: string }) => (a.name < b.name ? -1 : 1);
  const deployment = {
    kinds: [...definitions.values()].map(({ policy }) => policy).sort(byName),
    schedules: rows?.sort(byName) ?? null,
    queueMax: Object.fromEntries(Object.entries(queueMax).sort(([a], [b]) => (a < b ? -1 : 1))),
  };
  const bytes = new Uint8Array(
    await crypto.subtle.digest("SHA-256", new TextEncoder().encode(JSON.stringify(deployment))),
  );
  return { ...deployment, queues, digest: Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("") };
}
