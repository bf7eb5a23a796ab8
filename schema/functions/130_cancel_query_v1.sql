-- Cancels the query a tick's session is stuck in: the second means beside statement_timeout.
-- Argument: {"pid": integer, "kind": text, "jobId": id}: the backend, and a job whose lock it must hold.
-- Answers:  whether a cancel was sent. Behind a pooler the backend may serve somebody else by now, so the lock table
--           must say that it still holds this job's lock.
create or replace function pgclaim.cancel_query_v1(request jsonb)
returns boolean
language sql volatile
as $$
  select coalesce(bool_or(pg_cancel_backend(l.pid)), false)
  from pg_catalog.pg_locks l
  join pgclaim.kind k on k.name = request ->> 'kind'
  where l.locktype = 'advisory'
    and l.granted
    and l.pid = (request ->> 'pid')::integer
    and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
    and l.objsubid = 1
    and ((l.classid::bigint << 32) | l.objid::bigint)
      = pgclaim.job_key(k.namespace, (request ->> 'jobId')::bigint)
$$;
