// What the engine tells of itself while it works: events, spans and metrics, made of its reports. It decides nothing, and what
// listens to it can neither stop a job nor make it fail.

import type { Clock } from "./clock.ts";
import type { AnyJobDefinition } from "./define.ts";
import { describeError } from "./errors.ts";
import type { OnEvent, PgclaimEvent } from "./events.ts";
import type { Grant, InvocationReport, JobId, JobResult, TickReport, Trigger } from "./model.ts";
import {
  activeTrace,
  type Guard,
  type Measure,
  makeInstruments,
  parseTraceparent,
  type Spanned,
  spanKinds,
  startSpan,
  type Telemetry,
} from "./telemetry.ts";

export interface ObserverOptions {
  readonly clock: Clock;
  readonly definitions: ReadonlyMap<string, AnyJobDefinition>;
  readonly onEvent: OnEvent | null;
  readonly telemetry: Telemetry;
  /** A line of level debug for each event. */
  readonly debug: (event: PgclaimEvent) => void;
  readonly warn: (message: string) => void;
}

/** A handler that runs. */
export interface JobObserver {
  /** W3C traceparent for what the handler calls and enqueues: its own span's, else its enqueuer's, else null. */
  readonly trace: string | null;
  around<T>(handler: () => Promise<T>): Promise<T>;
  /** The handler is over, or was stopped. What became of the job is told when its tick has ended. */
  ended(): void;
}

export class Observer {
  readonly #options: ObserverOptions;
  readonly #measure: Measure;

  constructor(options: ObserverOptions) {
    this.#options = options;
    this.#measure = makeInstruments(options.telemetry.meter, warnOnce(options.warn, "telemetry.meter"));
  }

  /** The traceparent of whoever enqueues right now; null where no span is active. */
  activeTrace(): string | null {
    return activeTrace(this.#options.telemetry, warnOnce(this.#options.warn, "telemetry"));
  }

  invocation(invocationId: string, trigger: Trigger, triggerName: string): InvocationObserver {
    return new InvocationObserver(this.#options, this.#measure, { invocationId, trigger, triggerName });
  }
}

interface InvocationFacts {
  readonly invocationId: string;
  readonly trigger: Trigger;
  readonly triggerName: string;
}

export class InvocationObserver {
  readonly options: ObserverOptions;
  readonly measure: Measure;
  readonly guard: Guard;
  readonly span: Spanned;
  readonly invocationId: string;
  readonly #facts: InvocationFacts;
  readonly #listen: Guard;
  readonly #epoch: number;

  constructor(options: ObserverOptions, measure: Measure, facts: InvocationFacts) {
    this.options = options;
    this.measure = measure;
    this.#facts = facts;
    this.invocationId = facts.invocationId;
    this.guard = warnOnce(options.warn, "telemetry");
    this.#listen = warnOnce(options.warn, "onEvent");
    this.#epoch = options.clock.date().getTime() - options.clock.now();
    this.span = startSpan(options.telemetry, this.guard, {
      name: "pgclaim.invocation",
      kind: spanKinds.internal,
      at: this.at(),
      attributes: {
        "pgclaim.invocation_id": facts.invocationId,
        "pgclaim.trigger": facts.triggerName,
        "pgclaim.trigger_type": facts.trigger.type,
      },
      parent: null,
      links: [],
    });
    this.emit({ type: "invocation.started", invocationId: facts.invocationId, trigger: facts.triggerName });
  }

  /** Milliseconds since 1970 that never go back within an invocation. */
  at(): number {
    return this.#epoch + this.options.clock.now();
  }

  emit(event: PgclaimEvent): void {
    this.options.debug(event);
    const { onEvent } = this.options;
    if (onEvent === null) return;
    this.#listen(() => {
      const answer: unknown = onEvent(event);
      // An async hook: nobody waits for it, and its rejection must not end the process.
      if (answer instanceof Promise) {
        answer.catch((error: unknown) => {
          this.#listen(() => {
            throw error;
          });
        });
      }
    });
  }

  around<T>(work: () => Promise<T>): Promise<T> {
    return this.span.around(work);
  }

  /** What wake found. */
  woken({ crashed, fired }: Pick<InvocationReport, "crashed" | "fired">): void {
    const { invocationId } = this;
    if (crashed > 0) this.emit({ type: "jobs.crashed", invocationId, count: crashed });
    for (const one of fired) this.emit({ type: "schedule.fired", invocationId, ...one });
  }

  tick(tickId: string, quarantined: boolean): TickObserver {
    return new TickObserver(this, tickId, quarantined);
  }

  ended(report: InvocationReport): void {
    const code = report.error?.code ?? null;
    const { trigger, triggerName } = this.#facts;
    this.measure("pgclaim.invocations", 1, { trigger: trigger.type, ended: report.ended });
    this.measure("pgclaim.invocation.duration", report.totalMs / 1_000, { trigger: trigger.type });
    this.span.end(
      this.at(),
      {
        "pgclaim.ended": report.ended,
        "pgclaim.ticks": report.ticks.length,
        "pgclaim.claimed": report.claimed,
        "pgclaim.crashed": report.crashed,
        "pgclaim.round_trips.session": report.roundTrips.session,
        "pgclaim.round_trips.one_shot": report.roundTrips.oneShot,
      },
      code,
    );
    this.emit({
      type: "invocation.ended",
      invocationId: this.invocationId,
      trigger: triggerName,
      ended: report.ended,
      ticks: report.ticks.length,
      claimed: report.claimed,
      done: report.done,
      ms: report.totalMs,
      code,
    });
  }
}

/** A handler that has started, until its tick's fate is known. */
interface Started {
  readonly span: Spanned;
  readonly runAt: Date;
  endedAt: number | null;
}

export class TickObserver {
  readonly #of: InvocationObserver;
  readonly #tickId: string;
  readonly #span: Spanned;
  readonly #started = new Map<JobId, Started>();

  constructor(of: InvocationObserver, tickId: string, quarantined: boolean) {
    this.#of = of;
    this.#tickId = tickId;
    this.#span = startSpan(of.options.telemetry, of.guard, {
      name: "pgclaim.tick",
      kind: spanKinds.internal,
      at: of.at(),
      attributes: {
        "messaging.system": "pgclaim",
        "pgclaim.invocation_id": of.invocationId,
        "pgclaim.tick_id": tickId,
        "pgclaim.quarantined": quarantined,
      },
      parent: of.span,
      links: [],
    });
  }

  around<T>(work: () => Promise<T>): Promise<T> {
    return this.#span.around(work);
  }

  /** A handler is about to start. */
  job(grant: Grant): JobObserver {
    const of = this.#of;
    const startedAt = of.at();
    const queue = of.options.definitions.get(grant.kind)?.policy.queue ?? "default";
    const span = startSpan(of.options.telemetry, of.guard, {
      name: `process ${grant.kind}`,
      kind: spanKinds.consumer,
      at: startedAt,
      attributes: {
        "messaging.system": "pgclaim",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.message.id": grant.jobId,
        "pgclaim.kind": grant.kind,
        "pgclaim.attempt": grant.attempt,
        "pgclaim.failures": grant.failures,
        "pgclaim.tick_id": this.#tickId,
      },
      parent: this.#span,
      links: [grant.trace === null ? null : parseTraceparent(grant.trace)],
    });
    const started: Started = { span, runAt: grant.runAt, endedAt: null };
    this.#started.set(grant.jobId, started);
    const lateMs = Math.max(0, Math.round(startedAt - grant.runAt.getTime()));
    of.emit({ type: "job.started", ...this.#ids(grant), lateMs });
    return {
      trace: span.traceparent ?? grant.trace,
      around: (handler) => span.around(handler),
      ended: () => {
        started.endedAt ??= of.at();
      },
    };
  }

  /** The tick's fate is known: so is what became of its jobs. */
  ended(report: TickReport): void {
    const of = this.#of;
    const code = report.error?.code ?? null;
    for (const job of report.jobs) this.#jobEnded(job, code);
    of.measure("pgclaim.ticks", 1, { outcome: report.fate });
    if (report.claimed > 0) of.measure("pgclaim.claims", report.claimed);
    for (const [reason, n] of Object.entries(report.skipped)) of.measure("pgclaim.skips", n ?? 0, { reason });
    this.#span.end(
      of.at(),
      {
        "messaging.batch.message_count": report.claimed,
        "pgclaim.fate": report.fate,
        "pgclaim.round_trips.session": report.roundTrips.session,
        "pgclaim.round_trips.one_shot": report.roundTrips.oneShot,
        "pgclaim.claim_ms": report.claimMs,
        "pgclaim.fence_ms": report.fenceMs,
        "pgclaim.finish_ms": report.finishMs,
      },
      code,
    );
    of.emit({
      type: "tick.ended",
      invocationId: of.invocationId,
      tickId: this.#tickId,
      fate: report.fate,
      quarantined: report.quarantined,
      claimed: report.claimed,
      skipped: report.skipped,
      ms: report.totalMs,
      code,
    });
  }

  #jobEnded(job: JobResult, tickCode: string | null): void {
    const of = this.#of;
    const { result, kind } = job;
    const code = job.code ?? (result === "interrupted" || result === "unsettled" ? tickCode : null);
    const started = this.#started.get(job.jobId);
    of.measure("pgclaim.job.results", 1, { kind, result });
    if (started !== undefined) {
      const failed = code ?? (result === "dead" ? "dead" : null);
      started.span.end(started.endedAt ?? of.at(), { "pgclaim.result": result }, failed);
      if (job.runMs !== undefined) of.measure("pgclaim.job.duration", job.runMs / 1_000, { kind });
      if (result === "done")
        of.measure("pgclaim.job.latency", Math.max(0, of.at() - started.runAt.getTime()) / 1_000, { kind });
    }
    of.emit(this.#eventOf(job, code));
    const policy = of.options.definitions.get(kind)?.policy;
    const halts = policy?.whenDead === "halt" && policy.orderingKey !== null;
    if (halts && (result === "dead" || result === "missed")) of.emit({ type: "key.halted", ...this.#ids(job) });
  }

  #eventOf(job: JobResult, code: string | null): PgclaimEvent {
    const ids = this.#ids(job);
    const ran = { ...ids, ms: this.#started.has(job.jobId) ? (job.runMs ?? null) : null };
    const dueAt = job.dueAt ?? null;
    switch (job.result) {
      case "retried":
        return { type: "job.failed", ...ran, code, dueAt };
      case "dead":
        return { type: "job.dead", ...ran, code };
      case "snoozed":
        return { type: "job.snoozed", ...ran, dueAt };
      case "missed":
        return { type: "job.missed", ...ids };
      case "refused":
        return { type: "fence.refused", ...ids };
      case "done":
      case "cancelled":
      case "released":
      case "interrupted":
      case "unsettled":
        return { type: `job.${job.result}`, ...ran };
      default:
        return job.result satisfies never;
    }
  }

  #ids({ jobId, kind, attempt }: Pick<Grant, "jobId" | "kind" | "attempt">) {
    return { invocationId: this.#of.invocationId, tickId: this.#tickId, jobId, kind, attempt };
  }
}

/** Runs somebody else's code. What it throws is told once, not for each of a thousand jobs. */
function warnOnce(warn: (message: string) => void, what: string): Guard {
  let told = false;
  return (call) => {
    try {
      return call();
    } catch (error) {
      if (!told) warn(`${what} threw, and the work goes on without it: ${describe(error)}`);
      told = true;
      return null;
    }
  };
}

/** It may throw anything, even what breaks when it is looked at. */
function describe(thrown: unknown): string {
  try {
    return describeError(thrown);
  } catch {
    return "a value that cannot be read";
  }
}
