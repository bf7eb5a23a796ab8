-- Rows of one state, or of a queue's ready ones, by queue, read one by one: to the cap, and until the time is up.
-- Answers: no row for what is empty; `capped` where that is not all of them: then each cell is "at least".
-- Index: job_ready, job_suspect (the queue comes first in them), job_scheduled, job_gate_placed, job_gate_ranked, job_dead. Each
-- branch asks for its index's order, or statistics that are behind would have another index read whole.
create or replace function pgclaim.count_cells(of_state text, of_queue text, cap integer, until timestamptz)
returns table (queue text, state text, n integer, capped boolean)
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_incremental_sort = off
as $$
#variable_conflict use_column
declare
  r record;
  queues text[] := '{}';
  states text[] := '{}';
  counts integer[] := '{}';
  i integer := 0;
  seen integer := 0;
  cut boolean := false;
begin
  for r in
    (
      select j.queue, 'ready' as state from pgclaim.job j
      where of_state = 'ready' and j.queue = of_queue and j.state = 'ready' and not j.suspect
      order by j.priority, j.rank, j.id limit cap + 1
    )
    union all
    (
      select j.queue, 'ready' from pgclaim.job j
      where of_state = 'ready' and j.queue = of_queue and j.state = 'ready' and j.suspect
      order by j.priority, j.rank, j.id limit cap + 1
    )
    union all
    (
      select j.queue, case when j.failures > 0 then 'retrying' else 'scheduled' end from pgclaim.job j
      where of_state = 'scheduled' and j.state = 'scheduled'
      order by j.run_at, j.id limit cap + 1
    )
    union all
    (
      select j.queue, 'blocked' from pgclaim.job j
      where of_state = 'blocked' and j.state = 'blocked' and j.ordering_key is not null
      order by j.gate, j.place limit cap + 1
    )
    union all
    (
      select j.queue, 'blocked' from pgclaim.job j
      where of_state = 'blocked' and j.state = 'blocked' and j.ordering_key is null
      order by j.gate, j.priority, j.rank, j.id limit cap + 1
    )
    union all
    (
      select j.queue, 'dead' from pgclaim.job j
      where of_state = 'dead' and j.state = 'dead'
      order by j.dead_at, j.id limit cap + 1
    )
  loop
    cut := seen >= cap or (seen % 500 = 499 and clock_timestamp() > until);
    exit when cut;
    seen := seen + 1;
    -- Mostly the cell of the row before; else one of few.
    if i = 0 or queues[i] <> r.queue or states[i] <> r.state then
      i := 1;
      while i <= cardinality(counts) and (queues[i] <> r.queue or states[i] <> r.state) loop
        i := i + 1;
      end loop;
      if i > cardinality(counts) then
        queues[i] := r.queue;
        states[i] := r.state;
        counts[i] := 0;
      end if;
    end if;
    counts[i] := counts[i] + 1;
  end loop;
  return query select c.q, c.s, c.m, cut from unnest(queues, states, counts) c(q, s, m);
end $$;

-- Counts how deep the queues are, for whoever looks: a page must not count ten million rows, so wake does it now and then.
-- At most once a minute, and in no more than a two-hundredth of the time: after one that took a second, not for 200 seconds.
-- Argument: the cap, and how many milliseconds it may take about.
--           Ready jobs are counted by queue, each to the cap. Of scheduled, blocked and dead ones no index knows the queue, so
--           of each state as many rows are read as the cap says. A cell that nobody came to keeps what it had, and its instant.
-- Answers:  whether it counted.
-- Queues come from the kinds, the queues that were paused or limited, and the rows that are read: ready jobs of a queue that
-- neither knows are not looked for.
-- Locks: a lock that is only tried; nobody else writes these rows.
create or replace function pgclaim.sample_depth(cap integer, budget_ms integer)
returns boolean
language plpgsql volatile
set jit = off
as $$
declare
  clock constant timestamptz := clock_timestamp();
  -- Of each state, or the first one would take it all.
  share constant interval := budget_ms * interval '1 millisecond' / 4;
  until timestamptz;
  last pgclaim.housekeeping;
  task record;
  cut boolean;
begin
  for attempt in 1 .. 2 loop
    select h.* into last from pgclaim.housekeeping h where h.step = 'sample';
    if last.ran_at > clock - greatest(interval '1 minute', last.took_ms * interval '200 milliseconds') then
      return false;
    end if;
    -- Who waits for its turn looks again under the lock.
    perform from pgclaim.installation i where pg_try_advisory_xact_lock(pgclaim.name_key('internal', 'sample', i.seed));
    if not found then
      return false;
    end if;
  end loop;
  for task in
    select t.state, t.queue, t.covers
    from (
      select 1 as o, 'ready' as state, q.queue, '{ready}'::text[] as covers
      from (select k.queue from pgclaim.kind k union select p.name from pgclaim.queue p) q
      union all
      values
        (2, 'scheduled', null::text, '{scheduled,retrying}'::text[]),
        (3, 'blocked', null, '{blocked}'),
        (4, 'dead', null, '{dead}')
    ) t
    order by t.o, random()
  loop
    until := case task.state when 'ready' then clock else clock_timestamp() end + share;
    continue when task.state = 'ready' and clock_timestamp() > until;
    with cells as materialized (
      select c.* from pgclaim.count_cells(task.state, task.queue, cap, until) c
    ), written as (
      insert into pgclaim.depth as d (queue, state, n, capped, sampled_at)
      select c.queue, c.state, c.n, c.capped, clock from cells c order by c.queue, c.state
      on conflict on constraint depth_pkey do update
      set n = excluded.n, capped = excluded.capped, sampled_at = excluded.sampled_at
    )
    select coalesce(bool_or(c.capped), false) into cut from cells c;
    if not cut then
      delete from pgclaim.depth d
      where d.sampled_at < clock and d.state = any (task.covers) and (task.queue is null or d.queue = task.queue);
    end if;
  end loop;
  delete from pgclaim.depth d
  where d.state = 'ready'
    and d.queue not in (select k.queue from pgclaim.kind k union select p.name from pgclaim.queue p);
  insert into pgclaim.housekeeping as h (step, ran_at, took_ms)
  values ('sample', clock, extract(epoch from clock_timestamp() - clock) * 1000)
  on conflict on constraint housekeeping_pkey do update set ran_at = excluded.ran_at, took_ms = excluded.took_ms;
  return true;
end $$;
