// Which jobs a trigger draws from, and in which order: queues, priorities, delays, pause and resume, and who may choose.

import type pg from "pg";
import { describe, expect, it } from "vitest";
import * as z from "zod";
import { pgDatabase } from "../../../src/adapters/node.ts";
import { createApp } from "../../../src/http/app.ts";
import { type AnyJobDefinition, type Claimer, createClaimer, defineJob, type JobSpec } from "../../../src/index.ts";
import { invoke, rendezvous } from "../../support/engine.ts";
import { roleOf } from "../../support/roles.ts";
import { setup, type World } from "../../support/world.ts";
import { crash, sqlState } from "../sql/support.ts";

const payload = z.object({ n: z.number() });

/** Jobs that note when they run; one at a time, so that the order is the claim's. */
function noted(ran: string[], ...specs: readonly Partial<JobSpec<typeof payload>>[]) {
  return specs.map((spec, i) => {
    const kind = spec.kind ?? `k${i}`;
    return defineJob({ ...spec, kind, payload, run: ({ payload: { n } }) => void ran.push(`${kind}:${n}`) } as JobSpec<
      typeof payload
    >);
  });
}

async function worldOf(jobs: readonly AnyJobDefinition[]): Promise<{ world: World; claimer: Claimer }> {
  const world = await setup();
  const claimer = world.claimer("pg", { jobs, concurrency: 1 });
  await claimer.register();
  return { world, claimer };
}

const enqueue = (claimer: Claimer, kind: string, n: number, when: object = {}) =>
  claimer.enqueueByKind([{ kind, payload: { n }, ...when }]);

describe("order", () => {
  it("is by priority first, then by due time and the kind's target latency", async () => {
    const ran: string[] = [];
    const { claimer } = await worldOf(
      noted(
        ran,
        { kind: "last", priority: 3 },
        { kind: "usual" },
        { kind: "soon", targetLatency: "1s" },
        { kind: "first", priority: 0 },
      ),
    );
    for (const kind of ["last", "usual", "soon", "first"]) for (const n of [1, 2]) await enqueue(claimer, kind, n);
    await invoke(claimer);
    expect(ran).toEqual(["first:1", "first:2", "soon:1", "soon:2", "usual:1", "usual:2", "last:1", "last:2"]);
  });

  it("takes a job's own priority before its kind's", async () => {
    const ran: string[] = [];
    const { claimer } = await worldOf(noted(ran, { kind: "a" }, { kind: "b", priority: 0 }));
    await enqueue(claimer, "a", 1);
    await enqueue(claimer, "a", 2, { priority: 0 });
    await enqueue(claimer, "b", 3, { priority: 2 });
    await invoke(claimer);
    expect(ran).toEqual(["a:2", "a:1", "b:3"]);
  });

  it("keeps the order of a batch", async () => {
    const ran: string[] = [];
    const jobs = noted(ran, { kind: "a" });
    const { claimer } = await worldOf(jobs);
    await claimer.enqueueMany(
      jobs[0] as (typeof jobs)[number],
      [5, 3, 9, 1].map((n) => ({ n })),
    );
    await invoke(claimer);
    expect(ran).toEqual(["a:5", "a:3", "a:9", "a:1"]);
  });

  it("leaves a delayed job alone until its time has come, by the database's clock", async () => {
    const ran: string[] = [];
    const { world, claimer } = await worldOf(noted(ran, { kind: "a", priority: 0 }, { kind: "b", priority: 3 }));
    await enqueue(claimer, "a", 1, { delay: "1h" });
    await enqueue(claimer, "a", 2, { runAt: new Date(Date.now() + 3_600_000) });
    await enqueue(claimer, "a", 3, { runAt: new Date(0) });
    await enqueue(claimer, "a", 4, { delay: "0s" });
    await enqueue(claimer, "b", 5);
    await invoke(claimer);
    expect(ran).toEqual(["a:3", "a:4", "b:5"]);
    const left = await world.rows<{ minutes: number }>(
      "select round(extract(epoch from run_at - clock_timestamp()) / 60)::integer as minutes from pgclaim.job order by id",
    );
    expect(left).toEqual([{ minutes: 60 }, { minutes: 60 }]);
    await world.sql.query("update pgclaim.job set run_at = clock_timestamp() - interval '1 second'");
    await invoke(claimer);
    expect(ran.slice(3).sort()).toEqual(["a:1", "a:2"]);
  });
});

describe("priority", () => {
  async function roleFor(world: World, scope: "enqueue" | "run"): Promise<Claimer & { readonly client: pg.Client }> {
    const { url, client } = await roleOf(world, scope);
    const claimer = createClaimer({
      jobs: noted([], { kind: "a" }),
      database: pgDatabase(url),
      log: () => {},
    });
    return { ...claimer, client };
  }

  it("may be chosen by a role that may run jobs, and by no other", async () => {
    const { world } = await worldOf(noted([], { kind: "a" }));
    const runner = await roleFor(world, "run");
    const enqueuer = await roleFor(world, "enqueue");
    expect(await enqueue(runner, "a", 1, { priority: 0 })).toMatchObject([{ type: "enqueued" }]);
    expect(await enqueue(enqueuer, "a", 2)).toMatchObject([{ type: "enqueued" }]);
    await expect(enqueue(enqueuer, "a", 3, { priority: 0 })).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_OPTION",
      path: "priority",
      message: expect.stringContaining("may not choose a priority"),
    });
    const call = `select * from pgclaim.enqueue_v1('{"strict": true, "jobs": [{"kind": "a", "payload": {}, "priority": 0}]}')`;
    expect(await sqlState(enqueuer.client.query(call))).toBe("PC003");
    // Not even with another role's name on: what counts is who has logged in.
    await expect(enqueuer.client.query("set role pgclaim_nobody")).rejects.toThrow();
    expect(await world.rows("select priority, count(*)::integer as n from pgclaim.job group by 1 order by 1")).toEqual([
      { priority: 0, n: 1 },
      { priority: 1, n: 1 },
    ]);
  });

  it("is denied to whoever gave the right away with SET ROLE", async () => {
    const { world } = await worldOf(noted([], { kind: "a" }));
    const enqueuer = await roleFor(world, "enqueue");
    const role = (await enqueuer.client.query<{ name: string }>("select quote_ident(current_user) as name")).rows[0]
      ?.name;
    const owner = await world.connect();
    const call = `select * from pgclaim.enqueue_v1('{"strict": true, "jobs": [{"kind": "a", "payload": {}, "priority": 0}]}')`;
    await owner.query(`set role ${role}`);
    expect(await sqlState(owner.query(call))).toBe("PC003");
    await owner.query("reset role");
    await owner.query(call);
  });

  it("and a place in the past are for a role that may run jobs: anybody else's run_at that has passed is now", async () => {
    const { world } = await worldOf(noted([], { kind: "a", deadline: "1h" }));
    const [runner, enqueuer] = [await roleFor(world, "run"), await roleFor(world, "enqueue")];
    const yesterday = new Date(Date.now() - 86_400_000);
    const tomorrow = new Date(Date.now() + 86_400_000);
    await enqueue(runner, "a", 1, { runAt: yesterday });
    await enqueue(enqueuer, "a", 2, { runAt: yesterday });
    await enqueue(enqueuer, "a", 3, { runAt: tomorrow });
    const rows = await world.rows<{ run_at: Date; enqueued_at: Date; deadline_at: Date }>(
      "select run_at, enqueued_at, deadline_at from pgclaim.job order by id",
    );
    expect(rows.map(({ run_at }) => run_at)).toEqual([yesterday, expect.any(Date), tomorrow]);
    expect(Math.abs((rows[1]?.run_at.getTime() ?? 0) - (rows[1]?.enqueued_at.getTime() ?? 0))).toBeLessThan(1_000);
    for (const { run_at, deadline_at } of rows) expect(deadline_at.getTime() - run_at.getTime()).toBe(3_600_000);
  });

  it.each([-1, 4, 1.5, "0", true])("refuses %j, from code and from SQL", async (priority) => {
    const { world, claimer } = await worldOf(noted([], { kind: "a" }));
    await expect(enqueue(claimer, "a", 1, { priority })).rejects.toMatchObject({ code: "PGCLAIM_INVALID_OPTION" });
    const { rows } = await world.sql.query("select type from pgclaim.enqueue_v1($1)", [
      JSON.stringify({ jobs: [{ kind: "a", payload: {}, priority }] }),
    ]);
    expect(rows).toEqual([{ type: "invalid-priority" }]);
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(0);
  });

  it("and other options of an enqueue that nobody knows are refused by name", async () => {
    const { claimer } = await worldOf(noted([], { kind: "a" }));
    await expect(enqueue(claimer, "a", 1, { priorty: 0 })).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_OPTION",
      message: 'job "a": unknown option "priorty"; did you mean "priority"?',
    });
  });
});

describe("a trigger that names its queues", () => {
  const two = (ran: string[]) =>
    noted(ran, { kind: "a" }, { kind: "b", queue: "mail" }, { kind: "c", queue: "slow", priority: 0 });

  it("draws from these only, and from the first one first", async () => {
    const ran: string[] = [];
    const { claimer } = await worldOf(two(ran));
    for (const kind of ["a", "b", "c"]) await enqueue(claimer, kind, 1);
    const report = await claimer.invoke({ type: "manual" }, { queues: ["mail"] });
    expect([report.done, ran]).toEqual([1, ["b:1"]]);
    await enqueue(claimer, "b", 2);
    await claimer.invoke({ type: "manual" }, { queues: ["mail", "default"] });
    expect(ran).toEqual(["b:1", "b:2", "a:1"]);
    // Without names it is all of them: default, and what the kinds name.
    await invoke(claimer);
    expect(ran.at(-1)).toBe("c:1");
  });

  it("finds nothing, and connects to nothing, where these are empty", async () => {
    const { claimer } = await worldOf(two([]));
    await enqueue(claimer, "a", 1);
    const report = await claimer.invoke({ type: "manual" }, { queues: ["mail", "unheard.of"] });
    expect(report).toMatchObject({ ended: "idle", claimed: 0, roundTrips: { session: 0, oneShot: 1 } });
  });

  it("may do so over HTTP", async () => {
    const ran: string[] = [];
    const { claimer } = await worldOf(two(ran));
    for (const kind of ["a", "b", "c"]) await enqueue(claimer, kind, 1);
    const app = createApp({ claimer: () => claimer, secrets: { trigger: "t" }, log: () => {} });
    const answer = await app.request("/api/trigger", {
      method: "POST",
      headers: { authorization: "Bearer t", "content-type": "application/json" },
      body: JSON.stringify({ queues: ["slow"] }),
    });
    expect([answer.status, await answer.json()]).toMatchObject([200, { done: 1 }]);
    expect(ran).toEqual(["c:1"]);
  });

  it.each([[[]], ["mail"], [["a b"]], [[7]], [null]])("refuses %j", async (queues) => {
    const { claimer } = await worldOf(two([]));
    await expect(claimer.invoke({ type: "manual" }, { queues: queues as never })).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_OPTION",
    });
  });
});

describe("a paused queue", () => {
  it("claims nothing, and wake does not connect for it; what is in it runs when it is resumed", async () => {
    const ran: string[] = [];
    const { claimer } = await worldOf(noted(ran, { kind: "a" }, { kind: "b", queue: "mail" }));
    expect([await claimer.pauseQueue("mail"), await claimer.pauseQueue("mail")]).toEqual([true, false]);
    await enqueue(claimer, "b", 1);
    expect(await invoke(claimer)).toMatchObject({ ended: "idle", roundTrips: { session: 0, oneShot: 1 } });
    await enqueue(claimer, "a", 2);
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
    expect(ran).toEqual(["a:2"]);
    expect([await claimer.resumeQueue("mail"), await claimer.resumeQueue("mail")]).toEqual([true, false]);
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
    expect(ran).toEqual(["a:2", "b:1"]);
  });

  it("lets what runs run on, and takes nothing more in the same invocation", async () => {
    const meeting = rendezvous();
    const job = defineJob({ kind: "a", payload, run: ({ payload: { n } }) => meeting.meet(n) });
    const world = await setup();
    const claimer = world.claimer("pg", { jobs: [job], batch: 1 });
    for (const n of [1, 2]) await claimer.enqueue(job, { n });
    const running = invoke(claimer);
    await meeting.arrived(1);
    await claimer.pauseQueue("default");
    meeting.release(1);
    expect(await running).toMatchObject({ ended: "empty", done: 1 });
    expect(await world.rows("select state from pgclaim.job")).toEqual([{ state: "ready" }]);
    await claimer.resumeQueue("default");
    meeting.release(2);
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
  });

  it("keeps its suspects as well, and its delayed jobs, its retries and its operator's verbs go on", async () => {
    const { world, claimer } = await worldOf(noted([], { kind: "a" }));
    await enqueue(claimer, "a", 1);
    await crash(world, { kinds: ["a"] });
    await claimer.pauseQueue("default");
    const [late] = await enqueue(claimer, "a", 2, { delay: "1h" });
    await world.sql.query("update pgclaim.job set run_at = clock_timestamp() where state = 'scheduled'");
    expect(await invoke(claimer)).toMatchObject({ ended: "idle", crashed: 1, roundTrips: { session: 0 } });
    expect(await world.rows("select state, suspect from pgclaim.job order by id")).toEqual([
      { state: "ready", suspect: true },
      { state: "ready", suspect: false },
    ]);
    expect(await claimer.cancel(late?.id ?? "")).toEqual({ type: "cancelled" });
    await claimer.resumeQueue("default");
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
  });

  it("is paused and resumed over HTTP", async () => {
    const { world, claimer } = await worldOf(noted([], { kind: "a" }));
    const app = createApp({ claimer: () => claimer, secrets: { operate: "o" }, log: () => {} });
    const post = async (path: string) =>
      (await app.request(path, { method: "POST", headers: { authorization: "Bearer o" } })).json();
    expect(await post("/api/queues/default/pause")).toEqual({ queue: "default", changed: true });
    expect(await world.value("select paused_at is not null from pgclaim.queue where name = 'default'")).toBe(true);
    expect(await post("/api/queues/default/resume")).toEqual({ queue: "default", changed: true });
    expect(await post("/api/queues/default/resume")).toEqual({ queue: "default", changed: false });
  });

  it("stays paused over a deploy", async () => {
    const { world, claimer } = await worldOf(noted([], { kind: "a" }));
    await claimer.pauseQueue("default");
    const newer = world.claimer("pg", { jobs: noted([], { kind: "a" }, { kind: "b" }), queueMax: { default: 5 } });
    await newer.register();
    await enqueue(newer, "b", 1);
    expect(await invoke(newer)).toMatchObject({ ended: "idle" });
    await newer.resumeQueue("default");
    expect(await world.rows("select max, paused_at from pgclaim.queue")).toEqual([{ max: 5, paused_at: null }]);
  });
});
