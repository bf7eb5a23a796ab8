-- Moves jobs whose time has come from scheduled to ready, a bounded slice, oldest first.
-- Answers: how many. Locks: tries each job's lock; busy ones are left for the next wake. Index: job_scheduled.
create or replace function pgclaim.promote_due(slice integer)
returns integer
language plpgsql volatile
set jit = off
as $$
declare
  c record;
  promoted integer := 0;
begin
  for c in
    select j.id, j.kind from pgclaim.job j
    where j.state = 'scheduled' and j.run_at <= clock_timestamp()
    order by j.run_at, j.id
    limit slice
  loop
    continue when not pgclaim.try_job_lock(c.kind, c.id);
    update pgclaim.job j
    set state = 'ready'
    where j.id = c.id and j.state = 'scheduled' and j.run_at <= clock_timestamp();
    if found then
      promoted := promoted + 1;
    end if;
  end loop;
  return promoted;
end $$;
