// What is answered about the installation (queues, kinds, schedules, triggers, charts) and its runs (reports, ticks,
// invocations, holders), as zod schemas; a test of types holds them and the types they stand for together.

import * as z from "zod";
import { at, count, enqueued, id, int, list, pageOf, text } from "./schemas_jobs.ts";

const quantiles = { p50: z.number().nullable(), p95: z.number().nullable() };

export const queueRow = z.object({
  name: text,
  pausedAt: at.nullable(),
  max: int.nullable(),
  oldestReadyMs: int.nullable(),
  nextDueAt: at.nullable(),
  running: int,
  depth: z.partialRecord(z.enum(["ready", "scheduled", "retrying", "blocked", "dead"]), count).describe("Sampled."),
  donePerMinute: z.number(),
  lateMs: z.object(quantiles).describe("From due to done."),
});

export const kindRow = z.object({
  name: text,
  queue: text,
  revision: int,
  priority: int,
  timeoutMs: int,
  maxAttempts: int,
  maxCrashes: int,
  deadlineMs: int.nullable(),
  orderingKey: text.nullable(),
  uniqueKey: text.nullable(),
  locks: list(text),
  whenDead: z.enum(["halt", "skip"]),
  registered: z.boolean().describe("Whether the deployment in force defines it."),
  waiting: count,
});

export const triggerRow = z.object({
  name: text,
  type: z.enum(["cron", "http", "manual"]),
  firstSeenAt: at,
  lastSeenAt: at,
  lastWorkAt: at.nullable(),
  everyMs: int.nullable().describe("What is expected between two of them."),
  status: z.enum(["ok", "late", "silent", "unexpected"]),
  minutes: list(z.object({ woken: int, worked: int })).describe("Oldest first; the last one is the current minute."),
});

export const schedule = z.object({
  name: text,
  cron: text,
  timeZone: text,
  kind: text,
  catchUp: z.enum(["all", "last", "none"]),
  nextAt: at,
  lastAt: at.nullable(),
  pausedAt: at.nullable(),
  fault: text.nullable().describe("SQLSTATE of the last firing, if it failed."),
});

export const queueChanged = z.object({ queue: text, changed: z.boolean() });
export const scheduleChanged = z.object({ schedule: text, changed: z.boolean() });
export const scheduleRun = z.object({ schedule: text, job: enqueued });

const point = z.object({
  at,
  done: int,
  failed: int,
  dead: int,
  p50Ms: z.number().nullable(),
  p95Ms: z.number().nullable(),
  claimed: int,
  skipped: int,
});
export const series = z.object({ from: at, to: at, stepMs: int, points: list(point) });

export const overview = z.object({
  now: at,
  database: text,
  schema: text,
  migration: int,
  sampledAt: at.nullable().describe("When `depth` was counted; null: never yet."),
  depth: z.object({ ready: count, scheduled: count, retrying: count, blocked: count, dead: count }),
  running: int,
  longestRunMs: int.nullable(),
  oldestReadyMs: int.nullable(),
  nextDueAt: at.nullable(),
  dead: count,
  newestDeadAt: at.nullable(),
  haltedKeys: count,
  behindHalted: count,
  missed: count,
  slack: z.object({
    late: count,
    under1m: count,
    under5m: count,
    under15m: count,
    over15m: count,
    tightestMs: int.nullable(),
    tightest: id.nullable(),
    atRisk: count,
  }),
  historyRows: int.nullable(),
  queues: list(queueRow),
  triggers: list(triggerRow),
  unregistered: list(text).describe("Kinds with waiting jobs that no deployment in force defines."),
});

const skipReason = z.enum([
  "busy",
  "stale",
  "open-attempt",
  "unknown-kind",
  "newer-revision",
  "unfit",
  "alone",
  "limit-full",
  "behind",
  "reserved",
  "cancelled",
  "tick-slots",
]);
const skipped = z.partialRecord(skipReason, int);
const skip = z.object({ jobId: id, kind: text, reason: skipReason, lock: text.exactOptional() });
const roundTrips = z.object({ session: int, oneShot: int });

export const tickRow = z.object({
  tickId: text,
  invocationId: text,
  trigger: text.nullable(),
  n: int.nullable().describe("Ordinal in its invocation, from 1."),
  startedAt: at.nullable(),
  decidedAt: at,
  outcome: z.enum(["committed", "lost"]),
  quarantined: z.boolean(),
  claimed: int,
  outcomes: z.partialRecord(text, int),
  skipped,
  roundTrips: roundTrips.nullable(),
  wakeMs: int.nullable(),
  connectMs: int.nullable(),
  claimMs: int.nullable(),
  fenceMs: int.nullable(),
  runMs: int.nullable(),
  totalMs: int.nullable(),
});

export const invocation = z.object({
  invocationId: text,
  now: at,
  ticks: list(
    tickRow.extend({
      skips: list(skip),
      jobs: list(
        z.object({
          jobId: id,
          kind: text.nullable(),
          attempt: int,
          outcome: text.nullable(),
          startedAt: at,
          endedAt: at.nullable(),
          error: text.nullable(),
        }),
      ),
    }),
  ),
});

const heldJob = z.object({ id, kind: text, attempt: int, sinceMs: int });
const holder = z.object({
  pid: int,
  user: text.nullable().describe("Null where this role may not see the session."),
  applicationName: text.nullable(),
  state: text.nullable(),
  stateMs: int.nullable(),
  transactionMs: int.nullable(),
  transactionStart: text.nullable().describe("Exact, for `terminate`."),
  invocationId: text.nullable(),
  tickId: text.nullable(),
  jobs: list(heldJob),
  names: list(z.object({ class: text, name: text, shared: z.boolean() })),
  unknownKeys: list(text),
});
export const holders = z.object({
  now: at,
  holders: list(holder),
  capped: z.boolean(),
  gone: list(heldJob).describe("Open attempts whose lock is free: the next wake closes them as crashed."),
});
export const terminated = z.object({ pid: int, type: z.enum(["terminated", "gone"]) });

const reportedError = z.object({ code: text, message: text });
/** What every route answers when it refuses or fails. */
export const refused = z.object({
  error: z.object({
    code: text.describe("Branch on this."),
    message: text,
    path: text.exactOptional().describe("Where in the request the fault lies."),
  }),
});
const sums = {
  claimed: int,
  done: int,
  retried: int,
  dead: int,
  cancelled: int,
  missed: int,
  atRisk: int,
  snoozed: int,
  released: int,
};
const jobResult = z.object({
  jobId: id,
  kind: text,
  attempt: int,
  result: z.enum([
    "done",
    "retried",
    "dead",
    "snoozed",
    "released",
    "interrupted",
    "unsettled",
    "refused",
    "cancelled",
    "missed",
  ]),
  code: text.exactOptional(),
  dueAt: at.exactOptional(),
  runMs: int.exactOptional(),
});
const tickReport = z.object({
  tickId: text,
  fate: z.enum(["committed", "lost", "unknown", "empty", "refused"]),
  quarantined: z.boolean(),
  ...sums,
  skipped,
  skips: list(skip),
  jobs: list(jobResult),
  roundTrips,
  handlerQueries: int,
  claimMs: int,
  fenceMs: int,
  runMs: int,
  finishMs: int,
  totalMs: int,
  error: reportedError.exactOptional(),
});
export const report = z.object({
  invocationId: text,
  trigger: text,
  startedAt: at,
  ended: z.enum(["idle", "empty", "budget", "max-ticks", "busy", "error"]),
  ...sums,
  skipped,
  crashed: int.describe("Attempts found whose holder had died."),
  revision: int.nullable(),
  supersededBy: int.nullable(),
  fired: list(z.object({ schedule: text, jobs: list(id), duplicates: list(id) })),
  roundTrips,
  wakeMs: int,
  connectMs: int,
  totalMs: int,
  ticks: list(tickReport),
  faults: list(z.object({ step: text, sqlstate: text })),
  error: reportedError.exactOptional(),
});
export const failedReport = z.object({ error: reportedError, report });
export const accepted = z.object({ accepted: z.literal(true) });
export const health = z.object({ ok: z.literal(true) });

// Few enough in an installation to have no pages.
export const queueList = list(queueRow);
export const kindList = list(kindRow);
export const triggerList = list(triggerRow);
export const scheduleList = list(schedule);
export const tickPage = pageOf(tickRow);
