-- The public way in from plain SQL, inside any transaction: the job commits or vanishes with it.
--   select job_id from pgclaim.enqueue('invoice.send', '{"invoiceId": "7"}');
-- The kind's policy gives it its queue, priority, ordering key, locks, limits, unique key and deadline. Enqueue last in your
-- transaction: a unique key is locked from here to your commit.
-- Answers: type enqueued, duplicate, replaced, rescheduled or successor, see enqueue_v1.
-- Raises: PC002 for an unknown kind, PC003 for a payload, key or instant that cannot be taken.
create or replace function pgclaim.enqueue(
  kind text, payload jsonb default '{}', run_at timestamptz default null, deadline_at timestamptz default null
)
returns table (job_id bigint, type text)
language sql volatile
as $$
  select e.job_id, e.type
  from pgclaim.enqueue_v1(jsonb_build_object(
    'strict', true,
    'jobs', jsonb_build_array(jsonb_build_object('kind', kind, 'payload', payload, 'runAt', run_at, 'deadlineAt', deadline_at))
  )) e
$$;
