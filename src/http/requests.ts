// Requests as they come in: the body read up to its limit, JSON, then checked field by field. What leaves this file is
// typed; a refusal names the field and never its value.

import * as z from "zod";
import { type Duration, parseDuration } from "../duration.ts";
import { UsageError } from "../errors.ts";
import { counts } from "../limits.ts";
import type { JobId } from "../model.ts";
import { nearest } from "../nearest.ts";
import { maxPayloadDepth } from "../storable.ts";
import { Refusal } from "./respond.ts";

/** Bytes of a request body. One payload may have 1 MiB as stored; JSON text with its spaces and escapes needs more. */
export const maxBodyBytes = 1_500_000;

/** Jobs in one call of `POST /api/jobs`. */
const maxJobsPerRequest = counts.maxEnqueue;

/** Largest 64-bit id. */
const maxJobId = 9_223_372_036_854_775_807n;

/** One job, as `enqueueByKind` takes it. */
export interface JobInput {
  readonly kind: string;
  readonly payload: unknown;
  readonly runAt?: Date;
  readonly delay?: Duration;
  readonly deadlineAt?: Date;
}

/** The jobs of one request, and whether they came as an array. */
export interface JobsInput {
  readonly jobs: readonly JobInput[];
  readonly many: boolean;
}

const jobSchema = z.strictObject(
  {
    kind: z.string().regex(/^[A-Za-z0-9._:-]{1,200}$/),
    payload: z.unknown(),
    runAt: z.iso.datetime({ offset: true }).optional(),
    // Read by parseDuration, so that a wrong one is refused in the same words everywhere.
    delay: z.unknown().optional(),
    deadlineAt: z.iso.datetime({ offset: true }).optional(),
  },
  { error: refuseFields(["kind", "payload", "runAt", "delay", "deadlineAt"]) },
);
/** What a refusal says of each field. zod's own words would do, but they differ from those at `defineJob`. */
const expectedOf: Readonly<Record<string, string>> = {
  kind: "expected 1 to 200 letters, digits and . _ : -",
  payload: "expected a JSON value",
  runAt: 'expected an instant with its zone, for example "2026-11-30T14:00:00Z"',
  deadlineAt: 'expected an instant with its zone, for example "2026-11-30T14:00:00Z"',
  wait: "expected true or false",
  queues: "expected 1 to 20 names of letters, digits and . _ : -",
};

const nameSchema = z.string().regex(/^[A-Za-z0-9._:-]{1,100}$/);
const triggerSchema = z.strictObject(
  {
    budget: z.unknown().optional(),
    wait: z.boolean().optional(),
    queues: z.array(nameSchema).min(1).max(20).optional(),
  },
  { error: refuseFields(["budget", "wait", "queues"]) },
);
const emptySchema = z.strictObject({}, { error: refuseFields([]) });

/** Reads the body of `POST /api/jobs`: one job, or an array of them. */
export function parseJobs(body: unknown): JobsInput {
  if (body === undefined) throw invalid("", "expected a job or an array of jobs as JSON");
  if (!Array.isArray(body)) return { jobs: [parseJob(body, "")], many: false };
  if (body.length < 1 || body.length > maxJobsPerRequest) {
    throw invalid("jobs", `expected 1 to ${maxJobsPerRequest} jobs, got ${body.length}`);
  }
  return { jobs: body.map((job, i) => parseJob(job, `jobs[${i}]`)), many: true };
}

function parseJob(body: unknown, at: string): JobInput {
  const { kind, payload, runAt, delay, deadlineAt } = parse(jobSchema, body, at);
  if (runAt !== undefined && delay !== undefined) throw invalid(join(at, "delay"), "give runAt or delay, not both");
  const payloadPath = join(at, "payload");
  assertExactIntegers(payload, payloadPath, kind, 0);
  return {
    kind,
    payload,
    ...(runAt === undefined ? {} : { runAt: new Date(runAt) }),
    ...(delay === undefined ? {} : { delay: parseLength(delay, join(at, "delay")) }),
    ...(deadlineAt === undefined ? {} : { deadlineAt: new Date(deadlineAt) }),
  };
}

/** Reads the body of `POST /api/trigger`, which may be missing. */
export function parseTrigger(body: unknown): TriggerInput {
  if (body === undefined) return { wait: true };
  const { budget, wait = true, queues } = parse(triggerSchema, body, "");
  return {
    wait,
    ...(budget === undefined ? {} : { budgetMs: parseDuration(budget, "budget") }),
    ...(queues === undefined ? {} : { queues }),
  };
}

/** What `POST /api/trigger` may be told. */
export interface TriggerInput {
  readonly budgetMs?: number;
  /** Whether the answer waits for the report; without, it is 202 at once where the runtime lets work go on after it. */
  readonly wait: boolean;
  readonly queues?: readonly string[];
}

/** Characters of the names that stand in addresses, as `defineJob` and `defineSchedule` take them. */
const maxNameLengths = { queue: 100, schedule: 200 } as const;

/** Reads a queue's or a schedule's name out of the address. */
export function parseName(text: string | undefined, of: keyof typeof maxNameLengths): string {
  const max = maxNameLengths[of];
  if (text !== undefined && text.length <= max && /^[A-Za-z0-9._:-]+$/.test(text)) return text;
  throw invalid("name", `expected 1 to ${max} letters, digits and . _ : -`);
}

/** Refuses a body that says anything, on a route whose address says it all. */
export function parseNothing(body: unknown): void {
  if (body !== undefined) parse(emptySchema, body, "");
}

/** Reads a job's id out of the address. */
export function parseJobId(text: string | undefined): JobId {
  if (text === undefined || !/^[1-9]\d{0,18}$/.test(text) || BigInt(text) > maxJobId) {
    throw invalid("id", `expected a whole number from 1 to ${maxJobId}`);
  }
  return text;
}

/**
 * Reads a request's JSON.
 *
 * Shape:  the parsed value; undefined if there is no body.
 * Units:  `limit` in bytes, counted while reading. hono/body-limit was not taken because it believes content-length.
 * Errors: PGCLAIM_BODY_TOO_LARGE (413), PGCLAIM_INVALID_REQUEST (415 for another type or coding, else 400).
 */
export async function readJson(request: Request, limit: number): Promise<unknown> {
  const bytes = await readBytes(request, limit);
  if (bytes === null) return undefined;
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: false }).decode(bytes);
  } catch {
    throw invalid("", "the body is not UTF-8 text");
  }
  try {
    return JSON.parse(text);
  } catch {
    // The parser's own message quotes the text around the fault, which is somebody's payload.
    throw invalid("", "the body is not JSON");
  }
}

async function readBytes(request: Request, limit: number): Promise<Uint8Array | null> {
  if (request.body === null || request.headers.get("content-length") === "0") return null;
  const reader = request.body.getReader();
  const chunks: Uint8Array[] = [];
  let size = 0;
  try {
    if (Number(request.headers.get("content-length") ?? 0) > limit) throw tooLarge(limit);
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw invalid("", "the body ended early");
      });
      if (done) break;
      // An empty body may have any type: `curl -d ''` says it is a form.
      if (size === 0 && value.length > 0) assertJsonType(request.headers);
      size += value.length;
      if (size > limit) throw tooLarge(limit);
      chunks.push(value);
    }
  } catch (error) {
    // Tells the sender to stop. That it may be gone already changes nothing.
    await reader.cancel().catch(() => {});
    throw error;
  }
  return size === 0 ? null : concat(chunks, size);
}

function concat(chunks: readonly Uint8Array[], size: number): Uint8Array {
  const whole = new Uint8Array(size);
  let offset = 0;
  for (const chunk of chunks) {
    whole.set(chunk, offset);
    offset += chunk.length;
  }
  return whole;
}

function assertJsonType(headers: Headers): void {
  const refuse = (expected: string): Refusal => new Refusal(415, invalid("", expected));
  if (!/^application\/json\s*(?:;\s*charset\s*=\s*"?utf-8"?\s*)?$/i.test(headers.get("content-type") ?? "")) {
    throw refuse("expected content-type: application/json, in UTF-8");
  }
  if (!/^(?:identity)?$/i.test(headers.get("content-encoding") ?? "")) throw refuse("expected no content-encoding");
}

/**
 * Refuses integers that JSON text can carry and a JavaScript number cannot: past 2^53 they arrive changed, and a changed
 * amount or account is worse than a refused one. Stops at the depth where the claimer refuses the payload as a whole.
 * Source: RFC 7493 (I-JSON), section 2.2.
 */
function assertExactIntegers(value: unknown, path: string, kind: string, depth: number): void {
  if (typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value)) {
    throw new UsageError(
      "PGCLAIM_INVALID_PAYLOAD",
      `job "${kind}": ${path}: an integer beyond 2^53 loses digits in JSON; send it as text.`,
      { path },
    );
  }
  if (typeof value !== "object" || value === null || depth > maxPayloadDepth) return;
  const children = Array.isArray(value) ? value.entries() : Object.entries(value);
  for (const [key, child] of children) {
    assertExactIntegers(child, typeof key === "number" ? `${path}[${key}]` : `${path}.${key}`, kind, depth + 1);
  }
}

function parse<S extends z.ZodType>(schema: S, body: unknown, at: string): z.output<S> {
  const parsed = schema.safeParse(body);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  const field = String(issue?.path[0] ?? "");
  throw invalid(join(at, field), expectedOf[field] ?? issue?.message ?? "expected something else");
}

/** Says which field is unknown and what it may have meant; or that there must be an object. */
function refuseFields(known: readonly string[]): z.core.$ZodErrorMap {
  return (issue) => {
    if (issue.code !== "unrecognized_keys") return "expected a JSON object";
    const name = String(issue.keys[0]);
    const meant = nearest(name, known);
    const fields = known.length === 0 ? "there are none" : `the fields are ${known.join(", ")}`;
    return `unknown field ${JSON.stringify(name.slice(0, 60))}; ${meant === null ? fields : `did you mean "${meant}"?`}`;
  };
}

function parseLength(value: unknown, where: string): Duration {
  return `${parseDuration(value, where)}ms`;
}

function join(at: string, field: string): string {
  return at === "" || field === "" ? at + field : `${at}.${field}`;
}

function tooLarge(limit: number): UsageError {
  return new UsageError("PGCLAIM_BODY_TOO_LARGE", `The body is larger than ${limit} bytes. Send fewer jobs a call.`);
}

function invalid(path: string, expected: string): UsageError {
  const message = `${path === "" ? "" : `${path}: `}${expected}${/[.?]$/.test(expected) ? "" : "."}`;
  return new UsageError("PGCLAIM_INVALID_REQUEST", message, path === "" ? {} : { path });
}
