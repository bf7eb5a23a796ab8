// The trace context, and who is whose parent, against the real OpenTelemetry SDK.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { context, trace } from "@opentelemetry/api";
import { describe, expect, it } from "vitest";
import { systemClock } from "../../src/clock.ts";
import type { Grant, TickReport } from "../../src/model.ts";
import { Observer } from "../../src/observe.ts";
import { instruments, parseTraceparent, startSpan, type Telemetry, traceparent } from "../../src/telemetry.ts";
import { openTelemetry } from "../support/otel.ts";

const remote = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

describe("a traceparent", () => {
  it("is read and written as W3C says", () => {
    const read = parseTraceparent(remote);
    expect(read).toEqual({
      traceId: "4bf92f3577b34da6a3ce929d0e0e4736",
      spanId: "00f067aa0ba902b7",
      traceFlags: 1,
      isRemote: true,
    });
    expect(read === null ? null : traceparent(read)).toBe(remote);
    // A later version may carry more behind it.
    expect(parseTraceparent(`cc${remote.slice(2)}-what-the-future`)).not.toBeNull();
  });

  it.each([
    "",
    "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
    "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
    `${remote}-more`,
    `${remote}\n`,
    `cc${remote.slice(2)}-${"x".repeat(500)}`,
  ])("%j is none", (text) => {
    expect(parseTraceparent(text)).toBeNull();
  });

  it("of a span that is none is null", () => {
    expect(traceparent({ traceId: "0".repeat(32), spanId: "0".repeat(16), traceFlags: 0 })).toBeNull();
  });
});

const grant = (more: Partial<Grant> = {}): Grant => ({
  jobId: "7",
  attempt: 1,
  kind: "report",
  payload: "{}",
  idempotencyKey: "7-a",
  runAt: new Date(),
  enqueuedAt: new Date(),
  failures: 0,
  deadlineAt: null,
  trace: null,
  ...more,
});

const emptyReport: TickReport = {
  tickId: "t",
  fate: "committed",
  quarantined: false,
  claimed: 0,
  done: 0,
  retried: 0,
  dead: 0,
  cancelled: 0,
  missed: 0,
  atRisk: 0,
  snoozed: 0,
  released: 0,
  skipped: {},
  skips: [],
  jobs: [],
  roundTrips: { session: 0, oneShot: 0 },
  handlerQueries: 0,
  claimMs: 0,
  fenceMs: 0,
  runMs: 0,
  finishMs: 0,
  totalMs: 0,
};

function observe(telemetry: Telemetry) {
  const warnings: string[] = [];
  const observer = new Observer({
    clock: systemClock,
    definitions: new Map(),
    onEvent: null,
    telemetry,
    debug: () => {},
    warn: (message) => warnings.push(message),
  });
  const invocation = observer.invocation("i", { type: "manual" }, "manual");
  return { observer, invocation, tick: invocation.tick("t", false), warnings };
}

describe("a job's span", () => {
  it("is linked to who enqueued it, and its trace is what the handler passes on", () => {
    const { tracer, telemetry } = openTelemetry();
    const span = tracer.startSpan("enqueuer");
    const given = traceparent(span.spanContext());
    const { tick } = observe(telemetry);
    const job = tick.job(grant({ trace: given }));
    expect(job.trace).toMatch(/^00-[0-9a-f]{32}-[0-9a-f]{16}-01$/);
    expect(job.trace).not.toBe(given);
  });

  it("is nobody's where there is no tracer: the enqueuer's trace is passed on", () => {
    const { tick, warnings } = observe({});
    expect(tick.job(grant({ trace: remote })).trace).toBe(remote);
    expect(tick.job(grant()).trace).toBeNull();
    expect(warnings).toEqual([]);
  });

  it("stands alone and is linked where `trace` and `context` are not given", () => {
    const { telemetry, spans } = openTelemetry();
    const { tracer } = telemetry;
    const guard = <T>(call: () => T): T => call();
    const start = { kind: 0, at: Date.now(), attributes: {}, links: [] };
    const only: Telemetry = tracer === undefined ? {} : { tracer };
    const outer = startSpan(only, guard, { ...start, name: "outer", parent: null });
    startSpan(only, guard, { ...start, name: "inner", parent: outer }).end(Date.now(), {}, null);
    outer.end(Date.now(), {}, null);
    const [inner, last] = spans();
    expect(inner?.parentSpanContext).toBeUndefined();
    expect(inner?.links.map((link) => link.context.spanId)).toEqual([last?.spanContext().spanId]);
  });

  it("is the parent of what the handler starts, whoever's handler ran before", async () => {
    const { telemetry, tracer, spans } = openTelemetry();
    const { tick } = observe(telemetry);
    const first = tick.job(grant({ jobId: "1" }));
    const done = { attempt: 1, kind: "report", result: "done" } as const;
    const placesOf: (string | undefined)[] = [];
    const own = async (name: string) => {
      await Promise.resolve();
      const span = tracer.startSpan(name);
      span.end();
      placesOf.push(spans().at(-1)?.parentSpanContext?.spanId);
    };
    let second = tick.job(grant({ jobId: "2" }));
    await first.around(async () => {
      await own("in the first");
      // As a handler that ends starts the next one.
      second = tick.job(grant({ jobId: "3" }));
      await second.around(() => own("in the second"));
    });
    expect(placesOf).toEqual([first.trace?.slice(36, 52), second.trace?.slice(36, 52)]);
    expect(trace.getSpan(context.active())).toBeUndefined();
    tick.ended({ ...emptyReport, jobs: ["1", "2", "3"].map((jobId) => ({ jobId, ...done })) });
    // Each of them is its tick's child, whosever handler it was started from.
    const jobs = spans().filter(({ name }) => name === "process report");
    const [ticks] = spans().filter(({ name }) => name === "pgclaim.tick");
    expect(jobs.map((span) => span.parentSpanContext?.spanId)).toEqual(jobs.map(() => ticks?.spanContext().spanId));
    expect(jobs).toHaveLength(3);
  });

  it("of a tracer that answers nothing leaves the job alone", async () => {
    const nothing = (() => undefined) as never;
    const span = { spanContext: nothing, setAttributes: nothing, setStatus: nothing, end: nothing };
    for (const tracer of [{ startSpan: nothing }, { startSpan: () => span }, { startSpan: () => ({}) as never }]) {
      const { tick } = observe({ tracer });
      const job = tick.job(grant({ trace: remote }));
      expect(job.trace).toBe(remote);
      expect(await job.around(async () => 1)).toBe(1);
      tick.ended({ ...emptyReport, jobs: [{ jobId: "7", attempt: 1, kind: "report", result: "done" }] });
    }
  });

  it("of a context manager that answers a promise of its own leaves nothing unhandled", async () => {
    const { telemetry } = openTelemetry();
    const unhandled: unknown[] = [];
    const listen = (reason: unknown) => unhandled.push(reason);
    process.on("unhandledRejection", listen);
    try {
      const own = { active: () => context.active(), with: async (_: unknown, run: () => unknown) => await run() };
      const { tick } = observe({ ...telemetry, context: own });
      const boom = new Error("the handler's own");
      await expect(tick.job(grant()).around(() => Promise.reject(boom))).rejects.toBe(boom);
      await new Promise((resolve) => setImmediate(resolve));
      expect(unhandled).toEqual([]);
    } finally {
      process.removeListener("unhandledRejection", listen);
    }
  });
});

describe("who enqueues", () => {
  it("gives its active span, and nothing without one", async () => {
    const { telemetry, tracer } = openTelemetry();
    const { observer } = observe(telemetry);
    expect(observer.activeTrace()).toBeNull();
    await tracer.startActiveSpan("request", async (span) => {
      expect(observer.activeTrace()).toBe(traceparent(span.spanContext()));
    });
  });
});

describe("what breaks", () => {
  const broken = (): never => {
    throw new Error("broken");
  };
  const span = { spanContext: broken, setAttributes: broken, setStatus: broken, end: broken };

  it.each<[string, Telemetry]>([
    ["startSpan", { tracer: { startSpan: broken }, trace, context }],
    ["every method of a span", { tracer: { startSpan: () => span }, trace, context }],
    ["setSpan", { ...openTelemetry().telemetry, trace: { setSpan: broken, getActiveSpan: broken } }],
    ["active", { ...openTelemetry().telemetry, context: { active: broken, with: broken } }],
    [
      "with, after it has called",
      {
        ...openTelemetry().telemetry,
        context: {
          active: () => context.active(),
          with(_, fn) {
            void fn();
            return broken();
          },
        },
      },
    ],
    [
      "with, that calls nothing",
      { ...openTelemetry().telemetry, context: { active: () => context.active(), with: () => 0 } },
    ],
    [
      "with, that calls twice",
      { ...openTelemetry().telemetry, context: { active: () => context.active(), with: (_, fn) => [fn(), fn()] } },
    ],
    ["the meter", { meter: { createCounter: broken, createHistogram: broken } }],
    [
      "the instruments",
      { meter: { createCounter: () => ({ add: broken }), createHistogram: () => ({ record: broken }) } },
    ],
  ])("%s: the work is done once, and it is told at most once of each", async (_, telemetry) => {
    const { observer, tick, warnings } = observe(telemetry);
    let ran = 0;
    const job = tick.job(grant());
    const answer = await job.around(async () => {
      ran++;
      return "done";
    });
    job.ended();
    expect([answer, ran]).toEqual(["done", 1]);
    observer.activeTrace();
    expect(warnings.length).toBeLessThanOrEqual(2);
    for (const warning of warnings) expect(warning).toContain("telemetry");
  });
});

describe("instruments", () => {
  it("have names that an exporter for Prometheus turns into those of /metrics", async () => {
    const { metrics } = await import("../../src/http/metrics.ts");
    const known = new Map(metrics.map(({ name, type }) => [name, type]));
    const shared = instruments.flatMap(({ name, type, unit }) => {
      const base = `${name.replaceAll(".", "_")}${unit === "s" ? "_seconds" : ""}`;
      const exported = type === "counter" ? `${base}_total` : base;
      return known.has(exported) ? [[exported, type, known.get(exported)]] : [];
    });
    expect(shared.map(([exported]) => exported)).toEqual([
      "pgclaim_ticks_total",
      "pgclaim_claims_total",
      "pgclaim_skips_total",
      "pgclaim_job_results_total",
      "pgclaim_job_latency_seconds",
    ]);
    for (const [, type, there] of shared) expect(type).toBe(there);
  });
});

describe("docs/telemetry.md", () => {
  const page = readFileSync(join(import.meta.dirname, "../../docs/telemetry.md"), "utf8");

  it("lists every instrument", () => {
    expect(page.split("\n").filter((line) => /^\| `pgclaim\.[a-z.]+` \| (counter|histogram)/.test(line))).toEqual(
      instruments.map(
        ({ name, type, unit, attributes, help }) =>
          `| \`${name}\` | ${type} | ${unit} | ${attributes.map((one) => `\`${one}\``).join(", ") || "-"} | ${help} |`,
      ),
    );
  });

  it("lists every event", () => {
    const source = readFileSync(join(import.meta.dirname, "../../src/events.ts"), "utf8");
    const events = [...source.matchAll(/type: "([a-z]+\.[a-z]+)"/g)].map(([, type]) => type);
    const listed = [...page.matchAll(/^\| `((?:invocation|jobs?|schedule|tick|key|fence)\.[a-z]+)` \|/gm)].map(
      ([, type]) => type,
    );
    expect(events.length).toBeGreaterThan(15);
    expect([...listed].sort()).toEqual([...events].sort());
  });

  it("lists every attribute", () => {
    const source = readFileSync(join(import.meta.dirname, "../../src/observe.ts"), "utf8");
    const attributes = [...source.matchAll(/^\s+"((?:pgclaim|messaging)\.[a-z_.]+)"/gm)].map(([, name]) => name ?? "");
    expect(attributes.length).toBeGreaterThan(20);
    expect(attributes.filter((name) => !page.includes(`\`${name}\``))).toEqual([]);
  });
});
