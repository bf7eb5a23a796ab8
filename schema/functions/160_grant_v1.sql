-- Lets a database role do one thing and no more.
--   select pgclaim.grant_v1('enqueue', 'web_app');   enqueue: insert jobs, through the function only
--   select pgclaim.grant_v1('run', 'worker_app');    run: what an invocation needs, enqueue included
--   select pgclaim.grant_v1('operate', 'on_call');   operate: look at jobs, retry and discard dead letters
-- Raises: PC003 for another scope; 42704 for a role that does not exist.
create or replace function pgclaim.grant_v1(scope text, role_name name)
returns void
language plpgsql volatile
as $$
begin
  if scope is null or scope not in ('enqueue', 'run', 'operate') then
    raise exception 'No scope "%".', coalesce(scope, 'null') using errcode = 'PC003', hint = 'Scopes: enqueue, run, operate.';
  end if;
  execute format('grant usage on schema pgclaim to %I', role_name);
  if scope in ('enqueue', 'run') then
    execute format('grant execute on function pgclaim.enqueue_v1(jsonb), pgclaim.enqueue(text, jsonb, timestamptz) to %I', role_name);
  end if;
  if scope = 'run' then
    execute format('grant execute on function
      pgclaim.job_key(integer, bigint), pgclaim.name_key(text, text, bigint), pgclaim.try_job_lock(text, bigint),
      pgclaim.require_read_committed(), pgclaim.backoff_ms(text, bigint, bigint, integer, float8),
      pgclaim.register_v1(jsonb), pgclaim.wake_v1(jsonb), pgclaim.reap(integer), pgclaim.promote_due(integer),
      pgclaim.prune(integer, bigint), pgclaim.has_ready(text[], boolean), pgclaim.claim_v1(jsonb), pgclaim.fence_v1(jsonb),
      pgclaim.end_turn_v1(jsonb), pgclaim.finish_v1(jsonb), pgclaim.settle_v1(jsonb), pgclaim.cancel_query_v1(jsonb)
      to %I', role_name);
    execute format('grant select on pgclaim.installation to %I', role_name);
    execute format('grant select, insert on pgclaim.revision to %I', role_name);
    execute format('grant select, insert, update on pgclaim.kind to %I', role_name);
    execute format('grant select, update, delete on pgclaim.job to %I', role_name);
    execute format('grant select, insert, update, delete on pgclaim.attempt, pgclaim.tick, pgclaim.history to %I', role_name);
  elsif scope = 'operate' then
    execute format('grant execute on function
      pgclaim.job_key(integer, bigint), pgclaim.try_job_lock(text, bigint), pgclaim.require_read_committed(),
      pgclaim.retry_v1(bigint), pgclaim.discard_v1(bigint), pgclaim.job_v1(bigint)
      to %I', role_name);
    execute format('grant select on pgclaim.installation, pgclaim.kind, pgclaim.revision, pgclaim.tick to %I', role_name);
    execute format('grant select, update, delete on pgclaim.job to %I', role_name);
    execute format('grant select, update on pgclaim.attempt to %I', role_name);
    execute format('grant select, insert on pgclaim.history to %I', role_name);
  end if;
end $$;
