// How an error is answered: one JSON shape for all of them, one log line for those that are ours. It must never pass on
// what an unexpected error says, and never a connection string.

import {
  DatabaseError,
  type ErrorCode,
  errorCodes,
  JobError,
  PgclaimError,
  UsageError,
  withoutConnectionStrings,
} from "../errors.ts";
import type { InvocationReport, ReportedError } from "../model.ts";
import type { Log, LogEntry } from "../report.ts";

/** The body of every answer that is not a success. */
export interface ErrorBody {
  readonly error: {
    readonly code: ErrorCode | (string & {});
    readonly message: string;
    /** Where in the request the fault lies, for example `jobs[2].payload.orderId`. */
    readonly path?: string;
  };
}

/** On every answer: nothing here may be kept by a cache or be taken for another type than it says. */
export const safeHeaders = { "cache-control": "no-store", "x-content-type-options": "nosniff" } as const;

/** An error whose answer differs from its code's: another status, or headers that go with it. */
export class Refusal extends Error {
  override readonly name = "Refusal";
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  override readonly cause: PgclaimError;

  constructor(status: number, cause: PgclaimError, headers: Readonly<Record<string, string>> = {}) {
    super(cause.message);
    this.status = status;
    this.cause = cause;
    this.headers = headers;
  }
}

/** Characters of an error's message and stack in a log line; Workers cut a request's log at 256 KB. */
const maxLoggedLength = 4_000;

export interface ErrorContext {
  /** The route, never the address that was asked for: addresses carry ids and worse. */
  readonly route: string;
  readonly log: Log;
}

/** A request that is wrong at `path`; `expected` completes the sentence. */
export function invalid(path: string, expected: string): UsageError {
  const message = `${path === "" ? "" : `${path}: `}${expected}${/[.?]$/.test(expected) ? "" : "."}`;
  return new UsageError("PGCLAIM_INVALID_REQUEST", message, path === "" ? {} : { path });
}

/** Turns whatever was thrown into its answer, and logs it if the fault is on our side (5xx). */
export function answerError(thrown: unknown, context: ErrorContext): Response {
  const answer = describe(thrown);
  if (answer.status >= 500) {
    logSafely(context.log, {
      level: "error",
      event: "pgclaim.request",
      route: context.route,
      status: answer.status,
      ...detailsOf(thrown),
    });
  }
  return Response.json(answer.body, { status: answer.status, headers: { ...safeHeaders, ...answer.headers } });
}

/** One line in the log for what was thrown, where the answer to it is no JSON. */
export function logFailure(thrown: unknown, context: ErrorContext): void {
  const { log, route } = context;
  logSafely(log, { level: "error", event: "pgclaim.request", route, status: 503, ...detailsOf(thrown) });
}

/** The answer to a trigger: the report, and in front of it the error's shape (503) if the invocation ended in one. */
export function answerInvocation(report: InvocationReport): Response {
  const shown = withoutInternals(report);
  if (report.ended !== "error") return Response.json(shown, { headers: safeHeaders });
  const error = reportedError(report.error);
  const retryable = isErrorCode(error.code) && errorCodes[error.code].retryable;
  const headers = { ...safeHeaders, ...(retryable ? retryHeaders : {}) };
  return Response.json({ error, report: shown }, { status: 503, headers });
}

function withoutInternals(report: InvocationReport): InvocationReport {
  const hide = <R extends { readonly error?: ReportedError }>(one: R): R =>
    one.error === undefined ? one : { ...one, error: reportedError(one.error) };
  return hide({ ...report, ticks: report.ticks.map(hide) });
}

/** What a report says went wrong, as it may leave this deployment. Its log line has it in full. */
function reportedError({ code, message }: ReportedError = { code: "PGCLAIM_INTERNAL", message: "" }): ReportedError {
  return code === "PGCLAIM_INTERNAL"
    ? { code, message: unexpected }
    : { code, message: withoutConnectionStrings(message) };
}

/** Logs a cron that could not run, and gives the Error to reject with: its message begins with the code. */
export function cronError(thrown: unknown, context: ErrorContext): Error {
  const details = detailsOf(thrown);
  logSafely(context.log, { level: "error", event: "pgclaim.cron", route: context.route, ...details });
  return new Error(`${details.code}: ${details.message}`);
}

/** The Error of an invocation that ended badly, or null. Its report has been logged already. */
export function errorOf(report: InvocationReport): Error | null {
  // `busy` is an isolate that runs a quarantined tick: nothing is wrong, and the next trigger does this one's work.
  if (report.ended === "busy" || (report.error === undefined && report.ended !== "error")) return null;
  const { code, message } = reportedError(report.error);
  return new Error(`${code}: ${message} (invocation ${report.invocationId})`);
}

/** A deployment that is set up wrongly: its caller is not told 4xx for it, whatever the code says. */
export function deploymentFault(thrown: unknown): unknown {
  return thrown instanceof PgclaimError ? new Refusal(503, thrown) : thrown;
}

const unexpected = "Something unexpected happened; the log of this deployment says what.";

const retryHeaders = { "retry-after": "1" } as const;

interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: ErrorBody;
}

function describe(thrown: unknown): Answer {
  if (thrown instanceof Refusal) {
    const answer = describe(thrown.cause);
    return { ...answer, status: thrown.status, headers: { ...answer.headers, ...thrown.headers } };
  }
  // A handler's error never leaves `run`; one that did says something about a job, so it is not passed on.
  if (!(thrown instanceof PgclaimError) || thrown instanceof JobError) {
    return { status: 500, headers: {}, body: { error: { code: "PGCLAIM_INTERNAL", message: unexpected } } };
  }
  const { code, path } = thrown;
  const error = { code, message: withoutConnectionStrings(thrown.message), ...(path === undefined ? {} : { path }) };
  return { status: errorCodes[code].status, headers: headersOf(thrown), body: { error } };
}

function headersOf(error: PgclaimError): Readonly<Record<string, string>> {
  if (error instanceof DatabaseError && error.retryable) return retryHeaders;
  return error instanceof UsageError && error.code === "PGCLAIM_UNAUTHORIZED" ? { "www-authenticate": "Bearer" } : {};
}

function detailsOf(thrown: unknown): { code: string; message: string; stack?: string } {
  const error = thrown instanceof Refusal ? thrown.cause : thrown;
  if (error instanceof PgclaimError) return { code: error.code, message: loggable(error.message) };
  if (!(error instanceof Error)) return { code: "PGCLAIM_INTERNAL", message: `a ${typeof error} was thrown` };
  const stack = error.stack === undefined ? {} : { stack: loggable(error.stack) };
  return { code: "PGCLAIM_INTERNAL", message: loggable(`${error.name}: ${error.message}`), ...stack };
}

function loggable(text: string): string {
  return withoutConnectionStrings(text).slice(0, maxLoggedLength);
}

function logSafely(log: Log, entry: LogEntry): void {
  try {
    log(entry);
  } catch {
    // The answer matters more than its log line.
  }
}

function isErrorCode(code: string): code is ErrorCode {
  return Object.hasOwn(errorCodes, code);
}
