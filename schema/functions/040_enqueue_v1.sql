-- Inserts jobs, all of them or none.
-- Argument: {"jobs": [{"kind", "payload", "runAt"?: timestamptz, "delayMs"?: integer}, ...], "strict"?: boolean}
-- Rows:     one for each job in order: (i, type 'enqueued', job_id); or, if any is refused, only the refused ones:
--           (i, type 'unknown-kind' | 'invalid-payload' | 'payload-too-large' | 'invalid-run-at', detail).
-- Raises:   with strict the first refusal as PC002 (unknown kind) or PC003, instead of returning it.
-- Locks:    none. Any isolation level: it is called inside callers' own transactions.
-- Security definer: a caller needs this function and nothing else; it reads policies the caller need not see.
create or replace function pgclaim.enqueue_v1(request jsonb)
returns table (i integer, type text, job_id bigint, detail text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  max_payload_bytes constant integer := 1048576;
  refusal record;
  refused boolean := false;
begin
  for refusal in
    select r.i, r.type, r.detail
    from (
      select
        (e.o - 1)::integer as i,
        case
          when k.name is null then 'unknown-kind'
          when jsonb_typeof(e.v -> 'payload') is null then 'invalid-payload'
          when octet_length((e.v -> 'payload')::text) > max_payload_bytes then 'payload-too-large'
          when not (e.v ->> 'runAt' is null or pg_catalog.isfinite((e.v ->> 'runAt')::timestamptz)) then 'invalid-run-at'
        end as type,
        case
          when k.name is null then e.v ->> 'kind'
          when jsonb_typeof(e.v -> 'payload') is null then 'missing'
          when octet_length((e.v -> 'payload')::text) > max_payload_bytes
            then octet_length((e.v -> 'payload')::text) || ' of at most ' || max_payload_bytes || ' bytes'
          else e.v ->> 'runAt'
        end as detail
      from jsonb_array_elements(request -> 'jobs') with ordinality e(v, o)
      left join pgclaim.kind k on k.name = e.v ->> 'kind'
    ) r
    where r.type is not null
    order by r.i
  loop
    refused := true;
    if coalesce((request ->> 'strict')::boolean, false) then
      if refusal.type = 'unknown-kind' then
        raise exception 'No kind "%" in the database.', coalesce(refusal.detail, 'null')
          using errcode = 'PC002',
            detail = 'Known kinds: ' || coalesce((select string_agg(name, ', ' order by name) from (select name from pgclaim.kind order by name limit 20) known), 'none') || '.',
            hint = 'A kind is registered when a deployment that defines it first runs: trigger it once after the deploy.';
      end if;
      raise exception 'Job %: %, %.', refusal.i, refusal.type, refusal.detail
        using errcode = 'PC003', hint = 'The payload is a JSON value within the size limit; run_at is a finite instant.';
    end if;
    i := refusal.i;
    type := refusal.type;
    job_id := null;
    detail := refusal.detail;
    return next;
  end loop;
  if refused then
    return;
  end if;
  -- Ids ascend with i: the identity is drawn in the order in which the sub-select hands rows to the insert.
  return query
  with request_row as materialized (
    select
      e.o,
      k.name as kind,
      k.queue,
      k.priority,
      k.revision,
      k.target_latency_ms,
      coalesce((e.v ->> 'runAt')::timestamptz, clock_timestamp() + coalesce((e.v ->> 'delayMs')::float8, 0) * interval '1 millisecond') as due,
      coalesce((e.v ->> 'runAt')::timestamptz <= clock_timestamp(), coalesce((e.v ->> 'delayMs')::float8, 0) <= 0) as is_due,
      e.v -> 'payload' as payload
    from jsonb_array_elements(request -> 'jobs') with ordinality e(v, o)
    join pgclaim.kind k on k.name = e.v ->> 'kind'
    order by e.o
  ),
  inserted as (
    insert into pgclaim.job (kind, queue, state, priority, rank, run_at, revision, payload)
    select
      r.kind,
      r.queue,
      case when r.is_due then 'ready' else 'scheduled' end,
      r.priority,
      r.due + r.target_latency_ms * interval '1 millisecond',
      r.due,
      r.revision,
      r.payload
    from request_row r
    order by r.o
    returning id
  )
  select (row_number() over (order by s.id) - 1)::integer, 'enqueued'::text, s.id, null::text
  from inserted s
  order by s.id;
end $$;
