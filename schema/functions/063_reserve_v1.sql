-- Fairness. A job that needs several names can be passed by for ever by jobs that need one of them, and an exclusive waiter
-- by a stream of shared holders. So a job that was refused for a name, and has waited for reserveMs by then, reserves all its
-- names: from now on nobody else takes them, today's holders end, and its set is free for the next claim that comes by.
-- Argument: {"jobs": [id, ...], "reserveMs": integer}: refused by a claim, which says of each that it has waited long enough
--           (claim_v1, starved).
-- Asked for by the claim that was refused and by nobody else. So a job that no deployment handles, of a paused queue, or that
-- never gets its turn because others go before it, reserves nothing; and where that happens later, nobody renews the
-- reservation, and it lapses after ten times reserveMs: whoever it held up waits for that long at most.
-- At most 100 jobs reserve, those that wait longest; every claim reads them.
-- Given back by finish, whatever the outcome, by cancel and discard, and by the reaper. A row that is left over (its job ended
-- between the claim and here) holds up nobody, since only those of ready jobs count; prune removes it.
-- Locks: one reserver at a time, by a lock that is only tried: two of them, each with rows that the other wants, could deadlock.
-- Whoever does not get it reserves nothing, and the next claim that is refused asks again. Rows that somebody else gives back at
-- this moment are left alone. Raises: PC001.
create or replace function pgclaim.reserve_v1(request jsonb)
returns void
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  ids bigint[] := array(select v::bigint from jsonb_array_elements_text(request -> 'jobs') v);
  clock constant timestamptz := clock_timestamp();
  live_since constant timestamptz := clock - 10 * (request ->> 'reserveMs')::bigint * interval '1 millisecond';
begin
  perform pgclaim.require_read_committed();
  perform from pgclaim.installation i
  where pg_try_advisory_xact_lock(pgclaim.name_key('internal', 'reserve', i.seed));
  if not found then
    return;
  end if;
  update pgclaim.reservation r
  set renewed_at = clock
  where (r.name, r.job_id) in (
    select o.name, o.job_id from pgclaim.reservation o where o.job_id = any (ids) for update skip locked
  );
  -- Its own runner holds the names of a job that runs, and it is refused for them; it does not wait.
  insert into pgclaim.reservation (name, job_id, shared, since, renewed_at)
  select n.name, j.id, bool_and(n.shared), j.run_at, clock
  from pgclaim.job j
  cross join lateral (
    select x.name, false as shared from unnest(j.locks) x(name)
    union all
    select x.name, true from unnest(j.shared_locks) x(name)
  ) n
  where j.id = any (ids)
    and j.state = 'ready'
    and not exists (select from pgclaim.attempt a where a.job_id = j.id and a.outcome is null)
    -- One that somebody deletes at this moment is seen here, and would be waited for below.
    and not exists (select from pgclaim.reservation o where o.name = n.name and o.job_id = j.id)
  group by n.name, j.id, j.run_at
  order by n.name, j.id
  on conflict on constraint reservation_pkey do nothing;
  delete from pgclaim.reservation r
  where (r.name, r.job_id) in (
    select o.name, o.job_id from pgclaim.reservation o
    where not o.job_id = any (array(
      select l.job_id from pgclaim.reservations(live_since) l group by l.since, l.job_id order by l.since, l.job_id limit 100
    ))
    for update skip locked
  );
end $$;

-- The reservations of ready jobs that were renewed since, and which of them are in force: those whose job waits longer than
-- every other one that wants a name of it. The rest stand in line and hold up nobody but each other: a name that waits for a
-- job, which waits for another name, would be idle. The order is total, so two reservers cannot hold each other up, and the
-- one that waits longest is always in force. Index: job_pkey.
create or replace function pgclaim.reservations(live_since timestamptz)
returns table (name text, job_id bigint, shared boolean, since timestamptz, in_force boolean)
language sql stable
set enable_seqscan = off
set enable_bitmapscan = off
as $$
  with live as materialized (
    select r.name, r.job_id, r.shared, r.since
    from pgclaim.reservation r
    -- A probe for each reservation, of which there are few: joined freely, the planner may begin with every job there is.
    cross join lateral (select from pgclaim.job j where j.id = r.job_id and j.state = 'ready' offset 0) j
    where r.renewed_at > live_since
  ), behind as (
    select distinct a.job_id
    from live a
    join live o on o.name = a.name and (o.since, o.job_id) < (a.since, a.job_id) and not (o.shared and a.shared)
  )
  select l.name, l.job_id, l.shared, l.since, b.job_id is null
  from live l
  left join behind b on b.job_id = l.job_id
$$;
