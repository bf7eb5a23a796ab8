// A test's own world: a database copied from the template, an admin connection, the bridge, and both transports.

import pg from "pg";
import { inject, onTestFinished } from "vitest";
import { type Bridge, startBridge } from "../../scripts/world/bridge.ts";
import { pgDatabase } from "../../src/adapters/node.ts";
import { type Claimer, createClaimer } from "../../src/claimer.ts";
import type { ClaimerOptions } from "../../src/claimer_options.ts";
import type { Database } from "../../src/database.ts";
import { neonDatabase } from "../../src/neon.ts";
import type { LogEntry } from "../../src/report.ts";

export type TransportName = "pg" | "neon";

/** Both, or the one that PGCLAIM_TEST_TRANSPORT names: what another server version or a pooler changes is no transport's affair. */
export const transports: readonly TransportName[] = chosenTransports(process.env.PGCLAIM_TEST_TRANSPORT ?? "");

function chosenTransports(name: string): readonly TransportName[] {
  if (name === "") return ["pg", "neon"];
  if (name === "pg" || name === "neon") return [name];
  throw new Error(`PGCLAIM_TEST_TRANSPORT is "${name}"; expected "pg" or "neon".`);
}

export interface World {
  /** Connection string of this test's own database. */
  readonly url: string;
  readonly sql: pg.Client;
  /** Connects `sql` anew, after its server was restarted or its backend killed. */
  reconnect(): Promise<void>;
  readonly bridge: Bridge;
  /** Log lines of the claimers made here. */
  readonly log: LogEntry[];
  database(name: TransportName): Database;
  claimer(name: TransportName, options: Omit<ClaimerOptions, "database">): Claimer;
  /** The same database under another connection string: another role. */
  as(url: string): Pick<World, "database" | "claimer">;
  /** One more connection, closed with the test. */
  connect(): Promise<pg.Client>;
  rows<Row = Record<string, unknown>>(text: string, values?: readonly unknown[]): Promise<Row[]>;
  /** The first column of the first row. */
  value<T = unknown>(text: string, values?: readonly unknown[]): Promise<T>;
  /** Advisory locks that are held in this database right now. */
  locks(): Promise<number>;
}

/** A server with a database that has the schema in it. */
export interface TestServer {
  readonly adminUrl: string;
  readonly template: string;
}

let counter = 0;

/** Copying files is twice as fast on a server of ours, which never waits for its disk; on another it costs a checkpoint. */
const strategy = (process.env.DATABASE_URL ?? "") === "" ? " strategy file_copy" : "";

/** Makes a world, on the server all tests share or on one of the test's own; it is taken down when the test has finished. */
export async function setup({ adminUrl, template }: TestServer = sharedServer()): Promise<World> {
  const name = `t_${process.pid}_${++counter}`;
  await once(adminUrl, `create database ${name} template ${template}${strategy}`);
  const url = databaseUrl(adminUrl, name);
  const clients: pg.Client[] = [];
  const connect = async () => {
    const client = new pg.Client(url);
    client.on("error", () => {}); // a test may end its backend
    await client.connect();
    clients.push(client);
    return client;
  };
  let sql = await connect();
  const { hostname, port } = new URL(url);
  const poolers = adminUrl === inject("adminUrl") ? inject("poolers") : null;
  const bridge = await startBridge(
    poolers === null
      ? { target: { host: hostname, port: Number(port || 5432) } }
      : {
          target: { host: "127.0.0.1", port: poolers.session },
          sqlTarget: { host: "127.0.0.1", port: poolers.oneShot },
          allow: [`${hostname}:${port || 5432}`],
        },
  );
  const log: LogEntry[] = [];
  onTestFinished(async () => {
    await bridge.close();
    await Promise.all(clients.map((client) => client.end().catch(() => {})));
    await once(adminUrl, `drop database ${name} with (force)`);
  });
  const rows = async <Row>(text: string, values: readonly unknown[] = []) =>
    (await sql.query(text, [...values])).rows as Row[];
  const under = (address: string): Pick<World, "database" | "claimer"> => {
    const database = (transport: TransportName): Database =>
      transport === "pg"
        ? pgDatabase(pooled(address, "session"), { oneShotConnectionString: pooled(address, "oneShot") })
        : neonDatabase(address, {
            localBridge: `127.0.0.1:${bridge.port}`,
            // The embedded server takes cleartext, as Neon's proxy does; another one may want SCRAM.
            ...(process.env.DATABASE_URL === undefined ? {} : { pipelineConnect: false as const }),
          });
    return {
      database,
      claimer: (transport, options) =>
        createClaimer({ log: (entry) => log.push(entry), ...options, database: database(transport) }),
    };
  };
  const world: World = {
    url,
    get sql() {
      return sql;
    },
    async reconnect() {
      sql = await connect();
    },
    bridge,
    log,
    connect,
    rows,
    async value<T>(text: string, values: readonly unknown[] = []) {
      const [row] = await rows<Record<string, T>>(text, values);
      if (row === undefined) throw new Error(`no row: ${text}`);
      return Object.values(row)[0] as T;
    },
    locks: async () =>
      Number(
        await world.value(
          "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())",
        ),
      ),
    ...under(url),
    as: under,
  };
  return world;
}

/** Whether claimers reach the server through PgBouncer: what looks at their own connections has nothing to see then. */
export const isPooled = (process.env.PGCLAIM_TEST_POOLER ?? "") !== "";

/** Connections of others to this database. Those that a pooler keeps between two transactions do not count. */
export function connections(world: Pick<World, "value">): Promise<number> {
  return world.value(
    `select count(*)::integer from pg_stat_activity
     where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
       ${isPooled ? "and state <> 'idle'" : ""}`,
  );
}

/**
 * Where a claimer connects: a PgBouncer where PGCLAIM_TEST_POOLER asks for one, else the server. What the test does itself,
 * by `sql` and `connect`, is always direct: it looks at sessions and ends them.
 */
export function pooled(address: string, channel: "session" | "oneShot"): string {
  const poolers = inject("poolers");
  const url = new URL(address);
  // PgBouncer knows the admin's password only; roles that a test has made connect directly.
  const admin = new URL(inject("adminUrl"));
  if (poolers === null || url.username !== admin.username || url.host !== admin.host) return address;
  url.hostname = "127.0.0.1";
  url.port = String(poolers[channel]);
  return url.toString();
}

function sharedServer(): TestServer {
  return { adminUrl: inject("adminUrl"), template: inject("template") };
}

/** One statement on a connection of its own, which no restart in between can have broken. */
async function once(url: string, statement: string): Promise<void> {
  const client = new pg.Client(url);
  await client.connect();
  try {
    await client.query(statement);
  } finally {
    await client.end();
  }
}

function databaseUrl(adminUrl: string, name: string): string {
  const url = new URL(adminUrl);
  url.pathname = `/${name}`;
  return url.toString();
}
