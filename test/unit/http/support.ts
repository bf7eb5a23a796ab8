// A claimer that records what it is asked, and requests as clients send them. No database.

import type { Claimer } from "../../../src/claimer.ts";
import { type AppOptions, createApp } from "../../../src/http/app.ts";
import * as views from "../../../src/inspection.ts";
import type { InvocationReport, JobView, ScheduleView } from "../../../src/model.ts";

export const secrets = {
  trigger: "trigger-secret-1",
  enqueue: "enqueue-secret-2",
  read: "read-secret-3",
  operate: "operate-secret-4",
  cron: "cron-secret-5",
} as const;

export type Scope = keyof typeof secrets;

export const report: InvocationReport = {
  invocationId: "7f3a",
  trigger: "http /api/trigger",
  startedAt: "2026-11-30T14:00:00.000Z",
  ended: "empty",
  claimed: 1,
  done: 1,
  retried: 0,
  dead: 0,
  snoozed: 0,
  cancelled: 0,
  missed: 0,
  atRisk: 0,
  released: 0,
  skipped: { busy: 2 },
  crashed: 0,
  revision: 1,
  supersededBy: null,
  fired: [],
  roundTrips: { session: 2, oneShot: 2 },
  wakeMs: 3,
  connectMs: 5,
  totalMs: 20,
  ticks: [],
  faults: [],
};

export const view: JobView = {
  id: "9223372036854775807",
  kind: "receipt.send",
  queue: "default",
  state: "dead",
  attempt: 8,
  failures: 8,
  suspect: false,
  runAt: "2026-11-30T14:00:00.000Z",
  enqueuedAt: "2026-11-30T14:00:00.000Z",
  finishedAt: null,
  deadAt: "2026-11-30T15:00:00.000Z",
  deadReason: "attempts",
  lastError: "mail server said no",
  payload: { orderId: "42" },
  orderingKey: null,
  place: null,
  uniqueKey: null,
  deadlineAt: null,
  locks: [],
  attempts: [],
};

export const schedule: ScheduleView = {
  name: "nightly",
  cron: "30 2 * * *",
  timeZone: "Europe/Zurich",
  kind: "receipt.send",
  catchUp: "last",
  nextAt: new Date("2026-12-01T01:30:00.000Z"),
  lastAt: null,
  pausedAt: null,
  fault: null,
};

const { payload: _, locks: __, finishedAt: ___, deadAt, ...shared } = view;
const at = "2026-11-30T14:00:00.000Z";
const none = { n: 0, capped: false };

export const row: views.JobRow = {
  id: view.id,
  kind: view.kind,
  queue: view.queue,
  state: "dead",
  priority: 1,
  attempt: 8,
  failures: 8,
  maxAttempts: 8,
  runAt: at,
  enqueuedAt: at,
  endedAt: deadAt,
  deadReason: "attempts",
  deadlineAt: null,
  slackMs: null,
  orderingKey: null,
  uniqueKey: null,
  why: { reason: "dead", what: null },
  error: "mail server said no",
  preview: '{"orderId": "42"}',
  payloadBytes: 17,
};

/** The same job as `view`. */
export const detail: views.JobDetail = {
  ...row,
  ...shared,
  state: "dead",
  revision: 1,
  trace: null,
  source: null,
  idempotencyKey: "9223372036854775807-6c1e",
  payloadText: '{"orderId": "42"}',
  payloadCut: false,
  attempts: [],
  actions: [],
  locks: [{ class: "job", name: "9223372036854775807", heldBy: null, taken: null, max: null }],
  behind: null,
};

const page = <Row>(items: readonly Row[]): views.Page<Row> => ({ items, next: null, searched: null, now: at });
const tick: views.TickRow = {
  tickId: "t1",
  invocationId: "7f3a",
  trigger: "cron * * * * *",
  n: 1,
  startedAt: at,
  decidedAt: at,
  outcome: "committed",
  quarantined: false,
  claimed: 1,
  outcomes: { done: 1 },
  skipped: { busy: 2 },
  roundTrips: { session: 2, oneShot: 1 },
  wakeMs: 3,
  connectMs: 4,
  claimMs: 5,
  fenceMs: 6,
  runMs: 7,
  totalMs: null,
};

/** What an installation shows in which there is nothing. */
export const emptyOverview: views.Overview = {
  now: at,
  database: "app",
  schema: "pgclaim",
  migration: 4,
  sampledAt: null,
  depth: { ready: none, scheduled: none, retrying: none, blocked: none, dead: none },
  running: 0,
  longestRunMs: null,
  oldestReadyMs: null,
  nextDueAt: null,
  dead: none,
  newestDeadAt: null,
  haltedKeys: none,
  behindHalted: none,
  missed: none,
  slack: {
    late: none,
    under1m: none,
    under5m: none,
    under15m: none,
    over15m: none,
    tightestMs: null,
    tightest: null,
    atRisk: none,
  },
  historyRows: null,
  queues: [],
  triggers: [],
  unregistered: [],
};

/** What each read answers, with something in every list. */
export const read = {
  overview: {
    ...emptyOverview,
    migration: 12,
    depth: { ...emptyOverview.depth, dead: { n: 100_000, capped: true } },
    unregistered: ["invoice.void"],
  } satisfies views.Overview,
  series: {
    from: at,
    to: at,
    stepMs: 60_000,
    points: [{ at, done: 1, failed: 0, dead: 0, p50Ms: 1.5, p95Ms: null, claimed: 1, skipped: 0 }],
  } satisfies views.Series,
  jobs: page([row]),
  job: detail,
  payload: '{"orderId": "42"}',
  count: { n: 1, capped: false, upTo: "9", searched: null },
  deadGroups: {
    groups: [
      {
        kind: "receipt.send",
        reason: "attempts",
        fingerprint: "ab12",
        example: null,
        counts: { h1: 0, h3: 0, h24: 0, d3: 0, d7: 1, all: 1 },
      },
    ],
    searched: 1,
    cut: false,
    now: at,
  },
  keys: page<views.KeyRow>([
    {
      orderingKey: "account:1",
      gate: "key:account:1",
      kind: "receipt.send",
      halted: true,
      haltedAt: at,
      head: "1",
      headState: "dead",
      headError: null,
      next: null,
      behind: none,
      oldestEnqueuedAt: null,
      worstSlackMs: null,
    },
  ]),
  queues: [
    {
      name: "default",
      pausedAt: null,
      max: null,
      oldestReadyMs: 7,
      nextDueAt: null,
      running: 0,
      depth: { ready: none },
      donePerMinute: 0.5,
      lateMs: { p50: null, p95: 9.5 },
    },
  ] satisfies views.QueueRow[],
  kinds: [
    {
      name: "receipt.send",
      queue: "default",
      revision: 1,
      priority: 1,
      timeoutMs: 15_000,
      maxAttempts: 8,
      maxCrashes: 3,
      deadlineMs: null,
      orderingKey: null,
      uniqueKey: null,
      locks: ["a:{k}"],
      whenDead: "halt",
      registered: true,
      waiting: none,
    },
  ] satisfies views.KindRow[],
  triggers: [
    {
      name: "cron * * * * *",
      type: "cron",
      firstSeenAt: at,
      lastSeenAt: at,
      lastWorkAt: null,
      everyMs: 60_000,
      status: "ok",
      minutes: [{ woken: 1, worked: 0 }],
    },
  ] satisfies views.TriggerRow[],
  ticks: page([tick]),
  invocation: {
    invocationId: "7f3a",
    now: at,
    ticks: [{ ...tick, skips: [{ jobId: "1", kind: "receipt.send", reason: "busy", lock: "a:1" }], jobs: [] }],
  } satisfies views.InvocationDetail,
  holders: {
    now: at,
    holders: [
      {
        pid: 4121,
        user: "app",
        applicationName: null,
        state: "idle in transaction",
        stateMs: 1,
        transactionMs: 2,
        transactionStart: "2026-11-30T14:00:00.123456+00:00",
        invocationId: null,
        tickId: null,
        jobs: [{ id: "1", kind: "receipt.send", attempt: 1, sinceMs: 1 }],
        names: [{ class: "exclusive", name: "a:1", shared: false }],
        unknownKeys: ["91ab"],
      },
    ],
    capped: false,
    gone: [],
  } satisfies views.Holders,
  metrics: {
    now: at,
    kinds: [
      {
        kind: "receipt.send",
        queue: "default",
        done: 1,
        retried: 0,
        dead: 0,
        snoozed: 0,
        released: 0,
        cancelled: 0,
        missed: 0,
        late: [1, ...views.lateBoundsMs.map(() => 0)],
        lateMs: 7,
      },
    ],
    ticks: { committed: 1, lost: 0, claimed: 1, skipped: { busy: 2 } },
  } satisfies views.MetricsView,
};

const operations = {
  retry: { type: "retried" },
  discard: { type: "discarded" },
  skip: { type: "skipped" },
  cancel: { type: "cancelled" },
  reschedule: { type: "rescheduled" },
  bulk: { changed: 3, left: 1, more: false, cursor: null },
  runSchedule: { type: "enqueued", job: { type: "enqueued", id: "1" } },
  terminate: "terminated",
} as const;

/** Behaviours of a fake claimer's verbs, `inspect.` and `operate.` among them. */
export type FakeVerbs = Partial<Claimer> & { readonly [verb: `${"inspect" | "operate"}.${string}`]: unknown };

/** A claimer whose calls are recorded; each verb can be given another behaviour. */
export function fakeClaimer(verbs: FakeVerbs = {}): { readonly claimer: Claimer; readonly calls: unknown[][] } {
  const calls: unknown[][] = [];
  const verb = <Args extends unknown[], Result>(name: string, usual: (...args: Args) => Promise<Result>) => {
    const chosen = (verbs as Record<string, unknown>)[name] as typeof usual | undefined;
    return (...args: Args): Promise<Result> => {
      calls.push([name, ...args]);
      return (chosen ?? usual)(...args);
    };
  };
  const group = (name: string, answers: object) =>
    Object.fromEntries(
      Object.entries(answers).map(([one, answer]) => [
        one,
        verb(`${name}.${one}`, async (..._args: unknown[]) => answer),
      ]),
    );
  const claimer = {
    kinds: ["receipt.send"],
    httpBudgetMs: 25_000,
    invoke: verb("invoke", async (..._args: Parameters<Claimer["invoke"]>) => report),
    enqueueByKind: verb("enqueueByKind", async (requests: readonly unknown[]) =>
      requests.map((_, i) => ({ type: "enqueued" as const, id: String(i + 1) })),
    ),
    job: verb("job", async (_id: string) => view),
    inspect: group("inspect", read),
    operate: group("operate", operations),
    pauseQueue: verb("pauseQueue", async (_name: string) => true),
    resumeQueue: verb("resumeQueue", async (_name: string) => true),
    schedules: verb("schedules", async () => [schedule]),
    pauseSchedule: verb("pauseSchedule", async (_name: string) => true),
    resumeSchedule: verb("resumeSchedule", async (_name: string) => true),
  } as unknown as Claimer;
  return { claimer, calls };
}

/** An app with every secret set, its log lines, and how often its claimer was asked for. */
export function setup(verbs: FakeVerbs = {}, options: Partial<AppOptions> = {}) {
  const { claimer, calls } = fakeClaimer(verbs);
  const lines: string[] = [];
  const counted = { claimers: 0 };
  const app = createApp({
    claimer: () => {
      counted.claimers++;
      return claimer;
    },
    secrets,
    log: (line) => lines.push(JSON.stringify(line)),
    ...options,
  });
  return { app, calls, lines, counted };
}

export function bearer(scope: Scope): Record<string, string> {
  return { authorization: `Bearer ${secrets[scope]}` };
}

/** A POST of JSON with the secret of a scope. */
export function post(scope: Scope, body?: unknown, headers: Record<string, string> = {}): RequestInit {
  return {
    method: "POST",
    headers: { ...bearer(scope), ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
    ...(body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body) }),
  };
}

/** A body that comes in pieces and does not say how long it is. */
export function stream(...pieces: readonly (string | Uint8Array)[]): ReadableStream<Uint8Array> {
  let next = 0;
  return new ReadableStream({
    pull(controller) {
      const piece = pieces[next++];
      if (piece === undefined) controller.close();
      else controller.enqueue(typeof piece === "string" ? new TextEncoder().encode(piece) : piece);
    },
  });
}

/** The code, message and path of an error answer; fails if the answer has another shape. */
export async function errorOf(answer: Response): Promise<{ code: string; message: string; path?: string }> {
  const body = (await answer.json()) as { error: { code: string; message: string; path?: string } };
  const keys = Object.keys(body.error).sort();
  if (!/^code,message(,path)?$/.test(keys.join())) throw new Error(`an error with the fields ${keys.join()}`);
  return body.error;
}
