-- Puts on record, durably, that attempt n of each job has started, and answers which of them are granted and what to run.
-- Argument: {"tick": uuid, "quarantined": boolean, "jobs": [{"id", "n"}, ...], "reapSlice"?, "dueSlice"?, "gateSlice"?: integer}
-- Rows:     the granted ones. Run these and no others. The payload comes from here and not from claim, so that a payload
--           that breaks the invocation has been counted before it was loaded.
-- Repeatable by the same tick with the same answer; refused for every other tick, because n is a primary key.
-- Locks: none waited for, except for an attempt row of the same number. Raises: PC001.
-- Index: job_pkey and attempt_pkey, one probe for each job. Statistics that are behind can make reading a whole table look
-- cheap, and the fence would cost the backlog; hence the planner settings.
create or replace function pgclaim.fence_v1(request jsonb)
returns table (
  job_id bigint, attempt integer, kind text, payload text, idempotency_key text, run_at timestamptz,
  enqueued_at timestamptz, failures integer, deadline_at timestamptz, trace text
)
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
  perform pgclaim.require_read_committed();
  -- A grant that a server crash forgets would be granted again. Levels above "on" are left alone.
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  insert into pgclaim.attempt (job_id, n, tick, quarantined)
  select j.id, u.n, (request ->> 'tick')::uuid, (request ->> 'quarantined')::boolean
  from jsonb_to_recordset(request -> 'jobs') as u(id bigint, n integer)
  join pgclaim.job j on j.id = u.id
  where j.attempt < u.n
  order by j.id
  on conflict on constraint attempt_pkey do nothing;
  if request ? 'reapSlice' then
    begin
      perform pgclaim.reap((request ->> 'reapSlice')::integer);
      perform pgclaim.promote_due((request ->> 'dueSlice')::integer);
      perform pgclaim.recheck_gates((request ->> 'gateSlice')::integer);
    exception when others then
      null; -- housekeeping for the next tick; wake does the same steps and reports their faults
    end;
  end if;
  return query
  select a.job_id, a.n, j.kind, j.payload::text, j.id || '-' || right(to_hex(i.seed), 8), j.run_at, j.enqueued_at, j.failures,
    j.deadline_at, j.trace
  from rows from (jsonb_to_recordset(request -> 'jobs') as (id bigint, n integer)) with ordinality u(id, n, o)
  join pgclaim.attempt a on a.job_id = u.id and a.n = u.n
  join pgclaim.job j on j.id = a.job_id
  cross join pgclaim.installation i
  where a.tick = (request ->> 'tick')::uuid and a.outcome is null
  order by u.o;
end $$;
