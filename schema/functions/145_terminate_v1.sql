-- Ends a backend that holds our locks, and its transaction with it: for one that hangs and will not time out soon enough.
-- Argument: {"pid": integer, "transactionStart": timestamptz (exactly, as holders_v1 says it), "by": text (who acts, see operate_v1)}
-- Answers:  {"type": "terminated"}, or {"type": "gone"} where that backend holds nothing of ours in this database any more, or is in
--           another transaction: by now it may serve somebody else. What lies between this look and the signal is microseconds.
-- Each job whose lock it held gets its row of pgclaim.action. The jobs are free at once, and the attempts in flight are closed by the
-- next wake as crashed: charged to a job only where it ran alone.
-- Who may: a role that is a member of the backend's role, or of pg_signal_backend; a superuser's backend only a superuser. To see
-- when a transaction of another role began it takes membership in that role or in pg_read_all_stats; who cannot see it gets "gone".
-- Raises:   PC003; 42501 for who may see it and not end it.
create or replace function pgclaim.terminate_v1(request jsonb)
returns jsonb
language plpgsql volatile
as $$
declare
  since constant timestamptz := pgclaim.read_instant(request, 'transactionStart');
  wanted integer;
  held bigint[];
  jobs bigint[];
begin
  begin
    wanted := (request ->> 'pid')::integer;
  exception when data_exception then
    wanted := null;
  end;
  if wanted is null then
    raise exception 'The field "pid" is no process id.' using errcode = 'PC003';
  end if;
  held := array(select l.key from pgclaim.advisory_locks() l where l.pid = wanted);
  perform from pg_catalog.pg_stat_activity a
  where a.pid = wanted and a.datname = current_database() and a.xact_start = since and a.pid <> pg_backend_pid();
  if not found or not pgclaim.holds_ours(held) then
    return jsonb_build_object('type', 'gone');
  end if;
  jobs := array(
    select a.job_id
    from (select o.job_id from pgclaim.attempt o where o.outcome is null limit 10000) a
    join pgclaim.job j on j.id = a.job_id
    join pgclaim.kind k on k.name = j.kind
    where pgclaim.job_key(k.namespace, j.id) = any (held)
  );
  perform pg_terminate_backend(wanted, 1000);
  perform pgclaim.record_actions(
    jobs, 'terminate', pgclaim.read_actor(request), array_fill('pid ' || wanted, array[cardinality(jobs)])
  );
  return jsonb_build_object('type', 'terminated');
end $$;

-- Whether any of these keys is ours: a job's, which its kind's namespace tells; one of our own names; or a gate's, of the first
-- 2,000 that have jobs. Names that jobs need are held beside a job's lock only, so nobody needs to look for them.
-- Index: job_gate_ready, job_gate_held, job_gate_placed, job_gate_ranked, from one gate to the next.
create or replace function pgclaim.holds_ours(held bigint[])
returns boolean
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
begin
  return
    exists (
      select from unnest(held) h(key) join pgclaim.kind k on k.namespace = (h.key >> 32)
    )
    or exists (
      select from pgclaim.installation i
      cross join unnest(array['register', 'prune', 'prune records', 'reserve', 'roll up', 'sample', 'new trigger']) n(name)
      where pgclaim.name_key('internal', n.name, i.seed) = any (held)
    )
    or exists (
      with recursive g as (
        select pgclaim.next_gate('') as gate, 1 as n
        union all
        select pgclaim.next_gate(g.gate), g.n + 1 from g where g.gate is not null and g.n < 2000
      )
      select from g cross join pgclaim.installation i
      where g.gate is not null and pgclaim.name_key('gate', g.gate, i.seed) = any (held)
    );
end $$;

-- The next gate in order that has unfinished jobs; null behind the last one.
create or replace function pgclaim.next_gate(behind text)
returns text
language sql stable
as $$
  select min(n.gate)
  from (
    (select j.gate from pgclaim.job j where j.gate > behind and j.gate is not null and j.state = 'ready' order by j.gate, j.place limit 1)
    union all
    (
      select j.gate from pgclaim.job j
      where j.gate > behind and j.gate is not null and (j.state = 'scheduled' or (j.state = 'dead' and j.when_dead = 'halt'))
      order by j.gate, j.place
      limit 1
    )
    union all
    (
      select j.gate from pgclaim.job j
      where j.gate > behind and j.state = 'blocked' and j.ordering_key is not null
      order by j.gate, j.place
      limit 1
    )
    union all
    (
      select j.gate from pgclaim.job j
      where j.gate > behind and j.state = 'blocked' and j.ordering_key is null
      order by j.gate, j.priority, j.rank, j.id
      limit 1
    )
  ) n
$$;
