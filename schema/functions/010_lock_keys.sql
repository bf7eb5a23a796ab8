-- Lock keys are derived here and nowhere else. A key is a signed 64-bit integer; its values are pinned by
-- test/postgres/sql/lock_keys.test.ts, because two releases that disagree about a key would both hold one job.

-- Key of a job: the kind's namespace in the upper 32 bits, the id's low 32 bits below. Two jobs of one kind whose ids
-- are 2^32 apart share a key; that costs one needless skip and nothing else.
create or replace function pgclaim.job_key(namespace integer, job_id bigint)
returns bigint
language sql immutable parallel safe
as $$ select (namespace::bigint << 32) | (job_id & 4294967295) $$;

-- Key of a name: class keeps the kinds of names apart, seed keeps installations apart, "C" keeps collations out.
create or replace function pgclaim.name_key(class text, name text, seed bigint)
returns bigint
language sql immutable parallel safe
as $$ select hashtextextended((class || ':' || name) collate "C", seed) $$;

-- Tries the lock of a job without waiting. False also where the job's kind is unknown: nobody can hold it then.
-- Lock: the job's, exclusive, until the transaction or the enclosing subtransaction's rollback.
create or replace function pgclaim.try_job_lock(job_kind text, job_id bigint)
returns boolean
language plpgsql volatile
as $$
declare
  space integer;
begin
  select k.namespace into space from pgclaim.kind k where k.name = job_kind;
  return space is not null and pg_try_advisory_xact_lock(pgclaim.job_key(space, job_id));
end $$;
