-- Gives every role its grants again: functions that are new, or were made anew, have none yet. Roles that are gone are passed
-- over; they are forgotten when somebody looks.
do $$
declare
  g record;
begin
  for g in
    select o.scope, o.role_name
    from pgclaim.grantee o
    join pg_catalog.pg_roles r on r.rolname = o.role_name
    order by o.scope, o.role_name
  loop
    perform pgclaim.grant_v1(g.scope, g.role_name);
  end loop;
end $$;
