// What is answered about jobs, dead letters and keys, as zod schemas of the types in inspection.ts; a test of types holds the
// two together. Nothing is parsed with them at run time: they are the document and the types of the client.

import * as z from "zod";
import { listStates } from "../inspection.ts";
import { deadReasons } from "./schemas.ts";

export const text = z.string();
export const int = z.int();
/** An id: 64 bits as text. */
export const id = z.string().meta({ pattern: "^[1-9][0-9]{0,18}$" });
export const at = z.string().meta({ format: "date-time" });
export const list = <S extends z.ZodType>(of: S) => z.array(of).readonly();

export const count = z.object({ n: int, capped: z.boolean().describe("There are at least `n`.") });

export const pageOf = <S extends z.ZodType>(row: S) =>
  z.object({
    items: list(row),
    next: text.nullable().describe("The cursor of the page behind it."),
    searched: int.nullable().describe("Rows looked at where a filter has no index; null: the answer is complete."),
    now: at,
  });

const why = z.object({
  reason: z.enum([
    "scheduled",
    "backoff",
    "behind",
    "halted",
    "busy",
    "limit",
    "paused",
    "running",
    "suspect",
    "due",
    "ended",
    "dead",
  ]),
  what: text.nullable().describe("The job, lock, limit or queue that is meant."),
});

export const jobRow = z.object({
  id,
  kind: text,
  queue: text,
  state: z.enum(listStates),
  priority: int.nullable(),
  attempt: int,
  failures: int,
  maxAttempts: int.nullable(),
  runAt: at,
  enqueuedAt: at,
  endedAt: at.nullable().describe("When it died or finished."),
  deadReason: z.enum(deadReasons).nullable(),
  deadlineAt: at.nullable(),
  slackMs: int.nullable().describe("Deadline minus now, or minus its end; negative is missed."),
  orderingKey: text.nullable(),
  uniqueKey: text.nullable(),
  why: why.describe("Why it does not run."),
  error: text.nullable().describe("The first 200 characters of its last error."),
  preview: text.nullable().describe("The first 160 characters of its payload; null above 2,048 bytes."),
  payloadBytes: int,
});

export const jobPage = pageOf(jobRow);

export const lockView = z.object({
  class: z.enum(["job", "key", "exclusive", "shared", "limit"]),
  name: text,
  heldBy: z.object({ pid: int, sinceMs: int.nullable(), mine: z.boolean() }).nullable(),
  taken: int.nullable(),
  max: int.nullable(),
});

export const actionView = z.object({ at, verb: text, actor: text, detail: text.nullable() });

const attempt = z.object({
  n: int,
  tick: text,
  quarantined: z.boolean(),
  startedAt: at,
  endedAt: at.nullable(),
  outcome: z
    .enum(["done", "failed", "snoozed", "released", "interrupted", "crashed", "cancelled"])
    .nullable()
    .describe("Null while it is open."),
  error: text.nullable(),
  invocationId: text.nullable(),
});

export const jobDetail = jobRow.extend({
  suspect: z.boolean(),
  revision: int.nullable(),
  place: text.nullable().describe("Its place in the line of its key."),
  trace: text.nullable(),
  source: text.nullable(),
  idempotencyKey: text,
  lastError: text.nullable(),
  payloadText: text.describe("The first 65,536 characters of the payload, with its numbers as they are stored."),
  payloadCut: z.boolean(),
  attempts: list(attempt),
  actions: list(actionView),
  locks: list(lockView),
  behind: count.nullable().describe("Jobs waiting behind it in its ordering key."),
});

/** `GET /api/jobs/{id}`: the detail, with what the route answered before there was one. */
export const jobAnswer = jobDetail.omit({ locks: true }).extend({
  finishedAt: at.nullable(),
  deadAt: at.nullable(),
  payload: z.unknown().describe("As JSON; numbers beyond 2^53 lose digits, `payloadText` keeps them."),
  locks: list(text).nullable().describe("Names it needs while it runs; null once it has ended."),
  lockStates: list(lockView).describe("Those names and its own, with who holds them now."),
});

export const enqueued = z.object({
  type: z.enum(["enqueued", "duplicate", "replaced", "rescheduled", "successor"]),
  id: id.describe("The job that stands for the request."),
});

export const enqueuedJobs = z.union([enqueued, list(enqueued)]).describe("A list where a list was sent.");

const operateTypes = ["retried", "discarded", "skipped", "cancelled", "requested", "rescheduled"] as const;
export const operated = z.object({ id, type: z.enum(operateTypes) });

export const bulkAnswer = z.object({
  changed: int,
  left: int.describe("Looked at and left alone: they had changed meanwhile, or were locked."),
  more: z.boolean().describe("Call again with the same filter, this `upTo` and this `cursor`."),
  upTo: id.nullable().describe("Null: nothing matched."),
  cursor: text.nullable(),
});

const deadGroup = z.object({
  kind: text,
  reason: text,
  fingerprint: text,
  example: text.nullable(),
  counts: z.object({ h1: int, h3: int, h24: int, d3: int, d7: int, all: int }),
});
export const deadGroups = z.object({ groups: list(deadGroup), searched: int, cut: z.boolean(), now: at });

export const keyRow = z.object({
  orderingKey: text,
  gate: text,
  kind: text,
  halted: z.boolean(),
  haltedAt: at.nullable(),
  head: id,
  headState: z.enum(listStates),
  headError: text.nullable(),
  next: id.nullable().describe("The job that would run if the head were skipped."),
  behind: count,
  oldestEnqueuedAt: at.nullable(),
  worstSlackMs: int.nullable(),
});
export const keyPage = pageOf(keyRow);
