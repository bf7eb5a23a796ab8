// The doctor on the tables: rows that are dead, who keeps vacuum from removing them, and whether what is old goes.

import type { Row } from "../../rows.ts";
import { length, number } from "../format.ts";
import { type Finding, ok, warn } from "./finding.ts";
import type { Probe } from "./probe.ts";

/** Dead rows below this are nothing; above, and more than a fifth of the living, vacuum does not keep up. */
const manyDead = 10_000;
/** A snapshot or a prepared transaction older than this keeps every dead row in the database. */
const oldHorizonMs = 3_600_000;

export async function bloat(probe: Probe, server: Row, schema: string): Promise<Finding> {
  const tables = await probe.ask(
    `select s.relname::text as name, s.n_live_tup::float8 as live, s.n_dead_tup::float8 as dead,
       (1000 * extract(epoch from clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum)))::float8 as vacuum_ms
     from pg_catalog.pg_stat_user_tables s where s.schemaname = $1 order by s.relname`,
    schema,
  );
  const holders = await probe.ask(
    `select 'a transaction of process ' || a.pid as what, (1000 * extract(epoch from clock_timestamp() - a.xact_start))::float8 as ms
     from pg_catalog.pg_stat_activity a
     where (a.backend_xmin is not null or a.backend_xid is not null) and a.pid <> pg_backend_pid() and a.xact_start is not null
     union all
     select 'prepared transaction', (1000 * extract(epoch from clock_timestamp() - p.prepared))::float8 from pg_catalog.pg_prepared_xacts p
     union all
     select 'replication slot ' || r.slot_name, null from pg_catalog.pg_replication_slots r where not r.active and (r.xmin is not null or r.catalog_xmin is not null)
     order by 2 desc nulls first limit 5`,
  );
  const facts = { tables, horizon: holders, autovacuum: server.autovacuum };
  if (server.autovacuum !== "on")
    return warn("bloat", "autovacuum is off", "turn it on: every job leaves dead rows behind", facts);
  const holding = holders.find(({ ms }) => ms === null || Number(ms) > oldHorizonMs);
  if (holding !== undefined) {
    const age = holding.ms === null ? "inactive" : `for ${length(Number(holding.ms))}`;
    return warn(
      "bloat",
      `${String(holding.what)} keeps dead rows from being removed (${age})`,
      "end it, or drop it",
      facts,
    );
  }
  const [worst] = tables
    .filter(({ live, dead }) => Number(dead) > manyDead && Number(dead) > Number(live) / 5)
    .sort((a, b) => Number(b.dead) - Number(a.dead));
  if (worst !== undefined) {
    const last = worst.vacuum_ms === null ? "never vacuumed" : `vacuumed ${length(Number(worst.vacuum_ms))} ago`;
    return warn(
      "bloat",
      `${String(worst.name)} has ${number(Number(worst.dead))} dead rows and ${number(Number(worst.live))} living, ${last}`,
      `vacuum ${schema}.${String(worst.name)}; and look whether autovacuum has a worker free`,
      facts,
    );
  }
  const dead = tables.reduce((sum, row) => sum + Number(row.dead), 0);
  return ok("bloat", `${number(dead)} dead rows in ${tables.length} tables, nobody holds vacuum back`, { facts });
}

/** Ticks are kept a week; a day later they should be gone. */
const overdueMs = 8 * 86_400_000;

/** Whether wakes prune. Both probes are one row of an index; how much history there is, the statistics say. */
export async function retention(probe: Probe, schema: string): Promise<Finding> {
  const [row] = await probe.ask(
    `select
       (select (1000 * extract(epoch from clock_timestamp() - t.decided_at))::float8 from ${schema}.tick t order by t.decided_at limit 1) as tick_ms,
       (select (1000 * extract(epoch from clock_timestamp() - h.finished_at))::float8 from ${schema}.history h order by h.job_id limit 1) as history_ms,
       (select c.reltuples::float8 from pg_catalog.pg_class c where c.oid = to_regclass($1 || '.history')) as history_rows`,
    schema,
  );
  const tickMs = row?.tick_ms === null ? null : Number(row?.tick_ms);
  const historyMs = row?.history_ms === null ? null : Number(row?.history_ms);
  const rows = Number(row?.history_rows);
  const facts = { oldestTickMs: tickMs, firstJobFinishedMs: historyMs, historyRows: rows };
  const shown = `${rows < 0 ? "history not analysed yet" : `about ${number(rows)} rows of history`}${historyMs === null ? "" : `, the first job in it finished ${length(historyMs)} ago`}`;
  return tickMs !== null && tickMs > overdueMs
    ? warn(
        "retention",
        `${shown}; ticks are kept 7 d and the oldest is ${length(tickMs)} old`,
        "trigger more often: each wake removes a slice of what is old",
        facts,
      )
    : ok("retention", shown, { facts });
}
