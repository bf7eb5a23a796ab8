-- What wakes us: StoredTrigger of src/operations.ts, by name, at most 200 of them, the last seen ones. medianMs: of the gaps between
-- its last 21 wakes, null while there are fewer than 6. minutes: the last 60, the current one last.
-- Index: trigger_pkey, trigger_minute_pkey.
create or replace function pgclaim.trigger_rows(clock timestamptz)
returns jsonb
language sql stable
set timezone = 'UTC'
as $$
  select coalesce(jsonb_agg(jsonb_build_object(
    'name', t.name,
    'type', t.type,
    'firstSeenAt', t.first_seen_at,
    'lastSeenAt', t.last_seen_at,
    'lastWorkAt', t.last_work_at,
    'medianMs', case when cardinality(t.recent) >= 6 then (
      select round(percentile_cont(0.5) within group (order by extract(epoch from g.gap) * 1000))::bigint
      from (
        select u.at - lag(u.at) over (order by u.o) as gap from unnest(t.recent) with ordinality u(at, o)
      ) g
      where g.gap is not null
    ) end,
    'minutes', (
      select jsonb_agg(jsonb_build_object('woken', coalesce(m.woken, 0), 'worked', coalesce(m.worked, 0)) order by s.at)
      from generate_series(
        date_trunc('minute', clock) - interval '59 minutes', date_trunc('minute', clock), interval '1 minute'
      ) s(at)
      left join (
        select i.at, i.woken, i.worked from pgclaim.trigger_minute i
        where i.name = t.name and i.at >= date_trunc('minute', clock) - interval '59 minutes'
      ) m on m.at = s.at
    )
  ) order by t.name), '[]')
  from (select * from pgclaim.trigger o order by o.last_seen_at desc, o.name limit 200) t
$$;

-- The triggers. Argument: {}. Answers: {"now": timestamptz, "triggers": [StoredTrigger, ...]}, see trigger_rows. Reads only.
create or replace function pgclaim.triggers_v1(request jsonb)
returns jsonb
language plpgsql stable
set timezone = 'UTC'
as $$
declare
  clock constant timestamptz := clock_timestamp();
begin
  return jsonb_build_object('now', clock, 'triggers', pgclaim.trigger_rows(clock));
end $$;
