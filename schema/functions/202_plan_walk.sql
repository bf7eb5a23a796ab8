-- How find_jobs walks: which index ranges, in which order, from where, and what it must test row by row.
-- Answers: list, the name that its cursors carry; finished, whether the rows are history's; sources, one statement for each part of
--          the list, without its limit; parts, their numbers; places, what a cursor keeps of a row of each; test, a condition that
--          has no index, or null; look; running, the ids that run ($1 of a source); candidates, who has the unique key ($2).
--          $3 is the filter's payload.
-- Every value stands in a statement as a quoted literal or a parameter. Raises: PC003.
create or replace function pgclaim.plan_walk(
  filter jsonb, out list text, out finished boolean, out sources text[], out parts integer[], out places text[],
  out test text, out look integer, out running bigint[], out candidates bigint[]
)
language plpgsql stable
set datestyle = 'ISO'
as $$
declare
  f record;
  here text;  -- what the state says of a row
  at jsonb;
  tests text[] := '{}';
begin
  select * into f from pgclaim.read_filter(filter);
  look := pgclaim.read_limit(filter, 'look', 10000, 10000);
  finished := coalesce(f.state in ('done', 'discarded', 'cancelled'), false);
  if f.state in ('ready', 'running', 'blocked') then
    running := array(select o.job_id from pgclaim.open_attempts() o where o.pid is not null order by o.job_id);
  end if;
  list := case
    when f.unique_key is not null then 'unique'
    when f.ordering_key is not null and not finished and f.state is distinct from 'running' then 'key'
    else coalesce(f.state, 'jobs')
  end;
  here := case f.state
    when 'ready' then 'j.state = ''ready'' and not j.id = any ($1)'
    when 'blocked' then 'j.state = ''blocked'' and not j.id = any ($1)'
    when 'running' then 'j.id = any ($1)'
    when 'scheduled' then 'j.state = ''scheduled'' and j.failures = 0'
    when 'retrying' then 'j.state = ''scheduled'' and j.failures > 0'
    when 'dead' then 'j.state = ''dead'''
    else 'true'
  end;

  if f.kind is not null then
    tests := tests || format('j.kind = %L', f.kind);
  end if;
  if f.queue is not null and list <> 'ready' then
    tests := tests || format('j.queue = %L', f.queue);
  end if;
  if f.ordering_key is not null and list <> 'key' then
    tests := tests || format('j.ordering_key = %L', f.ordering_key);
  end if;
  if f.payload is not null then
    tests := tests || 'j.payload @> $3'::text;
  end if;
  if f.reason is not null and not (list = 'dead' and f.reason = 'missed') then
    tests := tests || case when finished then 'false' else format('j.dead_reason = %L', f.reason) end;
  end if;
  if f.fingerprint is not null then
    tests := tests || format('pgclaim.error_fingerprint(j.last_error) = %L', f.fingerprint);
  end if;
  if f.since is not null and list <> 'dead' then
    tests := tests || format('j.%s >= %L', case when finished then 'finished_at' else 'dead_at' end, f.since);
  end if;
  if list = 'scheduled' then
    tests := tests || 'j.failures = 0'::text;
  elsif finished then
    tests := tests || format('j.outcome = %L', f.state);
  end if;
  test := array_to_string(nullif(tests, '{}'), ' and ');

  at := pgclaim.read_cursor(filter ->> 'cursor', list, case list when 'ready' then 5 when 'blocked' then 6
    when 'scheduled' then 4 when 'retrying' then 4 when 'dead' then 4 else 3 end);
  parts := '{1}';
  case
    when list = 'unique' then
      candidates := array(
        select u.job_id from pgclaim.kind k
        join pgclaim.unique_key u on u.kind = k.name and u.key = f.unique_key
        where f.kind is null or k.name = f.kind
      );
      places := array['j.' || case when finished then 'job_id' else 'id' end || '::text'];
      sources := array[case
        when finished then 'select j.*, j.job_id as id from pgclaim.history j where j.job_id = any ($2)'
          || coalesce(' and j.job_id < ' || (at ->> 2)::bigint, '') || ' order by j.job_id desc'
        else 'select j.* from pgclaim.job j where j.id = any ($2) and ' || here
          || coalesce(' and j.id < ' || (at ->> 2)::bigint, '') || ' order by j.id desc'
      end];
    when list = 'key' then
      places := '{j.place::text}';
      sources := array[pgclaim.walk_key('order:' || f.ordering_key, f.state, here, (at ->> 2)::bigint)];
    when list = 'ready' then
      places := '{"j.priority, j.rank, j.id::text"}';
      sources := pgclaim.walk_ready(
        f.queue, (at ->> 2)::smallint, (at ->> 3)::timestamptz, (at ->> 4)::bigint
      );
    when list = 'blocked' then
      parts := case when (at ->> 1)::integer = 2 then '{2}' else '{1,2}' end;
      places := array['j.gate, j.priority, j.rank, j.id::text', 'j.gate, j.place::text, 0, 0'];
      places := places[parts[1] : 2];
      sources := array[
        'select j.* from pgclaim.job j where ' || here || ' and j.state = ''blocked'' and j.ordering_key is null'
          || case when at is null then '' else format(
            ' and (j.gate, j.priority, j.rank, j.id) > (%L, %s, %L, %s)',
            at ->> 2, (at ->> 3)::bigint, case when parts[1] = 1 then (at ->> 4)::timestamptz end, (at ->> 5)::bigint
          ) end || ' order by j.gate, j.priority, j.rank, j.id',
        'select j.* from pgclaim.job j where ' || here || ' and j.state = ''blocked'' and j.ordering_key is not null'
          || case when parts[1] = 1 then '' else format(' and (j.gate, j.place) > (%L, %s)', at ->> 2, (at ->> 3)::bigint) end
          || ' order by j.gate, j.place'
      ];
      sources := sources[parts[1] : 2];
    when list = 'running' then
      places := '{j.id::text}';
      sources := array['select j.* from pgclaim.job j where j.id = any ($1)'
        || coalesce(' and j.id > ' || (at ->> 2)::bigint, '') || ' order by j.id'];
    when list in ('scheduled', 'retrying') then
      places := '{"j.run_at, j.id::text"}';
      -- Both conditions of the retries' index as it has them.
      sources := array['select j.* from pgclaim.job j where j.state = ''scheduled'''
        || case list when 'retrying' then ' and j.failures > 0' else '' end
        || case when at is null then '' else
          format(' and (j.run_at, j.id) > (%L, %s)', (at ->> 2)::timestamptz, (at ->> 3)::bigint) end
        || ' order by j.run_at, j.id'];
    when list = 'dead' then
      places := '{"j.dead_at, j.id::text"}';
      sources := array['select j.* from pgclaim.job j where j.state = ''dead'''
        || case f.reason when 'missed' then ' and j.dead_reason = ''missed''' else '' end
        || coalesce(' and j.dead_at >= ' || quote_literal(f.since), '')
        || case when at is null then '' else
          format(' and (j.dead_at, j.id) < (%L, %s)', (at ->> 2)::timestamptz, (at ->> 3)::bigint) end
        || ' order by j.dead_at desc, j.id desc'];
    when finished then
      places := '{j.job_id::text}';
      sources := array['select j.*, j.job_id as id from pgclaim.history j'
        || coalesce(' where j.job_id < ' || (at ->> 2)::bigint, '') || ' order by j.job_id desc'];
    else
      places := '{j.id::text}';
      sources := array['select j.* from pgclaim.job j'
        || coalesce(' where j.id < ' || (at ->> 2)::bigint, '') || ' order by j.id desc'];
  end case;
exception when data_exception then
  raise exception 'The cursor does not belong to this list.' using errcode = 'PC003';
end $$;
