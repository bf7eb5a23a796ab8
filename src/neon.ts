// The transport for serverless runtimes: the session over WebSocket, one-shots over HTTP. @neondatabase/serverless.

import { Client, neon, neonConfig } from "@neondatabase/serverless";
import { assertDatabaseUrl, type Database, destroySocket, type PgClient } from "./database.ts";
import { DroppableSocket, isWorkerd } from "./workerd_socket.ts";

export interface NeonOptions {
  /**
   * `"password"` (default) sends the password with the first message, as Neon's proxy allows, and saves two round trips.
   * `false` works with every way of authentication, SCRAM too.
   */
  readonly pipelineConnect?: "password" | false;
  /** `host:port` of the local bridge of `npm run dev`. Sets the driver's global HTTP endpoint: for development only. */
  readonly localBridge?: string;
}

/**
 * A database behind Neon's proxy, or anything that speaks its protocol.
 *
 * Errors: PGCLAIM_INVALID_DATABASE_URL; the address itself never enters a message.
 */
export function neonDatabase(connectionString: string, options: NeonOptions = {}): Database {
  assertDatabaseUrl(connectionString);
  const bridge = options.localBridge;
  // The driver knows this one only as a global.
  if (bridge !== undefined) neonConfig.fetchEndpoint = () => `http://${bridge}/sql`;
  const sql = neon(connectionString);

  return {
    open() {
      const client = new Client({ connectionString });
      client.neonConfig.pipelineConnect = options.pipelineConnect ?? "password";
      if (bridge !== undefined) {
        client.neonConfig.wsProxy = (host: string, port: string | number) => `${bridge}/v2?address=${host}:${port}`;
        client.neonConfig.useSecureWebSocket = false;
      }
      const sockets = new Set<DroppableSocket>();
      if (isWorkerd()) {
        client.neonConfig.webSocketConstructor = class extends DroppableSocket {
          constructor(url: string) {
            super(url);
            sockets.add(this);
          }
        } as unknown as typeof WebSocket;
      }
      return {
        client: client as unknown as PgClient,
        destroy() {
          destroySocket(client);
          for (const socket of sockets) socket.drop();
        },
      };
    },

    async oneShot({ text, argument, limitMs, readOnly = false }) {
      const results = await sql.transaction(
        [
          // The driver's `readOnly: false` names nothing: where the database's default is read only, so is the batch.
          sql.query(`set transaction read ${readOnly ? "only" : "write"}`),
          sql.query("select pg_catalog.set_config('statement_timeout', $1, true)", [String(limitMs)]),
          sql.query(text, [argument]),
        ],
        {
          isolationLevel: readOnly ? "RepeatableRead" : "ReadCommitted",
          readOnly,
          fetchOptions: { signal: AbortSignal.timeout(limitMs) },
        },
      );
      return results[2] as Record<string, unknown>[];
    },
  };
}
