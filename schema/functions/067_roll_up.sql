-- Adds up what ticks did, and the reaper's dead letters, by minute, by hour and since ever: what charts and metrics read. Once in
-- 20 seconds, by one at a time; at once again where there was more than a slice.
-- Argument: how many ticks at most, oldest first; those decided at the same instant as the last one come along.
-- Answers:  how many; null where it was not its turn.
-- Each tick is counted once: the watermark goes on in the transaction that counts. It stays 15 seconds behind the clock, for a
-- tick is decided some time before its COMMIT can be seen; finish decides last, so that this is the time of its COMMIT. What
-- took longer than that is missing in these sums, and nowhere else.
-- Locks: a lock that is only tried. Its rows are written by nobody else, but that prune_records deletes old ones.
-- Index: tick_newest, job_dead.
create or replace function pgclaim.roll_up(slice integer)
returns integer
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  clock constant timestamptz := clock_timestamp();
  until constant timestamptz := clock - interval '15 seconds';
  last pgclaim.housekeeping;
  since timestamptz;
  reached timestamptz;
  n integer;
begin
  for attempt in 1 .. 2 loop
    select h.* into last from pgclaim.housekeeping h where h.step = 'roll up';
    if last.ran_at > clock - interval '20 seconds' and last.upto >= last.ran_at - interval '15 seconds' then
      return null;
    end if;
    -- Who waits for its turn looks again under the lock.
    perform from pgclaim.installation i where pg_try_advisory_xact_lock(pgclaim.name_key('internal', 'roll up', i.seed));
    if not found then
      return null;
    end if;
  end loop;
  since := coalesce(last.upto, '-infinity');
  with ticks as materialized (
    select t.decided_at, t.outcome, t.report, date_bin('1 minute', t.decided_at, 'epoch') as minute
    from pgclaim.tick t
    where t.decided_at > since and t.decided_at <= until
    order by t.decided_at
    fetch first (slice) rows with ties
  ), upto as materialized (
    select count(*) as n, case when count(*) < slice then until else max(t.decided_at) end as at from ticks t
  ), crashes as materialized (
    -- Dead letters that no tick has made: the reaper's.
    select date_bin('1 minute', j.dead_at, 'epoch') as minute, j.kind, count(*) as n
    from pgclaim.job j
    cross join upto u
    where j.state = 'dead' and j.dead_at > greatest(since, until - interval '1 day') and j.dead_at <= u.at and j.dead_reason = 'crashed'
    group by 1, 2
  ), spans as materialized (
    select m.minute, w.width, case w.width when 1 then m.minute when 60 then date_bin('1 hour', m.minute, 'epoch') else 'epoch' end as at
    from (select t.minute from ticks t union select c.minute from crashes c) m
    cross join (values (0::smallint), (1::smallint), (60::smallint)) w(width)
  ), skips as (
    select s.width, s.at, r.reason, sum(r.n::bigint) as n
    from ticks t
    cross join lateral jsonb_each_text(case jsonb_typeof(t.report -> 'skipped') when 'object' then t.report -> 'skipped' end) r(reason, n)
    join spans s on s.minute = t.minute
    group by s.width, s.at, r.reason
  ), tick_sums as (
    insert into pgclaim.tick_rollup as o (width, at, committed, lost, claimed, skipped)
    select
      s.width, s.at, count(*) filter (where t.outcome = 'committed'), count(*) filter (where t.outcome = 'lost'),
      coalesce(sum((t.report ->> 'claimed')::bigint), 0),
      coalesce((select jsonb_object_agg(k.reason, k.n) from skips k where k.width = s.width and k.at = s.at), '{}')
    from ticks t
    join spans s on s.minute = t.minute
    group by s.width, s.at
    order by s.width, s.at
    on conflict on constraint tick_rollup_pkey do update
    set
      committed = o.committed + excluded.committed,
      lost = o.lost + excluded.lost,
      claimed = o.claimed + excluded.claimed,
      skipped = pgclaim.add_tallies(o.skipped, excluded.skipped)
  ), facts as materialized (
    select t.minute, k.kind, k.facts
    from ticks t
    cross join lateral jsonb_each(case jsonb_typeof(t.report -> 'kinds') when 'object' then t.report -> 'kinds' end) k(kind, facts)
    union all
    select c.minute, c.kind, jsonb_build_object('dead', c.n) from crashes c
  ), minute_lates as materialized (
    select f.minute, f.kind, b.i, sum(b.n::bigint) as n
    from facts f
    cross join lateral jsonb_array_elements_text(f.facts -> 'late') with ordinality b(n, i)
    group by f.minute, f.kind, b.i
  ), lates as (
    select l.width, l.at, l.kind, array_agg(l.n order by l.i) as late
    from (
      select s.width, s.at, m.kind, m.i, sum(m.n)::bigint as n
      from minute_lates m
      join spans s on s.minute = m.minute
      group by s.width, s.at, m.kind, m.i
    ) l
    group by l.width, l.at, l.kind
  ), minute_sums as materialized (
    select
      f.minute, f.kind,
      sum((f.facts ->> 'done')::bigint) as done,
      sum((f.facts ->> 'retried')::bigint) as retried,
      sum((f.facts ->> 'dead')::bigint) as dead,
      sum((f.facts ->> 'snoozed')::bigint) as snoozed,
      sum((f.facts ->> 'released')::bigint) as released,
      sum((f.facts ->> 'cancelled')::bigint) as cancelled,
      sum((f.facts ->> 'missed')::bigint) as missed,
      sum((f.facts ->> 'lateMs')::bigint) as late_ms
    from facts f
    group by f.minute, f.kind
  ), sums as (
    select
      s.width, s.at, m.kind,
      coalesce(sum(m.done), 0) as done,
      coalesce(sum(m.retried), 0) as retried,
      coalesce(sum(m.dead), 0) as dead,
      coalesce(sum(m.snoozed), 0) as snoozed,
      coalesce(sum(m.released), 0) as released,
      coalesce(sum(m.cancelled), 0) as cancelled,
      coalesce(sum(m.missed), 0) as missed,
      coalesce(sum(m.late_ms), 0) as late_ms
    from minute_sums m
    join spans s on s.minute = m.minute
    group by s.width, s.at, m.kind
  ), job_sums as (
    insert into pgclaim.rollup as o (
      width, at, kind, done, retried, dead, snoozed, released, cancelled, missed, late, late_ms
    )
    select
      s.width, s.at, s.kind, s.done, s.retried, s.dead, s.snoozed, s.released, s.cancelled, s.missed, coalesce(l.late, '{}'),
      s.late_ms
    from sums s
    left join lates l on l.width = s.width and l.at = s.at and l.kind = s.kind
    order by s.width, s.at, s.kind
    on conflict on constraint rollup_pkey do update
    set
      done = o.done + excluded.done,
      retried = o.retried + excluded.retried,
      dead = o.dead + excluded.dead,
      snoozed = o.snoozed + excluded.snoozed,
      released = o.released + excluded.released,
      cancelled = o.cancelled + excluded.cancelled,
      missed = o.missed + excluded.missed,
      late = pgclaim.add_counts(o.late, excluded.late),
      late_ms = o.late_ms + excluded.late_ms
  )
  select u.n, u.at into n, reached from upto u;
  insert into pgclaim.housekeeping as h (step, ran_at, took_ms, upto)
  values ('roll up', clock, extract(epoch from clock_timestamp() - clock) * 1000, reached)
  on conflict on constraint housekeeping_pkey do update
  set ran_at = excluded.ran_at, took_ms = excluded.took_ms, upto = greatest(h.upto, excluded.upto);
  return n;
end $$;

-- Deletes what is old of these records, a bounded slice of each table: minutes after two days, hours after 90 days, what was
-- done by hand after 90 days, triggers that have not come for 30, answers to an Idempotency-Key after a day.
-- Answers: how many rows. Locks: one at a time, by a lock that is only tried; rows of others are left alone.
-- Index: rollup_pkey, tick_rollup_pkey, trigger_minute_at, action_at, request_key_created; see prune for the clock.
create or replace function pgclaim.prune_records(slice integer)
returns integer
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  clock constant timestamptz := clock_timestamp();
  pruned integer := 0;
  n integer;
  w record;
begin
  perform from pgclaim.installation i where pg_try_advisory_xact_lock(pgclaim.name_key('internal', 'prune records', i.seed));
  if not found then
    return 0;
  end if;
  for w in select * from (values (1::smallint, interval '2 days'), (60::smallint, interval '90 days')) v(width, age) loop
    delete from pgclaim.rollup r
    where (r.width, r.at, r.kind) in (
      select o.width, o.at, o.kind from pgclaim.rollup o
      where o.width = w.width and o.at < clock - w.age
      limit slice for update skip locked
    );
    get diagnostics n = row_count;
    pruned := pruned + n;
    delete from pgclaim.tick_rollup r
    where (r.width, r.at) in (
      select o.width, o.at from pgclaim.tick_rollup o
      where o.width = w.width and o.at < clock - w.age
      limit slice for update skip locked
    );
    get diagnostics n = row_count;
    pruned := pruned + n;
  end loop;
  delete from pgclaim.trigger_minute m
  where (m.name, m.at) in (
    select o.name, o.at from pgclaim.trigger_minute o where o.at < clock - interval '2 days' limit slice for update skip locked
  );
  get diagnostics n = row_count;
  pruned := pruned + n;
  -- A cron that somebody took away, or it would be silent for ever, and one of two hundred.
  delete from pgclaim.trigger t
  where t.name in (
    select o.name from pgclaim.trigger o where o.last_seen_at < clock - interval '30 days' limit slice for update skip locked
  );
  get diagnostics n = row_count;
  pruned := pruned + n;
  -- Of triggers that came once, or were one too many.
  delete from pgclaim.trigger_bump b
  where b.ctid = any (array(
    select o.ctid from pgclaim.trigger_bump o where o.at < clock - interval '2 days' limit slice for update skip locked
  ));
  get diagnostics n = row_count;
  pruned := pruned + n;
  delete from pgclaim.action a
  where a.id in (select o.id from pgclaim.action o where o.at < clock - interval '90 days' limit slice for update skip locked);
  get diagnostics n = row_count;
  pruned := pruned + n;
  delete from pgclaim.request_key r
  where (r.role_name, r.key) in (
    select o.role_name, o.key from pgclaim.request_key o where o.created_at < clock - interval '1 day' limit slice for update skip locked
  );
  get diagnostics n = row_count;
  return pruned + n;
end $$;
