// One wake-up of the runtime: wake, connect, ticks until nothing is left or the budget is spent, close, report.

import { type Clock, wait } from "./clock.ts";
import type { AnyJobDefinition } from "./define.ts";
import { PgclaimError } from "./errors.ts";
import type { Deployment, Gateway, Session, WakeAnswer } from "./gateway.ts";
import { enterTick, isQuarantineRunning } from "./latch.ts";
import { busyRetryBaseMs, counts, type Limits } from "./limits.ts";
import type { InvocationReport, ReportedError, TickReport, Trigger } from "./model.ts";
import type { InvocationObserver, Observer, TickObserver } from "./observe.ts";
import {
  type InvocationNotes,
  invocationLine,
  invocationReport,
  type Log,
  reportedError,
  storedTriggerName,
  triggerName,
} from "./report.ts";
import { firing, maxOccurrences } from "./schedule.ts";
import { type TickContext, tick } from "./tick.ts";

export interface InvocationOptions {
  readonly gateway: Gateway;
  readonly clock: Clock;
  readonly limits: Limits;
  readonly log: Log;
  readonly definitions: ReadonlyMap<string, AnyJobDefinition>;
  /** What this deployment registers, and the digest by which the database knows it. */
  readonly deployment: () => Promise<Deployment & { readonly digest: string }>;
  readonly tickSlots: number | null;
  readonly queues: readonly string[];
  readonly batch: number;
  readonly concurrency: number;
  readonly maxTicks: number;
  readonly historyMs: number | null;
  readonly observer: Observer;
}

type Ended = InvocationReport["ended"];

/** Runs one invocation of at most `budgetMs`. Rejects for a UsageError of the caller's making only. */
export async function invoke(
  options: InvocationOptions,
  trigger: Trigger,
  budgetMs: number,
): Promise<InvocationReport> {
  const { clock, log } = options;
  const startedAt = clock.now();
  const notes: InvocationNotes = {
    invocationId: crypto.randomUUID(),
    trigger,
    startedAt: clock.date().toISOString(),
    ticks: [],
    crashed: 0,
    revision: null,
    supersededBy: null,
    fired: [],
    faults: [],
    oneShots: 0,
    wakeMs: 0,
    connectMs: 0,
  };
  const observe = options.observer.invocation(notes.invocationId, trigger, triggerName(trigger));
  let ended: Ended = "error";
  let error: ReportedError | null = null;
  try {
    const until = startedAt + budgetMs - options.limits.reserveMs;
    ended = await observe.around(() => work(options, notes, observe, until));
    if (ended === "error") error = notes.ticks.at(-1)?.error ?? null;
  } catch (thrown) {
    error = reportedError(thrown);
  }
  const report = invocationReport(notes, { ended, totalMs: Math.round(clock.now() - startedAt), error });
  log(invocationLine(report));
  observe.ended(report);
  return report;
}

/** Everything between start and report. `until` is the clock reading at which handlers have to be over. */
async function work(
  options: InvocationOptions,
  notes: InvocationNotes,
  observe: InvocationObserver,
  until: number,
): Promise<Ended> {
  if (isQuarantineRunning(options.clock.now())) return "busy";
  const woken = await wake(options, notes);
  observe.woken(notes);
  if (!woken.ready && !woken.suspects) return "idle";
  const invocation = new Invocation(options, notes, observe, woken.revision);
  try {
    return await invocation.run(woken, until);
  } finally {
    await invocation.close();
  }
}

interface Woken {
  readonly revision: number;
  readonly ready: boolean;
  readonly suspects: boolean;
}

/** One one-shot, and a second one when the database does not know this deployment yet. */
async function wake(options: InvocationOptions, notes: InvocationNotes): Promise<Woken> {
  const { gateway, clock, queues, historyMs } = options;
  const startedAt = clock.now();
  const deployment = await options.deployment();
  const { digest, schedules } = deployment;
  let answer: WakeAnswer | null = null;
  try {
    notes.oneShots++;
    answer = await gateway.wake({
      digest,
      queues,
      schedules: (schedules ?? []).map(({ definition }) => definition),
      historyMs,
      trigger: { name: storedTriggerName(notes.trigger), type: notes.trigger.type },
    });
  } catch (error) {
    // Wake can never be what stops the work. If the database is alive, ask it directly: claim.
    if (
      !(error instanceof PgclaimError) ||
      (error.code !== "PGCLAIM_QUERY_FAILED" && error.code !== "PGCLAIM_LOCKS_EXHAUSTED")
    )
      throw error;
    notes.faults = [{ step: "wake", sqlstate: error.code }];
  }
  let revision = answer?.revision ?? null;
  if (revision === null) {
    notes.oneShots++;
    revision = await gateway.register(deployment);
  }
  notes.revision = revision;
  notes.supersededBy = answer?.supersededBy ?? null;
  notes.wakeMs = Math.round(clock.now() - startedAt);
  if (answer === null) return { revision, ready: true, suspects: false };
  notes.crashed = answer.crashed;
  notes.faults = answer.faults;
  const fired = await fireSchedules(options, notes, deployment, answer);
  notes.wakeMs = Math.round(clock.now() - startedAt);
  return { revision, ready: answer.ready || fired, suspects: answer.suspects };
}

/** Fires the schedules that are due, all of them by one one-shot. Answers whether anything is due after it. */
async function fireSchedules(
  { gateway, queues }: InvocationOptions,
  notes: InvocationNotes,
  { schedules }: Deployment,
  answer: WakeAnswer,
): Promise<boolean> {
  const now = new Date(answer.now);
  // A share of the occurrences for each, so that one with a long outage behind it does not hold up the others.
  const share = Math.ceil(maxOccurrences / Math.max(1, answer.schedules.length));
  const due = answer.schedules.flatMap(({ name, definition, nextAt, fresh }) => {
    const row = schedules?.find((one) => one.name === name && one.definition === definition);
    if (row === undefined) return [];
    return [{ name, definition, nextAt, ...firing(row, { nextAt: new Date(nextAt), fresh, now }, share) }];
  });
  if (due.length === 0) return false;
  try {
    notes.oneShots++;
    const { fired, faults, ready } = await gateway.fire({ queues, schedules: due });
    notes.fired = fired
      .filter(({ jobs, duplicates }) => jobs.length + duplicates.length > 0)
      .map(({ name, jobs, duplicates }) => ({ schedule: name, jobs, duplicates }));
    notes.faults = [...notes.faults, ...faults.map(({ name, sqlstate }) => ({ step: `schedule ${name}`, sqlstate }))];
    return ready;
  } catch (error) {
    if (!(error instanceof PgclaimError)) throw error;
    // Schedules that cannot be fired must not stop the work that is there. They stay due.
    notes.faults = [...notes.faults, { step: "schedules", sqlstate: error.code }];
    return false;
  }
}

/** Whether others hold what is due, and may be done in a moment. */
function isHeldUp({ skipped }: TickReport): boolean {
  return (["busy", "limit-full", "reserved", "tick-slots"] as const).some((reason) => (skipped[reason] ?? 0) > 0);
}

class Invocation {
  readonly #options: InvocationOptions;
  readonly #notes: InvocationNotes;
  readonly #observe: InvocationObserver;
  readonly #revision: number;
  #session: Session | null = null;
  #opened = 0;

  constructor(options: InvocationOptions, notes: InvocationNotes, observe: InvocationObserver, revision: number) {
    this.#options = options;
    this.#notes = notes;
    this.#observe = observe;
    this.#revision = revision;
  }

  async run(woken: Woken, until: number): Promise<Ended> {
    const share = this.#share(woken, until);
    let ended: Ended = "empty";
    if (share.normal > 0) ended = await this.#normalTicks(share.normal);
    if (share.quarantine && (ended === "empty" || ended === "budget")) {
      const quarantined = await this.#quarantinedTicks(until, ended === "empty");
      if (quarantined !== null) ended = quarantined;
    }
    return ended;
  }

  async close(): Promise<void> {
    await this.#session?.close();
  }

  /**
   * Until when normal work may run, and whether a suspect gets its turn. Normal work goes first, and time for one suspect
   * is kept at the end. Where the budget is too short for both, a draw decides, so neither starves the other.
   */
  #share(woken: Woken, until: number): { readonly normal: number; readonly quarantine: boolean } {
    if (!woken.suspects) return { normal: until, quarantine: false };
    if (!woken.ready) return { normal: 0, quarantine: true };
    const longest = Math.max(0, ...this.#handled().map(({ policy }) => policy.timeoutMs));
    if (this.#options.clock.now() + 2 * longest <= until) return { normal: until - longest, quarantine: true };
    return this.#options.clock.random() < 0.5 ? { normal: until, quarantine: false } : { normal: 0, quarantine: true };
  }

  async #normalTicks(until: number): Promise<Ended> {
    const { clock, maxTicks } = this.#options;
    let busyTries = 0;
    for (let ticks = 0; ticks < maxTicks; ticks++) {
      const report = await this.#tick({ quarantined: false, until });
      if (typeof report === "string") return report;
      if (report.error !== undefined) return "error";
      if (report.claimed > 0) {
        busyTries = 0;
        continue;
      }
      if (!isHeldUp(report) || busyTries >= counts.busyRetries) return "empty";
      // The next cron is a minute away.
      const pauseMs = busyRetryBaseMs * 2 ** busyTries * (0.5 + clock.random());
      busyTries++;
      if (clock.now() + pauseMs >= until) return "budget";
      await wait(clock, pauseMs, this.#session?.lost);
    }
    return "max-ticks";
  }

  /** Suspects one by one: one for certain, more while nothing else is due. Null where this isolate has other work. */
  async #quarantinedTicks(until: number, more: boolean): Promise<Ended | null> {
    for (;;) {
      const report = await this.#tick({ quarantined: true, until });
      if (report === "busy") return null;
      if (report === "budget") return null;
      if (report.error !== undefined) return "error";
      if (report.claimed === 0 || !more) return null;
    }
  }

  /** One tick, or why there is none. */
  async #tick(plan: {
    readonly quarantined: boolean;
    readonly until: number;
  }): Promise<TickReport | "busy" | "budget"> {
    const { batch } = this.#options;
    for (;;) {
      const handled = this.#handled();
      const left = plan.until - this.#options.clock.now();
      // What the last tick needed before its first handler; else a late one would claim, fence and hand all of it back.
      const last = this.#notes.ticks.at(-1);
      const setUpMs = last === undefined ? 0 : last.claimMs + last.fenceMs;
      const fits = handled.filter(({ policy }) => policy.timeoutMs + setUpMs <= left).map(({ kind }) => kind);
      if (fits.length === 0 && handled.length > 0) return "budget";
      const session = await this.#openSession();
      const now = this.#options.clock.now();
      const leave = enterTick({ quarantined: plan.quarantined, now, expiresAt: this.#overBy(plan.until) });
      if (leave === null) return "busy";
      try {
        const tickId = crypto.randomUUID();
        const observe = this.#observe.tick(tickId, plan.quarantined);
        const report = await observe.around(() =>
          tick(this.#context(session, observe), {
            tickId,
            n: this.#notes.ticks.length + 1,
            quarantined: plan.quarantined,
            kinds: fits,
            unfit: handled.map(({ kind }) => kind).filter((kind) => !fits.includes(kind)),
            batch,
            hardAt: plan.until,
          }),
        );
        observe.ended(report);
        this.#notes.ticks.push(report);
        // A pipelined connect fails at the first query. Nothing was fenced, so it is simply done again, once.
        const again =
          report.fate === "refused" && session.lost.aborted && report.error?.code !== "PGCLAIM_AUTHENTICATION_FAILED";
        if (!again || this.#opened >= 2 || this.#notes.ticks.length > 1) return report;
        await this.#pauseBeforeConnect();
      } finally {
        leave();
      }
    }
  }

  /** The session, opened once; a connect that fails for the moment is tried once more. */
  async #openSession(): Promise<Session> {
    if (this.#session !== null && !this.#session.lost.aborted) return this.#session;
    await this.#session?.close();
    const { gateway, clock } = this.#options;
    const startedAt = clock.now();
    for (;;) {
      this.#opened++;
      const session = gateway.session();
      this.#session = session;
      try {
        await session.connect();
        this.#notes.connectMs += Math.round(clock.now() - startedAt);
        return session;
      } catch (error) {
        await session.close();
        if (this.#opened >= 2 || !(error instanceof PgclaimError && error.retryable)) throw error;
        await this.#pauseBeforeConnect();
      }
    }
  }

  /** Many wake-ups at the same second make a waking database refuse some; they should not come back together. */
  #pauseBeforeConnect(): Promise<void> {
    return wait(this.#options.clock, 100 + 300 * this.#options.clock.random());
  }

  /** When a tick is over for certain: handlers, finish and settle have all used up their limits. */
  #overBy(until: number): number {
    const { limits } = this.#options;
    return until + limits.reserveMs + limits.messageMs + limits.settleMs + limits.oneShotMs;
  }

  #handled(): AnyJobDefinition[] {
    return [...this.#options.definitions.values()].filter(({ run }) => run !== null);
  }

  #context(session: Session, observe: TickObserver): TickContext {
    const { gateway, clock, limits, log, definitions, queues, concurrency, tickSlots } = this.#options;
    return {
      tickSlots,
      gateway,
      session,
      clock,
      limits,
      log,
      definitions,
      queues,
      concurrency,
      revision: this.#revision,
      invocationId: this.#notes.invocationId,
      observe,
      trigger: storedTriggerName(this.#notes.trigger),
      wakeMs: this.#notes.wakeMs,
      connectMs: this.#notes.connectMs,
    };
  }
}
