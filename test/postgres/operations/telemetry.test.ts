// Spans and metrics of the real engine through the real OpenTelemetry SDK: who is whose child, what they carry and what they
// must not, in good runs, failures, lost ticks and quarantine; and a tracer that breaks.

import { context, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import type { ReadableSpan } from "@opentelemetry/sdk-trace";
import { beforeEach, describe, expect, it } from "vitest";
import { createApp } from "../../../src/http/app.ts";
import { deadLetter, defineJob, type Telemetry } from "../../../src/index.ts";
import {
  claimingBackends,
  effect,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  quick,
  rendezvous,
  upTo,
  watchUnhandled,
} from "../../support/engine.ts";
import { openTelemetry } from "../../support/otel.ts";
import { setup, transports } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

const remote = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

const named = (spans: readonly ReadableSpan[], name: string) => spans.filter((span) => span.name === name);
const one = (spans: readonly ReadableSpan[], name: string): ReadableSpan => {
  const [span, ...more] = named(spans, name);
  if (span === undefined || more.length > 0) throw new Error(`${more.length + 1} spans ${name}, or none`);
  return span;
};
const parentOf = (span: ReadableSpan) => span.parentSpanContext?.spanId;
const idOf = (span: ReadableSpan) => span.spanContext().spanId;

describe.each(transports)("spans over %s", (transport) => {
  it("are an invocation's, in it its ticks, in them their jobs, and in those what the handler does", async () => {
    const world = await setup();
    await effectTable(world);
    const { telemetry, tracer, spans, metrics } = openTelemetry();
    const traces: (string | null)[] = [];
    const job = defineJob({
      kind: "report",
      payload: numbered,
      queue: "reports",
      async run({ payload: { n }, tx, trace: given }) {
        traces[n] = given;
        await Promise.resolve();
        tracer.startSpan(`call ${n}`).end();
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], telemetry, batch: 2 });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const report = await invoke(claimer);
    const all = spans();
    const invocation = one(all, "pgclaim.invocation");
    expect(invocation.parentSpanContext).toBeUndefined();
    expect(invocation.attributes).toMatchObject({
      "pgclaim.invocation_id": report.invocationId,
      "pgclaim.trigger": "manual",
      "pgclaim.trigger_type": "manual",
      "pgclaim.ended": "empty",
      "pgclaim.claimed": 3,
    });
    const ticks = named(all, "pgclaim.tick");
    expect(ticks.map(parentOf)).toEqual(report.ticks.map(() => idOf(invocation)));
    expect(ticks.map(({ attributes }) => attributes["pgclaim.tick_id"])).toEqual(
      report.ticks.map((tick) => tick.tickId),
    );
    expect(ticks.map(({ attributes }) => attributes["messaging.batch.message_count"])).toEqual([2, 1, 0]);
    const jobs = named(all, "process report");
    expect(jobs.map(parentOf)).toEqual([ticks[0], ticks[0], ticks[1]].map((tick) => tick && idOf(tick)));
    for (const [i, span] of jobs.entries()) {
      expect(span.kind).toBe(SpanKind.CONSUMER);
      expect(span.status.code).toBe(SpanStatusCode.UNSET);
      expect(span.attributes).toEqual({
        "messaging.system": "pgclaim",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "reports",
        "messaging.message.id": `${i + 1}`,
        "pgclaim.kind": "report",
        "pgclaim.attempt": 1,
        "pgclaim.failures": 0,
        "pgclaim.tick_id": ticks[i === 2 ? 1 : 0]?.attributes["pgclaim.tick_id"],
        "pgclaim.result": "done",
      });
      expect(parentOf(one(all, `call ${i + 1}`))).toBe(idOf(span));
      expect(traces[i + 1]).toBe(`00-${span.spanContext().traceId}-${idOf(span)}-01`);
    }
    // One trace, and a child lies inside its parent.
    expect(new Set(all.map((span) => span.spanContext().traceId)).size).toBe(1);
    const ms = ([s, ns]: readonly [number, number]) => s * 1_000 + ns / 1e6;
    for (const span of [...ticks, ...jobs]) {
      const parent = all.find((other) => idOf(other) === parentOf(span));
      expect(ms(span.startTime)).toBeGreaterThanOrEqual(ms(parent?.startTime ?? [Number.POSITIVE_INFINITY, 0]));
      expect(ms(span.endTime)).toBeLessThanOrEqual(ms(parent?.endTime ?? [0, 0]));
      expect(ms(span.duration)).toBeGreaterThan(0);
    }
    expect(await metrics()).toMatchObject({
      "pgclaim.invocations{trigger=manual,ended=empty}": 1,
      "pgclaim.invocation.duration{trigger=manual}": 1,
      "pgclaim.ticks{outcome=committed}": 2,
      "pgclaim.ticks{outcome=empty}": 1,
      "pgclaim.claims{}": 3,
      "pgclaim.job.results{kind=report,result=done}": 3,
      "pgclaim.job.latency{kind=report}": 3,
      "pgclaim.job.duration{kind=report}": 3,
    });
  });

  it("of failures carry the code and nothing that the handler said", async () => {
    const world = await setup();
    const { telemetry, spans, metrics } = openTelemetry();
    const job = defineJob({
      kind: "fails",
      payload: numbered,
      timeout: "200ms",
      async run({ payload: { n }, signal }) {
        if (n === 1) throw new Error("SECRET");
        if (n === 2) return deadLetter("SECRET");
        await new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("SECRET"))));
        return;
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], telemetry });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    await invoke(claimer);
    const jobs = named(spans(), "process fails");
    const facts = jobs.map(({ attributes, status, events }) => [
      attributes["messaging.message.id"],
      attributes["pgclaim.result"],
      attributes["error.type"],
      status,
      events,
    ]);
    const error = { code: SpanStatusCode.ERROR };
    expect(facts).toEqual([
      ["1", "retried", "PGCLAIM_HANDLER_THREW", error, []],
      ["2", "dead", "dead", error, []],
      ["3", "retried", "PGCLAIM_HANDLER_TIMEOUT", error, []],
    ]);
    // The tick did what a tick is for.
    expect(named(spans(), "pgclaim.tick").map(({ status }) => status.code)).toEqual([0, 0]);
    expect(
      JSON.stringify(spans().map(({ name, attributes, status, events }) => [name, attributes, status, events])),
    ).not.toContain("SECRET");
    expect(await metrics()).toMatchObject({
      "pgclaim.job.results{kind=fails,result=retried}": 2,
      "pgclaim.job.results{kind=fails,result=dead}": 1,
    });
  });

  it("of a lost tick say so, its jobs' too", async () => {
    const world = await setup();
    await effectTable(world);
    const { telemetry, spans } = openTelemetry();
    const meeting = rendezvous();
    const job = defineJob({
      kind: "outside",
      payload: numbered,
      async run({ payload: { n }, tx, job: { attempt } }) {
        if (attempt === 1) await meeting.meet(n);
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], limits: quick, telemetry });
    await claimer.enqueue(job, { n: 1 });
    const invocation = invoke(claimer);
    await meeting.arrived(1);
    for (const pid of await claimingBackends(world)) await world.sql.query("select pg_terminate_backend($1)", [pid]);
    await invocation;
    meeting.release(1);
    for (const name of ["process outside", "pgclaim.tick", "pgclaim.invocation"]) {
      const span = one(spans(), name);
      expect([name, span.status.code, span.attributes["error.type"]]).toEqual([
        name,
        SpanStatusCode.ERROR,
        "PGCLAIM_TX_LOST",
      ]);
    }
    expect(one(spans(), "process outside").attributes["pgclaim.result"]).toBe("interrupted");
    expect(one(spans(), "pgclaim.tick").attributes["pgclaim.fate"]).toBe("lost");
    await invoke(claimer);
    await expectWhole(world, { effects: [1] });
  });
});

describe("quarantine", () => {
  it("is told by the tick's span", async () => {
    const world = await setup();
    const { telemetry, spans } = openTelemetry();
    const job = defineJob({ kind: "any", payload: numbered, run() {} });
    const claimer = world.claimer("pg", { jobs: [job], telemetry });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    await world.sql.query("update pgclaim.job set suspect = true where id = 1");
    await invoke(claimer);
    const jobs = named(spans(), "process any");
    const quarantined = jobs.map((span) => {
      const tick = spans().find((other) => idOf(other) === parentOf(span));
      return [span.attributes["messaging.message.id"], tick?.attributes["pgclaim.quarantined"]];
    });
    expect(quarantined).toEqual([
      ["2", false],
      ["1", true],
    ]);
  });
});

describe("a tracer and a meter that break", () => {
  const broken = (): never => {
    throw new Error("broken");
  };
  const span = { spanContext: broken, setAttributes: broken, setStatus: broken, end: broken };

  it.each<[string, Telemetry]>([
    ["at once", { tracer: { startSpan: broken }, meter: { createCounter: broken, createHistogram: broken } }],
    [
      "later",
      {
        tracer: { startSpan: () => span },
        meter: { createCounter: () => ({ add: broken }), createHistogram: () => ({ record: broken }) },
        trace: { setSpan: broken, getActiveSpan: broken },
        context: { active: broken, with: broken },
      },
    ],
  ])("%s cost a few log lines and no job", async (_, telemetry) => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "plain",
      payload: numbered,
      run: ({ payload: { n }, tx }) => effect(tx, n).then(() => {}),
    });
    const claimer = world.claimer("pg", { jobs: [job], telemetry });
    await claimer.enqueueMany(
      job,
      upTo(20).map((n) => ({ n })),
    );
    expect(await invoke(claimer)).toMatchObject({ ended: "empty", done: 20 });
    await expectWhole(world, { effects: upTo(20) });
    const lines = world.log.filter(({ event }) => event === "pgclaim.observe");
    expect(lines.length).toBeGreaterThan(0);
    expect(lines.length).toBeLessThanOrEqual(3);
  });
});

describe.each(transports)("the trace over %s", (transport) => {
  it("goes from who enqueues to who runs, and on to what that enqueues", async () => {
    const world = await setup();
    const { telemetry, tracer, spans } = openTelemetry();
    const child = defineJob({ kind: "child", payload: numbered, run() {} });
    const parent = defineJob({
      kind: "parent",
      payload: numbered,
      async run({ payload, enqueue }) {
        await enqueue(child, payload);
      },
    });
    const claimer = world.claimer(transport, { jobs: [parent, child], telemetry });
    const request = tracer.startSpan("request");
    await context.with(trace.setSpan(context.active(), request), async () => {
      await claimer.enqueue(parent, { n: 1 });
    });
    request.end();
    await claimer.enqueue(parent, { n: 2 }, { trace: remote });
    await claimer.enqueue(parent, { n: 3 });
    await claimer.enqueueMany(child, [{ n: 4 }], { trace: remote });
    await invoke(claimer);
    const linked = (name: string, of: string) => {
      const span = named(spans(), name).find(({ attributes }) => attributes["messaging.message.id"] === of);
      return span?.links.map((link) => [link.context.traceId, link.context.spanId]);
    };
    const { traceId, spanId } = request.spanContext();
    expect(linked("process parent", "1")).toEqual([[traceId, spanId]]);
    expect(linked("process parent", "2")).toEqual([remote.split("-").slice(1, 3)]);
    expect(linked("process parent", "3")).toEqual([]);
    expect(linked("process child", "4")).toEqual([remote.split("-").slice(1, 3)]);
    // What a handler enqueues is linked to that handler's span.
    const links = named(spans(), "process child").flatMap((span) => span.links.map((link) => link.context.spanId));
    expect(links).toEqual(expect.arrayContaining(named(spans(), "process parent").map(idOf)));
    // Each job's span is in its invocation's trace all the same.
    expect(named(spans(), "process parent").map((span) => span.spanContext().traceId)).not.toContain(traceId);
  });

  it("reaches the handler without any tracer", async () => {
    const world = await setup();
    const seen: (string | null)[] = [];
    const job = defineJob({ kind: "plain", payload: numbered, run: ({ trace: given }) => void seen.push(given) });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueue(job, { n: 1 }, { trace: remote });
    await claimer.enqueue(job, { n: 2 });
    await invoke(claimer);
    expect(seen).toEqual([remote, null]);
    await expect(claimer.enqueue(job, { n: 3 }, { trace: "00-zz" })).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_OPTION",
      path: "trace",
    });
  });
});

describe("the trace over HTTP", () => {
  it("is a field of the job, and refused when it is none", async () => {
    const world = await setup();
    const seen: (string | null)[] = [];
    const job = defineJob({ kind: "plain", payload: numbered, run: ({ trace: given }) => void seen.push(given) });
    const claimer = world.claimer("pg", { jobs: [job] });
    const app = createApp({ claimer: () => claimer, secrets: { enqueue: "secret" } });
    const post = (more: object) =>
      app.request("/api/jobs", {
        method: "POST",
        headers: { authorization: "Bearer secret", "content-type": "application/json" },
        body: JSON.stringify({ kind: "plain", payload: { n: 1 }, ...more }),
      });
    expect((await post({ trace: remote })).status).toBe(201);
    const refused = await post({ trace: `${remote}0` });
    expect([refused.status, await refused.json()]).toEqual([
      400,
      { error: expect.objectContaining({ path: "trace" }) },
    ]);
    await invoke(claimer);
    expect(seen).toEqual([remote]);
  });
});
