-- Where a job comes from, as somebody tells it: read before it is stored. Pure.

-- A W3C traceparent as it stands, at most 512 characters; null for anything else.
-- Source: W3C Trace Context, "Traceparent Header". Later versions may append to it, version 00 may not.
create or replace function pgclaim.read_trace(given text)
returns text
language sql immutable parallel safe
as $$
  select case
    when length(given) <= 512
      and given ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?$'
      and not (given like '00-%' and length(given) > 55)
      then given
  end
$$;

-- A line of text without what moves a cursor or ends a line; null where nothing is left.
create or replace function pgclaim.printable(given text)
returns text
language sql immutable parallel safe
as $$ select nullif(btrim(regexp_replace(given, '[\u0001-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]+', ' ', 'g')), '') $$;
