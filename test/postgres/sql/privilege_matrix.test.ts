// Least privilege as a table: every table, sequence, function and schema that the catalogue knows, times every privilege it
// can have, for each scope of grant_v1. What is not written here is not granted. privileges.test.ts shows that it is enough.

import { describe, expect, it } from "vitest";
import { roleOf } from "../../support/roles.ts";
import { failure, type Installation, install, sqlState } from "./support.ts";

const scopes = ["enqueue", "run", "operate"] as const;
type Scope = (typeof scopes)[number];

const DENIED = "42501";

/** Tables and sequences: what each scope may do. Nobody may truncate, reference, put a trigger on or maintain any. */
const relations: Readonly<Record<string, Partial<Record<Scope, string>>>> = {
  action: { run: "delete select update", operate: "insert select" },
  action_id_seq: {},
  attempt: { run: "delete insert select update", operate: "select update" },
  cancel_request: { run: "delete select", operate: "delete insert select update" },
  depth: { run: "delete insert select update", operate: "select" },
  grantee: {},
  history: { run: "delete insert select", operate: "insert select" },
  housekeeping: { run: "insert select update" },
  installation: { run: "select", operate: "select" },
  job: { run: "delete select update", operate: "delete select update" },
  job_id_seq: {},
  kind: { run: "insert select update", operate: "select" },
  migration: { operate: "select" },
  place_seq: { run: "usage", operate: "usage" },
  queue: { run: "insert select update", operate: "insert select update" },
  recheck: { run: "delete insert select", operate: "insert select" },
  recheck_id_seq: {},
  request_key: { run: "delete select update" },
  reservation: { run: "delete insert select update", operate: "delete select" },
  revision: { run: "insert select update", operate: "select" },
  rollup: { run: "delete insert select update", operate: "select" },
  schedule: { run: "delete insert select update", operate: "select update" },
  schema_functions: {},
  tick: { run: "delete insert select update", operate: "select" },
  tick_rollup: { run: "delete insert select update", operate: "select" },
  trigger: { run: "delete insert select update", operate: "select" },
  trigger_bump: { run: "delete insert select update" },
  trigger_minute: { run: "delete insert select update", operate: "select" },
  unique_key: { run: "delete select update", operate: "delete select update" },
};

/** Functions: who may execute them. */
const functions: Readonly<Record<string, string>> = {
  add_counts: "run",
  add_tallies: "run",
  backoff_ms: "run",
  bump_trigger: "run",
  caller: "operate",
  cancel_query_v1: "run",
  cancel_requested: "run",
  cancel_v1: "operate",
  cancelled_v1: "run",
  change_holder: "",
  check_gates: "",
  claim_unique_key: "",
  claim_v1: "run",
  count_cells: "run",
  current_maxes: "run operate",
  derive_jobs: "",
  discard_v1: "operate",
  draw_places: "run",
  end_turn_v1: "run",
  enqueue: "enqueue run",
  enqueue_once_v1: "enqueue run",
  enqueue_v1: "enqueue run",
  fence_v1: "run",
  finish_v1: "run",
  fire_v1: "run",
  gate_of: "run operate",
  grant_v1: "",
  has_before: "run",
  has_ready: "run",
  in_tick: "",
  job_key: "run operate",
  job_v1: "operate",
  late_bounds_ms: "run operate",
  late_counts: "run",
  lock_dead_letter: "operate",
  lock_for_operator: "operate",
  lock_gates: "run operate",
  name_key: "run operate",
  pause_queue_v1: "operate",
  pause_schedule_v1: "operate",
  place_at_commit: "",
  promote: "run operate",
  promote_due: "run",
  prune: "run",
  prune_records: "run",
  put_in_force: "run",
  raise_refusal: "",
  reap: "run",
  recheck_gates: "run",
  refill: "run operate",
  register_v1: "run",
  render_key: "run operate",
  render_keys: "",
  require_read_committed: "run operate",
  reservations: "run",
  reserve_v1: "run",
  resume_queue_v1: "operate",
  resume_schedule_v1: "operate",
  revive: "operate",
  operate_v1: "operate",
  reschedule_v1: "operate",
  bulk_v1: "operate",
  request_cancels: "operate",
  read_bulk_filter: "operate",
  read_up_to: "operate",
  read_spread: "operate",
  read_actor: "operate",
  read_instant: "operate",
  printable: "operate",
  written: "operate",
  record_actions: "operate",
  run_schedule_v1: "operate",
  terminate_v1: "operate",
  holds_ours: "operate",
  next_gate: "operate",
  retry_v1: "operate",
  take_out_all: "run operate",
  read_trace: "",
  revisions_v1: "run operate",
  roll_up: "run",
  sample_depth: "run",
  schedules_v1: "operate",
  settle_v1: "run",
  skip_v1: "operate",
  superseded_by: "run",
  take_locks: "run",
  take_out: "run operate",
  take_slot: "run",
  try_job_lock: "run operate",
  use_revision_v1: "run",
  wake_v1: "run",
  error_fingerprint: "operate",
  advisory_locks: "operate",
  open_attempts: "operate",
  write_cursor: "operate",
  read_cursor: "operate",
  read_limit: "operate",
  read_id: "operate",
  ms_between: "operate",
  read_filter: "operate",
  ready_queues: "operate",
  walk_ready: "operate",
  walk_key: "operate",
  plan_walk: "operate",
  find_jobs: "operate",
  key_head: "operate",
  job_rows: "operate",
  history_rows: "operate",
  job_locks: "operate",
  queue_rows: "operate",
  trigger_rows: "operate",
  kinds_in_force: "operate",
  waiting_kinds: "operate",
  count_deadlines: "operate",
  slack_view: "operate",
  walk_gates: "operate",
  tick_item: "operate",
  known_names: "operate",
  overview_v1: "operate",
  series_v1: "operate",
  jobs_v1: "operate",
  count_jobs_v1: "operate",
  job_detail_v1: "operate",
  payload_v1: "operate",
  dead_groups_v1: "operate",
  keys_v1: "operate",
  queues_v1: "operate",
  kinds_v1: "operate",
  triggers_v1: "operate",
  ticks_v1: "operate",
  invocation_v1: "operate",
  holders_v1: "operate",
  metrics_v1: "operate",
  write_schedules: "run",
};

async function world(): Promise<{ readonly world: Installation; readonly roles: Record<Scope, string> }> {
  const made = await install();
  // What else a database holds, and no job has any business with.
  await made.sql.query(`
    create schema private; create table private.salaries (amount integer); create table public.customers (name text);
    create function private.pay() returns integer language sql as 'select 1'; create sequence public.bills;
    revoke all on function private.pay() from public`);
  const roles = {} as Record<Scope, string>;
  for (const scope of scopes) roles[scope] = (await roleOf(made, scope)).name;
  return { world: made, roles };
}

/** Every schema that is not the server's own. */
const ours = "n.nspname <> 'information_schema' and n.nspname !~ '^pg_'";

/** The granted ones of a list of privileges of every relation of a kind, as `relation: privileges`. */
async function granted(at: Installation, role: string, kinds: string, test: string, privileges: readonly string[]) {
  return await at.rows<{ relation: string; held: string }>(
    `select n.nspname || '.' || c.relname as relation,
       coalesce(string_agg(p.name, ' ' order by p.name) filter (where ${test}($1, c.oid, p.name)), '') as held
     from pg_class c join pg_namespace n on n.oid = c.relnamespace cross join unnest($2::text[]) p(name)
     where c.relkind = any (string_to_array($3, ' ')::"char"[]) and ${ours}
     group by 1`,
    [role, privileges, kinds],
  );
}

/** The verbs of a table on this server. */
async function tableVerbs(at: Installation): Promise<readonly string[]> {
  const seventeen = (await at.value<number>("select current_setting('server_version_num')::integer")) >= 170_000;
  const verbs = ["select", "insert", "update", "delete", "truncate", "references", "trigger"];
  return seventeen ? [...verbs, "maintain"] : verbs;
}

/**
 * What the catalogue's access lists give PUBLIC, which is grantee 0 and no row of pg_roles. A list that is null is the default
 * of its kind, which for a function is execute to PUBLIC.
 */
async function givenToPublic(at: Installation): Promise<readonly string[]> {
  const rows = await at.rows<{ given: string }>(
    `select distinct o.thing || ': ' || lower(x.privilege_type) as given from (
       select n.nspname, 'relation ' || n.nspname || '.' || c.relname as thing,
         coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's' else 'r' end::"char", c.relowner)) as acl
         from pg_class c join pg_namespace n on n.oid = c.relnamespace
       union all
       select n.nspname, 'column ' || n.nspname || '.' || c.relname || '.' || a.attname, a.attacl
         from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
       union all
       select n.nspname, 'function ' || p.oid::regprocedure, coalesce(p.proacl, acldefault('f', p.proowner))
         from pg_proc p join pg_namespace n on n.oid = p.pronamespace
       union all
       select n.nspname, 'schema ' || n.nspname, coalesce(n.nspacl, acldefault('n', n.nspowner)) from pg_namespace n
     ) o(nspname, thing, acl) join pg_namespace n using (nspname) cross join lateral aclexplode(o.acl) x
     where x.grantee = 0 and ${ours} order by 1`,
  );
  return rows.map(({ given }) => given);
}

/** Postgres itself lets everybody use this schema. */
const publicByDefault = ["schema public: usage"];

describe("grant_v1", () => {
  it("gives on each table, sequence and function what the table above says, and on no other thing anything", async () => {
    const { world: at, roles } = await world();
    const verbs = await tableVerbs(at);
    const seen: Record<string, Partial<Record<Scope, string>>> = {};
    const others: string[] = [];
    for (const scope of scopes) {
      const rows = [
        ...(await granted(at, roles[scope], "r p v m f", "has_table_privilege", verbs)),
        ...(await granted(at, roles[scope], "S", "has_sequence_privilege", ["usage", "select", "update"])),
      ];
      for (const { relation, held } of rows) {
        const [schema = "", name = ""] = relation.split(".");
        if (schema !== "pgclaim") {
          if (held !== "") others.push(`${scope}: ${relation}: ${held}`);
          continue;
        }
        seen[name] ??= {};
        if (held !== "") seen[name] = { ...seen[name], [scope]: held };
      }
    }
    expect(seen).toEqual(relations);
    expect(others).toEqual([]);

    const executable = await at.rows<{ schema: string; name: string; who: string }>(
      `select n.nspname as schema, p.proname as name,
         coalesce(string_agg(r.scope, ' ' order by r.o) filter (where has_function_privilege(r.role, p.oid, 'execute')), '') as who
       from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         cross join unnest($1::text[], $2::text[]) with ordinality r(scope, role, o)
       where ${ours}
       group by p.oid, n.nspname, p.proname`,
      [scopes, scopes.map((scope) => roles[scope])],
    );
    const own = executable.filter(({ schema }) => schema === "pgclaim");
    expect(Object.fromEntries(own.map(({ name, who }) => [name, who]))).toEqual(functions);
    expect(own).toHaveLength(Object.keys(functions).length);
    expect(executable.filter(({ schema }) => schema !== "pgclaim")).toEqual([
      { schema: "private", name: "pay", who: "" },
    ]);
  });

  it("gives nothing with grant option, and nothing to PUBLIC", async () => {
    const { world: at, roles } = await world();
    const grantable = (verbs: readonly string[]) => verbs.map((verb) => `${verb} with grant option`);
    const passable: string[] = [];
    for (const scope of scopes) {
      const role = roles[scope];
      const held = [
        ...(await granted(at, role, "r p v m f", "has_table_privilege", grantable(await tableVerbs(at)))),
        ...(await granted(at, role, "S", "has_sequence_privilege", grantable(["usage", "select", "update"]))),
        ...(await at.rows<{ relation: string; held: string }>(
          `select p.oid::regprocedure::text as relation, 'execute with grant option' as held
           from pg_proc p join pg_namespace n on n.oid = p.pronamespace
           where ${ours} and has_function_privilege($1, p.oid, 'execute with grant option')
           union all
           select n.nspname, v.name from pg_namespace n
             cross join unnest(array['usage with grant option', 'create with grant option']) v(name)
           where has_schema_privilege($1, n.oid, v.name)`,
          [role],
        )),
      ];
      passable.push(...held.filter((row) => row.held !== "").map((row) => `${scope}: ${row.relation}: ${row.held}`));
    }
    expect(passable).toEqual([]);
    expect(await givenToPublic(at)).toEqual(publicByDefault);
  });

  it("gives no column, no schema to create in, no database, no membership and no attribute", async () => {
    const { world: at, roles } = await world();
    const names = Object.values(roles);
    expect(
      await at.rows(
        // PUBLIC is grantee 0 and has no row in pg_roles.
        `select c.oid::regclass::text as relation, a.attname, coalesce(r.rolname, 'public') as grantee
         from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
         cross join lateral aclexplode(a.attacl) x left join pg_roles r on r.oid = x.grantee
         where ${ours} and (x.grantee = 0 or r.rolname = any ($1))`,
        [names],
      ),
    ).toEqual([]);
    expect(
      await at.rows(
        `select r.rolname, n.nspname, p.name from pg_namespace n cross join pg_roles r cross join unnest(array['usage', 'create']) p(name)
         where r.rolname = any ($1) and has_schema_privilege(r.oid, n.oid, p.name)
           and (p.name, n.nspname) not in (('usage', 'pgclaim'), ('usage', 'pg_catalog'), ('usage', 'information_schema'), ('usage', 'public'))`,
        [names],
      ),
    ).toEqual([]);
    expect(
      await at.rows(
        `select r.rolname from pg_roles r where r.rolname = any ($1) and (
           has_database_privilege(r.oid, current_database(), 'create') or rolsuper or rolcreatedb or rolcreaterole
           or rolreplication or rolbypassrls or exists (select from pg_auth_members m where m.member = r.oid))`,
        [names],
      ),
    ).toEqual([]);
    expect(
      await at.rows(
        `select d.defaclobjtype from pg_default_acl d cross join lateral aclexplode(d.defaclacl) x
         join pg_roles r on r.oid = x.grantee where r.rolname = any ($1)`,
        [names],
      ),
    ).toEqual([]);
  });

  it.each(scopes)("%s: what an intruder with its password would try is refused", async (scope) => {
    const at = await install();
    await at.sql.query("create table public.customers (name text); insert into public.customers values ('x')");
    const { client } = await roleOf(at, scope);
    for (const text of [
      "truncate pgclaim.job",
      "truncate pgclaim.history cascade",
      "drop table pgclaim.job",
      "drop function pgclaim.claim_v1(pg_catalog.jsonb)",
      "alter table pgclaim.job add column x pg_catalog.int4",
      "alter table pgclaim.job disable trigger all",
      "create table pgclaim.mine (x pg_catalog.int4)",
      "create function pgclaim.clock_timestamp() returns pg_catalog.timestamptz language sql as 'select null'",
      "create table public.mine (x pg_catalog.int4)",
      "create schema mine",
      "create trigger t before update on pgclaim.job for each row execute function pg_catalog.suppress_redundant_updates_trigger()",
      "create rule r as on delete to pgclaim.job do instead nothing",
      "select * from public.customers",
      "delete from public.customers",
      "select pg_catalog.setval('pgclaim.place_seq', 1)",
      "select pg_catalog.nextval('pgclaim.job_id_seq')",
      "insert into pgclaim.job (kind) values ('x')",
      "update pgclaim.history set outcome = 'done'",
      "update pgclaim.installation set seed = 1",
      "insert into pgclaim.grantee (scope, role_name) values ('run', 'postgres')",
      "select * from pgclaim.schema_functions",
      "update pgclaim.migration set version = 1",
      "select pgclaim.grant_v1('operate', 'postgres')",
      "select rolpassword from pg_catalog.pg_authid",
      "copy pgclaim.job to program 'true'",
      "select pg_catalog.pg_read_file('PG_VERSION')",
      "set session_replication_role = replica",
    ])
      expect(await sqlState(client.query(text)), text).toBe(DENIED);
    const superuser = await at.value<string>("select current_user");
    expect((await failure(client.query(`set role "${superuser}"`))).code).toBe(DENIED);

    // Postgres only warns whoever grants what it holds without the option: what counts is what the lists say afterwards.
    for (const text of [
      "grant select on pgclaim.job to public",
      "grant select (payload) on pgclaim.job to public",
      "grant usage on sequence pgclaim.place_seq to public",
      "grant execute on function pgclaim.enqueue_v1(pg_catalog.jsonb) to public",
      "grant execute on function pgclaim.retry_v1(pg_catalog.int8) to public",
      "grant usage on schema pgclaim to public",
    ]) {
      await client.query(text).catch((error: unknown) => expect(error, text).toMatchObject({ code: DENIED }));
      expect(await givenToPublic(at), text).toEqual(publicByDefault);
    }
  });
});
