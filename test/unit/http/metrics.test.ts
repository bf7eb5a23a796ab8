// /metrics as text: every metric, its escapes and its bounds, read back by a strict parser; and docs/metrics.md, row by row.

import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Claimer } from "../../../src/claimer.ts";
import { labelLimits, metrics, metricsText } from "../../../src/http/metrics.ts";
import { DatabaseError } from "../../../src/index.ts";
import {
  type Inspector,
  lateBoundsMs,
  type MetricsView,
  type Overview,
  type QueueRow,
  type TriggerRow,
} from "../../../src/inspection.ts";
import { parsePrometheus } from "../../support/prometheus.ts";
import { bearer, emptyOverview, errorOf, secrets, setup } from "./support.ts";

const now = "2026-11-30T12:00:00.000Z";

function queue(name: string, more: Partial<QueueRow> = {}): QueueRow {
  return {
    name,
    pausedAt: null,
    max: null,
    oldestReadyMs: null,
    nextDueAt: null,
    running: 0,
    depth: {},
    donePerMinute: 0,
    lateMs: { p50: null, p95: null },
    ...more,
  };
}

function trigger(name: string, more: Partial<TriggerRow> = {}): TriggerRow {
  return {
    name,
    type: "cron",
    firstSeenAt: now,
    lastSeenAt: "2026-11-30T11:59:18.500Z",
    lastWorkAt: null,
    everyMs: 60_000,
    status: "ok",
    minutes: [],
    ...more,
  };
}

function overview(more: Partial<Overview> = {}): Overview {
  return { ...emptyOverview, now, ...more };
}

function kind(name: string, more: Partial<MetricsView["kinds"][number]> = {}): MetricsView["kinds"][number] {
  return {
    kind: name,
    queue: "default",
    done: 0,
    retried: 0,
    dead: 0,
    snoozed: 0,
    released: 0,
    cancelled: 0,
    missed: 0,
    late: [],
    lateMs: 0,
    ...more,
  };
}

function view(more: Partial<MetricsView> = {}): MetricsView {
  return { now, kinds: [], ticks: { committed: 0, lost: 0, claimed: 0, skipped: {} }, ...more };
}

const scrape = (o: Partial<Overview> = {}, v: Partial<MetricsView> = {}) =>
  parsePrometheus(metricsText(overview(o), view(v)));
const samples = (scraped: ReturnType<typeof scrape>, name: string) =>
  (scraped.get(name)?.samples ?? []).map((sample) => [sample.labels, sample.value]);

describe("the text", () => {
  it("has HELP and TYPE of every metric, on an installation that has never done anything", () => {
    const scraped = scrape();
    expect([...scraped.values()].map(({ name, type, help }) => ({ name, type, help }))).toEqual(
      metrics.map(({ name, type, help }) => ({ name, type, help })),
    );
    // What is not known yet is absent, never a zero.
    for (const name of ["pgclaim_sample_age_seconds", "pgclaim_tightest_slack_seconds", "pgclaim_history_rows"])
      expect(samples(scraped, name)).toEqual([]);
  });

  it("prints base units", () => {
    const scraped = scrape(
      {
        sampledAt: "2026-11-30T11:59:30.250Z",
        longestRunMs: 8_100,
        queues: [
          queue("reports", { oldestReadyMs: 42_001, running: 3, depth: { ready: { n: 12_480, capped: false } } }),
        ],
        triggers: [trigger("cron */1 * * * *", { status: "silent" }), trigger("http /api/trigger", { everyMs: null })],
        slack: { ...overview().slack, tightestMs: -1_500 },
      },
      { ticks: { committed: 7, lost: 1, claimed: 40, skipped: { busy: 3, behind: 2 } } },
    );
    expect(samples(scraped, "pgclaim_sample_age_seconds")).toEqual([[{}, 29.75]]);
    expect(samples(scraped, "pgclaim_longest_run_seconds")).toEqual([[{}, 8.1]]);
    expect(samples(scraped, "pgclaim_oldest_ready_age_seconds")).toEqual([[{ queue: "reports" }, 42.001]]);
    expect(samples(scraped, "pgclaim_jobs")).toContainEqual([{ queue: "reports", state: "ready" }, 12_480]);
    expect(samples(scraped, "pgclaim_running_jobs")).toEqual([[{ queue: "reports" }, 3]]);
    expect(samples(scraped, "pgclaim_tightest_slack_seconds")).toEqual([[{}, -1.5]]);
    expect(samples(scraped, "pgclaim_trigger_age_seconds")).toEqual([
      [{ trigger: "cron */1 * * * *" }, 41.5],
      [{ trigger: "http /api/trigger" }, 41.5],
    ]);
    expect(samples(scraped, "pgclaim_trigger_interval_seconds")).toEqual([[{ trigger: "cron */1 * * * *" }, 60]]);
    expect(samples(scraped, "pgclaim_trigger_silent")).toEqual([
      [{ trigger: "cron */1 * * * *" }, 1],
      [{ trigger: "http /api/trigger" }, 0],
    ]);
    expect(samples(scraped, "pgclaim_ticks_total")).toEqual([
      [{ outcome: "committed" }, 7],
      [{ outcome: "lost" }, 1],
    ]);
    expect(samples(scraped, "pgclaim_skips_total")).toEqual([
      [{ reason: "behind" }, 2],
      [{ reason: "busy" }, 3],
    ]);
  });

  it("makes a cumulative histogram of the counts", () => {
    const late = lateBoundsMs.map((_, i) => i).concat(100);
    const of = scrape({}, { kinds: [kind("report", { late, lateMs: 12_345 })] }).get("pgclaim_job_latency_seconds");
    expect(of?.samples.map(({ name, labels, value }) => [name.slice(27), labels.le, value]).slice(0, 3)).toEqual([
      ["_bucket", "0.05", 0],
      ["_bucket", "0.1", 1],
      ["_bucket", "0.25", 3],
    ]);
    expect(of?.samples.slice(-3).map(({ name, labels, value }) => [name.slice(27), labels.le, value])).toEqual([
      ["_bucket", "+Inf", 78 + 100],
      ["_sum", undefined, 12.345],
      ["_count", undefined, 178],
    ]);
  });

  it("escapes what stands in a name", () => {
    const name = 'a"b\\c\nd\\n # {}=,é\u202e';
    expect(samples(scrape({ queues: [queue(name)] }), "pgclaim_running_jobs")).toEqual([[{ queue: name }, 0]]);
  });

  it("reads back whatever the database answers", () => {
    const text = fc.string({ unit: "binary" });
    fc.assert(
      fc.property(
        fc.uniqueArray(text, { maxLength: 8 }),
        fc.array(fc.record({ name: text, done: fc.nat(), late: fc.array(fc.nat(1_000), { maxLength: 14 }) })),
        (queues, kinds) => {
          scrape(
            { queues: queues.map((name) => queue(name)), triggers: queues.map((name) => trigger(name)) },
            { kinds: kinds.map(({ name, ...more }) => kind(name, more)) },
          );
        },
      ),
    );
  });
});

describe("labels", () => {
  const names = (n: number, prefix: string) =>
    Array.from({ length: n }, (_, i) => `${prefix}${String(i).padStart(4, "0")}`);

  it("are as many as the limit says, and the rest is `other`", () => {
    const kinds = names(labelLimits.kinds + 5, "kind").map((name) => kind(name, { done: 2, late: [1], lateMs: 10 }));
    // In another order, the same ones keep their series.
    for (const given of [kinds, [...kinds].reverse()]) {
      const scraped = scrape({}, { kinds: given });
      const done = samples(scraped, "pgclaim_job_results_total").filter(
        ([labels]) => (labels as Record<string, string>).result === "done",
      );
      expect(done).toHaveLength(labelLimits.kinds + 1);
      expect(done).toContainEqual([{ kind: "other", result: "done" }, 10]);
      expect(done).toContainEqual([{ kind: "kind0099", result: "done" }, 2]);
      const counts = scraped.get("pgclaim_job_latency_seconds")?.samples.filter(({ name }) => name.endsWith("_count"));
      expect(counts).toHaveLength(labelLimits.kinds + 1);
      expect(counts?.find(({ labels }) => labels.kind === "other")?.value).toBe(5);
    }
  });

  it("sums a kind of the name `other` with the rest, once", () => {
    const kinds = [...names(labelLimits.kinds + 1, "kind"), "other"].map((name) => kind(name, { done: 1 }));
    expect(samples(scrape({}, { kinds }), "pgclaim_job_results_total")).toContainEqual([
      { kind: "other", result: "done" },
      2,
    ]);
  });

  it("takes the greatest age of the queues in `other`, and the sum of their jobs", () => {
    const queues = names(labelLimits.queues + 3, "queue").map((name, i) =>
      queue(name, { oldestReadyMs: i * 1_000, running: 1 }),
    );
    const scraped = scrape({ queues });
    expect(samples(scraped, "pgclaim_oldest_ready_age_seconds")).toContainEqual([{ queue: "other" }, 52]);
    expect(samples(scraped, "pgclaim_running_jobs")).toContainEqual([{ queue: "other" }, 3]);
  });

  it("shows every cron before the HTTP triggers that were seen long ago", () => {
    const http = names(labelLimits.triggers, "http ").map((name) => trigger(name, { type: "http" }));
    const old = trigger("cron 0 0 1 * *", { lastSeenAt: "2026-11-01T00:00:00Z" });
    const scraped = scrape({ triggers: [...http, old] });
    expect(samples(scraped, "pgclaim_trigger_age_seconds")).toHaveLength(labelLimits.triggers);
    expect(samples(scraped, "pgclaim_trigger_age_seconds")[0]?.[0]).toEqual({ trigger: "cron 0 0 1 * *" });
    expect(samples(scraped, "pgclaim_triggers")).toEqual([[{}, labelLimits.triggers + 1]]);
  });
});

describe("GET /metrics", () => {
  const inspect = { overview: async () => overview(), metrics: async () => view() } as unknown as Inspector;
  const appOf = (verbs: Inspector) => setup({}, { claimer: () => ({ inspect: verbs }) as unknown as Claimer }).app;

  it("answers the text to the read and the operate secret, to no other and to nobody without", async () => {
    for (const scope of Object.keys(secrets) as (keyof typeof secrets)[]) {
      const app = appOf(inspect);
      const answer = await app.request("/metrics", { headers: bearer(scope) });
      expect([scope, answer.status]).toEqual([scope, scope === "read" || scope === "operate" ? 200 : 401]);
      if (answer.status !== 200) continue;
      expect(answer.headers.get("content-type")).toBe("text/plain; version=0.0.4; charset=utf-8");
      expect(answer.headers.get("cache-control")).toBe("no-store");
      expect(parsePrometheus(await answer.text()).size).toBe(metrics.length);
    }
    expect((await appOf(inspect).request("/metrics")).status).toBe(401);
  });

  it("answers a database that is away as an error, not as numbers", async () => {
    const away = async () => Promise.reject(new DatabaseError("PGCLAIM_CONNECT_FAILED", "No connection."));
    const app = appOf({ ...inspect, metrics: away });
    const answer = await app.request("/metrics", { headers: bearer("read") });
    expect([answer.status, (await errorOf(answer)).code]).toEqual([503, "PGCLAIM_CONNECT_FAILED"]);
  });

  it("takes GET and HEAD only", async () => {
    const { app, counted } = setup();
    const answer = await app.request("/metrics", { method: "POST", headers: bearer("operate") });
    expect([answer.status, answer.headers.get("allow"), counted.claimers]).toEqual([405, "GET, HEAD, OPTIONS", 0]);
  });
});

describe("docs/metrics.md", () => {
  const page = readFileSync(join(resolve(import.meta.dirname, "../../.."), "docs/metrics.md"), "utf8");
  const rows = page.split("\n").filter((line) => line.startsWith("| `pgclaim_"));

  it("lists every metric of /metrics with type, unit, labels and meaning, and no other", () => {
    expect(rows).toEqual(
      metrics.map(
        ({ name, type, unit, labels, help }) =>
          `| \`${name}\` | ${type} | ${unit} | ${labels.map((label) => `\`${label}\``).join(", ") || "-"} | ${help} |`,
      ),
    );
  });

  it("names the limits of the labels", () => {
    for (const limit of Object.values(labelLimits)) expect(page).toContain(String(limit));
  });

  it("uses base units: a name ends in _seconds where its unit is seconds", () => {
    for (const { name, unit } of metrics) expect([name, unit === "seconds"]).toEqual([name, name.endsWith("_seconds")]);
  });
});

describe("the parser", () => {
  it.each([
    ["# HELP a b\n# TYPE a gauge\na 1", "has no end"],
    ["# HELP a b\na 1\n", "before its TYPE"],
    ["# TYPE a gauge\na 1\n", "without the HELP"],
    ['# HELP a b\n# TYPE a gauge\na{x="""} 1\n', "no label"],
    ["# HELP a b\n# TYPE a gauge\na 1\na 2\n", "twice"],
    ["# HELP a b\n# TYPE a counter\na 1\n", "ends in _total"],
    ["# HELP a b\n# TYPE a gauge\na undefined\n", "no value"],
    ['# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_sum 1\na_count 1\n', "no histogram"],
  ])("refuses %j", (text, why) => {
    expect(() => parsePrometheus(text)).toThrow(why);
  });
});
