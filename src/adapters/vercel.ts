// pgclaim on Vercel's Node runtime: one handler from Request to Response, for cron calls and for the HTTP API. It must
// not import from Node, so that the same file also runs where Vercel has none.

import type { Hono } from "hono";
import type { Claimer } from "../claimer.ts";
import { type Duration, parseDuration } from "../duration.ts";
import { UsageError } from "../errors.ts";
import { createApp, type DashboardOptions } from "../http/app.ts";
import { answerError, deploymentFault } from "../http/respond.ts";
import { consoleLog } from "../report.ts";
import { type DeploymentOptions, lazyClaimer, secretsOf } from "./environment.ts";

/** The environment as Vercel gives it: process.env. */
export type VercelEnvironment = Readonly<Record<string, string | undefined>>;

/** The options of `createClaimer`; the database is the one of DATABASE_URL unless `database` is given. */
export type HandlerOptions = DeploymentOptions & {
  /**
   * The function's `maxDuration` in vercel.json, with its unit. An invocation ends 5 s before it, since Vercel ends the
   * function without a word; a `budget` of your own is cut to that. More than 5 s. Default `"300s"`, as Vercel's.
   */
  readonly maxDuration?: Duration;
  /** Adds routes of your own beside the API's. They are open unless they check for themselves. */
  readonly app?: (
    app: Hono<{ Bindings: object }>,
    tools: { readonly env: VercelEnvironment; readonly claimer: () => Claimer },
  ) => void;
  /**
   * The pages at `/`, where a rewrite in vercel.json leads them here. `false`: none. Closed until the operate or the read
   * secret is set.
   */
  readonly dashboard?: false | DashboardOptions;
};

export type WebHandler = (request: Request) => Promise<Response>;

/** The same handler under each name that Vercel looks for. */
export interface Handlers {
  readonly GET: WebHandler;
  readonly POST: WebHandler;
  readonly fetch: WebHandler;
}

const secretCommand = "vercel env add";

/** What is kept of maxDuration to finish the last tick, close and answer. */
const reservedMs = 5_000;

/**
 * The handlers of a Vercel function, for example in `api/[...route].ts`:
 * `export const { GET, POST } = createHandler({ jobs: [sendReceipt] });`
 *
 * Reads DATABASE_URL, CRON_SECRET and the PGCLAIM_..._SECRET of each scope from `env`, at the first request. The handlers
 * never reject: what is wrong with the options is answered, and logged.
 */
export function createHandler(
  options: HandlerOptions | ((env: VercelEnvironment) => HandlerOptions),
  env: VercelEnvironment = globalThis.process?.env ?? {},
): Handlers {
  // Kept between requests, since it is configuration only: every invocation opens and closes a connection of its own.
  let app: Hono<{ Bindings: object }> | undefined;
  const handle: WebHandler = async (request) => {
    try {
      app ??= deploy(typeof options === "function" ? options(env) : options, env);
      return await app.fetch(request);
    } catch (error) {
      return answerError(deploymentFault(error), { route: request.method, log: consoleLog });
    }
  };
  return { GET: handle, POST: handle, fetch: handle };
}

function deploy(
  { app: addRoutes, maxDuration, dashboard = {}, ...options }: HandlerOptions,
  env: VercelEnvironment,
): Hono<{ Bindings: object }> {
  const budget = budgetWithin(maxDuration ?? "300s", options.budget);
  const claimer = lazyClaimer({ ...options, budget }, env, secretCommand);
  const log = options.log ?? consoleLog;
  const app = createApp({ claimer, secrets: secretsOf(env), log, secretCommand, dashboard });
  addRoutes?.(app, { env, claimer });
  return app;
}

/** Each budget as it is set, or all there is; never past the end of the function. */
function budgetWithin(maxDuration: Duration, set: HandlerOptions["budget"] = {}): { http: Duration; cron: Duration } {
  const mostMs = parseDuration(maxDuration, "maxDuration") - reservedMs;
  if (mostMs <= 0) {
    throw new UsageError("PGCLAIM_INVALID_OPTION", `maxDuration is "${maxDuration}"; expected more than "5s".`, {
      path: "maxDuration",
    });
  }
  const most: Duration = `${mostMs}ms`;
  const cut = (value: Duration | undefined, where: string): Duration =>
    value === undefined ? most : `${Math.min(parseDuration(value, where), mostMs)}ms`;
  return { http: cut(set.http, "budget.http"), cron: cut(set.cron, "budget.cron") };
}
