// Every address of the dashboard, in one place. A view is a URL: filters, sort, cursor and zone are parameters. Pure.

import { type JobFilter, listStates } from "../../inspection.ts";
import type { JobId } from "../../model.ts";

/** Values of a query string; undefined and "" are left out. */
export type Query = Readonly<Record<string, string | undefined>>;

/** Pages in the order of the navigation, and the key that follows `g`. */
export const pages = [
  { id: "overview", path: "/", label: "Overview", key: "o" },
  { id: "jobs", path: "/jobs", label: "Jobs", key: "j" },
  { id: "dead", path: "/dead", label: "Dead letters", key: "d" },
  { id: "keys", path: "/keys", label: "Keys", key: "k" },
  { id: "schedules", path: "/schedules", label: "Schedules", key: "s" },
  { id: "invocations", path: "/invocations", label: "Invocations", key: "i" },
  { id: "holders", path: "/holders", label: "Holders", key: "h" },
] as const;

export type PageId = (typeof pages)[number]["id"] | "login" | "confirm" | "error";

/** An address with its parameters. */
export function url(path: string, query: Query = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== "") search.set(name, value);
  const text = search.toString();
  return text === "" ? path : `${path}?${text}`;
}

export const hrefs = {
  job: (id: JobId, query: Query = {}) => url(`/jobs/${encodeURIComponent(id)}`, query),
  payload: (id: JobId) => `/jobs/${encodeURIComponent(id)}/payload`,
  jobs: (filter: JobFilter = {}, query: Query = {}) => url("/jobs", { ...filterQuery(filter), ...query }),
  dead: (filter: JobFilter = {}, query: Query = {}) =>
    url("/dead", { ...filterQuery({ ...filter, state: undefined }), ...query }),
  keys: (query: Query = {}) => url("/keys", query),
  invocations: (query: Query = {}) => url("/invocations", query),
  invocation: (id: string, query: Query = {}) => url(`/invocations/${encodeURIComponent(id)}`, query),
  confirm: (query: Query) => url("/confirm", query),
  login: (back: string) => url("/login", { back: back === "/" ? undefined : back }),
  prefer: (query: Query) => url("/prefer", query),
} as const;

type LooseFilter = { readonly [K in keyof JobFilter]?: JobFilter[K] | undefined };

/** A filter as parameters of an address; `filterOf` in filters.ts reads them back. */
export function filterQuery(filter: LooseFilter): Query {
  const { state, queue, kind, orderingKey, uniqueKey, payload, reason, fingerprint, since } = filter;
  return {
    state,
    queue,
    kind,
    key: orderingKey,
    unique: uniqueKey,
    payload: payload === undefined ? undefined : payloadText(payload),
    reason,
    fingerprint,
    since,
  };
}

/** The one condition on the payload as it is typed: `account.id:"7"`. */
function payloadText(payload: Readonly<Record<string, unknown>>): string {
  const path: string[] = [];
  let value: unknown = payload;
  while (typeof value === "object" && value !== null && !Array.isArray(value)) {
    const [first] = Object.entries(value);
    if (first === undefined) break;
    path.push(first[0]);
    value = first[1];
  }
  return `${path.join(".")}:${JSON.stringify(value)}`;
}

/**
 * An address of ours out of one that came with a request; `/` for anything that leads elsewhere. What an action said is
 * dropped from it.
 */
export function localPath(back: string | undefined): string {
  if (back === undefined || !back.startsWith("/") || back.length > 2_000) return "/";
  try {
    const address = new URL(back, "http://local.invalid");
    if (address.origin !== "http://local.invalid") return "/";
    for (const name of said) address.searchParams.delete(name);
    return `${address.pathname.replace(/^\/+/, "/")}${address.search}`;
  } catch {
    return "/";
  }
}

/** Parameters that tell the outcome of an action. */
export const said = ["did", "n", "left", "of", "was"] as const;

export function isListState(value: string): value is (typeof listStates)[number] {
  return (listStates as readonly string[]).includes(value);
}
