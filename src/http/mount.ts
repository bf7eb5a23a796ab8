// From a table of routes to an app: who may call, what was sent, what is answered. In this order, so that a request that is
// refused costs no claimer and no database work.

import type { Context, Env, Hono, MiddlewareHandler } from "hono";
import type { Claimer } from "../claimer.ts";
import { UsageError } from "../errors.ts";
import { readJson } from "./body.ts";
import type { Contract } from "./contract.ts";
import { parse, parseQuery } from "./requests.ts";
import { Refusal } from "./respond.ts";
import type { BodyOf, HeadersOf, ParamsOf, QueryOf, Reply, Route } from "./route.ts";

/** What a handler is given: the request, checked. */
export interface Call<R extends Route> {
  readonly params: ParamsOf<R>;
  readonly query: QueryOf<R>;
  readonly headers: HeadersOf<R>;
  readonly body: BodyOf<R>;
  readonly c: Context;
  /** Makes or finds the claimer. Called once nothing more can be refused. */
  claimer(): Promise<Claimer>;
}

export type Handler<R extends Route> = (call: Call<R>) => Promise<Reply<R>> | Reply<R>;
export type Handlers = { readonly [K in keyof Contract]: Handler<Contract[K]> };

export interface MountOptions {
  readonly maxBodyBytes: number;
  /** What lets a caller through, or throws. */
  guard(route: Route): MiddlewareHandler;
  claimer(c: Context): Promise<Claimer>;
}

/** Adds the routes, in the table's order; at the end of each address, what answers its other methods. */
export function mount<E extends Env>(
  app: Hono<E>,
  contract: Readonly<Record<string, Route>>,
  handlers: Handlers,
  options: MountOptions,
): void {
  const byPath = Map.groupBy(Object.entries(contract), ([, route]) => route.path);
  for (const [path, routes] of byPath) {
    const address = path.replaceAll(/\{(\w+)\}/g, ":$1");
    for (const [id, route] of routes) {
      // The table says which handler takes which call; the types of the two meet in `Handlers`.
      const handle = handlers[id as keyof Contract] as unknown as Handler<Route>;
      const before = [
        ...(route.noHead ? [refuseHead] : []),
        ...(route.scopes.length > 0 ? [options.guard(route)] : []),
      ];
      app.on(route.method.toUpperCase(), [address], ...before, async (c) => {
        const answer = await handle(await callOf(route, c, options));
        return answer instanceof Response ? answer : Response.json(answer.body, { status: answer.status });
      });
    }
    refuseOtherMethods(app, address, allowOf(routes.map(([, route]) => route)));
  }
}

async function callOf(route: Route, c: Context, options: MountOptions): Promise<Call<Route>> {
  const params = route.params === undefined ? undefined : parse(route.params, c.req.param());
  const query =
    route.query === undefined
      ? undefined
      : parseQuery(route.query, new URL(c.req.url).searchParams, route.payload === true);
  const headers =
    route.headers === undefined
      ? undefined
      : parse(
          route.headers,
          Object.fromEntries(Object.keys(route.headers.shape).map((name) => [name, c.req.header(name)])),
          "headers",
        );
  return {
    params,
    query,
    headers,
    body: await bodyOf(route, c, options),
    c,
    claimer: () => options.claimer(c),
  } as Call<Route>;
}

async function bodyOf(route: Route, c: Context, { maxBodyBytes }: MountOptions): Promise<unknown> {
  if (route.body === undefined) return undefined;
  const body = await readJson(c.req.raw, maxBodyBytes);
  if (route.raw || (route.bodyOptional && body === undefined)) return body;
  return parse(route.body, body);
}

function allowOf(routes: readonly Route[]): string {
  const methods = routes.flatMap(({ method, noHead }) =>
    method === "post" ? ["POST"] : noHead ? ["GET"] : ["GET", "HEAD"],
  );
  return [...methods, "OPTIONS"].join(", ");
}

/** Answers every method an address does not take, and OPTIONS. Comes after those it does. */
export function refuseOtherMethods<E extends Env>(app: Hono<E>, address: string, allow: string): void {
  app.all(address, (c) => {
    if (c.req.method === "OPTIONS") return c.body(null, 204, { allow });
    throw methodNotAllowed(allow);
  });
}

/** Hono answers HEAD with the GET handler; this one works, so it must be asked for. */
const refuseHead: MiddlewareHandler = async (c, next) => {
  if (c.req.method === "HEAD") throw methodNotAllowed("GET, OPTIONS");
  await next();
};

function methodNotAllowed(allow: string): Refusal {
  const error = new UsageError("PGCLAIM_INVALID_REQUEST", `This address does not take the method. It takes: ${allow}.`);
  return new Refusal(405, error, { allow });
}
