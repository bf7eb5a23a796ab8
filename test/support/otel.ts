// The real OpenTelemetry API and SDK as a user of Node sets them up, with exporters that keep what they get.

import { AsyncLocalStorage } from "node:async_hooks";
import { type Context, type ContextManager, context, ROOT_CONTEXT, trace } from "@opentelemetry/api";
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from "@opentelemetry/sdk-metrics";
import { InMemorySpanExporter, type ReadableSpan, SimpleSpanProcessor, TracerProvider } from "@opentelemetry/sdk-trace";
import type { Telemetry } from "../../src/index.ts";

/** What @opentelemetry/context-async-hooks is, in short. */
class AsyncContext implements ContextManager {
  readonly #store = new AsyncLocalStorage<Context>();
  active(): Context {
    return this.#store.getStore() ?? ROOT_CONTEXT;
  }
  with<A extends unknown[], F extends (...args: A) => ReturnType<F>>(
    inside: Context,
    fn: F,
    thisArg?: ThisParameterType<F>,
    ...args: A
  ): ReturnType<F> {
    return this.#store.run(inside, () => fn.call(thisArg, ...args));
  }
  bind<T>(_: Context, target: T): T {
    return target;
  }
  enable(): this {
    return this;
  }
  disable(): this {
    return this;
  }
}
context.setGlobalContextManager(new AsyncContext());

/** One set of providers, and what was exported to them. */
export function openTelemetry() {
  const exporter = new InMemorySpanExporter();
  const tracer = new TracerProvider({ spanProcessors: [new SimpleSpanProcessor({ exporter })] }).getTracer("test");
  const metricExporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
  const reader = new PeriodicExportingMetricReader({ exporter: metricExporter, exportIntervalMillis: 3_600_000 });
  const meters = new MeterProvider({ readers: [reader] });
  const telemetry: Telemetry = { tracer, meter: meters.getMeter("test"), trace, context };
  return {
    telemetry,
    tracer,
    spans: (): ReadableSpan[] => exporter.getFinishedSpans(),
    /** Each data point as `name{attributes}`: its value, or the count of a histogram. */
    async metrics(): Promise<Record<string, number>> {
      await reader.forceFlush();
      const points: Record<string, number> = {};
      for (const { metrics } of metricExporter.getMetrics().at(-1)?.scopeMetrics ?? []) {
        for (const { descriptor, dataPoints } of metrics) {
          for (const { attributes, value } of dataPoints) {
            const labels = Object.entries(attributes).map(([label, text]) => `${label}=${text}`);
            points[`${descriptor.name}{${labels.join()}}`] =
              typeof value === "number" ? value : (value as { count: number }).count;
          }
        }
      }
      await reader.shutdown();
      return points;
    },
  };
}
