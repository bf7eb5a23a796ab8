-- Lets a database role do one thing and no more. Remembered, so that a migration can grant it again.
--   select pgclaim.grant_v1('enqueue', 'web_app');   enqueue: insert jobs, through the function only
--   select pgclaim.grant_v1('run', 'worker_app');    run: what an invocation needs, enqueue included
--   select pgclaim.grant_v1('operate', 'on_call');   operate: look at jobs, and do to them what a person does
-- Raises: PC003 for another scope; 42704 for a role that does not exist.
create or replace function pgclaim.grant_v1(scope text, role_name name)
returns void
language plpgsql volatile
as $$
begin
  if scope is null or scope not in ('enqueue', 'run', 'operate') then
    raise exception 'No scope "%".', coalesce(scope, 'null') using errcode = 'PC003', hint = 'Scopes: enqueue, run, operate.';
  end if;
  insert into pgclaim.grantee (scope, role_name) values (grant_v1.scope, grant_v1.role_name)
  on conflict on constraint grantee_pkey do nothing;
  execute format('grant usage on schema pgclaim to %I', role_name);
  if scope in ('enqueue', 'run') then
    execute format('grant execute on function pgclaim.enqueue_v1(jsonb), pgclaim.enqueue(text, jsonb, timestamptz, timestamptz) to %I', role_name);
  end if;
  if scope in ('enqueue', 'run') then
    execute format('grant execute on function pgclaim.enqueue_once_v1(jsonb) to %I', role_name);
  end if;
  if scope = 'run' then
    execute format('grant execute on function
      pgclaim.job_key(integer, bigint), pgclaim.name_key(text, text, bigint), pgclaim.try_job_lock(text, bigint),
      pgclaim.require_read_committed(), pgclaim.backoff_ms(text, bigint, bigint, integer, float8),
      pgclaim.register_v1(jsonb), pgclaim.put_in_force(integer, jsonb), pgclaim.use_revision_v1(integer),
      pgclaim.revisions_v1(), pgclaim.wake_v1(jsonb), pgclaim.reap(integer), pgclaim.promote_due(integer),
      pgclaim.prune(integer, bigint), pgclaim.has_ready(text[], boolean), pgclaim.claim_v1(jsonb), pgclaim.fence_v1(jsonb),
      pgclaim.end_turn_v1(jsonb), pgclaim.finish_v1(jsonb), pgclaim.settle_v1(jsonb), pgclaim.cancel_query_v1(jsonb),
      pgclaim.lock_gates(text[], text[]), pgclaim.refill(text), pgclaim.promote(bigint, text),
      pgclaim.draw_places(text[]), pgclaim.recheck_gates(integer), pgclaim.gate_of(text, text, text),
      pgclaim.superseded_by(integer),
      pgclaim.take_locks(bigint, text, text, text[], text[], text[], integer[], boolean, bigint[], boolean[], bigint[], integer, bigint),
      pgclaim.current_maxes(text, text, jsonb, text[], integer[]), pgclaim.render_key(text, jsonb),
      pgclaim.take_slot(text, text, integer, bigint[], bigint), pgclaim.has_before(text, bigint),
      pgclaim.reserve_v1(jsonb), pgclaim.reservations(timestamptz), pgclaim.cancelled_v1(jsonb), pgclaim.cancel_requested(integer),
      pgclaim.take_out(bigint, text, text), pgclaim.write_schedules(integer, text[], jsonb),
      pgclaim.fire_v1(jsonb), pgclaim.take_out_all(bigint[], text),
      pgclaim.late_bounds_ms(), pgclaim.late_counts(bigint[]), pgclaim.add_counts(bigint[], bigint[]),
      pgclaim.add_tallies(jsonb, jsonb), pgclaim.bump_trigger(text, text, timestamptz, boolean), pgclaim.roll_up(integer),
      pgclaim.prune_records(integer), pgclaim.count_cells(text, text, integer, timestamptz),
      pgclaim.sample_depth(integer, integer)
      to %I', role_name);
    execute format('grant select on pgclaim.installation to %I', role_name);
    execute format('grant usage on sequence pgclaim.place_seq to %I', role_name);
    execute format('grant select, insert, update on pgclaim.queue to %I', role_name);
    execute format('grant select, insert, delete on pgclaim.recheck to %I', role_name);
    execute format('grant select, insert, update, delete on pgclaim.reservation to %I', role_name);
    execute format('grant select, update, delete on pgclaim.unique_key to %I', role_name);
    execute format('grant select, delete on pgclaim.cancel_request to %I', role_name);
    execute format('grant select, insert, update, delete on pgclaim.schedule to %I', role_name);
    execute format('grant select, insert, update on pgclaim.revision to %I', role_name);
    execute format('grant select, insert, update on pgclaim.kind to %I', role_name);
    execute format('grant select, update, delete on pgclaim.job to %I', role_name);
    execute format('grant select, insert, update, delete on pgclaim.attempt, pgclaim.tick to %I', role_name);
    execute format('grant select, insert, delete on pgclaim.history to %I', role_name);
    execute format('grant select, insert, update on pgclaim.housekeeping to %I', role_name);
    execute format('grant select, insert, update, delete on
      pgclaim.trigger, pgclaim.trigger_minute, pgclaim.trigger_bump, pgclaim.rollup, pgclaim.tick_rollup, pgclaim.depth to %I', role_name);
    execute format('grant select, update, delete on pgclaim.action, pgclaim.request_key to %I', role_name);
  elsif scope = 'operate' then
    execute format('grant execute on function
      pgclaim.job_key(integer, bigint), pgclaim.try_job_lock(text, bigint), pgclaim.require_read_committed(),
      pgclaim.retry_v1(bigint), pgclaim.discard_v1(bigint), pgclaim.skip_v1(bigint), pgclaim.cancel_v1(bigint),
      pgclaim.lock_for_operator(bigint), pgclaim.lock_dead_letter(bigint), pgclaim.take_out(bigint, text, text),
      pgclaim.job_v1(bigint), pgclaim.name_key(text, text, bigint), pgclaim.lock_gates(text[], text[]), pgclaim.refill(text),
      pgclaim.gate_of(text, text, text),
      pgclaim.promote(bigint, text),
      pgclaim.current_maxes(text, text, jsonb, text[], integer[]), pgclaim.render_key(text, jsonb),
      pgclaim.pause_queue_v1(text), pgclaim.resume_queue_v1(text), pgclaim.schedules_v1(),
      pgclaim.pause_schedule_v1(text), pgclaim.resume_schedule_v1(text), pgclaim.revisions_v1()
      to %I', role_name);
    -- What a person does, and its record.
    execute format('grant execute on function
      pgclaim.operate_v1(jsonb), pgclaim.bulk_v1(jsonb), pgclaim.run_schedule_v1(jsonb), pgclaim.terminate_v1(jsonb),
      pgclaim.reschedule_v1(bigint, timestamptz), pgclaim.revive(bigint[], timestamptz[]),
      pgclaim.take_out_all(bigint[], text), pgclaim.request_cancels(bigint[]), pgclaim.caller(), pgclaim.printable(text),
      pgclaim.read_actor(jsonb), pgclaim.read_instant(jsonb, text), pgclaim.read_bulk_filter(jsonb), pgclaim.read_up_to(jsonb),
      pgclaim.read_spread(jsonb), pgclaim.written(timestamptz), pgclaim.record_actions(bigint[], text, text, text[]),
      pgclaim.holds_ours(bigint[]), pgclaim.next_gate(text)
      to %I', role_name);
    execute format('grant insert on pgclaim.action to %I', role_name);
    -- The reads: they run with their caller's rights, so each needs what it is made of.
    execute format('grant execute on function
      pgclaim.late_bounds_ms(), pgclaim.error_fingerprint(text), pgclaim.advisory_locks(), pgclaim.open_attempts(),
      pgclaim.write_cursor(jsonb), pgclaim.read_cursor(text, text, integer), pgclaim.read_limit(jsonb, text, integer, integer),
      pgclaim.read_id(jsonb), pgclaim.ms_between(timestamptz, timestamptz), pgclaim.read_filter(jsonb), pgclaim.ready_queues(),
      pgclaim.walk_ready(text, smallint, timestamptz, bigint), pgclaim.walk_key(text, text, text, bigint),
      pgclaim.plan_walk(jsonb), pgclaim.find_jobs(jsonb, integer), pgclaim.key_head(text, bigint), pgclaim.job_rows(bigint[]),
      pgclaim.history_rows(bigint[]), pgclaim.job_locks(bigint), pgclaim.queue_rows(bigint[], text[]),
      pgclaim.trigger_rows(timestamptz), pgclaim.kinds_in_force(), pgclaim.waiting_kinds(integer, boolean),
      pgclaim.count_deadlines(timestamptz, timestamptz), pgclaim.slack_view(timestamptz),
      pgclaim.walk_gates(boolean, text, integer), pgclaim.tick_item(pgclaim.tick), pgclaim.known_names()
      to %I', role_name);
    execute format('grant execute on function
      pgclaim.overview_v1(jsonb), pgclaim.jobs_v1(jsonb), pgclaim.count_jobs_v1(jsonb), pgclaim.job_detail_v1(jsonb),
      pgclaim.payload_v1(jsonb), pgclaim.dead_groups_v1(jsonb), pgclaim.keys_v1(jsonb), pgclaim.queues_v1(jsonb),
      pgclaim.kinds_v1(jsonb), pgclaim.triggers_v1(jsonb), pgclaim.series_v1(jsonb), pgclaim.ticks_v1(jsonb),
      pgclaim.invocation_v1(jsonb), pgclaim.holders_v1(jsonb), pgclaim.metrics_v1(jsonb)
      to %I', role_name);
    execute format('grant select on pgclaim.trigger, pgclaim.trigger_minute, pgclaim.rollup, pgclaim.tick_rollup,
      pgclaim.depth, pgclaim.action, pgclaim.migration to %I', role_name);
    execute format('grant select on pgclaim.installation, pgclaim.kind, pgclaim.revision, pgclaim.tick to %I', role_name);
    execute format('grant select, update, delete on pgclaim.job to %I', role_name);
    execute format('grant select, update on pgclaim.attempt to %I', role_name);
    execute format('grant select, insert on pgclaim.history, pgclaim.recheck to %I', role_name);
    execute format('grant usage on sequence pgclaim.place_seq to %I', role_name);
    execute format('grant select, insert, update on pgclaim.queue to %I', role_name);
    execute format('grant select, update on pgclaim.schedule to %I', role_name);
    execute format('grant select, update, delete on pgclaim.unique_key to %I', role_name);
    execute format('grant select, delete on pgclaim.reservation to %I', role_name);
    execute format('grant select, insert, update, delete on pgclaim.cancel_request to %I', role_name);
  end if;
end $$;
