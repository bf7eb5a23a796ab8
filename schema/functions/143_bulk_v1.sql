-- One slice of a change to many jobs: a bounded look, one short transaction; the caller repeats it while there is more.
-- Argument: {"verb": 'retry' | 'discard' | 'cancel', "filter": JobFilter of src/inspection.ts with at least one field, "upTo": id
--           (jobs above it are not touched, so that what dies later is not swept in), "cursor"?: text, "limit"?: 1 .. 1,000 (1,000),
--           "spreadMs"?: 0 .. 604,800,000 (retry: due times evenly over so long), "by": text (see operate_v1)}
-- Answers:  {"changed": integer, "left": integer (they match and were left alone: their lock or their gate was busy, they had
--           changed meanwhile, or somebody wants them cancelled already), "more": boolean, "cursor": text | null}
-- retry and discard take dead letters, whose lists go from the newest to the oldest; cancel takes what waits, and flags what runs.
-- Bounds:   at most `limit` jobs of at most 10,000 rows that are looked at. At most 2,000 locks of the server's table: one for each
--           job and one for each gate.
-- Locks, in the order of everybody (protocol): the jobs', tried, by ascending id; the flags, with a limit, while it holds no gate
--           yet, because a caller that has the flag of a job it has replaced may wait for our gates at its COMMIT; then the gates'
--           in one pass in the order of their keys, for half a second at most, and a gate that somebody keeps for longer is left
--           out with its jobs; then attempts and jobs by ascending id; then the refills. It waits without a limit for nobody.
-- Own short transaction. Raises: PC001, PC003. Index: see find_jobs; job_pkey.
create or replace function pgclaim.bulk_v1(request jsonb)
returns jsonb
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  verb constant text := request ->> 'verb';
  wanted constant integer := pgclaim.read_limit(request, 'limit', 1000, 1000);
  up_to constant bigint := pgclaim.read_up_to(request);
  spread_ms constant bigint := pgclaim.read_spread(request);
  filter constant jsonb := pgclaim.read_bulk_filter(request);
  found_jobs record;
  ids bigint[];
  ours bigint[] := '{}';
  running bigint[] := '{}';
  flagged bigint[];
  gates text[];
  left_out text[] := '{}';
  changed bigint[];
  dues timestamptz[];
  clock timestamptz;
  g text;
  c record;
begin
  perform pgclaim.require_read_committed();
  if filter is null then
    return jsonb_build_object('changed', 0, 'left', 0, 'more', false, 'cursor', null);
  end if;
  select * into found_jobs from pgclaim.find_jobs(filter, wanted);
  ids := array(
    select j.id from pgclaim.job j
    where j.id = any (found_jobs.ids) and j.id <= up_to and (verb <> 'cancel' or j.state <> 'dead')
    order by j.id
  );
  for c in select j.id, j.kind from pgclaim.job j where j.id = any (ids) order by j.id loop
    if pgclaim.try_job_lock(c.kind, c.id) then
      ours := ours || c.id;
    else
      running := running || c.id;
    end if;
  end loop;
  flagged := case when verb = 'cancel' then pgclaim.request_cancels(running) else '{}' end;

  gates := array(select distinct j.gate from pgclaim.job j where j.id = any (ours) and j.gate is not null);
  if cardinality(gates) > 0 then
    left_out := pgclaim.lock_gates(gates, gates);
  end if;

  -- A new statement after the locks: what stands there now is what is changed.
  changed := array(
    select j.id
    from pgclaim.job j
    cross join pgclaim.read_filter(filter) f
    where j.id = any (ours)
      and (j.gate is null or j.gate <> all (left_out))
      and case verb when 'cancel' then j.state in ('ready', 'scheduled', 'blocked') else j.state = 'dead' end
      and (f.queue is null or j.queue = f.queue)
      and (f.kind is null or j.kind = f.kind)
      and (f.ordering_key is null or j.ordering_key = f.ordering_key)
      and (f.payload is null or j.payload @> f.payload)
      and (f.reason is null or j.dead_reason = f.reason)
      and (f.fingerprint is null or pgclaim.error_fingerprint(j.last_error) = f.fingerprint)
      and (f.since is null or j.dead_at >= f.since)
    order by j.id
  );
  if verb = 'retry' then
    clock := clock_timestamp();
    dues := array(
      select clock + spread_ms * (u.o - 1) / cardinality(changed) * interval '1 millisecond'
      from unnest(changed) with ordinality u(id, o)
      order by u.o
    );
    perform pgclaim.revive(changed, dues);
  else
    perform pgclaim.take_out_all(changed, case verb when 'discard' then 'discarded' else 'cancelled' end);
  end if;
  foreach g in array gates loop
    continue when g = any (left_out);
    perform pgclaim.refill(g);
  end loop;
  perform pgclaim.record_actions(changed || flagged, verb, pgclaim.read_actor(request), array(
    select 'in bulk' || coalesce(', due ' || pgclaim.written(d.due), '')
    from (
      select case when spread_ms > 0 then u.due end as due, u.o from unnest(dues) with ordinality u(due, o) where verb = 'retry'
      union all
      select null, n from generate_series(1, case when verb = 'retry' then 0 else cardinality(changed || flagged) end) n
    ) d
    order by d.o
  ));
  return jsonb_build_object(
    'changed', cardinality(changed) + cardinality(flagged),
    'left', cardinality(ids) - cardinality(changed) - cardinality(flagged),
    'more', found_jobs.next is not null,
    'cursor', found_jobs.next
  );
end $$;

-- Asks for the cancel of jobs that run; answers those for which nobody had asked. A row that somebody else has in hand is
-- waited for a tenth of a second, all of them together for half a second: whose is not ours by then is left alone.
-- Locks: the rows, by ascending id.
create or replace function pgclaim.request_cancels(ids bigint[])
returns bigint[]
language plpgsql volatile
as $$
declare
  asked bigint[] := '{}';
  usual_timeout constant text := current_setting('lock_timeout');
  give_up_at constant timestamptz := clock_timestamp() + interval '500 milliseconds';
  one bigint;
begin
  foreach one in array ids loop
    exit when clock_timestamp() > give_up_at;
    begin
      perform set_config('lock_timeout', '100ms', true);
      insert into pgclaim.cancel_request as r (job_id) values (one)
      on conflict on constraint cancel_request_pkey do update set replaced = false where r.replaced;
      if found then
        asked := asked || one;
      end if;
    exception when lock_not_available then
      null; -- undone with its timeout
    end;
  end loop;
  perform set_config('lock_timeout', usual_timeout, true);
  return asked;
end $$;

-- The filter of a bulk request, with the cursor in it and the state that the verb takes; null where no job can match both.
-- Raises: PC003 for a verb that is none, and for a filter without a field: everything there is, is nobody's slip of the hand.
create or replace function pgclaim.read_bulk_filter(request jsonb)
returns jsonb
language plpgsql stable
as $$
declare
  filter jsonb := request -> 'filter';
  verb constant text := request ->> 'verb';
  state text;
begin
  if verb is null or verb not in ('retry', 'discard', 'cancel') then
    raise exception 'The field "verb" names no verb.' using errcode = 'PC003', hint = 'Expected retry, discard or cancel.';
  elsif jsonb_typeof(filter) is distinct from 'object' or jsonb_strip_nulls(filter) = '{}' then
    raise exception 'The field "filter" is no filter.'
      using errcode = 'PC003', hint = 'Expected at least one field: {"state": "dead"} for all dead letters.';
  end if;
  state := (pgclaim.read_filter(filter)).state;
  if verb <> 'cancel' and state is null then
    filter := filter || '{"state": "dead"}';
  elsif (verb <> 'cancel' and state <> 'dead') or (verb = 'cancel' and state in ('dead', 'done', 'discarded', 'cancelled')) then
    return null;
  end if;
  return (filter - 'look') || jsonb_build_object('cursor', request -> 'cursor');
end $$;

-- Up to which id. Raises: PC003.
create or replace function pgclaim.read_up_to(request jsonb)
returns bigint
language plpgsql immutable
as $$
begin
  return coalesce(pgclaim.read_id(jsonb_build_object('id', request -> 'upTo')), 9223372036854775807);
exception when sqlstate 'PC003' then
  raise exception 'The field "upTo" is no job id.' using errcode = 'PC003', hint = 'A job id is a number from 1 up, as text.';
end $$;

-- Over how long, in milliseconds. Raises: PC003.
create or replace function pgclaim.read_spread(request jsonb)
returns bigint
language plpgsql immutable
as $$
declare
  max_ms constant bigint := 604800000;
  given jsonb := nullif(request -> 'spreadMs', 'null');
begin
  if given is null then
    return 0;
  elsif jsonb_typeof(given) = 'number' and given::numeric = trunc(given::numeric) and given::numeric between 0 and max_ms then
    return given::numeric::bigint;
  end if;
  raise exception 'The field "spreadMs" is no integer from 0 to %.', max_ms using errcode = 'PC003', hint = 'Seven days at most.';
end $$;
