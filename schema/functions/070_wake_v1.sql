-- What an invocation asks before it opens a connection: is anything due, and does the database know my kinds?
-- Argument: {"digest": text, "queues": [text], "schedules"?: [text] (the definitions the caller has), "reapSlice", "dueSlice",
--           "gateSlice", "cancelSlice", "pruneSlice": integer, "historyMs": integer | null,
--           "trigger"?: {"name", "type": 'cron' | 'http' | 'manual'}, and with it "rollSlice", "depthCap", "depthMs": integer}
--           Without a trigger nothing is recorded: code before this field asks so, and whoever only wants to know.
-- Answers:  {"revision": integer | null (unknown digest), "supersededBy": integer | null (a newer deployment that has changed a
--           kind or a schedule of this one, or dropped a schedule), "ready": boolean, "suspects": boolean,
--           "crashed": integer, "promoted": integer, "pruned": integer, "faults": [{"step", "sqlstate"}],
--           "schedules": [{"name", "definition", "nextAt", "fresh"}, ...] (due ones), "now": timestamptz}
-- "Is anything due" comes first and each housekeeping step stands in a sub-block of its own: housekeeping must never be
-- what stops the work. A ready row with an open attempt is being run by somebody (or is the reaper's), so it wakes nobody.
-- Locks: only tried. Raises: PC001.
create or replace function pgclaim.wake_v1(request jsonb)
returns jsonb
language plpgsql volatile
as $$
declare
  queues text[] := array(select jsonb_array_elements_text(request -> 'queues'));
  known integer;
  superseded_by integer;
  ready boolean;
  suspects boolean;
  crashed integer := 0;
  promoted integer := 0;
  pruned integer := 0;
  rolled integer;
  faults jsonb := '[]';
  schedules jsonb;
  clock constant timestamptz := clock_timestamp();
begin
  perform pgclaim.require_read_committed();
  select r.n into known from pgclaim.revision r where r.digest = request ->> 'digest';
  ready := pgclaim.has_ready(queues, false);
  begin
    crashed := pgclaim.reap((request ->> 'reapSlice')::integer);
  exception when others then
    faults := faults || jsonb_build_object('step', 'reap', 'sqlstate', sqlstate);
  end;
  begin
    promoted := pgclaim.promote_due((request ->> 'dueSlice')::integer);
  exception when others then
    faults := faults || jsonb_build_object('step', 'promote', 'sqlstate', sqlstate);
  end;
  begin
    perform pgclaim.cancel_requested((request ->> 'cancelSlice')::integer);
  exception when others then
    faults := faults || jsonb_build_object('step', 'cancel', 'sqlstate', sqlstate);
  end;
  begin
    pruned := pgclaim.prune((request ->> 'pruneSlice')::integer, (request ->> 'historyMs')::bigint);
  exception when others then
    faults := faults || jsonb_build_object('step', 'prune', 'sqlstate', sqlstate);
  end;
  select jsonb_agg(jsonb_build_object('name', s.name, 'definition', s.definition, 'nextAt', s.next_at, 'fresh', s.fresh) order by s.next_at)
  into schedules
  from (
    select * from pgclaim.schedule o
    where o.paused_at is null and o.next_at <= clock
      and o.definition in (select jsonb_array_elements_text(request -> 'schedules'))
    -- What failed goes behind what was due by then: a hundred that cannot be fired hide the others for one wake at most.
    order by coalesce(o.failed_at, o.next_at), o.name
    limit 100
  ) s;
  begin
    promoted := promoted + pgclaim.recheck_gates((request ->> 'gateSlice')::integer);
  exception when others then
    faults := faults || jsonb_build_object('step', 'recheck', 'sqlstate', sqlstate);
  end;
  if not ready and promoted > 0 then
    ready := pgclaim.has_ready(queues, false);
  end if;
  suspects := pgclaim.has_ready(queues, true);
  begin
    superseded_by := pgclaim.superseded_by(known);
  exception when others then
    faults := faults || jsonb_build_object('step', 'superseded', 'sqlstate', sqlstate);
  end;
  if request ? 'trigger' then
    -- Records, for people; after all that the work needs, and the mark of this wake last, so that its rows are held least.
    begin
      rolled := pgclaim.roll_up((request ->> 'rollSlice')::integer);
    exception when others then
      faults := faults || jsonb_build_object('step', 'roll up', 'sqlstate', sqlstate);
    end;
    if rolled is not null then
      begin
        pruned := pruned + pgclaim.prune_records((request ->> 'pruneSlice')::integer);
      exception when others then
        faults := faults || jsonb_build_object('step', 'prune records', 'sqlstate', sqlstate);
      end;
    end if;
    begin
      perform pgclaim.sample_depth((request ->> 'depthCap')::integer, (request ->> 'depthMs')::integer);
    exception when others then
      faults := faults || jsonb_build_object('step', 'sample', 'sqlstate', sqlstate);
    end;
    begin
      perform pgclaim.bump_trigger(
        request #>> '{trigger,name}', request #>> '{trigger,type}', clock, ready or suspects or schedules is not null
      );
    exception when others then
      faults := faults || jsonb_build_object('step', 'trigger', 'sqlstate', sqlstate);
    end;
  end if;
  return jsonb_build_object(
    'revision', known,
    'supersededBy', superseded_by,
    'ready', ready,
    'suspects', suspects,
    'crashed', crashed,
    'promoted', promoted,
    'pruned', pruned,
    'faults', faults,
    'schedules', coalesce(schedules, '[]'),
    'now', clock
  );
end $$;
