// Who may call which route: one bearer secret for each scope. It must never open a route whose secret is not set, and
// never tell by its answer or its time which part of a token was wrong.

import { UsageError } from "../errors.ts";

/** What a secret opens. `cron` is Vercel's own, sent by its scheduler; the others are handed to people and programs. */
export type Scope = "trigger" | "enqueue" | "read" | "operate" | "cron";

/** The environment variable that holds each scope's secret. */
export const secretNames = {
  trigger: "PGCLAIM_TRIGGER_SECRET",
  enqueue: "PGCLAIM_ENQUEUE_SECRET",
  read: "PGCLAIM_READ_SECRET",
  operate: "PGCLAIM_OPERATE_SECRET",
  cron: "CRON_SECRET",
} as const satisfies Record<Scope, string>;

/** The secret of each scope, as the deployment has it. A scope without one stays closed. */
export type Secrets = Readonly<Partial<Record<Scope, string | undefined>>>;

export interface BearerCheck {
  /** The request's Authorization header, as it came. */
  readonly authorization: string | null | undefined;
  /** The scopes that open the route. The first is the one a refusal names as missing. */
  readonly scopes: readonly [Scope, ...Scope[]];
  readonly secrets: Secrets;
  /** The route as an operator knows it, for the text of a refusal. */
  readonly route: string;
  /** The command that sets a secret on this platform, without the name. */
  readonly secretCommand: string;
}

/**
 * Checks a bearer token against the secrets of the accepted scopes.
 *
 * Shape:  null if the token opens the route, else the refusal to answer with.
 * Errors: PGCLAIM_SECRET_MISSING if none of the scopes has a secret, PGCLAIM_UNAUTHORIZED for every other reason.
 * Source: RFC 6750, section 2.1; RFC 9110, section 11.1: the scheme is case-insensitive, then one or more spaces.
 */
export async function checkBearer(check: BearerCheck): Promise<UsageError | null> {
  const configured = check.scopes.flatMap((scope) => usableSecret(check.secrets[scope]) ?? []);
  if (configured.length === 0) {
    const name = secretNames[check.scopes[0]];
    return new UsageError(
      "PGCLAIM_SECRET_MISSING",
      `${name} is not set in this deployment, so ${check.route} stays closed. Set it: ${check.secretCommand} ${name}`,
    );
  }
  const token = tokenOf(check.authorization);
  // A missing token goes the same way as a wrong one: hashed, and compared to its last byte. Every secret is tried.
  const presented = await sha256(token);
  let matches = 0;
  for (const secret of configured) matches |= Number(equal(presented, await sha256(secret)));
  if (matches === 1 && token !== "") return null;
  return new UsageError("PGCLAIM_UNAUTHORIZED", "The bearer token is missing or wrong.");
}

/**
 * A secret that can be compared with, or null. White space around it is dropped, since `echo ... | wrangler secret put`
 * adds a newline that no header can carry. The words are what a missing value becomes when it is put into a string.
 */
export function usableSecret(value: string | undefined): string | null {
  const secret = value?.trim() ?? "";
  return secret === "" || secret === "undefined" || secret === "null" ? null : secret;
}

/** The token of `Bearer <token>`, or "" if the header is anything else. No secret is "". */
function tokenOf(authorization: string | null | undefined): string {
  return /^Bearer +(\S.*)$/i.exec(authorization ?? "")?.[1]?.trim() ?? "";
}

async function sha256(text: string): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
}

/** Compares two digests of equal length without an early exit. */
function equal(a: Uint8Array, b: Uint8Array): boolean {
  let difference = a.length ^ b.length;
  for (const [i, byte] of a.entries()) difference |= byte ^ (b[i] ?? 0);
  return difference === 0;
}
