-- Enqueues once for each key: a caller that got no answer asks again with the same key, and is answered what the first call was.
-- Argument: {"key": text (1 to 255 characters), "digest": text (of the request, 1 to 200 characters), "jobs": as in enqueue_v1,
--           "source"?: text, "trace"?: W3C traceparent (for jobs that say none themselves)}
-- Answers:  {"type": "enqueued", "jobs": [{"type", "id"}, ...], "repeated": boolean}; {"type": "refused", "i", "reason", "detail"}
--           as enqueue_v1 says of the first refused job, with which the key stays free; {"type": "conflict"} where the key was used
--           with another digest; {"type": "busy"} where another call with this key did not end within two seconds.
-- A key belongs to the role that used it, so that nobody learns another's answers or takes his keys. It is kept for a day, see
-- prune_records; in a caller's own transaction it is his until he commits.
-- Locks:    the key's row, until the transaction ends; a second call with it waits for the first one. Then those of enqueue_v1.
-- Security definer: as enqueue_v1, which does the rest and decides whom to believe. Raises: PC001, PC003.
-- Index:    request_key_pkey.
create or replace function pgclaim.enqueue_once_v1(request jsonb)
returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  wanted constant text := request ->> 'key';
  wanted_digest constant text := request ->> 'digest';
  usual_timeout constant text := current_setting('lock_timeout');
  is_mine boolean := false;
  known record;
  refused record;
  jobs jsonb;
begin
  perform pgclaim.require_read_committed();
  if wanted is null or length(wanted) not between 1 and 255 or wanted_digest is null or length(wanted_digest) not between 1 and 200
    or jsonb_typeof(request -> 'jobs') is distinct from 'array' then
    raise exception 'The request has no key of 1 to 255 characters, no digest of 1 to 200, or no jobs.' using errcode = 'PC003';
  end if;
  loop
    begin
      perform set_config('lock_timeout', '2s', true);
      insert into pgclaim.request_key (role_name, key, digest) values (pgclaim.caller(), wanted, wanted_digest)
      on conflict on constraint request_key_pkey do nothing;
      is_mine := found;
      perform set_config('lock_timeout', usual_timeout, true);
    exception when lock_not_available then
      return jsonb_build_object('type', 'busy');
    end;
    exit when is_mine;
    -- A new statement: it sees what the other one has committed meanwhile.
    select r.digest, r.answer into known
    from pgclaim.request_key r
    where r.role_name = pgclaim.caller() and r.key = wanted;
    -- Not there: pruned between the two statements, so the key is free.
    continue when not found;
    if known.digest <> wanted_digest then
      return jsonb_build_object('type', 'conflict');
    end if;
    return known.answer || jsonb_build_object('repeated', true);
  end loop;

  select jsonb_agg(
    jsonb_strip_nulls(jsonb_build_object('trace', request -> 'trace', 'source', request -> 'source')) || e.v order by e.o
  )
  into jobs
  from jsonb_array_elements(request -> 'jobs') with ordinality e(v, o);
  jobs := coalesce(jobs, '[]');
  select jsonb_agg(to_jsonb(q) order by q.i) into jobs from pgclaim.enqueue_v1(jsonb_build_object('jobs', jobs)) q;
  select q.i, q.type, q.detail into refused
  from jsonb_to_recordset(coalesce(jobs, '[]')) q(i integer, type text, job_id bigint, detail text)
  where q.job_id is null
  order by q.i
  limit 1;
  if found then
    delete from pgclaim.request_key r where r.role_name = pgclaim.caller() and r.key = wanted;
    return jsonb_build_object('type', 'refused', 'i', refused.i, 'reason', refused.type, 'detail', coalesce(refused.detail, ''));
  end if;
  update pgclaim.request_key r
  set answer = jsonb_build_object('type', 'enqueued', 'jobs', coalesce((
    select jsonb_agg(jsonb_build_object('type', q.type, 'id', q.job_id::text) order by q.i)
    from jsonb_to_recordset(jobs) q(i integer, type text, job_id bigint)
  ), '[]'))
  where r.role_name = pgclaim.caller() and r.key = wanted
  returning r.answer into jobs;
  return jobs || jsonb_build_object('repeated', false);
end $$;
