// What callers may send, as zod schemas: each says in its own words what was expected, so that the document, the types of the
// client and the refusals come from one place.

import * as z from "zod";
import type { Duration } from "../duration.ts";
import { type JobFilter, listStates } from "../inspection.ts";
import { counts } from "../limits.ts";
import { parseTraceparent } from "../telemetry.ts";

/** Rows of a page of any list. */
export const maxPageRows = 200;

/** Jobs of one slice of a bulk action, each slice with a commit of its own, and of one request. */
export const bulkSlice = 1_000;
export const maxBulk = 10_000;

/** Characters of an ordering key, a unique key or a trigger's name in a filter; the database has 500 bytes for a key. */
const maxTextLength = 500;

/** Largest 64-bit id. */
const maxJobId = 9_223_372_036_854_775_807n;

/** Characters that names and kinds are made of. */
const nameError = (max: number) => `expected 1 to ${max} letters, digits and . _ : -`;
const named = (max: number) => {
  const error = nameError(max);
  return z.string({ error }).regex(new RegExp(`^[A-Za-z0-9._:-]{1,${max}}$`), { error });
};
export const kindName = named(200);
export const queueName = named(100);
export const scheduleName = named(200);

const idError = `expected a whole number from 1 to ${maxJobId}`;
/** A job's id: 64 bits as text. */
export const jobId = z
  .string({ error: idError })
  .regex(/^[1-9]\d{0,18}$/, { error: idError, abort: true })
  .refine((text) => BigInt(text) <= maxJobId, { error: idError });

const instantError = 'expected an instant with its zone, for example "2026-11-30T14:00:00Z"';
export const instant = z.iso.datetime({ offset: true, error: instantError });

/** Read by parseDuration where it is used, so that a wrong one is refused in the same words everywhere. */
const duration = z
  .custom<Duration>()
  .meta({ type: "string", pattern: "^\\d+(\\.\\d+)?(ms|s|m|h|d)$", examples: ["20s"] });

const textError = `expected 1 to ${maxTextLength} characters that the database can store`;
/** Text to look for: what Postgres cannot store, it cannot compare with either. */
export const storable = z
  .string({ error: textError })
  .min(1, { error: textError })
  .max(maxTextLength, { error: textError })
  .refine((text) => !text.includes("\0") && text.isWellFormed(), { error: textError });

const oneOf = <const T extends readonly [string, ...string[]]>(values: T) =>
  z.enum(values, { error: `expected one of ${values.join(", ")}` });

const cursorError = "expected the `next` or `cursor` of an earlier answer, as it came";
export const cursor = z.string({ error: cursorError }).regex(/^[\x21-\x7e]{1,1000}$/, { error: cursorError });

const limitError = `expected a whole number from 1 to ${maxPageRows}`;
const limit = z
  .int({ error: limitError })
  .min(1, { error: limitError })
  .max(maxPageRows, { error: limitError })
  .optional()
  .describe("Rows of the page; 50.");

const page = { cursor: cursor.optional().describe("The `next` of the page before."), limit };

export const deadReasons = ["attempts", "handler", "crashed", "missed"] as const;
const fingerprintError = "expected a fingerprint as GET /api/dead answers it";

/** The fields of a filter that have one value each; a payload is asked for in other ways in an address and in a body. */
const filterFields = {
  state: oneOf(listStates).optional().describe("Not given: all unfinished jobs and dead letters, the newest id first."),
  queue: queueName.optional(),
  kind: kindName.optional(),
  orderingKey: storable.optional(),
  uniqueKey: storable.optional(),
  reason: oneOf(deadReasons).optional().describe("Why it is a dead letter."),
  fingerprint: z
    .string({ error: fingerprintError })
    .regex(/^[A-Za-z0-9_-]{1,100}$/, { error: fingerprintError })
    .optional()
    .describe("Of the error of a dead letter, as `GET /api/dead` answers it."),
  since: instant.optional().describe("Dead since, or finished since."),
};

export const jobsQuery = z.strictObject({ ...filterFields, ...page });
export const keysQuery = z.strictObject({
  halted: z.boolean({ error: "expected true or false" }).optional().describe("Only those whose head is a dead letter."),
  ...page,
});
export const ticksQuery = z.strictObject({
  trigger: storable.optional(),
  outcome: oneOf(["committed", "lost"]).optional(),
  ...page,
});
export const seriesQuery = z.strictObject({
  window: duration.optional().describe("How far back, 1m to 7d; 3h."),
  kind: kindName.optional(),
  queue: queueName.optional(),
});
export const noQuery = z.strictObject({});

const keyError = "expected 1 to 255 printable ASCII characters";
export const enqueueHeaders = z.object({
  "idempotency-key": z
    .string({ error: keyError })
    .regex(/^[\x20-\x7e]{1,255}$/, { error: keyError })
    .optional()
    .describe("A request whose key was seen within a day enqueues nothing; it is answered what the first one was."),
});

const traceError = "expected a W3C traceparent";
export const newJob = z.strictObject({
  kind: kindName,
  payload: z.unknown().refine((value) => value !== undefined, { error: "expected a JSON value" }),
  runAt: instant.optional().describe("When it is due; now. Not beside `delay`."),
  delay: duration.optional().describe("How long until it is due."),
  deadlineAt: instant.optional(),
  trace: z
    .string({ error: traceError })
    .refine((text) => parseTraceparent(text) !== null, { error: traceError })
    .optional()
    .describe("W3C traceparent: the job's span is linked to it."),
});
export const newJobs = z.union([newJob, z.array(newJob).min(1).max(counts.maxEnqueue)]);

const queuesError = "expected 1 to 20 names of letters, digits and . _ : -";
export const triggerRequest = z.strictObject({
  budget: duration.optional().describe("How long it may take; cut to the budget of this deployment."),
  wait: z
    .boolean({ error: "expected true or false" })
    .optional()
    .describe("false: answered 202 at once, where the runtime lets work go on after an answer."),
  queues: z
    .array(queueName, { error: queuesError })
    .min(1, { error: queuesError })
    .max(20, { error: queuesError })
    .optional()
    .describe("The queues to serve, the first one first."),
});
export const nothing = z.strictObject({});
export const rescheduleRequest = z.strictObject({ runAt: instant });

const payloadError = "expected an object, contained in the payload";
const anyFilter = z.strictObject({
  ...filterFields,
  payload: z
    .record(z.string(), z.unknown(), { error: payloadError })
    .optional()
    .describe("Contained in the payload. Looked for among the first 10,000 that match the rest."),
});
const filterOf = <const T extends readonly [string, ...string[]]>(states: T, example: string) =>
  anyFilter
    .extend({ state: oneOf(states).optional() })
    .refine((filter) => Object.keys(filter).length > 0, {
      error: `name at least one field; ${example}`,
    })
    .meta({ minProperties: 1 });

const bulk = {
  upTo: jobId
    .optional()
    .describe(
      "The highest id that is touched, of an earlier answer. Not given: the highest that matches now, or of all jobs where over 10,000 match.",
    ),
  cursor: cursor.optional().describe("Of an earlier answer with `more`."),
};
const deadFilter = filterOf(["dead"], '{"state": "dead"} is every dead letter');
export const redriveRequest = z.strictObject({
  filter: deadFilter,
  ...bulk,
  spread: duration.optional().describe("Spreads the new attempts of each 1,000 over so long."),
});
export const discardRequest = z.strictObject({ filter: deadFilter, ...bulk });
export const cancelRequest = z.strictObject({
  filter: filterOf(["ready", "scheduled", "retrying", "blocked"], '{"state": "ready"} is every job that is due'),
  ...bulk,
});
export type BulkRequest = z.output<typeof redriveRequest | typeof discardRequest | typeof cancelRequest>;

const startError = "expected transactionStart as GET /api/holders answers it";
export const terminateRequest = z.strictObject({
  transactionStart: z.iso.datetime({ offset: true, error: startError }),
});

const pidError = "expected a process id";
export const processId = z
  .string({ error: pidError })
  .regex(/^[1-9]\d{0,9}$/, { error: pidError, abort: true })
  .refine((text) => Number(text) < 2 ** 31, { error: pidError });

const uuidError = "expected the id of an invocation";
export const invocationId = z.string({ error: uuidError }).regex(/^[A-Za-z0-9-]{1,64}$/, { error: uuidError });

/** A filter as the claimer takes it: optional fields that are absent, not undefined. */
export function filterOfFields(fields: z.output<typeof anyFilter>): JobFilter {
  return defined(fields);
}

type Defined<T> = { [K in keyof T]: Exclude<T[K], undefined> };

/** Without the fields that are undefined, which exact optional types refuse. */
export function defined<T extends object>(fields: T): Defined<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Defined<T>;
}
