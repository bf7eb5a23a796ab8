// The doctor on secrets: those in this environment, and with --url what the deployment's routes say to somebody without one. A
// value never enters a message.

import { toError } from "../../errors.ts";
import { secretNames } from "../../http/auth.ts";
import type { Env } from "../connect.ts";
import { errorOf } from "../http.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";

/** 24 characters of base64 are 144 bits. */
const leastLength = 24;
/** Different characters of a drawn secret of that length; `aaaa...` and `1234123412341234...` have fewer. */
const leastVariety = 10;

/** Looks at the values of the environment. */
export function secrets(env: Env): Finding {
  const given = Object.values(secretNames).flatMap((name) => {
    const value = env[name]?.trim() ?? "";
    return value === "" ? [] : [{ name, value }];
  });
  const facts = { given: given.map(({ name }) => name) };
  if (given.length === 0)
    return ok("secrets", "none in this environment, so none was judged; --env names a file that has them", {
      facts,
    });
  const faults = given.flatMap(({ name, value }) => {
    const fault = faultOf(value);
    return fault === null ? [] : [`${name} ${fault}`];
  });
  for (const [i, { name, value }] of given.entries()) {
    const same = given.slice(0, i).find((other) => other.value === value);
    if (same !== undefined) faults.push(`${name} is the same as ${same.name}`);
  }
  return faults.length > 0
    ? fail("secrets", faults.join("; "), "draw each anew: openssl rand -base64 32", { ...facts, faults })
    : ok("secrets", `${given.length} in this environment, long enough and different`, { facts });
}

function faultOf(value: string): string | null {
  if (value === "undefined" || value === "null") return "is a missing value put into a string";
  if (value.length < leastLength) return `has ${value.length} characters, expected ${leastLength} at least`;
  if (new Set(value).size < leastVariety) return "repeats itself";
  return /^(change|secret|password|example|test)/i.test(value) ? "begins like one that is to be changed" : null;
}

const routes = [
  { method: "POST", path: "/api/trigger" },
  { method: "POST", path: "/api/jobs" },
  { method: "GET", path: "/api/jobs/1" },
  { method: "POST", path: "/api/jobs/1/retry" },
] as const;

const limitMs = 15_000;

/** Asks each route without a token: 401 is right, 503 names a secret that is missing, an answer is an open door. */
export async function deployment(base: URL): Promise<Finding> {
  const name = "deployment";
  const answers: { route: string; status: number; code: string | null; message: string }[] = [];
  for (const { method, path } of routes) {
    try {
      const response = await fetch(new URL(path, base), {
        method,
        redirect: "manual",
        signal: AbortSignal.timeout(limitMs),
      });
      const body: unknown = await response.json().catch(() => null);
      answers.push({ route: `${method} ${path}`, status: response.status, ...errorOf(response.status, body) });
    } catch (error) {
      const cause = error instanceof Error && error.cause !== undefined ? toError(error.cause) : toError(error);
      return fail(
        name,
        `${base.origin} does not answer (${cause.message})`,
        "look at the address, and at the platform's log",
        { origin: base.origin },
      );
    }
  }
  const facts = { origin: base.origin, answers: answers.map(({ route, status, code }) => ({ route, status, code })) };
  const open = answers.find(({ status }) => status < 300);
  if (open !== undefined)
    return fail(
      name,
      `${open.route} answered ${open.status} without a token: it is open to everybody`,
      "take it off the net until you know why",
      facts,
    );
  const missing = answers.find(({ code }) => code === "PGCLAIM_SECRET_MISSING");
  if (missing !== undefined) {
    const secret = /^[A-Z_]+/.exec(missing.message)?.[0] ?? "a secret";
    return fail(
      name,
      `${secret} is not set there, so ${missing.route} stays closed`,
      `set it: wrangler secret put ${secret}`,
      facts,
    );
  }
  const odd = answers.find(({ status }) => status !== 401);
  if (odd !== undefined)
    return warn(
      name,
      `${odd.route} answered ${odd.status}, expected 401`,
      "is this the deployment's address, without a path?",
      facts,
    );
  return ok(name, `${base.origin}: ${answers.length} routes answer 401 without a token`, { facts });
}
