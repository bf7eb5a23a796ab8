-- What is the same of errors that differ in their numbers: 12 hex characters of the digest of the first line, with ids and
-- numbers taken out. Two errors with one fingerprint are shown as one group; nothing else depends on it.
create or replace function pgclaim.error_fingerprint(error text)
returns text
language sql immutable parallel safe
as $$
  select left(md5(regexp_replace(
    left(split_part(coalesce(error, ''), chr(10), 1), 500),
    '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|\m(?:0x)?[0-9a-fA-F]{8,}\M|[0-9]+',
    '#',
    'g'
  )), 12)
$$;
