-- Writes the outcomes of a whole tick; COMMIT follows in the same message.
-- Argument: {"tick": uuid, "invocation": text, "report": object,
--            "jobs": [{"id", "n", "outcome": 'done' | 'failed' | 'dead' | 'snoozed' | 'released' | 'cancelled' | 'missed',
--                      "error"?: text, "inMs"?: integer, "at"?: timestamptz, "enqueue"?: [job, ...]}, ...]}
--           failed: another attempt after inMs, or after the kind's backoff, or a dead letter at max_attempts.
--           dead: the handler asked for it. snoozed: due again after inMs or at. released: granted and not run, or a
--           number whose fence answer never came (it is burned, so that a late fence grants nothing). cancelled: stopped
--           because somebody asked for it. missed: never fenced, its deadline has passed.
-- Rows:     what became of each job: (job_id, state 'ready' | 'scheduled' | 'blocked' | 'dead', or
--           'cancelled' for one whose cancel or replacement came while it failed; run_at, error). Nothing for what is done.
-- Stored:   in the tick's report `outcomes`, a count for each outcome sent, and `kinds`: {kind: {"done", "retried", "dead",
--           "snoozed", "released", "cancelled", "missed": how many, "late": [how many done jobs in each bucket of
--           late_bounds_ms, from due to now], "lateMs": their sum}}. What is zero is not there.
-- Locks:    the tick row first; whoever inserts it decides the tick's fate. Then the gate locks of every gated job of the
--           tick and of all it has enqueued, sorted, in one pass; then attempts by ascending job id, then jobs.
-- A gate that somebody holds for longer than half a second is left to the next wake, unless this tick enqueues behind it.
-- Raises:   PC001; PC004 outside the claiming transaction; PC005 where an attempt is not ours to close; 23505 on
--           tick_pkey when settle has declared this tick lost.
-- Index:    job_pkey and attempt_pkey, one probe for each job, whatever the statistics say (see fence_v1).
create or replace function pgclaim.finish_v1(request jsonb)
returns table (job_id bigint, state text, run_at timestamptz, error text)
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  this_tick uuid := (request ->> 'tick')::uuid;
  refusals jsonb := '{}';
  e record;
  ids bigint[];
  ns integer[];
  outcomes text[];
  errors text[];
  waits bigint[];
  ats timestamptz[];
  affected integer;
  counts jsonb;
  kinds jsonb;
  clock constant timestamptz := clock_timestamp();
  gone_kinds text[];
  gone_outcomes text[];
  gone_late bigint[];
  -- For unique keys that somebody has without having committed, all handlers together: each would fit, ten would not.
  keys_until constant timestamptz := clock_timestamp() + interval '2 seconds';
  gates text[];
  joined text[];  -- those the tick has enqueued behind: their places are drawn here, so they are waited for
  left_out text[];
  g text;
begin
  perform pgclaim.require_read_committed();
  if current_setting('pgclaim.tick', true) is distinct from request ->> 'tick' then
    raise exception 'This is not the transaction that claimed tick %.', request ->> 'tick'
      using errcode = 'PC004', hint = 'A handler ended the transaction, or a pooler handed out another one.';
  end if;
  insert into pgclaim.tick (id, outcome, invocation, report)
  values (this_tick, 'committed', request ->> 'invocation', request -> 'report');

  -- Jobs of handlers that used no tx. Each handler's in a sub-block: a refusal fails that handler and nobody else.
  for e in
    select u.id, u.enqueue
    from jsonb_to_recordset(request -> 'jobs') as u(id bigint, enqueue jsonb)
    where u.enqueue is not null
    order by u.id
  loop
    begin
      perform pgclaim.enqueue_v1(jsonb_build_object('strict', true, 'jobs', e.enqueue, 'keysUntil', keys_until));
    exception when others then
      refusals := refusals || jsonb_build_object(e.id::text, sqlstate || ': ' || sqlerrm);
    end;
  end loop;

  select
    array_agg(u.id order by u.id),
    array_agg(u.n order by u.id),
    array_agg(case
      when refusals ? u.id::text and u.outcome in ('done', 'snoozed') then 'failed'
      -- It has ended, but not done, and somebody wants it gone or has put another in its place.
      when u.outcome in ('failed', 'snoozed', 'dead')
        and exists (select from pgclaim.cancel_request r where r.job_id = u.id) then 'cancelled'
      else u.outcome
    end order by u.id),
    array_agg(coalesce(refusals ->> u.id::text, u.error) order by u.id),
    array_agg(case when not refusals ? u.id::text then u."inMs" end order by u.id),
    array_agg(case when not refusals ? u.id::text then u.at end order by u.id)
  into ids, ns, outcomes, errors, waits, ats
  from jsonb_to_recordset(request -> 'jobs')
    as u(id bigint, n integer, outcome text, error text, "inMs" bigint, at timestamptz);

  -- All of them before the first write to a job row, whatever the outcomes: two ticks that wrote first and locked then
  -- would deadlock. What this tick has enqueued is known by its missing place.
  select array_agg(distinct w.gate), array_agg(distinct w.gate) filter (where w.joins) into gates, joined
  from (
    select j.gate, false as joins from pgclaim.job j where j.id = any (ids) and j.gate is not null
    union all
    select j.gate, true from pgclaim.job j where j.gate is not null and j.place is null
  ) w;
  if gates is not null then
    left_out := pgclaim.lock_gates(gates, array(
      select u.gate from unnest(gates) u(gate) where u.gate <> all (coalesce(joined, '{}'))
    ));
  end if;

  -- Own rows are closed whatever their outcome says: the tick row above excludes settle, our locks exclude the reaper.
  update pgclaim.attempt a
  set
    outcome = case u.o when 'dead' then 'failed' else u.o end,
    ended_at = clock_timestamp(),
    error = u.err
  from unnest(ids, ns, outcomes, errors) u(id, n, o, err)
  where a.job_id = u.id and a.n = u.n and a.tick = this_tick and u.o not in ('released', 'missed');
  get diagnostics affected = row_count;
  if affected <> (select count(*) from unnest(outcomes) u(o) where u.o not in ('released', 'missed')) then
    raise exception 'Tick % reports % attempts, % of them are its own.', this_tick, cardinality(ids), affected
      using errcode = 'PC005';
  end if;

  -- Handed back, or burned: closed where it is ours or was never written, so no late fence can open it any more.
  with closed as (
    insert into pgclaim.attempt as a (job_id, n, tick, quarantined, ended_at, outcome)
    select u.id, u.n, this_tick, false, clock_timestamp(), 'released'
    from unnest(ids, ns, outcomes) u(id, n, o)
    where u.o = 'released'
    order by u.id
    on conflict on constraint attempt_pkey do update
    set outcome = excluded.outcome, ended_at = excluded.ended_at
    where a.tick = excluded.tick
    returning a.job_id, a.n
  )
  update pgclaim.job j
  set attempt = c.n
  from closed c
  where j.id = c.job_id;

  -- History in the order in which the jobs ran: of a key by place, which need not be the order of ids.
  with gone as (
    delete from pgclaim.job j
    using unnest(ids, ns, outcomes, errors) u(id, n, o, err)
    where j.id = u.id and u.o in ('done', 'cancelled')
    returning j.id, j.kind, j.queue, u.o, u.n, j.failures, j.run_at, j.enqueued_at, coalesce(u.err, j.last_error) as last_error,
      j.payload, j.ordering_key, j.place, j.deadline_at, j.trace, j.source
  ), kept as (
    insert into pgclaim.history (
      job_id, kind, queue, outcome, attempts, failures, run_at, enqueued_at, last_error, payload, ordering_key, place, deadline_at,
      trace, source
    )
    select g.id, g.kind, g.queue, g.o, g.n, g.failures, g.run_at, g.enqueued_at, g.last_error, g.payload, g.ordering_key,
      g.place, g.deadline_at, g.trace, g.source
    from gone g
    order by g.place, g.id
  )
  select count(*), array_agg(g.kind), array_agg(g.o), array_agg(floor(extract(epoch from greatest(clock - g.run_at, '0')) * 1000)::bigint)
  into affected, gone_kinds, gone_outcomes, gone_late
  from gone g;
  if affected <> (select count(*) from unnest(outcomes) u(o) where u.o in ('done', 'cancelled')) then
    raise exception 'Tick % reports jobs done that are gone.', this_tick using errcode = 'PC005';
  end if;

  return query
  with decided as materialized (
    select
      u.id,
      u.n,
      u.o,
      u.err,
      u.o in ('dead', 'missed') or (u.o = 'failed' and j.failures + 1 >= k.max_attempts) as dies,
      coalesce(
        u.at,
        clock_timestamp() + coalesce(
          u.wait_ms,
          pgclaim.backoff_ms(k.backoff, k.min_backoff_ms, k.max_backoff_ms, j.failures + 1, random())
        ) * interval '1 millisecond'
      ) as due,
      k.target_latency_ms * interval '1 millisecond' as slack
    from unnest(ids, ns, outcomes, errors, waits, ats) u(id, n, o, err, wait_ms, at)
    join pgclaim.job j on j.id = u.id
    join pgclaim.kind k on k.name = j.kind
    where u.o in ('failed', 'dead', 'snoozed', 'missed')
  )
  update pgclaim.job j
  set
    attempt = case d.o when 'missed' then j.attempt else d.n end,
    suspect = case d.o when 'missed' then j.suspect else false end,
    failures = j.failures + case when d.o in ('snoozed', 'missed') then 0 else 1 end,
    -- Of a limit or a name the refill below decides; a head keeps its key.
    state = case
      when d.dies then 'dead'
      when d.due > clock_timestamp() then 'scheduled'
      when j.gate is not null and j.ordering_key is null then 'blocked'
      else 'ready'
    end,
    run_at = case when d.dies then j.run_at else d.due end,
    rank = case when d.dies then j.rank else coalesce(j.deadline_at, d.due + d.slack) end,
    dead_at = case when d.dies then clock_timestamp() end,
    dead_reason = case d.o when 'dead' then 'handler' when 'missed' then 'missed' else case when d.dies then 'attempts' end end,
    last_error = coalesce(d.err, j.last_error)
  from decided d
  where j.id = d.id
  returning j.id, j.state, j.run_at, d.err;
  get diagnostics affected = row_count;
  if affected <> (select count(*) from unnest(outcomes) u(o) where u.o in ('failed', 'dead', 'snoozed', 'missed')) then
    raise exception 'Tick % reports jobs that are gone.', this_tick using errcode = 'PC005';
  end if;

  return query
  select u.id, 'cancelled'::text, clock_timestamp(), u.err
  from unnest(ids, outcomes, errors) u(id, o, err)
  where u.o = 'cancelled';

  -- What outlives a job only while it is unfinished.
  -- Of the keys not one that somebody has locked: a caller that wants a successor keeps it until its own commit, and may wait
  -- for a gate of ours then. It takes the key over; should it roll back, the key's next user does.
  delete from pgclaim.unique_key k
  where (k.kind, k.key) in (
    select o.kind, o.key from pgclaim.unique_key o
    where o.expires_at is null
      and o.job_id = any (array(select u.id from unnest(ids, outcomes) u(id, o) where u.o in ('done', 'cancelled')))
    for update skip locked
  );
  delete from pgclaim.reservation r where r.job_id = any (ids);
  delete from pgclaim.cancel_request r
  where r.job_id in (select u.id from unnest(ids, outcomes) u(id, o) where u.o in ('done', 'cancelled'));

  -- Places for what this tick has enqueued, and then, in statements of their own, the refills.
  if gates is not null then
    perform pgclaim.draw_places(gates);
    if exists (select from pgclaim.job j where j.gate is not null and j.place is null) then
      raise exception 'Tick % would commit a job without a place.', this_tick using errcode = 'PC005';
    end if;
    insert into pgclaim.recheck (gate) select unnest(left_out);
    foreach g in array gates loop
      continue when g = any (left_out);
      perform pgclaim.refill(g);
    end loop;
  end if;

  -- By kind: what is gone as it went, what is left as it stands now.
  select jsonb_object_agg(k.kind, k.facts) into kinds
  from (
    select c.kind, jsonb_strip_nulls(jsonb_build_object(
      'done', nullif(count(*) filter (where c.result = 'done'), 0),
      'retried', nullif(count(*) filter (where c.result = 'retried'), 0),
      'dead', nullif(count(*) filter (where c.result = 'dead'), 0),
      'snoozed', nullif(count(*) filter (where c.result = 'snoozed'), 0),
      'released', nullif(count(*) filter (where c.result = 'released'), 0),
      'cancelled', nullif(count(*) filter (where c.result = 'cancelled'), 0),
      'missed', nullif(count(*) filter (where c.result = 'missed'), 0),
      'late', pgclaim.late_counts(array_agg(c.late_ms) filter (where c.result = 'done')),
      'lateMs', sum(c.late_ms) filter (where c.result = 'done')
    )) as facts
    from (
      select w.kind, w.o as result, w.late_ms from unnest(gone_kinds, gone_outcomes, gone_late) w(kind, o, late_ms)
      union all
      select j.kind, case when u.o in ('released', 'missed', 'snoozed') then u.o when j.state = 'dead' then 'dead' else 'retried' end, null
      from unnest(ids, outcomes) u(id, o)
      join pgclaim.job j on j.id = u.id
      where u.o not in ('done', 'cancelled')
    ) c
    group by c.kind
  ) k;
  select jsonb_object_agg(c.o, c.n) into counts
  from (select u.o, count(*) as n from unnest(outcomes) u(o) group by u.o) c;
  -- Decided now, as near as may be to the COMMIT: who adds up what ticks did goes by this instant.
  update pgclaim.tick t
  set
    decided_at = clock_timestamp(),
    report = coalesce(t.report, '{}') || jsonb_build_object('outcomes', coalesce(counts, '{}'), 'kinds', coalesce(kinds, '{}'))
  where t.id = this_tick;
end $$;
