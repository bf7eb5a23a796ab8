// What the database must say after a soak of everything.

import { violation } from "./everything_jobs.ts";

/** Kinds of which no job may end done, and no effect may stay. */
const deadKinds = "('soak.dead', 'soak.poison')";

/** What must be nothing, each as a query that answers a number. */
export const nothing: Readonly<Record<string, string>> = {
  "jobs lost: asked for, and neither done nor there": `select count(*) as n from asked a
    where not exists (select from pgclaim.history h where h.job_id = a.job_id)
      and not exists (select from pgclaim.job j where j.id = a.job_id)`,
  "jobs stuck: asked for and not done": `select count(*) as n from asked a where a.kind not in ${deadKinds}
    and not exists (select from pgclaim.history h where h.job_id = a.job_id and h.outcome = 'done')`,
  "jobs left unfinished": "select count(*) as n from pgclaim.job where state <> 'dead'",
  "jobs doubled in history": "select count(*) - count(distinct job_id) as n from pgclaim.history",
  "effects missing": `select count(*) as n from pgclaim.history h
    where h.outcome = 'done' and not exists (select from effect e where e.job_id = h.job_id)`,
  "effects doubled": "select count(*) - count(distinct job_id) as n from effect",
  "effects of jobs that are not done": `select count(*) as n from effect e
    where not exists (select from pgclaim.history h where h.job_id = e.job_id and h.outcome = 'done')`,
  "dead letters that should not be": `select count(*) as n from pgclaim.job where state = 'dead' and kind not in ${deadKinds}`,
  "jobs that should be dead letters": `select count(*) as n from asked a where a.kind in ${deadKinds}
    and not exists (select from pgclaim.job j where j.id = a.job_id and j.state = 'dead'
      and j.dead_reason = case a.kind when 'soak.poison' then 'crashed' else j.dead_reason end)`,
  "parents without exactly one child": `select count(*) as n from pgclaim.history p
    where p.kind = 'soak.parent' and p.outcome = 'done' and 1 <> (
      select count(*) from pgclaim.history c where c.kind = 'soak.child' and c.payload ->> 'parent' = p.job_id::text)`,
  "children of nobody": `select count(*) as n from pgclaim.history c where c.kind = 'soak.child' and not exists (
      select from pgclaim.history p where p.job_id = (c.payload ->> 'parent')::bigint and p.outcome = 'done')`,
  "inversions by effect": `select count(*) as n from (
      select place, lag(place) over (partition by k order by serial) as before from effect where kind = 'soak.ordered'
    ) e where before > place`,
  "inversions in history": `select count(*) as n from (
      select place, lag(place) over (partition by ordering_key order by finished_at, ctid) as before
      from pgclaim.history where ordering_key is not null
    ) h where before > place`,
  "locks or limits that did not hold": `select
      (select count(*) from pgclaim.attempt where error like '%${violation}%')
      + (select count(*) from pgclaim.job where last_error like '%${violation}%') as n`,
  "attempts left open": "select count(*) as n from pgclaim.attempt where outcome is null",
  "notes left": "select count(*) as n from pgclaim.recheck",
  "advisory locks left": `select count(*) as n from pg_locks where locktype = 'advisory'
    and database = (select oid from pg_database where datname = current_database())`,
  "transactions left open": `select count(*) as n from pg_stat_activity
    where datname = current_database() and state like 'idle in transaction%'`,
  deadlocks: "select deadlocks as n from pg_stat_database where datname = current_database()",
};

/** What handlers said of locks and limits that did not hold. */
export const violations = `select distinct error as said from (
    select error from pgclaim.attempt union all select last_error from pgclaim.job
  ) e where error like '%${violation}%' limit 10`;

/** How much of it there was. */
export const facts: Readonly<Record<string, string>> = {
  "jobs done": "select count(*) as n from pgclaim.history where outcome = 'done'",
  "dead letters, as wanted": "select count(*) as n from pgclaim.job where state = 'dead' and kind = 'soak.dead'",
  "poisons that ended crashed": "select count(*) as n from pgclaim.job where state = 'dead' and kind = 'soak.poison'",
  "attempts failed": "select count(*) as n from pgclaim.attempt where outcome = 'failed'",
  "attempts crashed": "select count(*) as n from pgclaim.attempt where outcome = 'crashed'",
  "attempts interrupted": "select count(*) as n from pgclaim.attempt where outcome = 'interrupted'",
  "attempts handed back": "select count(*) as n from pgclaim.attempt where outcome = 'released'",
  "attempts snoozed": "select count(*) as n from pgclaim.attempt where outcome = 'snoozed'",
};
