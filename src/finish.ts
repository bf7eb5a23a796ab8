// finish: the outcomes of a tick and COMMIT; and settle, where it is not known whether that happened.

import { type Clock, wait } from "./clock.ts";
import {
  constraintOf,
  DatabaseError,
  databaseError,
  describeError,
  isTransient,
  PgclaimError,
  sqlStateOf,
  sqlStates,
} from "./errors.ts";
import type { FinishJob, FinishRequest, FinishRow, Gateway, Session, SettleRequest } from "./gateway.ts";
import type { Limits } from "./limits.ts";
import type { Claim, JobId, Outcome } from "./model.ts";

export type FinishAnswer =
  | { readonly type: "committed"; readonly rows: readonly FinishRow[] }
  | {
      readonly type: "failed";
      readonly error: PgclaimError;
      /** Whether the attempts may be marked interrupted; not when finish failed on its own account. */
      readonly mark: boolean;
    };

/** Sends the outcomes and COMMIT. Success is the tag COMMIT and nothing else. */
export async function finish(session: Session, request: FinishRequest): Promise<FinishAnswer> {
  try {
    return { type: "committed", rows: await session.finish(request) };
  } catch (thrown) {
    const settledElsewhere = sqlStateOf(thrown) === sqlStates.uniqueViolation && constraintOf(thrown) === "tick_pkey";
    // A session that was lost in between carries its own error; its cause is what the driver said.
    const mark = session.lost.aborted || settledElsewhere || isTransient(thrown);
    return { type: "failed", error: mark ? databaseError(thrown, "finishing a tick") : finishFailed(thrown), mark };
  }
}

/** On its own account: not the connection, and nothing that passes. Quarantine finds the job that is to blame. */
function finishFailed(cause: unknown): PgclaimError {
  const error = databaseError(cause, "finishing a tick");
  if (error.code !== "PGCLAIM_QUERY_FAILED") return error;
  return new DatabaseError(
    "PGCLAIM_FINISH_FAILED",
    `The tick could not commit (${describeError(cause)}). Its jobs run again, one by one.`,
    { cause },
  );
}

/** The lines of finish: what each job's handler left behind. */
export function finishJobs(claims: readonly Claim[], outcomes: ReadonlyMap<JobId, Outcome>): FinishJob[] {
  return claims.flatMap(({ jobId, attempt }) => {
    const outcome = outcomes.get(jobId);
    return outcome === undefined ? [] : [{ jobId, attempt, ...line(outcome) }];
  });
}

function line(outcome: Outcome): Omit<FinishJob, "jobId" | "attempt"> {
  switch (outcome.type) {
    case "done":
      return { outcome: "done", ...(outcome.enqueue.length > 0 ? { enqueue: outcome.enqueue } : {}) };
    case "failed":
      return { outcome: "failed", error: outcome.error, ...(outcome.inMs === null ? {} : { inMs: outcome.inMs }) };
    case "dead":
      return { outcome: "dead", error: outcome.error };
    case "snoozed":
      return {
        outcome: "snoozed",
        ...(outcome.inMs === null ? {} : { inMs: outcome.inMs }),
        ...(outcome.at === null ? {} : { at: outcome.at }),
        ...(outcome.enqueue.length > 0 ? { enqueue: outcome.enqueue } : {}),
      };
    case "released":
    case "cancelled":
    case "missed":
      return { outcome: outcome.type };
    default:
      return outcome satisfies never;
  }
}

export interface Settled {
  readonly fate: "committed" | "lost" | "unknown";
  readonly asked: number;
  readonly error: PgclaimError | null;
}

/** Asks until the database answers or the limit ends; until then the tick is `unknown`, never a guess. */
export async function settle(
  gateway: Gateway,
  request: SettleRequest,
  { clock, limits }: { readonly clock: Clock; readonly limits: Limits },
): Promise<Settled> {
  const until = clock.now() + limits.settleMs;
  for (let asked = 1; ; asked++) {
    try {
      return { fate: await gateway.settle(request), asked, error: null };
    } catch (thrown) {
      const error = thrown instanceof PgclaimError ? thrown : databaseError(thrown, "settling a tick");
      const pauseMs = Math.min(2_000, 50 * 2 ** asked) * (0.5 + 0.5 * clock.random());
      if (clock.now() + pauseMs >= until) return { fate: "unknown", asked, error };
      await wait(clock, pauseMs);
    }
  }
}
