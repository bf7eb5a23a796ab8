// The HTTP API as a Hono app to mount: check the secret, check the request, ask the claimer, answer. No decisions about
// jobs are made here, and a request that is refused costs no claimer and no database work.

import { type Context, Hono, type MiddlewareHandler } from "hono";
import { HTTPException } from "hono/http-exception";
import { routePath } from "hono/route";
import type { Claimer } from "../claimer.ts";
import { assertKnownKeys } from "../define.ts";
import { toError, UsageError } from "../errors.ts";
import type { JobId, OperatorAnswer, Trigger } from "../model.ts";
import { consoleLog, type Log } from "../report.ts";
import { checkBearer, type Scope, type Secrets } from "./auth.ts";
import { createDashboard, type DashboardOptions } from "./dashboard/app.ts";
import { answerMetrics } from "./metrics.ts";
import {
  maxBodyBytes as defaultMaxBodyBytes,
  parseJobId,
  parseJobs,
  parseName,
  parseNothing,
  parseTrigger,
  readJson,
  type TriggerInput,
} from "./requests.ts";
import { answerError, answerInvocation, deploymentFault, Refusal, safeHeaders } from "./respond.ts";

export type { Scope, Secrets } from "./auth.ts";
export { secretNames } from "./auth.ts";
export type { DashboardOptions } from "./dashboard/app.ts";
export type { ErrorBody } from "./respond.ts";

const optionKeys = ["claimer", "secrets", "maxBodyBytes", "log", "secretCommand", "dashboard"];

export interface AppOptions<Bindings extends object = object> {
  /**
   * Makes or finds the claimer; on Workers `env` is the bindings. Called for each request, after its secret and its body
   * were found right, so that a refused request costs no database work.
   */
  readonly claimer: (env: Bindings) => Claimer | Promise<Claimer>;
  /** The secret of each scope, or where the environment has them. A scope without a secret stays closed (503). */
  readonly secrets: Secrets | ((env: Bindings) => Secrets);
  /** Bytes of a request body, counted while reading; more is answered 413. Default 1,500,000. */
  readonly maxBodyBytes?: number;
  /** Gets one line for each answer of 500 and above. Default: JSON to the console. */
  readonly log?: Log;
  /** The pages at `/`, and how they show themselves. `false`: none. Closed until the operate or the read secret is set. */
  readonly dashboard?: false | DashboardOptions;
  /** The platform's command that sets a secret, for the answer that names a missing one. Default `"wrangler secret put"`. */
  readonly secretCommand?: string;
}

/**
 * The API: `POST /api/trigger`, `GET /api/cron`, `POST /api/jobs`, `GET /api/jobs/{id}`, `POST
 * /api/jobs/{id}/retry|discard|skip|cancel`, `POST /api/queues/{name}/pause|resume`, `GET /api/schedules`, `POST
 * /api/schedules/{name}/pause|resume`, `GET /healthz`.
 *
 * A `budget` in the body of `POST /api/trigger` is cut to the claimer's `budget.http`. With `"wait": false` it is answered
 * 202 at once where the runtime lets work go on after an answer; elsewhere it answers the report as always.
 *
 * Every error is `{ error: { code, message, path? } }`. There is no CORS: this API is for servers. Mounted inside another
 * app, that app answers the addresses which are not listed here.
 *
 * Errors: PGCLAIM_INVALID_OPTION.
 */
export function createApp<Bindings extends object = object>(
  options: AppOptions<Bindings>,
): Hono<{ Bindings: Bindings }> {
  assertKnownKeys(options, optionKeys, "createApp()");
  const { log = consoleLog, maxBodyBytes = defaultMaxBodyBytes } = options;
  const body = (request: Request) => readJson(request, maxBodyBytes);
  const app = new Hono<{ Bindings: Bindings }>();

  app.use(setSafeHeaders);
  app.onError((error, c) => {
    // An app that has routes of its own may throw Hono's own answers in them.
    if (error instanceof HTTPException) return error.getResponse();
    return answerError(error, { route: `${c.req.method} ${routePath(c)}`, log });
  });
  app.notFound((c) => answerError(routeNotFound(), { route: c.req.method, log }));

  app.get("/healthz", (c) => c.json({ ok: true }));

  app.post("/api/trigger", guard("/api/trigger", "trigger"), async (c) => {
    const input = parseTrigger(await body(c.req.raw));
    const claimer = await claimerFor(c);
    const invocation = invoke(claimer, { type: "http", by: "/api/trigger" }, input);
    if (input.wait || !goesOn(c, invocation)) return invocation;
    return c.json({ accepted: true }, 202);
  });

  app.get("/api/cron", refuseHead, guard("/api/cron", "cron"), async (c) =>
    invoke(await claimerFor(c), cronTrigger(c.req.header("x-vercel-cron-schedule"))),
  );

  app.post("/api/jobs", guard("/api/jobs", "enqueue"), async (c) => {
    const { jobs, many } = parseJobs(await body(c.req.raw));
    const enqueued = await (await claimerFor(c)).enqueueByKind(jobs);
    // 201 says that there is a job which was not there before.
    const isNew = enqueued.some(({ type }) => type === "enqueued" || type === "successor");
    return c.json(many ? enqueued : enqueued[0], isNew ? 201 : 200);
  });

  app.get("/api/jobs/:id", guard("/api/jobs/{id}", "read", "operate"), async (c) => {
    const id = parseJobId(c.req.param("id"));
    const job = await (await claimerFor(c)).job(id);
    if (job === null) throw jobNotFound(id);
    return c.json(job);
  });

  for (const verb of ["retry", "discard", "skip", "cancel"] as const) {
    app.post(`/api/jobs/:id/${verb}`, guard(`/api/jobs/{id}/${verb}`, "operate"), async (c) => {
      const id = parseJobId(c.req.param("id"));
      parseNothing(await body(c.req.raw));
      const claimer = await claimerFor(c);
      return c.json(operated(id, verb, await claimer[verb](id)));
    });
  }

  app.get("/metrics", guard("/metrics", "read", "operate"), async (c) => answerMetrics(await claimerFor(c)));

  for (const [verb, method] of [
    ["pause", "pauseQueue"],
    ["resume", "resumeQueue"],
  ] as const) {
    app.post(`/api/queues/:name/${verb}`, guard(`/api/queues/{name}/${verb}`, "operate"), async (c) => {
      const name = parseName(c.req.param("name"), "queue");
      parseNothing(await body(c.req.raw));
      return c.json({ queue: name, changed: await (await claimerFor(c))[method](name) });
    });
    refuseOtherMethods(`/api/queues/:name/${verb}`, "POST, OPTIONS");
  }

  app.get("/api/schedules", guard("/api/schedules", "read", "operate"), async (c) =>
    c.json(await (await claimerFor(c)).schedules()),
  );
  for (const [verb, method] of [
    ["pause", "pauseSchedule"],
    ["resume", "resumeSchedule"],
  ] as const) {
    app.post(`/api/schedules/:name/${verb}`, guard(`/api/schedules/{name}/${verb}`, "operate"), async (c) => {
      const name = parseName(c.req.param("name"), "schedule");
      parseNothing(await body(c.req.raw));
      return c.json({ schedule: name, changed: await (await claimerFor(c))[method](name) });
    });
    refuseOtherMethods(`/api/schedules/:name/${verb}`, "POST, OPTIONS");
  }

  const { claimer, secrets, secretCommand = "wrangler secret put", dashboard = {} } = options;
  if (dashboard !== false)
    app.route("/", createDashboard<Bindings>({ claimer, secrets, log, secretCommand, ...dashboard }));

  refuseOtherMethods("/healthz", "GET, HEAD, OPTIONS");
  refuseOtherMethods("/metrics", "GET, HEAD, OPTIONS");
  refuseOtherMethods("/api/schedules", "GET, HEAD, OPTIONS");
  refuseOtherMethods("/api/jobs/:id/skip", "POST, OPTIONS");
  refuseOtherMethods("/api/jobs/:id/cancel", "POST, OPTIONS");
  refuseOtherMethods("/api/trigger", "POST, OPTIONS");
  refuseOtherMethods("/api/cron", "GET, OPTIONS");
  refuseOtherMethods("/api/jobs", "POST, OPTIONS");
  refuseOtherMethods("/api/jobs/:id", "GET, HEAD, OPTIONS");
  refuseOtherMethods("/api/jobs/:id/retry", "POST, OPTIONS");
  refuseOtherMethods("/api/jobs/:id/discard", "POST, OPTIONS");
  return app;

  function guard(route: string, ...scopes: readonly [Scope, ...Scope[]]): MiddlewareHandler<{ Bindings: Bindings }> {
    return async (c, next) => {
      const refusal = await checkBearer({
        authorization: c.req.header("authorization"),
        scopes,
        secrets: typeof options.secrets === "function" ? options.secrets(c.env) : options.secrets,
        route,
        secretCommand: options.secretCommand ?? "wrangler secret put",
      });
      if (refusal !== null) throw refusal;
      await next();
    };
  }

  async function claimerFor(c: { readonly env: unknown }): Promise<Claimer> {
    try {
      // Hono's type of `env` is lost behind inline middleware; it is what the runtime passed to fetch.
      return await options.claimer(c.env as Bindings);
    } catch (error) {
      throw deploymentFault(error);
    }
  }

  async function invoke(claimer: Claimer, trigger: Trigger, input: Partial<TriggerInput> = {}): Promise<Response> {
    const { budgetMs, queues } = input;
    // Not given: the request's signal. Work in a transaction is finished when its caller has gone.
    return answerInvocation(
      await claimer.invoke(trigger, {
        ...(budgetMs === undefined ? {} : { budget: `${Math.min(budgetMs, claimer.httpBudgetMs)}ms` }),
        ...(queues === undefined ? {} : { queues }),
      }),
    );
  }

  function refuseOtherMethods(path: string, allow: string): void {
    app.all(path, (c) => {
      if (c.req.method === "OPTIONS") return c.body(null, 204, { allow });
      throw methodNotAllowed(allow);
    });
  }
}

/** A user's own routes may have chosen for themselves, so what is set stays. */
const setSafeHeaders: MiddlewareHandler = async (c, next) => {
  try {
    await next();
  } catch (thrown) {
    // Hono's error handler sees Errors only, and drivers reject with events.
    throw toError(thrown);
  }
  if (c.res.status === 101) return; // an upgraded socket must not be wrapped anew
  for (const [name, value] of Object.entries(safeHeaders)) {
    if (!c.res.headers.has(name)) c.header(name, value);
  }
};

/** Hono answers HEAD with the GET handler; this one works, so it must be asked for. */
const refuseHead: MiddlewareHandler = async (c, next) => {
  if (c.req.method === "HEAD") throw methodNotAllowed("GET, OPTIONS");
  await next();
};

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

function operated(
  id: JobId,
  verb: "retry" | "discard" | "skip" | "cancel",
  answer: OperatorAnswer,
): { id: JobId; type: string } {
  switch (answer.type) {
    case "retried":
    case "discarded":
    case "skipped":
    case "cancelled":
    case "requested":
      return { id, type: answer.type };
    case "not-found":
      throw jobNotFound(id);
    case "busy":
      throw new UsageError("PGCLAIM_JOB_BUSY", `Job ${id} is locked by another transaction. Try again in a moment.`);
    case "not-dead":
      throw new UsageError(
        "PGCLAIM_JOB_NOT_DEAD",
        verb === "cancel"
          ? `Job ${id} is ${answer.state}; there is nothing left to cancel.`
          : `Job ${id} is ${answer.state}; expected a dead letter for "${verb}".`,
      );
    default:
      return answer satisfies never;
  }
}

function jobNotFound(id: JobId): UsageError {
  return new UsageError("PGCLAIM_JOB_NOT_FOUND", `There is no job ${id}, or its history has been pruned.`);
}

function routeNotFound(): UsageError {
  return new UsageError(
    "PGCLAIM_ROUTE_NOT_FOUND",
    "No route has this address. Look at its spelling, and for a slash at its end.",
  );
}

function methodNotAllowed(allow: string): Refusal {
  const error = new UsageError("PGCLAIM_INVALID_REQUEST", `This address does not take the method. It takes: ${allow}.`);
  return new Refusal(405, error, { allow });
}
