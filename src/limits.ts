// Every limit of an invocation: its name, default, unit and what breaks when it is wrong. Each has a test at its edge.

import { assertKnownKeys } from "./define.ts";
import { type Duration, parseDuration } from "./duration.ts";
import { UsageError } from "./errors.ts";

/** Time limits that an operator may set, as durations. Leave them alone unless the network is unusual. */
export interface LimitOptions {
  /** Opening the connection and its first answer together, since connect() may resolve before authentication. `"10s"`. */
  readonly connect?: Duration;
  /** One one-shot: wake, fence, settle, enqueue. Longer makes a dead database slower to notice. `"10s"`. */
  readonly oneShot?: Duration;
  /** One of our own messages on the session: claim, savepoints, finish and COMMIT. `"10s"`. */
  readonly message?: Duration;
  /** Saying goodbye; after it the socket is closed hard. `"1s"`. */
  readonly close?: Duration;
  /** What is kept of the budget for finish and close, so that handlers stop before the platform does. `"3s"`. */
  readonly reserve?: Duration;
  /** How long past our own limits the server waits until it ends a transaction we no longer talk about. `"5s"`. */
  readonly serverGrace?: Duration;
  /** How often a tick asks whether somebody cancelled one of its jobs; a shorter one never asks. `"2s"`. */
  readonly cancelPoll?: Duration;
  /**
   * How long a job waits for its names, from when it was due, until it reserves them and others let it pass. Shorter lets jobs
   * with many names run sooner, and those with one name wait for them more often. A reservation that nobody tries to use
   * lapses after ten times as long. `"30s"`.
   */
  readonly reserveAfter?: Duration;
  /**
   * How long a handler that ignores its abort keeps suspects out of its isolate. On Workers it dies with its invocation
   * without a word; elsewhere one that never ends would keep them out for ever. `"60s"`.
   */
  readonly unsettled?: Duration;
  /** How long a settle is repeated while the database cannot be asked, before the tick is reported unknown. `"10s"`. */
  readonly settle?: Duration;
}

export interface Limits {
  readonly connectMs: number;
  readonly oneShotMs: number;
  readonly messageMs: number;
  readonly closeMs: number;
  readonly reserveMs: number;
  readonly serverGraceMs: number;
  readonly settleMs: number;
  readonly cancelPollMs: number;
  readonly reserveAfterMs: number;
  readonly unsettledMs: number;
}

const defaults = {
  connect: "10s",
  oneShot: "10s",
  message: "10s",
  close: "1s",
  reserve: "3s",
  serverGrace: "5s",
  settle: "10s",
  cancelPoll: "2s",
  reserveAfter: "30s",
  unsettled: "60s",
} as const satisfies Required<LimitOptions>;

/** Reads the time limits. Errors: PGCLAIM_INVALID_OPTION. */
export function readLimits(options: LimitOptions = {}): Limits {
  assertKnownKeys(options, Object.keys(defaults), "limits");
  const ms = (name: keyof LimitOptions): number => timerMs(options[name] ?? defaults[name], `limits.${name}`);
  return {
    connectMs: ms("connect"),
    oneShotMs: ms("oneShot"),
    messageMs: ms("message"),
    closeMs: ms("close"),
    reserveMs: ms("reserve"),
    serverGraceMs: ms("serverGrace"),
    settleMs: ms("settle"),
    cancelPollMs: ms("cancelPoll"),
    reserveAfterMs: ms("reserveAfter"),
    unsettledMs: ms("unsettled"),
  };
}

/** A day. Timers and statement_timeout hold 24.8 days; no invocation lives that long, so more is a mistake. */
export const maxTimerMs = 86_400_000;

/** Reads a duration that a timer has to hold, at most a day. Errors: PGCLAIM_INVALID_OPTION. */
export function timerMs(value: unknown, where: string): number {
  const ms = parseDuration(value, where);
  if (ms <= maxTimerMs) return ms;
  throw new UsageError("PGCLAIM_INVALID_OPTION", `${where} is ${ms} ms; expected at most 24h.`, { path: where });
}

/** Limits that are counts. The lock table of a stock server has 64 x 100 entries; see ARCHITECTURE.md, "Lock budget". */
export const counts = {
  /** Jobs of a tick when `batch` is not set; each holds one lock. */
  batch: 25,
  /** `batch` may be set to this at most: 64 such ticks hold 12,800 locks where about 12,800 fit. */
  maxBatch: 200,
  /** Handlers doing external work at once when `concurrency` is not set; Workers let six connections wait. */
  concurrency: 4,
  maxConcurrency: 100,
  /** Candidates a claim looks at before it gives up: 64 ticks of 100 jobs in flight in front of it, and some. */
  maxCandidates: 10_000,
  /** Skips a tick reports by name; all are counted. */
  maxSkips: 100,
  /** Bytes of payload of a tick: what one answer of the fence carries within its limit, and an isolate of 128 MB holds. */
  tickBytes: 16_777_216,
  /** Times a tick that found only busy jobs is repeated before the invocation goes to sleep. */
  busyRetries: 4,
  /** Open attempts a wake looks at, due jobs it moves, rows of each table it prunes. */
  reapSlice: 200,
  dueSlice: 500,
  pruneSlice: 500,
  /** Gates a wake looks at again, requests for a cancel it looks at. */
  gateSlice: 200,
  cancelSlice: 200,
  /** Ticks a wake adds up: some 30 ms. Where there are more, the next wake goes on. */
  rollSlice: 2_000,
  /** What the sample of the queues' depth counts of each cell, and how long it may take about. */
  depthCap: 100_000,
  depthMs: 500,
  /** Skips by name that are kept with a tick. */
  storedSkips: 25,
  /** Interruptions in a row after which a job runs alone, uncharged. */
  interruptedLimit: 5,
  /** Jobs of one enqueueMany. */
  maxEnqueue: 1_000,
} as const;

/** First wait, in milliseconds, before a tick that found only busy jobs is repeated; doubles, with full jitter. */
export const busyRetryBaseMs = 100;

/** How long a cancel that got no answer may still strike, counted from the end of the query it was meant for. */
export const cancelGraceMs = 1_000;
