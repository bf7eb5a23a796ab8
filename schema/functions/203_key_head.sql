-- The job of an ordering key that comes first: its lowest place among those that count. A dead letter counts that halts the key.
-- behind: only among those behind this place. Index: job_gate_ready, job_gate_held, job_gate_placed.
create or replace function pgclaim.key_head(gate_name text, behind bigint default 0)
returns table (id bigint, place bigint, state text)
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
  return query
  select h.id, h.place, h.state
  from (
    (
      select j.id, j.place, j.state from pgclaim.job j
      where j.gate = gate_name and j.state = 'ready' and j.place > behind
      order by j.gate, j.place
      limit 1
    )
    union all
    (
      select j.id, j.place, j.state from pgclaim.job j
      where j.gate = gate_name and (j.state = 'scheduled' or (j.state = 'dead' and j.when_dead = 'halt')) and j.place > behind
      order by j.gate, j.place
      limit 1
    )
    union all
    (
      select j.id, j.place, j.state from pgclaim.job j
      where j.gate = gate_name and j.state = 'blocked' and j.ordering_key is not null and j.place > behind
      order by j.gate, j.place
      limit 1
    )
  ) h
  order by h.place
  limit 1;
end $$;
