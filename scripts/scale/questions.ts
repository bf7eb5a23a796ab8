// What is asked at scale: each list and each filter, usual and at its worst, and a page far behind the first.

import type pg from "pg";
import { listStates } from "../../src/inspection.ts";

export interface Question {
  readonly verb: string;
  /** What is special about it. */
  readonly title: string;
  readonly request: object;
}

/** Needs the filled database, for ids that exist. */
export async function questions(client: pg.Client): Promise<Question[]> {
  const all: Question[] = [{ verb: "overview_v1", title: "", request: {} }];
  const ask = (verb: string, request: object, title = JSON.stringify(request)) => all.push({ verb, title, request });
  const jobs = (request: object, title?: string) => ask("jobs_v1", request, title);
  for (const state of [undefined, ...listStates]) {
    const filter = state === undefined ? {} : { state };
    jobs(filter);
    jobs({ ...filter, limit: 200 });
    const deep = await deepCursor(client, filter);
    if (deep !== null) jobs({ ...filter, cursor: deep }, `${JSON.stringify(filter)} 2,000 rows further`);
    jobs({ ...filter, kind: "none" });
    jobs({ ...filter, queue: "none" });
    jobs({ ...filter, payload: { orderId: "none" } });
    ask("count_jobs_v1", filter);
    ask("count_jobs_v1", { ...filter, payload: { account: "7" } });
  }
  jobs({ state: "ready", queue: "default" });
  jobs({ state: "ready", queue: "default", kind: "k3", limit: 200 });
  jobs({ orderingKey: "account:big" });
  jobs({ orderingKey: "account:big", limit: 200 });
  jobs({ orderingKey: "account:big", payload: { orderId: "none" } });
  jobs({ orderingKey: "account:7", state: "dead" });
  jobs({ orderingKey: "account:none", state: "done" });
  jobs({ uniqueKey: "none" });
  for (const reason of ["attempts", "missed", "handler"]) jobs({ state: "dead", reason });
  jobs({ state: "dead", fingerprint: "none" });
  jobs({ state: "dead", since: new Date(Date.now() - 86_400_000).toISOString(), kind: "none" });
  jobs({ state: "done", since: new Date(Date.now() + 86_400_000).toISOString() });
  ask("count_jobs_v1", { orderingKey: "account:big" });
  ask("count_jobs_v1", { state: "dead", fingerprint: await fingerprint(client) });
  const head = await one(client, "select id from pgclaim.job where gate = 'order:account:big' order by place limit 1");
  ask("job_detail_v1", { id: head }, "the head of a key with 200,000 behind it");
  const running = await one(client, "select job_id from pgclaim.attempt where outcome is null order by job_id limit 1");
  ask("job_detail_v1", { id: running }, "a job that runs");
  ask("job_detail_v1", { id: await one(client, "select job_id from pgclaim.history limit 1") }, "a finished job");
  ask("payload_v1", { id: head }, "");
  ask("dead_groups_v1", {});
  for (const request of [{}, { limit: 200 }, { halted: false }, { halted: true, limit: 200 }]) ask("keys_v1", request);
  ask("queues_v1", {});
  ask("kinds_v1", {});
  ask("triggers_v1", {});
  for (const hours of [1, 3, 24, 168]) ask("series_v1", { windowMs: hours * 3_600_000 }, `${hours} h`);
  ask("series_v1", { windowMs: 86_400_000, kind: "k3" }, "24 h of a kind");
  for (const request of [{}, { limit: 200 }, { trigger: "none" }, { outcome: "lost" }]) ask("ticks_v1", request);
  const invocation = await one(client, "select invocation from pgclaim.tick order by decided_at desc limit 1");
  ask("invocation_v1", { id: invocation }, "the newest");
  ask("invocation_v1", { id: "none" });
  ask("holders_v1", {});
  ask("metrics_v1", {});
  return all;
}

/** The cursor behind ten pages of two hundred, or null where the list is shorter. */
async function deepCursor(client: pg.Client, filter: object): Promise<string | null> {
  let cursor: string | null = null;
  for (let i = 0; i < 10; i++) {
    const request: object = { ...filter, limit: 200, ...(cursor === null ? {} : { cursor }) };
    const { rows }: pg.QueryResult<{ next: string | null }> = await client.query(
      "select pgclaim.jobs_v1($1::jsonb) ->> 'next' as next",
      [JSON.stringify(request)],
    );
    cursor = rows[0]?.next ?? null;
    if (cursor === null) return null;
  }
  return cursor;
}

async function one(client: pg.Client, text: string): Promise<string> {
  const { rows } = await client.query<Record<string, string>>(text);
  return Object.values(rows[0] ?? { none: "0" })[0] ?? "0";
}

const fingerprint = (client: pg.Client) =>
  one(
    client,
    "select pgclaim.error_fingerprint(last_error) from pgclaim.job where state = 'dead' order by dead_at desc limit 1",
  );
