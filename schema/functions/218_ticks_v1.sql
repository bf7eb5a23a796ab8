-- A tick's row as TickRow of src/inspection.ts. What its report does not say, old code's or a lost tick's, is null or zero.
create or replace function pgclaim.tick_item(t pgclaim.tick)
returns jsonb
language sql stable
as $$
  select jsonb_build_object(
    'tickId', t.id,
    'invocationId', t.invocation,
    'trigger', t.report -> 'trigger',
    'n', t.report -> 'n',
    'startedAt', t.report -> 'startedAt',
    'decidedAt', t.decided_at,
    'outcome', t.outcome,
    'quarantined', coalesce(t.report -> 'quarantined', 'false'),
    'claimed', coalesce(t.report -> 'claimed', '0'),
    'outcomes', coalesce(t.report -> 'outcomes', '{}'),
    'skipped', coalesce(t.report -> 'skipped', '{}'),
    'roundTrips', t.report -> 'roundTrips',
    'wakeMs', t.report -> 'wakeMs',
    'connectMs', t.report -> 'connectMs',
    'claimMs', t.report -> 'claimMs',
    'fenceMs', t.report -> 'fenceMs',
    'runMs', t.report -> 'runMs',
    'totalMs', t.report -> 'totalMs'
  )
$$;

-- Ticks, the newest first.
-- Argument: {"trigger"?, "outcome"?: text, "cursor"?: text, "limit"?: 1 .. 200 (50), "look"?: 1 .. 10,000 (10,000)}
-- Answers:  {"items": [TickRow, ...], "next": text | null, "searched": integer | null, "now": timestamptz}. Neither filter has an
--           index: see jobs_v1 of what is searched.
-- Locks:    none. Reads only. Raises: PC003. Index: tick_newest.
create or replace function pgclaim.ticks_v1(request jsonb)
returns jsonb
language plpgsql stable
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set timezone = 'UTC'
as $$
declare
  wanted constant integer := pgclaim.read_limit(request, 'limit', 50, 200);
  look constant integer := pgclaim.read_limit(request, 'look', 10000, 10000);
  filtered constant boolean := request ->> 'trigger' is not null or request ->> 'outcome' is not null;
  at constant jsonb := pgclaim.read_cursor(request ->> 'cursor', 'ticks', 3);
  before_at timestamptz := 'infinity';
  before_id uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  items jsonb := '[]';
  looked integer := 0;
  last_at timestamptz;
  last_id uuid;
  cut boolean := false;
  full_page boolean := false;
  r record;
begin
  if (request ->> 'outcome') not in ('committed', 'lost') then
    raise exception 'The field "outcome" names no outcome.' using errcode = 'PC003', hint = 'Expected committed or lost.';
  end if;
  if at is not null then
    begin
      before_at := (at ->> 1)::timestamptz;
      before_id := (at ->> 2)::uuid;
    exception when data_exception then
      raise exception 'The cursor does not belong to this list.' using errcode = 'PC003';
    end;
  end if;
  for r in
    select
      t.id,
      t.decided_at,
      (request ->> 'trigger' is null or t.report ->> 'trigger' = request ->> 'trigger')
        and (request ->> 'outcome' is null or t.outcome = request ->> 'outcome') as fits,
      t as whole
    from pgclaim.tick t
    where (t.decided_at, t.id) < (before_at, before_id)
    order by t.decided_at desc, t.id desc
    limit case when filtered then look else wanted end + 1
  loop
    cut := filtered and looked >= look;
    exit when cut;
    if r.fits then
      full_page := jsonb_array_length(items) = wanted;
      exit when full_page;
      items := items || pgclaim.tick_item(r.whole);
    end if;
    looked := looked + 1;
    last_at := r.decided_at;
    last_id := r.id;
  end loop;
  return jsonb_build_object(
    'items', items,
    'next', case when full_page or cut then pgclaim.write_cursor(jsonb_build_array('ticks', last_at, last_id)) end,
    'searched', case when cut then looked end,
    'now', clock_timestamp()
  );
end $$;

-- One invocation: its ticks in their order, with whom each left alone and what it ran; null where no tick of it has ended.
-- Argument: {"id": text}. Answers: InvocationDetail of src/inspection.ts; at most 100 ticks, of each at most 200 attempts.
-- An attempt is found by its tick among those that started while the tick was at work: an index by tick would cost every fence.
-- Locks:    none. Reads only. Raises: PC003. Index: tick_invocation, attempt_started, job_pkey, history_pkey.
create or replace function pgclaim.invocation_v1(request jsonb)
returns jsonb
language plpgsql stable
set jit = off
set enable_seqscan = off
set timezone = 'UTC'
as $$
declare
  ticks jsonb := '[]';
  jobs jsonb;
  since timestamptz;
  r record;
begin
  if request ->> 'id' is null then
    raise exception 'The field "id" is no id of an invocation.' using errcode = 'PC003';
  end if;
  for r in
    select t.id, t.decided_at, t.report, t as whole from pgclaim.tick t
    where t.invocation = request ->> 'id'
    order by t.decided_at, t.id
    limit 100
  loop
    since := r.decided_at - interval '60 seconds'
      - case when jsonb_typeof(r.report -> 'totalMs') = 'number' then (r.report ->> 'totalMs')::float8 else 600000 end
        * interval '1 millisecond';
    select jsonb_agg(jsonb_build_object(
      'jobId', a.job_id::text,
      'kind', coalesce(j.kind, h.kind),
      'attempt', a.n,
      'outcome', a.outcome,
      'startedAt', a.started_at,
      'endedAt', a.ended_at,
      'error', a.error
    ) order by a.started_at, a.job_id)
    into jobs
    from (
      select * from pgclaim.attempt o
      where o.started_at between since and r.decided_at and o.tick = r.id
      limit 200
    ) a
    left join lateral (select i.kind from pgclaim.job i where i.id = a.job_id) j on true
    left join lateral (select i.kind from pgclaim.history i where i.job_id = a.job_id) h on true;
    ticks := ticks || (
      pgclaim.tick_item(r.whole)
      || jsonb_build_object('skips', coalesce(r.report -> 'skips', '[]'), 'jobs', coalesce(jobs, '[]'))
    );
  end loop;
  if ticks = '[]' then
    return null;
  end if;
  return jsonb_build_object('invocationId', request ->> 'id', 'now', clock_timestamp(), 'ticks', ticks);
end $$;
