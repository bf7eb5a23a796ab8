// OpenTelemetry without its package: the few methods of its API that are called here, as types of our own. Whatever a tracer or
// a meter does wrong costs one log line of its invocation and never a job.

import { lateBoundsMs } from "./inspection.ts";

export interface TelemetrySpanContext {
  readonly traceId: string;
  readonly spanId: string;
  readonly traceFlags: number;
  readonly isRemote?: boolean;
}

export type TelemetryAttributes = Record<string, string | number | boolean>;

export interface TelemetrySpan {
  spanContext(): TelemetrySpanContext;
  setAttributes(attributes: TelemetryAttributes): unknown;
  setStatus(status: { code: number }): unknown;
  end(endTime?: number): void;
}

export interface TelemetryTracer {
  startSpan(
    name: string,
    options?: {
      kind?: number;
      attributes?: TelemetryAttributes;
      links?: { context: TelemetrySpanContext }[];
      startTime?: number;
    },
    context?: unknown,
  ): TelemetrySpan;
}

export interface TelemetryMeter {
  createCounter(
    name: string,
    options?: { description?: string; unit?: string },
  ): { add(value: number, attributes?: TelemetryAttributes): void };
  createHistogram(
    name: string,
    options?: { description?: string; unit?: string; advice?: { explicitBucketBoundaries?: number[] } },
  ): { record(value: number, attributes?: TelemetryAttributes): void };
}

/** Spans, metrics and trace context; `trace`, `context` and what the getters answer are those of `@opentelemetry/api`. */
export interface Telemetry {
  /** `trace.getTracer("pgclaim")`: a span for each invocation, tick and job. */
  readonly tracer?: TelemetryTracer;
  /** `metrics.getMeter("pgclaim")`: what this process did, under the names of /metrics. */
  readonly meter?: TelemetryMeter;
  /**
   * `trace`. With it and `context` the spans are nested, the handler's own spans and calls are children of its job's, and
   * `enqueue` stores the active span with the job. Without them each span is the root of a trace of its own, and linked.
   */
  readonly trace?: {
    setSpan(context: unknown, span: TelemetrySpan): unknown;
    getActiveSpan(): TelemetrySpan | undefined;
  };
  /** `context`. */
  readonly context?: { active(): unknown; with(context: unknown, fn: () => unknown): unknown };
}

export const telemetryKeys = ["tracer", "meter", "trace", "context"];

/** OpenTelemetry's SpanKind. */
export const spanKinds = { internal: 0, server: 1, client: 2, producer: 3, consumer: 4 } as const;
const statusError = 2;

/** Runs a call into somebody else's code; null when it threw. */
export type Guard = <T>(call: () => T) => T | null;

/** A span, or nothing where there is no tracer or it is broken. */
export interface Spanned {
  /** W3C traceparent of this span; null without one. */
  readonly traceparent: string | null;
  readonly context: TelemetrySpanContext | null;
  /** Runs work with the span active. The work is done once, whatever a context manager does. */
  around<T>(work: () => Promise<T>): Promise<T>;
  /** `at` in milliseconds since 1970. An error is told by its code alone: a message may quote data. */
  end(at: number, attributes: TelemetryAttributes, code: string | null): void;
  /** What a child's parent is. */
  readonly inside: unknown;
}

export interface SpanStart {
  readonly name: string;
  readonly kind: number;
  readonly at: number;
  readonly attributes: TelemetryAttributes;
  readonly parent: Spanned | null;
  readonly links: readonly (TelemetrySpanContext | null)[];
}

export function startSpan({ tracer, trace, context }: Telemetry, guard: Guard, start: SpanStart): Spanned {
  const nests = trace !== undefined && context !== undefined;
  const outside = nests ? (start.parent?.inside ?? guard(() => context.active())) : undefined;
  const links = [...start.links, nests ? null : (start.parent?.context ?? null)];
  const span =
    tracer === undefined
      ? null
      : guard(() =>
          tracer.startSpan(
            start.name,
            {
              kind: start.kind,
              attributes: start.attributes,
              links: links.flatMap((link) => (link === null ? [] : [{ context: link }])),
              startTime: start.at,
            },
            outside ?? undefined,
          ),
        );
  const own = span === null ? null : guard(() => span.spanContext());
  const written = own === null ? null : guard(() => traceparent(own));
  const inside = span !== null && nests ? guard(() => trace.setSpan(outside ?? context.active(), span)) : null;
  return {
    context: own,
    traceparent: written,
    inside,
    around(work) {
      if (inside === null || context === undefined) return work();
      let called: { readonly answer: ReturnType<typeof work> } | null = null;
      const once = () => {
        called ??= { answer: work() };
        return called.answer;
      };
      const passed = guard(() => context.with(inside, once));
      // A promise of its own is nobody's to wait for, and its rejection must not end the process.
      if (passed instanceof Promise) passed.catch(() => {});
      return once();
    },
    end(at, attributes, code) {
      if (span === null) return;
      guard(() => {
        span.setAttributes(code === null ? attributes : { ...attributes, "error.type": code });
        if (code !== null) span.setStatus({ code: statusError });
        span.end(at);
      });
    },
  };
}

/** Reads a W3C traceparent; null where it is none. Source: W3C Trace Context, "Traceparent Header". */
export function parseTraceparent(text: string): TelemetrySpanContext | null {
  const [, version = "", traceId = "", spanId = "", flags = "", more = ""] =
    /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?$/.exec(text) ?? [];
  const known = version !== "" && version !== "ff" && (version !== "00" || more === "") && text.length <= 512;
  if (!known || /^0+$/.test(traceId) || /^0+$/.test(spanId)) return null;
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true };
}

/** The traceparent of a span; null of one that is not valid, as a tracer that does nothing answers it. */
export function traceparent({ traceId, spanId, traceFlags }: TelemetrySpanContext): string | null {
  const text = `00-${traceId}-${spanId}-${(traceFlags & 0xff).toString(16).padStart(2, "0")}`;
  return parseTraceparent(text) === null ? null : text;
}

/** The traceparent of the caller's active span; null without one. */
export function activeTrace({ trace }: Telemetry, guard: Guard): string | null {
  const span = trace === undefined ? null : guard(() => trace.getActiveSpan());
  return span === null || span === undefined ? null : guard(() => traceparent(span.spanContext()));
}

/** What this process counts. Scraped by an exporter for Prometheus they have the names of /metrics, for one process. */
export const instruments = [
  {
    name: "pgclaim.invocations",
    type: "counter",
    unit: "{invocation}",
    attributes: ["trigger", "ended"],
    help: "Invocations ended.",
  },
  {
    name: "pgclaim.invocation.duration",
    type: "histogram",
    unit: "s",
    attributes: ["trigger"],
    help: "How long invocations took.",
  },
  { name: "pgclaim.ticks", type: "counter", unit: "{tick}", attributes: ["outcome"], help: "Ticks by their fate." },
  { name: "pgclaim.claims", type: "counter", unit: "{job}", attributes: [], help: "Jobs claimed." },
  {
    name: "pgclaim.skips",
    type: "counter",
    unit: "{candidate}",
    attributes: ["reason"],
    help: "Candidates left alone, by reason.",
  },
  {
    name: "pgclaim.job.results",
    type: "counter",
    unit: "{attempt}",
    attributes: ["kind", "result"],
    help: "Attempts by kind and what became of the job.",
  },
  {
    name: "pgclaim.job.latency",
    type: "histogram",
    unit: "s",
    attributes: ["kind"],
    help: "From when a job was due to when it was done, by this process's clock.",
  },
  {
    name: "pgclaim.job.duration",
    type: "histogram",
    unit: "s",
    attributes: ["kind"],
    help: "How long handlers ran, waiting for their turn not counted.",
  },
] as const;

export type InstrumentName = (typeof instruments)[number]["name"];
/** Counts or records; a length is in seconds. */
export type Measure = (name: InstrumentName, value: number, attributes?: TelemetryAttributes) => void;

export function makeInstruments(meter: TelemetryMeter | undefined, guard: Guard): Measure {
  if (meter === undefined) return () => {};
  const made = new Map<string, ((value: number, attributes?: TelemetryAttributes) => void) | null>(
    instruments.map(({ name, type, unit, help }) => {
      const options = { description: help, unit };
      if (type === "counter") {
        const counter = guard(() => meter.createCounter(name, options));
        return [name, counter === null ? null : (value, attributes) => counter.add(value, attributes)];
      }
      const advice = { explicitBucketBoundaries: lateBoundsMs.map((ms) => ms / 1_000) };
      const histogram = guard(() => meter.createHistogram(name, { ...options, advice }));
      return [name, histogram === null ? null : (value, attributes) => histogram.record(value, attributes)];
    }),
  );
  return (name, value, attributes) => {
    const use = made.get(name);
    if (use !== null && use !== undefined) guard(() => use(value, attributes));
  };
}
