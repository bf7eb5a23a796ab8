// A Postgres of a test file's own, to be crashed, stopped, filled up and made read-only; nobody else's server is ever touched.

import pg from "pg";
import { expect } from "vitest";
import { type PostgresOptions, type PostgresServer, startPostgres } from "../../scripts/world/postgres.ts";
import { migrate } from "../../src/cli/migrate.ts";
import { eventually } from "../support/gate.ts";
import type { TestServer, World } from "../support/world.ts";

/** PGCLAIM_KILLS=all: every stage in every way; CI plays some. */
export const everyStage = chosen(process.env.PGCLAIM_KILLS ?? "");

function chosen(value: string): boolean {
  if (value === "" || value === "all") return value === "all";
  throw new Error(`PGCLAIM_KILLS is "${value}"; expected "all".`);
}

/** fast: clients are told. immediate (SIGQUIT) and kill (SIGKILL of the postmaster) are crashes: recovery from WAL. */
export const stops = ["fast", "immediate", "kill"] as const;
export type Stop = (typeof stops)[number];

export interface OwnServer extends TestServer {
  readonly server: PostgresServer;
  /** Ends the server in that way and starts it again. */
  restart(how: Stop): Promise<void>;
}

export async function ownServer(options: Pick<PostgresOptions, "settings" | "dir"> = {}): Promise<OwnServer> {
  const major = Number(process.env.PGCLAIM_TEST_POSTGRES ?? 0);
  const server = await startPostgres({ ...options, ...(major === 0 ? {} : { major }) });
  try {
    const template = "pgclaim_template";
    await run(server.url(), `create database ${template}`);
    const client = new pg.Client(server.url(template));
    await client.connect();
    await migrate({ client });
    await client.end();
    return {
      server,
      adminUrl: server.url(),
      template,
      async restart(how) {
        if (how === "kill") await server.kill();
        await server.restart(how === "kill" ? "immediate" : how);
      },
    };
  } catch (error) {
    await server.stop();
    throw error;
  }
}

/** One statement on a connection of its own. */
export async function run<Row>(url: string, statement: string): Promise<Row[]> {
  const client = new pg.Client(url);
  client.on("error", () => {});
  await client.connect();
  try {
    return (await client.query(statement)).rows as Row[];
  } finally {
    await client.end();
  }
}

/** Sets a setting of the server (null: back to what it was) and waits until new connections have it. */
export async function setting(own: OwnServer, name: string, value: string | null): Promise<void> {
  await run(own.adminUrl, value === null ? `alter system reset ${name}` : `alter system set ${name} = '${value}'`);
  await run(own.adminUrl, "select pg_reload_conf()");
  await eventually(async () => {
    const [row] = await run<{ sourcefile: string | null; setting: string }>(
      own.adminUrl,
      `select setting, sourcefile from pg_settings where name = '${name}'`,
    );
    if (value === null) expect(row?.sourcefile ?? "").not.toMatch(/auto/);
    else expect(row?.setting).toBe(value);
  });
}

/** The pid of a background process of the server, by its type in pg_stat_activity. */
export async function backgroundPid(world: World, type: string): Promise<number> {
  return world.value<number>("select pid from pg_stat_activity where backend_type = $1", [type]);
}
