// What becomes of a schedule when deployments come and go, when it is paused, and when it cannot be fired.

import { describe, expect, it } from "vitest";
import * as z from "zod";
import { createApp } from "../../../src/http/app.ts";
import { defineJob } from "../../../src/index.ts";
import { invoke } from "../../support/engine.ts";
import { wake } from "../sql/support.ts";
import { dueSince, job, occurrences, schedule, scheduledWorld, states, yearly } from "./support.ts";

const payload = z.object({ of: z.string() });

describe("a fresh schedule", () => {
  it("shows its first occurrence at once, and fires nothing that was before it", async () => {
    const world = await scheduledWorld([schedule("a", { cron: "0 0 1 1 *" })]);
    const registered = (await states(world))[0]?.next_at ?? new Date(0);
    const [view] = await world.claimer.schedules();
    expect(view).toMatchObject({ lastAt: null, nextAt: new Date(Date.UTC(registered.getUTCFullYear() + 1, 0, 1)) });
    expect(await invoke(world.claimer)).toMatchObject({ fired: [], faults: [] });
    expect(await states(world)).toMatchObject([{ fresh: false, next_at: view?.nextAt, last_at: null }]);
    expect(await occurrences(world, 0)).toEqual({});
  });

  it("fires the first occurrence after its registration when a trigger comes later", async () => {
    const world = await scheduledWorld([schedule("a", { catchUp: "all" })]);
    await world.sql.query(
      "update pgclaim.schedule set next_at = date_trunc('minute', clock_timestamp()) - interval '90 seconds'",
    );
    const since = (await states(world))[0]?.next_at.getTime() ?? 0;
    await invoke(world.claimer);
    // Registered 30 seconds after a minute: the next whole minute is the first.
    expect((await occurrences(world, since)).a?.slice(0, 2)).toEqual([0.5, 1.5]);
  });
});

describe("a newer deployment", () => {
  it("that changes a rule begins it anew; the old one cannot fire it, nor change it back", async () => {
    const world = await scheduledWorld([schedule("a", { catchUp: "all" })]);
    await dueSince(world, 10);
    const newer = world.deploy({ schedules: [schedule("a", { catchUp: "all", cron: "*/2 * * * *" })] });
    await newer.register();
    expect(await states(world)).toMatchObject([{ cron: "*/2 * * * *", fresh: true, last_at: null }]);
    await world.sql.query(
      "update pgclaim.schedule set next_at = date_trunc('hour', clock_timestamp()) - interval '1 hour', fresh = false",
    );
    const since = (await states(world))[0]?.next_at.getTime() ?? 0;
    for (let i = 0; i < 3; i++) expect(await invoke(world.claimer)).toMatchObject({ fired: [], faults: [] });
    await world.claimer.register();
    expect(await states(world)).toMatchObject([{ cron: "*/2 * * * *", fresh: false }]);
    expect((await invoke(newer)).fired).toHaveLength(1);
    expect((await occurrences(world, since)).a?.slice(0, 4)).toEqual([0, 2, 4, 6]);
  });

  it("that changes the payload only does not lose what is due at the deploy", async () => {
    const world = await scheduledWorld([schedule("a")]);
    const since = await dueSince(world, 1);
    const newer = world.deploy({ schedules: [schedule("a", { payload: { of: "new" } })] });
    expect(await invoke(newer)).toMatchObject({ fired: [] });
    expect(await invoke(world.claimer)).toMatchObject({ fired: [] });
    expect(await invoke(newer)).toMatchObject({ fired: [{ schedule: "a" }] });
    const found = await occurrences(world, since);
    expect(found).toEqual({ new: [expect.any(Number)] });
    // The rule is the same, so what was due is what was fired, and not the moment of the deploy.
    expect(found.new?.every(Number.isInteger)).toBe(true);
    expect((await states(world))[0]?.last_at?.getTime()).toBe(since + (found.new?.[0] ?? 0) * 60_000);
  });

  it("that leaves a rule as it is changes nothing of it, and both deployments may fire it", async () => {
    const world = await scheduledWorld([schedule("a"), schedule("b")]);
    await dueSince(world, 5);
    const before = await states(world);
    const newer = world.deploy({ schedules: [schedule("a"), schedule("b"), schedule("c")] });
    await newer.register();
    expect((await states(world)).slice(0, 2)).toEqual(before);
    expect((await invoke(world.claimer)).fired.map((fired) => fired.schedule)).toEqual(["a", "b"]);
    await dueSince(world, 1);
    expect((await invoke(newer)).fired.map((fired) => fired.schedule)).toEqual(["a", "b", "c"]);
  });

  it("removes what it no longer has, also with the last one and with its kind; an old one cannot bring it back", async () => {
    const other = defineJob({ kind: "gone", payload });
    const world = await scheduledWorld([schedule("a"), schedule("b", { job: other })], { jobs: [job, other] });
    await dueSince(world, 5);
    const less = world.deploy({ schedules: [schedule("a")] });
    await less.register();
    expect((await states(world)).map(({ name }) => name)).toEqual(["a"]);
    expect((await invoke(world.claimer)).fired.map((fired) => fired.schedule)).toEqual(["a"]);
    await world.deploy({ schedules: [] }).register();
    expect(await states(world)).toEqual([]);
    await world.claimer.register();
    await less.register();
    expect(await invoke(world.claimer)).toMatchObject({ fired: [] });
    expect(await states(world)).toEqual([]);
  });

  it("leaves schedules alone when it was given none, as an app that only enqueues", async () => {
    const world = await scheduledWorld([schedule("a")]);
    const app = world.deploy({ jobs: [job, defineJob({ kind: "of.the.app", payload })] });
    await app.register();
    expect(await states(world)).toHaveLength(1);
  });

  it("leaves the schedules of other queues alone, which are another deployment's", async () => {
    const world = await scheduledWorld([schedule("a")]);
    const other = defineJob({ kind: "other", payload, queue: "other" });
    const second = world.deploy({ jobs: [other], queues: ["other"], schedules: [schedule("b", { job: other })] });
    await second.register();
    expect((await states(world)).map(({ name }) => name)).toEqual(["a", "b"]);
    await dueSince(world, 1);
    expect((await invoke(second)).fired.map((fired) => fired.schedule)).toEqual(["b"]);
    expect((await invoke(world.claimer)).fired.map((fired) => fired.schedule)).toEqual(["a"]);
  });
});

describe("pause and resume", () => {
  it("lose what passes meanwhile, and nothing after it", async () => {
    const world = await scheduledWorld([schedule("a", { catchUp: "all" })]);
    await dueSince(world, 0);
    expect([await world.claimer.pauseSchedule("a"), await world.claimer.pauseSchedule("a")]).toEqual([true, false]);
    await dueSince(world, 30);
    expect(await invoke(world.claimer)).toMatchObject({ ended: "idle", fired: [] });
    expect((await world.claimer.schedules())[0]?.pausedAt).toBeInstanceOf(Date);
    expect([await world.claimer.resumeSchedule("a"), await world.claimer.resumeSchedule("a")]).toEqual([true, false]);
    const [view] = await world.claimer.schedules();
    const now = Number(await world.value("select extract(epoch from clock_timestamp()) * 1000"));
    expect(view?.pausedAt).toBeNull();
    // The server's clock said when it was resumed, so the next whole minute is what comes next.
    expect(Math.abs((view?.nextAt.getTime() ?? 0) - now)).toBeLessThanOrEqual(60_000);
    expect((view?.nextAt.getTime() ?? 1) % 60_000).toBe(0);
    await world.sql.query("update pgclaim.schedule set next_at = next_at - interval '2 minutes'");
    const since = Math.floor(((await states(world))[0]?.next_at.getTime() ?? 0) / 60_000) * 60_000;
    await invoke(world.claimer);
    expect((await occurrences(world, since)).a?.slice(0, 2)).toEqual([1, 2]);
  });

  it("answer false for a schedule nobody has, and refuse what is no name", async () => {
    const world = await scheduledWorld([schedule("a")]);
    expect(await world.claimer.pauseSchedule("b")).toBe(false);
    expect(await world.claimer.resumeSchedule("b")).toBe(false);
    expect(() => world.claimer.pauseSchedule("a b")).toThrow(
      expect.objectContaining({ code: "PGCLAIM_INVALID_OPTION" }),
    );
    expect(() => world.claimer.resumeSchedule(undefined as never)).toThrow(
      expect.objectContaining({ code: "PGCLAIM_INVALID_OPTION" }),
    );
  });

  it("keep a schedule paused when a newer deployment changes it", async () => {
    const world = await scheduledWorld([schedule("a")]);
    await world.claimer.pauseSchedule("a");
    const newer = world.deploy({ schedules: [schedule("a", { cron: "*/5 * * * *" })] });
    await newer.register();
    await dueSince(world, 30);
    expect(await invoke(newer)).toMatchObject({ ended: "idle", fired: [] });
  });

  it("work over HTTP", async () => {
    const world = await scheduledWorld([schedule("a")]);
    const { claimer } = world;
    const app = createApp({ claimer: () => claimer, secrets: { operate: "o", read: "r" }, log: () => {} });
    const post = async (path: string) =>
      (await app.request(path, { method: "POST", headers: { authorization: "Bearer o" } })).json();
    expect(await post("/api/schedules/a/pause")).toEqual({ schedule: "a", changed: true });
    const list = await app.request("/api/schedules", { headers: { authorization: "Bearer r" } });
    expect(await list.json()).toMatchObject([{ name: "a", pausedAt: expect.stringMatching(/Z$/), lastAt: null }]);
    expect(await post("/api/schedules/a/resume")).toEqual({ schedule: "a", changed: true });
    expect(await post("/api/schedules/a/resume")).toEqual({ schedule: "a", changed: false });
  });
});

describe("a schedule that cannot be fired", () => {
  const keyed = defineJob({ kind: "keyed", payload, uniqueKey: "{of}" });
  const spoil = "update pgclaim.kind set unique_key = '{gone}' where name = 'keyed'";
  const heal = "update pgclaim.kind set unique_key = '{of}' where name = 'keyed'";

  it("is named, stops neither the others nor the work, stays due, and heals", async () => {
    const ran: string[] = [];
    const handled = job.handle(({ payload: { of } }) => void ran.push(of));
    const jobs = [handled, keyed];
    const world = await scheduledWorld(
      [schedule("bad", { job: keyed, cron: yearly }), schedule("good", { job: handled, cron: yearly })],
      { jobs },
    );
    await world.claimer.enqueue(handled, { of: "work" });
    const since = await dueSince(world, 3);
    await world.sql.query(spoil);
    const report = await invoke(world.claimer);
    expect(report).toMatchObject({
      ended: "empty",
      done: 2,
      fired: [{ schedule: "good" }],
      faults: [{ step: "schedule bad", sqlstate: "PC003" }],
    });
    expect(ran.sort()).toEqual(["good", "work"]);
    expect(world.log.at(-1)).toMatchObject({ level: "warn", faults: report.faults });
    expect(await states(world)).toMatchObject([
      { name: "bad", fault: "PC003", next_at: new Date(since) },
      { name: "good", fault: null },
    ]);
    expect((await world.claimer.schedules())[0]).toMatchObject({ name: "bad", fault: "PC003" });
    await world.sql.query(heal);
    expect(await invoke(world.claimer)).toMatchObject({ fired: [{ schedule: "bad" }], faults: [] });
    expect((await world.claimer.schedules())[0]).toMatchObject({ name: "bad", fault: null });
  });

  it("because its kind is gone is named by that", async () => {
    const world = await scheduledWorld([schedule("bad", { job: keyed })], { jobs: [job, keyed] });
    await dueSince(world, 3);
    await world.sql.query("delete from pgclaim.kind where name = 'keyed'");
    expect(await invoke(world.claimer)).toMatchObject({
      fired: [],
      faults: [{ step: "schedule bad", sqlstate: "PC002" }],
    });
  });

  it("because somebody holds its unique key is left for the next trigger", async () => {
    const world = await scheduledWorld([schedule("bad", { job: keyed })], { jobs: [job, keyed] });
    await dueSince(world, 3);
    const client = await world.connect();
    await client.query("begin");
    await client.query("select pgclaim.enqueue('keyed', '{\"of\": \"bad\"}')");
    expect(await invoke(world.claimer)).toMatchObject({
      fired: [],
      faults: [{ step: "schedule bad", sqlstate: "55P03" }],
    });
    await client.query("rollback");
    expect(await invoke(world.claimer)).toMatchObject({ fired: [{ schedule: "bad" }], faults: [] });
  });

  it("does not hide the others, however many there are of its sort", async () => {
    const bad = Array.from({ length: 110 }, (_, i) => schedule(`bad${i}`, { job: keyed }));
    const good = Array.from({ length: 20 }, (_, i) => schedule(`good${i}`));
    const world = await scheduledWorld([...bad, ...good], { jobs: [job, keyed] });
    await dueSince(world, 5);
    await dueSince(world, 3, "good0");
    await world.sql.query(
      "update pgclaim.schedule set next_at = next_at + interval '1 minute' where name like 'good%'",
    );
    await world.sql.query(spoil);
    const first = await invoke(world.claimer);
    // The list that wake answers is bounded, and the oldest come first.
    expect(first.faults).toHaveLength(100);
    expect(first.fired).toHaveLength(0);
    const second = await invoke(world.claimer);
    expect(second.fired).toHaveLength(20);
  });
});

describe("wake's list", () => {
  it("has what the caller defines, and nothing of others, who may never come for theirs", async () => {
    const world = await scheduledWorld([schedule("a")]);
    await world.sql.query(
      `insert into pgclaim.schedule (name, cron, time_zone, kind, payload, catch_up, definition, revision, next_at, fresh)
       select 'foreign' || i, '* * * * *', 'UTC', 'report', '{}', 'last', 'foreign' || i, 9, clock_timestamp() - interval '1 day', false
       from generate_series(1, 150) i`,
    );
    await dueSince(world, 0, "a");
    expect(await invoke(world.claimer)).toMatchObject({ fired: [{ schedule: "a" }] });
  });

  it("is empty for a caller that does not say what it defines", async () => {
    const world = await scheduledWorld([schedule("a")]);
    await dueSince(world, 5);
    expect(await wake(world.sql)).toMatchObject({ schedules: [] });
  });
});

describe("a unique key of the kind", () => {
  const keyed = defineJob({ kind: "keyed", payload, uniqueKey: "{of}" });

  it("applies to scheduled jobs: of many missed ones one is enqueued, and none while it is unfinished", async () => {
    const world = await scheduledWorld([schedule("a", { job: keyed, catchUp: "all" })], { jobs: [keyed] });
    await dueSince(world, 5);
    const first = await invoke(world.claimer);
    expect(first.fired).toMatchObject([{ schedule: "a", jobs: [expect.any(String)], duplicates: [] }]);
    expect(first.fired[0]?.jobs).toHaveLength(1);
    await dueSince(world, 2);
    // What keeps an occurrence out is named: it may be a dead letter that nobody looks at.
    await world.sql.query("update pgclaim.job set state = 'dead', dead_at = now(), dead_reason = 'handler'");
    expect(await invoke(world.claimer)).toMatchObject({
      fired: [{ schedule: "a", jobs: [], duplicates: first.fired[0]?.jobs }],
      faults: [],
    });
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(1);
    expect((await states(world))[0]?.next_at.getTime()).toBeGreaterThan(Date.now() - 60_000);
  });
});
