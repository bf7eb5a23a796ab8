-- Writes the schedules of a deployment, for register_v1, which holds its lock. A rule that is known keeps its next
-- occurrence, also where its payload or catch-up changed: a deploy at noon must not lose the noon job. A new or changed rule
-- is fresh: its next_at is now, and the next wake computes its first occurrence from there.
-- Arguments: my_revision; the queues the deployment serves; its schedules, all of them:
--            [{"name", "cron", "timeZone", "kind", "payload", "catchUp", "definition"}, ...].
-- Those it no longer has are removed, if their kinds belong to queues it serves: another deployment in this installation
-- has schedules and queues of its own. A deployment older than the one that wrote a schedule changes nothing of it.
create or replace function pgclaim.write_schedules(my_revision integer, queues text[], schedules jsonb)
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
    fresh = s.fresh or (s.cron, s.time_zone) <> (excluded.cron, excluded.time_zone),
    next_at = case
      when (s.cron, s.time_zone) = (excluded.cron, excluded.time_zone) then s.next_at
      else excluded.next_at
    end,
    failed_at = null,
    fault = null
  where s.revision <= excluded.revision;
  delete from pgclaim.schedule s
  where s.revision < my_revision
    and not exists (select from jsonb_to_recordset(schedules) as n(name text) where n.name = s.name)
    and not exists (select from pgclaim.kind k where k.name = s.kind and not k.queue = any (queues));
end $$;

-- Fires schedules: enqueues the occurrences that are due and sets the next one, if nobody has done so meanwhile.
-- Compare-and-set on the next occurrence and on the definition, so of fifty invocations at one instant one fires, and an old
-- deployment cannot fire a newer rule. Occurrences are computed by the caller from the database's "now" in wake's answer.
-- Each in a sub-block: one that fails stays due, goes to the end of wake's list and is named; the others fire.
-- Argument: {"queues": [text], "schedules": [{"name", "definition", "nextAt": timestamptz (as wake gave it),
--           "occurrences": [timestamptz, ...] (those to enqueue, maybe none), "newNextAt": timestamptz}, ...]}
-- Answers:  {"fired": [{"name", "jobs": [id, ...], "duplicates": [id, ...]}, ...] (without those that somebody else fired;
--           jobs that are new or were changed by it; those that kept an occurrence out by its unique key, a dead letter
--           until somebody retries or discards it), "faults": [{"name", "sqlstate"}, ...],
--           "ready": boolean (is anything due in these queues now)}
-- Locks:    the schedules' rows, only tried: one that is locked is being fired. A unique key that somebody holds without
--           having committed is waited for two seconds.
-- Raises:   PC001.
create or replace function pgclaim.fire_v1(request jsonb)
returns jsonb
language plpgsql volatile
as $$
declare
  r record;
  s record;
  jobs jsonb;
  duplicates jsonb;
  fired jsonb := '[]';
  faults jsonb := '[]';
begin
  perform pgclaim.require_read_committed();
  perform set_config('lock_timeout', '2s', true);
  for r in
    select n.* from jsonb_to_recordset(request -> 'schedules') as n(
      name text, definition text, "nextAt" timestamptz, occurrences jsonb, "newNextAt" timestamptz
    )
    order by n.name
  loop
    begin
      select o.kind, o.payload into s
      from pgclaim.schedule o
      where o.name = r.name and o.definition = r.definition and o.next_at = r."nextAt" and o.paused_at is null
      for update skip locked;
      continue when not found;
      jobs := '[]';
      duplicates := '[]';
      if jsonb_array_length(r.occurrences) > 0 then
        select
          coalesce(jsonb_agg(e.job_id::text order by e.i) filter (where e.type <> 'duplicate'), '[]'),
          coalesce(jsonb_agg(distinct e.job_id::text) filter (where e.type = 'duplicate'), '[]')
        into jobs, duplicates
        from pgclaim.enqueue_v1(jsonb_build_object(
          'strict', true,
          'jobs', (
            select jsonb_agg(jsonb_build_object(
              'kind', s.kind, 'payload', s.payload, 'runAt', u.at, 'source', 'schedule ' || r.name
            ) order by u.o)
            from jsonb_array_elements(r.occurrences) with ordinality u(at, o)
          )
        )) e;
        -- An occurrence may also be kept out by one before it, which is new.
        duplicates := duplicates - array(select jsonb_array_elements_text(jobs));
      end if;
      update pgclaim.schedule o
      set
        next_at = r."newNextAt",
        fresh = false,
        last_at = coalesce((r.occurrences ->> -1)::timestamptz, o.last_at),
        failed_at = null,
        fault = null
      where o.name = r.name;
      fired := fired || jsonb_build_object('name', r.name, 'jobs', jobs, 'duplicates', duplicates);
    exception when others then
      faults := faults || jsonb_build_object('name', r.name, 'sqlstate', sqlstate);
      update pgclaim.schedule o
      set failed_at = clock_timestamp(), fault = sqlstate
      where o.name = r.name and o.definition = r.definition and o.next_at = r."nextAt";
    end;
  end loop;
  return jsonb_build_object(
    'fired', fired,
    'faults', faults,
    'ready', pgclaim.has_ready(array(select jsonb_array_elements_text(request -> 'queues')), false)
  );
end $$;

-- Every schedule with its last and next occurrence; of a fresh one next_at is when it was registered or resumed, and its
-- next occurrence is the first after it. Reads only.
create or replace function pgclaim.schedules_v1()
returns table (
  name text, cron text, time_zone text, kind text, payload jsonb, catch_up text, next_at timestamptz, fresh boolean,
  last_at timestamptz, paused_at timestamptz, failed_at timestamptz, fault text
)
language sql stable
as $$
  select
    s.name, s.cron, s.time_zone, s.kind, s.payload, s.catch_up, s.next_at, s.fresh, s.last_at, s.paused_at, s.failed_at, s.fault
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

-- Resumes a schedule: it begins anew, with the first occurrence after now. Answers whether it was paused.
create or replace function pgclaim.resume_schedule_v1(schedule_name text)
returns boolean
language plpgsql volatile
as $$
begin
  update pgclaim.schedule s set paused_at = null, fresh = true, next_at = clock_timestamp()
  where s.name = schedule_name and s.paused_at is not null;
  return found;
end $$;
