-- The newest 10,000 dead letters by kind, reason and what is the same of their errors.
-- Argument: {"look"?: 1 .. 10,000 (10,000)}
-- Answers:  {"groups": [DeadGroup of src/inspection.ts, ...] (the largest first, at most 500), "searched": integer (dead letters
--           looked at), "cut": boolean (there are more), "now": timestamptz}
-- Locks:    none. Reads only. Raises: PC003. Index: job_dead.
create or replace function pgclaim.dead_groups_v1(request jsonb)
returns jsonb
language plpgsql stable
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set timezone = 'UTC'
as $$
declare
  clock constant timestamptz := clock_timestamp();
  look constant integer := pgclaim.read_limit(request, 'look', 10000, 10000);
begin
  return (
    with newest as materialized (
      select j.kind, j.dead_reason, j.dead_at, j.last_error, row_number() over () as o
      from (
        select i.kind, i.dead_reason, i.dead_at, i.last_error from pgclaim.job i
        where i.state = 'dead'
        order by i.dead_at desc, i.id desc
        limit look + 1
      ) j
    ), named as materialized (
      select n.kind, n.dead_reason, n.dead_at, n.o, pgclaim.error_fingerprint(n.last_error) as fingerprint
      from newest n
      where n.o <= look
    ), groups as (
      select
        n.kind,
        n.dead_reason,
        n.fingerprint,
        min(n.o) as first,
        count(*) filter (where n.dead_at >= clock - interval '1 hour') as h1,
        count(*) filter (where n.dead_at >= clock - interval '3 hours') as h3,
        count(*) filter (where n.dead_at >= clock - interval '24 hours') as h24,
        count(*) filter (where n.dead_at >= clock - interval '3 days') as d3,
        count(*) filter (where n.dead_at >= clock - interval '7 days') as d7,
        count(*) as n
      from named n
      group by n.kind, n.dead_reason, n.fingerprint
      order by count(*) desc, n.kind, n.dead_reason, n.fingerprint
      limit 500
    )
    select jsonb_build_object(
      'groups', coalesce((
        select jsonb_agg(jsonb_build_object(
          'kind', g.kind,
          'reason', g.dead_reason,
          'fingerprint', g.fingerprint,
          'example', left(e.last_error, 200),
          'counts', jsonb_build_object('h1', g.h1, 'h3', g.h3, 'h24', g.h24, 'd3', g.d3, 'd7', g.d7, 'all', g.n)
        ) order by g.n desc, g.kind, g.dead_reason, g.fingerprint)
        from groups g
        join newest e on e.o = g.first
      ), '[]'),
      'searched', (select count(*) from named),
      'cut', exists (select from newest n where n.o > look),
      'now', clock
    )
  );
end $$;
