// pgclaim as a Cloudflare Worker: its events become triggers, its bindings become configuration. Typed by structure, so
// that no version of the platform's types is forced on anybody.

import type { ExecutionContext, Hono } from "hono";
import type { Claimer } from "../claimer.ts";
import { createApp, type DashboardOptions } from "../http/app.ts";
import { answerError, cronError, deploymentFault, errorOf } from "../http/respond.ts";
import type { InvocationReport, Trigger } from "../model.ts";
import { consoleLog, type Log } from "../report.ts";
import { type DeploymentOptions, lazyClaimer, secretsOf } from "./environment.ts";

/** What a Worker's own routes are given. */
export interface AppTools<Env extends object> {
  readonly env: Env;
  /** The claimer, made at the first call. Errors: PGCLAIM_INVALID_DATABASE_URL and those of `createClaimer`. */
  readonly claimer: () => Claimer;
}

/** The options of `createClaimer`; the database is the one of DATABASE_URL unless `database` is given. */
export type WorkerOptions<Env extends object> = DeploymentOptions & {
  /**
   * Adds routes of your own beside the API's, once per isolate. They are open unless they check for themselves; what they
   * throw is answered and logged as everything else is.
   */
  readonly app?: (app: Hono<{ Bindings: Env }>, tools: AppTools<Env>) => void;
  /** The pages at `/`, and how they show themselves. `false`: none. Closed until the operate or the read secret is set. */
  readonly dashboard?: false | DashboardOptions;
};

/** What `scheduled` is given; a `ScheduledController` fits. */
export interface CronEvent {
  readonly cron: string;
  /** When it was planned for, in milliseconds since 1970. */
  readonly scheduledTime: number;
}

/** What both handlers are given; an `ExecutionContext` fits. */
export interface WorkerContext {
  waitUntil(promise: Promise<unknown>): void;
}

export interface WorkerHandlers<Env extends object> {
  fetch(request: Request, env: Env, ctx: WorkerContext): Promise<Response>;
  scheduled(controller: CronEvent, env: Env, ctx: WorkerContext): Promise<void>;
}

const secretCommand = "wrangler secret put";

/**
 * The two handlers of a Worker: `export default createWorker({ jobs: [sendReceipt] })`.
 *
 * Reads DATABASE_URL, the PGCLAIM_..._SECRET of each scope and CRON_SECRET from `env`. `fetch` serves the HTTP API and
 * never rejects. `scheduled` runs one invocation and rejects if it ended in an error, so that the platform records a
 * failed run; an isolate that was busy with a quarantined tick is no failure.
 */
export function createWorker<Env extends object = Record<string, unknown>>(
  options: WorkerOptions<Env> | ((env: Env) => WorkerOptions<Env>),
): WorkerHandlers<Env> {
  // Kept for each env, which is one per isolate. Safe across requests, since what is kept is configuration: definitions,
  // secrets and an address. Connections and sockets, which belong to the request that opened them, are opened and closed
  // inside one invocation. Weak, so that an env the runtime drops takes its claimer with it.
  const deployments = new WeakMap<Env, Deployment<Env>>();
  const deploymentOf = (env: Env): Deployment<Env> => {
    let deployment = deployments.get(env);
    if (deployment === undefined) {
      deployment = deploy(typeof options === "function" ? options(env) : options, env);
      deployments.set(env, deployment);
    }
    return deployment;
  };

  return {
    async fetch(request, env, ctx) {
      let answer: Promise<Response>;
      try {
        // Structural: what Hono asks for beyond waitUntil, only routes of the user's own can ask of it.
        answer = Promise.resolve(deploymentOf(env).app.fetch(request, env, ctx as ExecutionContext));
      } catch (error) {
        return answerError(deploymentFault(error), { route: request.method, log: consoleLog });
      }
      // A caller that hangs up does not end the work it began: it gets the 30 s that the platform gives.
      ctx.waitUntil(answer.catch(() => {}));
      return answer;
    },

    async scheduled(controller, env) {
      let log = consoleLog;
      let report: InvocationReport;
      try {
        const deployment = deploymentOf(env);
        log = deployment.log;
        report = await deployment.claimer().invoke(cronTrigger(controller));
      } catch (error) {
        throw cronError(error, { route: `cron ${controller.cron}`, log });
      }
      const failure = errorOf(report);
      if (failure !== null) throw failure;
    },
  };
}

interface Deployment<Env extends object> {
  readonly app: Hono<{ Bindings: Env }>;
  readonly claimer: () => Claimer;
  readonly log: Log;
}

function deploy<Env extends object>(
  { app: addRoutes, dashboard = {}, ...options }: WorkerOptions<Env>,
  env: Env,
): Deployment<Env> {
  const claimer = lazyClaimer(options, env, secretCommand);
  const log = options.log ?? consoleLog;
  const app = createApp<Env>({
    claimer,
    secrets: secretsOf(env),
    log,
    secretCommand,
    dashboard,
  });
  addRoutes?.(app, { env, claimer });
  return { app, claimer, log };
}

function cronTrigger({ cron, scheduledTime }: CronEvent): Trigger {
  const scheduledAt = new Date(scheduledTime);
  return { type: "cron", cron, scheduledAt: Number.isNaN(scheduledAt.getTime()) ? null : scheduledAt };
}
