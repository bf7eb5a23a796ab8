// A claimer that records what it is asked, and requests as clients send them. No database.

import type { Claimer } from "../../../src/claimer.ts";
import { type AppOptions, createApp } from "../../../src/http/app.ts";
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
  locks: null,
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

/** A claimer whose calls are recorded; each verb can be given another behaviour. */
export function fakeClaimer(verbs: Partial<Claimer> = {}): { readonly claimer: Claimer; readonly calls: unknown[][] } {
  const calls: unknown[][] = [];
  const verb = <Args extends unknown[], Result>(name: string, usual: (...args: Args) => Promise<Result>) => {
    const chosen = (verbs as Record<string, unknown>)[name] as typeof usual | undefined;
    return (...args: Args): Promise<Result> => {
      calls.push([name, ...args]);
      return (chosen ?? usual)(...args);
    };
  };
  const claimer = {
    kinds: ["receipt.send"],
    httpBudgetMs: 25_000,
    invoke: verb("invoke", async (..._args: Parameters<Claimer["invoke"]>) => report),
    enqueueByKind: verb("enqueueByKind", async (requests: readonly unknown[]) =>
      requests.map((_, i) => ({ type: "enqueued" as const, id: String(i + 1) })),
    ),
    job: verb("job", async (_id: string) => view),
    retry: verb("retry", async (_id: string) => ({ type: "retried" as const })),
    discard: verb("discard", async (_id: string) => ({ type: "discarded" as const })),
    skip: verb("skip", async (_id: string) => ({ type: "skipped" as const })),
    cancel: verb("cancel", async (_id: string) => ({ type: "cancelled" as const })),
    pauseQueue: verb("pauseQueue", async (_name: string) => true),
    resumeQueue: verb("resumeQueue", async (_name: string) => true),
    schedules: verb("schedules", async () => [schedule]),
    pauseSchedule: verb("pauseSchedule", async (_name: string) => true),
    resumeSchedule: verb("resumeSchedule", async (_name: string) => true),
  } as unknown as Claimer;
  return { claimer, calls };
}

/** An app with every secret set, its log lines, and how often its claimer was asked for. */
export function setup(verbs: Partial<Claimer> = {}, options: Partial<AppOptions> = {}) {
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
