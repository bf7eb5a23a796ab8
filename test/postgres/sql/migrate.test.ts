// The schema's way up: many at once, never down, never over a changed past, and nobody loses what was granted.

import pg from "pg";
import { describe, expect, it, onTestFinished } from "vitest";
import * as z from "zod";
import { migrate, renderMigrations } from "../../../src/cli/migrate.ts";
import { defineJob } from "../../../src/index.ts";
import { setup, type World } from "../../support/world.ts";

async function empty(): Promise<World> {
  const world = await setup();
  await world.sql.query("drop schema pgclaim cascade");
  return world;
}

describe("migrate", () => {
  it("is done once by twenty that start at once, and leaves no lock", async () => {
    const world = await empty();
    const clients = await Promise.all(Array.from({ length: 20 }, () => world.connect()));
    const runs = await Promise.all(clients.map((client) => migrate({ client })));
    expect(runs.filter(({ applied }) => applied.length > 0)).toHaveLength(1);
    expect(new Set(runs.map(({ to }) => to)).size).toBe(1);
    expect(await world.locks()).toBe(0);
    expect(await migrate({ client: world.sql })).toMatchObject({ applied: [], functionsChanged: false });
  });

  it("gives roles their grants again when a function is made anew", async () => {
    const world = await setup();
    const role = `granted_${process.pid}`;
    await world.sql.query(`create role ${role} login password 'granted'`);
    onTestFinished(async () => {
      await world.sql.query(`drop owned by ${role}`);
      await world.sql.query(`drop role ${role}`);
    });
    for (const scope of ["enqueue", "run"]) await world.sql.query("select pgclaim.grant_v1($1, $2)", [scope, role]);
    await world.sql.query(
      "drop function pgclaim.claim_v1(jsonb), pgclaim.enqueue(text, jsonb, timestamptz, timestamptz)",
    );
    await world.sql.query("update pgclaim.schema_functions set digest = 'of an older release'");
    expect(await migrate({ client: world.sql })).toMatchObject({ functionsChanged: true });
    const url = new URL(world.url);
    url.username = role;
    url.password = "granted";
    const job = defineJob({ kind: "a", payload: z.object({}), async run() {} });
    const claimer = world.as(url.toString()).claimer("pg", { jobs: [job] });
    await claimer.register();
    const client = new pg.Client(url.toString());
    await client.connect();
    onTestFinished(() => client.end());
    await client.query("select pgclaim.enqueue('a', '{}')");
    expect(await claimer.invoke({ type: "manual" })).toMatchObject({ done: 1 });
  });

  it("refuses a database that is newer than itself, and a past that was changed, and changes nothing", async () => {
    const world = await setup();
    const version = Number(await world.value("select max(version) from pgclaim.migration"));
    await world.sql.query("insert into pgclaim.migration (version, name, digest) values ($1, 'later', 'x')", [
      version + 1,
    ]);
    await expect(migrate({ client: world.sql })).rejects.toMatchObject({ code: "PGCLAIM_SCHEMA_TOO_NEW" });
    await world.sql.query("delete from pgclaim.migration where version > $1", [version]);
    await world.sql.query("update pgclaim.migration set digest = 'x' where version = 1");
    await expect(migrate({ client: world.sql })).rejects.toMatchObject({ code: "PGCLAIM_MIGRATION_CHANGED" });
    expect(await world.value("select count(*)::integer from pgclaim.migration")).toBe(version);
  });

  it("refuses a schema that is somebody else's, and a name that cannot be one", async () => {
    const world = await setup();
    await world.sql.query("create schema taken");
    await world.sql.query("create table taken.x ()");
    await expect(migrate({ client: world.sql, schema: "taken" })).rejects.toMatchObject({
      code: "PGCLAIM_SCHEMA_OCCUPIED",
    });
    for (const schema of ["Upper", "pg_x", "public", "a;b", "", "select"]) {
      await expect(migrate({ client: world.sql, schema })).rejects.toMatchObject({
        code: "PGCLAIM_INVALID_SCHEMA_NAME",
      });
    }
  });

  it("installs under another name, where a job runs as well, beside the first installation", async () => {
    const world = await setup();
    await migrate({ client: world.sql, schema: "jobs" });
    const job = defineJob({ kind: "a", payload: z.object({}), orderingKey: "all", async run() {} });
    const claimer = world.claimer("neon", { jobs: [job], schema: "jobs" });
    await claimer.enqueueMany(job, [{}, {}]);
    expect(await claimer.invoke({ type: "manual" })).toMatchObject({ done: 2 });
    expect(await world.value("select count(*)::integer from jobs.history")).toBe(2);
    expect(await world.value("select count(*)::integer from pgclaim.history")).toBe(0);
  });

  it("prints a script that leaves the same schema", async () => {
    const picture = (world: World) =>
      world.rows(
        `select c.relname, c.relkind::text, array_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) order by a.attnum) as columns
         from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
         where c.relnamespace = 'pgclaim'::regnamespace group by 1, 2
         union all
         select p.oid::regprocedure::text, 'f', array[md5(p.prosrc), p.proacl::text] from pg_proc p where p.pronamespace = 'pgclaim'::regnamespace
         order by 1`,
      );
    const [migrated, scripted] = [await setup(), await empty()];
    await scripted.sql.query(await renderMigrations());
    expect(await picture(scripted)).toEqual(await picture(migrated));
    await expect(scripted.sql.query(await renderMigrations())).rejects.toThrow(/already exists|starts from version 0/);
    await scripted.sql.query("rollback");
  });
});
