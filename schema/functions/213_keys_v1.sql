-- The gates of ordering keys behind a gate, in their order: the halted ones, or those where somebody waits and no dead letter halts.
-- From one gate to the next in the index, so that what stands behind a gate costs nothing; of waiting ones at most 10,000 gates are
-- looked at. Index: job_halting, job_gate_placed.
create or replace function pgclaim.walk_gates(of_halted boolean, behind text, wanted integer)
returns table (gate text)
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
  g text collate "C" := behind;
  n integer := 0;
begin
  for looked in 1 .. 10000 loop
    if of_halted then
      select j.gate into g from pgclaim.job j
      where j.state = 'dead' and j.when_dead = 'halt' and j.ordering_key is not null and j.gate > g
      order by j.gate, j.place
      limit 1;
    else
      select j.gate into g from pgclaim.job j
      where j.state = 'blocked' and j.ordering_key is not null and j.gate > g
      order by j.gate, j.place
      limit 1;
    end if;
    exit when not found;
    continue when not of_halted and exists (
      select from pgclaim.job j
      where j.gate = g and j.state = 'dead' and j.when_dead = 'halt' and j.ordering_key is not null
    );
    walk_gates.gate := g;
    return next;
    n := n + 1;
    exit when n >= wanted;
  end loop;
end $$;

-- Ordering keys: the halted ones, by gate, then those where jobs wait behind a head, by gate. A key with one job is in no list.
-- Argument: {"halted"?: boolean (only those, or only the others), "cursor"?: text, "limit"?: 1 .. 200 (50)}
-- Answers:  {"items": [KeyRow of src/inspection.ts, ...], "next": text | null, "searched": null, "now": timestamptz}
--           head: of lowest place. next: what would run if the head were skipped. behind: counted to 10,000, of a page of more than
--           25 keys to as many as make 250,000 of all. Worst slack: among the head and the 50 that come first behind it.
-- Locks:    none. Reads only. Raises: PC003. Index: job_halting, job_gate_placed, job_gate_ready, job_gate_held.
create or replace function pgclaim.keys_v1(request jsonb)
returns jsonb
language plpgsql stable
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set timezone = 'UTC'
as $$
declare
  clock constant timestamptz := clock_timestamp();
  wanted constant integer := pgclaim.read_limit(request, 'limit', 50, 200);
  cap constant integer := least(10000, 250000 / wanted);
  only_halted constant boolean := (request -> 'halted') = 'true';
  only_others constant boolean := (request -> 'halted') = 'false';
  at constant jsonb := pgclaim.read_cursor(request ->> 'cursor', 'keys', 3);
  part integer := case when only_others or at ->> 1 = '2' then 2 else 1 end;
  gates text[] := '{}';
  parts integer[] := '{}';
  items jsonb;
  next jsonb;
begin
  if part = 1 then
    gates := array(select g.gate from pgclaim.walk_gates(true, coalesce(at ->> 2, ''), wanted + 1) g);
    parts := array_fill(1, array[cardinality(gates)]);
  end if;
  if cardinality(gates) <= wanted and not coalesce(only_halted, false) then
    gates := gates || array(
      select g.gate
      from pgclaim.walk_gates(false, case when part = 2 then coalesce(at ->> 2, '') else '' end, wanted + 1 - cardinality(gates)) g
    );
    parts := parts || array_fill(2, array[cardinality(gates) - cardinality(parts)]);
  end if;
  if cardinality(gates) > wanted then
    next := jsonb_build_array('keys', parts[wanted], gates[wanted]);
  end if;
  select jsonb_agg(jsonb_build_object(
    'orderingKey', h.ordering_key,
    'gate', g.gate,
    'kind', h.kind,
    'halted', d.id is not null,
    'haltedAt', d.dead_at,
    'head', h.id::text,
    'headState', case
      when r.is_running then 'running'
      when h.state = 'scheduled' and h.failures > 0 then 'retrying'
      else h.state
    end,
    'headError', left(h.last_error, 200),
    'next', n.id::text,
    'behind', jsonb_build_object('n', least(b.n, cap), 'capped', b.n > cap),
    'oldestEnqueuedAt', f.enqueued_at,
    'worstSlackMs', pgclaim.ms_between(clock, least(f.deadline_at, case when h.state <> 'dead' then h.deadline_at end))
  ) order by g.o)
  into items
  from unnest(gates[1 : wanted]) with ordinality g(gate, o)
  cross join lateral (
    select j.* from pgclaim.key_head(g.gate) k join pgclaim.job j on j.id = k.id
  ) h
  left join lateral (select k.id from pgclaim.key_head(g.gate, h.place) k) n on true
  left join lateral (
    select j.id, j.dead_at from pgclaim.job j
    where j.gate = g.gate and j.state = 'dead' and j.when_dead = 'halt' and j.ordering_key is not null
    order by j.gate, j.place
    limit 1
  ) d on true
  cross join lateral (
    select count(*) as n
    from (
      select from pgclaim.job j
      where j.gate = g.gate and j.state = 'blocked' and j.ordering_key is not null and j.place > h.place
      limit cap + 1
    ) w
  ) b
  cross join lateral (
    select min(w.enqueued_at) as enqueued_at, min(w.deadline_at) as deadline_at
    from (
      select j.enqueued_at, j.deadline_at from pgclaim.job j
      where j.gate = g.gate and j.state = 'blocked' and j.ordering_key is not null
      order by j.gate, j.place
      limit 50
    ) w
  ) f
  cross join (
    select coalesce(array_agg(o.job_id), '{}') as ids from pgclaim.open_attempts() o where o.pid is not null
  ) u
  cross join lateral (select h.id = any (u.ids) as is_running) r;
  return jsonb_build_object(
    'items', coalesce(items, '[]'),
    'next', case when next is not null then pgclaim.write_cursor(next) end,
    'searched', null,
    'now', clock
  );
end $$;
