-- The public way in from plain SQL, inside any transaction: the job commits or vanishes with it.
--   select job_id from pgclaim.enqueue('invoice.send', '{"invoiceId": "7"}');
-- Raises: PC002 for an unknown kind, PC003 for a payload or run_at that cannot be taken.
create or replace function pgclaim.enqueue(kind text, payload jsonb default '{}', run_at timestamptz default null)
returns table (job_id bigint, type text)
language sql volatile
as $$
  select e.job_id, e.type
  from pgclaim.enqueue_v1(jsonb_build_object(
    'strict', true,
    'jobs', jsonb_build_array(jsonb_build_object('kind', kind, 'payload', payload, 'runAt', run_at))
  )) e
$$;
