// What is said when something cannot be shown: one sentence, and what to do. It must not pass on addresses, secrets, or what an
// unexpected error says.

import { DatabaseError, PgclaimError, sqlStateOf, withoutConnectionStrings } from "../../errors.ts";

export interface Fault {
  readonly code: string;
  readonly sentence: string;
  /** Nothing of the database can be shown: it was not reached, or it is not ours. */
  readonly unreachable: boolean;
}

/** What was asked for, or why there is none of it. */
export type Loaded<T> = { readonly value: T } | { readonly fault: Fault };

/** Waits for a read; a failure of it is a value, so that one region's failure never blanks the others. */
export async function load<T>(read: Promise<T>): Promise<Loaded<T>> {
  try {
    return { value: await read };
  } catch (error) {
    return { fault: faultOf(error) };
  }
}

const queryCancelled = "57014";

export function faultOf(error: unknown): Fault {
  if (!(error instanceof PgclaimError)) {
    return {
      code: "PGCLAIM_INTERNAL",
      sentence: "Something unexpected happened; the log of this deployment says what.",
      unreachable: false,
    };
  }
  const { code } = error;
  const reason = reasonOf(error.cause);
  if (sqlStateOf(error.cause) === queryCancelled) {
    return {
      code,
      sentence: "This took longer than 2 s and was cancelled. Narrow the filter: choose a queue or a shorter time.",
      unreachable: false,
    };
  }
  if (code === "PGCLAIM_CONNECT_FAILED" || code === "PGCLAIM_TX_LOST" || code === "PGCLAIM_AUTHENTICATION_FAILED") {
    return {
      code,
      sentence: `Cannot reach the database (${code}): ${reason}. Run \`pgclaim doctor\`.`,
      unreachable: true,
    };
  }
  if (code === "PGCLAIM_SCHEMA_MISSING") {
    return {
      code,
      sentence: `The database's schema is missing, or older than this dashboard (${reason}). Run \`pgclaim migrate\`.`,
      unreachable: true,
    };
  }
  return {
    code,
    sentence: `${code}: ${withoutConnectionStrings(error.message)}`,
    unreachable: !(error instanceof DatabaseError) && code === "PGCLAIM_INVALID_DATABASE_URL",
  };
}

/** What a driver or the server said, without the address it was said about. */
function reasonOf(cause: unknown): string {
  const state = sqlStateOf(cause);
  const system = (cause as { code?: unknown } | null | undefined)?.code;
  if (state === null && typeof system === "string") return system.slice(0, 40);
  const message = cause instanceof Error ? cause.message : "";
  const text = withoutConnectionStrings(message)
    .replace(/\[?[0-9a-f]*:[0-9a-f:.]+\]?:\d+|\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b/gi, "(address)")
    // A driver names hosts; what the server says has names of functions, which look alike.
    .replace(state === null ? /\b[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?\b/gi : /$^/, "(address)")
    .replace(/\.$/, "")
    .slice(0, 200);
  return `${state === null ? "" : `${state}: `}${text === "" ? "no answer" : text}`;
}
