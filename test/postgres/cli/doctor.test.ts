// The doctor in front of deployments that are ill, each in one way: it names the check, says what to do, changes nothing and
// leaves nothing behind.

import pg from "pg";
import { describe, expect, it } from "vitest";
import type { Finding } from "../../../src/cli/doctor/finding.ts";
import { createApp } from "../../../src/http/app.ts";
import { installed, openTransactions, serverConnections, startPooler } from "../../pooler/support.ts";
import { roleOf } from "../../support/roles.ts";
import { setup, type World } from "../../support/world.ts";
import { kinds, nightly, pgclaim, type RunOptions, serve, stock } from "./support.ts";

interface Examined {
  readonly code: number | null;
  readonly text: string;
  of(name: string): Finding | undefined;
}

async function doctor(url: string, args: readonly string[] = [], options: RunOptions = {}): Promise<Examined> {
  const ran = await pgclaim(url, ["doctor", "--json", ...args], options);
  expect(ran.err).toBe("");
  const [answer] = ran.json<{ checks: Finding[]; exitCode: number; failed: number }>();
  expect(answer?.exitCode).toBe(ran.code);
  return { code: ran.code, text: ran.out, of: (name) => answer?.checks.find((check) => check.name === name) };
}

/** A deployment that works: kinds are registered, a cron has woken it, nothing is dead. */
async function healthy(): Promise<World> {
  const world = await setup();
  const claimer = world.claimer("pg", { jobs: Object.values(kinds), schedules: [nightly] });
  await claimer.enqueue(kinds.receipt, { orderId: "1" });
  await claimer.invoke({ type: "cron", cron: "* * * * *", scheduledAt: null });
  return world;
}

/** Every table of the installation with all its rows: the statistics of what was written come when they like. */
async function contents(world: World): Promise<Record<string, string>> {
  const tables = await world.rows<{ name: string }>(
    "select relname::text as name from pg_class where relnamespace = 'pgclaim'::regnamespace and relkind = 'r' order by 1",
  );
  const rows: Record<string, string> = {};
  for (const { name } of tables)
    rows[name] = await world.value<string>(
      `select coalesce(string_agg(t.xmin || ' ' || t::text, ';' order by t::text), '') from pgclaim.${name} t`,
    );
  return rows;
}

describe("pgclaim doctor", () => {
  it("finds a healthy deployment healthy, in words and as JSON, and changes nothing", async () => {
    const world = await healthy();
    const before = await contents(world);
    const found = await doctor(world.url);
    expect(JSON.parse(found.text).checks.filter(({ status }: Finding) => status === "FAIL")).toEqual([]);
    expect(found.code).toBe(0);
    expect(found.of("pooling")).toMatchObject({ status: "ok", facts: { mode: "direct" } });
    expect(found.of("schema")).toMatchObject({ status: "ok", facts: { missing: [], changed: [], extra: [] } });
    expect(found.of("triggers")).toMatchObject({ status: "ok" });
    const words = await pgclaim(world.url, ["doctor"]);
    expect(words.out).toMatch(/^postgres \d+\S* {3}\S+@\S+ {3}schema pgclaim\n/);
    expect(words.out).toMatch(/ ok {4}lock capacity {2,}[\d,]+ slots/);
    expect(words.out).toMatch(/\n0 failed, \d+ warnings?, \d+ ok {3}exit 0\n$/);
    expect(await world.locks()).toBe(0);
    expect(await openTransactions(world)).toBe(0);
    expect(await contents(world)).toEqual(before);
  });

  it("names an empty database, a missing migration and a newer one", async () => {
    const world = await setup();
    const empty = await doctor(world.url, ["--schema", "elsewhere"]);
    expect(empty).toMatchObject({ code: 1 });
    expect(empty.of("schema")).toMatchObject({ status: "FAIL", todo: "pgclaim migrate" });
    const version = await world.value<number>("select max(version) from pgclaim.migration");
    await world.sql.query("update pgclaim.migration set version = $1 where version = $2", [version + 1, version]);
    expect((await doctor(world.url)).of("schema")).toMatchObject({
      status: "FAIL",
      todo: expect.stringContaining("newer"),
    });
    await world.sql.query("delete from pgclaim.migration where version = $1", [version + 1]);
    const behind = await doctor(world.url);
    expect(behind.of("schema")).toMatchObject({
      status: "FAIL",
      todo: "pgclaim migrate",
      facts: { version: version - 1 },
    });
  });

  it("names what was changed by hand in the schema, and what it says to do puts it right", async () => {
    const world = await healthy();
    const body = await world.value<string>("select pg_get_functiondef('pgclaim.reap(integer)'::regprocedure)");
    await world.sql.query(body.replace("return crashed;", "return crashed + 1;"));
    await world.sql.query("drop function pgclaim.metrics_v1(jsonb)");
    await world.sql.query("create function pgclaim.mine() returns integer language sql as 'select 1'");
    const drifted = await doctor(world.url);
    expect(drifted).toMatchObject({ code: 1 });
    expect(drifted.of("schema")).toMatchObject({
      status: "FAIL",
      todo: "pgclaim migrate --functions",
      facts: { changed: ["reap"], missing: ["metrics_v1"], extra: ["mine"] },
    });
    expect((await pgclaim(world.url, ["migrate", "--functions"])).code).toBe(0);
    expect((await doctor(world.url)).of("schema")).toMatchObject({ status: "warn", facts: { extra: ["mine"] } });
    await world.sql.query("drop index pgclaim.job_ready; alter table pgclaim.job disable trigger job_place_at_commit");
    expect((await doctor(world.url)).of("schema")).toMatchObject({
      status: "FAIL",
      facts: { indexes: ["job_ready"], triggers: ["job_place_at_commit"] },
    });
  });

  it("names what a role lacks, of its own and of roles that were granted a scope", async () => {
    const world = await healthy();
    const nobody = await roleOf(world, null);
    expect((await doctor(nobody.url)).of("schema")).toMatchObject({
      status: "warn",
      measured: expect.stringContaining("could not be checked"),
    });
    expect((await doctor(nobody.url)).of("privileges")).toMatchObject({ status: "FAIL" });
    const operator = await roleOf(world, "operate");
    const own = await doctor(operator.url);
    expect(own.of("privileges")).toMatchObject({ facts: { scopes: ["operate"] } });
    // It may not read the owner's bookkeeping, and compares the functions all the same.
    expect(own.of("schema")).toMatchObject({ status: "ok", facts: { missing: [], changed: [] } });
    expect(own.of("kinds")).toMatchObject({ status: "ok" });
    const asked = await doctor(operator.url, ["--scope", "run"]);
    expect(asked).toMatchObject({ code: 1 });
    expect(asked.of("privileges")).toMatchObject({
      status: "FAIL",
      todo: expect.stringContaining(`grant_v1('run', '${operator.name}')`),
    });
    const runner = await roleOf(world, "run");
    expect((await doctor(world.url)).of("privileges")).toMatchObject({ status: "ok" });
    await world.sql.query(`revoke execute on function pgclaim.finish_v1(jsonb) from ${runner.name}`);
    const revoked = (await doctor(world.url)).of("privileges");
    expect(revoked).toMatchObject({
      status: "FAIL",
      todo: expect.stringContaining(`grant_v1('run', '${runner.name}')`),
    });
    expect(revoked?.measured).toContain("pgclaim.finish_v1(jsonb)");
  });

  it("names time limits of the role that cut a tick, or what sets none of its own", async () => {
    const world = await healthy();
    const role = await roleOf(world, "run");
    const set = (name: string, value: string) => world.sql.query(`alter role ${role.name} set ${name} = '${value}'`);
    const version = await world.value<number>("select current_setting('server_version_num')::integer");
    await set("statement_timeout", "5s");
    for (const url of [role.url, world.url]) {
      expect((await doctor(url)).of("timeouts")).toMatchObject({
        status: "warn",
        todo: `alter role ${role.name} set statement_timeout = 0;`,
      });
    }
    if (version < 170_000) return;
    await world.sql.query(`alter role ${role.name} reset statement_timeout`);
    await set("transaction_timeout", "5s");
    expect((await doctor(role.url)).of("timeouts")).toMatchObject({
      status: "warn",
      todo: `alter role ${role.name} set transaction_timeout = 0;`,
    });
  });

  it("names kinds nobody handles, halted keys and silent triggers", async () => {
    const world = await setup();
    await stock(world);
    // A deployment without two of the kinds comes after it; what waits there waits for ever.
    await world.claimer("pg", { jobs: [kinds.receipt] }).invoke({ type: "manual" });
    await world.sql.query(
      "update pgclaim.trigger set last_seen_at = last_seen_at - interval '1 hour' where type = 'cron'",
    );
    const found = await doctor(world.url);
    expect(found).toMatchObject({ code: 1 });
    expect(found.of("kinds")).toMatchObject({ status: "FAIL", measured: expect.stringContaining('"transfer" (1)') });
    expect(found.of("halted keys")).toMatchObject({ status: "warn", measured: "1 (1 jobs behind)" });
    expect(found.of("triggers")).toMatchObject({
      status: "FAIL",
      measured: expect.stringContaining('"cron * * * * *"'),
    });
    const strict = await doctor(world.url, ["--strict"]);
    expect(strict).toMatchObject({ code: 1 });
  });

  it("names jobs that were cut five times in a row", async () => {
    const world = await setup();
    const { later } = await stock(world);
    await world.sql.query(
      `insert into pgclaim.attempt (job_id, n, tick, quarantined, ended_at, outcome)
       select $1, n, gen_random_uuid(), false, clock_timestamp(), 'interrupted' from generate_series(1, 5) n`,
      [later],
    );
    await world.sql.query("update pgclaim.job set state = 'ready', suspect = true, attempt = 5 where id = $1", [later]);
    expect((await doctor(world.url)).of("interruptions")).toMatchObject({
      status: "warn",
      measured: expect.stringContaining('1 "receipt.send"'),
    });
  });

  it("holds the load that is expected against locks and connections", async () => {
    const world = await healthy();
    const found = await doctor(world.url, ["--batch", "200", "--invocations", "1000"]);
    expect(found).toMatchObject({ code: 1 });
    expect(found.of("lock capacity")).toMatchObject({ status: "FAIL", facts: { perJob: 2, tick: 400, all: 400_000 } });
    expect(found.of("connection budget")).toMatchObject({ status: "warn" });
    const role = await roleOf(world, "run");
    await world.sql.query(`alter role ${role.name} connection limit 5`);
    expect((await doctor(role.url)).of("connection budget")).toMatchObject({
      status: "warn",
      facts: { free: 5 - 0, room: 2 },
    });
  });

  it("names who keeps vacuum from its work", async () => {
    const world = await healthy();
    const reader = await world.connect();
    await reader.query("begin isolation level repeatable read; select count(*) from pgclaim.job");
    expect((await doctor(world.url)).of("bloat")).toMatchObject({ status: "ok" });
    await reader.query("rollback");
    await world.sql.query("alter table pgclaim.recheck set (autovacuum_enabled = false)");
    await world.sql.query("insert into pgclaim.recheck (gate) select 'x' from generate_series(1, 20000)");
    await world.sql.query("delete from pgclaim.recheck");
    await world.sql.query("select pg_stat_force_next_flush()");
    await expect
      .poll(async () => (await doctor(world.url)).of("bloat"), { timeout: 15_000 })
      .toMatchObject({
        status: "warn",
        measured: expect.stringContaining("recheck has 20,000 dead rows and 0 living"),
      });
  });
});

describe("secrets", () => {
  const good = (n: number) => `s${n}-Xq7vB2mZk9TtR4wLc8YdPn3`;

  it("are judged by length, variety and difference, and never shown", async () => {
    const world = await healthy();
    const env = {
      PGCLAIM_TRIGGER_SECRET: "hunter2",
      PGCLAIM_ENQUEUE_SECRET: "abababababababababababababababab",
      PGCLAIM_READ_SECRET: good(1),
      PGCLAIM_OPERATE_SECRET: good(1),
      CRON_SECRET: "undefined",
    };
    const found = await doctor(world.url, [], { env });
    expect(found).toMatchObject({ code: 1 });
    expect(found.of("secrets")?.facts.faults).toEqual([
      "PGCLAIM_TRIGGER_SECRET has 7 characters, expected 24 at least",
      "PGCLAIM_ENQUEUE_SECRET repeats itself",
      "CRON_SECRET is a missing value put into a string",
      "PGCLAIM_OPERATE_SECRET is the same as PGCLAIM_READ_SECRET",
    ]);
    for (const secret of ["hunter2", "abab", good(1), new URL(world.url).password])
      expect(found.text).not.toContain(secret);
    const fine = await doctor(world.url, [], {
      env: { PGCLAIM_READ_SECRET: good(1), PGCLAIM_OPERATE_SECRET: good(2) },
    });
    expect(fine.of("secrets")).toMatchObject({ status: "ok" });
  });

  it("are asked for at the deployment: closed is right, missing and open are not", async () => {
    const world = await healthy();
    const claimer = world.claimer("pg", { jobs: Object.values(kinds) });
    const all = { trigger: good(1), enqueue: good(2), read: good(3), operate: good(4) };
    const closed = await serve(createApp({ claimer: () => claimer, secrets: all }));
    expect((await doctor(world.url, ["--url", closed])).of("deployment")).toMatchObject({ status: "ok" });
    const { enqueue: _, ...rest } = all;
    const missing = await doctor(world.url, [
      "--url",
      await serve(createApp({ claimer: () => claimer, secrets: rest })),
    ]);
    expect(missing).toMatchObject({ code: 1 });
    expect(missing.of("deployment")).toMatchObject({
      status: "FAIL",
      todo: "set it: wrangler secret put PGCLAIM_ENQUEUE_SECRET",
    });
    const open = await doctor(world.url, ["--url", await serve({ fetch: () => new Response("{}") })]);
    expect(open.of("deployment")).toMatchObject({
      status: "FAIL",
      measured: expect.stringContaining("open to everybody"),
    });
    const other = await doctor(world.url, ["--url", await serve({ fetch: () => new Response("no", { status: 404 }) })]);
    expect(other.of("deployment")).toMatchObject({ status: "warn" });
    expect((await doctor(world.url, ["--url", "http://127.0.0.1:1"])).of("deployment")).toMatchObject({
      status: "FAIL",
    });
    expect((await pgclaim(world.url, ["doctor", "--url", "http://example.com"])).code).toBe(2);
  });
});

describe.runIf(installed)("behind a pooler", () => {
  it("proves transaction mode by backends, and leaves the pool's connections as they were", async () => {
    const world = await healthy();
    const { pooler } = await startPooler(world, 3);
    const before = await serverConnections(pooler.url("session"), 3);
    const found = await doctor(pooler.url("session"));
    expect(found.of("pooling")).toMatchObject({ status: "ok", facts: { mode: "transaction" } });
    expect(found.code).toBe(0);
    const after = await serverConnections(pooler.url("session"), 3);
    // Poolers keep the name as each client says it.
    const byPid = (all: typeof before) =>
      all.map((one) => ({ ...one, settings: { ...one.settings, application_name: "" } })).sort((a, b) => a.pid - b.pid);
    expect(byPid(after)).toEqual(byPid(before));
  });

  it("names a pool of one connection, in which a tick would wait for its own fence", async () => {
    const world = await healthy();
    const { pooler } = await startPooler(world, 1);
    expect((await doctor(pooler.url("session"))).of("pooling")).toMatchObject({
      status: "FAIL",
      facts: { poolSize: 1 },
    });
  });

  it("names a setting that somebody has left behind", async () => {
    const world = await healthy();
    const { pooler } = await startPooler(world, 2);
    const clients = [new pg.Client(pooler.url("session")), new pg.Client(pooler.url("session"))];
    for (const client of clients) await client.connect();
    await Promise.all(clients.map((client) => client.query("begin")));
    await Promise.all(clients.map((client) => client.query("set lock_timeout = '1s'")));
    await Promise.all(clients.map((client) => client.query("commit")));
    await Promise.all(clients.map((client) => client.end()));
    expect((await doctor(pooler.url("session"))).of("pooling")).toMatchObject({
      status: "warn",
      facts: { mode: "transaction", leftovers: ["lock_timeout"] },
    });
  });
});
