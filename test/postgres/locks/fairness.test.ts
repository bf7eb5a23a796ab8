// A job that needs several names is passed by for ever by jobs that need one of them, unless it reserves them. The first half
// shows the rules with sessions that hold and let go; the second runs unending streams that never leave both names free.
// The bound: once a job has waited reserveAfter, the next claim that is refused reserves its names; from then on nobody else
// takes them, so it runs as soon as today's holders have ended and a claim comes by.

import { describe, expect, it } from "vitest";
import * as z from "zod";
import { type Claimer, defineJob } from "../../../src/index.ts";
import { gate } from "../../support/gate.ts";
import { setup, type World } from "../../support/world.ts";
import { all, finish, kill, type OutcomeName, pidOf, reap, the, wake } from "../sql/support.ts";
import { add, addOne, claim, heldKeys, hold, install, type LockSession } from "./support.ts";

/** Half a minute: longer than these tests take, so that only what has been made older is old. */
const reserveMs = 30_000;

async function aged(world: World, id: string, seconds = 60): Promise<void> {
  await world.sql.query("update pgclaim.job set run_at = run_at - $2 * interval '1 second' where id = $1", [
    id,
    seconds,
  ]);
}

/** Answers how many of them are on record then. */
async function reserve(world: World, jobs: readonly string[]): Promise<number> {
  await world.sql.query("select pgclaim.reserve_v1($1)", [JSON.stringify({ jobs, reserveMs })]);
  return world.value("select count(distinct job_id)::integer from pgclaim.reservation where job_id = any ($1)", [jobs]);
}

const reserved = (world: World): Promise<string[]> =>
  world
    .rows<{ line: string }>("select job_id || ' ' || name as line from pgclaim.reservation order by job_id, name")
    .then((rows) => rows.map(({ line }) => line));

async function end(world: World, session: LockSession, outcome: OutcomeName = "done"): Promise<void> {
  const jobs = session.jobs.map(({ id, n }) => ({ id, n }));
  await world.sql.query("select from pgclaim.fence_v1($1)", [
    JSON.stringify({ tick: session.tick, quarantined: false, jobs }),
  ]);
  await finish(session.client, session.tick, all(jobs, outcome, { inMs: 0 }));
}

describe("two that reserve at the same time", () => {
  it("do not wait for each other: the second reserves nothing, and asks again later", async () => {
    const world = await install();
    await hold(world, "b");
    const [first, second] = [
      await addOne(world.sql, "x2", { a: "a", b: "b" }),
      await addOne(world.sql, "x2", { a: "b", b: "c" }),
    ];
    const other = await world.connect();
    await other.query("begin isolation level read committed");
    await other.query("select pgclaim.reserve_v1($1)", [JSON.stringify({ jobs: [first], reserveMs })]);
    await world.sql.query("set lock_timeout = '1ms'");
    expect(await reserve(world, [first, second])).toBe(0);
    await other.query("commit");
    expect(await reserve(world, [first, second])).toBe(2);
  });
});

describe("a job that was refused for a name", () => {
  it("is starved once it has waited, whether its name was tried or had been found busy before; not sooner", async () => {
    const world = await install();
    const holder = await hold(world, "b");
    const first = await addOne(world.sql, "x2", { a: "a", b: "b" });
    const second = await addOne(world.sql, "x2", { a: "b", b: "c" });
    // One name alone is free between two of its holders; not so when they share it.
    const one = await addOne(world.sql, "x1", { a: "b" });
    const exclusive = await addOne(world.sql, "x1", { a: "s" });
    await aged(world, one);
    const starved = async () => {
      const session = await claim(world, { reserveMs });
      await session.client.query("rollback");
      return session.skips.filter((skip) => skip.starved).map(({ id }) => id);
    };
    expect(await starved()).toEqual([]);
    await aged(world, second, 29);
    expect(await starved()).toEqual([]);
    await aged(world, second, 2);
    expect(await starved()).toEqual([second]);
    await aged(world, first);
    expect(await starved()).toEqual([first, second]);
    // It has been said; it is said again when half of what it is good for has passed.
    expect(await reserve(world, [first, second])).toBe(2);
    expect(await starved()).toEqual([]);
    await world.sql.query("update pgclaim.reservation set renewed_at = renewed_at - interval '151 s'");
    expect(await starved()).toEqual([first, second]);
    await holder.query("rollback");
    await world.sql.query("delete from pgclaim.job where id = any ($1)", [[first, second, one]]);
    await aged(world, exclusive);
    const alone = await hold(world, "s");
    expect(await starved()).toEqual([]);
    await alone.query("rollback");
    await hold(world, "s", { shared: true });
    expect(await starved()).toEqual([exclusive]);
  });

  it("is not starved for want of a slot, of its ordering key or of its own lock, nor while it runs", async () => {
    const world = await install([
      { name: "l", limitNames: ["{t}"], limitMaxes: [1], locks: ["lock:{t}"] },
      { name: "x1", locks: ["{a}"] },
    ]);
    const kinds = ["l", "x1"];
    await hold(world, "t#0", { cls: "limit" });
    await aged(world, await addOne(world.sql, "l", { t: "t" }));
    const running = await addOne(world.sql, "x1", { a: "a" });
    await aged(world, running);
    const session = await claim(world, { kinds, reserveMs });
    expect(session.jobs.map(({ id }) => id)).toEqual([running]);
    const jobs = session.jobs.map(({ id, n }) => ({ id, n }));
    await world.sql.query("select from pgclaim.fence_v1($1)", [
      JSON.stringify({ tick: session.tick, quarantined: false, jobs }),
    ]);
    const other = await claim(world, { kinds, reserveMs });
    expect(other.skips.map(({ reason, starved }) => [reason, starved])).toEqual([
      ["limit-full", false],
      ["busy", false],
    ]);
    // Asked all the same, by a claim that looked before the fence: it does not wait.
    expect(await reserve(world, [running])).toBe(0);
    expect(await reserved(world)).toEqual([]);
  });

  it("reserves its names: others let them pass by name, today's holder ends, and then it runs", async () => {
    const world = await install();
    const holder = await hold(world, "b");
    const two = await addOne(world.sql, "x2", { a: "a", b: "b" });
    await aged(world, two);
    expect((await claim(world, { reserveMs })).skips).toEqual([{ id: two, reason: "busy", lock: "b", starved: true }]);
    await reserve(world, [two]);
    expect(await reserved(world)).toEqual([`${two} a`, `${two} b`]);
    const [x, s, other] = [
      await addOne(world.sql, "x1", { a: "a" }),
      await addOne(world.sql, "s1", { a: "a" }),
      await addOne(world.sql, "x1", { a: "c" }),
    ];
    const passing = await claim(world, { reserveMs });
    expect(passing.jobs.map(({ id }) => id)).toEqual([other]);
    expect(passing.skips).toEqual([
      { id: two, reason: "busy", lock: "b", starved: false },
      { id: x, reason: "reserved", lock: "a", starved: false },
      { id: s, reason: "reserved", lock: "a", starved: false },
    ]);
    await holder.query("rollback");
    const session = await claim(world, { reserveMs });
    // In its own tick it is no obstacle: who shares a name comes after it.
    expect(session.jobs.map(({ id }) => id)).toEqual([two, x, s]);
    expect(session.jobs[1]?.after).toEqual([two]);
    await end(world, session);
    expect(await reserved(world)).toEqual([]);
  });

  it("needs no free moment of both names: two streams that take turns hold it up for one round and no longer", async () => {
    const world = await install();
    const two = await addOne(world.sql, "x2", { a: "a", b: "b" });
    await aged(world, two);
    let holder = await hold(world, "a");
    const names = ["b", "a"] as const;
    let rounds = 0;
    for (let ran = false; !ran; rounds++) {
      expect(rounds, "rounds").toBeLessThan(3);
      // The next one of the other stream comes before this one ends.
      await world.sql.query("delete from pgclaim.job where kind = 'x1'");
      const rival = await addOne(world.sql, "x1", { a: names[rounds % 2] });
      const stream = await claim(world, { kinds: ["x1"], reserveMs });
      const mine = await claim(world, { kinds: ["x2"], reserveMs });
      ran = mine.jobs.some(({ id }) => id === two);
      await reserve(
        world,
        mine.skips.filter((skip) => skip.starved).map(({ id }) => id),
      );
      await mine.client.query("rollback");
      await holder.query("rollback");
      if (stream.jobs.some(({ id }) => id === rival)) holder = stream.client;
      else await stream.client.query("rollback");
    }
    // Refused and reserved; let the one pass that was there; claimed.
    expect(rounds).toBeLessThanOrEqual(3);
  });

  it("shares a reserved name with those who share it too", async () => {
    const world = await install();
    const waiter = await addOne(world.sql, "both", { a: "x", b: "s" });
    await aged(world, waiter);
    await reserve(world, [waiter]);
    const holder = await hold(world, "x");
    const [sharer, rival] = [await addOne(world.sql, "s1", { a: "s" }), await addOne(world.sql, "x1", { a: "s" })];
    const session = await claim(world, { reserveMs });
    expect(session.jobs.map(({ id }) => id)).toEqual([sharer]);
    expect(session.skips).toContainEqual({ id: rival, reason: "reserved", lock: "s", starved: false });
    await holder.query("rollback");
  });
});

describe("reservers that overlap", () => {
  it("do not hold each other up: the one that waits longer goes first, whoever reserved first", async () => {
    const world = await install();
    const young = await addOne(world.sql, "x2", { a: "b", b: "c" });
    const old = await addOne(world.sql, "x2", { a: "a", b: "b" });
    const rivals = [await addOne(world.sql, "x1", { a: "a" }), await addOne(world.sql, "x1", { a: "c" })];
    await aged(world, young, 60);
    await aged(world, old, 90);
    expect(await reserve(world, [young])).toBe(1);
    expect(await reserve(world, [old])).toBe(1);
    const only = (session: LockSession) => session.jobs.map(({ id }) => id);
    const first = await claim(world, { reserveMs, batch: 1 });
    expect(only(first)).toEqual([old]);
    // The young one stands in line behind it, and what it needs besides is not idle meanwhile.
    const meanwhile = await claim(world, { reserveMs });
    expect(only(meanwhile)).toEqual([rivals[1]]);
    await meanwhile.client.query("rollback");
    await end(world, first);
    const second = await claim(world, { reserveMs, batch: 1 });
    expect(only(second)).toEqual([young]);
    await end(world, second);
    expect(only(await claim(world, { reserveMs })).sort()).toEqual(rivals.sort());
  });

  it("do not overtake an older one name by name: while it waits for one name, its other one is not given away", async () => {
    const world = await install();
    const [middle] = await add(world.sql, "x2", [{ a: "a", b: "b" }]);
    const young = await addOne(world.sql, "x1", { a: "a" });
    await aged(world, String(middle), 90);
    await aged(world, young, 60);
    const oldest = await hold(world, "b");
    await reserve(world, [young]);
    await reserve(world, [String(middle)]);
    expect((await claim(world, { reserveMs })).jobs).toEqual([]);
    await oldest.query("rollback");
    expect(the((await claim(world, { reserveMs, batch: 1 })).jobs).id).toBe(middle);
  });
});

describe("many that wait", () => {
  it("reserve up to 100, those that wait longest, and who waits less does not ask again and again", async () => {
    const world = await install();
    const ids = await add(
      world.sql,
      "x2",
      Array.from({ length: 120 }, (_, i) => ({ a: `a${i}`, b: `b${i}` })),
    );
    // The first enqueued has waited least.
    await world.sql.query("update pgclaim.job set run_at = run_at - (60 + id) * interval '1 second'");
    for (let at = 0; at < ids.length; at += 30) await reserve(world, ids.slice(at, at + 30));
    expect(
      await world.rows("select count(distinct job_id)::integer as n, min(job_id) as first from pgclaim.reservation"),
    ).toEqual([{ n: 100, first: ids[20] }]);
    const holders = [await hold(world, "a5"), await hold(world, "a50")];
    await world.sql.query("delete from pgclaim.reservation where job_id = $1", [ids[50]]);
    await reserve(world, [String(ids[19])]); // the hundredth again
    const session = await claim(world, { reserveMs, batch: 200 });
    expect(session.skips.map(({ id, starved }) => [id, starved])).toEqual([
      [ids[5], false],
      [ids[50], true],
    ]);
    for (const holder of holders) await holder.query("rollback");
  });
});

describe("a reservation", () => {
  const waiting = async (world: World, kind = "x2") => {
    const id = await addOne(world.sql, kind, { a: "a", b: "b" });
    await aged(world, id);
    expect(await reserve(world, [id])).toBe(1);
    return id;
  };
  const rivalRuns = async (world: World, options = {}) => {
    const rival = await addOne(world.sql, "x1", { a: "b" });
    const session = await claim(world, { kinds: ["x1"], reserveMs, ...options });
    await session.client.query("rollback");
    await world.sql.query("delete from pgclaim.job where id = $1", [rival]);
    return session.jobs.some(({ id }) => id === rival);
  };

  it.each(["done", "failed", "dead", "snoozed", "released"] as const)(
    "is given back when its job ends %s",
    async (outcome) => {
      const world = await install();
      await waiting(world);
      expect(await rivalRuns(world)).toBe(false);
      await end(world, await claim(world, { kinds: ["x2"], reserveMs }), outcome);
      expect(await reserved(world)).toEqual([]);
      expect(await rivalRuns(world)).toBe(true);
    },
  );

  it("is given back when its job is cancelled", async () => {
    const world = await install();
    const id = await waiting(world);
    expect(await world.value("select pgclaim.cancel_v1($1)", [id])).toEqual({ type: "cancelled" });
    expect(await reserved(world)).toEqual([]);
    expect(await rivalRuns(world)).toBe(true);
  });

  it("is given back when its job's holder dies, as soon as that is known", async () => {
    const world = await install();
    await waiting(world);
    const session = await claim(world, { kinds: ["x2"], reserveMs });
    await world.sql.query("select from pgclaim.fence_v1($1)", [
      JSON.stringify({ tick: session.tick, quarantined: false, jobs: session.jobs.map(({ id, n }) => ({ id, n })) }),
    ]);
    await kill(world, await pidOf(session.client));
    expect(await reap(world.sql)).toBe(1);
    expect(await reserved(world)).toEqual([]);
    expect(await rivalRuns(world)).toBe(true);
  });

  it("of a kind nobody handles any more, or of a paused queue, lapses: nobody who could run it renews it", async () => {
    const world = await install();
    await waiting(world);
    await world.sql.query("select pgclaim.pause_queue_v1('other')");
    expect(await rivalRuns(world)).toBe(false);
    const age = (seconds: number) =>
      world.sql.query("update pgclaim.reservation set renewed_at = clock_timestamp() - $1 * interval '1 second'", [
        seconds,
      ]);
    await age(299);
    expect(await rivalRuns(world)).toBe(false);
    await age(301);
    expect(await rivalRuns(world)).toBe(true);
  });

  it("is asked for by nobody for a job that no claim has tried: unknown kind, paused queue, too far behind", async () => {
    const world = await install();
    await hold(world, "b");
    const id = await addOne(world.sql, "x2", { a: "a", b: "b" });
    await aged(world, id);
    expect((await claim(world, { kinds: ["x1"], reserveMs })).skips).toEqual([
      { id, reason: "unknown-kind", lock: null, starved: false },
    ]);
    expect((await claim(world, { kinds: ["x1"], unfit: ["x2"], reserveMs })).skips).toEqual([
      { id, reason: "unfit", lock: null, starved: false },
    ]);
    await world.sql.query("select pgclaim.pause_queue_v1('default')");
    expect((await claim(world, { reserveMs })).skips).toEqual([]);
    expect(await reserved(world)).toEqual([]);
  });

  it("that is left over, since its job ended meanwhile, holds up nobody, and is pruned", async () => {
    const world = await install();
    const id = await waiting(world);
    await world.sql.query("delete from pgclaim.job where id = $1", [id]);
    expect(await rivalRuns(world)).toBe(true);
    await wake(world.sql, { gateSlice: 200, cancelSlice: 200 });
    expect(await reserved(world)).toEqual([]);
  });

  it("is renewed and given back without waiting for whoever has its rows", async () => {
    const world = await install();
    const id = await waiting(world);
    const other = await world.connect();
    await other.query("begin");
    await other.query("delete from pgclaim.reservation where name = 'b'");
    // lock_timeout would end it if it waited.
    const client = await world.connect();
    await client.query("set lock_timeout = '200ms'");
    await client.query("select pgclaim.reserve_v1($1)", [JSON.stringify({ jobs: [id], reserveMs })]);
    await other.query("rollback");
    expect(await heldKeys(world)).toEqual([]);
  });
});

describe("under unending streams", () => {
  const payload = z.object({ n: z.number() });
  const limits = { reserveAfter: "300ms" } as const;

  /** Ends when `other` has begun, or after a moment: so names change hands before they are free, as long as others want them. */
  function baton() {
    let begun = gate();
    return {
      begin(): void {
        begun.open();
        begun = gate();
      },
      async next(boundMs: number): Promise<void> {
        let timer: ReturnType<typeof setTimeout> | undefined;
        const bound = new Promise<void>((resolve) => {
          timer = setTimeout(resolve, boundMs);
        });
        await Promise.race([begun.promise, bound]);
        clearTimeout(timer);
      },
    };
  }

  /** Keeps invoking until told to stop. */
  function forever(claimer: Claimer, refill: () => Promise<unknown>) {
    let over = false;
    const ended = (async () => {
      while (!over) {
        await refill();
        const report = await claimer.invoke({ type: "manual" });
        if (report.error !== undefined) throw new Error(report.error.message);
      }
    })();
    ended.catch(() => {});
    return async () => {
      over = true;
      await ended;
    };
  }

  it("of one-name jobs on either name, a two-name job runs within reserveAfter and the holders' time", async () => {
    const world = await setup();
    const batons = { a: baton(), b: baton() };
    const rounds = { a: 0, b: 0 };
    const stream = (name: "a" | "b") =>
      defineJob({
        kind: `one.${name}`,
        queue: `q.${name}`,
        payload,
        locks: [name],
        async run() {
          rounds[name]++;
          batons[name].begin();
          await batons[name === "a" ? "b" : "a"].next(150);
        },
      });
    let ranAfter = Number.NaN;
    let enqueuedAt = Number.NaN;
    const two = defineJob({
      kind: "two",
      queue: "q.two",
      payload,
      locks: ["a", "b"],
      run() {
        ranAfter = performance.now() - enqueuedAt;
      },
    });
    const claimers = (["a", "b"] as const).map((name) => {
      const job = stream(name);
      return {
        job,
        claimer: world.claimer("pg", { jobs: [job], queues: [`q.${name}`], batch: 1, maxTicks: 20, limits }),
      };
    });
    const mine = world.claimer("pg", { jobs: [two], queues: ["q.two"], limits });
    const stops = claimers.map(({ claimer, job }) =>
      forever(claimer, () =>
        claimer.enqueueMany(
          job,
          Array.from({ length: 20 }, (_, n) => ({ n })),
        ),
      ),
    );
    await mine.register();
    while (rounds.a === 0 || rounds.b === 0) await new Promise((resolve) => setImmediate(resolve));
    enqueuedAt = performance.now();
    await mine.enqueue(two, { n: 1 });
    const until = performance.now() + 15_000;
    while (Number.isNaN(ranAfter) && performance.now() < until) await mine.invoke({ type: "manual" });
    for (const stop of stops) await stop();
    expect(rounds.a + rounds.b).toBeGreaterThan(4);
    // reserveAfter, the round that is under way, the busy retries of one invocation; the rest is for a loaded machine.
    expect(ranAfter).toBeLessThan(8_000);
    console.info(
      `the two-name job ran after ${Math.round(ranAfter)} ms, ${rounds.a} + ${rounds.b} rounds of its rivals`,
    );
  });

  it("of sharers, an exclusive waiter runs within reserveAfter and the holders' time", async () => {
    const world = await setup();
    const relay = baton();
    let rounds = 0;
    const share = defineJob({
      kind: "share",
      queue: "q.share",
      payload,
      sharedLocks: ["n"],
      async run() {
        rounds++;
        relay.begin();
        await relay.next(150);
      },
    });
    let ranAfter = Number.NaN;
    let enqueuedAt = Number.NaN;
    const alone = defineJob({
      kind: "exclusive",
      queue: "q.exclusive",
      payload,
      locks: ["n"],
      run() {
        ranAfter = performance.now() - enqueuedAt;
      },
    });
    const sharers = Array.from({ length: 3 }, () =>
      world.claimer("pg", { jobs: [share], queues: ["q.share"], batch: 1, maxTicks: 20, limits }),
    );
    const mine = world.claimer("pg", { jobs: [alone], queues: ["q.exclusive"], limits });
    const stops = sharers.map((claimer) =>
      forever(claimer, () =>
        claimer.enqueueMany(
          share,
          Array.from({ length: 20 }, (_, n) => ({ n })),
        ),
      ),
    );
    await mine.register();
    while (rounds < 5) await new Promise((resolve) => setImmediate(resolve));
    enqueuedAt = performance.now();
    await mine.enqueue(alone, { n: 1 });
    const until = performance.now() + 15_000;
    while (Number.isNaN(ranAfter) && performance.now() < until) await mine.invoke({ type: "manual" });
    for (const stop of stops) await stop();
    expect(ranAfter).toBeLessThan(8_000);
    console.info(`the exclusive waiter ran after ${Math.round(ranAfter)} ms, ${rounds} sharers in all`);
  });
});
