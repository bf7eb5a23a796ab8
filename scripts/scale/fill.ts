// A year of neglect, in a few minutes: the volumes at which the reads must still answer. Set-based, no index or constraint of
// the product is dropped, since what they cost is part of the picture; only triggers and synchronous commits rest meanwhile.

import type pg from "pg";
import { lateBoundsMs } from "../../src/inspection.ts";

export interface Volumes {
  readonly ready: number;
  readonly scheduled: number;
  readonly retrying: number;
  readonly dead: number;
  /** Behind one gate of an ordering key. */
  readonly behind: number;
  /** Behind one name. */
  readonly named: number;
  /** Ordering keys whose head is a dead letter, with one job behind each. */
  readonly halted: number;
  readonly history: number;
  readonly ticks: number;
  readonly open: number;
}

export const fullVolumes: Volumes = {
  ready: 1_000_000,
  scheduled: 1_000_000,
  retrying: 20_000,
  dead: 100_000,
  behind: 200_000,
  named: 50_000,
  halted: 5_000,
  history: 10_000_000,
  ticks: 100_000,
  open: 2_000,
};

/** The same with a divisor, for a look at the script itself. */
export function volumes(divisor: number): Volumes {
  const entries = Object.entries(fullVolumes).map(([name, n]) => [name, Math.max(1, Math.floor(n / divisor))]);
  return Object.fromEntries(entries) as unknown as Volumes;
}

const queues = ["default", "reports", "mail", "slow"];
/** Twenty kinds; k0 to k4 are of the queue default. */
export const kinds = Array.from({ length: 20 }, (_, i) => `k${i}`);

/** Fills an installation that has just been migrated. `step` hears what is being done. */
export async function fill(client: pg.Client, v: Volumes, step: (what: string) => void): Promise<void> {
  await client.query("set synchronous_commit = off; set session_replication_role = replica; set work_mem = '256MB'");
  await client.query("select pgclaim.register_v1($1)", [JSON.stringify(deployment())]);
  for (const [what, text] of statements(v)) {
    step(what);
    await client.query(text);
  }
  await client.query("set session_replication_role = origin");
  step("vacuum and analyze");
  await client.query("vacuum (analyze) pgclaim.job");
  await client.query("vacuum (analyze) pgclaim.history");
  await client.query("vacuum analyze");
}

function deployment(): object {
  const kind = (name: string, i: number) => ({
    name,
    queue: queues[Math.floor(i / 5)],
    priority: 2,
    targetLatencyMs: 60_000,
    timeoutMs: 60_000,
    maxAttempts: 5,
    maxCrashes: 3,
    backoff: "exponential",
    minBackoffMs: 1_000,
    maxBackoffMs: 3_600_000,
    alone: false,
    ...(i === 10 ? { orderingKey: "account:{account}", deadlineMs: 3_600_000 } : {}),
    ...(i === 11 ? { locks: ["session:{account}"] } : {}),
    ...(i === 1 ? { limitNames: ["tenant:{account}"], limitMaxes: [5] } : {}),
  });
  return { digest: "scale", kinds: kinds.map(kind), queues };
}

const error = "'503 from https://authority.example/v1/jobs/' || i || ' after ' || i % 977 || ' ms'";
const payload = `jsonb_build_object('orderId', i::text, 'account', (i % 1000)::text, 'note', repeat('x', 60))`;

/** Jobs of one kind of state: columns beside the usual ones, and their values for each i. */
function jobs(n: number, columns: Readonly<Record<string, string>>): string {
  const all: Record<string, string> = {
    kind: "'k' || i % 5",
    queue: "'default'",
    state: "'ready'",
    priority: "2",
    rank: "now() - interval '5 hours' + i * interval '10 ms'",
    run_at: "now() - interval '5 hours' + i * interval '10 ms'",
    revision: "1",
    enqueued_at: "now() - interval '5 hours' + i * interval '10 ms'",
    payload,
    ...columns,
  };
  return `insert into pgclaim.job (${Object.keys(all).join(", ")})
    select ${Object.values(all).join(", ")} from generate_series(1, ${n}) i`;
}

function statements(v: Volumes): readonly (readonly [string, string])[] {
  const died = `now() - interval '8 days' + i * (interval '8 days' / ${v.dead})`;
  const deadColumns = {
    state: "'dead'",
    kind: "'k' || 5 + i % 5",
    queue: "'reports'",
    failures: "5",
    attempt: "5",
    dead_at: died,
    dead_reason: "case i % 50 when 0 then 'missed' when 1 then 'crashed' else 'attempts' end",
    last_error: error,
  };
  const key = (name: string) => ({
    kind: "'k10'",
    queue: "'mail'",
    ordering_key: name,
    gate: `'order:' || ${name}`,
    gate_width: "1",
    place: "nextval('pgclaim.place_seq')",
    deadline_at: "now() - interval '1 hour' + i * interval '50 ms'",
  });
  return [
    ["ready", jobs(v.ready, { deadline_at: "case when i % 3 = 0 then now() + i * interval '20 ms' end" })],
    ["scheduled", jobs(v.scheduled, { state: "'scheduled'", run_at: "now() + i * interval '100 ms'" })],
    [
      "retrying",
      jobs(v.retrying, {
        state: "'scheduled'",
        failures: "1 + i % 3",
        attempt: "1 + i % 3",
        run_at: "now() + i * interval '1 s'",
        deadline_at: "case when i % 2 = 0 then now() + interval '1 hour' end",
        last_error: error,
      }),
    ],
    ["dead", jobs(v.dead, deadColumns)],
    ["one key: its dead head", jobs(1, { ...deadColumns, ...key("'account:big'") })],
    ["one key: behind it", jobs(v.behind, { ...key("'account:big'"), state: "'blocked'" })],
    ["halted keys", jobs(v.halted, { ...deadColumns, ...key("'account:' || i") })],
    ["halted keys: behind", jobs(v.halted, { ...key("'account:' || i"), state: "'blocked'" })],
    [
      "one name",
      jobs(v.named, {
        kind: "'k11'",
        queue: "'mail'",
        state: "case when i <= 2 then 'ready' else 'blocked' end",
        locks: "array['session:7']",
        gate: "'lock:mail:session:7'",
        gate_width: "2",
        place: "nextval('pgclaim.place_seq')",
      }),
    ],
    [
      "history",
      `insert into pgclaim.history
         (job_id, kind, queue, outcome, attempts, failures, run_at, enqueued_at, finished_at, payload, last_error)
       select nextval('pgclaim.job_id_seq'), 'k' || i % 20, 'default',
         case when i % 1000 = 0 then 'discarded' when i % 1000 = 1 then 'cancelled' else 'done' end, 1, 0, t, t,
         t + interval '2 s', jsonb_build_object('orderId', i::text, 'account', (i % 1000)::text), null
       from generate_series(1, ${v.history}) i
       cross join lateral (select now() - interval '30 days' + i * (interval '30 days' / ${v.history}) as t) x`,
    ],
    [
      "ticks",
      `insert into pgclaim.tick (id, outcome, invocation, decided_at, report)
       select gen_random_uuid(), case when i % 100 = 0 then 'lost' else 'committed' end, 'inv-' || i / 2,
         now() - interval '7 days' + i * (interval '7 days' / ${v.ticks}),
         jsonb_build_object('trigger', case when i % 1000 = 0 then 'manual' else 'cron * * * * *' end, 'n', 1 + i % 2,
           'claimed', 20, 'quarantined', false, 'claimMs', 4, 'fenceMs', 2, 'runMs', 700, 'totalMs', 900,
           'startedAt', now() - interval '7 days' + i * (interval '7 days' / ${v.ticks}) - interval '900 ms',
           'outcomes', jsonb_build_object('done', 19, 'failed', 1), 'skipped', jsonb_build_object('busy', 5),
           'skips', (select jsonb_agg(jsonb_build_object('jobId', s::text, 'kind', 'k1', 'reason', 'busy', 'lock', 'a:' || s))
                     from generate_series(1, 5) s))
       from generate_series(1, ${v.ticks}) i`,
    ],
    [
      "attempts of a day",
      `insert into pgclaim.attempt (job_id, n, tick, quarantined, started_at, ended_at, outcome)
       select h.job_id, 1, t.id, false, t.decided_at - interval '800 ms', t.decided_at, 'done'
       from (select id, decided_at, row_number() over (order by decided_at) as r from pgclaim.tick
             where decided_at > now() - interval '1 day') t
       cross join lateral (select nextval('pgclaim.job_id_seq') as job_id, s from generate_series(1, 20) s where t.r > 0) h
       order by t.r`,
    ],
    [
      "open attempts",
      `insert into pgclaim.attempt (job_id, n, tick, quarantined)
       select j.id, 1, md5((j.id / 20)::text)::uuid, false
       from (select id from pgclaim.job where state = 'ready' and not suspect order by queue, priority, rank, id limit ${v.open}) j`,
    ],
    [
      "rollups of minutes",
      `insert into pgclaim.rollup (width, at, kind, done, retried, late, late_ms)
       select 1, date_trunc('minute', now()) - m * interval '1 minute', 'k' || k, 50, 2, ${late()}, 90000
       from generate_series(0, 2880) m cross join generate_series(0, 19) k order by m desc, k`,
    ],
    [
      "rollups of hours",
      `insert into pgclaim.rollup (width, at, kind, done, retried, late, late_ms)
       select 60, date_trunc('hour', now()) - m * interval '1 hour', 'k' || k, 3000, 120, ${late()}, 5400000
       from generate_series(0, 2160) m cross join generate_series(0, 19) k order by m desc, k`,
    ],
    [
      "rollups since ever",
      `insert into pgclaim.rollup (width, at, kind, done, late)
       select 0, 'epoch', 'k' || k, 5000000, ${late()} from generate_series(0, 19) k`,
    ],
    [
      "rollups of ticks",
      `insert into pgclaim.tick_rollup (width, at, committed, claimed, skipped)
       select w.width, date_trunc(w.unit, now()) - m * ('1 ' || w.unit)::interval, 2, 40, '{"busy": 5, "behind": 1}'::jsonb
       from (values (1, 'minute', 2880), (60, 'hour', 2160)) w(width, unit, n) cross join generate_series(0, w.n) m
       union all select 0, 'epoch', 5000000, 100000000, '{"busy": 5000000}'::jsonb`,
    ],
    [
      "triggers",
      `insert into pgclaim.trigger (name, type, recent)
       select 'http /t/' || i, 'http', array(select now() - s * interval '1 minute' from generate_series(20, 0, -1) s)
       from generate_series(1, 20) i;
       insert into pgclaim.trigger_minute (name, at, woken, worked)
       select 'http /t/' || i, date_trunc('minute', now()) - m * interval '1 minute', 1, 1
       from generate_series(1, 20) i cross join generate_series(0, 180) m`,
    ],
    [
      "depth",
      `insert into pgclaim.depth (queue, state, n, capped, sampled_at)
       select q, s, 100000, true, now() from unnest('{default,reports,mail,slow}'::text[]) q
       cross join unnest('{ready,scheduled,retrying,blocked,dead}'::text[]) s`,
    ],
    [
      "unique keys",
      `insert into pgclaim.unique_key (kind, key, job_id)
       select 'k2', 'order:' || j.id, j.id from pgclaim.job j where j.kind = 'k2' and j.state = 'ready' limit 200000`,
    ],
  ];
}

/** A histogram of fifty: most within a second, a tail to a minute. */
function late(): string {
  const counts = Array.from({ length: lateBoundsMs.length + 1 }, (_, i) => (i < 4 ? 10 : i < 9 ? 2 : 0));
  return `'{${counts.join(",")}}'::bigint[]`;
}
