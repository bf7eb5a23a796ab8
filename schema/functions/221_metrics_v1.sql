-- What /metrics prints: counts since ever, which only grow, of each kind and of all ticks.
-- Argument: {}. Answers: MetricsView of src/inspection.ts. Reads only. Index: rollup_pkey, tick_rollup_pkey.
create or replace function pgclaim.metrics_v1(request jsonb)
returns jsonb
language plpgsql stable
set timezone = 'UTC'
as $$
begin
  return jsonb_build_object(
    'now', clock_timestamp(),
    'kinds', coalesce((
      select jsonb_agg(jsonb_build_object(
        'kind', k.name,
        'queue', k.queue,
        'done', coalesce(r.done, 0),
        'retried', coalesce(r.retried, 0),
        'dead', coalesce(r.dead, 0),
        'snoozed', coalesce(r.snoozed, 0),
        'released', coalesce(r.released, 0),
        'cancelled', coalesce(r.cancelled, 0),
        'missed', coalesce(r.missed, 0),
        -- A kind that has done nothing yet has its buckets as well.
        'late', case
          when cardinality(r.late) > 0 then to_jsonb(r.late)
          else to_jsonb(array_fill(0, array[cardinality(pgclaim.late_bounds_ms()) + 1]))
        end,
        'lateMs', coalesce(r.late_ms, 0)
      ) order by k.name)
      from pgclaim.kind k
      left join pgclaim.rollup r on r.width = 0 and r.at = 'epoch' and r.kind = k.name
    ), '[]'),
    'ticks', coalesce(
      (
        select jsonb_build_object('committed', t.committed, 'lost', t.lost, 'claimed', t.claimed, 'skipped', t.skipped)
        from pgclaim.tick_rollup t
        where t.width = 0 and t.at = 'epoch'
      ),
      '{"committed": 0, "lost": 0, "claimed": 0, "skipped": {}}'
    )
  );
end $$;
