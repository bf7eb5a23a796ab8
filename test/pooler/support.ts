// What the pooler suites share: a world behind PgBouncer on either transport, and a look at the server's connections
// themselves, where what a session leaves behind would be.

import pg from "pg";
import { onTestFinished } from "vitest";
import { startBridge } from "../../scripts/world/bridge.ts";
import { findPgBouncer, type PgBouncer, startPgBouncer } from "../../scripts/world/pgbouncer.ts";
import { pgDatabase } from "../../src/adapters/node.ts";
import type { Database } from "../../src/database.ts";
import { neonDatabase } from "../../src/neon.ts";
import type { TransportName, World } from "../support/world.ts";

export const installed = findPgBouncer() !== null;
if (!installed)
  console.warn("NOT RUN: the pooler suite. PgBouncer is not installed (Debian: apt-get install pgbouncer).");

export interface Pooled {
  readonly pooler: PgBouncer;
  /** session and one-shots through these pools; over neon the bridge stands before PgBouncer. */
  database(transport: TransportName, pools?: { readonly oneShot: "session" | "oneshot" }): Promise<Database>;
}

export async function startPooler(world: World, poolSize: number): Promise<Pooled> {
  const pooler = await startPgBouncer({ target: world.url, poolSize });
  onTestFinished(() => pooler.stop());
  return {
    pooler,
    async database(transport, { oneShot } = { oneShot: "oneshot" }) {
      const url = pooler.url("session");
      if (transport === "pg") return pgDatabase(url, { oneShotConnectionString: pooler.url(oneShot) });
      const { hostname, port } = new URL(url);
      const bridge = await startBridge({ target: { host: hostname, port: Number(port) } });
      onTestFinished(() => bridge.close());
      const localBridge = `127.0.0.1:${bridge.port}`;
      const session = neonDatabase(url, { localBridge });
      const oneShots = neonDatabase(pooler.url(oneShot), { localBridge });
      return { open: () => session.open(), oneShot: (call) => oneShots.oneShot(call) };
    },
  };
}

/** A server connection of a pool, as seen from inside it. */
export interface ServerConnection {
  readonly pid: number;
  readonly user: string;
  readonly sessionUser: string;
  readonly settings: Readonly<Record<string, string>>;
  readonly tick: string;
  readonly prepared: number;
  readonly listening: number;
  readonly tempSchema: number;
  /** Advisory locks that this backend holds. */
  readonly locks: number;
}

/** Loads plpgsql, whose settings are there from its first use on. */
const begin = "begin; do $$ begin end $$";

const look = `select pg_backend_pid() as pid, current_user::text as "user", session_user::text as "sessionUser",
  (select json_object_agg(name, setting) from pg_settings) as settings,
  coalesce(current_setting('pgclaim.tick', true), '') as tick,
  (select count(*)::integer from pg_prepared_statements) as prepared,
  (select count(*)::integer from pg_listening_channels()) as listening,
  pg_my_temp_schema()::integer as "tempSchema",
  (select count(*)::integer from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()) as locks`;

async function withClients<T>(
  url: string,
  count: number,
  fn: (clients: readonly pg.Client[]) => Promise<T>,
): Promise<T> {
  const clients = Array.from({ length: count }, () => new pg.Client(url));
  try {
    await Promise.all(clients.map((client) => client.connect()));
    return await fn(clients);
  } finally {
    await Promise.all(clients.map((client) => client.end()));
  }
}

/** Every server connection of a pool: as many transactions at once as it has connections are on different ones. */
export function serverConnections(url: string, poolSize: number): Promise<ServerConnection[]> {
  return withClients(url, poolSize, async (clients) => {
    await Promise.all(clients.map((client) => client.query(begin)));
    const seen: ServerConnection[] = [];
    for (const client of clients) seen.push((await client.query<ServerConnection>(look)).rows[0] as ServerConnection);
    await Promise.all(clients.map((client) => client.query("rollback")));
    return seen;
  });
}

/** A connection that nobody has used before. */
export function freshConnection(url: string): Promise<ServerConnection> {
  return withClients(url, 1, async ([client]) => {
    await client?.query(begin);
    return (await client?.query<ServerConnection>(look))?.rows[0] as ServerConnection;
  });
}

/** What one connection still has of its former users, compared with a fresh one. */
export function leftovers(one: ServerConnection, fresh: ServerConnection): string[] {
  const left = Object.keys({ ...fresh.settings, ...one.settings })
    // Whoever asks says its own name.
    .filter((name) => name !== "application_name" && one.settings[name] !== fresh.settings[name])
    .map((name) => `${name} is ${one.settings[name]}, was ${fresh.settings[name]}`);
  for (const key of ["user", "sessionUser", "tick", "prepared", "listening", "tempSchema", "locks"] as const)
    if (one[key] !== fresh[key]) left.push(`${key} is ${one[key]}, was ${fresh[key]}`);
  return left;
}

/** Connections of this database that are inside a transaction, but for the asker's. */
export function openTransactions(world: World): Promise<number> {
  return world.value<number>(
    "select count(*)::integer from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' and xact_start is not null",
  );
}
