// Who may do what. A role that enqueues can do nothing else; nothing is open to everybody; and no function leans on the
// caller's search_path, which for a SECURITY DEFINER function would be a hole and for the others a surprise.

import pg from "pg";
import { describe, expect, it, onTestFinished } from "vitest";
import {
  all,
  claimOn,
  crash,
  enqueue,
  enqueueOne,
  fence,
  finish,
  type Installation,
  install,
  job,
  newTick,
  reap,
  register,
  runTick,
  settle,
  sqlState,
  wake,
} from "./support.ts";

const DENIED = "42501";

let roles = 0;

/** A login role of this test's own, with one scope or none, and a session of it whose search_path is empty. */
async function as(world: Installation, scope?: "enqueue" | "run" | "operate"): Promise<pg.Client> {
  const role = `pgclaim_test_${process.pid}_${++roles}`;
  await world.sql.query(`create role ${role} login password 'secret'`);
  if (scope !== undefined) await world.sql.query("select pgclaim.grant_v1($1, $2)", [scope, role]);
  const url = new URL(world.url);
  url.username = role;
  url.password = "secret";
  const client = new pg.Client(url.toString());
  client.on("error", () => {});
  await client.connect();
  await client.query("set search_path = ''");
  onTestFinished(async () => {
    await client.end().catch(() => {});
    await world.sql.query(`drop owned by ${role}; drop role ${role}`);
  });
  return client;
}

/** Every function of the schema, as a call that would be valid. */
const calls: Record<string, string> = {
  job_key: "pgclaim.job_key(1, 1)",
  name_key: "pgclaim.name_key('a', 'b', 1)",
  try_job_lock: "pgclaim.try_job_lock('a', 1)",
  require_read_committed: "pgclaim.require_read_committed()",
  backoff_ms: "pgclaim.backoff_ms('fixed', 1, 1, 1, 0)",
  enqueue_v1: `pgclaim.enqueue_v1('{"jobs": []}')`,
  enqueue: "pgclaim.enqueue('a')",
  register_v1: `pgclaim.register_v1('{"digest": "x", "kinds": []}')`,
  reap: "pgclaim.reap(1)",
  promote_due: "pgclaim.promote_due(1)",
  prune: "pgclaim.prune(1, null)",
  has_ready: "pgclaim.has_ready('{}', false)",
  wake_v1: `pgclaim.wake_v1('{"digest": "x", "queues": []}')`,
  claim_v1: `pgclaim.claim_v1('{"queues": []}')`,
  fence_v1: `pgclaim.fence_v1('{"jobs": []}')`,
  end_turn_v1: "pgclaim.end_turn_v1('{}')",
  finish_v1: `pgclaim.finish_v1('{"jobs": []}')`,
  settle_v1: `pgclaim.settle_v1('{"jobs": []}')`,
  cancel_query_v1: "pgclaim.cancel_query_v1('{}')",
  retry_v1: "pgclaim.retry_v1(1)",
  discard_v1: "pgclaim.discard_v1(1)",
  job_v1: "pgclaim.job_v1(1)",
  grant_v1: "pgclaim.grant_v1('run', 'postgres')",
};

const tables = ["installation", "revision", "kind", "job", "attempt", "tick", "history"];

/** Names of the calls that are not refused for want of a right. */
async function allowed(client: pg.Client): Promise<string[]> {
  const names: string[] = [];
  for (const [name, call] of Object.entries(calls)) {
    await client.query("begin isolation level read committed");
    const refused = await client.query(`select ${call}`).then(
      () => false,
      (error: unknown) => error instanceof pg.DatabaseError && error.code === DENIED,
    );
    await client.query("rollback");
    if (!refused) names.push(name);
  }
  return names;
}

describe("everybody", () => {
  it("may execute nothing, read nothing, and not even look into the schema", async () => {
    const world = await install();
    const client = await as(world);
    expect(await allowed(client)).toEqual([]);
    for (const table of tables) expect(await sqlState(client.query(`select from pgclaim.${table}`))).toBe(DENIED);
  });

  it("has no right on any function or table of the schema, not one that was added later", async () => {
    const world = await install();
    const open = await world.rows(`
      select p.oid::regprocedure::text as what
      from pg_proc p
      where p.pronamespace = 'pgclaim'::regnamespace
        and (p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0))
      union all
      select c.oid::regclass::text
      from pg_class c
      where c.relnamespace = 'pgclaim'::regnamespace
        and exists (select from aclexplode(c.relacl) a where a.grantee = 0)
      union all
      select 'the schema' from pg_namespace n
      where n.nspname = 'pgclaim' and exists (select from aclexplode(n.nspacl) a where a.grantee = 0)`);
    expect(open).toEqual([]);
  });

  it("meets in this file a call of every function there is", async () => {
    const world = await install();
    const names = await world.rows<{ name: string }>(
      "select distinct proname as name from pg_proc where pronamespace = 'pgclaim'::regnamespace",
    );
    expect(Object.keys(calls).sort()).toEqual(names.map((row) => row.name).sort());
  });

  it("finds only enqueue_v1 to run with its owner's rights, with a search_path of its own", async () => {
    const world = await install();
    expect(
      await world.rows(
        "select proname, proconfig from pg_proc where pronamespace = 'pgclaim'::regnamespace and prosecdef",
      ),
    ).toEqual([{ proname: "enqueue_v1", proconfig: ["search_path=pg_catalog, pg_temp"] }]);
  });
});

describe("grant_v1('enqueue')", () => {
  it("lets a role enqueue, by either function, inside its own transaction", async () => {
    const world = await install();
    const client = await as(world, "enqueue");
    await client.query("begin isolation level serializable");
    await client.query(`select pgclaim.enqueue('a', '{"n": 1}'::pg_catalog.jsonb)`);
    await enqueue(client, 2);
    await client.query("commit");
    expect(await runTick(world)).toHaveLength(3);
  });

  it("and nothing else: no other function, no table", async () => {
    const world = await install();
    const client = await as(world, "enqueue");
    expect(await allowed(client)).toEqual(["enqueue_v1", "enqueue"]);
    for (const table of tables) {
      expect(await sqlState(client.query(`select from pgclaim.${table}`)), table).toBe(DENIED);
      expect(await sqlState(client.query(`delete from pgclaim.${table}`)), table).toBe(DENIED);
    }
  });

  it("does not let a temporary object of the caller stand in for one the function uses", async () => {
    const world = await install();
    const client = await as(world, "enqueue");
    await client.query(`
      create table pg_temp.kind as select 'evil'::text as name;
      create function pg_temp.clock_timestamp() returns timestamptz language sql as $$ select 1 / 0; select now() $$;
      set search_path = pg_temp, pg_catalog`);
    expect(await enqueueOne(client)).toMatch(/^\d+$/);
    expect(await sqlState(client.query("select pgclaim.enqueue('evil')"))).toBe("PC002");
  });

  it("cannot override what the kind decides: unknown fields are not looked at", async () => {
    const world = await install();
    const client = await as(world, "enqueue");
    const { rows } = await client.query<{ job_id: string }>("select job_id from pgclaim.enqueue_v1($1)", [
      JSON.stringify({ jobs: [{ kind: "a", payload: {}, priority: 0, queue: "vip", revision: 99, suspect: true }] }),
    ]);
    expect(await job(world.sql, String(rows[0]?.job_id))).toMatchObject({
      queue: "default",
      priority: 2,
      revision: world.revision,
      suspect: false,
    });
  });
});

describe("grant_v1('run')", () => {
  it("lets a role do a whole tick, settle, housekeeping and registration, with an empty search_path", async () => {
    const world = await install();
    const client = await as(world, "run");
    const oneShot = await as(world, "run");
    await oneShot.query("set search_path = ''");
    await register(client, [{ name: "a" }, { name: "b" }, { name: "new", minBackoffMs: 0, maxBackoffMs: 0 }]);
    await enqueue(client, 5);
    await enqueueOne(client, "new");
    expect(await wake(oneShot, { historyMs: 1 })).toMatchObject({ ready: true, faults: [] });
    const session = await claimOn(client, { kinds: ["a", "b", "new"] });
    expect(session.jobs).toHaveLength(6);
    expect(await fence(oneShot, session)).toHaveLength(6);
    await client.query("select pgclaim.end_turn_v1('{}')");
    const wanted = ["done", "failed", "dead", "snoozed", "released", "failed"] as const;
    await finish(
      client,
      session.tick,
      session.jobs.map((entry, i) => ({
        ...entry,
        outcome: wanted[i] ?? "done",
        enqueue: i === 0 ? [{ kind: "b", payload: {} }] : [],
      })),
    );
    const lost = await claimOn(client);
    await fence(oneShot, lost);
    await client.query("rollback");
    expect(await settle(oneShot, lost)).toBe("lost");
    const crashed = await claimOn(client);
    await fence(oneShot, crashed);
    await client.query("rollback");
    expect(await reap(oneShot)).toBeGreaterThan(0);
    await world.sql.query(`
      update pgclaim.attempt set started_at = now() - interval '9 days', ended_at = now() - interval '9 days' where outcome is not null;
      update pgclaim.tick set decided_at = now() - interval '9 days';
      update pgclaim.job set run_at = now() where state = 'scheduled'`);
    const answer = await wake(oneShot, { historyMs: 0 });
    expect(answer.faults).toEqual([]);
    expect(answer.pruned).toBeGreaterThan(0);
    expect(answer.promoted).toBeGreaterThan(0);
    await oneShot.query(`select pgclaim.cancel_query_v1('{"pid": 1, "kind": "a", "jobId": "1"}')`);
  });

  it("and not what an operator does, nor grant anything", async () => {
    const world = await install();
    const names = await allowed(await as(world, "run"));
    for (const name of ["retry_v1", "discard_v1", "grant_v1"]) expect(names).not.toContain(name);
    for (const name of ["claim_v1", "fence_v1", "finish_v1", "settle_v1", "wake_v1", "register_v1", "enqueue"]) {
      expect(names).toContain(name);
    }
  });
});

describe("grant_v1('operate')", () => {
  it("lets a role look at jobs, retry and discard dead letters, with an empty search_path", async () => {
    const world = await install();
    const [x, y] = (await enqueue(world.sql, 2)) as [string, string];
    await runTick(world, {}, "dead");
    const client = await as(world, "operate");
    const ask = async (call: string, id: string) =>
      (await client.query<{ answer: Record<string, unknown> }>(`select pgclaim.${call}($1) as answer`, [id])).rows[0]
        ?.answer;
    expect(await ask("job_v1", x)).toMatchObject({ id: x, state: "dead" });
    expect(await ask("retry_v1", x)).toEqual({ type: "retried", state: "ready" });
    expect(await ask("discard_v1", y)).toEqual({ type: "discarded" });
    expect(await ask("job_v1", y)).toMatchObject({ id: y, state: "discarded" });
  });

  it("and neither claim nor enqueue nor change what has been", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    await crash(world);
    const client = await as(world, "operate");
    expect(await allowed(client)).toEqual([
      "job_key",
      "try_job_lock",
      "require_read_committed",
      "retry_v1",
      "discard_v1",
      "job_v1",
    ]);
    expect(await sqlState(client.query("delete from pgclaim.history"))).toBe(DENIED);
    expect(await sqlState(client.query("delete from pgclaim.attempt"))).toBe(DENIED);
    expect(
      await sqlState(
        client.query(
          "insert into pgclaim.tick (id, outcome, invocation) values (pg_catalog.gen_random_uuid(), 'lost', '')",
        ),
      ),
    ).toBe(DENIED);
  });
});

describe("grant_v1", () => {
  it("refuses a scope or role that does not exist, and takes a role with an odd name", async () => {
    const world = await install();
    expect(await sqlState(world.sql.query("select pgclaim.grant_v1('admin', 'postgres')"))).toBe("PC003");
    expect(await sqlState(world.sql.query("select pgclaim.grant_v1(null, 'postgres')"))).toBe("PC003");
    expect(await sqlState(world.sql.query("select pgclaim.grant_v1('run', 'nobody here')"))).toBe("42704");
    const odd = `odd "role" ${process.pid}`;
    await world.sql.query(`create role "${odd.replaceAll('"', '""')}"`);
    onTestFinished(async () => {
      await world.sql.query(`drop owned by "${odd.replaceAll('"', '""')}"; drop role "${odd.replaceAll('"', '""')}"`);
    });
    await world.sql.query("select pgclaim.grant_v1('enqueue', $1)", [odd]);
    expect(await world.value("select has_function_privilege($1, 'pgclaim.enqueue_v1(jsonb)', 'execute')", [odd])).toBe(
      true,
    );
  });

  it("repeated changes nothing", async () => {
    const world = await install();
    const client = await as(world, "enqueue");
    const role = (await client.query<{ name: string }>("select current_user as name")).rows[0]?.name;
    await world.sql.query("select pgclaim.grant_v1('enqueue', $1)", [role]);
    expect(await allowed(client)).toEqual(["enqueue_v1", "enqueue"]);
  });
});

describe("a tick with an empty search_path", () => {
  it("works for the owner as well, also where a foreign schema shadows every name it uses", async () => {
    const world = await install();
    await world.sql.query(`
      create schema shadow;
      create table shadow.job (id bigint); create table shadow.kind (name text); create table shadow.attempt (n int);
      create function shadow.random() returns float8 language sql as 'select 1 / 0::float8';
      create function shadow.clock_timestamp() returns timestamptz language sql as $$ select 'infinity'::timestamptz $$`);
    const client = await world.connect();
    await client.query("set search_path = shadow");
    await enqueue(client, 1);
    const session = await claimOn(client);
    expect(session.jobs).toHaveLength(1);
    await client.query("rollback");
    await client.query("set search_path = ''");
    const tick = newTick();
    await client.query(`begin isolation level read committed; set local pgclaim.tick = '${tick}'`);
    await fence(world.sql, { tick, jobs: session.jobs });
    await finish(client, tick, all(session.jobs, "failed"));
  });
});
