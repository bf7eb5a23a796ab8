// Parameters of an address -> a filter, and what is wrong with them. A wrong value is named and its form stays filled in; a
// parameter nobody knows is ignored, and said. Pure.

import type { JobFilter, ListState } from "../../inspection.ts";
import { isListState, type Query, said } from "./routes.ts";

export interface ReadFilter {
  readonly filter: JobFilter;
  readonly cursor: string | undefined;
  readonly faults: readonly string[];
  /** Names that mean nothing here. */
  readonly unknown: readonly string[];
}

type Loose = { -readonly [K in keyof JobFilter]?: JobFilter[K] };

export const reasons = ["attempts", "handler", "crashed", "missed"] as const;

const filterNames = ["state", "queue", "kind", "key", "unique", "payload", "reason", "fingerprint", "since", "cursor"];

/** What every page takes. */
export const commonNames: readonly string[] = ["tz", ...said];

const maxLength = 500;

/** Reads the filter of a list of jobs. `extra`: further names that this page takes. */
export function filterOf(query: Query, extra: readonly string[] = []): ReadFilter {
  const faults: string[] = [];
  const filter: Loose = {};
  const take = (name: string): string | undefined => {
    const value = query[name]?.trim();
    if (value === undefined || value === "") return undefined;
    if (value.length <= maxLength) return value;
    faults.push(`${name} has more than ${maxLength} characters.`);
    return undefined;
  };
  const state = take("state");
  if (state !== undefined) {
    if (isListState(state)) filter.state = state satisfies ListState;
    else faults.push(`state is "${state}"; expected one of the list.`);
  }
  const reason = take("reason");
  if (reason !== undefined) {
    const known = reasons.find((one) => one === reason);
    if (known === undefined) faults.push(`reason is "${reason}"; expected one of ${reasons.join(", ")}.`);
    else filter.reason = known;
  }
  const since = take("since");
  if (since !== undefined) {
    const at = Date.parse(since);
    if (Number.isNaN(at)) faults.push(`since is "${since}"; expected an instant in UTC, as 2026-11-30T14:00:00Z.`);
    else filter.since = new Date(at).toISOString();
  }
  for (const [name, key] of texts) {
    const value = take(name);
    if (value !== undefined) filter[key] = value;
  }
  const payload = take("payload");
  if (payload !== undefined) {
    const read = payloadOf(payload);
    if (typeof read === "string") faults.push(read);
    else filter.payload = read;
  }
  const unknown = unknownNames(query, [...filterNames, ...extra]);
  return { filter, cursor: take("cursor"), faults, unknown };
}

/** Names in a query that a page does not take. */
export function unknownNames(query: Query, known: readonly string[]): string[] {
  return Object.keys(query).filter((name) => !known.includes(name) && !commonNames.includes(name));
}

const texts = [
  ["queue", "queue"],
  ["kind", "kind"],
  ["key", "orderingKey"],
  ["unique", "uniqueKey"],
  ["fingerprint", "fingerprint"],
] as const;

/** `orderId:42`, `payload.account.id:"7"` -> what the payload must contain; or what is wrong with it. */
function payloadOf(text: string): Record<string, unknown> | string {
  const match = /^(?:payload\.)?([^:\s]+):\s*([\s\S]+)$/.exec(text);
  if (match === null) return `payload is "${text}"; expected a path and a value, as orderId:42.`;
  const [, path = "", written = ""] = match;
  const value = jsonOrText(written);
  if (typeof value === "number" && !Number.isSafeInteger(value) && Number.isInteger(value)) {
    return `payload: ${written} has more digits than this search can carry exactly; search for another value.`;
  }
  return path
    .split(".")
    .reverse()
    .reduce<unknown>((inner, name) => ({ [name]: inner }), value) as Record<string, unknown>;
}

/** A JSON value as it is written; anything else is text. */
function jsonOrText(written: string): unknown {
  try {
    return JSON.parse(written) as unknown;
  } catch {
    return written;
  }
}

/** Whether a filter narrows beyond the state, so that it can be cleared. */
export function narrows(filter: JobFilter): boolean {
  return Object.keys(filter).some((name) => name !== "state");
}
