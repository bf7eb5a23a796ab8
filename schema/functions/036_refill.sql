-- Gates. Twenty thousand jobs that wait for one busy tenant must not be looked at by every tick, nor hide the free jobs
-- behind them. So of each gate only as many rows stand in the claim index as may run at a time; the rest are blocked.

-- The gate of a name in a queue. A queue's name may have colons; written as they are, q and x:y would meet q:x and y.
create or replace function pgclaim.gate_of(class text, queue text, name text)
returns text
language sql immutable parallel safe
as $$ select class || ':' || replace(queue, ':', '%3A') || ':' || name $$;

-- Waits for the locks of gates, all of them, in one pass, in the order of their keys: nobody can deadlock with it.
-- Called in three places only: the COMMIT trigger, finish, operator verbs; wake's recheck tries it. Lock: until the transaction
-- ends. At most 2,000 of them, because the lock table is the whole server's.
-- can_wait: of these gates alone the locks are not needed now. One that somebody holds, for no longer than half a second for all
--           of them together, is left out: a caller that fired our trigger early has it until its own commit, and a tick must
--           not wait for that. Below Postgres's deadlock_timeout, so that a circle through a caller's constraints opens again.
-- Answers:  the gates that were left out; the caller leaves a note for each.
-- Raises:   PC006 for more than 2,000 gates.
create or replace function pgclaim.lock_gates(gates text[], can_wait text[] default '{}')
returns text[]
language plpgsql volatile
as $$
declare
  max_gates constant integer := 2000;
  left_out text[] := '{}';
  usual_timeout constant text := current_setting('lock_timeout');
  give_up_at constant timestamptz := clock_timestamp() + interval '500 milliseconds';
  wait_ms integer;
  g record;
begin
  if cardinality(gates) > max_gates then
    raise exception 'This transaction enqueues or ends jobs of % ordering keys, names and limits; at most % fit.',
        cardinality(gates), max_gates
      using errcode = 'PC006', hint = 'Nothing of it is stored. Commit in smaller parts.';
  end if;
  for g in
    select w.key, array_agg(w.gate) as gates, bool_and(w.gate = any (can_wait)) as can_wait
    from (
      select pgclaim.name_key('gate', u.gate, i.seed) as key, u.gate
      from unnest(gates) u(gate)
      cross join pgclaim.installation i
    ) w
    group by w.key
    order by w.key
  loop
    if not g.can_wait then
      perform pg_advisory_xact_lock(g.key);
    elsif not pg_try_advisory_xact_lock(g.key) then
      wait_ms := extract(epoch from give_up_at - clock_timestamp()) * 1000;
      if wait_ms >= 1 then
        begin
          perform set_config('lock_timeout', wait_ms || 'ms', true);
          perform pg_advisory_xact_lock(g.key);
          perform set_config('lock_timeout', usual_timeout, true);
        exception when lock_not_available then
          left_out := left_out || g.gates;
        end;
      else
        left_out := left_out || g.gates;
      end if;
    end if;
  end loop;
  return left_out;
end $$;

-- Asked at each enqueue inside a tick: refused by finish's lock_gates alone, one handler's keys, or a few of each, would cost the
-- whole tick its commit and blame all its jobs for it. Leaves room for the gates of the tick's own jobs, 200 at most.
-- Raises: PC006. Index: job_unplaced, which holds this transaction's rows only.
create or replace function pgclaim.check_gates()
returns void
language plpgsql volatile
set enable_seqscan = off
as $$
declare
  max_gates constant integer := 1800;
  gates integer;
begin
  select count(distinct j.gate) into gates from pgclaim.job j where j.gate is not null and j.place is null;
  if gates > max_gates then
    raise exception 'This tick enqueues jobs of % ordering keys, names and limits; at most % fit.', gates, max_gates
      using errcode = 'PC006', hint = 'Nothing of this handler is stored. Enqueue in smaller parts.';
  end if;
end $$;

-- The only way into the claim index for a gated job. Under the gate's lock, and as a statement of its own, because a
-- snapshot older than the lock would miss what its last holder did. Heals whatever stands wrong, whoever calls it.
-- An ordering key: its row of the lowest place is the active one, ready or waiting for its time; a dead letter that halts
-- the key counts, one that lets others pass does not. Whoever stands in the claim index behind the lowest goes back, unless
-- somebody runs it. A dead letter halts only what stands behind it: a job before it may be retried and runs.
-- A limit or a name: rows are promoted by priority and rank while fewer than width are ready (n for a limit, as
-- it is today, 2 for a name).
-- Locks: tries the jobs' of those it puts back. Index: job_gate_ready, job_gate_held, job_gate_placed or job_gate_ranked.
create or replace function pgclaim.refill(gate_name text)
returns integer
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  promoted integer := 0;
  active integer;
  lowest bigint;
  c record;
begin
  if gate_name like 'order:%' then
    select min(p.place) into lowest
    from (
      (
        select j.place from pgclaim.job j
        where j.gate = gate_name and j.state = 'ready' and j.place is not null
        order by j.gate, j.place
        limit 1
      )
      union all
      (
        select j.place from pgclaim.job j
        where j.gate = gate_name and (j.state = 'scheduled' or (j.state = 'dead' and j.when_dead = 'halt')) and j.place is not null
        order by j.gate, j.place
        limit 1
      )
      union all
      (
        select j.place from pgclaim.job j
        where j.gate = gate_name and j.state = 'blocked' and j.ordering_key is not null and j.place is not null
        order by j.gate, j.place
        limit 1
      )
    ) p;
    -- Of those that wait for their time; the wider condition before it is job_gate_held's, word for word.
    for c in
      select j.id, j.kind from pgclaim.job j where j.gate = gate_name and j.state = 'ready' and j.place > lowest
      union all
      select j.id, j.kind from pgclaim.job j
      where j.gate = gate_name and (j.state = 'scheduled' or (j.state = 'dead' and j.when_dead = 'halt')) and j.place > lowest
        and j.state = 'scheduled'
    loop
      if pgclaim.try_job_lock(c.kind, c.id) then
        update pgclaim.job j set state = 'blocked' where j.id = c.id and j.state in ('ready', 'scheduled');
      end if;
    end loop;
    select j.id into c from pgclaim.job j
    where j.gate = gate_name and j.state = 'blocked' and j.ordering_key is not null and j.place = lowest;
    if found and pgclaim.promote(c.id, gate_name) then
      promoted := 1;
    end if;
    return promoted;
  end if;
  loop
    select
      j.id,
      case
        when gate_name like 'limit:%' then coalesce(
          (
            select min(m.max)
            from unnest(
              j.limit_names,
              pgclaim.current_maxes(
                j.kind,
                j.queue,
                case when j.revision < (select k.revision from pgclaim.kind k where k.name = j.kind) then j.payload end,
                j.limit_names,
                j.limit_maxes
              )
            ) m(name, max)
            -- Jobs from before migration 0003 have a gate without a queue.
            where gate_name in (pgclaim.gate_of('limit', j.queue, m.name), 'limit:' || m.name)
          ),
          1000  -- the limit is gone
        )
        else j.gate_width
      end as gate_width
    into c
    from pgclaim.job j
    where j.gate = gate_name and j.state = 'blocked' and j.ordering_key is null and j.place is not null
    order by j.gate, j.priority, j.rank, j.id
    limit 1;
    exit when not found;
    select count(*) into active from (
      select from pgclaim.job j where j.gate = gate_name and j.state = 'ready' limit c.gate_width
    ) r;
    exit when active >= c.gate_width or not pgclaim.promote(c.id, gate_name);
    promoted := promoted + 1;
  end loop;
  return promoted;
end $$;

-- Takes one blocked row into the claim index, or among those that wait for their time. The caller has the gate's lock.
-- Answers whether it could: a caller that replaces this row's payload has it locked until its own commit, which may be
-- long. Waiting for it would stop a tick, passing it by would break the order: it leaves a note.
create or replace function pgclaim.promote(job_id bigint, gate_name text)
returns boolean
language plpgsql volatile
as $$
begin
  perform from pgclaim.job j where j.id = job_id and j.state = 'blocked' for update skip locked;
  if not found then
    insert into pgclaim.recheck (gate) values (gate_name);
    return false;
  end if;
  update pgclaim.job j
  set state = case when j.run_at <= clock_timestamp() then 'ready' else 'scheduled' end
  where j.id = job_id;
  return true;
end $$;

-- Places for what this transaction has enqueued, in id order, which is the order of its enqueues. Under the gate locks.
create or replace function pgclaim.draw_places(gates text[])
returns void
language sql volatile
as $$
  with placed as materialized (
    select o.id, nextval('pgclaim.place_seq') as place
    from (
      select j.id from pgclaim.job j where j.place is null and j.gate = any (gates) order by j.id
    ) o
  )
  update pgclaim.job j
  set place = p.place
  from placed p
  where j.id = p.id
$$;

-- At COMMIT of whoever enqueued gated jobs. The first call handles every row of its transaction, the later ones find
-- nothing. So the order of places is the order of commits, and nobody holds a gate for longer than a commit takes.
-- Above READ COMMITTED the snapshot is older than the lock: nothing of others is read, a note asks wake to look again.
-- Inside a tick it stays silent and finish draws: at the end of a turn it would hold gates through the other turns.
create or replace function pgclaim.place_at_commit()
returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  gates text[];
  g text;
begin
  if pgclaim.in_tick() then
    return null;
  end if;
  -- A look-up by key, since the index of unplaced rows is full of this transaction's dead entries after the first call.
  perform from pgclaim.job j where j.id = new.id and j.place is null;
  if not found then
    return null;
  end if;
  select array_agg(distinct j.gate) into gates from pgclaim.job j where j.gate is not null and j.place is null;
  if gates is null then
    return null;
  end if;
  perform pgclaim.lock_gates(gates);
  perform pgclaim.draw_places(gates);
  if current_setting('transaction_isolation') = 'read committed' then
    foreach g in array gates loop
      perform pgclaim.refill(g);
    end loop;
  else
    insert into pgclaim.recheck (gate) select unnest(gates);
  end if;
  return null;
end $$;

-- Looks again at a bounded number of the gates that have notes: take the gate's lock, THEN read and delete its notes, then
-- refill. From a rotating start, so that gates that stay busy never hide the others.
-- Locks: the gates', only tried; a busy one keeps its notes for the next wake. Waiting would hand the time of every wake to
-- whoever holds one gate for long, and inside a fence it would close a circle: the fence holds an attempt row that finish
-- may wait for while it holds the gate.
-- Index: recheck_pkey for the start, recheck_gate from one gate to the next, however many notes each has.
create or replace function pgclaim.recheck_gates(slice integer)
returns integer
language plpgsql volatile
set enable_seqscan = off
as $$
declare
  seed bigint;
  first_gate text collate "C";
  g text collate "C";
  next_gate text collate "C";
  wrapped boolean := false;
  looked integer := 0;
  promoted integer := 0;
begin
  select n.gate into first_gate
  from pgclaim.recheck n
  where n.id >= (select min(o.id) + floor(random() * (max(o.id) - min(o.id) + 1)::float8)::bigint from pgclaim.recheck o)
  order by n.id
  limit 1;
  if not found then
    return 0;
  end if;
  select i.seed into seed from pgclaim.installation i;
  g := first_gate;
  loop
    if pg_try_advisory_xact_lock(pgclaim.name_key('gate', g, seed)) then
      delete from pgclaim.recheck n where n.gate = g;
      promoted := promoted + pgclaim.refill(g);
    end if;
    looked := looked + 1;
    exit when looked >= slice;
    select min(n.gate) into next_gate from pgclaim.recheck n where n.gate > g;
    if next_gate is null and not wrapped then
      wrapped := true;
      select min(n.gate) into next_gate from pgclaim.recheck n;
    end if;
    exit when next_gate is null or (wrapped and next_gate >= first_gate);
    g := next_gate;
  end loop;
  return promoted;
end $$;
