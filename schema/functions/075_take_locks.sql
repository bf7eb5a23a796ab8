-- The locks of one candidate, in canonical order: ordering key, then names sorted, then the job. Tried, never waited for;
-- of two overlapping sets that are taken in one order, one always wins. The caller's sub-block gives back what was taken
-- when the set cannot be completed.
-- held_*:  what this tick holds already, with its mode and who uses it. Such a name is not tried again: the job may run,
--          but after those of this tick whose mode excludes it.
-- Answers: reason null and what was taken; or the reason, and name and class (order, limit, lock, shared: a lock that sharers
--          hold, job) of the lock that was busy.
create or replace function pgclaim.take_locks(
  job_id bigint, job_kind text, ordering_key text, locks text[], shared_locks text[], limit_names text[],
  limit_maxes integer[], follows boolean, held_keys bigint[], held_shared boolean[], held_by bigint[], namespace integer,
  seed bigint
)
returns pgclaim.taken
language plpgsql volatile
as $$
declare
  took pgclaim.taken;
  slot pgclaim.taken;
  wanted bigint;
  is_held boolean;
  n record;
begin
  took.keys := '{}';
  took.shared := '{}';
  took.after := '{}';
  -- A follower's ordering key is the head's, held since the head was claimed.
  if ordering_key is not null and not follows then
    wanted := pgclaim.name_key('order', ordering_key, seed);
    if wanted = any (held_keys) or not pg_try_advisory_xact_lock(wanted) then
      took.reason := 'busy';
      took.class := 'order';
      took.name := ordering_key;
      return took;
    end if;
    took.keys := took.keys || wanted;
    took.shared := took.shared || false;
  end if;
  if locks is not null or shared_locks is not null or limit_names is not null then
    for n in
      select distinct on (s.class, s.name) s.class, s.name, s.shared, s.max
      from (
        select 'lock' as class, x.name collate "C" as name, false as shared, null::integer as max from unnest(locks) x(name)
        union all
        select 'lock', x.name, true, null from unnest(shared_locks) x(name)
        union all
        select 'limit', x.name, false, x.max from unnest(limit_names, limit_maxes) x(name, max) where x.max is not null
      ) s
      -- A name wanted both ways is wanted exclusively; of two limits that come out as one name the smaller holds.
      order by s.class, s.name, s.shared, s.max
    loop
      took.class := n.class;
      if n.class = 'limit' then
        slot := pgclaim.take_slot('limit', n.name, n.max, held_keys || took.keys, seed);
        if slot.reason is not null then
          -- Full. If this tick has slots of it, the job may use one after whoever has it now: the one with the fewest.
          select h.key into wanted
          from unnest(held_keys) h(key)
          where h.key in (select pgclaim.name_key('limit', n.name || '#' || s, seed) from generate_series(0, n.max - 1) s)
          group by h.key
          order by count(*), h.key
          limit 1;
          if not found then
            took.reason := 'limit-full';
            took.name := n.name;
            return took;
          end if;
          took.after := took.after || array(select h.id from unnest(held_keys, held_by) h(key, id) where h.key = wanted);
          slot.keys := array[wanted];
        end if;
        took.keys := took.keys || slot.keys;
        took.shared := took.shared || false;
        continue;
      end if;
      wanted := pgclaim.name_key('lock', n.name, seed);
      is_held := wanted = any (held_keys);
      if n.shared then
        if not is_held and not pg_try_advisory_xact_lock_shared(wanted) then
          took.reason := 'busy';
        end if;
      elsif not (is_held and exists (
        select from unnest(held_keys, held_shared) h(k, s) where h.k = wanted and not h.s
      )) and not pg_try_advisory_xact_lock(wanted) then
        took.reason := 'busy';
        -- Whether sharers hold it, who may relieve each other for ever. Given back with the rest.
        if pg_try_advisory_xact_lock_shared(wanted) then
          took.class := 'shared';
        end if;
      end if;
      if took.reason is not null then
        took.name := n.name;
        return took;
      end if;
      if is_held then
        took.after := took.after || array(
          select h.id from unnest(held_keys, held_shared, held_by) h(k, s, id) where h.k = wanted and (not h.s or not n.shared)
        );
      end if;
      took.keys := took.keys || wanted;
      took.shared := took.shared || n.shared;
    end loop;
  end if;
  took.class := 'job';
  wanted := pgclaim.job_key(namespace, job_id);
  if wanted = any (held_keys) or not pg_try_advisory_xact_lock(wanted) then
    took.reason := 'busy';
    return took;
  end if;
  took.keys := took.keys || wanted;
  took.shared := took.shared || false;
  return took;
end $$;

-- One of the n slots of a limit, from a rotating start. Slots are locks, so a crash can never leak one.
-- held: keys this session has already; they would seem free to it.
create or replace function pgclaim.take_slot(class text, name text, n integer, held bigint[], seed bigint)
returns pgclaim.taken
language plpgsql volatile
as $$
declare
  took pgclaim.taken;
  start integer := floor(random() * n)::integer;
  key bigint;
begin
  for i in 0 .. n - 1 loop
    key := pgclaim.name_key(class, name || '#' || (start + i) % n, seed);
    if not key = any (held) and pg_try_advisory_xact_lock(key) then
      took.keys := array[key];
      return took;
    end if;
  end loop;
  took.reason := 'limit-full';
  took.name := name;
  return took;
end $$;

-- What each limit of a job allows today: limits belong to the kind and the queue, so a new max holds for the jobs that wait
-- already. A name the kind no longer has keeps its max, since the template may only have been reworded, and whoever it
-- protects must not be overrun by accident; the limit of a queue that has none any more is null, and none.
-- payload: null where the kind is as it was when the job was enqueued. Else the kind's templates are rendered once more, to
-- find which of them a name came from.
create or replace function pgclaim.current_maxes(job_kind text, job_queue text, payload jsonb, names text[], maxes integer[])
returns integer[]
language sql stable
as $$
  select array_agg(
    case
      when n.name = '@queue/' || job_queue then (select q.max from pgclaim.queue q where q.name = job_queue)
      when payload is null then n.max
      else coalesce(
        (
          select min(l.max)
          from pgclaim.kind k
          cross join lateral unnest(k.limit_names, k.limit_maxes) l(template, max)
          where k.name = job_kind and pgclaim.render_key(l.template, payload) = n.name
        ),
        n.max
      )
    end
    order by n.o
  )
  from unnest(names, maxes) with ordinality n(name, max, o)
$$;

-- Whether a row of an ordering key stands before this place. Dead letters that were told to let others pass do not count.
-- In plpgsql, whose plans last as long as the session: a SQL function with sub-queries is not inlined, and planning it anew
-- for every head made a claim of a hundred heads several times as long.
-- Index: job_gate_ready, job_gate_held, job_gate_placed.
create or replace function pgclaim.has_before(gate_name text, before bigint)
returns boolean
language plpgsql stable
as $$
begin
  return
    exists (select from pgclaim.job j where j.gate = gate_name and j.state = 'ready' and j.place < before)
    or exists (
      select from pgclaim.job j
      where j.gate = gate_name and (j.state = 'scheduled' or (j.state = 'dead' and j.when_dead = 'halt')) and j.place < before
    )
    or exists (
      select from pgclaim.job j
      where j.gate = gate_name and j.state = 'blocked' and j.ordering_key is not null and j.place < before
    );
end $$;
