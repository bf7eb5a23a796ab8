// The HTTP API as a Hono app to mount: check the secret, check the request, ask the claimer, answer. No decisions about
// jobs are made here, and a request that is refused costs no claimer and no database work.

import { type Context, Hono, type MiddlewareHandler } from "hono";
import { HTTPException } from "hono/http-exception";
import { routePath } from "hono/route";
import type { Claimer } from "../claimer.ts";
import { assertKnownKeys } from "../define.ts";
import { toError, UsageError } from "../errors.ts";
import { consoleLog, type Log } from "../report.ts";
import { checkBearer, type Secrets } from "./auth.ts";
import { maxBodyBytes as defaultMaxBodyBytes } from "./body.ts";
import { contract } from "./contract.ts";
import { createDashboard, type DashboardOptions } from "./dashboard/app.ts";
import { mount, refuseOtherMethods } from "./mount.ts";
import { openApiDocument } from "./openapi.ts";
import { referenceHeaders, referencePage, referenceStyle } from "./reference.ts";
import { answerError, deploymentFault, safeHeaders } from "./respond.ts";
import type { Route } from "./route.ts";
import { jobHandlers } from "./routes_jobs.ts";
import { stateHandlers } from "./routes_state.ts";

export type { Scope, Secrets } from "./auth.ts";
export { secretNames } from "./auth.ts";
export type { AppType } from "./contract.ts";
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
 * The API: every route of `contract.ts`, `GET /openapi.json` that describes them, and `GET /docs/api` that shows it.
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
  const app = new Hono<{ Bindings: Bindings }>();

  app.use(setSafeHeaders);
  app.onError((error, c) => {
    // An app that has routes of its own may throw Hono's own answers in them.
    if (error instanceof HTTPException) return error.getResponse();
    return answerError(error, { route: `${c.req.method} ${routePath(c)}`, log });
  });
  app.notFound((c) => answerError(routeNotFound(), { route: c.req.method, log }));

  mount(app, contract, { ...jobHandlers, ...stateHandlers }, { maxBodyBytes, guard, claimer });

  // They say what every copy of this version says, so they need no secret.
  app.get("/openapi.json", (c) => c.json(openApiDocument()));
  app.get("/docs/api", (c) => c.html(referencePage(), 200, referenceHeaders));
  app.get("/docs/api.css", (c) => c.body(referenceStyle, 200, { "content-type": "text/css; charset=utf-8" }));
  for (const address of ["/openapi.json", "/docs/api", "/docs/api.css"]) {
    refuseOtherMethods(app, address, "GET, HEAD, OPTIONS");
  }
  const { secrets, secretCommand = "wrangler secret put", dashboard = {} } = options;
  if (dashboard !== false)
    app.route("/", createDashboard<Bindings>({ ...dashboard, claimer: options.claimer, secrets, log, secretCommand }));
  return app;

  function guard({ path, scopes }: Route): MiddlewareHandler {
    const [first, ...others] = scopes;
    if (first === undefined) throw new Error(`${path} has no scope`);
    return async (c, next) => {
      const refusal = await checkBearer({
        authorization: c.req.header("authorization"),
        scopes: [first, ...others],
        secrets: typeof options.secrets === "function" ? options.secrets(c.env) : options.secrets,
        route: path,
        secretCommand: options.secretCommand ?? "wrangler secret put",
      });
      if (refusal !== null) throw refusal;
      await next();
    };
  }

  async function claimer(c: Context): Promise<Claimer> {
    try {
      return await options.claimer(c.env);
    } catch (error) {
      throw deploymentFault(error);
    }
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

function routeNotFound(): UsageError {
  return new UsageError(
    "PGCLAIM_ROUTE_NOT_FOUND",
    "No route has this address. Look at its spelling, and for a slash at its end.",
  );
}
