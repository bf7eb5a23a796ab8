// fence: claims -> those whose attempt is on record. An answer that is lost is asked for once more; fence is repeatable.

import { DatabaseError, describeError, type PgclaimError } from "./errors.ts";
import type { Gateway } from "./gateway.ts";
import type { Claim, Grant } from "./model.ts";

export type FenceAnswer =
  | { readonly type: "answered"; readonly grants: readonly Grant[]; readonly asked: number }
  /** Nobody knows which numbers were written: finish burns them all. */
  | { readonly type: "lost"; readonly error: PgclaimError; readonly asked: number };

interface FenceRequest {
  readonly tickId: string;
  readonly quarantined: boolean;
  readonly claims: readonly Claim[];
}

export async function fence(gateway: Gateway, request: FenceRequest): Promise<FenceAnswer> {
  const { claims, ...rest } = request;
  // Nothing to start: every claim has missed its deadline.
  if (claims.length === 0) return { type: "answered", grants: [], asked: 0 };
  const jobs = claims.map(({ jobId, attempt }) => ({ jobId, attempt }));
  try {
    return { type: "answered", grants: await gateway.fence({ ...rest, jobs }), asked: 1 };
  } catch {
    try {
      return { type: "answered", grants: await gateway.fence({ ...rest, jobs }), asked: 2 };
    } catch (error) {
      return { type: "lost", error: fenceFailed(error), asked: 2 };
    }
  }
}

function fenceFailed(cause: unknown): PgclaimError {
  return new DatabaseError(
    "PGCLAIM_FENCE_FAILED",
    `The attempts could not be recorded, so nothing was started (${describeError(cause)}). The jobs are free again.`,
    { cause },
  );
}
