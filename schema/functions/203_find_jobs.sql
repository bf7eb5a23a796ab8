-- Which jobs a filter means, in the order of its list, a page of them. The one place that knows the lists.
-- Arguments: the filter (JobFilter of src/inspection.ts); "cursor", "look" in it too; how many are wanted.
-- Answers:   their ids in order; whether they are in history; the cursor behind them, null at the end; how many rows were
--            looked at, where what the filter asks has no index and the search stopped before the page was full.
-- Lists:     ready by claim order of its queue, the queues merged (priority, rank, id); running by id; scheduled and retrying
--            by due time; blocked by gate, then place or rank; dead the newest first; done, discarded and cancelled by id, the
--            highest first; no state: by id, the highest first, or the dead where only dead letters can match (reason,
--            fingerprint, since). With an ordering key and a state that is unfinished or none: by place in the key. With a
--            unique key: who has it now, as the index of unique keys says; a key that has expired finds nothing.
-- "look":    rows to look at where a filter has no index, 1 to 10,000; 10,000.
-- Raises:    PC003 for a filter or a cursor that cannot be read.
-- Index:     job_ready and job_suspect, one range a queue; attempt_open; job_scheduled, job_retrying; job_gate_ranked,
--            job_gate_placed; job_dead, job_missed; history_pkey; job_pkey; of a key job_gate_ready, job_gate_held,
--            job_gate_placed, job_halting, job_passed. The statement is put together for each call, so that it is planned for
--            its values, and read row by row: with the order of an index no row behind the page is touched. A sort, or a scan
--            of the table, would cost the backlog; hence the planner settings.
create or replace function pgclaim.find_jobs(
  filter jsonb, wanted integer, out ids bigint[], out finished boolean, out next text, out searched integer
)
language plpgsql stable
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_incremental_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set timezone = 'UTC'
as $$
declare
  w record;
  part integer;
  looked integer := 0;
  last_id bigint;
  last_part integer;
  full_page boolean := false;
  cut boolean := false;
  n integer := 0;
  r record;
begin
  select * into w from pgclaim.plan_walk(filter);
  finished := w.finished;
  ids := '{}';
  for part in 1 .. cardinality(w.sources) loop
    for r in
      execute format(
        'select j.id, (%s) as fits from (%s limit %s) j',
        coalesce(w.test, 'true'),
        w.sources[part],
        -- One more than asked says whether there is a next page.
        case when w.test is null then wanted else w.look end + 1
      )
      using w.running, w.candidates, filter -> 'payload'
    loop
      if looked >= w.look and w.test is not null then
        cut := true;
        exit;
      end if;
      looked := looked + 1;
      if r.fits then
        if n = wanted then
          full_page := true;
          exit;
        end if;
        n := n + 1;
        ids[n] := r.id;
      end if;
      last_id := r.id;
      last_part := part;
    end loop;
    exit when full_page or cut;
  end loop;
  if cut then
    searched := looked;
  end if;
  if full_page or cut then
    execute format(
      'select pgclaim.write_cursor(jsonb_build_array(%L::text, %s, %s)) from %s j where j.%s = $1',
      w.list, w.parts[last_part], w.places[last_part],
      case when finished then 'pgclaim.history' else 'pgclaim.job' end,
      case when finished then 'job_id' else 'id' end
    ) into next using last_id;
  end if;
end $$;
