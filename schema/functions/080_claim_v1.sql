-- Tries to hold the lock of each candidate, without waiting, up to a batch.
-- Argument: {"queues": [text], "kinds": [text] (handled here and fitting the time left), "unfit": [text] (handled here,
--           not fitting), "revision": integer, "batch": integer, "quarantined": boolean,
--           "maxCandidates": integer, "maxSkips": integer, "maxBytes": integer (of payloads; the first job always fits)}
-- Rows:     claims (skip null; attempt is the number to fence), skips (skip says why), at most maxSkips of them, then one
--           row for each reason (job_id null) with its count.
-- Locks:    the job locks of exactly the claims, until the transaction ends. Writes nothing, takes no xid, keeps no
--           snapshot.
-- Index:    job_ready, or job_suspect when quarantined. Raises: PC001; 53200 where the server's lock table is full.
--
-- The naive form is
--   select id from pgclaim.job where state = 'ready' and pg_try_advisory_xact_lock(id) order by rank limit 25;
-- It locks every row the scan visits, and it hands out jobs that were finished between its snapshot and the lock:
-- advisory locks are outside MVCC. So: read a candidate, try its lock, re-read it in a NEW statement. The sub-block's
-- rollback gives the lock back at once when the row no longer qualifies; the reaper may need it.
create or replace function pgclaim.claim_v1(request jsonb)
returns table (job_id bigint, attempt integer, kind text, skip text, skipped integer)
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
declare
  queues text[] := array(select jsonb_array_elements_text(request -> 'queues'));
  fits text[] := array(select jsonb_array_elements_text(request -> 'kinds'));
  unfit text[] := array(select jsonb_array_elements_text(request -> 'unfit'));
  my_revision integer := (request ->> 'revision')::integer;
  quarantined boolean := (request ->> 'quarantined')::boolean;
  batch integer := case when quarantined then 1 else (request ->> 'batch')::integer end;
  max_candidates integer := (request ->> 'maxCandidates')::integer;
  max_skips integer := (request ->> 'maxSkips')::integer;
  known_kinds text[];
  spaces integer[];
  alones boolean[];
  place integer;
  tried integer := 0;
  claimed integer := 0;
  reported integer := 0;
  held bigint[] := '{}';
  key bigint;
  queue_name text;
  c record;
  candidates refcursor;
  enough boolean := false;
  max_bytes bigint := (request ->> 'maxBytes')::bigint;
  bytes bigint := 0;
  size bigint;
  is_due boolean;
  is_open boolean;
  reasons constant text[] := array['busy', 'stale', 'open-attempt', 'unknown-kind', 'newer-revision', 'unfit', 'alone'];
  counts integer[] := array_fill(0, array[7]);
begin
  perform pgclaim.require_read_committed();
  select array_agg(k.name), array_agg(k.namespace), array_agg(k.alone) into known_kinds, spaces, alones from pgclaim.kind k;
  foreach queue_name in array queues loop
    if quarantined then
      open candidates for
        select j.id, j.kind, j.revision from pgclaim.job j
        where j.queue = queue_name and j.state = 'ready' and j.suspect
        order by j.queue, j.priority, j.rank, j.id;
    else
      open candidates for
        select j.id, j.kind, j.revision from pgclaim.job j
        where j.queue = queue_name and j.state = 'ready' and not j.suspect
        order by j.queue, j.priority, j.rank, j.id;
    end if;
    loop
      fetch candidates into c;
      exit when not found;
      enough := tried >= max_candidates;
      exit when enough;
      tried := tried + 1;
      place := array_position(known_kinds, c.kind);
      if c.kind = any (fits) then
        skip := case
          when place is null then 'unknown-kind' -- no namespace, so no key: a null key would count as locked
          when c.revision > my_revision then 'newer-revision'
          when alones[place] and claimed > 0 then 'alone'
        end;
      else
        skip := case when c.kind = any (unfit) then 'unfit' else 'unknown-kind' end;
      end if;
      if skip is null then
        key := pgclaim.job_key(spaces[place], c.id);
        begin
          -- Locks are re-entrant: a second job with a key this tick holds would seem free.
          if key = any (held) or not pg_try_advisory_xact_lock(key) then
            skip := 'busy';
          else
            select
              j.state = 'ready' and j.suspect = quarantined,
              exists (select from pgclaim.attempt o where o.job_id = j.id and o.outcome is null),
              greatest(j.attempt, coalesce((select max(a.n) from pgclaim.attempt a where a.job_id = j.id and a.n > j.attempt), 0)) + 1,
              -- A small one is not worth looking at; a large one is compressed, and travels as text.
              case when pg_column_size(j.payload) <= 2000 then 2000 else octet_length(j.payload::text) end
            into is_due, is_open, attempt, size
            from pgclaim.job j
            where j.id = c.id;
            skip := case
              when is_due is distinct from true then 'stale'
              when is_open then 'open-attempt'
            end;
            enough := skip is null and claimed > 0 and bytes + size > max_bytes;
            if skip is not null or enough then
              raise exception sqlstate 'PC0SK';
            end if;
          end if;
        exception when sqlstate 'PC0SK' then
          null;
        end;
      end if;
      exit when enough;
      job_id := c.id;
      kind := c.kind;
      if skip is null then
        bytes := bytes + size;
        held := held || key;
        claimed := claimed + 1;
        return next;
        enough := claimed >= batch or alones[place];
        exit when enough;
      else
        place := array_position(reasons, skip);
        counts[place] := counts[place] + 1;
        if reported < max_skips then
          reported := reported + 1;
          attempt := null;
          return next;
        end if;
      end if;
    end loop;
    -- However the loop ended: an open cursor keeps its snapshot, and vacuum waiting, for as long as the handlers work.
    close candidates;
    exit when enough;
  end loop;
  job_id := null;
  attempt := null;
  kind := null;
  for place in 1 .. cardinality(reasons) loop
    if counts[place] > 0 then
      skip := reasons[place];
      skipped := counts[place];
      return next;
    end if;
  end loop;
end $$;
