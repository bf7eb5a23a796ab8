-- Takes a job out of the queue, into history. The refill lets its gate's next one through.
-- Locks: the caller has the job's and its gate's, or leaves a note for the gate.
create or replace function pgclaim.take_out(id bigint, how text, gate_name text)
returns void
language plpgsql volatile
as $$
begin
  perform pgclaim.take_out_all(array[take_out.id], how);
  if gate_name is not null then
    perform pgclaim.refill(gate_name);
  end if;
end $$;

-- The same for many, without the refills. Attempts before jobs, each by ascending id, as everybody writes them.
-- Index: job_pkey and attempt_open, one probe for each job, whatever the statistics say (see fence_v1).
create or replace function pgclaim.take_out_all(ids bigint[], how text)
returns void
language plpgsql volatile
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
  perform from pgclaim.attempt a where a.job_id = any (ids) and a.outcome is null order by a.job_id, a.n for update;
  update pgclaim.attempt a
  set outcome = 'released', ended_at = clock_timestamp()
  where a.job_id = any (ids) and a.outcome is null;
  with gone as (
    delete from pgclaim.job o where o.id = any (ids) returning o.*
  )
  insert into pgclaim.history (
    job_id, kind, queue, outcome, attempts, failures, run_at, enqueued_at, last_error, payload, ordering_key, place, deadline_at,
    trace, source
  )
  select g.id, g.kind, g.queue, how, g.attempt, g.failures, g.run_at, g.enqueued_at, g.last_error, g.payload,
    g.ordering_key, g.place, g.deadline_at, g.trace, g.source
  from gone g
  order by g.place, g.id;
  -- Not if somebody has it locked, see finish_v1.
  delete from pgclaim.unique_key k
  where (k.kind, k.key) in (
    select o.kind, o.key from pgclaim.unique_key o where o.job_id = any (ids) and o.expires_at is null for update skip locked
  );
  delete from pgclaim.reservation r where r.job_id = any (ids);
  delete from pgclaim.cancel_request r where r.job_id = any (ids);
end $$;

-- Takes a dead letter out of the queue for good; it stays in history as discarded. A key it has halted goes on.
-- Answers: {"type": 'discarded' | 'busy' | 'not-found' | 'not-dead', "state"?: text}. Own short transaction.
-- Locks: tries the job's, then waits for its gate's. Raises: PC001.
create or replace function pgclaim.discard_v1(id bigint)
returns jsonb
language plpgsql volatile
as $$
declare
  j record;
begin
  perform pgclaim.require_read_committed();
  select * into j from pgclaim.lock_dead_letter(discard_v1.id);
  if j.answer is not null then
    return j.answer;
  end if;
  perform pgclaim.take_out(discard_v1.id, 'discarded', j.gate);
  return jsonb_build_object('type', 'discarded');
end $$;

-- Lets the jobs behind a dead letter pass it: it stays one, and its key goes on.
-- Answers: {"type": 'skipped' | 'busy' | 'not-found' | 'not-dead', "state"?: text}. Own short transaction.
-- Locks: tries the job's, then waits for its gate's. Raises: PC001.
create or replace function pgclaim.skip_v1(id bigint)
returns jsonb
language plpgsql volatile
as $$
declare
  j record;
begin
  perform pgclaim.require_read_committed();
  select * into j from pgclaim.lock_dead_letter(skip_v1.id);
  if j.answer is not null then
    return j.answer;
  end if;
  update pgclaim.job o set when_dead = 'skip' where o.id = skip_v1.id;
  if j.gate is not null then
    perform pgclaim.refill(j.gate);
  end if;
  return jsonb_build_object('type', 'skipped');
end $$;

-- Cancels a job: at once where nobody runs it; where somebody does, by a flag that its invocation sees.
-- Answers: {"type": 'cancelled' | 'requested' | 'not-found' | 'not-dead' (it has ended, "state" says how)}. Own short
-- transaction. Locks: tries the job's, then waits for its gate's. Raises: PC001.
create or replace function pgclaim.cancel_v1(id bigint)
returns jsonb
language plpgsql volatile
as $$
declare
  j record;
begin
  perform pgclaim.require_read_committed();
  select * into j from pgclaim.lock_for_operator(cancel_v1.id);
  if j.answer ->> 'type' = 'busy' then
    insert into pgclaim.cancel_request as r (job_id) values (cancel_v1.id)
    on conflict on constraint cancel_request_pkey do update set replaced = false where r.replaced;
    return jsonb_build_object('type', 'requested');
  elsif j.answer is not null then
    return j.answer;
  end if;
  perform pgclaim.take_out(cancel_v1.id, 'cancelled', j.gate);
  return jsonb_build_object('type', 'cancelled');
end $$;

-- Takes out the jobs whose cancel was asked for while they ran, or that were replaced then, and that did not end done: put back
-- for a retry when finish had looked already, handed back, or crashed. Claim leaves them alone meanwhile. A bounded slice, drawn; for wake, after the
-- reaper, whose the open attempts are. Answers how many. Locks: tries each job's lock and row; waits for nobody, so no gate's:
-- a note asks for the refill.
create or replace function pgclaim.cancel_requested(slice integer)
returns integer
language plpgsql volatile
as $$
declare
  cancelled integer := 0;
  c record;
begin
  for c in
    select r.job_id, j.kind, j.gate
    from pgclaim.cancel_request r
    left join pgclaim.job j on j.id = r.job_id
    order by random()
    limit slice
  loop
    if c.kind is null then
      delete from pgclaim.cancel_request r where r.job_id = c.job_id;
      continue;
    end if;
    continue when not pgclaim.try_job_lock(c.kind, c.job_id);
    perform from pgclaim.job j where j.id = c.job_id for update skip locked;
    continue when not found or exists (
      select from pgclaim.attempt a where a.job_id = c.job_id and a.outcome is null
    );
    perform pgclaim.take_out(c.job_id, 'cancelled', null);
    if c.gate is not null then
      insert into pgclaim.recheck (gate) values (c.gate);
    end if;
    cancelled := cancelled + 1;
  end loop;
  return cancelled;
end $$;

-- Which of these running jobs somebody wants stopped; one that was replaced runs on. Argument: {"jobs": [id, ...]}. Reads only.
create or replace function pgclaim.cancelled_v1(request jsonb)
returns table (job_id bigint)
language sql stable
as $$
  select r.job_id from pgclaim.cancel_request r
  where not r.replaced and r.job_id in (select v::bigint from jsonb_array_elements_text(request -> 'jobs') v)
$$;
