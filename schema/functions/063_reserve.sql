-- Fairness. A job that needs several names can be passed by for ever by jobs that need one of them, and an exclusive waiter
-- by a stream of shared holders. After waiting reserve_ms it reserves its names: claims of others let them pass, the
-- holders of today end, and its set is free. All of its names or none, the oldest first, so two reservers cannot hold each
-- other up. finish gives them back.
-- Index: job_named. Locks: none; a reservation that somebody else writes at the same time wins.
create or replace function pgclaim.reserve(reserve_ms bigint, slice integer)
returns integer
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  c record;
  reserved integer := 0;
  waiting_since constant timestamptz := clock_timestamp() - reserve_ms * interval '1 millisecond';
begin
  for c in
    select j.id, array(select distinct n from unnest(j.locks || j.shared_locks) n order by n) as names
    from pgclaim.job j
    where j.state = 'ready'
      and (j.locks is not null or j.shared_locks is not null)
      and j.run_at < waiting_since
      and not exists (select from pgclaim.attempt a where a.job_id = j.id and a.outcome is null)
      and not exists (select from pgclaim.reservation r where r.job_id = j.id)
    order by j.run_at, j.id
    limit slice
  loop
    begin
      insert into pgclaim.reservation (name, job_id) select n, c.id from unnest(c.names) n order by n;
      reserved := reserved + 1;
    exception when unique_violation then
      null; -- an older one has a name of it; its turn comes after that
    end;
  end loop;
  return reserved;
end $$;
