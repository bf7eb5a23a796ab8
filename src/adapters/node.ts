// The transport for a plain Node process: pg over TCP, for the session and for one-shots.

import pg from "pg";
import { systemClock, timedOut, within } from "../clock.ts";
import {
  assertDatabaseUrl,
  type Database,
  destroySocket,
  literal,
  type OneShotCall,
  type PgClient,
} from "../database.ts";

export interface PgOptions {
  /**
   * Where one-shots connect, if not where the session does. Behind a small pool give them a pool of their own: a tick
   * holds a connection while it waits for its fence, so as many ticks as connections would wait for ever.
   */
  readonly oneShotConnectionString?: string;
}

/**
 * A database reached with `pg`. Session and one-shots each open a client of their own: from one small pool, two ticks
 * could wait for each other's fence for ever.
 *
 * Errors: PGCLAIM_INVALID_DATABASE_URL.
 */
export function pgDatabase(connectionString: string, options: PgOptions = {}): Database {
  assertDatabaseUrl(connectionString);
  const oneShotAddress = options.oneShotConnectionString ?? connectionString;
  assertDatabaseUrl(oneShotAddress);
  return {
    open() {
      const client = new pg.Client({ connectionString });
      return { client: client as unknown as PgClient, destroy: () => destroySocket(client) };
    },

    async oneShot(call) {
      const { limitMs } = call;
      const client = new pg.Client({ connectionString: oneShotAddress, connectionTimeoutMillis: limitMs });
      // A connection that breaks also rejects the query; without a listener it would end the process.
      client.on("error", () => {});
      try {
        const rows = await within(systemClock, limitMs, ask(client, call));
        if (rows === timedOut) throw new Error(`no answer within ${limitMs} ms`);
        return rows;
      } finally {
        client.end().catch(() => {});
        destroySocket(client);
      }
    },
  };
}

/** BEGIN, the call and COMMIT in one message, the argument as a literal. */
async function ask(
  client: pg.Client,
  { text, argument, limitMs, readOnly = false }: OneShotCall,
): Promise<Record<string, unknown>[]> {
  await client.connect();
  const message = [
    readOnly ? "begin isolation level repeatable read read only" : "begin isolation level read committed read write",
    `set local statement_timeout = ${limitMs}`,
    text.replace("$1", () => literal(argument)),
    "commit",
  ].join(";\n");
  const results = (await client.query(message)) as unknown as { command: string; rows: Record<string, unknown>[] }[];
  if (results.at(-1)?.command !== "COMMIT") throw new Error("COMMIT answered ROLLBACK");
  return results[2]?.rows ?? [];
}
