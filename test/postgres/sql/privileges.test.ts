// Who may do what. A role that enqueues can do nothing else; nothing is open to everybody; and no function leans on the
// caller's search_path, which for a SECURITY DEFINER function would be a hole and for the others a surprise.

import pg from "pg";
import { describe, expect, it, onTestFinished } from "vitest";
import { roleOf } from "../../support/roles.ts";
import {
  all,
  claimOn,
  crash,
  type Db,
  enqueue,
  enqueueOne,
  fence,
  finish,
  type Installation,
  ids,
  install,
  job,
  type KindSpec,
  newTick,
  policy,
  reap,
  register,
  runTick,
  settle,
  sqlState,
  the,
  wake,
} from "./support.ts";

const DENIED = "42501";

/** A session of a role of this test's own, with one scope or none. */
const as = async (world: Installation, scope: "enqueue" | "run" | "operate" | null = null) =>
  (await roleOf(world, scope)).client;

/** Every function of the schema, as a call that would be valid; of the trigger's, as far as one can be. */
const calls: Record<string, string> = {
  job_key: "pgclaim.job_key(1, 1)",
  name_key: "pgclaim.name_key('a', 'b', 1)",
  try_job_lock: "pgclaim.try_job_lock('a', 1)",
  require_read_committed: "pgclaim.require_read_committed()",
  backoff_ms: "pgclaim.backoff_ms('fixed', 1, 1, 1, 0)",
  render_key: `pgclaim.render_key('{k}', '{"k": 1}')`,
  render_keys: `pgclaim.render_keys(array['{k}'], '{"k": 1}')`,
  caller: "pgclaim.caller()",
  in_tick: "pgclaim.in_tick()",
  gate_of: "pgclaim.gate_of('lock', 'q', 'n')",
  lock_gates: "pgclaim.lock_gates('{order:g}')",
  check_gates: "pgclaim.check_gates()",
  refill: "pgclaim.refill('order:g')",
  promote: "pgclaim.promote(1, 'order:g')",
  draw_places: "pgclaim.draw_places('{order:g}')",
  place_at_commit: "pgclaim.place_at_commit()",
  recheck_gates: "pgclaim.recheck_gates(9)",
  enqueue_v1: `pgclaim.enqueue_v1('{"jobs": []}')`,
  derive_jobs: "pgclaim.derive_jobs('[]', '{}', now())",
  claim_unique_key: "pgclaim.claim_unique_key('a', 'k', null, 'keep', 1, '{}', '{}', now())",
  change_holder: "pgclaim.change_holder('a', 'k', 1, 'replace', 2, '{}', now())",
  raise_refusal: "pgclaim.raise_refusal(1, 'unknown-kind', 'x')",
  enqueue: "pgclaim.enqueue('a')",
  register_v1: `pgclaim.register_v1('{"digest": "x", "kinds": []}')`,
  put_in_force: `pgclaim.put_in_force(1, '{"kinds": []}')`,
  use_revision_v1: "pgclaim.use_revision_v1(1)",
  superseded_by: "pgclaim.superseded_by(1)",
  revisions_v1: "pgclaim.revisions_v1()",
  reap: "pgclaim.reap(1)",
  promote_due: "pgclaim.promote_due(1)",
  prune: "pgclaim.prune(1, null)",
  reserve_v1: `pgclaim.reserve_v1('{"jobs": [1], "reserveMs": 1}')`,
  reservations: "pgclaim.reservations(now())",
  has_ready: "pgclaim.has_ready('{}', false)",
  late_bounds_ms: "pgclaim.late_bounds_ms()",
  late_counts: "pgclaim.late_counts('{1}')",
  add_counts: "pgclaim.add_counts('{1}', '{}')",
  add_tallies: "pgclaim.add_tallies('{}', '{}')",
  bump_trigger: "pgclaim.bump_trigger('manual', 'manual', now(), true)",
  roll_up: "pgclaim.roll_up(1)",
  prune_records: "pgclaim.prune_records(1)",
  count_cells: "pgclaim.count_cells('ready', 'q', 1, now())",
  sample_depth: "pgclaim.sample_depth(1, 1)",
  wake_v1: `pgclaim.wake_v1('{"digest": "x", "queues": []}')`,
  take_locks: "pgclaim.take_locks(1, 'a', 'o', '{n}', '{s}', '{l}', '{1}', false, '{}', '{}', '{}', 1, 1)",
  take_slot: "pgclaim.take_slot('tick', '', 1, '{}', 1)",
  current_maxes: "pgclaim.current_maxes('a', 'default', '{}', '{l,@queue/default}', '{1,1}')",
  has_before: "pgclaim.has_before('order:g', 1)",
  claim_v1: `pgclaim.claim_v1('{"queues": []}')`,
  fence_v1: `pgclaim.fence_v1('{"jobs": []}')`,
  end_turn_v1: "pgclaim.end_turn_v1('{}')",
  finish_v1: `pgclaim.finish_v1('{"jobs": []}')`,
  settle_v1: `pgclaim.settle_v1('{"jobs": []}')`,
  cancel_query_v1: "pgclaim.cancel_query_v1('{}')",
  retry_v1: "pgclaim.retry_v1(1)",
  lock_for_operator: "pgclaim.lock_for_operator(1)",
  lock_dead_letter: "pgclaim.lock_dead_letter(1)",
  take_out: "pgclaim.take_out(1, 'discarded', 'order:g')",
  discard_v1: "pgclaim.discard_v1(1)",
  skip_v1: "pgclaim.skip_v1(1)",
  cancel_v1: "pgclaim.cancel_v1(1)",
  cancel_requested: "pgclaim.cancel_requested(1)",
  cancelled_v1: `pgclaim.cancelled_v1('{"jobs": [1]}')`,
  job_v1: "pgclaim.job_v1(1)",
  grant_v1: "pgclaim.grant_v1('run', 'postgres')",
  pause_queue_v1: "pgclaim.pause_queue_v1('q')",
  resume_queue_v1: "pgclaim.resume_queue_v1('q')",
  write_schedules: "pgclaim.write_schedules(1, '{}', '[]')",
  fire_v1: `pgclaim.fire_v1('{"queues": ["default"], "schedules": []}')`,
  schedules_v1: "pgclaim.schedules_v1()",
  pause_schedule_v1: "pgclaim.pause_schedule_v1('s')",
  resume_schedule_v1: "pgclaim.resume_schedule_v1('s')",
  error_fingerprint: "pgclaim.error_fingerprint('a')",
  advisory_locks: "pgclaim.advisory_locks()",
  open_attempts: "pgclaim.open_attempts()",
  write_cursor: `pgclaim.write_cursor('["jobs", 1]')`,
  read_cursor: "pgclaim.read_cursor(null, 'jobs', 2)",
  read_limit: "pgclaim.read_limit('{}', 'limit', 50, 200)",
  read_id: `pgclaim.read_id('{"id": "1"}')`,
  ms_between: "pgclaim.ms_between(now(), now())",
  read_filter: "pgclaim.read_filter('{}')",
  ready_queues: "pgclaim.ready_queues()",
  walk_ready: "pgclaim.walk_ready('q', 1::smallint, now(), 1)",
  walk_key: "pgclaim.walk_key('order:g', null, 'true', null)",
  plan_walk: "pgclaim.plan_walk('{}')",
  find_jobs: "pgclaim.find_jobs('{}', 1)",
  key_head: "pgclaim.key_head('order:g')",
  job_rows: "pgclaim.job_rows('{1}')",
  history_rows: "pgclaim.history_rows('{1}')",
  job_locks: "pgclaim.job_locks(1)",
  queue_rows: "pgclaim.queue_rows('{}', '{}')",
  trigger_rows: "pgclaim.trigger_rows(now())",
  kinds_in_force: "pgclaim.kinds_in_force()",
  waiting_kinds: "pgclaim.waiting_kinds(1, false)",
  count_deadlines: "pgclaim.count_deadlines(now(), now())",
  slack_view: "pgclaim.slack_view(now())",
  walk_gates: "pgclaim.walk_gates(true, '', 1)",
  tick_item: "pgclaim.tick_item(null)",
  known_names: "pgclaim.known_names()",
  overview_v1: "pgclaim.overview_v1('{}')",
  series_v1: "pgclaim.series_v1('{}')",
  jobs_v1: "pgclaim.jobs_v1('{}')",
  count_jobs_v1: "pgclaim.count_jobs_v1('{}')",
  job_detail_v1: `pgclaim.job_detail_v1('{"id": "1"}')`,
  payload_v1: `pgclaim.payload_v1('{"id": "1"}')`,
  dead_groups_v1: "pgclaim.dead_groups_v1('{}')",
  keys_v1: "pgclaim.keys_v1('{}')",
  queues_v1: "pgclaim.queues_v1('{}')",
  kinds_v1: "pgclaim.kinds_v1('{}')",
  triggers_v1: "pgclaim.triggers_v1('{}')",
  ticks_v1: "pgclaim.ticks_v1('{}')",
  invocation_v1: `pgclaim.invocation_v1('{"id": "i"}')`,
  holders_v1: "pgclaim.holders_v1('{}')",
  metrics_v1: "pgclaim.metrics_v1('{}')",
};

/** What no scope gives: the insides of enqueue_v1, which run with its owner's rights, and what grants. */
const NOBODYS = [
  "caller",
  "in_tick",
  "check_gates",
  "render_keys",
  "place_at_commit",
  "derive_jobs",
  "claim_unique_key",
  "change_holder",
  "raise_refusal",
  "grant_v1",
];

/** What the dashboard, the API and the CLI ask, and what these are made of. */
const readVerbs = [
  "error_fingerprint",
  "advisory_locks",
  "open_attempts",
  "write_cursor",
  "read_cursor",
  "read_limit",
  "read_id",
  "ms_between",
  "read_filter",
  "ready_queues",
  "walk_ready",
  "walk_key",
  "plan_walk",
  "find_jobs",
  "key_head",
  "job_rows",
  "history_rows",
  "job_locks",
  "queue_rows",
  "trigger_rows",
  "kinds_in_force",
  "waiting_kinds",
  "count_deadlines",
  "slack_view",
  "walk_gates",
  "tick_item",
  "known_names",
  "overview_v1",
  "series_v1",
  "jobs_v1",
  "count_jobs_v1",
  "job_detail_v1",
  "payload_v1",
  "dead_groups_v1",
  "keys_v1",
  "queues_v1",
  "kinds_v1",
  "triggers_v1",
  "ticks_v1",
  "invocation_v1",
  "holders_v1",
  "metrics_v1",
];

const OPERATORS = [
  "retry_v1",
  "lock_for_operator",
  "lock_dead_letter",
  "discard_v1",
  "skip_v1",
  "cancel_v1",
  "job_v1",
  "pause_queue_v1",
  "resume_queue_v1",
  "schedules_v1",
  "pause_schedule_v1",
  "resume_schedule_v1",
  ...readVerbs,
];

const tables = [
  "installation",
  "revision",
  "kind",
  "queue",
  "job",
  "attempt",
  "tick",
  "history",
  "recheck",
  "reservation",
  "unique_key",
  "cancel_request",
  "schedule",
  "trigger",
  "trigger_minute",
  "rollup",
  "tick_rollup",
  "depth",
  "housekeeping",
  "action",
  "request_key",
  "grantee",
  "migration",
  "schema_functions",
  "trigger_bump",
];

/** Kinds that use all there is: a gate of each class, a unique key, and a limit beside an exclusive and a shared name. */
const FULL: readonly (KindSpec & Readonly<Record<string, unknown>>)[] = [
  { name: "ordered", orderingKey: "account:{k}", minBackoffMs: 0, maxBackoffMs: 0 },
  { name: "unique", uniqueKey: "{k}", onConflict: "replace" },
  {
    name: "limited",
    limitNames: ["tenant:{k}"],
    limitMaxes: [1],
    locks: ["x:{k}"],
    sharedLocks: ["s"],
    minBackoffMs: 0,
    maxBackoffMs: 0,
  },
  { name: "locked", locks: ["{k}"] },
];

const SCHEDULE = {
  name: "s",
  cron: "* * * * *",
  timeZone: "UTC",
  kind: "ordered",
  payload: { k: "s" },
  catchUp: "all",
  definition: "d",
};

const kindNames = FULL.map(({ name }) => name);

const registerFull = (db: Db) =>
  db.query("select pgclaim.register_v1($1)", [
    JSON.stringify({
      digest: "full",
      kinds: FULL.map(policy),
      queues: ["default"],
      queueMax: { default: 50 },
      schedules: [SCHEDULE],
    }),
  ]);

/** Enqueues one job of a kind of FULL; answers what became of it. */
async function put(db: Db, kind: string, k: string): Promise<{ job_id: string; type: string }> {
  const { rows } = await db.query<{ job_id: string; type: string }>(
    "select job_id, type from pgclaim.enqueue($1, $2)",
    [kind, JSON.stringify({ k })],
  );
  return the(rows);
}

const putOne = async (db: Db, kind: string, k: string): Promise<string> => {
  const { job_id, type } = await put(db, kind, k);
  expect(type).toBe("enqueued");
  return job_id;
};

const stateOf = async (world: Installation, id: string): Promise<string> => (await job(world.sql, id)).state;

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

  it("finds every table there is in this file", async () => {
    const world = await install();
    const names = await world.rows<{ name: string }>(
      "select relname as name from pg_class where relnamespace = 'pgclaim'::regnamespace and relkind in ('r', 'p', 'v', 'm')",
    );
    expect([...tables].sort()).toEqual(names.map((row) => row.name).sort());
  });

  it("meets in this file a call of every function there is", async () => {
    const world = await install();
    const names = await world.rows<{ name: string }>(
      "select distinct proname as name from pg_proc where pronamespace = 'pgclaim'::regnamespace",
    );
    expect(Object.keys(calls).sort()).toEqual(names.map((row) => row.name).sort());
  });

  it("finds only enqueue_v1 and the trigger at COMMIT to run with their owner's rights, with a search_path of their own", async () => {
    const world = await install();
    expect(
      await world.rows(
        "select proname, proconfig from pg_proc where pronamespace = 'pgclaim'::regnamespace and prosecdef order by proname",
      ),
    ).toEqual(
      ["enqueue_v1", "place_at_commit"].map((proname) => ({
        proname,
        proconfig: ["search_path=pg_catalog, pg_temp"],
      })),
    );
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

  it.each(["read committed", "serializable"])(
    "lets a role enqueue gated, unique and limited jobs at %s",
    async (level) => {
      const world = await install();
      await registerFull(world.sql);
      const client = await as(world, "enqueue");
      await client.query(`begin isolation level ${level}`);
      const ordered = [await putOne(client, "ordered", "1"), await putOne(client, "ordered", "1")] as const;
      const unique = await putOne(client, "unique", "1");
      expect(await put(client, "unique", "1")).toEqual({ job_id: unique, type: "replaced" });
      const limited = [await putOne(client, "limited", "1"), await putOne(client, "limited", "1")] as const;
      await client.query("commit");
      expect(await wake(world.sql)).toMatchObject({ ready: true, faults: [] });
      const states: string[] = [];
      for (const id of [...ordered, unique, ...limited]) states.push(await stateOf(world, id));
      expect(states).toEqual(["ready", "blocked", "ready", "ready", "blocked"]);
      expect(
        await world.value("select count(*)::integer from pgclaim.job where gate is not null and place is null"),
      ).toBe(0);
    },
  );

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
      create table pg_temp.job as select 'evil'::text as gate;
      create function pg_temp.clock_timestamp() returns timestamptz language sql as $$ select 1 / 0; select now() $$;
      set search_path = pg_temp, pg_catalog`);
    expect(await enqueueOne(client)).toMatch(/^\d+$/);
    expect(await sqlState(client.query("select pgclaim.enqueue('evil')"))).toBe("PC002");
  });

  it("cannot override what the kind decides: unknown fields are not looked at", async () => {
    const world = await install();
    const client = await as(world, "enqueue");
    const { rows } = await client.query<{ job_id: string }>("select job_id from pgclaim.enqueue_v1($1)", [
      JSON.stringify({ jobs: [{ kind: "a", payload: {}, queue: "vip", revision: 99, suspect: true }] }),
    ]);
    expect(await job(world.sql, String(rows[0]?.job_id))).toMatchObject({
      queue: "default",
      priority: 2,
      revision: world.revision,
      suspect: false,
    });
  });

  it("cannot choose a priority, which a role that runs may", async () => {
    const world = await install();
    const request = JSON.stringify({ jobs: [{ kind: "a", payload: {}, priority: 0 }] });
    const client = await as(world, "enqueue");
    const text = "select type, job_id from pgclaim.enqueue_v1($1)";
    expect((await client.query(text, [request])).rows).toEqual([{ type: "priority-denied", job_id: null }]);
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(0);
    const { rows } = await (await as(world, "run")).query<{ type: string; job_id: string }>(text, [request]);
    expect(the(rows).type).toBe("enqueued");
    expect(await job(world.sql, the(rows).job_id)).toMatchObject({ priority: 0, queue: "default" });
  });

  it("cannot stand in the past by any of the three instants a job may have, which a role that runs may", async () => {
    const world = await install([{ name: "a" }, { name: "late", ...{ whenMissed: "run" } }]);
    const past = "2001-01-01T00:00:00Z";
    const request = JSON.stringify({
      jobs: [
        { kind: "a", payload: {}, runAt: past },
        { kind: "a", payload: {}, delayMs: -86_400_000 },
        { kind: "a", payload: {}, runAt: past, delayMs: -86_400_000 },
        { kind: "late", payload: {}, deadlineAt: past },
      ],
    });
    const text = "select i from pgclaim.enqueue_v1($1)";
    const early = "select count(*)::integer from pgclaim.job where least(run_at, rank) < now() - interval '1 hour'";
    expect((await (await as(world, "enqueue")).query(text, [request])).rows).toHaveLength(4);
    expect(await world.value(early)).toBe(0);
    expect((await (await as(world, "run")).query(text, [request])).rows).toHaveLength(4);
    expect(await world.value(early)).toBe(4);
  });

  it("cannot pass for a tick: its jobs get their places at COMMIT whatever it sets, and stop nobody's finish", async () => {
    const world = await install([{ name: "a" }, { name: "ordered", ...{ orderingKey: "{k}" } }]);
    const client = await as(world, "enqueue");
    await client.query("set pgclaim.tick = 'x'");
    for (const half of ["x", "y"]) {
      const jobs = Array.from({ length: 1_001 }, (_, i) => ({ kind: "ordered", payload: { k: `${half}${i}` } }));
      await client.query("select count(*) from pgclaim.enqueue_v1($1)", [JSON.stringify({ jobs })]);
    }
    expect(await world.value("select count(*)::integer from pgclaim.job where place is null")).toBe(0);
    await enqueueOne(world.sql);
    expect(await runTick(world, { kinds: ["a"] })).toHaveLength(1);
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

  it("lets a role do all that for jobs with a gate, a unique key, a limit and a schedule", async () => {
    const world = await install([]);
    const client = await as(world, "run");
    const oneShot = await as(world, "run");
    await registerFull(client);
    const ordered = [await putOne(client, "ordered", "1"), await putOne(client, "ordered", "1")] as const;
    const unique = await putOne(client, "unique", "1");
    expect(await put(client, "unique", "1")).toEqual({ job_id: unique, type: "replaced" });
    const limited = [await putOne(client, "limited", "1"), await putOne(client, "limited", "1")] as const;

    const due = the((await wake(oneShot, { schedules: ["d"] })).schedules);
    expect(due).toMatchObject({ name: "s", definition: "d" });
    const { rows: fired } = await oneShot.query<{ answer: Record<string, unknown> }>(
      "select pgclaim.fire_v1($1) as answer",
      [
        JSON.stringify({
          queues: ["default"],
          schedules: [{ ...due, occurrences: [due.nextAt], newNextAt: "2999-01-01T00:00:00Z" }],
        }),
      ],
    );
    expect(the(fired).answer).toMatchObject({
      fired: [{ name: "s", jobs: [expect.any(String)] }],
      faults: [],
      ready: true,
    });
    const scheduled = String((the(fired).answer.fired as { jobs: string[] }[])[0]?.jobs[0]);

    const session = await claimOn(client, { kinds: kindNames, tickSlots: 1 });
    // The follower of an ordering key comes along, and the second of the limit stays behind its gate.
    expect(ids(session.jobs).sort()).toEqual([...ordered, unique, limited[0], scheduled].sort());
    const { rows: granted } = await oneShot.query<{ job_id: string }>("select job_id from pgclaim.fence_v1($1)", [
      JSON.stringify({
        tick: session.tick,
        quarantined: false,
        jobs: session.jobs,
        reapSlice: 9,
        dueSlice: 9,
        gateSlice: 9,
      }),
    ]);
    expect(granted).toHaveLength(5);
    await client.query("select pgclaim.end_turn_v1($1)", [
      JSON.stringify({ enqueue: [{ kind: "ordered", payload: { k: "turn" } }] }),
    ]);
    await finish(
      client,
      session.tick,
      session.jobs.map((entry) => ({
        ...entry,
        outcome: entry.id === limited[0] ? "failed" : entry.id === unique ? "snoozed" : "done",
        ...(entry.id === unique ? { inMs: 3_600_000 } : {}),
        ...(entry.id === scheduled ? { enqueue: [{ kind: "limited", payload: { k: "finish" } }] } : {}),
      })),
    );
    expect(
      await world.rows("select from pgclaim.history where ordering_key is not null and place is not null"),
    ).toHaveLength(3);
    expect(
      await world.value("select count(*)::integer from pgclaim.job where gate is not null and place is null"),
    ).toBe(0);

    // Starved for its name, which another session has: it reserves.
    const holder = await as(world, "run");
    const inFront = await putOne(holder, "locked", "n");
    await claimOn(holder, { kinds: ["locked"] });
    await oneShot.query("select pgclaim.reserve_v1($1)", [JSON.stringify({ jobs: [inFront], reserveMs: 30_000 })]);
    expect(await world.rows("select name from pgclaim.reservation")).toEqual([{ name: "n" }]);
    await holder.query("rollback");

    // Crashes of gated jobs, a cancel that was asked for, keys and reservations that are left over: all housekeeping.
    const crashed = await claimOn(client, { kinds: kindNames });
    expect(crashed.jobs.length).toBeGreaterThan(2);
    await fence(oneShot, crashed);
    const { rows: wanted } = await oneShot.query("select job_id from pgclaim.cancelled_v1($1)", [
      JSON.stringify({ jobs: ids(crashed.jobs) }),
    ]);
    expect(wanted).toEqual([]);
    await client.query("rollback");
    await world.sql.query("insert into pgclaim.cancel_request (job_id) values ($1)", [inFront]);
    await world.sql.query(`
      insert into pgclaim.unique_key (kind, key, job_id, expires_at) values ('unique', 'old', 99, now() - interval '1 day');
      insert into pgclaim.unique_key (kind, key, job_id) values ('unique', 'orphan', 99);
      insert into pgclaim.reservation (name, job_id, shared, since, renewed_at) values ('gone', 99, false, now(), now());
      insert into pgclaim.recheck (gate) select gate from pgclaim.job where gate is not null;
      update pgclaim.job set run_at = now() where state = 'scheduled'`);
    const answer = await wake(oneShot, { historyMs: 0 });
    expect(answer).toMatchObject({ faults: [], crashed: crashed.jobs.length });
    expect(answer.promoted).toBeGreaterThan(0);
    expect(answer.pruned).toBeGreaterThan(0);
    expect(await world.rows("select from pgclaim.job where id = $1", [inFront])).toEqual([]);
    expect(await world.rows("select key from pgclaim.unique_key where kind = 'unique' order by key")).toEqual([
      { key: "1" },
    ]);
    expect(await world.rows("select from pgclaim.recheck")).toEqual([]);
    expect(await world.rows("select from pgclaim.reservation")).toEqual([]);

    // A lost tick of a suspect among them.
    const lost = await claimOn(client, { kinds: kindNames, quarantined: true });
    expect(lost.jobs).toHaveLength(1);
    await fence(oneShot, { ...lost, quarantined: true });
    await client.query("rollback");
    expect(await settle(oneShot, { ...lost, quarantined: true, interruptedLimit: 1 })).toBe("lost");
  });

  it("and not what an operator does, nor grant anything: exactly these", async () => {
    const world = await install();
    expect(await allowed(await as(world, "run"))).toEqual(
      Object.keys(calls).filter((name) => !NOBODYS.includes(name) && !OPERATORS.includes(name)),
    );
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
    expect(await ask("retry_v1", x)).toEqual({ type: "retried" });
    expect(await stateOf(world, x)).toBe("ready");
    expect(await ask("discard_v1", y)).toEqual({ type: "discarded" });
    expect(await ask("job_v1", y)).toMatchObject({ id: y, state: "discarded" });
  });

  it("lets a role do so with jobs that have a gate, a unique key or a limit, and with queues and schedules", async () => {
    const world = await install([]);
    await registerFull(world.sql);
    const client = await as(world, "operate");
    const ask = async (call: string, argument: string) =>
      the((await client.query<{ answer: unknown }>(`select pgclaim.${call}($1) as answer`, [argument])).rows).answer;
    const deads: Record<string, string[]> = {};
    const behind: Record<string, string> = {};
    for (const k of ["retry", "discard", "skip"]) deads[k] = [await putOne(world.sql, "ordered", k)];
    for (const k of ["retry", "discard"]) deads[k]?.push(await putOne(world.sql, "limited", k));
    deads.discard?.push(await putOne(world.sql, "unique", "discard"));
    await runTick(world, { kinds: kindNames }, "dead");
    for (const k of ["retry", "discard", "skip"]) behind[k] = await putOne(world.sql, "ordered", k);
    for (const id of Object.values(behind)) expect(await stateOf(world, id)).toBe("blocked");

    for (const id of deads.retry ?? []) {
      expect(await ask("retry_v1", id)).toEqual({ type: "retried" });
      expect(await stateOf(world, id)).toBe("ready");
    }
    for (const id of deads.discard ?? []) {
      expect(await ask("discard_v1", id)).toEqual({ type: "discarded" });
      expect(await ask("job_v1", id)).toMatchObject({ id, state: "discarded" });
    }
    for (const id of deads.skip ?? []) expect(await ask("skip_v1", id)).toEqual({ type: "skipped" });
    expect(await world.rows("select from pgclaim.unique_key")).toEqual([]);
    expect(await stateOf(world, String(behind.retry))).toBe("blocked");
    expect(await stateOf(world, String(behind.discard))).toBe("ready");
    expect(await stateOf(world, String(behind.skip))).toBe("ready");
    // Passed, so it comes back with a new place, at the end.
    expect(await ask("retry_v1", the(deads.skip ?? []))).toEqual({ type: "retried" });
    expect(await stateOf(world, the(deads.skip ?? []))).toBe("blocked");

    const limited = [await putOne(world.sql, "limited", "c"), await putOne(world.sql, "limited", "c")] as const;
    expect(await stateOf(world, limited[1])).toBe("blocked");
    expect(await ask("cancel_v1", limited[0])).toEqual({ type: "cancelled" });
    expect(await stateOf(world, limited[1])).toBe("ready");
    const holder = await world.connect();
    await holder.query(`begin; select pgclaim.try_job_lock('limited', ${limited[1]})`);
    expect(await ask("cancel_v1", limited[1])).toEqual({ type: "requested" });
    await holder.query("rollback");

    expect([await ask("pause_queue_v1", "default"), await ask("resume_queue_v1", "default")]).toEqual([true, true]);
    expect([await ask("pause_schedule_v1", "s"), await ask("resume_schedule_v1", "s")]).toEqual([true, true]);
    expect((await client.query("select name, paused_at from pgclaim.schedules_v1()")).rows).toEqual([
      { name: "s", paused_at: null },
    ]);
  });

  it("and neither claim nor enqueue nor change what has been", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    await crash(world);
    const client = await as(world, "operate");
    expect(await allowed(client)).toEqual([
      "job_key",
      "name_key",
      "try_job_lock",
      "require_read_committed",
      "render_key",
      "gate_of",
      "lock_gates",
      "refill",
      "promote",
      "revisions_v1",
      "late_bounds_ms",
      "current_maxes",
      "retry_v1",
      "lock_for_operator",
      "lock_dead_letter",
      "take_out",
      "discard_v1",
      "skip_v1",
      "cancel_v1",
      "job_v1",
      "pause_queue_v1",
      "resume_queue_v1",
      "schedules_v1",
      "pause_schedule_v1",
      "resume_schedule_v1",
      ...readVerbs,
    ]);
    expect(await sqlState(client.query("delete from pgclaim.schedule"))).toBe(DENIED);
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
