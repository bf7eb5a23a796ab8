// Requests as they come in, checked field by field: address, query, headers, body. What leaves this file is typed; a refusal
// names the field and never its value.

import type * as z from "zod";
import { type Duration, parseDuration } from "../duration.ts";
import { UsageError } from "../errors.ts";
import { counts } from "../limits.ts";
import { nearest } from "../nearest.ts";
import { assertStorable, maxPayloadDepth } from "../storable.ts";
import { invalid } from "./respond.ts";
import { newJob } from "./schemas.ts";

/** Jobs in one call of `POST /api/jobs`. */
const maxJobsPerRequest = counts.maxEnqueue;

/** Parameters `payload.<path>` of one request, and fields of a path. */
const maxPayloadParameters = 20;
const maxPayloadPath = 20;

/** One job, as `enqueueByKind` takes it. */
export interface JobInput {
  readonly kind: string;
  readonly payload: unknown;
  readonly runAt?: Date;
  readonly delay?: Duration;
  readonly deadlineAt?: Date;
  readonly trace?: string;
}

/** The jobs of one request, and whether they came as an array. */
export interface JobsInput {
  readonly jobs: readonly JobInput[];
  readonly many: boolean;
}

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
  const { kind, payload, runAt, delay, deadlineAt, trace } = parse(newJob, body, at);
  if (runAt !== undefined && delay !== undefined) throw invalid(join(at, "delay"), "give runAt or delay, not both");
  assertExactIntegers(payload, join(at, "payload"), `job "${kind}": `, 0);
  return {
    kind,
    payload,
    ...(runAt === undefined ? {} : { runAt: new Date(runAt) }),
    ...(delay === undefined ? {} : { delay: `${parseDuration(delay, join(at, "delay"))}ms` }),
    ...(deadlineAt === undefined ? {} : { deadlineAt: new Date(deadlineAt) }),
    ...(trace === undefined ? {} : { trace }),
  };
}

/** Refuses what no payload can contain, and what JSON text would change on its way into the filter. */
export function assertContainable(payload: unknown, path: string): void {
  assertStorable(payload, path, null);
  assertExactIntegers(payload, path, "", 0);
}

/**
 * Reads what stands behind the question mark.
 *
 * Shape:  the schema's fields, converted to the numbers and booleans they stand for; `payload` from `payload.<path>=value`,
 *         where the value is text, or JSON where the name ends in a colon: `payload.n:=42`.
 * Errors: PGCLAIM_INVALID_REQUEST with the path `query.<name>`, also for a name that is unknown or given twice.
 */
export function parseQuery(
  schema: z.ZodObject,
  parameters: URLSearchParams,
  takesPayload: boolean,
): Readonly<Record<string, unknown>> {
  const fields: Record<string, unknown> = {};
  const contained: [string, string][] = [];
  const seen = new Set<string>();
  for (const [name, value] of parameters) {
    const at = `query.${name.slice(0, maxShownName)}`;
    if (seen.has(name)) throw invalid(at, "given twice; expected it once");
    seen.add(name);
    if (takesPayload && name.startsWith("payload.")) contained.push([name, value]);
    else if (Object.hasOwn(schema.shape, name)) fields[name] = converted(schema.shape[name], value);
    else
      throw invalid(
        at,
        unknownOf("parameter", name, [...Object.keys(schema.shape), ...(takesPayload ? ["payload.*"] : [])]),
      );
  }
  const parsed = parse(schema, fields, "query");
  return contained.length === 0 ? parsed : { ...parsed, payload: payloadOf(contained) };
}

/** Text of an address as the number or boolean its schema wants; left as it is where it is none, for the schema to refuse. */
function converted(schema: unknown, value: string): unknown {
  const type = typeOf(schema);
  if (type === "number") return /^\d{1,15}$/.test(value) ? Number(value) : value;
  if (type === "boolean") return value === "true" ? true : value === "false" ? false : value;
  return value;
}

function payloadOf(parameters: readonly [string, string][]): Readonly<Record<string, unknown>> {
  if (parameters.length > maxPayloadParameters) {
    throw invalid("query.payload", `expected at most ${maxPayloadParameters} of its fields`);
  }
  const root = new Map<string, unknown>();
  for (const [name, value] of parameters) {
    const at = `query.${name.slice(0, maxShownName)}`;
    const isJson = name.endsWith(":");
    const path = name.slice("payload.".length, isJson ? -1 : undefined).split(".");
    if (path.length > maxPayloadPath || path.includes("")) {
      throw invalid(at, "expected payload. and the names of its fields, with dots between them");
    }
    put(root, path, isJson ? jsonOf(value, at) : value, at);
  }
  const payload = objectOf(root);
  assertContainable(payload, "query.payload");
  return payload;
}

function put(into: Map<string, unknown>, [name = "", ...rest]: readonly string[], value: unknown, at: string): void {
  const there = into.get(name);
  if (rest.length === 0 ? there !== undefined : !(there === undefined || there instanceof Map)) {
    throw invalid(at, "another parameter has said what this field is");
  }
  if (rest.length === 0) {
    into.set(name, value);
    return;
  }
  const inside = there instanceof Map ? there : new Map<string, unknown>();
  into.set(name, inside);
  put(inside, rest, value, at);
}

/** By way of entries, so that a field may be named `__proto__`. */
function objectOf(map: ReadonlyMap<string, unknown>): Readonly<Record<string, unknown>> {
  return Object.fromEntries([...map].map(([name, value]) => [name, value instanceof Map ? objectOf(value) : value]));
}

function jsonOf(text: string, at: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw invalid(at, "expected JSON, since the name ends in a colon");
  }
}

/**
 * Refuses integers that JSON text can carry and a JavaScript number cannot: past 2^53 they arrive changed, and a changed
 * amount or account is worse than a refused one. Stops at the depth where the claimer refuses the payload as a whole.
 * Source: RFC 7493 (I-JSON), section 2.2.
 */
function assertExactIntegers(value: unknown, path: string, subject: string, depth: number): void {
  if (typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value)) {
    throw new UsageError(
      "PGCLAIM_INVALID_PAYLOAD",
      `${subject}${path}: an integer beyond 2^53 loses digits in JSON; send it as text.`,
      { path },
    );
  }
  if (typeof value !== "object" || value === null || depth > maxPayloadDepth) return;
  const children = Array.isArray(value) ? value.entries() : Object.entries(value);
  for (const [key, child] of children) {
    assertExactIntegers(child, typeof key === "number" ? `${path}[${key}]` : `${path}.${key}`, subject, depth + 1);
  }
}

/**
 * Checks a value by its schema, in the schema's own words.
 *
 * Errors: PGCLAIM_INVALID_REQUEST with the path of the first fault, below `at`.
 */
export function parse<S extends z.ZodType>(schema: S, value: unknown, at = ""): z.output<S> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  if (issue === undefined) throw invalid(at, "expected something else");
  throw invalid(pathOf(at, issue.path), expectedOf(schema, issue));
}

function expectedOf(schema: z.ZodType, issue: z.core.$ZodIssue): string {
  if (issue.code === "unrecognized_keys") {
    return unknownOf("field", String(issue.keys[0]), fieldsAt(schema, issue.path));
  }
  // Objects and lists have no words of their own.
  if (issue.code === "invalid_type" && issue.expected === "object") return "expected a JSON object";
  return issue.message;
}

/** Characters of a name that a refusal repeats. */
const maxShownName = 60;

function unknownOf(what: string, name: string, known: readonly string[]): string {
  const meant = nearest(name.slice(0, maxShownName), known);
  const those = known.length === 0 ? "there are none" : `the ${what}s are ${known.join(", ")}`;
  const shown = JSON.stringify(name.slice(0, maxShownName));
  return `unknown ${what} ${shown}; ${meant === null ? those : `did you mean "${meant}"?`}`;
}

interface Definition {
  readonly type: string;
  readonly innerType?: unknown;
}

function definitionOf(schema: unknown): Definition {
  return (schema as { readonly def: Definition }).def;
}

function typeOf(schema: unknown): string {
  const { type, innerType } = definitionOf(schema);
  return type === "optional" ? typeOf(innerType) : type;
}

/** The fields of the object at this path of a schema. */
function fieldsAt(schema: unknown, [step, ...rest]: readonly PropertyKey[]): string[] {
  const { type, innerType } = definitionOf(schema);
  if (type === "optional") return fieldsAt(innerType, step === undefined ? [] : [step, ...rest]);
  const { shape } = schema as { readonly shape?: Readonly<Record<string, unknown>> };
  if (shape === undefined) return [];
  return step === undefined ? Object.keys(shape) : fieldsAt(shape[String(step)], rest);
}

function pathOf(at: string, path: readonly PropertyKey[]): string {
  return path.reduce<string>(
    (above, step) =>
      typeof step === "number" ? `${above}[${step}]` : join(above, String(step).slice(0, maxShownName)),
    at,
  );
}

function join(at: string, field: string): string {
  return at === "" || field === "" ? at + field : `${at}.${field}`;
}
