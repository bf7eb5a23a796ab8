-- Refuses any other isolation level, and read-only transactions. Above READ COMMITTED the re-read after a lock would
-- see the snapshot from before it, and a finished job would run again.
-- Raises: PC001.
create or replace function pgclaim.require_read_committed()
returns void
language plpgsql volatile
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'pgclaim needs READ COMMITTED here, this transaction is "%".', current_setting('transaction_isolation')
      using errcode = 'PC001', hint = 'Begin with: begin isolation level read committed read write.';
  end if;
  if current_setting('transaction_read_only') = 'on' then
    raise exception 'pgclaim needs a READ WRITE transaction here, this one is read only.'
      using errcode = 'PC001', hint = 'Connect to the primary, and begin with: begin isolation level read committed read write.';
  end if;
end $$;
