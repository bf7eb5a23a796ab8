-- Tries to hold every lock of each candidate, without waiting, up to a batch.
-- Argument: {"queues": [text], "kinds": [text] (handled here and fitting the time left), "unfit": [text] (handled here,
--           not fitting), "revision": integer, "batch": integer, "quarantined": boolean, "tickSlots": integer | null,
--           "maxCandidates": integer, "maxSkips": integer}
-- Rows:     claims (skip null): attempt is the number to fence, after the claims of this tick that must have ended before
--           this one starts, behind the one of those that must have ended done, missed whether its deadline has passed
--           (do not start it), at_risk whether its slack is below its timeout;
--           skips (skip says why, lock_name which lock), at most maxSkips of them;
--           then one row for each reason (job_id null) with its count.
-- Locks:    those of exactly the claims, until the transaction ends: ordering key, then names in sorted order (limit slots,
--           exclusive and shared), then the job. All or none. With tickSlots one slot lock beside them. Writes nothing,
--           takes no xid. Index: job_ready, or job_suspect when quarantined; job_gate_* for heads and followers.
-- Raises:   PC001; 53200 where the server's lock table is full.
--
-- The naive form is
--   select id from pgclaim.job where state = 'ready' and pg_try_advisory_xact_lock(id) order by rank limit 25;
-- It locks every row the scan visits, and it hands out jobs that were finished between its snapshot and the lock:
-- advisory locks are outside MVCC. So: read a candidate, try its locks, re-read it in a NEW statement. The sub-block's
-- rollback gives the locks back at once when one is busy or the row no longer qualifies.
create or replace function pgclaim.claim_v1(request jsonb)
returns table (
  job_id bigint, attempt integer, kind text, skip text, skipped integer, lock_name text, after bigint[], behind bigint,
  missed boolean, at_risk boolean
)
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
declare
  fits text[] := array(select jsonb_array_elements_text(request -> 'kinds'));
  unfit text[] := array(select jsonb_array_elements_text(request -> 'unfit'));
  queues text[] := array(select jsonb_array_elements_text(request -> 'queues'));
  my_revision integer := (request ->> 'revision')::integer;
  quarantined boolean := (request ->> 'quarantined')::boolean;
  batch integer := case when quarantined then 1 else (request ->> 'batch')::integer end;
  max_candidates integer := (request ->> 'maxCandidates')::integer;
  max_skips integer := (request ->> 'maxSkips')::integer;
  slots integer := (request ->> 'tickSlots')::integer;
  seed bigint;
  known_kinds text[];
  spaces integer[];
  alones boolean[];
  timeouts bigint[];
  at_kind integer;
  at_reason integer;
  tried integer := 0;
  claimed integer := 0;
  reported integer := 0;
  -- What this tick holds: locks are re-entrant, so a second job with a name of ours would seem to get it.
  held_keys bigint[] := '{}';
  held_shared boolean[] := '{}';
  held_by bigint[] := '{}';
  took pgclaim.taken;
  busy text[] := '{}';  -- names found taken in this call: not tried again, no subtransaction for whoever needs them
  queue_name text;
  c record;
  f record;
  candidates refcursor;
  enough boolean := false;
  previous bigint;
  reasons constant text[] := array[
    'busy', 'stale', 'open-attempt', 'unknown-kind', 'newer-revision', 'unfit', 'alone', 'limit-full', 'behind', 'reserved',
    'paused', 'tick-slots'
  ];
  counts integer[] := array_fill(0, array[12]);
begin
  perform pgclaim.require_read_committed();
  select n.seed into seed from pgclaim.installation n;
  if slots is not null then
    took := pgclaim.take_slot('tick', '', slots, '{}', seed);
    if took.reason is not null then
      skip := 'tick-slots';
      skipped := 1;
      return next;
      return;
    end if;
  end if;
  select array_agg(k.name), array_agg(k.namespace), array_agg(k.alone), array_agg(k.timeout_ms)
  into known_kinds, spaces, alones, timeouts
  from pgclaim.kind k;
  foreach queue_name in array queues loop
    continue when exists (select from pgclaim.queue q where q.name = queue_name and q.paused_at is not null);
    if quarantined then
      open candidates for
        select j.* from pgclaim.job j
        where j.queue = queue_name and j.state = 'ready' and j.suspect
        order by j.queue, j.priority, j.rank, j.id;
    else
      open candidates for
        select j.* from pgclaim.job j
        where j.queue = queue_name and j.state = 'ready' and not j.suspect
        order by j.queue, j.priority, j.rank, j.id;
    end if;
    loop
      fetch candidates into c;
      exit when not found;
      enough := tried >= max_candidates;
      exit when enough;
      tried := tried + 1;
      previous := null;
      f := c;
      -- The candidate, and when it is the head of an ordering key, those behind it, until one does not follow.
      <<line>>
      loop
        job_id := f.id;
        kind := f.kind;
        lock_name := null;
        after := null;
        behind := null;
        at_kind := array_position(known_kinds, f.kind);
        skip := case
          when not f.kind = any (fits) then case when f.kind = any (unfit) then 'unfit' else 'unknown-kind' end
          when at_kind is null then 'unknown-kind' -- no namespace, so no key: a null key would count as locked
          when f.revision > my_revision then 'newer-revision'
          when alones[at_kind] and claimed > 0 then 'alone'
        end;
        if skip is null and cardinality(busy) > 0 then
          select b into lock_name
          from unnest(f.locks || f.shared_locks || f.limit_names) b
          where b = any (busy)
          limit 1;
          if found then
            skip := case when lock_name = any (f.limit_names) then 'limit-full' else 'busy' end;
          end if;
        end if;
        if skip is null then
          begin
            took := pgclaim.take_locks(
              f.id, f.kind, f.ordering_key, f.locks, f.shared_locks, f.limit_names, f.limit_maxes, previous is not null,
              held_keys, held_shared, held_by, spaces[at_kind], seed
            );
            skip := took.reason;
            lock_name := took.name;
            if skip is null then
              select
                case
                  when not (
                    j.suspect = quarantined
                    and j.state = case when previous is null then 'ready' else 'blocked' end
                    and j.run_at <= case when previous is null then 'infinity' else clock_timestamp() end
                  ) then 'stale'
                  when exists (select from pgclaim.attempt o where o.job_id = j.id and o.outcome is null) then 'open-attempt'
                  when previous is null and j.ordering_key is not null and pgclaim.has_before(j.gate, j.place) then 'behind'
                end,
                greatest(
                  j.attempt,
                  coalesce((select max(a.n) from pgclaim.attempt a where a.job_id = j.id and a.n > j.attempt), 0)
                ) + 1,
                j.deadline_at < clock_timestamp() and j.when_missed = 'dead',
                j.deadline_at < clock_timestamp() + timeouts[at_kind] * interval '1 millisecond'
              into skip, attempt, missed, at_risk
              from pgclaim.job j
              where j.id = f.id;
              if not found then
                skip := 'stale';
              end if;
            end if;
            if skip is not null then
              raise exception sqlstate 'PC0SK';
            end if;
          exception when sqlstate 'PC0SK' then
            null;
          end;
          if skip in ('busy', 'limit-full') and lock_name is not null and cardinality(busy) < 100 then
            busy := busy || lock_name;
          end if;
        end if;
        if skip is null then
          held_keys := held_keys || took.keys;
          held_shared := held_shared || took.shared;
          held_by := held_by || array_fill(f.id, array[cardinality(took.keys)]);
          after := took.after;
          behind := previous;
          claimed := claimed + 1;
          missed := coalesce(missed, false);
          at_risk := coalesce(at_risk, false);
          return next;
          enough := claimed >= batch or alones[at_kind];
          exit line when enough;
        else
          at_reason := array_position(reasons, skip);
          counts[at_reason] := counts[at_reason] + 1;
          if reported < max_skips then
            reported := reported + 1;
            attempt := null;
            missed := null;
            at_risk := null;
            return next;
          end if;
          exit line;
        end if;
        exit line when f.ordering_key is null or quarantined;
        -- The next one behind, in place order; the head's own successor is the first blocked row of the gate.
        previous := f.id;
        select j.* into f from pgclaim.job j
        where j.gate = c.gate and j.state = 'blocked' and j.ordering_key is not null and j.place > f.place
        order by j.gate, j.place
        limit 1;
        exit line when not found or f.run_at > clock_timestamp() or f.suspect;
      end loop line;
      exit when enough;
    end loop;
    -- However the loop ended: an open cursor keeps its snapshot, and vacuum waiting, for as long as the handlers work.
    close candidates;
    exit when enough;
  end loop;
  job_id := null;
  attempt := null;
  kind := null;
  lock_name := null;
  after := null;
  behind := null;
  missed := null;
  at_risk := null;
  for at_reason in 1 .. cardinality(reasons) loop
    if counts[at_reason] > 0 then
      skip := reasons[at_reason];
      skipped := counts[at_reason];
      return next;
    end if;
  end loop;
end $$;
