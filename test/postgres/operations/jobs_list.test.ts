// Lists of jobs: each state holds what it names and nothing else, says why a job does not run, and its pages add up, also where
// every row has the same instant. Filters narrow and never guess; what a page looked at, it says.

import { describe, expect, it } from "vitest";
import { type JobRow, type JobsRequest, listStates, type Page } from "../../../src/inspection.ts";
import {
  all,
  claimer,
  crash,
  enqueue,
  enqueueOne,
  fence,
  finish,
  type Installation,
  install,
  reap,
} from "../sql/support.ts";
import { idsOf, inspectorOf, KINDS, kindNames, list, read, walk } from "./reading.ts";

const one = (world: Installation, kind: string, k: unknown = "1") => enqueueOne(world.sql, kind, { k });

/** Dead letters by the handler's own word, in the order given. */
async function die(world: Installation, kinds: readonly string[], error = "boom 1"): Promise<string[]> {
  const session = await claimer(world, { kinds });
  await fence(world.sql, session);
  await finish(session.client, session.tick, all(session.jobs, "dead", { error }));
  return session.jobs.map(({ id }) => id);
}

async function succeed(world: Installation, kinds: readonly string[]): Promise<string[]> {
  const session = await claimer(world, { kinds });
  await fence(world.sql, session);
  await finish(session.client, session.tick, all(session.jobs, "done"));
  return session.jobs.map(({ id }) => id);
}

const whyOf = (rows: readonly JobRow[]) => Object.fromEntries(rows.map(({ id, why }) => [id, [why.reason, why.what]]));

describe("jobs", () => {
  it("puts each job into the list of its state, and into no other", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    await one(world, "a");
    const [dead] = await die(world, ["a"]);
    await one(world, "a");
    const [done] = await succeed(world, ["a"]);
    const discarded = await one(world, "a");
    await die(world, ["a"]);
    await world.sql.query("select pgclaim.discard_v1($1)", [discarded]);
    const cancelled = await one(world, "a");
    await world.sql.query("select pgclaim.cancel_v1($1)", [cancelled]);
    const retrying = await one(world, "a");
    const failing = await claimer(world, { kinds: ["a"] });
    await fence(world.sql, failing);
    await finish(failing.client, failing.tick, all(failing.jobs, "failed", { error: "503", inMs: 60_000 }));
    const scheduled = await world.value<string>(
      "select job_id from pgclaim.enqueue('a', '{}', now() + interval '1 hour')",
    );
    const running = await one(world, "a");
    const holder = await claimer(world, { kinds: ["a"] });
    await fence(world.sql, holder);
    const [head, blocked] = [await one(world, "ordered"), await one(world, "ordered")];
    const lists = Object.fromEntries(
      await Promise.all(listStates.map(async (state) => [state, await list(inspector, { state })] as const)),
    );
    expect(lists).toEqual({
      ready: [head],
      running: [running],
      scheduled: [scheduled],
      retrying: [retrying],
      blocked: [blocked],
      dead: [dead],
      done: [done],
      discarded: [discarded],
      cancelled: [cancelled],
    });
    for (const state of listStates) {
      expect(
        (await inspector.jobs({ state })).items.map((row) => row.state),
        state,
      ).toEqual([state]);
    }
    expect(await list(inspector, {})).toEqual([blocked, head, running, scheduled, retrying, dead]);
  });

  it("tells a line's facts: attempts, instants in UTC, slack, error and the payload's beginning", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const name = await world.value<string>("select current_database()");
    await world.sql.query(`alter database "${name}" set timezone = 'Asia/Kathmandu'`);
    const id = await one(world, "ordered", "x");
    await enqueueOne(world.sql, "a", { long: Array.from({ length: 400 }, (_, i) => `${i}:${i * 7919}`) });
    const { items, now } = await inspector.jobs({});
    const [long, row] = items;
    expect(row).toMatchObject({
      id,
      kind: "ordered",
      queue: "default",
      state: "ready",
      priority: 2,
      attempt: 0,
      failures: 0,
      maxAttempts: 5,
      endedAt: null,
      deadReason: null,
      orderingKey: "account:x",
      uniqueKey: null,
      why: { reason: "due", what: null },
      error: null,
      preview: '{"k": "x"}',
    });
    expect(row?.runAt).toMatch(/^\d{4}-\d\d-\d\dT[\d:.]+\+00:00$/);
    expect(now).toMatch(/\+00:00$/);
    expect(row?.slackMs).toBeGreaterThan(3_500_000);
    expect(row?.slackMs).toBeLessThanOrEqual(3_600_000);
    expect(long?.preview).toBeNull();
    expect(long?.payloadBytes).toBeGreaterThan(2_048);
  });

  it("says why a job is not running", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const head = await one(world, "ordered", "dead");
    await die(world, ["ordered"]);
    const halted = await one(world, "ordered", "dead");
    const [first, behind] = [await one(world, "ordered", "live"), await one(world, "ordered", "live")];
    const [named, busy] = [await one(world, "named"), await one(world, "named")];
    const [taken, full] = [await one(world, "limited"), await one(world, "limited")];
    const [free, queued] = [await one(world, "limited", "2"), await one(world, "limited", "2")];
    const later = await world.value<string>("select job_id from pgclaim.enqueue('a', '{}', now() + interval '1 hour')");
    const paused = await one(world, "other");
    await world.sql.query("select pgclaim.pause_queue_v1('other')");
    const suspect = await one(world, "a");
    await crash(world, { kinds: ["a"] });
    await reap(world.sql);
    const names = await claimer(world, { kinds: ["named"] });
    await fence(world.sql, names);
    const slots = await claimer(world, { kinds: ["limited"], batch: 1 });
    await fence(world.sql, slots);
    expect(names.jobs.map(({ id }) => id)).toContain(named);
    expect(slots.jobs.map(({ id }) => id)).toEqual([taken]);
    expect(whyOf((await inspector.jobs({})).items)).toMatchObject({
      [head]: ["dead", null],
      [halted]: ["halted", head],
      [first]: ["due", null],
      [behind]: ["behind", first],
      [named]: ["running", null],
      [taken]: ["running", null],
      [full]: ["limit", "tenant:1"],
      [free]: ["due", null],
      [queued]: ["behind", free],
      [later]: ["scheduled", null],
      [paused]: ["paused", "other"],
      [suspect]: ["suspect", null],
    });
    // Two of a name stand in the claim index: the second was claimed after the first, or it waits for its name.
    const why = whyOf((await inspector.jobs({ kind: "named" })).items)[busy];
    expect([
      ["running", null],
      ["busy", "session:1"],
    ]).toContainEqual(why);
  });

  it("names the lock that a job waits for, whoever has it", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const id = await one(world, "named", "7");
    const client = await world.connect();
    await client.query(
      "begin; select pg_advisory_xact_lock(pgclaim.name_key('lock', 'session:7', seed)) from pgclaim.installation",
    );
    expect(whyOf((await inspector.jobs({})).items)).toEqual({ [id]: ["busy", "session:7"] });
    await client.query("commit");
    expect(whyOf((await inspector.jobs({})).items)).toEqual({ [id]: ["due", null] });
  });

  it("gives every job exactly once over its pages, where all have one instant", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    await enqueue(world.sql, 7);
    await die(world, ["a"]);
    await enqueue(world.sql, 7);
    await succeed(world, ["a"]);
    await enqueue(world.sql, 7);
    await enqueue(world.sql, 5, "other");
    for (const k of ["1", "2", "3"]) await enqueue(world.sql, 4, "ordered", { k });
    await enqueue(world.sql, 7, "named", { k: "1" });
    await world.sql.query(
      `insert into pgclaim.job (kind, queue, state, priority, rank, run_at, revision, failures, payload)
       select 'a', 'default', 'scheduled', 2, now(), now() + interval '1 hour', 1, i % 2, '{}' from generate_series(1, 14) i`,
    );
    await world.sql.query(
      `update pgclaim.job set rank = '2026-01-01T00:00:00.123456Z', dead_at = case when state = 'dead' then '2026-01-01T00:00:00.654321Z'::timestamptz end,
         run_at = case when state = 'scheduled' then '2036-01-01T00:00:00.111111Z' else run_at end`,
    );
    const filters: JobsRequest[] = [
      ...listStates.map((state) => ({ state })),
      {},
      { queue: "default" },
      { state: "ready", queue: "default" },
      { state: "ready", kind: "other" },
      { orderingKey: "account:2" },
      { state: "blocked", orderingKey: "account:2" },
    ];
    for (const filter of filters) {
      const told = JSON.stringify(filter);
      const whole = await list(inspector, { ...filter, limit: 200 });
      if (!["running", "discarded", "cancelled"].includes(filter.state ?? ""))
        expect(whole.length, told).toBeGreaterThan(2);
      for (const limit of [1, 3, Math.max(1, whole.length)]) {
        const paged = await walk((cursor) =>
          // On one connection: these are hundreds of pages.
          read<Page<JobRow>>(world, "jobs_v1", { ...filter, limit, ...(cursor ? { cursor } : {}) }),
        );
        expect(idsOf(paged), `${told} by ${limit}`).toEqual(whole);
      }
      expect(new Set(whole).size, told).toBe(whole.length);
      expect((await inspector.count(filter)).n, told).toBe(whole.length);
    }
    expect(await list(inspector, { limit: 200 })).toHaveLength(
      await world.value<number>("select count(*)::integer from pgclaim.job"),
    );
  });

  it("merges the ready jobs of all queues by priority and rank, suspects among them", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const ids = [...(await enqueue(world.sql, 3)), ...(await enqueue(world.sql, 3, "other"))];
    // A queue that no kind has any more.
    await world.sql.query("update pgclaim.job set queue = 'forgotten', suspect = true where id = $1", [ids[1]]);
    await world.sql.query(
      "update pgclaim.job set priority = 0, rank = now() - id * interval '1 minute' where id = any ($1)",
      [[ids[1], ids[4]]],
    );
    expect(await list(inspector, { state: "ready" })).toEqual([ids[4], ids[1], ids[0], ids[2], ids[3], ids[5]]);
    expect(await list(inspector, { state: "ready", queue: "forgotten" })).toEqual([ids[1]]);
  });

  it("narrows by queue, kind, ordering key, unique key, payload, reason, fingerprint and instant", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const a = await enqueueOne(world.sql, "a", { order: { id: 1 }, tags: ["x", "y"] });
    await die(world, ["a"], "503 from 10.0.0.1 after 12 ms");
    const b = await enqueueOne(world.sql, "a", { order: { id: 2 } });
    await die(world, ["a"], "timeout of 9 s");
    const unique = await one(world, "unique", "42");
    const ordered = await one(world, "ordered", "42");
    const other = await one(world, "other");
    await world.sql.query(
      "update pgclaim.job set dead_reason = 'missed', dead_at = dead_at - interval '1 day' where id = $1",
      [b],
    );
    const fingerprint = await world.value<string>(
      "select pgclaim.error_fingerprint('503 from 10.9.9.9 after 7777 ms')",
    );
    expect(await list(inspector, { queue: "other" })).toEqual([other]);
    expect(await list(inspector, { kind: "ordered" })).toEqual([ordered]);
    expect(await list(inspector, { orderingKey: "account:42" })).toEqual([ordered]);
    expect(await list(inspector, { uniqueKey: "tx:42" })).toEqual([unique]);
    expect(await list(inspector, { uniqueKey: "tx:42", kind: "unique", state: "ready" })).toEqual([unique]);
    expect(await list(inspector, { uniqueKey: "tx:42", state: "dead" })).toEqual([]);
    expect(await list(inspector, { payload: { order: { id: 1 } } })).toEqual([a]);
    expect(await list(inspector, { payload: { tags: ["y"] } })).toEqual([a]);
    expect(await list(inspector, { payload: { order: { id: "1" } } })).toEqual([]);
    expect(await list(inspector, { reason: "missed" })).toEqual([b]);
    expect(await list(inspector, { state: "dead", reason: "handler" })).toEqual([a]);
    expect(await list(inspector, { fingerprint })).toEqual([a]);
    expect(await list(inspector, { state: "dead", since: new Date(Date.now() - 3_600_000).toISOString() })).toEqual([
      a,
    ]);
    expect(await list(inspector, { state: "ready", reason: "handler" })).toEqual([]);
    expect(await list(inspector, { state: "done", reason: "handler" })).toEqual([]);
  });

  it("finds the dead letters of a key that let others pass as well as those that halt it", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const first = await one(world, "ordered");
    await die(world, ["ordered"]);
    await world.sql.query("select pgclaim.skip_v1($1)", [first]);
    const second = await one(world, "ordered");
    await die(world, ["ordered"]);
    const third = await one(world, "ordered");
    expect(await list(inspector, { orderingKey: "account:1" })).toEqual([first, second, third]);
    expect(await list(inspector, { orderingKey: "account:1", state: "dead" })).toEqual([first, second]);
  });

  it("stops where a filter has no index, says how much it looked at, and goes on behind it", async () => {
    const world = await install(KINDS);
    const ids = await enqueue(world.sql, 9);
    await world.sql.query(`update pgclaim.job set payload = '{"k": 1}' where id = any ($1)`, [
      [ids[0], ids[4], ids[5]],
    ]);
    const page = (cursor?: string) =>
      read<Page<JobRow>>(world, "jobs_v1", { payload: { k: 1 }, look: 3, ...(cursor ? { cursor } : {}) });
    const first = await page();
    expect([idsOf(first.items), first.searched]).toEqual([[], 3]);
    expect(idsOf(await walk(page))).toEqual([ids[5], ids[4], ids[0]]);
    expect(await read(world, "count_jobs_v1", { payload: { k: 1 }, look: 5 })).toEqual({
      n: 2,
      capped: true,
      upTo: ids[8],
      searched: 5,
    });
    // An answer that is complete says nothing of the search.
    expect((await read<Page<JobRow>>(world, "jobs_v1", { payload: { k: 1 }, look: 9 })).searched).toBeNull();
  });

  it("counts to a cap, and names the highest id among those it counted, or of all where it stopped", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const ids = await enqueue(world.sql, 5);
    expect(await inspector.count({ state: "ready" })).toEqual({ n: 5, capped: false, upTo: ids[4], searched: null });
    expect(await read(world, "count_jobs_v1", { state: "ready", cap: 3 })).toEqual({
      n: 3,
      capped: true,
      upTo: ids[4],
      searched: null,
    });
    expect(await inspector.count({ state: "dead" })).toEqual({ n: 0, capped: false, upTo: null, searched: null });
  });

  it.each(["'; drop table pgclaim.job; --", "%s %L %1$I", "\\", '"$1"', "{a,b}", "\u202e\u0007é🦊", "", "null"])(
    "takes %j as a value and as nothing else",
    async (text) => {
      const world = await install(KINDS);
      const inspector = await inspectorOf(world);
      await enqueue(world.sql, 2, "ordered", { k: text });
      await enqueue(world.sql, 1, "unique", { k: text });
      await world.sql.query("update pgclaim.job set queue = $1 where kind = 'unique'", [text]);
      const ordered = [
        ...(await list(inspector, { state: "ready", kind: "ordered" })),
        ...(await list(inspector, { state: "blocked", kind: "ordered" })),
      ];
      const key = (await inspector.jobs({ kind: "ordered" })).items[0]?.orderingKey ?? "";
      expect(await list(inspector, { orderingKey: key })).toEqual(ordered);
      expect(await list(inspector, { queue: text })).toHaveLength(1);
      expect(await list(inspector, { queue: text, state: "ready" })).toHaveLength(1);
      expect(await list(inspector, { payload: { k: text } })).toHaveLength(3);
      for (const state of [undefined, ...listStates]) {
        const filter = { kind: text, fingerprint: text, orderingKey: text, ...(state ? { state } : {}) };
        expect(await list(inspector, filter)).toEqual([]);
        expect(await list(inspector, { uniqueKey: text, ...(state ? { state } : {}) })).toEqual([]);
      }
      expect(kindNames).toHaveLength(await world.value<number>("select count(*)::integer from pgclaim.kind"));
    },
  );

  it("refuses what it cannot read, and quotes none of it", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    await enqueue(world.sql, 3);
    const { next } = await inspector.jobs({ limit: 1 });
    const forged = (place: unknown) => Buffer.from(JSON.stringify(place)).toString("base64url");
    const wrong: object[] = [
      { state: "sleeping" },
      { state: "ready", cursor: next },
      { cursor: "SECRET" },
      { cursor: "a" },
      { cursor: "" },
      { cursor: forged(["jobs", 1, "SECRET"]) },
      { cursor: forged(["jobs", 1, null]) },
      { cursor: forged(["jobs", 1, "1 or true"]) },
      { cursor: forged({ jobs: 1 }) },
      { state: "dead", cursor: forged(["dead", 1, "SECRET", "1"]) },
      { state: "blocked", cursor: forged(["blocked", "x", "g", "1", "1", "1"]) },
      { limit: 0 },
      { limit: 201 },
      { limit: 1.5 },
      { limit: "50" },
      { reason: "SECRET" },
      { since: "SECRET" },
      { payload: ["SECRET"] },
      { payload: "SECRET" },
    ];
    for (const request of wrong) {
      const refusal = inspector.jobs(request as JobsRequest);
      await expect(refusal, JSON.stringify(request)).rejects.toMatchObject({ code: "PGCLAIM_INVALID_REQUEST" });
      await expect(refusal).rejects.not.toThrow(/SECRET/);
    }
  });
});
