-- Is there a ready job (or, with suspect, a suspect one) in these queues that nobody is running?
-- Walks the claim index and stops at the first row without an open attempt, so its cost is the number of jobs in flight.
-- A hash of all open attempts, or a sequential scan, would cost the backlog; hence the planner settings.
-- Index: job_ready, job_suspect, attempt_open.
create or replace function pgclaim.has_ready(queues text[], of_suspects boolean)
returns boolean
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  q text;
begin
  foreach q in array queues loop
    continue when exists (select from pgclaim.queue p where p.name = q and p.paused_at is not null);
    if of_suspects then
      perform from pgclaim.job j
      where j.queue = q and j.state = 'ready' and j.suspect
        and not exists (select from pgclaim.attempt a where a.job_id = j.id and a.outcome is null)
      limit 1;
    else
      perform from pgclaim.job j
      where j.queue = q and j.state = 'ready' and not j.suspect
        and not exists (select from pgclaim.attempt a where a.job_id = j.id and a.outcome is null)
      limit 1;
    end if;
    if found then
      return true;
    end if;
  end loop;
  return false;
end $$;
