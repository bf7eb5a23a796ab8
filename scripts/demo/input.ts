// The demo's input: GitHub's own example payloads, signed and posted as GitHub does, and transactions to report.

import { createHmac, randomUUID } from "node:crypto";
import fs from "node:fs";
import { fileURLToPath } from "node:url";
import type { Process, Stage } from "./stage.ts";

const REPORTS = 40;
const REDELIVERIES = 5;

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
  readonly reports: number;
  readonly enqueued: number;
  /** Ids of all the jobs there are now. */
  readonly jobIds: readonly string[];
  /** Answers nobody expected. */
  readonly surprises: readonly string[];
};

type Event = { readonly id: string; readonly name: string; readonly body: string };
type Report = { readonly transactionId: string; readonly account: string; readonly amount: string };

/** All of it, through all processes, in an order in which every tick meets both kinds. */
export async function send(stage: Stage, processes: readonly Process[]): Promise<Sent> {
  const events = readEvents();
  const reports = makeReports();
  const each = Math.floor(events.length / reports.length);
  const jobIds: string[] = [];
  const surprises: string[] = [];
  const count = { stored: 0, duplicates: 0, refused: 0, enqueued: 0 };
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
  const keepId = (answer: unknown, name: string): boolean => {
    const id =
      typeof answer === "object" && answer !== null ? Object.entries(answer).find(([key]) => key === name)?.[1] : null;
    if (typeof id !== "string") return false;
    jobIds.push(id);
    return true;
  };

  const calls: (() => Promise<void>)[] = [];
  for (const [i, event] of events.entries()) {
    calls.push(() =>
      postEvent(event, stage.secrets.github, (status, answer) => {
        if (status !== 202 || !keepId(answer, "jobId")) return false;
        count.stored++;
        return true;
      }),
    );
    const report = i % each === 0 ? reports[i / each] : undefined;
    if (report === undefined) continue;
    calls.push(async () => {
      const answer = await next().fetch("/api/jobs", {
        method: "POST",
        headers: { "content-type": "application/json", authorization: `Bearer ${stage.secrets.enqueue}` },
        body: JSON.stringify({ kind: "report.transaction", payload: report }),
      });
      if (answer.status === 201 && keepId(answer.json(), "id")) count.enqueued++;
      else surprises.push(`report: ${answer.status} ${answer.text}`);
    });
  }
  await inParallel(calls);

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
    reports: reports.length,
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

/** Forty transactions, and the first of them once more. */
function makeReports(): Report[] {
  const reports = Array.from({ length: REPORTS }, (_, i) => ({
    transactionId: `t-${String(i + 1).padStart(3, "0")}`,
    account: `account-${(i % 7) + 1}`,
    amount: `${10 + i}.${String((i * 37) % 100).padStart(2, "0")}`,
  }));
  return [...reports, ...reports.slice(0, 1)];
}

async function inParallel(calls: readonly (() => Promise<void>)[]): Promise<void> {
  const queue = [...calls];
  const sender = async () => {
    for (let call = queue.shift(); call !== undefined; call = queue.shift()) await call();
  };
  await Promise.all(Array.from({ length: SENDERS }, sender));
}
