-- Decides the fate of a tick whose session is gone, or whose COMMIT got no answer.
-- Argument: {"tick": uuid, "invocation": text, "report": object, "mark": boolean, "turn": id | null,
--            "quarantined": boolean, "interruptedLimit": integer, "jobs": [{"id", "n"}, ...] (every number sent)}
-- Answers:  'committed' or 'lost'. Once lost is answered, the tick can never commit, even if its transaction is still alive
--           behind a half-open connection: its finish would meet our row. While a finish is under way we wait for it.
-- With mark the attempts become interrupted, which charges nobody; not the job that held the turn, whose own queries
-- may be what killed the session, and not without mark (finish failed on its own account): open attempts are reaped, and
-- quarantine finds the culprit. A mark that comes after the reaper takes the crash back, until the job is dead.
-- A job interrupted interruptedLimit times in a row runs alone from then on, uncharged.
-- Locks: waits for the tick row (lock_timeout bounds it); tries job locks. Raises: PC001, 55P03. Repeatable.
-- Index: job_pkey and attempt_pkey, one probe for each job, whatever the statistics say (see fence_v1).
create or replace function pgclaim.settle_v1(request jsonb)
returns text
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  this_tick uuid := (request ->> 'tick')::uuid;
  limit_in_a_row integer := (request ->> 'interruptedLimit')::integer;
  fate text;
  c record;
begin
  perform pgclaim.require_read_committed();
  perform set_config('lock_timeout', '2s', true);
  insert into pgclaim.tick (id, outcome, invocation, report)
  values (this_tick, 'lost', request ->> 'invocation', request -> 'report')
  on conflict on constraint tick_pkey do nothing;
  select t.outcome into strict fate from pgclaim.tick t where t.id = this_tick;
  if fate = 'committed' or not (request ->> 'mark')::boolean then
    return fate;
  end if;
  insert into pgclaim.attempt as a (job_id, n, tick, quarantined, ended_at, outcome)
  select u.id, u.n, this_tick, (request ->> 'quarantined')::boolean, clock_timestamp(), 'interrupted'
  from jsonb_to_recordset(request -> 'jobs') as u(id bigint, n integer)
  join pgclaim.job j on j.id = u.id
  where u.id is distinct from (request ->> 'turn')::bigint
    and j.state <> 'dead'
    and (j.attempt < u.n or exists (select from pgclaim.attempt o where o.job_id = u.id and o.n = u.n))
  order by u.id
  on conflict on constraint attempt_pkey do update
  set outcome = excluded.outcome, ended_at = excluded.ended_at
  where a.tick = excluded.tick and (a.outcome is null or a.outcome = 'crashed');
  for c in
    select j.id, j.kind
    from jsonb_to_recordset(request -> 'jobs') as u(id bigint, n integer)
    join pgclaim.job j on j.id = u.id
    where not j.suspect and limit_in_a_row = (
      select count(*) filter (where l.outcome = 'interrupted')
      from (
        select o.outcome from pgclaim.attempt o where o.job_id = j.id order by o.n desc limit limit_in_a_row
      ) l
    )
    order by j.id
  loop
    -- The row is written under the job's lock only; if a half-open session still has it, the next settle gets its turn.
    if pgclaim.try_job_lock(c.kind, c.id) then
      update pgclaim.job j set suspect = true where j.id = c.id and j.state in ('ready', 'scheduled');
    end if;
  end loop;
  return fate;
end $$;
