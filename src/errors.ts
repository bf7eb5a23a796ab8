// Every error pgclaim raises: three families, one table of codes, one table of SQLSTATEs.
// Nothing here knows the rest of the program; payloads, parameters and connection strings never enter a message.

/** Whose fault it is: the caller's code or configuration, the world's, or a handler's. */
export type ErrorFamily = "usage" | "database" | "job";

interface CodeFacts {
  readonly family: ErrorFamily;
  /** Whether the same call may succeed later without anybody changing anything. */
  readonly retryable: boolean;
  /** What the HTTP API answers. */
  readonly status: number;
}

const usage = (status: number) => ({ family: "usage", retryable: false, status }) as const;
const database = (retryable: boolean) => ({ family: "database", retryable, status: 503 }) as const;
const job = (retryable: boolean) => ({ family: "job", retryable, status: 500 }) as const;

/** Every code. Once released, a code keeps its meaning. */
export const errorCodes = {
  PGCLAIM_INVALID_OPTION: usage(400),
  PGCLAIM_INVALID_PAYLOAD: usage(400),
  PGCLAIM_PAYLOAD_TOO_LARGE: usage(413),
  PGCLAIM_INVALID_REQUEST: usage(400),
  PGCLAIM_BODY_TOO_LARGE: usage(413),
  PGCLAIM_UNKNOWN_KIND: usage(404),
  PGCLAIM_DUPLICATE_KIND: usage(400),
  PGCLAIM_KIND_FITS_NO_TRIGGER: usage(400),
  PGCLAIM_IDEMPOTENCY_CONFLICT: usage(422),
  PGCLAIM_JOB_NOT_FOUND: usage(404),
  PGCLAIM_JOB_NOT_DEAD: usage(409),
  PGCLAIM_JOB_NOT_WAITING: usage(409),
  PGCLAIM_JOB_BUSY: usage(409),
  PGCLAIM_NOT_FOUND: usage(404),
  PGCLAIM_ROUTE_NOT_FOUND: usage(404),
  PGCLAIM_SECRET_MISSING: usage(503),
  PGCLAIM_UNAUTHORIZED: usage(401),
  PGCLAIM_SCHEMA_MISSING: usage(503),
  PGCLAIM_SCHEMA_TOO_NEW: usage(503),
  PGCLAIM_MIGRATION_CHANGED: usage(500),
  PGCLAIM_MIGRATION_FILES: usage(500),
  PGCLAIM_INVALID_SCHEMA_NAME: usage(400),
  PGCLAIM_SCHEMA_OCCUPIED: usage(500),
  PGCLAIM_PERMISSION_DENIED: usage(503),
  PGCLAIM_WRONG_ISOLATION: usage(500),
  PGCLAIM_INVALID_DATABASE_URL: usage(503),
  PGCLAIM_CONNECT_FAILED: database(true),
  PGCLAIM_AUTHENTICATION_FAILED: database(false),
  PGCLAIM_TX_LOST: database(true),
  PGCLAIM_TX_FOREIGN: database(true),
  PGCLAIM_NO_ANSWER: database(true),
  PGCLAIM_SERIALIZATION: database(true),
  PGCLAIM_LOCKS_EXHAUSTED: database(true),
  PGCLAIM_OUTCOME_UNKNOWN: database(true),
  PGCLAIM_FINISH_FAILED: database(true),
  PGCLAIM_FENCE_FAILED: database(true),
  PGCLAIM_QUERY_FAILED: database(true),
  PGCLAIM_MIGRATION_FAILED: database(false),
  PGCLAIM_MIGRATION_LOCKED: database(true),
  PGCLAIM_HANDLER_THREW: job(true),
  PGCLAIM_HANDLER_TIMEOUT: job(true),
  PGCLAIM_HANDLER_ABORTED: job(true),
  PGCLAIM_STORED_PAYLOAD_INVALID: job(false),
  PGCLAIM_TX_CLOSED: job(true),
  PGCLAIM_TX_CONTROL: job(false),
  PGCLAIM_TURN_FAILED: job(true),
  PGCLAIM_INTERNAL: job(true),
} as const satisfies Record<string, CodeFacts>;

export type ErrorCode = keyof typeof errorCodes;
type CodeOf<F extends ErrorFamily> = {
  [C in ErrorCode]: (typeof errorCodes)[C]["family"] extends F ? C : never;
}[ErrorCode];

interface ErrorOptions {
  readonly cause?: unknown;
  /** Where in the input the fault lies, for example `payload.orderId`. Never the value. */
  readonly path?: string;
}

/** The base of everything pgclaim throws. Branch on `code` or `family`, never on the message. */
export abstract class PgclaimError extends Error {
  abstract readonly family: ErrorFamily;
  readonly code: ErrorCode;
  readonly retryable: boolean;
  readonly path?: string;

  constructor(code: ErrorCode, message: string, options: ErrorOptions = {}) {
    super(message, "cause" in options ? { cause: options.cause } : undefined);
    this.code = code;
    this.retryable = errorCodes[code].retryable;
    if (options.path !== undefined) this.path = options.path;
  }
}

/** The caller's code or configuration is wrong: thrown early, never retried. */
export class UsageError extends PgclaimError {
  readonly family = "usage";
  override readonly name = "UsageError";
  declare readonly code: CodeOf<"usage">;
  constructor(code: CodeOf<"usage">, message: string, options?: ErrorOptions) {
    super(code, message, options);
  }
}

/** The world failed: it ends the tick, and `retryable` says whether the next one may succeed. */
export class DatabaseError extends PgclaimError {
  readonly family = "database";
  override readonly name = "DatabaseError";
  declare readonly code: CodeOf<"database">;
  constructor(code: CodeOf<"database">, message: string, options?: ErrorOptions) {
    super(code, message, options);
  }
}

/** A handler failed: it never leaves `run`, it becomes the job's outcome. */
export class JobError extends PgclaimError {
  readonly family = "job";
  override readonly name = "JobError";
  declare readonly code: CodeOf<"job">;
  constructor(code: CodeOf<"job">, message: string, options?: ErrorOptions) {
    super(code, message, options);
  }
}

/** The SQLSTATEs pgclaim branches on. Ours begin with PC; the rest are PostgreSQL's, appendix "Error Codes". */
export const sqlStates = {
  wrongIsolation: "PC001",
  unknownKind: "PC002",
  refusedJob: "PC003",
  foreignTransaction: "PC004",
  notOurAttempt: "PC005",
  uniqueViolation: "23505",
  outOfSharedMemory: "53200",
  lockNotAvailable: "55P03",
  undefinedTable: "42P01",
  undefinedFunction: "42883",
  invalidSchema: "3F000",
  insufficientPrivilege: "42501",
  invalidPassword: "28P01",
  invalidAuthorization: "28000",
  protocolViolation: "08P01",
} as const;

/** The SQLSTATE of a driver's error, or null for anything the server did not say. */
export function sqlStateOf(error: unknown): string | null {
  if (typeof error !== "object" || error === null) return null;
  const code = (error as { code?: unknown }).code;
  return typeof code === "string" && /^[0-9A-Z]{5}$/.test(code) ? code : null;
}

/** The constraint a driver's error names, or null. */
export function constraintOf(error: unknown): string | null {
  const name = (error as { constraint?: unknown } | null)?.constraint;
  return typeof name === "string" ? name : null;
}

/**
 * Whether an error means that the session is over: the server ended it, or the transport broke.
 * Class 08 is the connection, 57P01 to 57P05 are shutdown and idle limits, 25P03 and 25P04 the transaction's time limits.
 */
export function isSessionOver(error: unknown): boolean {
  const state = sqlStateOf(error);
  return (
    state === null || state.startsWith("08") || /^57P0[1-5]$/.test(state) || state === "25P03" || state === "25P04"
  );
}

/** Whether a finish that failed so may succeed when repeated as it stands (protocol rule 14). */
export function isTransient(error: unknown): boolean {
  const state = sqlStateOf(error);
  return state === null || /^(08|40|53|57)/.test(state) || state === sqlStates.lockNotAvailable;
}

/**
 * Turns whatever was thrown into an Error. Drivers reject with an ErrorEvent (no Error, no message on Node) when a socket
 * breaks, and a handler may throw a string.
 */
export function toError(thrown: unknown): Error {
  if (thrown instanceof Error) return thrown;
  const message = (thrown as { message?: unknown } | null)?.message;
  if (typeof message === "string" && message !== "") return new Error(message, { cause: thrown });
  if (typeof thrown === "string" && thrown !== "") return new Error(thrown, { cause: thrown });
  // An ErrorEvent has a type, and on Node no message.
  const isEvent = typeof (thrown as { type?: unknown } | null)?.type === "string";
  return new Error(isEvent ? "the connection broke without a message" : "something was thrown that is no Error", {
    cause: thrown,
  });
}

/** One line of what a driver said: its SQLSTATE and message, without detail, hint or position, which may quote data. */
export function describeError(thrown: unknown): string {
  const state = sqlStateOf(thrown);
  const message = withoutConnectionStrings(toError(thrown).message);
  return state === null ? message : `${state}: ${message}`;
}

/** Drivers quote the address they were given in their errors, password and all. */
export function withoutConnectionStrings(text: string): string {
  return text.replace(/\bpostgres(?:ql)?:\/\/[^\s"'`)]+/gi, "postgres://(hidden)");
}

/** Gives a failed database call its code. `during` completes "while ...". */
export function databaseError(thrown: unknown, during: string): UsageError | DatabaseError {
  if (thrown instanceof UsageError || thrown instanceof DatabaseError) return thrown;
  const state = sqlStateOf(thrown);
  const cause = { cause: thrown };
  const said = describeError(thrown);
  switch (state) {
    case sqlStates.undefinedTable:
    case sqlStates.undefinedFunction:
    case sqlStates.invalidSchema:
      return new UsageError(
        "PGCLAIM_SCHEMA_MISSING",
        `The pgclaim schema is missing or too old (${said}). Run: npm run migrate.`,
        cause,
      );
    case sqlStates.insufficientPrivilege:
      return new UsageError(
        "PGCLAIM_PERMISSION_DENIED",
        `The database role may not do this while ${during} (${said}). See: select pgclaim.grant_v1('run', 'your_role').`,
        cause,
      );
    case sqlStates.wrongIsolation:
      return new UsageError(
        "PGCLAIM_WRONG_ISOLATION",
        `${said} This is a fault of the transport: it must name READ COMMITTED READ WRITE.`,
        cause,
      );
    case sqlStates.invalidPassword:
    case sqlStates.invalidAuthorization:
      return new DatabaseError(
        "PGCLAIM_AUTHENTICATION_FAILED",
        `The database refused the credentials while ${during} (${said}). Check DATABASE_URL.`,
        cause,
      );
    case sqlStates.protocolViolation:
      return new DatabaseError(
        "PGCLAIM_AUTHENTICATION_FAILED",
        `The database speaks another way of authentication (${said}). For SCRAM set pipelineConnect to false (PGCLAIM_PIPELINE_CONNECT=false).`,
        cause,
      );
    case sqlStates.outOfSharedMemory:
      return new DatabaseError(
        "PGCLAIM_LOCKS_EXHAUSTED",
        `The server's lock table is full while ${during} (${said}). Lower batch, or raise max_locks_per_transaction.`,
        cause,
      );
    case sqlStates.foreignTransaction:
      return new DatabaseError("PGCLAIM_TX_FOREIGN", `${said} Its jobs are rolled back and will run again.`, cause);
    default:
      if (state?.startsWith("40")) {
        return new DatabaseError(
          "PGCLAIM_SERIALIZATION",
          `The database could not order this transaction among others while ${during} (${said}). Try again.`,
          cause,
        );
      }
      return new DatabaseError(
        isSessionOver(thrown) ? "PGCLAIM_TX_LOST" : "PGCLAIM_QUERY_FAILED",
        `The database failed while ${during} (${said}).`,
        cause,
      );
  }
}
