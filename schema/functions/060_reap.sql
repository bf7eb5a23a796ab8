-- Closes attempts whose holder is gone. An attempt that is open while its job's lock is free belongs to a transaction
-- that is over: a tick sends its fence after its locks are taken, and they go only with its transaction. So a crash is
-- known without a clock.
-- Argument: how many open attempts to look at, by ascending job id from a rotating start, so that many running ones in
--           front never hide a dead one behind them.
-- Answers:  the number of crashes found.
-- Locks:    tries each job's lock, its row and the attempt's; a busy one is left for the next wake. Waits for nobody.
-- Index:    attempt_open.
create or replace function pgclaim.reap(slice integer)
returns integer
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  first_id bigint;
  last_id bigint;
  start_id bigint;
  crashed integer := 0;
  a record;
  j record;
  k record;
  charges integer;
  wait_ms bigint;
begin
  select min(o.job_id), max(o.job_id) into first_id, last_id from pgclaim.attempt o where o.outcome is null;
  if first_id is null then
    return 0;
  end if;
  start_id := first_id + floor(random() * (last_id - first_id + 1)::float8)::bigint;
  for a in
    (select o.job_id, o.n from pgclaim.attempt o where o.outcome is null and o.job_id >= start_id order by o.job_id limit slice)
    union all
    (select o.job_id, o.n from pgclaim.attempt o where o.outcome is null and o.job_id < start_id order by o.job_id limit slice)
    limit slice
  loop
    select w.kind into j from pgclaim.job w where w.id = a.job_id;
    if not found then
      update pgclaim.attempt o
      set outcome = 'crashed', ended_at = clock_timestamp()
      where o.job_id = a.job_id and o.n = a.n and o.outcome is null
        and not exists (select from pgclaim.job w where w.id = a.job_id);
      continue;
    end if;
    continue when not pgclaim.try_job_lock(j.kind, a.job_id);
    select w.* into j from pgclaim.job w where w.id = a.job_id for update skip locked;
    continue when not found;
    -- A new statement after the lock: whoever held it may have closed the attempt in its last breath. Its row may be in the
    -- hands of a settle that waits for one of ours, since that one goes by ascending id and we start anywhere.
    perform from pgclaim.attempt o where o.job_id = a.job_id and o.n = a.n and o.outcome is null for update skip locked;
    continue when not found;
    update pgclaim.attempt o
    set outcome = 'crashed', ended_at = clock_timestamp()
    where o.job_id = a.job_id and o.n = a.n;
    crashed := crashed + 1;
    -- It runs alone next, which may take a while; it asks again when its turn is there and its names are not.
    delete from pgclaim.reservation r where r.job_id = a.job_id;
    if j.state = 'dead' then
      -- A late fence of a tick that is over; nothing but the number is taken over, the dead letter stays one.
      update pgclaim.job w set attempt = greatest(w.attempt, a.n) where w.id = a.job_id;
      continue;
    end if;
    select count(*) into charges
    from pgclaim.attempt o
    where o.job_id = a.job_id and o.outcome = 'crashed' and o.quarantined and o.n > j.crash_base;
    select p.* into k from pgclaim.kind p where p.name = j.kind;
    if charges >= k.max_crashes then
      update pgclaim.job w
      set
        attempt = greatest(w.attempt, a.n),
        suspect = true,
        state = 'dead',
        dead_at = clock_timestamp(),
        dead_reason = 'crashed',
        last_error = 'The holder''s transaction ended without an outcome, ' || charges || ' times while the job ran alone.'
      where w.id = a.job_id;
      -- No gate lock here: the reaper waits for nobody. A note asks for the refill.
      if j.gate is not null then
        insert into pgclaim.recheck (gate) values (j.gate);
      end if;
    elsif exists (select from pgclaim.attempt o where o.job_id = a.job_id and o.n = a.n and o.quarantined) then
      wait_ms := pgclaim.backoff_ms(k.backoff, k.min_backoff_ms, k.max_backoff_ms, charges, random());
      update pgclaim.job w
      set
        attempt = greatest(w.attempt, a.n),
        suspect = true,
        state = 'scheduled',
        run_at = clock_timestamp() + wait_ms * interval '1 millisecond',
        rank = coalesce(w.deadline_at, clock_timestamp() + (wait_ms + k.target_latency_ms) * interval '1 millisecond')
      where w.id = a.job_id;
      if j.gate is not null and j.ordering_key is null then
        insert into pgclaim.recheck (gate) values (j.gate);
      end if;
    else
      -- Not a charge: it ran beside others, any of them may have been the killer. It stays due, as a suspect.
      update pgclaim.job w set attempt = greatest(w.attempt, a.n), suspect = true where w.id = a.job_id;
    end if;
  end loop;
  return crashed;
end $$;
