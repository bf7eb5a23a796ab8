-- The histogram from due to done. Pinned: lateBoundsMs in src/inspection.ts is the same, and stored counts are of these buckets.

-- Upper bounds of its buckets in milliseconds, ascending; one more bucket is above them.
create or replace function pgclaim.late_bounds_ms()
returns bigint[]
language sql immutable parallel safe
as $$ select '{50,100,250,500,1000,2500,5000,10000,30000,60000,300000,900000,3600000}'::bigint[] $$;

-- Counts lengths in milliseconds by bucket: how many are at most the bucket's bound and above the one before it. Null of null.
create or replace function pgclaim.late_counts(late_ms bigint[])
returns bigint[]
language sql immutable strict parallel safe
as $$
  select array_agg(coalesce(c.n, 0) order by b.i)
  from generate_series(0, cardinality(pgclaim.late_bounds_ms())) b(i)
  left join (
    select width_bucket(u.ms - 1, pgclaim.late_bounds_ms()) as i, count(*) as n from unnest(late_ms) u(ms) group by 1
  ) c on c.i = b.i
$$;

-- Two histograms as one. Either may be empty.
create or replace function pgclaim.add_counts(a bigint[], b bigint[])
returns bigint[]
language sql immutable parallel safe
as $$
  select coalesce(array_agg(coalesce(u.x, 0) + coalesce(u.y, 0) order by u.i), '{}')
  from unnest(a, b) with ordinality u(x, y, i)
$$;

-- Two objects of counts as one.
create or replace function pgclaim.add_tallies(a jsonb, b jsonb)
returns jsonb
language sql immutable parallel safe
as $$
  select coalesce(jsonb_object_agg(t.key, t.n), '{}')
  from (
    select u.key, sum(u.value::bigint) as n
    from (select * from jsonb_each_text(a) union all select * from jsonb_each_text(b)) u
    group by u.key
  ) t
$$;
