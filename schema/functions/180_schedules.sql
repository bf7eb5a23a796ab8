-- Writes the schedules of a deployment, for register_v1, which holds its lock. A definition that is known keeps its next
-- occurrence; a new or changed one is fresh: its next_at is now, and the next wake computes its first occurrence from there.
-- Argument: [{"name", "cron", "timeZone", "kind", "payload", "catchUp", "definition"}, ...]: all of them, those a newer
-- deployment no longer has are removed. A deployment older than the one that wrote a schedule changes nothing of it.
create or replace function pgclaim.write_schedules(my_revision integer, schedules jsonb)
returns void
language plpgsql volatile
as $$
begin
  insert into pgclaim.schedule as s (name, cron, time_zone, kind, payload, catch_up, definition, revision, next_at, fresh)
  select n.name, n.cron, n."timeZone", n.kind, n.payload, n."catchUp", n.definition, my_revision, clock_timestamp(), true
  from jsonb_to_recordset(schedules) as n(
    name text, cron text, "timeZone" text, kind text, payload jsonb, "catchUp" text, definition text
  )
  order by n.name
  on conflict on constraint schedule_pkey do update
  set
    cron = excluded.cron,
    time_zone = excluded.time_zone,
    kind = excluded.kind,
    payload = excluded.payload,
    catch_up = excluded.catch_up,
    definition = excluded.definition,
    revision = excluded.revision,
    fresh = s.fresh or s.definition <> excluded.definition,
    next_at = case s.definition when excluded.definition then s.next_at else excluded.next_at end
  where s.revision <= excluded.revision;
  delete from pgclaim.schedule s
  where s.revision < my_revision
    and not exists (select from jsonb_to_recordset(schedules) as n(name text) where n.name = s.name);
end $$;

-- Fires a schedule: enqueues the occurrences that are due and sets the next one, if nobody has done so meanwhile.
-- Compare-and-set on the next occurrence and on the definition, so of fifty invocations at one instant one fires, and an old
-- deployment cannot fire a newer rule. Occurrences are computed by the caller from the database's "now" in wake's answer.
-- Argument: {"name", "definition", "nextAt": timestamptz (as wake gave it), "occurrences": [timestamptz, ...] (those to
--           enqueue, maybe none), "newNextAt": timestamptz}
-- Answers:  ids of the jobs enqueued, or null where somebody else was first.
create or replace function pgclaim.fire_v1(request jsonb)
returns jsonb
language plpgsql volatile
as $$
declare
  s record;
  fired jsonb;
begin
  perform pgclaim.require_read_committed();
  update pgclaim.schedule o
  set
    next_at = (request ->> 'newNextAt')::timestamptz,
    fresh = false,
    last_at = case when request -> 'occurrences' = '[]' then o.last_at else (request -> 'occurrences' ->> -1)::timestamptz end
  where o.name = request ->> 'name'
    and o.definition = request ->> 'definition'
    and o.next_at = (request ->> 'nextAt')::timestamptz
    and o.paused_at is null
  returning o.* into s;
  if not found then
    return null;
  end if;
  select coalesce(jsonb_agg(e.job_id::text order by e.i), '[]') into fired
  from pgclaim.enqueue_v1(jsonb_build_object(
    'strict', true,
    'jobs', coalesce((
      select jsonb_agg(jsonb_build_object('kind', s.kind, 'payload', s.payload, 'runAt', o) order by o)
      from jsonb_array_elements_text(request -> 'occurrences') o
    ), '[]')
  )) e;
  return fired;
end $$;

-- Every schedule with its last and next occurrence. Reads only.
create or replace function pgclaim.schedules_v1()
returns table (
  name text, cron text, time_zone text, kind text, payload jsonb, catch_up text, next_at timestamptz, last_at timestamptz,
  paused_at timestamptz
)
language sql stable
as $$
  select s.name, s.cron, s.time_zone, s.kind, s.payload, s.catch_up, s.next_at, s.last_at, s.paused_at
  from pgclaim.schedule s
  order by s.name
$$;

-- Pauses a schedule; occurrences that pass meanwhile are lost. Answers whether that changed anything.
create or replace function pgclaim.pause_schedule_v1(schedule_name text)
returns boolean
language plpgsql volatile
as $$
begin
  update pgclaim.schedule s set paused_at = clock_timestamp() where s.name = schedule_name and s.paused_at is null;
  return found;
end $$;

-- Resumes a schedule at an occurrence the caller has computed, the first one after now. Answers whether it was paused.
create or replace function pgclaim.resume_schedule_v1(schedule_name text, resume_at timestamptz)
returns boolean
language plpgsql volatile
as $$
begin
  update pgclaim.schedule s set paused_at = null, next_at = resume_at
  where s.name = schedule_name and s.paused_at is not null;
  return found;
end $$;
