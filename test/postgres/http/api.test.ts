// The HTTP API over a real claimer on a real database: what only the two together can show.

import { expect, it } from "vitest";
import * as z from "zod";
import { createApp } from "../../../src/http/app.ts";
import { deadLetter, defineJob } from "../../../src/index.ts";
import { setup } from "../../support/world.ts";
import { bearer, errorOf, post, secrets } from "../../unit/http/support.ts";

interface Page {
  readonly items: readonly { readonly id: string; readonly kind: string; readonly state: string }[];
  readonly next: string | null;
}
interface Bulk {
  readonly changed: number;
  readonly left: number;
  readonly more: boolean;
  readonly upTo: string | null;
  readonly cursor: string | null;
}

async function start() {
  const world = await setup();
  const jobs = [
    defineJob({ kind: "broken", payload: z.unknown(), run: async () => deadLetter("no good") }),
    defineJob({ kind: "plain", payload: z.unknown(), async run() {} }),
  ];
  const claimer = world.claimer("pg", { jobs, batch: 200, concurrency: 50 });
  await claimer.register();
  const app = createApp({ claimer: () => claimer, secrets, log: () => {} });
  const list = async (query: string) =>
    (await (await app.request(`/api/jobs?${query}`, { headers: bearer("read") })).json()) as Page;
  const act = async (path: string, body: unknown) =>
    (await (await app.request(path, post("operate", body))).json()) as Bulk;
  return { world, claimer, app, list, act };
}

it("pages through a list without a gap or a repeat, and refuses a cursor of its own making", async () => {
  const { claimer, app, list } = await start();
  const all = await claimer.enqueueByKind(Array.from({ length: 25 }, (_, n) => ({ kind: "plain", payload: { n } })));
  const seen: string[] = [];
  let query = "kind=plain&limit=10";
  for (let pages = 0; pages < 4; pages++) {
    const page = await list(query);
    seen.push(...page.items.map(({ id }) => id));
    if (page.next === null) break;
    query = `kind=plain&limit=10&cursor=${encodeURIComponent(page.next)}`;
  }
  expect(seen).toHaveLength(25);
  expect(new Set(seen)).toEqual(new Set(all.map(({ id }) => id)));
  const answer = await app.request("/api/jobs?cursor=bm9uZQ", { headers: bearer("read") });
  expect([answer.status, (await errorOf(answer)).path]).toEqual([400, "query.cursor"]);
});

it("finds a job by what its payload contains, text and number apart", async () => {
  const { claimer, list } = await start();
  const [text, number] = await claimer.enqueueByKind([
    { kind: "plain", payload: { order: { id: "42" } } },
    { kind: "plain", payload: { order: { id: 42 } } },
  ]);
  expect((await list("payload.order.id=42")).items.map(({ id }) => id)).toEqual([text?.id]);
  expect((await list("payload.order.id:=42")).items.map(({ id }) => id)).toEqual([number?.id]);
});

it("redrives every dead letter that matches, in slices, and writes down that the API did it", async () => {
  const { world, claimer, app, list, act } = await start();
  for (let round = 0; round < 2; round++) {
    await claimer.enqueueByKind(Array.from({ length: 600 }, (_, n) => ({ kind: "broken", payload: { n } })));
  }
  await claimer.invoke({ type: "manual" });
  expect(await world.value("select count(*)::int from pgclaim.job where state = 'dead'")).toBe(1_200);

  expect(await act("/api/dead/redrive", { filter: { kind: "plain" } })).toEqual({
    changed: 0,
    left: 0,
    more: false,
    upTo: null,
    cursor: null,
  });
  const redriven = await act("/api/dead/redrive", { filter: { kind: "broken" } });
  expect(redriven).toMatchObject({ changed: 1_200, left: 0, more: false });
  expect(await world.value("select count(*)::int from pgclaim.job where state = 'dead'")).toBe(0);

  const [{ id } = { id: "" }] = (await list("state=ready&limit=1")).items;
  const job = (await (await app.request(`/api/jobs/${id}`, { headers: bearer("read") })).json()) as {
    actions: readonly { verb: string; actor: string }[];
  };
  expect(job.actions).toMatchObject([{ actor: "api" }]);

  await claimer.invoke({ type: "manual" });
  const oldest = await world.value<string>("select min(id)::text from pgclaim.job");
  const discarded = await act("/api/dead/discard", { filter: { state: "dead" }, upTo: oldest });
  expect(discarded).toMatchObject({ changed: 1, upTo: oldest, more: false });
  expect(await world.locks()).toBe(0);
});

it("enqueues once for an Idempotency-Key, and refuses it for other jobs", async () => {
  const { world, app } = await start();
  const send = async (payload: unknown) =>
    app.request("/api/jobs", post("enqueue", { kind: "plain", payload }, { "idempotency-key": "order-42" }));
  const first = await send(1);
  const again = await send(1);
  expect([first.status, again.status]).toEqual([201, 201]);
  expect(await again.json()).toEqual(await first.json());
  const other = await send(2);
  expect([other.status, (await errorOf(other)).code]).toEqual([422, "PGCLAIM_IDEMPOTENCY_CONFLICT"]);
  expect(await world.value("select count(*)::int from pgclaim.job")).toBe(1);
});
