// The browser's credential: a signed cookie that says which role logged in, and until when. It is not the API's: the API takes
// bearer tokens only, and never this cookie.

import { type Secrets, usableSecret } from "../auth.ts";

/** What a person at the dashboard may do: `operate` acts, `read` looks. */
export type Role = "operate" | "read";

export const cookieName = "__Host-pgclaim";

/** Twelve hours, in seconds. */
export const sessionSeconds = 43_200;

const roles = ["operate", "read"] as const;

/** Whether anybody can log in at all. */
export function hasSecret(secrets: Secrets): boolean {
  return roles.some((role) => usableSecret(secrets[role]) !== null);
}

/**
 * The role a secret opens, or null. Every secret is tried, and each comparison goes to its last byte.
 */
export async function roleOf(presented: string, secrets: Secrets): Promise<Role | null> {
  let found: Role | null = null;
  for (const role of [...roles].reverse()) {
    const secret = usableSecret(secrets[role]);
    if (secret === null) continue;
    // Signatures of one message are equal where the secrets are, and comparing them tells nothing about the secret.
    const key = await keyOf(secret);
    const proof = await crypto.subtle.sign("HMAC", await keyOf(presented.trim() || " "), bytes("login"));
    if ((await crypto.subtle.verify("HMAC", key, proof, bytes("login"))) && presented.trim() !== "") found = role;
  }
  return found;
}

/** The cookie's value: role, end in seconds since 1970, and the signature by the role's own secret. */
export async function signSession(role: Role, secrets: Secrets, now: Date): Promise<string> {
  const secret = usableSecret(secrets[role]);
  if (secret === null) throw new Error("a role without a secret cannot be signed for");
  const statement = `${role}.${Math.floor(now.getTime() / 1_000) + sessionSeconds}`;
  const signature = await crypto.subtle.sign("HMAC", await keyOf(secret), bytes(`${purpose}${statement}`));
  return `${statement}.${hex(new Uint8Array(signature))}`;
}

/** The role a cookie proves, or null: unsigned, over, or signed by a secret that has been changed since. */
export async function readSession(value: string | undefined, secrets: Secrets, now: Date): Promise<Role | null> {
  const match = /^(operate|read)\.(\d{1,12})\.([0-9a-f]{64})$/.exec(value ?? "");
  if (match === null) return null;
  const [, role, end, signature] = match as unknown as [string, Role, string, string];
  const secret = usableSecret(secrets[role]);
  if (secret === null || Number(end) * 1_000 <= now.getTime()) return null;
  const given = Uint8Array.from(signature.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
  const proved = await crypto.subtle.verify("HMAC", await keyOf(secret), given, bytes(`${purpose}${role}.${end}`));
  return proved ? role : null;
}

/** Keeps a signature of this cookie from being one of anything else that the secret may sign. */
const purpose = "pgclaim dashboard session 1:";

function keyOf(secret: string): ReturnType<typeof crypto.subtle.importKey> {
  return crypto.subtle.importKey("raw", bytes(secret), { name: "HMAC", hash: "SHA-256" }, false, ["sign", "verify"]);
}

function bytes(text: string): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(text);
}

function hex(data: Uint8Array): string {
  return [...data].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
