// A client of the HTTP API, typed by its table of routes. Nothing of the server is in it but types.

import { hc } from "hono/client";
import type { AppType } from "./http/contract.ts";

export type { AppType } from "./http/contract.ts";

export interface ClientOptions {
  /** A secret of the deployment. It opens the routes of its scope only. */
  readonly token: string;
  /** Sends the requests; the global `fetch` otherwise. */
  readonly fetch?: typeof fetch;
}

/**
 * Makes a client: `createClient(url, { token }).api.jobs.$get({ query: { state: "dead" } })`. Answers are Responses whose
 * `json()` is typed by their status; nothing is retried.
 */
export function createClient(url: string, options: ClientOptions) {
  return hc<AppType>(url, {
    headers: { authorization: `Bearer ${options.token}` },
    ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
  });
}
