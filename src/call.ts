// One call of a function of ours in a one-shot: its name in the installation's schema, its limit, and its errors in our words.

import type { Database } from "./database.ts";
import { DatabaseError, databaseError, describeError, PgclaimError, sqlStateOf, UsageError } from "./errors.ts";
import type { Row } from "./rows.ts";

export interface CallOptions {
  readonly database: Database;
  /** How long one call may take, in milliseconds. */
  readonly limits: { readonly oneShotMs: number };
  /** The installation's schema. */
  readonly schema: string;
}

export interface Caller {
  /** A function's name with its schema. */
  fn(name: string): string;
  /**
   * Sends one statement whose only parameter is `argument`, as JSON unless it is text already.
   *
   * Errors: PGCLAIM_CONNECT_FAILED where nobody knows whether it was done; else what the server said.
   */
  call(text: string, argument: unknown, during: string, readOnly?: boolean): Promise<readonly Row[]>;
}

/** Errors: PGCLAIM_INVALID_OPTION for a schema that is no plain name. */
export function caller({ database, limits, schema }: CallOptions): Caller {
  if (!/^[a-z_][a-z0-9_]{0,39}$/.test(schema)) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      "schema: expected a plain lower-case name of at most 40 letters, digits and _.",
    );
  }
  return {
    fn: (name) => `${schema}.${name}`,
    async call(text, argument, during, readOnly = false) {
      try {
        return await database.oneShot({
          text,
          argument: typeof argument === "string" ? argument : JSON.stringify(argument),
          limitMs: limits.oneShotMs,
          ...(readOnly ? { readOnly } : {}),
        });
      } catch (error) {
        // Not a word from the server: whether it did what was asked, nobody knows.
        if (!(error instanceof PgclaimError) && sqlStateOf(error) === null) {
          throw new DatabaseError(
            "PGCLAIM_CONNECT_FAILED",
            `The database did not answer while ${during} (${describeError(error)}). Is DATABASE_URL right, and the database up?`,
            { cause: error },
          );
        }
        throw databaseError(error, during);
      }
    },
  };
}
