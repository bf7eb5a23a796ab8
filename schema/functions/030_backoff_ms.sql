-- The wait before the next attempt, in milliseconds, after `count` failures (or charged crashes), count >= 1.
-- Exponential doubles from min to max. Jitter is a draw from [0, 1): the wait lies between half and all of the step,
-- so the cap is never exceeded and a thousand jobs that failed together do not come back together.
-- The float stays finite: the exponent is cut at 62 long before max_backoff_ms (bigint) could be reached by doubling.
create or replace function pgclaim.backoff_ms(backoff text, min_ms bigint, max_ms bigint, count integer, jitter float8)
returns bigint
language sql immutable parallel safe
as $$
  select floor(step * (0.5 + 0.5 * jitter))::bigint
  from (
    select case backoff
      when 'fixed' then min_ms::float8
      else least(max_ms::float8, min_ms::float8 * power(2::float8, least(greatest(count, 1) - 1, 62)))
    end as step
  ) s
$$;
