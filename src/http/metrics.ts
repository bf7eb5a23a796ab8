// /metrics: an overview and the counters, as Prometheus reads them (text format 0.0.4). A pure function and the table of what
// it prints; docs/metrics.md is that table for people, and a test compares the two.

import { type Inspector, lateBoundsMs, type MetricsView, type Overview } from "../inspection.ts";

export const metricsContentType = "text/plain; version=0.0.4; charset=utf-8";

/**
 * How many values a label may have. Each one is a time series, and those are what a Prometheus pays for. The first by name keep
 * theirs and the rest are `other`: a choice by size would let a kind change sides, and `other` jump with it.
 */
export const labelLimits = { kinds: 100, queues: 50, triggers: 50 } as const;

type Labels = Readonly<Record<string, string>>;
interface Sample {
  readonly labels?: Labels;
  readonly value: number;
  /** Of a histogram: its counts for each bound and above, not cumulative. `value` is the sum then. */
  readonly counts?: readonly number[];
}

export interface Metric {
  readonly name: string;
  readonly type: "gauge" | "counter" | "histogram";
  /** What a value counts: `seconds`, `jobs`, ... */
  readonly unit: string;
  readonly labels: readonly string[];
  /** One line. Printed as HELP. */
  readonly help: string;
  samples(overview: Overview, view: MetricsView): readonly Sample[];
}

/** Everything /metrics prints, in its order. A name, once released, keeps its meaning. */
export const metrics: readonly Metric[] = [
  {
    name: "pgclaim_info",
    type: "gauge",
    unit: "1",
    labels: ["schema", "migration"],
    help: "Always 1; the installation's schema and its newest migration.",
    samples: ({ schema, migration }) => [{ labels: { schema, migration: String(migration) }, value: 1 }],
  },
  {
    name: "pgclaim_jobs",
    type: "gauge",
    unit: "jobs",
    labels: ["queue", "state"],
    help: "Unfinished jobs and dead letters by queue and state, sampled by wake and counted to a cap; see pgclaim_sample_age_seconds.",
    samples: ({ queues }) =>
      depthStates.flatMap((state) =>
        byName(queues, labelLimits.queues, sum, (queue) => queue.depth[state]?.n ?? 0).map(({ name, value }) => ({
          labels: { queue: name, state },
          value,
        })),
      ),
  },
  {
    name: "pgclaim_sample_age_seconds",
    type: "gauge",
    unit: "seconds",
    labels: [],
    help: "Age of the sample behind pgclaim_jobs; absent before the first one.",
    samples: ({ now, sampledAt }) => optional(sampledAt === null ? null : ageSeconds(now, sampledAt)),
  },
  {
    name: "pgclaim_oldest_ready_age_seconds",
    type: "gauge",
    unit: "seconds",
    labels: ["queue"],
    help: "How long the oldest job that is due has waited, live; 0 when none waits.",
    samples: ({ queues }) =>
      byName(queues, labelLimits.queues, max, ({ oldestReadyMs }) => seconds(oldestReadyMs ?? 0)).map(queueSample),
  },
  {
    name: "pgclaim_running_jobs",
    type: "gauge",
    unit: "jobs",
    labels: ["queue"],
    help: "Jobs whose lock is held right now.",
    samples: ({ queues }) => byName(queues, labelLimits.queues, sum, ({ running }) => running).map(queueSample),
  },
  {
    name: "pgclaim_longest_run_seconds",
    type: "gauge",
    unit: "seconds",
    labels: [],
    help: "How long the longest running job runs; 0 when none runs.",
    samples: ({ longestRunMs }) => [{ value: seconds(longestRunMs ?? 0) }],
  },
  {
    name: "pgclaim_queue_paused",
    type: "gauge",
    unit: "0 or 1",
    labels: ["queue"],
    help: "1 where a person has paused the queue.",
    samples: ({ queues }) =>
      byName(queues, labelLimits.queues, sum, ({ pausedAt }) => Number(pausedAt !== null)).map(queueSample),
  },
  {
    name: "pgclaim_dead_letters",
    type: "gauge",
    unit: "jobs",
    labels: [],
    help: "Dead letters, live, counted to 1000.",
    samples: ({ dead }) => [{ value: dead.n }],
  },
  {
    name: "pgclaim_missed_deadlines",
    type: "gauge",
    unit: "jobs",
    labels: [],
    help: "Dead letters that missed their deadline, live, counted to 1000.",
    samples: ({ missed }) => [{ value: missed.n }],
  },
  {
    name: "pgclaim_late_jobs",
    type: "gauge",
    unit: "jobs",
    labels: [],
    help: "Unfinished jobs whose deadline has passed, counted to 10000.",
    samples: ({ slack }) => [{ value: slack.late.n }],
  },
  {
    name: "pgclaim_at_risk_jobs",
    type: "gauge",
    unit: "jobs",
    labels: [],
    help: "Unfinished jobs with less time to their deadline than their kind usually takes, counted to 10000.",
    samples: ({ slack }) => [{ value: slack.atRisk.n }],
  },
  {
    name: "pgclaim_tightest_slack_seconds",
    type: "gauge",
    unit: "seconds",
    labels: [],
    help: "Time to the deadline of the unfinished job that has the least; absent without any.",
    samples: ({ slack }) => optional(slack.tightestMs === null ? null : seconds(slack.tightestMs)),
  },
  {
    name: "pgclaim_halted_keys",
    type: "gauge",
    unit: "keys",
    labels: [],
    help: "Ordering keys that a dead letter has halted.",
    samples: ({ haltedKeys }) => [{ value: haltedKeys.n }],
  },
  {
    name: "pgclaim_halted_jobs",
    type: "gauge",
    unit: "jobs",
    labels: [],
    help: "Jobs behind halted ordering keys.",
    samples: ({ behindHalted }) => [{ value: behindHalted.n }],
  },
  {
    name: "pgclaim_trigger_age_seconds",
    type: "gauge",
    unit: "seconds",
    labels: ["trigger"],
    help: "Time since the trigger last woke an invocation.",
    samples: (overview) =>
      shownTriggers(overview).map(({ name, lastSeenAt }) => ({
        labels: { trigger: name },
        value: ageSeconds(overview.now, lastSeenAt),
      })),
  },
  {
    name: "pgclaim_trigger_interval_seconds",
    type: "gauge",
    unit: "seconds",
    labels: ["trigger"],
    help: "Time expected between two wakes of the trigger; absent where nothing is expected.",
    samples: (overview) =>
      shownTriggers(overview).flatMap(({ name, everyMs }) =>
        everyMs === null ? [] : [{ labels: { trigger: name }, value: seconds(everyMs) }],
      ),
  },
  {
    name: "pgclaim_trigger_silent",
    type: "gauge",
    unit: "0 or 1",
    labels: ["trigger"],
    help: "1 where the trigger has not come for three intervals, five minutes at least.",
    samples: (overview) =>
      shownTriggers(overview).map(({ name, status }) => ({
        labels: { trigger: name },
        value: Number(status === "silent"),
      })),
  },
  {
    name: "pgclaim_triggers",
    type: "gauge",
    unit: "triggers",
    labels: [],
    help: `Triggers ever seen; the ${labelLimits.triggers} of them with series of their own are those of cron and the last seen.`,
    samples: ({ triggers }) => [{ value: triggers.length }],
  },
  {
    name: "pgclaim_unregistered_kinds",
    type: "gauge",
    unit: "kinds",
    labels: [],
    help: "Kinds with waiting jobs that no deployment in force defines.",
    samples: ({ unregistered }) => [{ value: unregistered.length }],
  },
  {
    name: "pgclaim_history_rows",
    type: "gauge",
    unit: "rows",
    labels: [],
    help: "Finished jobs kept, as the planner estimates them; absent before the first ANALYZE.",
    samples: ({ historyRows }) => optional(historyRows),
  },
  {
    name: "pgclaim_job_results_total",
    type: "counter",
    unit: "attempts",
    labels: ["kind", "result"],
    help: "Attempts ended, by kind and what became of the job.",
    samples: (_, { kinds }) =>
      results.flatMap((result) =>
        byName(named(kinds), labelLimits.kinds, sum, (kind) => kind[result]).map(({ name, value }) => ({
          labels: { kind: name, result },
          value,
        })),
      ),
  },
  {
    name: "pgclaim_job_latency_seconds",
    type: "histogram",
    unit: "seconds",
    labels: ["kind"],
    help: "From when a job was due to when it was done.",
    samples: (_, { kinds }) => latencies(kinds),
  },
  {
    name: "pgclaim_ticks_total",
    type: "counter",
    unit: "ticks",
    labels: ["outcome"],
    help: "Ticks that claimed something, by how they ended.",
    samples: (_, { ticks }) =>
      (["committed", "lost"] as const).map((outcome) => ({ labels: { outcome }, value: ticks[outcome] })),
  },
  {
    name: "pgclaim_claims_total",
    type: "counter",
    unit: "jobs",
    labels: [],
    help: "Jobs claimed.",
    samples: (_, { ticks }) => [{ value: ticks.claimed }],
  },
  {
    name: "pgclaim_skips_total",
    type: "counter",
    unit: "candidates",
    labels: ["reason"],
    help: "Candidates left alone by ticks that claimed something, by reason.",
    samples: (_, { ticks }) =>
      Object.entries(ticks.skipped)
        .sort(([a], [b]) => (a < b ? -1 : 1))
        .map(([reason, n]) => ({ labels: { reason }, value: n ?? 0 })),
  },
];

const depthStates = ["ready", "scheduled", "retrying", "blocked", "dead"] as const;
const results = ["done", "retried", "dead", "snoozed", "released", "cancelled", "missed"] as const;

/**
 * The text of /metrics.
 *
 * Shape:  both views -> HELP, TYPE and the samples of each metric; one that has no sample now keeps its HELP and TYPE.
 * Units:  seconds; counts.
 * Source: Prometheus, "Exposition formats", text format 0.0.4.
 */
export function metricsText(overview: Overview, view: MetricsView): string {
  const lines: string[] = [];
  for (const metric of metrics) {
    lines.push(`# HELP ${metric.name} ${escapeHelp(metric.help)}`, `# TYPE ${metric.name} ${metric.type}`);
    for (const sample of metric.samples(overview, view)) {
      if (sample.counts === undefined) lines.push(line(metric.name, sample.labels ?? {}, sample.value));
      else lines.push(...histogram(metric.name, sample.labels ?? {}, sample.counts, sample.value));
    }
  }
  return `${lines.join("\n")}\n`;
}

/** Answers a scrape. The two reads go one after the other: a scrape takes one connection at a time, as everything does. */
export async function answerMetrics(claimer: { readonly inspect: Inspector }): Promise<Response> {
  const overview = await claimer.inspect.overview();
  const view = await claimer.inspect.metrics();
  return new Response(metricsText(overview, view), { headers: { "content-type": metricsContentType } });
}

/** Buckets are cumulative, and the last one holds everything. */
function histogram(name: string, labels: Labels, counts: readonly number[], total: number): string[] {
  let below = 0;
  const buckets = [...lateBoundsMs.map((ms) => String(ms / 1_000)), "+Inf"].map((le, i) => {
    below += counts[i] ?? 0;
    return line(`${name}_bucket`, { ...labels, le }, below);
  });
  return [...buckets, line(`${name}_sum`, labels, total), line(`${name}_count`, labels, below)];
}

function latencies(kinds: MetricsView["kinds"]): Sample[] {
  const all = named(kinds);
  const total = byName(all, labelLimits.kinds, sum, ({ lateMs }) => seconds(lateMs));
  const buckets = [...lateBoundsMs, null].map((_, i) =>
    byName(all, labelLimits.kinds, sum, ({ late }) => late[i] ?? 0),
  );
  return total.map(({ name, value }, of) => ({
    labels: { kind: name },
    value,
    counts: buckets.map((bucket) => bucket[of]?.value ?? 0),
  }));
}

const named = (kinds: MetricsView["kinds"]) => kinds.map((kind) => ({ ...kind, name: kind.kind }));
const queueSample = ({ name, value }: { readonly name: string; readonly value: number }): Sample => ({
  labels: { queue: name },
  value,
});

const sum = (a: number, b: number): number => a + b;
const max = (a: number, b: number): number => Math.max(a, b);

/** One value for each of the first `limit` names, and one for all others together. Names may come twice, and one may be `other`. */
function byName<Row extends { readonly name: string }>(
  rows: readonly Row[],
  limit: number,
  join: (a: number, b: number) => number,
  of: (row: Row) => number,
): { readonly name: string; readonly value: number }[] {
  const values = new Map<string, number>();
  for (const row of [...rows].sort((a, b) => (a.name < b.name ? -1 : 1))) {
    const name = values.has(row.name) || values.size < limit ? row.name : "other";
    const value = values.get(name);
    values.set(name, value === undefined ? of(row) : join(value, of(row)));
  }
  return [...values].map(([name, value]) => ({ name, value }));
}

/** Those somebody waits for first, then the last seen. An age cannot be summed, so the rest is left out. */
function shownTriggers({ triggers }: Overview): Overview["triggers"] {
  const rank = (type: string) => (type === "cron" ? 0 : 1);
  return [...triggers]
    .sort((a, b) => rank(a.type) - rank(b.type) || Date.parse(b.lastSeenAt) - Date.parse(a.lastSeenAt))
    .slice(0, labelLimits.triggers);
}

const seconds = (ms: number): number => ms / 1_000;
const optional = (value: number | null): readonly Sample[] => (value === null ? [] : [{ value }]);
/** Both instants are the database's, so less than nothing is rounding. */
const ageSeconds = (now: string, at: string): number => Math.max(0, seconds(Date.parse(now) - Date.parse(at)));

function line(name: string, labels: Labels, value: number): string {
  const pairs = Object.entries(labels).map(([label, text]) => `${label}="${escapeLabel(text)}"`);
  return `${name}${pairs.length === 0 ? "" : `{${pairs.join(",")}}`} ${value}`;
}

const escapeHelp = (text: string): string => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
const escapeLabel = (text: string): string => escapeHelp(text).replaceAll('"', '\\"');
