-- Gates. Twenty thousand jobs that wait for one busy tenant must not be looked at by every tick, nor hide the free jobs
-- behind them. So of each gate only as many rows stand in the claim index as may run at a time; the rest are blocked.

-- Waits for the locks of gates, all of them, in one pass, in the order of their keys: nobody can deadlock with it.
-- Taken in four places only: the COMMIT trigger, finish, operator verbs, wake's recheck. Lock: until the transaction ends.
create or replace function pgclaim.lock_gates(gates text[])
returns void
language plpgsql volatile
as $$
declare
  key bigint;
begin
  for key in
    select distinct pgclaim.name_key('gate', g, i.seed) as k
    from unnest(gates) g
    cross join pgclaim.installation i
    order by k
  loop
    perform pg_advisory_xact_lock(key);
  end loop;
end $$;

-- The only way into the claim index for a gated job. Under the gate's lock, and as a statement of its own, because a
-- snapshot older than the lock would miss what its last holder did. Heals whatever stands wrong, whoever calls it.
-- Width: 1 for an ordering key, n for a limit, 2 for a name. Active: ready rows; for an ordering key also a row that waits
-- for its time, and a dead letter that halts its key.
-- Index: job_gate_ready, job_gate_held, job_gate_placed or job_gate_ranked.
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
  c record;
begin
  loop
    if gate_name like 'order:%' then
      select j.id, j.gate_width, j.run_at into c from pgclaim.job j
      where j.gate = gate_name and j.state = 'blocked' and j.ordering_key is not null and j.place is not null
      order by j.gate, j.place
      limit 1;
    else
      select j.id, j.gate_width, j.run_at into c from pgclaim.job j
      where j.gate = gate_name and j.state = 'blocked' and j.ordering_key is null and j.place is not null
      order by j.gate, j.priority, j.rank, j.id
      limit 1;
    end if;
    exit when not found;
    select count(*) into active from (
      select from pgclaim.job j where j.gate = gate_name and j.state = 'ready' limit c.gate_width
    ) r;
    exit when active >= c.gate_width;
    if gate_name like 'order:%' then
      perform from pgclaim.job j
      where j.gate = gate_name and (j.state = 'scheduled' or (j.state = 'dead' and j.when_dead = 'halt'))
      limit 1;
      exit when found;
    end if;
    -- A caller that replaces this row's payload has it locked until its own commit, which may be long. Waiting for it would
    -- stop a tick, passing it by would break the order: leave a note.
    perform from pgclaim.job j where j.id = c.id and j.state = 'blocked' for update skip locked;
    if not found then
      insert into pgclaim.recheck (gate) values (gate_name);
      exit;
    end if;
    update pgclaim.job j
    set state = case when j.run_at <= clock_timestamp() then 'ready' else 'scheduled' end
    where j.id = c.id;
    promoted := promoted + 1;
  end loop;
  return promoted;
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
  if coalesce(current_setting('pgclaim.tick', true), '') <> '' then
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

-- Reads the notes, oldest first, a bounded number of gates: lock the gate, THEN read and delete its notes, then refill.
-- Locks: the gates', waited for in sorted order.
create or replace function pgclaim.recheck_gates(slice integer)
returns integer
language plpgsql volatile
as $$
declare
  gates text[];
  g text;
  promoted integer := 0;
begin
  select array_agg(distinct r.gate) into gates
  from (select n.gate from pgclaim.recheck n order by n.id limit slice) r;
  if gates is null then
    return 0;
  end if;
  perform pgclaim.lock_gates(gates);
  foreach g in array gates loop
    delete from pgclaim.recheck n where n.gate = g;
    promoted := promoted + pgclaim.refill(g);
  end loop;
  return promoted;
end $$;
