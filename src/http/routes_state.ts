// What the routes of the installation and its runs do: triggers, queues, kinds, schedules, ticks, holders, charts.

import type { Context } from "hono";
import type { Claimer } from "../claimer.ts";
import { parseDuration } from "../duration.ts";
import { UsageError } from "../errors.ts";
import type { ScheduleView, Trigger } from "../model.ts";
import { answerMetrics } from "./metrics.ts";
import type { Handlers } from "./mount.ts";
import { answerInvocation, invalid } from "./respond.ts";
import { by, type jobHandlers, ofCursor } from "./routes_jobs.ts";
import { defined } from "./schemas.ts";

/** Length of a chart: what the rolled-up minutes can give, and the one shown first. */
const windowMs = { min: 60_000, max: 7 * 86_400_000, usual: 3 * 3_600_000 } as const;

export const stateHandlers: Omit<Handlers, keyof typeof jobHandlers> = {
  health: () => ({ status: 200, body: { ok: true } }),

  async metrics({ claimer }) {
    return answerMetrics(await claimer());
  },

  async trigger({ body: { budget, wait = true, queues } = {}, c, claimer }) {
    const budgetMs = budget === undefined ? undefined : parseDuration(budget, "budget");
    const invocation = invoke(await claimer(), { type: "http", by: "/api/trigger" }, { budgetMs, queues });
    if (wait || !goesOn(c, invocation)) return invocation;
    return { status: 202, body: { accepted: true } };
  },

  async cron({ c, claimer }) {
    return invoke(await claimer(), cronTrigger(c.req.header("x-vercel-cron-schedule")), {});
  },

  listQueues: reading((inspect) => inspect.queues()),
  listKinds: reading((inspect) => inspect.kinds()),
  listTriggers: reading((inspect) => inspect.triggers()),
  listHolders: reading((inspect) => inspect.holders()),
  stats: reading((inspect) => inspect.overview()),

  async pauseQueue({ params: { name }, claimer }) {
    return { status: 200, body: { queue: name, changed: await (await claimer()).pauseQueue(name) } };
  },
  async resumeQueue({ params: { name }, claimer }) {
    return { status: 200, body: { queue: name, changed: await (await claimer()).resumeQueue(name) } };
  },

  async listSchedules({ claimer }) {
    return { status: 200, body: (await (await claimer()).schedules()).map(scheduleAnswer) };
  },
  async pauseSchedule({ params: { name }, claimer }) {
    return { status: 200, body: { schedule: name, changed: await (await claimer()).pauseSchedule(name) } };
  },
  async resumeSchedule({ params: { name }, claimer }) {
    return { status: 200, body: { schedule: name, changed: await (await claimer()).resumeSchedule(name) } };
  },
  async runSchedule({ params: { name }, claimer }) {
    const answer = await (await claimer()).operate.runSchedule(name, by);
    if (answer.type === "not-found") throw notFound(`There is no schedule "${name}".`);
    const isNew = answer.job.type === "enqueued" || answer.job.type === "successor";
    const body = { schedule: name, job: answer.job };
    return isNew ? { status: 201, body } : { status: 200, body };
  },

  async listTicks({ query, claimer }) {
    const { inspect } = await claimer();
    return { status: 200, body: await ofCursor(query.cursor, "query.cursor", inspect.ticks(defined(query))) };
  },
  async getInvocation({ params: { id }, claimer }) {
    const invocation = await (await claimer()).inspect.invocation(id);
    if (invocation === null) throw notFound(`There is no invocation ${id}, it found no work, or it has been pruned.`);
    return { status: 200, body: invocation };
  },

  async terminateHolder({ params, body: { transactionStart }, claimer }) {
    const pid = Number(params.pid);
    const type = await (await claimer()).operate.terminate({ pid, transactionStart, by });
    return { status: 200, body: { pid, type } };
  },

  async series({ query: { window, ...of }, claimer }) {
    const request = { windowMs: window === undefined ? windowMs.usual : windowOf(window), ...defined(of) };
    return { status: 200, body: await (await claimer()).inspect.series(request) };
  },
};

/** A route that is one read without arguments. */
function reading<Body>(read: (inspect: Claimer["inspect"]) => Promise<Body>) {
  return async ({ claimer }: { claimer(): Promise<Claimer> }) => ({
    status: 200 as const,
    body: await read((await claimer()).inspect),
  });
}

function windowOf(text: unknown): number {
  const ms = parseDuration(text, "query.window");
  if (ms < windowMs.min || ms > windowMs.max) throw invalid("query.window", "expected 1m to 7d");
  return ms;
}

/** A schedule as JSON has it. */
function scheduleAnswer({ nextAt, lastAt, pausedAt, ...schedule }: ScheduleView) {
  return {
    ...schedule,
    nextAt: nextAt.toISOString(),
    lastAt: lastAt?.toISOString() ?? null,
    pausedAt: pausedAt?.toISOString() ?? null,
  };
}

async function invoke(
  claimer: Claimer,
  trigger: Trigger,
  { budgetMs, queues }: { readonly budgetMs?: number | undefined; readonly queues?: readonly string[] | undefined },
): Promise<Response> {
  // Not given: the request's signal. Work in a transaction is finished when its caller has gone.
  return answerInvocation(
    await claimer.invoke(trigger, {
      ...(budgetMs === undefined ? {} : { budget: `${Math.min(budgetMs, claimer.httpBudgetMs)}ms` }),
      ...(queues === undefined ? {} : { queues }),
    }),
  );
}

/** Vercel names the schedule in a header. Without one, or with one that is no cron expression, the route is the name. */
function cronTrigger(schedule: string | undefined): Trigger {
  const named = schedule !== undefined && /^[A-Za-z0-9*,/#? -]{1,100}$/.test(schedule);
  return { type: "cron", cron: named ? schedule : "/api/cron", scheduledAt: null };
}

/** Hands an invocation to the runtime, to go on after the answer. False where the runtime has no such thing. */
function goesOn(c: Context, invocation: Promise<unknown>): boolean {
  try {
    c.executionCtx.waitUntil(invocation.catch(() => {}));
    return true;
  } catch {
    return false; // Hono throws where there is no execution context
  }
}

function notFound(message: string): UsageError {
  return new UsageError("PGCLAIM_NOT_FOUND", message);
}
