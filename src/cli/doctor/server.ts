// The doctor on the server's settings: isolation, room in the lock table, connections, time limits, clocks.

import { performance } from "node:perf_hooks";
import { sqlStateOf, sqlStates } from "../../errors.ts";
import { instant, integer, type Row } from "../../rows.ts";
import { length, number } from "../format.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";
import type { Probe } from "./probe.ts";

/** What the deployments are taken to do at most. */
export interface Load {
  /** Jobs of a tick. */
  readonly batch: number;
  /** Invocations at once. */
  readonly invocations: number;
}

/** One row of what every check needs. Shape: see the names in the statement. */
export async function serverFacts(probe: Probe): Promise<Row> {
  const [row] = await probe.ask(`select
    current_setting('server_version') as version,
    current_setting('server_version_num')::integer as version_num,
    current_user::text as role,
    session_user::text as login,
    current_database()::text as database,
    pg_is_in_recovery() as recovery,
    current_setting('default_transaction_isolation') as isolation,
    current_setting('default_transaction_read_only') as read_only,
    current_setting('password_encryption') as password_encryption,
    current_setting('max_locks_per_transaction')::integer as locks_per_transaction,
    current_setting('max_connections')::integer as max_connections,
    current_setting('max_prepared_transactions')::integer as max_prepared,
    current_setting('superuser_reserved_connections')::integer as reserved,
    coalesce(current_setting('reserved_connections', true), '0')::integer as reserved_for_roles,
    current_setting('autovacuum') as autovacuum,
    (select rolconnlimit from pg_catalog.pg_roles where rolname = session_user) as role_limit,
    (select datconnlimit from pg_catalog.pg_database where datname = current_database()) as database_limit,
    (select count(*)::integer from pg_catalog.pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()) as connected,
    (select count(*)::integer from pg_catalog.pg_locks) as locks`);
  return row ?? {};
}

export function isolation(server: Row): Finding {
  const facts = { isolation: server.isolation, readOnly: server.read_only, recovery: server.recovery };
  if (server.recovery === true)
    return fail("isolation default", "a standby, which takes no writes", "use the primary's address", facts);
  const own = "pgclaim names READ COMMITTED READ WRITE itself";
  const readOnly = server.read_only === "on" ? ", read only" : "";
  return ok("isolation default", `"${String(server.isolation)}"${readOnly}; ${own}`, { facts });
}

/** Slots of the server's lock table against what ticks may take. */
export async function lockCapacity(probe: Probe, server: Row, schema: string, load: Load): Promise<Finding> {
  const slots =
    integer(server, "locks_per_transaction") * (integer(server, "max_connections") + integer(server, "max_prepared"));
  const [row] = await probe.ask(
    `select coalesce(max((k.ordering_key is not null)::integer + cardinality(k.locks) + cardinality(k.shared_locks) + cardinality(k.limit_names)), 0) as names from ${schema}.kind k`,
  );
  const perJob = 1 + integer(row, "names");
  const tick = load.batch * perJob;
  const all = tick * load.invocations;
  const share = Math.round((100 * all) / slots);
  const facts = { slots, held: server.locks, perJob, tick, invocations: load.invocations, all };
  const measured =
    `${number(slots)} slots (${String(server.locks_per_transaction)} x (${String(server.max_connections)} + ${String(server.max_prepared)})); ` +
    `a tick needs ${load.batch} x ${perJob} = ${number(tick)}; ${load.invocations} invocations ${number(all)} (${share} %)`;
  const todo = "lower batch, or raise max_locks_per_transaction (a restart)";
  if (share > 100) return fail("lock capacity", measured, todo, facts);
  return share > 50 ? warn("lock capacity", measured, todo, facts) : ok("lock capacity", measured, { facts });
}

/** Connections left, of which an invocation takes two: its session and one one-shot at a time. */
export function connections(server: Row, load: Load, pooled: boolean): Finding {
  const most = integer(server, "max_connections");
  const kept = integer(server, "reserved") + integer(server, "reserved_for_roles");
  const used = integer(server, "connected");
  const limits = [server.role_limit, server.database_limit].map(Number).filter((limit) => limit >= 0);
  const free = Math.max(0, Math.min(most - kept - used, ...limits));
  const room = Math.floor(free / 2);
  const capped = limits.length === 0 ? "" : `, and a limit of ${Math.min(...limits)} for this role or database`;
  const facts = { most, kept, used, free, room, invocations: load.invocations };
  const measured =
    `${number(most)} less ${kept} reserved and ${number(used)} in use${capped}: room for ${number(room)} invocations at once, 2 each; ` +
    `${load.invocations} expected${pooled ? "; the pooler has a limit of its own" : ""}`;
  const todo = "put a transaction-mode pooler before it, set tickSlots, or raise max_connections";
  if (room < 1) return fail("connection budget", measured, todo, facts);
  return room < load.invocations
    ? warn("connection budget", measured, todo, facts)
    : ok("connection budget", measured, { facts });
}

/** Whatever sets no limit of its own (migrate, a caller's transaction that enqueues) is cut by less than this. */
const comfortableMs = 60_000;

export async function timeouts(probe: Probe, server: Row, schema: string): Promise<Finding> {
  const limits = await timeLimits(probe, schema);
  const facts = { limits };
  const set = limits.filter(({ ms }) => ms > 0);
  const shown = set.map(({ name, ms, where }) => `${name} ${length(ms)} (${where})`).join(", ") || "none set";
  const idle = set.find(({ name, ms }) => name === "idle_session_timeout" && ms < 10_000);
  if (idle !== undefined)
    return warn("timeouts", `${shown}: it ends an invocation's session between two ticks`, resetOf(idle), facts);
  const short = set.find(
    ({ name, ms }) => (name === "statement_timeout" || name === "transaction_timeout") && ms < comfortableMs,
  );
  if (short !== undefined) {
    return warn(
      "timeouts",
      `${shown}: ticks and one-shots set their own, migrate and a caller's own transaction do not`,
      resetOf(short),
      facts,
    );
  }
  if (integer(server, "version_num") < 170_000) {
    return warn(
      "timeouts",
      `${shown}; Postgres ${String(server.version)} has no transaction_timeout: a client that keeps its transaction busy is ended by nobody`,
      "Postgres 17 or later, where pgclaim sets it",
      facts,
    );
  }
  return ok("timeouts", `${shown}; pgclaim sets its own inside each tick and one-shot`, { facts });
}

interface TimeLimit {
  readonly name: string;
  readonly ms: number;
  /** Whose it is: the connected role's, the database's, the server's, another role's. */
  readonly where: string;
  readonly role: string | null;
  readonly database: string | null;
}

/** Where pg_settings says a setting comes from, in our words. */
const sources: Readonly<Record<string, string>> = {
  user: "of the role",
  database: "of the database",
  "database user": "of the role in this database",
  "configuration file": "of the server",
  client: "of the address",
  session: "of the session",
};

/** Of this session, and of the roles that grant_v1 has let run jobs, whose settings we do not have. */
async function timeLimits(probe: Probe, schema: string): Promise<readonly TimeLimit[]> {
  const names =
    "'idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout', 'idle_session_timeout', 'lock_timeout'";
  const session = await probe.ask(
    // statement_timeout of this transaction is ours; reset_val is what the session began with.
    `select s.name, s.reset_val::bigint as ms, case when s.reset_val = s.boot_val then 'default' else s.source end as source, current_user::text as role from pg_catalog.pg_settings s where s.name in (${names}) order by s.name`,
  );
  const roles = await rolesThatRun(probe, schema, names);
  return [
    ...session.map((row) => ({
      name: String(row.name),
      ms: Number(row.ms),
      where: sources[String(row.source)] ?? String(row.source),
      role: String(row.role),
      database: null,
    })),
    ...roles.map((row) => ({
      name: String(row.name),
      ms: Number(row.ms),
      where: `of the role ${String(row.role)}`,
      role: String(row.role),
      database: row.database === null ? null : String(row.database),
    })),
  ];
}

/** Empty where this role may not read who was granted what: only the schema's owner may. */
async function rolesThatRun(probe: Probe, schema: string, names: string): Promise<readonly Row[]> {
  const statement = `select r.rolname::text as role, d.datname::text as database, split_part(c.setting, '=', 1) as name,
       case when split_part(c.setting, '=', 2) ~ '^[0-9]+$' then split_part(c.setting, '=', 2)::bigint
         else (1000 * extract(epoch from split_part(c.setting, '=', 2)::interval))::bigint end as ms
     from pg_catalog.pg_db_role_setting s
     cross join lateral unnest(s.setconfig) c(setting)
     left join pg_catalog.pg_roles r on r.oid = s.setrole
     left join pg_catalog.pg_database d on d.oid = s.setdatabase
     where split_part(c.setting, '=', 1) in (${names})
       and (s.setdatabase = 0 or d.datname = current_database())
       and r.rolname <> current_user
       and exists (select from ${schema}.grantee g where g.role_name = r.rolname and g.scope = 'run')
     order by 1, 3`;
  try {
    return await probe.ask(statement);
  } catch (error) {
    if (sqlStateOf(error) !== sqlStates.insufficientPrivilege) throw error;
    return [];
  }
}

function resetOf({ name, role, database }: TimeLimit): string {
  return `alter role ${role ?? "..."}${database === null ? "" : ` in database ${database}`} set ${name} = 0;`;
}

/** How far this machine's clock is from the database's, which decides what is due. */
export async function clock(probe: Probe): Promise<Finding> {
  const before = { wall: Date.now(), mono: performance.now() };
  const [row] = await probe.ask("select to_json(clock_timestamp()) #>> '{}' as now");
  const rttMs = performance.now() - before.mono;
  const aheadMs = instant(row, "now").getTime() - (before.wall + rttMs / 2);
  const off = Math.max(0, Math.abs(aheadMs) - rttMs / 2);
  const facts = { aheadMs: Math.round(aheadMs), rttMs: Math.round(rttMs) };
  const measured = `the database is ${length(Math.abs(aheadMs))} ${aheadMs < 0 ? "behind" : "ahead of"} this machine (${length(rttMs)} round trip)`;
  return off > 5_000
    ? warn(
        "clock",
        `${measured}; what is due is decided by the database's`,
        "synchronise the clock that is wrong",
        facts,
      )
    : ok("clock", measured, { facts });
}
