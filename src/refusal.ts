// What the database refuses to enqueue, as the errors its caller gets.

import { DatabaseError, UsageError } from "./errors.ts";
import type { JobRequest } from "./model.ts";

/** A job that enqueue refused. The path says which; the payload is never quoted. */
export function refusal(
  answer: { readonly i: number; readonly reason: string; readonly detail: string },
  requests: readonly JobRequest[],
): UsageError {
  const kind = requests[answer.i]?.kind ?? "";
  const at = requests.length > 1 ? `jobs[${answer.i}].` : "";
  switch (answer.reason) {
    case "unknown-kind":
      return new UsageError(
        "PGCLAIM_UNKNOWN_KIND",
        `No kind "${kind}" in the database. A kind is registered when a deployment that defines it first runs; a transaction above READ COMMITTED cannot see it before it begins again.`,
        { path: `${at}kind` },
      );
    case "payload-too-large":
      return new UsageError(
        "PGCLAIM_PAYLOAD_TOO_LARGE",
        `job "${kind}": the payload has ${answer.detail}. Store the data elsewhere and send its key.`,
        { path: `${at}payload` },
      );
    case "invalid-key":
      return new UsageError(
        "PGCLAIM_INVALID_PAYLOAD",
        `job "${kind}": the payload has no text, number or boolean for every key of its kind, or a key is longer than 500 bytes: ${answer.detail}.`,
        { path: `${at}payload` },
      );
    case "priority-denied":
      return new UsageError(
        "PGCLAIM_INVALID_OPTION",
        `job "${kind}": this database role may not choose a priority; one that may run jobs may.`,
        { path: `${at}priority` },
      );
    default:
      return new UsageError("PGCLAIM_INVALID_PAYLOAD", `job "${kind}": the database refused it: ${answer.reason}.`, {
        path: `${at}payload`,
      });
  }
}

/** A key that was used with another request, or whose first call is still under way. */
export function notOnce(type: "conflict" | "busy"): UsageError | DatabaseError {
  if (type === "conflict") {
    return new UsageError(
      "PGCLAIM_IDEMPOTENCY_CONFLICT",
      "This idempotency key was used with another request. Send the same request again, or this one with a key of its own.",
      { path: "idempotencyKey" },
    );
  }
  return new DatabaseError(
    "PGCLAIM_NO_ANSWER",
    "Another call with this idempotency key has not ended yet. Ask again: it is answered the same.",
  );
}
