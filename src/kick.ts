// Enqueue and kick: wakes an invocation over HTTP, so that a job need not wait for the cron's minute. Harmless when the kick
// is lost or doubled: the cron comes anyway, and an invocation that finds nothing does nothing.

import { assertKnownKeys } from "./define.ts";
import { show } from "./duration.ts";
import { UsageError } from "./errors.ts";
import type { Log } from "./report.ts";

export interface KickOptions {
  /** Where `POST /api/trigger` is served, for example `https://jobs.example.workers.dev/api/trigger`. */
  readonly url: string;
  /** The trigger's secret. White space around it is dropped. */
  readonly secret: string;
}

/** How long a kick is waited for: the trigger answers 202 at once, and a lost one costs no more than this. */
const kickLimitMs = 3_000;

/** Makes the kick. It never rejects. Errors, when made: PGCLAIM_INVALID_OPTION. */
export function kicker(options: KickOptions, log: Log): () => Promise<void> {
  if (typeof options !== "object" || options === null) throw refuse("kick", show(options), "{ url, secret }");
  assertKnownKeys(options, ["url", "secret"], "kick");
  const url = readUrl(options.url);
  const authorization = `Bearer ${readSecret(options.secret)}`;
  const warn = (message: string) =>
    log({ level: "warn", event: "pgclaim.kick", message: `${message}; the job waits for the next cron` });
  return async () => {
    try {
      const response = await fetch(url, {
        method: "POST",
        headers: { authorization, "content-type": "application/json" },
        body: JSON.stringify({ wait: false }),
        // Followed, it would become a GET, and the secret would go where it was not meant to.
        redirect: "manual",
        signal: AbortSignal.timeout(kickLimitMs),
      });
      // The status is all there is to know; a body that never ends is not waited for.
      response.body?.cancel().catch(() => {});
      if (!response.ok) warn(`the trigger answered ${response.status}`);
    } catch (error) {
      warn(`no answer from the trigger (${nameOf(error)})`);
    }
  };
}

function readUrl(value: unknown): string {
  const url = typeof value === "string" && URL.canParse(value) ? new URL(value) : null;
  if (url === null || !/^https?:$/.test(url.protocol))
    throw refuse(
      "kick.url",
      typeof value === "string" ? "no http address" : show(value),
      "the address of /api/trigger",
    );
  // fetch refuses such an address, and says the password when it does.
  if (url.username !== "" || url.password !== "")
    throw refuse("kick.url", "an address with a user or a password in it", "one without; the secret stands beside it");
  return url.href;
}

/** What a header can carry: no runtime must name the secret in the error of one that it cannot send. */
function readSecret(value: unknown): string {
  const secret = typeof value === "string" ? value.trim() : "";
  if (/^[\x21-\x7e]+$/.test(secret)) return secret;
  throw refuse("kick.secret", secret === "" ? "missing" : "no header's text", "the value of PGCLAIM_TRIGGER_SECRET");
}

/** What went wrong, in words that are not the runtime's: those may quote the address or a header. */
function nameOf(error: unknown): string {
  const { name, cause } = (typeof error === "object" && error !== null ? error : {}) as {
    readonly name?: unknown;
    readonly cause?: { readonly code?: unknown } | null;
  };
  const code = cause?.code;
  if (typeof code === "string" && /^[A-Z_]{1,40}$/.test(code)) return code;
  return typeof name === "string" && /^[A-Za-z]{1,40}$/.test(name) ? name : "it failed";
}

function refuse(option: string, what: string, expected: string): UsageError {
  return new UsageError("PGCLAIM_INVALID_OPTION", `${option} is ${what}; expected ${expected}.`, { path: option });
}
