-- Ends a handler's turn: what it deferred is checked now, so that a violation fails this handler and not everybody's
-- COMMIT, and the next handler may defer again. By name and never ALL, because ALL would also fire pgclaim's own.
-- Constraints that are deferrable but not initially deferred are checked too, in case the handler deferred them.
-- Argument: {"enqueue"?: [job, ...] as in enqueue_v1}: what the handler enqueued, inside its own turn.
-- Raises:   whatever the user's constraint raises; PC002, PC003 for a refused job.
create or replace function pgclaim.end_turn_v1(request jsonb)
returns void
language plpgsql volatile
as $$
declare
  deferrables text;
  deferreds text;
begin
  if request ? 'enqueue' then
    perform pgclaim.enqueue_v1(jsonb_build_object('strict', true, 'jobs', request -> 'enqueue'));
  end if;
  select
    string_agg(distinct format('%I.%I', n.nspname, c.conname), ', '),
    string_agg(distinct format('%I.%I', n.nspname, c.conname), ', ') filter (where c.condeferred)
  into deferrables, deferreds
  from pg_catalog.pg_constraint c
  join pg_catalog.pg_namespace n on n.oid = c.connamespace
  where c.condeferrable
    and n.oid <> (select t.relnamespace from pg_catalog.pg_class t where t.oid = 'pgclaim.job'::regclass);
  if deferrables is not null then
    execute 'set constraints ' || deferrables || ' immediate';
  end if;
  if deferreds is not null then
    execute 'set constraints ' || deferreds || ' deferred';
  end if;
end $$;
