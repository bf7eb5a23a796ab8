// The demo's input: GitHub's own example payloads, signed and posted as GitHub does, and transactions to report.

import { createHmac, randomUUID } from "node:crypto";
import fs from "node:fs";
import { fileURLToPath } from "node:url";
import type { Process, Stage } from "./stage.ts";

/** So many accounts that each of eight invocations meets one, though a tick takes what stands behind it as well. */
const ACCOUNTS = 16;
const EACH = 4;
const REDELIVERIES = 5;
/** Of each so many accounts, one posts a transaction twice at the same instant, and another one posts one again later. */
const AGAIN_EACH = 4;

/** Requests under way at once. */
const SENDERS = 6;

export type Sent = {
  readonly events: number;
  readonly eventNames: number;
  /** Answers by kind. */
  readonly stored: number;
  readonly redelivered: number;
  readonly duplicates: number;
  readonly forged: number;
  readonly refused: number;
  /** In the order in which each account's were posted: one when the one before it had been answered. */
  readonly transactions: readonly Transaction[];
  readonly accounts: number;
  readonly enqueued: number;
  /** Transactions posted again, and of these how many were answered as a duplicate, with the id of the first. */
  readonly again: number;
  readonly known: number;
  /** Ids of all the jobs there are now. */
  readonly jobIds: readonly string[];
  /** Answers nobody expected. */
  readonly surprises: readonly string[];
};

type Event = { readonly id: string; readonly name: string; readonly body: string };
type Report = { readonly transactionId: string; readonly account: string; readonly amount: string };

/** A transaction to report, and when it was posted by performance.now(). */
export type Transaction = Report & { readonly postedAt: number };

/** All of it, through all processes; each account's transactions in a row, and the accounts spread over all events. */
export async function send(stage: Stage, processes: readonly Process[]): Promise<Sent> {
  const events = readEvents();
  const reports = makeReports();
  const each = Math.floor(events.length / reports.length);
  const jobIds: string[] = [];
  const surprises: string[] = [];
  const transactions: Transaction[] = [];
  const count = { stored: 0, duplicates: 0, refused: 0, enqueued: 0, again: 0, known: 0 };
  let turn = 0;
  const next = () => processes[turn++ % processes.length] as Process;

  const postEvent = async (event: Event, secret: string, expect: (status: number, answer: unknown) => boolean) => {
    const signature = createHmac("sha256", secret).update(event.body).digest("hex");
    const answer = await next().fetch("/webhooks/github", {
      method: "POST",
      headers: {
        "content-type": "application/json",
        "x-github-delivery": event.id,
        "x-github-event": event.name,
        "x-hub-signature-256": `sha256=${signature}`,
      },
      body: event.body,
    });
    if (!expect(answer.status, answer.json())) surprises.push(`${event.name}: ${answer.status} ${answer.text}`);
  };
  const keepId = (answer: unknown): boolean => {
    const id = typeof answer === "object" && answer !== null && "jobId" in answer ? answer.jobId : null;
    if (typeof id !== "string") return false;
    jobIds.push(id);
    return true;
  };

  const jobOf = new Map<string, string>();
  /** Posts a transaction so many times at once, through as many processes. */
  const postReport = async (report: Report, times: number) => {
    const isNew = !jobOf.has(report.transactionId);
    if (isNew) transactions.push({ ...report, postedAt: performance.now() });
    const posts = Array.from({ length: times }, () =>
      next().fetch("/api/jobs", {
        method: "POST",
        headers: { "content-type": "application/json", authorization: `Bearer ${stage.secrets.enqueue}` },
        body: JSON.stringify({ kind: "report.transaction", payload: report }),
      }),
    );
    const duplicates: unknown[] = [];
    for (const answer of await Promise.all(posts)) {
      const { type, id } = answer.json<{ type?: unknown; id?: unknown }>();
      if (answer.status === 201 && type === "enqueued" && typeof id === "string") {
        jobIds.push(id);
        jobOf.set(report.transactionId, jobOf.get(report.transactionId) ?? id);
        count.enqueued++;
      } else if (answer.status === 200 && type === "duplicate") duplicates.push(id);
      else surprises.push(`report: ${answer.status} ${answer.text}`);
    }
    count.again += isNew ? times - 1 : times;
    count.known += duplicates.filter((id) => id === jobOf.get(report.transactionId)).length;
  };

  // An account posts its next transaction when the one before it has been answered: so they commit in that order.
  const lastOf = new Map<string, Promise<void>>();
  const calls: (() => Promise<void>)[] = [];
  for (const [i, event] of events.entries()) {
    calls.push(() =>
      postEvent(event, stage.secrets.github, (status, answer) => {
        if (status !== 202 || !keepId(answer)) return false;
        count.stored++;
        return true;
      }),
    );
    const report = i % each === 0 ? reports[i / each] : undefined;
    if (report === undefined) continue;
    const times = (i / each) % (EACH * AGAIN_EACH) === 1 ? 2 : 1;
    calls.push(() => {
      const posted = (lastOf.get(report.account) ?? Promise.resolve()).then(() => postReport(report, times));
      lastOf.set(report.account, posted);
      return posted;
    });
  }
  await inParallel(calls);
  const again = reports.filter((_, i) => i % (EACH * AGAIN_EACH) === 2 * EACH);
  await inParallel(again.map((report) => () => postReport(report, 1)));

  // GitHub delivers again when a person asks it to, with the same delivery id.
  await inParallel(
    events.slice(0, REDELIVERIES).map(
      (event) => () =>
        postEvent(event, stage.secrets.github, (status, answer) => {
          const isDuplicate = status === 200 && JSON.stringify(answer) === '{"duplicate":true}';
          if (isDuplicate) count.duplicates++;
          return isDuplicate;
        }),
    ),
  );
  const forged = { ...(events[0] as Event), id: randomUUID() };
  await postEvent(forged, "not the secret", (status) => {
    if (status === 401) count.refused++;
    return status === 401;
  });

  return {
    events: events.length,
    eventNames: new Set(events.map(({ name }) => name)).size,
    redelivered: REDELIVERIES,
    forged: 1,
    transactions,
    accounts: ACCOUNTS,
    ...count,
    jobIds,
    surprises,
  };
}

/** 329 payloads, collected by octokit from GitHub's own deliveries. */
function readEvents(): Event[] {
  const file = fileURLToPath(import.meta.resolve("@octokit/webhooks-examples/api.github.com/index.json"));
  const kinds = JSON.parse(fs.readFileSync(file, "utf8")) as { name: string; examples: unknown[] }[];
  return kinds.flatMap(({ name, examples }) =>
    examples.map((example) => ({ id: randomUUID(), name, body: JSON.stringify(example) })),
  );
}

/** One account after the other. */
function makeReports(): Report[] {
  return Array.from({ length: ACCOUNTS * EACH }, (_, i) => ({
    transactionId: `t-${String(i + 1).padStart(3, "0")}`,
    account: `account-${String(Math.floor(i / EACH) + 1).padStart(2, "0")}`,
    amount: `${10 + i}.${String((i * 37) % 100).padStart(2, "0")}`,
  }));
}

async function inParallel(calls: readonly (() => Promise<void>)[]): Promise<void> {
  const queue = [...calls];
  const sender = async () => {
    for (let call = queue.shift(); call !== undefined; call = queue.shift()) await call();
  };
  await Promise.all(Array.from({ length: SENDERS }, sender));
}
