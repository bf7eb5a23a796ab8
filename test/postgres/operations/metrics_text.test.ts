// /metrics end to end: the engine works, wake adds up, and a scrape over the HTTP API says what was done and what stands.

import { beforeEach, describe, expect, it } from "vitest";
import { createApp } from "../../../src/http/app.ts";
import { metrics } from "../../../src/http/metrics.ts";
import { type Claimer, deadLetter, defineJob, retryIn } from "../../../src/index.ts";
import {
  claimingBackends,
  effectTable,
  invoke,
  numbered,
  quick,
  rendezvous,
  upTo,
  watchUnhandled,
} from "../../support/engine.ts";
import { parsePrometheus, type Scraped } from "../../support/prometheus.ts";
import { setup, transports, type World } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

async function scrape(claimer: Claimer): Promise<Map<string, Scraped>> {
  const app = createApp({ claimer: () => claimer, secrets: { read: "read" } });
  const answer = await app.request("/metrics", { headers: { authorization: "Bearer read" } });
  const text = await answer.text();
  expect([answer.status, text.slice(0, 6)]).toEqual([200, "# HELP"]);
  expect(answer.headers.get("content-type")).toBe("text/plain; version=0.0.4; charset=utf-8");
  return parsePrometheus(text);
}

/** The value of one series; its labels as `queue=default,state=ready`. */
function value(scraped: Map<string, Scraped>, name: string, labels = ""): number | undefined {
  const family = [...scraped.values()].find((one) => one.samples.some((sample) => sample.name === name));
  return family?.samples.find(
    (sample) =>
      sample.name === name &&
      Object.entries(sample.labels)
        .map(([label, text]) => `${label}=${text}`)
        .join() === labels,
  )?.value;
}

/** Lets the next wake count everything and sample: ticks and its last turn are as old as they would be a minute later. */
async function aMinuteLater(world: World): Promise<void> {
  await world.sql.query("update pgclaim.tick set decided_at = decided_at - interval '1 minute'");
  await world.sql.query(
    "update pgclaim.housekeeping set ran_at = ran_at - interval '1 minute', upto = upto - interval '1 minute'",
  );
}

describe.each(transports)("a scrape over %s", (transport) => {
  it("of a new installation has every metric, and zeros where zero is the truth", async () => {
    const world = await setup();
    const claimer = world.claimer(transport, { jobs: [defineJob({ kind: "none", payload: numbered, run() {} })] });
    const before = await scrape(claimer);
    expect([...before.keys()]).toEqual(metrics.map(({ name }) => name));
    expect(value(before, "pgclaim_sample_age_seconds")).toBeUndefined();
    await invoke(claimer);
    const after = await scrape(claimer);
    expect(value(after, "pgclaim_dead_letters")).toBe(0);
    expect(value(after, "pgclaim_job_results_total", "kind=none,result=done")).toBe(0);
    expect(value(after, "pgclaim_job_latency_seconds_count", "kind=none")).toBe(0);
    expect(value(after, "pgclaim_ticks_total", "outcome=committed")).toBe(0);
  });

  it("says what was done, what failed, what stands and why", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "report",
      payload: numbered,
      queue: "reports",
      orderingKey: "account:{n}",
      run: ({ payload: { n } }) => (n === 1 ? deadLetter("no") : n === 2 ? retryIn("1h") : undefined),
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      [1, 2, 3, 4, 1, 1].map((n) => ({ n })),
    );
    await claimer.enqueue(job, { n: 5 }, { deadlineAt: new Date(Date.now() - 1_000) });
    await claimer.enqueue(job, { n: 6 }, { delay: "1h", deadlineAt: new Date(Date.now() + 7_200_000) });
    await invoke(claimer);
    await aMinuteLater(world);
    await invoke(claimer);
    const scraped = await scrape(claimer);
    const result = (name: string) => value(scraped, "pgclaim_job_results_total", `kind=report,result=${name}`);
    expect(["done", "retried", "dead", "missed"].map(result)).toEqual([2, 1, 1, 1]);
    expect(value(scraped, "pgclaim_job_latency_seconds_count", "kind=report")).toBe(2);
    expect(value(scraped, "pgclaim_job_latency_seconds_sum", "kind=report")).toBeGreaterThan(0);
    expect(value(scraped, "pgclaim_ticks_total", "outcome=committed")).toBe(1);
    expect(value(scraped, "pgclaim_claims_total")).toBeGreaterThanOrEqual(5);
    const depth = (state: string) => value(scraped, "pgclaim_jobs", `queue=reports,state=${state}`);
    expect(["ready", "retrying", "scheduled", "blocked", "dead"].map(depth)).toEqual([0, 1, 1, 2, 2]);
    expect(value(scraped, "pgclaim_dead_letters")).toBe(2);
    expect(value(scraped, "pgclaim_missed_deadlines")).toBe(1);
    expect(value(scraped, "pgclaim_halted_keys")).toBe(2);
    expect(value(scraped, "pgclaim_halted_jobs")).toBe(2);
    expect(value(scraped, "pgclaim_late_jobs")).toBe(0);
    expect(value(scraped, "pgclaim_tightest_slack_seconds")).toBeGreaterThan(7_000);
    expect(value(scraped, "pgclaim_running_jobs", "queue=reports")).toBe(0);
    expect(value(scraped, "pgclaim_sample_age_seconds")).toBeLessThan(60);
    // Counters never go back, and a scrape changes nothing.
    expect(result("done")).toBe(value(await scrape(claimer), "pgclaim_job_results_total", "kind=report,result=done"));
  });

  it("counts a lost tick, and the jobs that run while it is asked", async () => {
    const world = await setup();
    await effectTable(world);
    const meeting = rendezvous();
    const job = defineJob({
      kind: "stands",
      payload: numbered,
      run: ({ payload: { n }, job: { attempt } }) => (attempt === 1 ? meeting.meet(n) : undefined),
    });
    const claimer = world.claimer(transport, { jobs: [job], limits: quick });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    const invocation = invoke(claimer);
    await Promise.all(upTo(2).map(meeting.arrived));
    expect(value(await scrape(claimer), "pgclaim_running_jobs", "queue=default")).toBe(2);
    for (const pid of await claimingBackends(world)) await world.sql.query("select pg_terminate_backend($1)", [pid]);
    await invocation;
    for (const n of upTo(2)) meeting.release(n);
    await aMinuteLater(world);
    await invoke(claimer);
    expect(value(await scrape(claimer), "pgclaim_ticks_total", "outcome=lost")).toBe(1);
  });
});

describe("a trigger", () => {
  it("that has not come for long is silent; who calls by hand owes nothing", async () => {
    const world = await setup();
    const claimer = world.claimer("pg", { jobs: [defineJob({ kind: "none", payload: numbered, run() {} })] });
    await claimer.invoke({ type: "cron", cron: "* * * * *", scheduledAt: null });
    await claimer.invoke({ type: "manual" });
    const silent = (scraped: Map<string, Scraped>, trigger: string) =>
      value(scraped, "pgclaim_trigger_silent", `trigger=${trigger}`);
    const before = await scrape(claimer);
    expect([silent(before, "cron * * * * *"), silent(before, "manual")]).toEqual([0, 0]);
    expect(value(before, "pgclaim_trigger_interval_seconds", "trigger=cron * * * * *")).toBe(60);
    await world.sql.query("update pgclaim.trigger set last_seen_at = last_seen_at - interval '6 minutes'");
    const after = await scrape(claimer);
    expect([silent(after, "cron * * * * *"), silent(after, "manual")]).toEqual([1, 0]);
    expect(value(after, "pgclaim_trigger_age_seconds", "trigger=cron * * * * *")).toBeGreaterThanOrEqual(360);
  });
});
