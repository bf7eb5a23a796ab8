// Enqueue and kick: wakes an invocation over HTTP, so that a job need not wait for the cron's minute. Harmless when the kick
// is lost or doubled: the cron comes anyway, and an invocation that finds nothing does nothing.

import { assertKnownKeys } from "./define.ts";
import { show } from "./duration.ts";
import { describeError, UsageError } from "./errors.ts";
import type { Log } from "./report.ts";

export interface KickOptions {
  /** Where `POST /api/trigger` is served, for example `https://jobs.example.workers.dev/api/trigger`. */
  readonly url: string;
  /** The trigger's secret. */
  readonly secret: string;
}

/** How long a kick is waited for: the trigger answers 202 at once, and a lost one costs no more than this. */
const kickLimitMs = 3_000;

/** Makes the kick. It never rejects. Errors, when made: PGCLAIM_INVALID_OPTION. */
export function kicker(options: KickOptions, log: Log): () => Promise<void> {
  assertKnownKeys(options, ["url", "secret"], "kick");
  if (typeof options.url !== "string" || !URL.canParse(options.url)) {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      `kick.url is ${show(options.url)}; expected the address of /api/trigger.`,
      { path: "kick.url" },
    );
  }
  if (typeof options.secret !== "string" || options.secret === "") {
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      "kick.secret is missing; expected the value of PGCLAIM_TRIGGER_SECRET.",
      { path: "kick.secret" },
    );
  }
  return async () => {
    try {
      const response = await fetch(options.url, {
        method: "POST",
        headers: { authorization: `Bearer ${options.secret}`, "content-type": "application/json" },
        body: JSON.stringify({ wait: false }),
        signal: AbortSignal.timeout(kickLimitMs),
      });
      await response.body?.cancel();
      if (!response.ok)
        log({
          level: "warn",
          event: "pgclaim.kick",
          message: `the trigger answered ${response.status}; the job waits for the next cron`,
        });
    } catch (error) {
      log({
        level: "warn",
        event: "pgclaim.kick",
        message: `no answer from the trigger (${describeError(error)}); the job waits for the next cron`,
      });
    }
  };
}
