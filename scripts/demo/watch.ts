// What the demo asks the database. Everything it claims about jobs is read here, not taken from a report.

import type pg from "pg";

/** What one process holds at one moment. */
export type Held = {
  /** Advisory locks its sessions hold. */
  readonly locks: number;
  /** Attempts on record as started whose job's lock it holds. */
  readonly attempts: readonly {
    readonly jobId: string;
    readonly n: number;
    readonly tick: string;
    /** Null: the job has none. */
    readonly orderingKey: string | null;
  }[];
  /** Its claiming transactions, and how many of them have an xid or a snapshot. */
  readonly transactions: number;
  readonly withXidOrSnapshot: number;
};

/** Advisory locks of this database, with the process that holds each. */
const LOCKS = `
  select l.pid, s.application_name as process, (l.classid::bigint << 32) | l.objid::bigint as key,
         s.backend_xid is not null or s.backend_xmin is not null as visible
  from pg_locks l
  join pg_stat_activity s on s.pid = l.pid
  where l.locktype = 'advisory' and l.granted
    and l.database = (select d.oid from pg_database d where d.datname = current_database())`;

export async function held(sql: pg.Client, process: string): Promise<Held> {
  const { rows } = await sql.query<{
    pid: number;
    visible: boolean;
    jobId: string | null;
    n: number;
    tick: string;
    orderingKey: string | null;
  }>(
    `with lock as materialized (${LOCKS})
     select l.pid, l.visible, a.job_id::text as "jobId", a.n, a.tick::text, j.ordering_key as "orderingKey"
     from lock l
     left join (pgclaim.job j join pgclaim.kind k on k.name = j.kind) on pgclaim.job_key(k.namespace, j.id) = l.key
     left join pgclaim.attempt a on a.job_id = j.id and a.outcome is null
     where l.process = $1`,
    [process],
  );
  const pids = new Set(rows.map(({ pid }) => pid));
  return {
    locks: rows.length,
    attempts: rows.flatMap(({ jobId, n, tick, orderingKey }) =>
      jobId === null ? [] : [{ jobId, n, tick, orderingKey }],
    ),
    transactions: pids.size,
    withXidOrSnapshot: new Set(rows.filter(({ visible }) => visible).map(({ pid }) => pid)).size,
  };
}

/** Whether the transaction that holds a job's lock has an xid or a snapshot; null if nobody holds it. */
export async function isVisible(sql: pg.Client, jobId: string): Promise<boolean | null> {
  const { rows } = await sql.query<{ visible: boolean | null }>(
    `with lock as materialized (${LOCKS})
     select bool_or(l.visible) as visible
     from lock l
     join (pgclaim.job j join pgclaim.kind k on k.name = j.kind) on pgclaim.job_key(k.namespace, j.id) = l.key
     where j.id = $1`,
    [jobId],
  );
  return rows[0]?.visible ?? null;
}

export async function locksHeld(sql: pg.Client, process?: string): Promise<number> {
  const { rows } = await sql.query<{ n: number }>(
    `select count(*)::integer as n from (${LOCKS}) l where $1::text is null or l.process = $1`,
    [process ?? null],
  );
  return rows[0]?.n ?? 0;
}

/** Connections that Workers have open. */
export async function sessionsOpen(sql: pg.Client, processes: readonly string[]): Promise<number> {
  const { rows } = await sql.query<{ n: number }>(
    "select count(*)::integer as n from pg_stat_activity where datname = current_database() and application_name = any ($1)",
    [processes],
  );
  return rows[0]?.n ?? 0;
}

/** The database's clock, to the microsecond. */
export async function databaseNow(sql: pg.Client): Promise<string> {
  const { rows } = await sql.query<{ now: string }>("select clock_timestamp()::text as now");
  return rows[0]?.now ?? "";
}

export type Unfinished = {
  readonly due: number;
  readonly later: number;
  readonly dead: number;
  /** Milliseconds until the first of the later ones is due. */
  readonly dueInMs: number | null;
};

export async function unfinished(sql: pg.Client): Promise<Unfinished> {
  const { rows } = await sql.query<Unfinished>(
    `select
       count(*) filter (
         where state = 'ready' or state = 'scheduled' and run_at <= clock_timestamp()
           or state = 'blocked' and gate in (select r.gate from pgclaim.recheck r)
       )::integer as due,
       count(*) filter (where state = 'scheduled' and run_at > clock_timestamp())::integer as later,
       count(*) filter (where state = 'dead')::integer as dead,
       ceil(extract(epoch from min(run_at) filter (where state = 'scheduled') - clock_timestamp()) * 1000)::float8 as "dueInMs"
     from pgclaim.job`,
  );
  return rows[0] ?? { due: 0, later: 0, dead: 0, dueInMs: null };
}

/** For each crashed attempt, when its job was on record as started again, counted from an instant. */
export type Recovery = {
  readonly jobId: string;
  readonly tick: string;
  readonly afterMs: number | null;
  readonly done: boolean;
};

export async function recoveries(sql: pg.Client, since: string): Promise<Recovery[]> {
  const { rows } = await sql.query<Recovery>(
    `select a.job_id::text as "jobId", a.tick::text,
       (extract(epoch from next.started_at - $1::timestamptz) * 1000)::float8 as "afterMs",
       exists (select from pgclaim.history h where h.job_id = a.job_id and h.outcome = 'done') as done
     from pgclaim.attempt a
     left join lateral (
       select b.started_at from pgclaim.attempt b where b.job_id = a.job_id and b.n > a.n order by b.n limit 1
     ) next on true
     where a.outcome = 'crashed'
     order by next.started_at`,
    [since],
  );
  return rows;
}

/** Jobs that stood behind another one of their ordering key in the same tick. */
export type Followers = {
  /** Attempts as "<job>/<attempt>". */
  readonly tokens: ReadonlySet<string>;
  /** By tick: how many ended done, and how many were free to start, since the one before them was done. */
  readonly ticks: ReadonlyMap<string, { readonly done: number; readonly free: number }>;
};

export async function followers(sql: pg.Client): Promise<Followers> {
  const { rows } = await sql.query<{ token: string; tick: string; outcome: string; before: string }>(
    `select *
     from (
       select a.job_id || '/' || a.n as token, a.tick::text, a.outcome,
         lag(a.outcome) over (partition by a.tick, j.ordering_key order by j.place) as before
       from pgclaim.attempt a
       join (
         select job_id, ordering_key, place from pgclaim.history
         union all
         select id, ordering_key, place from pgclaim.job
       ) j using (job_id)
       where j.ordering_key is not null
     ) run
     where before is not null`,
  );
  const ticks = new Map<string, { done: number; free: number }>();
  for (const { tick, outcome, before } of rows) {
    const count = ticks.get(tick) ?? { done: 0, free: 0 };
    if (outcome === "done") count.done++;
    if (before === "done") count.free++;
    ticks.set(tick, count);
  }
  return { tokens: new Set(rows.map(({ token }) => token)), ticks };
}

/** What the database says of a report that was made. */
export type Reported = {
  readonly transactionId: string;
  readonly account: string;
  /** From enqueue to deadline; null without one. */
  readonly windowMs: number | null;
  /** The attempt that ended done, as "<job>/<attempt>". */
  readonly token: string;
};

/** The reports that were made, in the order in which their receipts were written. */
export async function reported(sql: pg.Client): Promise<Reported[]> {
  const { rows } = await sql.query<Reported>(
    `select r.transaction_id as "transactionId", r.account, r.job_id || '/' || r.attempt as token,
       (extract(epoch from h.deadline_at - h.enqueued_at) * 1000)::float8 as "windowMs"
     from report_receipt r
     join pgclaim.history h using (job_id)
     where h.outcome = 'done'
     order by r.reported_at`,
  );
  return rows;
}

/** Counts of the end, all in one look. */
export type Ledger = {
  readonly events: number;
  readonly activity: number;
  readonly activityDeliveries: number;
  readonly repositories: number;
  readonly receipts: number;
  readonly receiptJobs: number;
  readonly done: number;
  readonly reportJobsDone: number;
  readonly left: number;
  readonly dead: number;
  readonly attempts: number;
  readonly openAttempts: number;
  readonly crashed: number;
  /** Pairs of attempts of one job that ran at the same time. */
  readonly overlaps: number;
};

export async function ledger(sql: pg.Client): Promise<Ledger> {
  const { rows } = await sql.query<Ledger>(
    `select
       (select count(*) from webhook_event)::integer as events,
       (select count(*) from repository_activity)::integer as activity,
       (select count(distinct delivery_id) from repository_activity)::integer as "activityDeliveries",
       (select count(distinct repository) from repository_activity where repository <> '(none)')::integer as repositories,
       (select count(*) from report_receipt)::integer as receipts,
       (select count(*) from report_receipt r join pgclaim.history h using (job_id) where h.outcome = 'done')::integer as "receiptJobs",
       (select count(*) from pgclaim.history where outcome = 'done')::integer as done,
       (select count(*) from pgclaim.history where outcome = 'done' and kind = 'report.transaction')::integer as "reportJobsDone",
       (select count(*) from pgclaim.job)::integer as left,
       (select count(*) from pgclaim.job where state = 'dead')::integer as dead,
       (select count(*) from pgclaim.attempt)::integer as attempts,
       (select count(*) from pgclaim.attempt where outcome is null)::integer as "openAttempts",
       (select count(*) from pgclaim.attempt where outcome = 'crashed')::integer as crashed,
       (select count(*) from pgclaim.attempt a join pgclaim.attempt b on b.job_id = a.job_id and b.n > a.n
        where a.ended_at is null or b.started_at < a.ended_at)::integer as overlaps`,
  );
  const row = rows[0];
  if (row === undefined) throw new Error("the ledger came back empty");
  return row;
}
