-- Ends a handler's turn: what it deferred is checked now, so that a violation fails this handler and not everybody's
-- COMMIT, and the next handler may defer again. By name and never ALL, because ALL would also fire pgclaim's own.
-- Constraints that are deferrable but not initially deferred are checked too, in case the handler deferred them.
-- Argument: {"enqueue"?: [job, ...] as in enqueue_v1}: what the handler enqueued, inside its own turn.
-- Raises:   whatever the user's constraint raises; what enqueue_v1 raises.
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
  -- SET CONSTRAINTS takes a schema and a name, and a name may stand on several tables. Left out is what it would refuse: a
  -- schema this role may not use (other sessions' temporary ones too), and a name that some table has as not deferrable.
  -- What is left out is checked at COMMIT, where a violation fails the tick and quarantine finds whose it is.
  select
    string_agg(format('%I.%I', n.nspname, c.conname), ', '),
    string_agg(format('%I.%I', n.nspname, c.conname), ', ') filter (where c.all_deferred)
  into deferrables, deferreds
  from (
    select o.connamespace, o.conname, bool_and(o.condeferred) as all_deferred
    from pg_catalog.pg_constraint o
    group by o.connamespace, o.conname
    having bool_and(o.condeferrable)
  ) c
  join pg_catalog.pg_namespace n on n.oid = c.connamespace
  where has_schema_privilege(n.oid, 'usage')
    and not pg_is_other_temp_schema(n.oid)
    and n.oid <> (select t.relnamespace from pg_catalog.pg_class t where t.oid = 'pgclaim.job'::regclass);
  if deferrables is not null then
    execute 'set constraints ' || deferrables || ' immediate';
  end if;
  if deferreds is not null then
    execute 'set constraints ' || deferreds || ' deferred';
  end if;
end $$;
