-- A page of jobs.
-- Argument: {"state"?, "queue"?, "kind"?, "orderingKey"?, "uniqueKey"?: text, "payload"?: object, "reason"?, "fingerprint"?: text,
--           "since"?: timestamptz, "cursor"?: text, "limit"?: 1 .. 200 (50), "look"?: 1 .. 10,000 (10,000)}
-- Answers:  {"items": [JobRow, ...], "next": text | null, "searched": integer | null, "now": timestamptz}; where searched is given,
--           next goes on behind what was looked at.
-- Locks:    none. Reads only. Raises: PC003. Index: see find_jobs and job_rows. At 1,000,000 jobs: docs/read_plans.md.
create or replace function pgclaim.jobs_v1(request jsonb)
returns jsonb
language plpgsql stable
set timezone = 'UTC'
as $$
declare
  f record;
  items jsonb;
begin
  select * into f from pgclaim.find_jobs(request, pgclaim.read_limit(request, 'limit', 50, 200));
  if f.finished then
    select jsonb_agg(r.item order by r.o) into items from pgclaim.history_rows(f.ids) r;
  else
    select jsonb_agg(r.item order by r.o) into items from pgclaim.job_rows(f.ids) r;
  end if;
  return jsonb_build_object(
    'items', coalesce(items, '[]'), 'next', f.next, 'searched', f.searched, 'now', clock_timestamp()
  );
end $$;

-- How many jobs a filter means, counted to 10,000, and the id that a change of many is frozen at: the highest among those, or, where it
-- stopped, of all jobs, because those it did not come to may have higher ones.
-- Argument: as jobs_v1's, without its limit; "cap"?: 1 .. 10,000 (10,000).
-- Answers:  {"n": integer, "capped": boolean, "upTo": id | null, "searched": integer | null}
-- Locks:    none. Reads only. Raises: PC003. Index: see find_jobs.
create or replace function pgclaim.count_jobs_v1(request jsonb)
returns jsonb
language plpgsql stable
set jit = off
as $$
declare
  f record;
begin
  select * into f from pgclaim.find_jobs(request - 'cursor', pgclaim.read_limit(request, 'cap', 10000, 10000));
  return jsonb_build_object(
    'n', cardinality(f.ids),
    'capped', f.next is not null,
    'upTo', (
      select max(m.id)::text
      from (
        select max(u.id) as id from unnest(f.ids) u(id)
        union all
        (select j.id from pgclaim.job j where f.next is not null and not f.finished order by j.id desc limit 1)
      ) m
    ),
    'searched', f.searched
  );
end $$;
