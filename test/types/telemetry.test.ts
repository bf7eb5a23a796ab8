// The real OpenTelemetry API fits `telemetry`, with no cast and no wrapper; `tsc` is the test.

import { context, type Meter, metrics, type Tracer, trace } from "@opentelemetry/api";
import { expect, it } from "vitest";
import type { PgclaimEvent, Telemetry } from "../../src/index.ts";

function fits(tracer: Tracer, meter: Meter): Telemetry[] {
  return [
    { tracer, meter, trace, context },
    { tracer: trace.getTracer("pgclaim"), meter: metrics.getMeter("pgclaim") },
    { tracer },
    { meter },
    {},
    // @ts-expect-error a meter is no tracer
    { tracer: meter },
    // @ts-expect-error an unknown part
    { tracing: tracer },
  ];
}

/** A union that is closed: a case that is forgotten does not compile. */
function told(event: PgclaimEvent): string {
  switch (event.type) {
    case "invocation.started":
    case "invocation.ended":
      return event.trigger;
    case "jobs.crashed":
      return String(event.count);
    case "schedule.fired":
      return event.schedule;
    case "tick.ended":
      return event.fate;
    case "job.failed":
    case "job.dead":
      return event.code ?? "";
    case "job.started":
    case "job.done":
    case "job.snoozed":
    case "job.cancelled":
    case "job.missed":
    case "job.released":
    case "job.interrupted":
    case "job.unsettled":
    case "key.halted":
    case "fence.refused":
      return `${event.kind} ${event.jobId}:${event.attempt}`;
    default:
      return event satisfies never;
  }
}

it("compiles", () => {
  expect([fits, told]).toHaveLength(2);
});
