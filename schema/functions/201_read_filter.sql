-- A filter of jobs, read once: JobFilter of src/inspection.ts, and what follows from it.
-- Raises: PC003 for a state or a reason that is none, a payload that is no object, an instant that cannot be read.
create or replace function pgclaim.read_filter(
  filter jsonb, out state text, out queue text, out kind text, out ordering_key text, out unique_key text,
  out payload jsonb, out reason text, out fingerprint text, out since timestamptz
)
language plpgsql stable
as $$
begin
  state := filter ->> 'state';
  queue := filter ->> 'queue';
  kind := filter ->> 'kind';
  ordering_key := filter ->> 'orderingKey';
  unique_key := filter ->> 'uniqueKey';
  payload := nullif(filter -> 'payload', 'null');
  reason := filter ->> 'reason';
  fingerprint := filter ->> 'fingerprint';
  begin
    since := (filter ->> 'since')::timestamptz;
  exception when data_exception then
    raise exception 'The field "since" is no instant.' using errcode = 'PC003', hint = 'Expected ISO 8601: 2026-11-01T12:00:00Z.';
  end;
  if state not in ('ready', 'running', 'scheduled', 'retrying', 'blocked', 'dead', 'done', 'discarded', 'cancelled') then
    raise exception 'The field "state" names no state.'
      using errcode = 'PC003',
        hint = 'Expected ready, running, scheduled, retrying, blocked, dead, done, discarded or cancelled.';
  elsif reason not in ('attempts', 'handler', 'crashed', 'missed') then
    raise exception 'The field "reason" names no reason.'
      using errcode = 'PC003', hint = 'Expected attempts, handler, crashed or missed.';
  elsif jsonb_typeof(payload) <> 'object' then
    raise exception 'The field "payload" is no object.' using errcode = 'PC003', hint = 'Expected {"orderId": "42"}.';
  end if;
  -- Nothing but a dead letter can match.
  if state is null and (reason is not null or fingerprint is not null or since is not null) then
    state := 'dead';
  end if;
end $$;

-- The queues that have ready jobs, at most 1,000 of each: found in the index from one queue to the next, so that one whose kinds
-- have moved elsewhere is not forgotten. Index: job_ready, job_suspect.
create or replace function pgclaim.ready_queues()
returns table (queue text, suspect boolean)
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
begin
  return query
  with recursive q as (
    (
      select j.queue from pgclaim.job j where j.state = 'ready' and not j.suspect
      order by j.queue, j.priority, j.rank, j.id limit 1
    )
    union all
    select n.queue
    from q
    cross join lateral (
      select j.queue from pgclaim.job j where j.state = 'ready' and not j.suspect and j.queue > q.queue
      order by j.queue, j.priority, j.rank, j.id limit 1
    ) n
  )
  select q.queue, false from q limit 1000;
  return query
  with recursive q as (
    (
      select j.queue from pgclaim.job j where j.state = 'ready' and j.suspect
      order by j.queue, j.priority, j.rank, j.id limit 1
    )
    union all
    select n.queue
    from q
    cross join lateral (
      select j.queue from pgclaim.job j where j.state = 'ready' and j.suspect and j.queue > q.queue
      order by j.queue, j.priority, j.rank, j.id limit 1
    ) n
  )
  select q.queue, true from q limit 1000;
end $$;

-- A source of plan_walk: ready jobs that nobody runs, of one queue or, null, of all, in claim order behind a place. A branch for
-- each range of the index, in order itself, so that they are merged and not sorted.
create or replace function pgclaim.walk_ready(one_queue text, priority smallint, rank timestamptz, id bigint)
returns text[]
language sql stable
as $$
  select case when count(*) = 0 then '{}' else array[
    'select j.* from ('
      || string_agg(
        format(
          '(select j.* from pgclaim.job j where j.queue = %L and j.state = ''ready'' and %s and not j.id = any ($1)%s'
            || ' order by j.priority, j.rank, j.id)',
          b.queue,
          case when b.suspect then 'j.suspect' else 'not j.suspect' end,
          case when id is null then '' else format(' and (j.priority, j.rank, j.id) > (%s, %L, %s)', priority, rank, id) end
        ),
        ' union all ' order by b.queue, b.suspect
      )
      || ') j order by j.priority, j.rank, j.id'
  ] end
  from (
    select q.queue, q.suspect from pgclaim.ready_queues() q where one_queue is null
    union all
    select one_queue, s.suspect from (values (false), (true)) s(suspect) where one_queue is not null
  ) b
$$;

-- A source of plan_walk: the jobs of an ordering key by place, behind a place, of one unfinished state or, null, of all.
create or replace function pgclaim.walk_key(gate text, state text, here text, place bigint)
returns text
language sql immutable
as $$
  select 'select j.* from ('
    || string_agg(
      format(
        '(select j.* from pgclaim.job j where j.gate = %L and %s and %s%s order by j.place)',
        gate, b.range, here, coalesce(' and j.place > ' || place, '')
      ),
      ' union all ' order by b.o
    )
    || ') j order by j.place'
  -- As the indexes' conditions have them, word for word.
  from (values
    (1, '{ready}', 'j.state = ''ready'''),
    (2, '{scheduled,retrying}',
      '(j.state = ''scheduled'' or (j.state = ''dead'' and j.when_dead = ''halt'')) and j.state = ''scheduled'''),
    (3, '{blocked}', 'j.state = ''blocked'' and j.ordering_key is not null'),
    (4, '{dead}', 'j.state = ''dead'' and j.when_dead = ''halt'' and j.ordering_key is not null'),
    (5, '{dead}', 'j.state = ''dead'' and j.when_dead = ''skip'' and j.ordering_key is not null')
  ) b(o, states, range)
  where state is null or state = any (b.states::text[])
$$;
