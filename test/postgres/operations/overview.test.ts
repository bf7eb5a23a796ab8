// The overview: each number from its source, live ones live, sampled ones as sampled, and the ones nobody has yet absent.

import { describe, expect, it } from "vitest";
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
  register,
} from "../sql/support.ts";
import { inspectorOf, KINDS, read } from "./reading.ts";

async function die(world: Installation, kinds: readonly string[]): Promise<void> {
  const session = await claimer(world, { kinds });
  await fence(world.sql, session);
  await finish(session.client, session.tick, all(session.jobs, "dead", { error: "boom" }));
}

describe("overview", () => {
  it("answers zeros and nulls on a new installation", async () => {
    const world = await install(KINDS);
    const none = { n: 0, capped: false };
    expect(await (await inspectorOf(world)).overview()).toMatchObject({
      schema: "pgclaim",
      database: await world.value("select current_database()"),
      migration: await world.value("select max(version) from pgclaim.migration"),
      sampledAt: null,
      depth: { ready: none, scheduled: none, retrying: none, blocked: none, dead: none },
      running: 0,
      longestRunMs: null,
      oldestReadyMs: null,
      nextDueAt: null,
      dead: none,
      newestDeadAt: null,
      haltedKeys: none,
      behindHalted: none,
      missed: none,
      slack: { late: none, atRisk: none, tightestMs: null, tightest: null },
      historyRows: null,
      queues: [
        { name: "default", running: 0, oldestReadyMs: null, nextDueAt: null, depth: {}, donePerMinute: 0 },
        { name: "other" },
      ],
      triggers: [],
      unregistered: [],
    });
  });

  it("counts what is dead, missed, halted and behind, live", async () => {
    const world = await install(KINDS);
    await enqueue(world.sql, 2, "a");
    for (const k of ["1", "2"]) await enqueueOne(world.sql, "ordered", { k });
    await die(world, ["a", "ordered"]);
    await enqueue(world.sql, 3, "ordered", { k: "1" });
    const [skipped] = await world.rows<{ id: string }>("select id from pgclaim.job where ordering_key = 'account:2'");
    await world.sql.query("select pgclaim.skip_v1($1)", [skipped?.id]);
    await world.sql.query(
      "update pgclaim.job set dead_reason = 'missed' where id = (select min(id) from pgclaim.job where state = 'dead')",
    );
    const overview = await (await inspectorOf(world)).overview();
    expect(overview).toMatchObject({
      dead: { n: 4, capped: false },
      missed: { n: 1, capped: false },
      haltedKeys: { n: 1, capped: false },
      behindHalted: { n: 3, capped: false },
    });
    expect(overview.newestDeadAt).not.toBeNull();
  });

  it("caps the dead at 1,000 and what waits behind halted keys at 10,000", async () => {
    const world = await install(KINDS);
    await world.sql.query(`
      insert into pgclaim.job (kind, queue, state, priority, rank, run_at, revision, payload, ordering_key, gate, gate_width, place, dead_at, dead_reason)
      select 'ordered', 'default', case when i = 1 then 'dead' else 'blocked' end, 2, now(), now(), 1, '{}', 'account:big', 'order:account:big', 1,
        nextval('pgclaim.place_seq'), case when i = 1 then now() end, case when i = 1 then 'handler' end
      from generate_series(1, 10002) i;
      insert into pgclaim.job (kind, queue, state, priority, rank, run_at, revision, payload, dead_at, dead_reason)
      select 'a', 'default', 'dead', 2, now(), now(), 1, '{}', now(), 'missed' from generate_series(1, 1001)`);
    expect(await (await inspectorOf(world)).overview()).toMatchObject({
      dead: { n: 1000, capped: true },
      missed: { n: 1000, capped: true },
      haltedKeys: { n: 1, capped: false },
      behindHalted: { n: 10_000, capped: true },
    });
  });

  it("sorts unfinished jobs with a deadline by what is left, and names the tightest and those at risk", async () => {
    const world = await install(KINDS);
    const ids = await enqueue(world.sql, 7, "a");
    const left = ["-1 minute", "30 seconds", "2 minutes", "10 minutes", "20 minutes", "3 hours"];
    for (const [i, text] of left.entries()) {
      await world.sql.query("update pgclaim.job set deadline_at = now() + $2::interval where id = $1", [ids[i], text]);
    }
    // p95 of the kind lies in the bucket to 5 minutes: 30 seconds and 2 minutes are too little.
    await world.sql.query(
      `insert into pgclaim.rollup (width, at, kind, done, late)
       values (60, date_trunc('hour', now()), 'a', 100, '{0,0,0,0,0,0,0,0,0,90,10,0,0,0}')`,
    );
    // A retry after its deadline.
    await world.sql.query(
      "update pgclaim.job set state = 'scheduled', failures = 1, run_at = now() + interval '4 hours' where id = $1",
      [ids[5]],
    );
    // And one before it.
    await world.sql.query(
      "update pgclaim.job set state = 'scheduled', failures = 1, run_at = now() + interval '1 minute' where id = $1",
      [ids[4]],
    );
    const { slack } = await (await inspectorOf(world)).overview();
    const count = (n: number) => ({ n, capped: false });
    expect(slack).toMatchObject({
      late: count(1),
      under1m: count(1),
      under5m: count(1),
      under15m: count(1),
      over15m: count(2),
      tightest: ids[0],
      atRisk: count(3),
    });
    expect(slack.tightestMs).toBeLessThanOrEqual(-60_000);
  });

  it("tells each queue: what runs, what is oldest and next, pace and delay from the rollups, depth as sampled", async () => {
    const world = await install(KINDS);
    await enqueue(world.sql, 2, "a");
    await enqueueOne(world.sql, "other");
    await world.sql.query("select pgclaim.enqueue('other', '{}', now() + interval '1 hour')");
    await world.sql.query("select pgclaim.pause_queue_v1('other')");
    await world.sql.query(
      "update pgclaim.job set run_at = now() - interval '1 minute', rank = now() where queue = 'other' and state = 'ready'",
    );
    await world.sql.query(`
      insert into pgclaim.depth (queue, state, n, capped, sampled_at) values
        ('default', 'ready', 100000, true, now()), ('other', 'ready', 5, false, now()), ('gone', 'dead', 1, false, now());
      insert into pgclaim.rollup (width, at, kind, done, late) values
        (1, date_trunc('minute', now()) - interval '2 minutes', 'a', 30, '{0,0,0,20,10,0,0,0,0,0,0,0,0,0}'),
        (1, date_trunc('minute', now()) - interval '3 minutes', 'ordered', 20, '{0,0,0,20,0,0,0,0,0,0,0,0,0,0}'),
        (1, date_trunc('minute', now()) - interval '30 minutes', 'a', 500, '{}')`);
    const session = await claimer(world, { kinds: ["a"], batch: 1 });
    await fence(world.sql, session);
    const inspector = await inspectorOf(world);
    const { depth, queues, running, sampledAt, longestRunMs, oldestReadyMs } = await inspector.overview();
    expect(await inspector.queues()).toHaveLength(queues.length);
    expect(depth).toMatchObject({
      ready: { n: 100_005, capped: true },
      dead: { n: 1, capped: false },
      blocked: { n: 0 },
    });
    expect([running, sampledAt === null, longestRunMs === null]).toEqual([1, false, false]);
    expect(queues.map((queue) => queue.name)).toEqual(["default", "gone", "other"]);
    const [main, , other] = queues;
    expect(main).toMatchObject({ running: 1, donePerMinute: 5, pausedAt: null, nextDueAt: null, lateMs: { p50: 406 } });
    expect(other?.pausedAt).not.toBeNull();
    expect(other?.nextDueAt).not.toBeNull();
    expect(other?.oldestReadyMs).toBeGreaterThanOrEqual(60_000);
    expect(oldestReadyMs).toBe(other?.oldestReadyMs);
    expect(main?.oldestReadyMs).toBeLessThan(60_000);
  });

  it("does not take the job that runs for the oldest that waits, nor a crashed one for running", async () => {
    const world = await install(KINDS);
    await enqueueOne(world.sql);
    await crash(world, { kinds: ["a"] });
    expect(await (await inspectorOf(world)).overview()).toMatchObject({ running: 0, longestRunMs: null });
    await enqueueOne(world.sql, "other");
    await world.sql.query("update pgclaim.job set run_at = now() - interval '1 hour' where kind = 'other'");
    const session = await claimer(world, { queues: ["other"], kinds: ["other"] });
    await fence(world.sql, session);
    const queues = await (await inspectorOf(world)).queues();
    expect(queues.find((queue) => queue.name === "other")).toMatchObject({ running: 1, oldestReadyMs: null });
    await finish(session.client, session.tick, all(session.jobs, "done"));
  });

  it("names kinds with waiting jobs that the newest deployment of their queue does not define", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    await enqueueOne(world.sql, "a");
    await enqueueOne(world.sql, "other");
    expect((await inspector.overview()).unregistered).toEqual([]);
    // It serves another queue than the one of "other", whose deployment stays in force beside it.
    await register(world.sql, [{ name: "a" }, { name: "new" }], "newer");
    expect((await inspector.overview()).unregistered).toEqual([]);
    await register(world.sql, [{ name: "a" }, { name: "else", queue: "other" }], "newest");
    expect((await inspector.overview()).unregistered).toEqual(["other"]);
    const kinds = Object.fromEntries((await inspector.kinds()).map((kind) => [kind.name, kind]));
    expect(kinds.a).toMatchObject({ registered: true, waiting: { n: 1, capped: false }, maxAttempts: 5, locks: [] });
    expect(kinds.other).toMatchObject({ registered: false, queue: "other", waiting: { n: 1 } });
    expect(kinds.named).toMatchObject({ registered: false, locks: ["session:{k}"], waiting: { n: 0 } });
    await enqueue(world.sql, 4, "a");
    const capped = await read<readonly { name: string; waiting: object }[]>(world, "kinds_v1", { ofEach: 3 });
    expect(capped.find((kind) => kind.name === "a")?.waiting).toEqual({ n: 3, capped: true });
  });
});

describe("triggers", () => {
  it("tells the median gap of the last wakes, once there are enough, and the last sixty minutes", async () => {
    const world = await install(KINDS);
    await world.sql.query(`
      insert into pgclaim.trigger (name, type, recent, last_seen_at) values
        ('http /t', 'http', array(select now() - s * interval '2 minutes' from generate_series(5, 0, -1) s), now()),
        ('cron */5 * * * *', 'cron', array[now() - interval '1 hour'], now() - interval '1 hour');
      insert into pgclaim.trigger_minute (name, at, woken, worked) values
        ('http /t', date_trunc('minute', now()), 3, 1), ('http /t', date_trunc('minute', now()) - interval '59 minutes', 1, 0),
        ('http /t', date_trunc('minute', now()) - interval '60 minutes', 9, 9)`);
    const inspector = await inspectorOf(world);
    const triggers = await inspector.triggers();
    expect(triggers).toMatchObject([
      { name: "cron */5 * * * *", type: "cron", everyMs: expect.any(Number), status: "silent", lastWorkAt: null },
      { name: "http /t", type: "http", everyMs: 120_000, status: "unexpected" },
    ]);
    const minutes = triggers[1]?.minutes ?? [];
    expect(minutes).toHaveLength(60);
    // The minute may have turned between the two.
    expect(minutes.slice(-2)).toContainEqual({ woken: 3, worked: 1 });
    expect(minutes.filter((minute) => minute.woken === 9)).toEqual([]);
    expect((await inspector.overview()).triggers).toHaveLength(2);
  });
});
