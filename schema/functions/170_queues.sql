-- Pauses a queue: nothing more of it is claimed; what runs runs on. Answers whether that changed anything.
create or replace function pgclaim.pause_queue_v1(queue_name text)
returns boolean
language plpgsql volatile
as $$
begin
  insert into pgclaim.queue as q (name, paused_at) values (queue_name, clock_timestamp())
  on conflict on constraint queue_pkey do update set paused_at = excluded.paused_at where q.paused_at is null;
  return found;
end $$;

-- Resumes a queue. Answers whether it was paused.
create or replace function pgclaim.resume_queue_v1(queue_name text)
returns boolean
language plpgsql volatile
as $$
begin
  update pgclaim.queue q set paused_at = null where q.name = queue_name and q.paused_at is not null;
  return found;
end $$;
