-- What a person does to one job, and its record.
-- Argument: {"verb": 'retry' | 'discard' | 'skip' | 'cancel' | 'reschedule', "id": text, "by": text (who acts: api, dashboard, cli;
--           the database role if it is not said), "runAt"?: timestamptz (reschedule)}
-- Answers:  what the verb's own function answers; where that changed something, a row of pgclaim.action says who did what.
-- Own short transaction. Locks: tries the job's, then waits for its gate's. Raises: PC001, PC003. Index: job_pkey.
create or replace function pgclaim.operate_v1(request jsonb)
returns jsonb
language plpgsql volatile
as $$
declare
  wanted constant bigint := pgclaim.read_id(request);
  verb constant text := request ->> 'verb';
  answer jsonb;
begin
  case verb
    when 'retry' then answer := pgclaim.retry_v1(wanted);
    when 'discard' then answer := pgclaim.discard_v1(wanted);
    when 'skip' then answer := pgclaim.skip_v1(wanted);
    when 'cancel' then answer := pgclaim.cancel_v1(wanted);
    when 'reschedule' then answer := pgclaim.reschedule_v1(wanted, pgclaim.read_instant(request, 'runAt'));
    else
      raise exception 'The field "verb" names no verb.'
        using errcode = 'PC003', hint = 'Expected retry, discard, skip, cancel or reschedule.';
  end case;
  if answer ->> 'type' in ('retried', 'discarded', 'skipped', 'cancelled', 'requested', 'rescheduled') then
    perform pgclaim.record_actions(array[wanted], verb, pgclaim.read_actor(request), array[answer ->> 'detail']);
  end if;
  return answer - 'detail';
end $$;

-- Moves the due time of a job that waits, and its rank with it; and the kind's deadline, where that counts from the due time, but
-- not one that somebody asked for. Of an ordering key the job keeps its place: a head that waits for its time holds its key.
-- Answers: {"type": 'rescheduled' | 'busy' (it runs, or did until a moment ago) | 'not-found' | 'not-waiting', "state"?: text,
--          "detail"?: text (the old due time and the new one)}. Own short transaction.
-- Locks:   tries the job's, then waits for its gate's. Raises: PC001, PC003.
create or replace function pgclaim.reschedule_v1(id bigint, due timestamptz)
returns jsonb
language plpgsql volatile
as $$
declare
  j record;
  before timestamptz;
  clock constant timestamptz := clock_timestamp();
begin
  perform pgclaim.require_read_committed();
  select * into j from pgclaim.lock_for_operator(reschedule_v1.id);
  if j.answer ->> 'type' = 'not-dead' then
    return jsonb_build_object('type', 'not-waiting', 'state', j.answer ->> 'state');
  elsif j.answer is not null then
    return j.answer;
  elsif j.state = 'dead' then
    return jsonb_build_object('type', 'not-waiting', 'state', 'dead');
  elsif exists (select from pgclaim.attempt a where a.job_id = reschedule_v1.id and a.outcome is null) then
    -- Its holder has died and the reaper has not come by: it decides about state and due time, and would undo ours.
    return jsonb_build_object('type', 'busy');
  end if;
  select o.run_at into before from pgclaim.job o where o.id = reschedule_v1.id;
  update pgclaim.job o
  set
    run_at = due,
    deadline_at = d.deadline,
    rank = coalesce(d.deadline, due + d.slack),
    -- Of an ordering key refill decides who is active; of a limit or a name also whether it is this one.
    state = case
      when o.ordering_key is not null and o.state = 'blocked' then 'blocked'
      when due > clock then 'scheduled'
      when o.gate is not null and o.ordering_key is null then 'blocked'
      else 'ready'
    end
  from (
    select
      w.id,
      k.target_latency_ms * interval '1 millisecond' as slack,
      case
        when w.deadline_at = w.run_at + k.deadline_ms * interval '1 millisecond'
          then due + k.deadline_ms * interval '1 millisecond'
        else w.deadline_at
      end as deadline
    from pgclaim.job w
    join pgclaim.kind k on k.name = w.kind
    where w.id = reschedule_v1.id
  ) d
  where o.id = d.id;
  delete from pgclaim.reservation r where r.job_id = reschedule_v1.id;
  if j.gate is not null then
    perform pgclaim.refill(j.gate);
  end if;
  return jsonb_build_object('type', 'rescheduled', 'detail', pgclaim.written(before) || ' to ' || pgclaim.written(due));
end $$;

-- Who acts, as the request says: printable, at most 100 characters; else the database role.
create or replace function pgclaim.read_actor(request jsonb)
returns text
language sql stable
as $$ select coalesce(left(pgclaim.printable(request ->> 'by'), 100), pgclaim.caller()) $$;

-- An instant of a request. Raises: PC003 for what is none, or lies outside the years 1 to 9999.
create or replace function pgclaim.read_instant(request jsonb, field text)
returns timestamptz
language plpgsql stable
as $$
declare
  given timestamptz;
begin
  begin
    given := (request ->> field)::timestamptz;
  exception when data_exception then
    given := null;
  end;
  if given between '0001-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
    return given;
  end if;
  raise exception 'The field "%" is no instant between the years 1 and 9999.', field
    using errcode = 'PC003', hint = 'Expected ISO 8601: 2026-11-01T12:00:00Z.';
end $$;

-- An instant for people, in UTC, to the second.
create or replace function pgclaim.written(at timestamptz)
returns text
language sql stable
as $$ select to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') $$;

-- Writes down what somebody did to jobs: a row for each, with its detail of at most 500 characters.
create or replace function pgclaim.record_actions(ids bigint[], verb text, actor text, details text[])
returns void
language sql volatile
as $$
  insert into pgclaim.action (job_id, verb, actor, detail)
  select u.id, verb, actor, left(u.detail, 500)
  from unnest(ids, details) u(id, detail)
  order by u.id
$$;
