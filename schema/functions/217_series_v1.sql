-- Charts, from the rollups and never from history.
-- Argument: {"windowMs": 60,000 .. 604,800,000, "kind"?, "queue"?: text (of kinds as they are today)}
-- Answers:  {"from", "to": timestamptz, "stepMs": integer, "points": [{"at", "done", "failed" (attempts, retried or dead), "dead",
--           "late" (histogram), "claimed", "skipped"}, ...]}. Steps are whole minutes to 24 hours, whole hours above, at most 240 of
--           them, ending with the one that has begun. One that nobody recorded is absent. Claims and skips are ticks', of no kind: 0
--           where a kind or a queue is asked for.
-- Locks:    none. Reads only. Raises: PC003. Index: rollup_pkey, tick_rollup_pkey.
create or replace function pgclaim.series_v1(request jsonb)
returns jsonb
language plpgsql stable
set jit = off
set timezone = 'UTC'
as $$
declare
  clock constant timestamptz := clock_timestamp();
  window_ms constant bigint := pgclaim.read_limit(request, 'windowMs', 10800000, 604800000);
  unit constant smallint := case when window_ms <= 86400000 then 1 else 60 end;
  unit_ms constant bigint := unit * 60000;
  units constant bigint := greatest(1, ceil(window_ms::numeric / unit_ms))::bigint;
  step_ms constant bigint := ceil(units / 240.0)::bigint * unit_ms;
  -- On whole steps since the epoch, so that a chart that is drawn again has the same ones.
  until constant bigint := (floor(extract(epoch from clock) * 1000 / step_ms)::bigint + 1) * step_ms;
  since constant bigint := until - ceil(units * unit_ms / step_ms::numeric)::bigint * step_ms;
  first constant timestamptz := to_timestamp(since / 1000.0);
  last constant timestamptz := to_timestamp(until / 1000.0);
  wanted_kinds text[];
begin
  if request ->> 'kind' is not null or request ->> 'queue' is not null then
    wanted_kinds := array(
      select k.name from pgclaim.kind k
      where (request ->> 'kind' is null or k.name = request ->> 'kind')
        and (request ->> 'queue' is null or k.queue = request ->> 'queue')
    );
  end if;
  return jsonb_build_object(
    'from', first,
    'to', last,
    'stepMs', step_ms,
    'points', coalesce((
      select jsonb_agg(jsonb_build_object(
        'at', to_timestamp(p.step * step_ms / 1000.0),
        'done', coalesce(r.done, 0),
        'failed', coalesce(r.failed, 0),
        'dead', coalesce(r.dead, 0),
        'late', case when r.late[1] is null then '[]' else to_jsonb(r.late) end,
        'claimed', case when wanted_kinds is null then coalesce(p.claimed, 0) else 0 end,
        'skipped', case when wanted_kinds is null then coalesce(p.skipped, 0) else 0 end
      ) order by p.step)
      from (
        select coalesce(t.step, k.step) as step, t.claimed, t.skipped
        from (
          select floor(extract(epoch from o.at) * 1000 / step_ms)::bigint as step, sum(o.claimed) as claimed, sum(s.n) as skipped
          from pgclaim.tick_rollup o
          cross join lateral (select sum(e.value::bigint) as n from jsonb_each_text(o.skipped) e) s
          where o.width = unit and o.at >= first and o.at < last
          group by 1
        ) t
        full join (
          select distinct floor(extract(epoch from o.at) * 1000 / step_ms)::bigint as step
          from pgclaim.rollup o
          where o.width = unit and o.at >= first and o.at < last and (wanted_kinds is null or o.kind = any (wanted_kinds))
        ) k on k.step = t.step
      ) p
      left join (
        select
          floor(extract(epoch from o.at) * 1000 / step_ms)::bigint as step,
          sum(o.done) as done,
          sum(o.retried + o.dead) as failed,
          sum(o.dead) as dead,
          -- Bucket by bucket: a row for each bucket of each minute and kind would be ten times as dear. Floats add up fast, and
          -- exactly below 2^53.
          array[
            sum(o.late[1]::float8)::bigint, sum(o.late[2]::float8)::bigint, sum(o.late[3]::float8)::bigint,
            sum(o.late[4]::float8)::bigint, sum(o.late[5]::float8)::bigint, sum(o.late[6]::float8)::bigint,
            sum(o.late[7]::float8)::bigint, sum(o.late[8]::float8)::bigint, sum(o.late[9]::float8)::bigint,
            sum(o.late[10]::float8)::bigint, sum(o.late[11]::float8)::bigint, sum(o.late[12]::float8)::bigint,
            sum(o.late[13]::float8)::bigint, sum(o.late[14]::float8)::bigint
          ] as late
        from pgclaim.rollup o
        where o.width = unit and o.at >= first and o.at < last and (wanted_kinds is null or o.kind = any (wanted_kinds))
        group by 1
      ) r on r.step = p.step
    ), '[]')
  );
end $$;
