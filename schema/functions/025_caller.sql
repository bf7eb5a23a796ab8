-- Who calls. Asked inside functions that run with their owner's rights, where current_user is the owner.

-- The role whose rights count: the one the session has set, else the one it has logged in as.
create or replace function pgclaim.caller()
returns name
language sql stable
as $$ select coalesce(nullif(current_setting('role'), 'none'), session_user)::name $$;

-- Whether this is a tick's transaction: it carries the tick's id in a setting, and belongs to somebody who may claim. The setting
-- is anybody's to set; believed of anybody, it would keep the COMMIT trigger silent where no finish draws the places, and
-- jobs without a place never run. A handler may have set another role, so the one that has logged in counts as well.
create or replace function pgclaim.in_tick()
returns boolean
language sql stable
as $$
  select coalesce(current_setting('pgclaim.tick', true), '') <> ''
    and (
      has_function_privilege(session_user, 'pgclaim.claim_v1(jsonb)', 'execute')
      or has_function_privilege(pgclaim.caller(), 'pgclaim.claim_v1(jsonb)', 'execute')
    )
$$;
