// The jobs of this deployment: the file to copy and edit. A handler does its external work first and writes last, on
// `tx`, which is the claiming transaction: what it writes there commits with the job's completion, or not at all.

import { deadLetter, defineJob, done, type Handler } from "pgclaim";
import * as z from "zod"; // the namespace import keeps zod's locales out of the bundle

/** An event that GitHub delivered and worker/github.ts stored. The payload names it; the table has it. */
const githubEventPayload = z.object({
  deliveryId: z.string(),
  event: z.string(),
  /** owner/name; null for events of an organization or an account. */
  repository: z.string().nullable(),
});
export type GithubEventPayload = z.input<typeof githubEventPayload>;

export const githubEvent = defineJob({
  kind: "github.event",
  payload: githubEventPayload,
  // As urgent as a report. By the default of 5m every event would go before every report, however long that one waits.
  targetLatency: "15m",
  async run({ payload, tx }) {
    // No "on conflict": if an event could take effect twice, this should fail and be seen.
    const { rowCount } = await tx.query(
      `insert into repository_activity (repository, delivery_id, event, action, actor, at)
       select $2, delivery_id, name, body ->> 'action', body -> 'sender' ->> 'login', received_at
       from webhook_event
       where delivery_id = $1`,
      [payload.deliveryId, payload.repository ?? "(none)"],
    );
    if (rowCount !== 1) return deadLetter(`webhook_event has no delivery ${payload.deliveryId}`);
    return done();
  },
});

/** One transaction that has to be reported to the authority. */
const reportTransactionPayload = z.object({
  transactionId: z.string().min(1),
  account: z.string().min(1),
  /** Decimal, as text: money does not fit a JavaScript number. */
  amount: z.string().regex(/^-?\d{1,15}(\.\d{1,4})?$/, 'expected a decimal number as text, for example "9.95"'),
});

export const reportTransaction = defineJob({
  kind: "report.transaction",
  payload: reportTransactionPayload,
  // An account's reports reach the authority one at a time, in the order in which their enqueues committed, over retries
  // and crashes too. A dead letter halts its account until a person retries, skips or discards it.
  orderingKey: "account:{account}",
  whenDead: "halt",
  // The authority allows one session for each account, whatever kind of job uses it.
  locks: ["authority-session:{account}"],
  // Enqueued again while it is unfinished, a transaction is answered with the job it has.
  uniqueKey: "transaction:{transactionId}",
  // A report later than this is worth nothing: it is not sent, and its job becomes a dead letter, "missed".
  deadline: "15m",
  timeout: "20s",
  retry: { maxAttempts: 8, minBackoff: "2s", maxBackoff: "10m" },
});

/** The handler of "report.transaction", which needs to know where the authority is. */
export function reportTo(authorityUrl: string | undefined): Handler<z.output<typeof reportTransactionPayload>> {
  return async ({ payload, job, tx, signal }) => {
    if (!authorityUrl)
      throw new Error("AUTHORITY_URL is not set in this deployment. Set it: wrangler secret put AUTHORITY_URL");
    const response = await fetch(`${authorityUrl}/reports`, {
      method: "POST",
      signal,
      headers: {
        "content-type": "application/json",
        // The same on every attempt: an authority that sees it again answers again and does nothing twice.
        "idempotency-key": job.idempotencyKey,
        // Never the same twice: an authority that remembers the highest attempt can refuse a late one.
        "fencing-token": `${job.id}/${job.attempt}`,
      },
      body: JSON.stringify(payload),
    });
    // 422: it has understood the report and will never take it. A person has to look.
    if (response.status === 422) return deadLetter("the authority refused the report (422)");
    // Everything else that is no success may pass. A throw is a failed attempt: backoff, and again.
    if (!response.ok) throw new Error(`the authority answered ${response.status}`);
    const { receipt } = z.object({ receipt: z.string() }).parse(await response.json());
    await tx.query(
      `insert into report_receipt (job_id, attempt, transaction_id, account, amount, receipt)
       values ($1, $2, $3, $4, $5, $6)`,
      [job.id, job.attempt, payload.transactionId, payload.account, payload.amount, receipt],
    );
    return done();
  };
}
