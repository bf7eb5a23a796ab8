-- Tries to hold every lock of each candidate, without waiting, up to a batch.
-- Argument: {"queues": [text], "kinds": [text] (handled here and fitting the time left), "unfit": [text] (handled here,
--           not fitting), "revision": integer, "batch": integer, "quarantined": boolean, "tickSlots": integer | null,
--           "maxCandidates": integer, "maxSkips": integer, "maxBytes": integer (of payloads; the first job always fits),
--           "reserveMs": integer (a job that waits longer for its names may
--           reserve them, see reserve_v1)}
-- Rows:     claims (skip null): attempt is the number to fence, after the claims of this tick that must have ended before
--           this one starts, behind the one of those that must have ended done, missed whether its deadline has passed
--           (do not start it), at_risk whether its slack is below its timeout;
--           skips (skip says why, lock_name which lock, starved that it should reserve its names now), at most maxSkips;
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
  missed boolean, at_risk boolean, starved boolean
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
  reserve_after constant interval := (request ->> 'reserveMs')::bigint * interval '1 millisecond';
  clock constant timestamptz := clock_timestamp();
  seed bigint;
  known_kinds text[];
  spaces integer[];
  alones boolean[];
  timeouts bigint[];
  revisions integer[];
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
  -- Names found taken in this call, with their class: not tried again, no subtransaction for whoever needs them. Found by an
  -- exclusive waiter it is taken for sharers behind it too: they do not overtake it.
  busy text[] := '{}';
  shared_by_others text[] := '{}';
  -- Names that somebody else has reserved, as they were when this claim began.
  reserved record;
  class text;
  queue_name text;
  c record;
  f record;
  candidates refcursor;
  enough boolean := false;
  max_bytes bigint := (request ->> 'maxBytes')::bigint;
  bytes bigint := 0;
  size bigint;
  previous bigint;
  previous_place bigint;
  paused text[] := array(select q.name from pgclaim.queue q where q.paused_at is not null);
  reasons constant text[] := array[
    'busy', 'stale', 'open-attempt', 'unknown-kind', 'newer-revision', 'unfit', 'alone', 'limit-full', 'behind', 'reserved',
    'paused', 'tick-slots', 'cancelled'
  ];
  counts integer[] := array_fill(0, array[13]);
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
  select
    array_agg(r.name) filter (where r.in_force) as names,
    array_agg(r.shared) filter (where r.in_force) as shared,
    array_agg(r.job_id) filter (where r.in_force) as jobs,
    -- Where about as many wait as may reserve, only who waits longer than one of them asks.
    case when count(distinct r.job_id) >= 90 then max(r.since) else 'infinity' end as before
  into reserved
  from pgclaim.reservations(clock - 10 * reserve_after) r;
  select array_agg(k.name), array_agg(k.namespace), array_agg(k.alone), array_agg(k.timeout_ms), array_agg(k.revision)
  into known_kinds, spaces, alones, timeouts, revisions
  from pgclaim.kind k;
  foreach queue_name in array queues loop
    continue when queue_name = any (paused);
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
        class := null;
        starved := null;
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
          select n.class, n.name into class, lock_name
          from (
            select 'lock' as class, unnest(f.locks || f.shared_locks) as name
            union all
            select 'limit', unnest(f.limit_names)
          ) n
          where n.class || ':' || n.name = any (busy)
          limit 1;
          if found then
            skip := case class when 'limit' then 'limit-full' else 'busy' end;
          end if;
        end if;
        if skip is null and reserved.names is not null then
          select 'lock', r.name into class, lock_name
          from unnest(reserved.names, reserved.shared, reserved.jobs) r(name, shared, job_id)
          where r.job_id <> f.id
            and not r.job_id = any (held_by)
            and (r.name = any (f.locks) or (r.name = any (f.shared_locks) and not r.shared))
          limit 1;
          if found then
            skip := 'reserved';
          end if;
        end if;
        if skip is null then
          begin
            took := pgclaim.take_locks(
              f.id, f.kind, f.ordering_key, f.locks, f.shared_locks, f.limit_names,
              -- The payload is read only where the kind has changed since.
              case
                when f.limit_names is not null then pgclaim.current_maxes(
                  f.kind, f.queue, case when f.revision < revisions[at_kind] then f.payload end, f.limit_names, f.limit_maxes
                )
              end,
              previous is not null, held_keys, held_shared, held_by, spaces[at_kind], seed
            );
            skip := took.reason;
            class := took.class;
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
                  -- Asked for while it ran, and it did not end done: the next wake takes it out.
                  when exists (select from pgclaim.cancel_request r where r.job_id = j.id) then 'cancelled'
                  when previous is null and j.ordering_key is not null and pgclaim.has_before(j.gate, j.place) then 'behind'
                end,
                greatest(
                  j.attempt,
                  coalesce((select max(a.n) from pgclaim.attempt a where a.job_id = j.id and a.n > j.attempt), 0)
                ) + 1,
                j.deadline_at < clock_timestamp() and j.when_missed = 'dead',
                j.deadline_at < clock_timestamp() + timeouts[at_kind] * interval '1 millisecond',
                -- A small one is not worth looking at; a large one is compressed, and travels as text.
                case when pg_column_size(j.payload) <= 2000 then 2000 else octet_length(j.payload::text) end
              into skip, attempt, missed, at_risk, size
              from pgclaim.job j
              where j.id = f.id;
              if not found then
                skip := 'stale';
              end if;
              enough := skip is null and claimed > 0 and bytes + size > max_bytes;
            end if;
            if skip is not null or enough then
              raise exception sqlstate 'PC0SK';
            end if;
          exception when sqlstate 'PC0SK' then
            null;
          end;
          exit line when enough;
          if class = 'shared' then
            class := 'lock';
            shared_by_others := shared_by_others || lock_name;
          end if;
          if skip in ('busy', 'limit-full') and class in ('lock', 'limit') and cardinality(busy) < 100 then
            busy := busy || (class || ':' || lock_name);
          end if;
        end if;
        -- It waits for names that need not all be free at any time (who needs one name only finds it free between two of its
        -- holders, unless they share it), has done so for long, does not run, and nobody has said so lately.
        if skip in ('busy', 'reserved') and class = 'lock'
          and (cardinality(f.locks || f.shared_locks) > 1 or lock_name = any (shared_by_others))
          and f.run_at < least(clock - reserve_after, reserved.before) then
          starved := not exists (select from pgclaim.attempt o where o.job_id = f.id and o.outcome is null)
            and not exists (
              select from pgclaim.reservation r where r.job_id = f.id and r.renewed_at > clock - 5 * reserve_after
            );
        end if;
        if skip is null then
          held_keys := held_keys || took.keys;
          held_shared := held_shared || took.shared;
          held_by := held_by || array_fill(f.id, array[cardinality(took.keys)]);
          bytes := bytes + size;
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
        -- The next one behind, in place order, if nothing stands between: a dead letter that halts the key, above all.
        previous := f.id;
        previous_place := f.place;
        select j.* into f from pgclaim.job j
        where j.gate = c.gate and j.state = 'blocked' and j.ordering_key is not null and j.place > previous_place
        order by j.gate, j.place
        limit 1;
        exit line when not found or f.run_at > clock_timestamp() or f.suspect
          or not f.queue = any (queues) or f.queue = any (paused)
          or exists (
            select from pgclaim.job b
            where b.gate = f.gate and b.state = 'ready' and b.place > previous_place and b.place < f.place
          )
          or exists (
            select from pgclaim.job b
            where b.gate = f.gate and (b.state = 'scheduled' or (b.state = 'dead' and b.when_dead = 'halt'))
              and b.place > previous_place and b.place < f.place
          );
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
  starved := null;
  for at_reason in 1 .. cardinality(reasons) loop
    if counts[at_reason] > 0 then
      skip := reasons[at_reason];
      skipped := counts[at_reason];
      return next;
    end if;
  end loop;
end $$;
