-- Leaves the mark of a wake: when its trigger was here, how often in this minute, and whether it found work.
-- Argument: the trigger's name, of which 200 characters count, and its type; when it woke us; whether something was due.
-- At most 200 triggers are kept; what comes after them leaves no mark.
-- Locks: waits for nobody. A trigger's rows are written under a lock that is only tried; whoever does not get it leaves a line
--        in trigger_bump, which the next wake of this trigger counts. So no wake is lost, and none holds up another.
-- Raises: 23514 for an unknown type or an empty name. Index: trigger_pkey, trigger_minute_pkey, trigger_bump_name.
create or replace function pgclaim.bump_trigger(trigger_name text, trigger_type text, woken_at timestamptz, found_work boolean)
returns void
language plpgsql volatile
set jit = off
set enable_seqscan = off
as $$
declare
  called constant text := left(trigger_name, 200);
  mine boolean;
begin
  select pg_try_advisory_xact_lock(pgclaim.name_key('internal', 'trigger ' || called, i.seed)) into mine from pgclaim.installation i;
  -- A new name needs a lock of all names, or two of them would both be the two hundredth.
  if mine and not exists (select from pgclaim.trigger t where t.name = called) then
    select pg_try_advisory_xact_lock(pgclaim.name_key('internal', 'new trigger', i.seed)) into mine from pgclaim.installation i;
    if mine and (select count(*) from pgclaim.trigger) >= 200 then
      return;
    end if;
  end if;
  if not mine then
    insert into pgclaim.trigger_bump (name, at, worked) values (called, woken_at, found_work);
    return;
  end if;
  with late as (
    delete from pgclaim.trigger_bump b where b.name = called returning b.at, b.worked
  ), woken as materialized (
    select l.at, l.worked from late l union all select woken_at, found_work
  ), minutes as (
    insert into pgclaim.trigger_minute as m (name, at, woken, worked)
    select called, date_bin('1 minute', w.at, 'epoch'), count(*), count(*) filter (where w.worked)
    from woken w
    group by 2
    order by 2
    on conflict on constraint trigger_minute_pkey do update
    set woken = m.woken + excluded.woken, worked = m.worked + excluded.worked
  )
  insert into pgclaim.trigger as t (name, type, first_seen_at, last_seen_at, last_work_at, recent)
  select
    called, trigger_type, min(w.at), max(w.at), max(w.at) filter (where w.worked),
    array(select r.at from (select o.at from woken o order by o.at desc limit 21) r order by r.at)
  from woken w
  on conflict on constraint trigger_pkey do update
  set
    type = excluded.type,
    last_seen_at = greatest(t.last_seen_at, excluded.last_seen_at),
    last_work_at = greatest(t.last_work_at, excluded.last_work_at),
    recent = array(
      select r.at from (select u.at from unnest(t.recent || excluded.recent) u(at) order by u.at desc limit 21) r order by r.at
    );
end $$;
