// Once for the whole run: a Postgres (embedded, or DATABASE_URL), and a template database with the schema in it. Every
// test copies the template, so no test sees another's jobs, and advisory locks, which are per database, do not meet.

import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import pg from "pg";
import type { TestProject } from "vitest/node";
import { type PgBouncer, startPgBouncer } from "../../scripts/world/pgbouncer.ts";
import { resolveDatabase } from "../../scripts/world/postgres.ts";
import { migrate } from "../../src/cli/migrate.ts";

declare module "vitest" {
  interface ProvidedContext {
    /** An admin URL of the test server. */
    readonly adminUrl: string;
    /** Name of the template database. */
    readonly template: string;
    /** Ports of two PgBouncers in transaction mode before the test server, or null: what the engine connects through. */
    readonly poolers: { readonly session: number; readonly oneShot: number } | null;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  // Whatever imports "pgclaim" by name meets what src/ is now, not what it was at the last build.
  const root = fileURLToPath(new URL("../../", import.meta.url));
  execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", "tsconfig.build.json"], {
    cwd: root,
    stdio: "inherit",
  });

  // Another major version than the embedded one, from the system's packages: PGCLAIM_TEST_POSTGRES=15.
  const major = Number(process.env.PGCLAIM_TEST_POSTGRES ?? 0);
  const server = await resolveDatabase(major === 0 ? {} : { major });
  const template = `pgclaim_template_${process.pid}`;
  const admin = new pg.Client(server.url());
  await admin.connect();
  await admin.query(`drop database if exists ${template}`);
  await admin.query(`create database ${template}`);
  const client = new pg.Client(server.url(template));
  await client.connect();
  await migrate({ client });
  await client.end();
  project.provide("adminUrl", server.url());
  project.provide("template", template);
  const poolers = await startPoolers(server.url());
  project.provide("poolers", poolers && { session: poolers.session.port, oneShot: poolers.oneShot.port });
  return async () => {
    await poolers?.session.stop();
    await poolers?.oneShot.stop();
    await admin.query(`drop database if exists ${template} with (force)`);
    await admin.end();
    await server.stop();
  };
}

/** Server connections for each test's database: more than any test has sessions at once. */
const poolSize = 60;

/** PGCLAIM_TEST_POOLER=transaction: every claimer of a test reaches the server through PgBouncer, one-shots by another one. */
async function startPoolers(target: string): Promise<{ session: PgBouncer; oneShot: PgBouncer } | null> {
  const mode = process.env.PGCLAIM_TEST_POOLER ?? "";
  if (mode === "") return null;
  if (mode !== "transaction") throw new Error(`PGCLAIM_TEST_POOLER is "${mode}"; expected "transaction".`);
  const start = () => startPgBouncer({ target, poolSize, databases: "server" });
  return { session: await start(), oneShot: await start() };
}
