-- Moves jobs whose time has come from scheduled to ready, a bounded slice, oldest first. One of a limit or a name goes
-- behind its gate instead, with a note: straight to ready, more rows than may run would stand in the claim index.
-- Answers: how many. Locks: tries each job's lock; busy ones are left for the next wake. Index: job_scheduled.
-- The clock is read once: compared with clock_timestamp() itself, a volatile function, run_at would be a filter and not
-- an index condition, and each wake would read all that is scheduled for later.
create or replace function pgclaim.promote_due(slice integer)
returns integer
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  c record;
  promoted integer := 0;
  clock constant timestamptz := clock_timestamp();
begin
  for c in
    select j.id, j.kind, j.gate, j.ordering_key from pgclaim.job j
    where j.state = 'scheduled' and j.run_at <= clock
    order by j.run_at, j.id
    limit slice
  loop
    continue when not pgclaim.try_job_lock(c.kind, c.id);
    update pgclaim.job j
    set state = case when j.gate is null or j.ordering_key is not null then 'ready' else 'blocked' end
    where j.id = c.id and j.state = 'scheduled' and j.run_at <= clock;
    if found then
      promoted := promoted + 1;
      if c.gate is not null and c.ordering_key is null then
        insert into pgclaim.recheck (gate) values (c.gate);
      end if;
    end if;
  end loop;
  return promoted;
end $$;
