// The client's types: what is answered is typed by its status, and what the route does not take does not compile.

import { expect, expectTypeOf, it } from "vitest";
import { createClient } from "../../src/client.ts";
import type { JobRow, KeyRow, Page } from "../../src/index.ts";

const requests: Request[] = [];
const client = createClient("https://jobs.example", {
  token: "read-secret",
  fetch: async (input, init) => {
    requests.push(new Request(input, init));
    return Response.json({ error: { code: "PGCLAIM_JOB_NOT_FOUND", message: "There is no job 7." } }, { status: 404 });
  },
});

async function answersAreTyped(): Promise<void> {
  const jobs = await client.api.jobs.$get({ query: { state: "dead", limit: 10, "payload.orderId": "42" } });
  if (jobs.ok) expectTypeOf(await jobs.json()).toExtend<Page<JobRow>>();
  const keys = await client.api.keys.$get({ query: { halted: true } });
  if (keys.status === 200) expectTypeOf(await keys.json()).toExtend<Page<KeyRow>>();
  if (keys.status === 503) expectTypeOf((await keys.json()).error.path).toEqualTypeOf<string | undefined>();
  const payload = await client.api.jobs[":id"].payload.$get({ param: { id: "7" } });
  if (payload.ok) expectTypeOf(await payload.text()).toEqualTypeOf<string>();
  const redriven = await client.api.dead.redrive.$post({ json: { filter: { kind: "receipt.send" }, spread: "10m" } });
  if (redriven.ok) expectTypeOf((await redriven.json()).changed).toEqualTypeOf<number>();
  await client.api.trigger.$post();
  await client.api.jobs.$post({ json: [{ kind: "receipt.send", payload: { orderId: "42" }, delay: "5m" }] });
  await client.api.stats.$get();
}

async function mustNotCompile(): Promise<void> {
  // @ts-expect-error no such state
  await client.api.jobs.$get({ query: { state: "sleeping" } });
  // @ts-expect-error no such parameter
  await client.api.jobs.$get({ query: { status: "dead" } });
  // @ts-expect-error a page size is a number
  await client.api.jobs.$get({ query: { limit: "ten" } });
  // @ts-expect-error an id is text
  await client.api.jobs[":id"].$get({ param: { id: 7 } });
  // @ts-expect-error no such route
  await client.api.jobs[":id"].delete.$post({ param: { id: "7" } });
  // @ts-expect-error a bulk action needs a filter
  await client.api.dead.discard.$post({ json: {} });
  // @ts-expect-error a bare number has no unit
  await client.api.dead.redrive.$post({ json: { filter: { kind: "a" }, spread: 10 } });
  // @ts-expect-error a job has a kind
  await client.api.jobs.$post({ json: { payload: 1 } });
  // @ts-expect-error a client has a token
  createClient("https://jobs.example", {});
}

it("compiles, which is the test; and sends its secret and what it was given", async () => {
  expect([answersAreTyped, mustNotCompile].every((check) => typeof check === "function")).toBe(true);
  const answer = await client.api.jobs[":id"].retry.$post({ param: { id: "7" } });
  await client.api.jobs.$get({ query: { limit: 10, "payload.orderId": "42" } });
  expect(answer.status).toBe(404);
  expect(requests.map(({ method, url }) => `${method} ${url}`)).toEqual([
    "POST https://jobs.example/api/jobs/7/retry",
    "GET https://jobs.example/api/jobs?limit=10&payload.orderId=42",
  ]);
  for (const { headers } of requests) expect(headers.get("authorization")).toBe("Bearer read-secret");
});
