-- What the reads have in common. Nothing here writes, and nothing waits.

-- Every advisory lock of this database with one 64-bit key that somebody holds. The lock table is the server's and is read
-- under its latches: ask once in a call and keep the answer, never row by row.
create or replace function pgclaim.advisory_locks()
returns table (key bigint, pid integer, shared boolean)
language sql stable
as $$
  select (l.classid::bigint << 32) | l.objid::bigint, l.pid, l.mode = 'ShareLock'
  from pg_catalog.pg_locks l
  where l.locktype = 'advisory'
    and l.granted
    and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
    and l.objsubid = 1
$$;

-- The open attempts, at most 10,000, each with the backend that holds its job's lock: that job runs. Null: nobody holds it, so
-- the transaction is over and the reaper closes the attempt; or it has ended this very moment, because the lock table is newer
-- than the snapshot.
-- A follower of an ordering key is on record as started while its row is still blocked: it counts as running too.
-- Index: attempt_open, job_pkey.
create or replace function pgclaim.open_attempts()
returns table (
  job_id bigint, n integer, tick uuid, started_at timestamptz, kind text, queue text, pid integer
)
language sql stable
set enable_seqscan = off
set enable_nestloop = on
as $$
  with held as materialized (
    select l.key, min(l.pid) as pid from pgclaim.advisory_locks() l where not l.shared group by l.key
  ), opened as materialized (
    select o.job_id, o.n, o.tick, o.started_at, j.kind, j.queue, j.state, pgclaim.job_key(k.namespace, j.id) as key
    from (
      select distinct on (a.job_id) a.job_id, a.n, a.tick, a.started_at
      from (select * from pgclaim.attempt i where i.outcome is null limit 10000) a
      order by a.job_id, a.n desc
    ) o
    join pgclaim.job j on j.id = o.job_id
    join pgclaim.kind k on k.name = j.kind
  )
  -- Both sides in one sorted pass. As a join it would be planned for the one lock that the planner expects, and compare each
  -- attempt with each lock.
  select w.job_id, w.n, w.tick, w.started_at, w.kind, w.queue, case when w.state in ('ready', 'blocked') then w.pid end
  from (
    select u.*, max(u.holder) over (partition by u.key) as pid
    from (
      select o.*, null::integer as holder from opened o
      union all
      select null, null, null, null, null, null, null, h.key, h.pid from held h
    ) u
  ) w
  where w.job_id is not null
$$;

-- A place in a list as opaque text: the list's name and the sort key, instants with their microseconds.
create or replace function pgclaim.write_cursor(place jsonb)
returns text
language sql immutable parallel safe
as $$
  select rtrim(translate(encode(convert_to(place::text, 'UTF8'), 'base64'), E'+/\n', '-_'), '=')
$$;

-- The place that a cursor of this list names; null for no cursor.
-- Raises: PC003 for one that was never given out, or belongs to another list.
create or replace function pgclaim.read_cursor(written text, list text, parts integer)
returns jsonb
language plpgsql immutable
as $$
declare
  place jsonb;
begin
  if written is null then
    return null;
  end if;
  begin
    place := convert_from(
      decode(rpad(translate(written, '-_', '+/'), (length(written) + 3) / 4 * 4, '='), 'base64'), 'UTF8'
    )::jsonb;
  exception when data_exception or program_limit_exceeded or character_not_in_repertoire then
    place := null;
  end;
  if place is null or jsonb_typeof(place) <> 'array' or place ->> 0 is distinct from list
    or jsonb_array_length(place) <> parts or place @> '[null]' then
    raise exception 'The cursor does not belong to this list.'
      using errcode = 'PC003', hint = 'Take it from "next" of the page before, with the same filter, or begin without one.';
  end if;
  return place;
end $$;

-- The number of rows a caller wants, 50 if it does not say. Raises: PC003 for anything but an integer in 1 .. most.
create or replace function pgclaim.read_limit(request jsonb, field text, usual integer, most integer)
returns integer
language plpgsql immutable
as $$
declare
  v jsonb := request -> field;
begin
  if v is null or jsonb_typeof(v) = 'null' then
    return usual;
  elsif jsonb_typeof(v) = 'number' and v::numeric = trunc(v::numeric) and v::numeric between 1 and most then
    return v::numeric::integer;
  end if;
  raise exception 'The field "%" is no integer from 1 to %.', field, most using errcode = 'PC003';
end $$;

-- The job id of a request; null where no such id can exist. Ids are text in JSON. Raises: PC003 for what is no id.
create or replace function pgclaim.read_id(request jsonb)
returns bigint
language plpgsql immutable
as $$
declare
  v text := request ->> 'id';
begin
  if v is null or v !~ '^[0-9]{1,30}$' then
    raise exception 'The field "id" is no job id.' using errcode = 'PC003', hint = 'A job id is a number from 1 up, as text.';
  end if;
  return case when v::numeric <= 9223372036854775807 then v::bigint end;
end $$;

-- Milliseconds from one instant to another, as an integer.
create or replace function pgclaim.ms_between(since timestamptz, until timestamptz)
returns bigint
language sql immutable parallel safe
as $$ select round(extract(epoch from until - since) * 1000)::bigint $$;
