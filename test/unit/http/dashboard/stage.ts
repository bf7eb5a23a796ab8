// A dashboard on a stage: a claimer whose reads are written here, hostile ones where text may be, and a browser's requests. No
// database; what the database really answers, test/browser shows.

import { type AppOptions, createApp } from "../../../../src/http/app.ts";
import type {
  Holders,
  Inspector,
  InvocationDetail,
  JobDetail,
  JobRow,
  KeyRow,
  Operator,
  Overview,
  Series,
  TickRow,
} from "../../../../src/inspection.ts";
import { fakeClaimer, secrets } from "../support.ts";

/** HTML, an attribute's end, a template's hole, a bidi override, a control character. */
export const hostile = `"><script>alert(1)</script><img src=x onerror=alert(2)>'\${7*7}\u202e\u0007 javascript:alert(3)`;

export const now = "2026-11-30T14:03:07.000Z";
const none = { n: 0, capped: false };
const ago = (s: number) => new Date(Date.parse(now) - s * 1_000).toISOString();

export function jobRow(change: Partial<JobRow> = {}): JobRow {
  return {
    id: "9223372036854775807",
    kind: hostile,
    queue: hostile,
    state: "dead",
    priority: 1,
    attempt: 8,
    failures: 8,
    maxAttempts: 8,
    runAt: ago(600),
    enqueuedAt: ago(700),
    endedAt: ago(240),
    deadReason: "attempts",
    deadlineAt: ago(120),
    slackMs: 120_000,
    orderingKey: hostile,
    uniqueKey: hostile,
    why: { reason: "busy", what: hostile },
    error: hostile,
    preview: JSON.stringify({ note: hostile, account: { iban: "DE02120300000000202051" } }),
    payloadBytes: 412,
    ...change,
  };
}

export function jobDetail(change: Partial<JobDetail> = {}): JobDetail {
  return {
    ...jobRow(),
    suspect: true,
    revision: 3,
    place: "17",
    trace: hostile,
    source: hostile,
    idempotencyKey: hostile,
    lastError: `${hostile}\n    at run (${hostile})`,
    payloadText: `{"n": 9007199254740993, "note": ${JSON.stringify(hostile)}, "account": {"iban": "DE02120300000000202051"}}`,
    payloadCut: true,
    attempts: [
      {
        n: 2,
        tick: "t2",
        quarantined: true,
        startedAt: ago(300),
        endedAt: null,
        outcome: "crashed",
        error: null,
        invocationId: hostile,
      },
      {
        n: 1,
        tick: "t1",
        quarantined: false,
        startedAt: ago(690),
        endedAt: ago(680),
        outcome: "failed",
        error: hostile,
        invocationId: null,
      },
    ],
    actions: [{ at: ago(60), verb: hostile, actor: hostile, detail: hostile }],
    locks: [
      {
        class: "exclusive",
        name: hostile,
        heldBy: { pid: 4121, sinceMs: 3_200, mine: false },
        taken: null,
        max: null,
      },
      { class: "limit", name: hostile, heldBy: null, taken: 2, max: 5 },
    ],
    behind: { n: 118, capped: false },
    ...change,
  };
}

export const overview: Overview = {
  now,
  database: hostile,
  schema: "pgclaim",
  migration: 4,
  sampledAt: ago(7),
  depth: {
    ready: { n: 12_480, capped: false },
    scheduled: { n: 100_000, capped: true },
    retrying: { n: 92, capped: false },
    blocked: none,
    dead: { n: 37, capped: false },
  },
  running: 14,
  longestRunMs: 8_100,
  oldestReadyMs: 42_000,
  nextDueAt: new Date(Date.parse(now) + 12_000).toISOString(),
  dead: { n: 37, capped: false },
  newestDeadAt: ago(240),
  haltedKeys: { n: 2, capped: false },
  behindHalted: { n: 118, capped: false },
  missed: { n: 4, capped: false },
  slack: {
    late: none,
    under1m: { n: 3, capped: false },
    under5m: { n: 40, capped: false },
    under15m: { n: 212, capped: false },
    over15m: { n: 9_802, capped: false },
    tightestMs: 38_000,
    tightest: "918273",
    atRisk: { n: 3, capped: false },
  },
  historyRows: 10_200_000,
  queues: [
    {
      name: hostile,
      pausedAt: ago(100),
      max: 5,
      oldestReadyMs: 42_000,
      nextDueAt: null,
      running: 3,
      depth: { ready: { n: 12_200, capped: false }, dead: { n: 37, capped: false } },
      donePerMinute: 180,
      lateMs: { p50: 900, p95: 9_400 },
    },
  ],
  triggers: [
    {
      name: `cron ${hostile}`,
      type: "cron",
      firstSeenAt: ago(90_000),
      lastSeenAt: ago(370),
      lastWorkAt: ago(370),
      everyMs: 60_000,
      status: "silent",
      minutes: Array.from({ length: 60 }, (_, i) => ({ woken: i < 54 ? 1 : 0, worked: i % 5 === 0 && i < 54 ? 1 : 0 })),
    },
  ],
  unregistered: [hostile],
};

export const series: Series = {
  from: ago(10_800),
  to: now,
  stepMs: 60_000,
  points: Array.from({ length: 180 }, (_, i) => i)
    .filter((i) => i < 60 || i > 75)
    .map((i) => ({
      at: ago(10_800 - i * 60),
      done: Math.round(90 + 60 * Math.sin(i / 14) + ((i * 37) % 23)),
      failed: i % 17 === 0 ? 9 : 1,
      dead: 0,
      p50Ms: 400 + ((i * 53) % 300),
      p95Ms: 2_000 + ((i * 91) % 7_000),
      claimed: 100 + ((i * 31) % 60),
      skipped: (i * 7) % 40,
    })),
};

const key: KeyRow = {
  orderingKey: hostile,
  gate: "1",
  kind: hostile,
  halted: true,
  haltedAt: ago(300),
  head: "918273",
  headState: "dead",
  headError: hostile,
  next: "918274",
  behind: { n: 10_000, capped: true },
  oldestEnqueuedAt: ago(900),
  worstSlackMs: -120_000,
};

export const tick: TickRow = {
  tickId: "7f3a0000-0000-4000-8000-000000000001",
  invocationId: hostile,
  trigger: hostile,
  n: 1,
  startedAt: ago(30),
  decidedAt: ago(29),
  outcome: "committed",
  quarantined: false,
  claimed: 20,
  outcomes: { done: 18, retried: 1, released: 1 },
  skipped: { busy: 4, behind: 1 },
  roundTrips: { session: 2, oneShot: 1 },
  wakeMs: 11,
  connectMs: 38,
  claimMs: 9,
  fenceMs: 7,
  runMs: 642,
  totalMs: 842,
};

export const invocation: InvocationDetail = {
  invocationId: hostile,
  now,
  ticks: [
    {
      ...tick,
      skips: [{ jobId: "7", kind: hostile, reason: "busy", lock: hostile }],
      jobs: [
        {
          jobId: "8",
          kind: hostile,
          attempt: 1,
          outcome: "failed",
          startedAt: ago(30),
          endedAt: ago(29),
          error: hostile,
        },
      ],
    },
  ],
};

export const holders: Holders = {
  now,
  holders: [
    {
      pid: 4121,
      user: hostile,
      applicationName: hostile,
      state: "idle in transaction",
      stateMs: 3_100,
      transactionMs: 3_200,
      transactionStart: "2026-11-30 14:03:04.123456+00",
      invocationId: hostile,
      tickId: "t",
      jobs: [{ id: "8", kind: hostile, attempt: 1, sinceMs: 3_200 }],
      names: [{ class: "exclusive", name: hostile, shared: false }],
      unknownKeys: ["0x91ab"],
    },
    {
      pid: 4122,
      user: null,
      applicationName: null,
      state: null,
      stateMs: null,
      transactionMs: null,
      transactionStart: null,
      invocationId: null,
      tickId: null,
      jobs: [],
      names: [],
      unknownKeys: ["0x91ac"],
    },
  ],
  capped: true,
  gone: [{ id: "9", kind: hostile, attempt: 2, sinceMs: 61_000 }],
};

export const reads: Inspector = {
  overview: async () => overview,
  series: async () => series,
  jobs: async ({ state }) => ({
    items: [
      jobRow(),
      jobRow({
        id: "918274",
        state: state ?? "ready",
        endedAt: null,
        deadReason: null,
        slackMs: 38_000,
        deadlineAt: "2026-11-30T14:03:45.000Z",
      }),
    ],
    next: hostile,
    searched: 10_000,
    now,
  }),
  job: async (id) => jobDetail({ id }),
  payload: async () => jobDetail().payloadText,
  count: async () => ({ n: 37, capped: false, upTo: "918273", searched: null }),
  deadGroups: async () => ({
    groups: [
      {
        kind: hostile,
        reason: "attempts",
        fingerprint: "f1",
        example: hostile,
        counts: { h1: 1, h3: 2, h24: 3, d3: 4, d7: 5, all: 37 },
      },
    ],
    searched: 10_000,
    cut: true,
    now,
  }),
  keys: async () => ({ items: [key], next: null, searched: null, now }),
  queues: async () => overview.queues,
  kinds: async () => [],
  triggers: async () => overview.triggers,
  ticks: async () => ({
    items: [tick, { ...tick, outcome: "lost", n: null, trigger: null, roundTrips: null }],
    next: hostile,
    searched: null,
    now,
  }),
  invocation: async () => invocation,
  holders: async () => holders,
  metrics: async () => {
    throw new Error("no page asks for metrics");
  },
};

/** Whose `operate` says what was asked of it. */
export function operator(calls: unknown[]): Operator {
  const note =
    <T>(name: string, answer: T) =>
    async (...args: unknown[]) => {
      calls.push([name, ...args]);
      return answer;
    };
  return {
    retry: note("retry", { type: "retried" }),
    discard: note("discard", { type: "discarded" }),
    skip: note("skip", { type: "skipped" }),
    cancel: note("cancel", { type: "cancelled" }),
    reschedule: note("reschedule", { type: "rescheduled" }),
    bulk: note("bulk", { changed: 34, left: 3, more: false, cursor: null }),
    runSchedule: note("runSchedule", { type: "enqueued", job: { type: "enqueued", id: "77" } }),
    terminate: note("terminate", "terminated"),
  };
}

export interface Stage {
  readonly app: { request(path: string, init?: RequestInit): Response | Promise<Response> };
  readonly calls: unknown[];
}

/** The whole app as it is deployed, with these reads. */
export function stage(
  change: { readonly inspect?: Partial<Inspector>; readonly app?: Partial<AppOptions> } = {},
): Stage {
  const calls: unknown[] = [];
  const claimer = {
    ...fakeClaimer().claimer,
    inspect: { ...reads, ...change.inspect },
    operate: operator(calls),
    schedules: async () => [
      {
        name: hostile,
        cron: "*/5 * * * *",
        timeZone: "Europe/Berlin",
        kind: hostile,
        catchUp: "last" as const,
        nextAt: new Date("2026-11-30T14:05:00Z"),
        lastAt: new Date(now),
        pausedAt: null,
        fault: "PC003",
      },
    ],
    pauseQueue: async (name: string) => calls.push(["pauseQueue", name]) > 0,
    resumeQueue: async (name: string) => calls.push(["resumeQueue", name]) > 0,
    pauseSchedule: async (name: string) => calls.push(["pauseSchedule", name]) > 0,
    resumeSchedule: async (name: string) => calls.push(["resumeSchedule", name]) > 0,
  };
  const app = createApp({ claimer: () => claimer, secrets, log: () => {}, ...change.app });
  return { app: app as unknown as Stage["app"], calls };
}

export const origin = "http://localhost";

/** What a browser sends with a form of ours. */
export function post(
  fields: Readonly<Record<string, string>> | URLSearchParams,
  cookie = "",
  change: Readonly<Record<string, string>> = {},
): RequestInit {
  return {
    method: "POST",
    body: new URLSearchParams(fields),
    headers: {
      "content-type": "application/x-www-form-urlencoded",
      origin,
      "sec-fetch-site": "same-origin",
      cookie,
      ...change,
    },
  };
}

/** Logs in and answers the cookie, as the browser sends it back. */
export async function logIn(app: Stage["app"], secret: string = secrets.operate): Promise<string> {
  const answer = await app.request("/login", post({ secret, back: "/" }));
  return answer.headers.get("set-cookie")?.split(";")[0] ?? "";
}
