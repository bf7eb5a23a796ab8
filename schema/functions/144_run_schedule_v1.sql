-- Enqueues what a schedule would, now; its own occurrences stay as they are, and so does its pause.
-- Argument: {"name": text, "by": text (who acts, see operate_v1)}
-- Answers:  {"type": "enqueued", "job": {"type", "id"}} with the type of enqueue_v1: a unique key may have kept it out; or
--           {"type": "not-found"}. A job that is new or was changed gets its row of pgclaim.action.
-- Security definer: an operator may not enqueue at will, but may do what the deployment has registered. Own short transaction.
-- Locks:    see enqueue_v1. Raises: PC001, PC002, PC003.
create or replace function pgclaim.run_schedule_v1(request jsonb)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  s record;
  e record;
begin
  perform pgclaim.require_read_committed();
  select o.name, o.kind, o.payload into s from pgclaim.schedule o where o.name = request ->> 'name';
  if not found then
    return jsonb_build_object('type', 'not-found');
  end if;
  select q.type, q.job_id into strict e
  from pgclaim.enqueue_v1(jsonb_build_object(
    'strict', true,
    'jobs', jsonb_build_array(jsonb_build_object('kind', s.kind, 'payload', s.payload, 'source', 'schedule ' || s.name))
  )) q;
  if e.type <> 'duplicate' then
    perform pgclaim.record_actions(array[e.job_id], 'run-schedule', pgclaim.read_actor(request), array['schedule ' || s.name]);
  end if;
  return jsonb_build_object('type', 'enqueued', 'job', jsonb_build_object('type', e.type, 'id', e.job_id::text));
end $$;
