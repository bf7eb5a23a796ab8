-- Deletes old closed rows in a bounded slice of each table; never an unfinished job, never an open attempt.
-- Attempts stay a day at least and until their number is closed in the job row: a number that is forgotten earlier could
-- be granted twice to a fence that was late. Tick rows stay a week: the row of a lost tick is what stops its zombie.
-- One housekeeper at a time, by a lock that is only tried: whoever does not get it prunes nothing and loses nothing.
-- Argument: slice, age of history in milliseconds (null: keep for ever).
-- Index:    attempt_started, tick_newest, history_finished; they say at once, or by block range, that nothing is old enough.
--           The clock is read once, because compared with clock_timestamp() itself, a volatile function, no index is of use; and
--           a hash or a scan of a whole table would make each wake cost the history.
create or replace function pgclaim.prune(slice integer, history_ms bigint)
returns integer
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  pruned integer := 0;
  n integer;
  orphans bigint[];
  clock constant timestamptz := clock_timestamp();
begin
  perform from pgclaim.installation i
  where pg_try_advisory_xact_lock(pgclaim.name_key('internal', 'prune', i.seed));
  if not found then
    return 0;
  end if;
  delete from pgclaim.attempt a
  where (a.job_id, a.n) in (
    select o.job_id, o.n
    from pgclaim.attempt o
    left join pgclaim.job j on j.id = o.job_id
    where o.started_at < clock - interval '1 day'
      and o.ended_at < clock - interval '1 day'
      and (j.id is null or o.n <= j.attempt)
      -- Crashes that still count against max_crashes are a job's record, and so are those of a dead letter.
      and (j.id is null or not (o.outcome = 'crashed' and o.n > j.crash_base))
    limit slice
  );
  get diagnostics pruned = row_count;
  delete from pgclaim.tick t
  where t.id in (select o.id from pgclaim.tick o where o.decided_at < clock - interval '7 days' limit slice);
  get diagnostics n = row_count;
  pruned := pruned + n;
  delete from pgclaim.unique_key k
  where (k.kind, k.key) in (
    select o.kind, o.key from pgclaim.unique_key o where o.expires_at < clock limit slice for update skip locked
  );
  get diagnostics n = row_count;
  pruned := pruned + n;
  -- Keys that a finished job has left behind, since somebody had them locked: a few at a time, from a rotating start. Found
  -- first and deleted by number then, so that one which has been taken over meanwhile is another's.
  select array_agg(o.job_id) into orphans
  from (
    select u.job_id from pgclaim.unique_key u
    where u.job_id >= (
      select min(m.job_id) + floor(random() * (max(m.job_id) - min(m.job_id) + 1)::float8)::bigint from pgclaim.unique_key m
    )
    order by u.job_id
    limit 20
  ) o
  where not exists (select from pgclaim.job j where j.id = o.job_id);
  if orphans is not null then
    delete from pgclaim.unique_key k
    where (k.kind, k.key) in (
      select o.kind, o.key from pgclaim.unique_key o
      where o.job_id = any (orphans) and o.expires_at is null
      for update skip locked
    );
    get diagnostics n = row_count;
    pruned := pruned + n;
  end if;
  delete from pgclaim.reservation r
  where (r.name, r.job_id) in (
    select o.name, o.job_id from pgclaim.reservation o
    where not exists (select from pgclaim.job j where j.id = o.job_id and j.state = 'ready')
    limit slice
    for update skip locked
  );
  if history_ms is not null then
    delete from pgclaim.history h
    where h.job_id in (
      select o.job_id from pgclaim.history o
      where o.finished_at < clock - history_ms * interval '1 millisecond'
      limit slice
    );
    get diagnostics n = row_count;
    pruned := pruned + n;
  end if;
  return pruned;
end $$;
