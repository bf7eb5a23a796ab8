// Cancel: who waits is gone at once; who runs is told by its signal, through the one-shot, within a poll.

import { beforeEach, describe, expect, it } from "vitest";
import * as z from "zod";
import { createClaimer, defineJob, type JobId, retryIn, snooze } from "../../../src/index.ts";
import {
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  makeDue,
  rendezvous,
  watchUnhandled,
  workTick,
} from "../../support/engine.ts";
import { eventually, gate } from "../../support/gate.ts";
import { setup, transports, type World } from "../../support/world.ts";
import { all, finish, kill, pidOf, the, wake } from "../sql/support.ts";
import { addOne, claim, install, stateOf } from "./support.ts";

beforeEach(() => watchUnhandled());

const payload = z.object({ n: z.number() });
const limits = { cancelPoll: "50ms" } as const;

const gone = (world: World, id: JobId) =>
  world.rows("select outcome, attempts from pgclaim.history where job_id = $1", [id]);
const requests = (world: World): Promise<number> => world.value("select count(*)::integer from pgclaim.cancel_request");
const outcomes = (world: World, id: JobId) =>
  world
    .rows<{ outcome: string | null }>("select outcome from pgclaim.attempt where job_id = $1 order by n", [id])
    .then((rows) => rows.map(({ outcome }) => outcome));

describe("a job that waits", () => {
  const job = defineJob({ kind: "k", payload, locks: ["n"], uniqueKey: "{n}", run() {} });

  it.each([
    ["ready", "update pgclaim.job set state = 'ready' where id = $1"],
    ["scheduled", "update pgclaim.job set state = 'scheduled', run_at = now() + interval '1 h' where id = $1"],
    ["blocked", "update pgclaim.job set state = 'blocked' where id = $1"],
    ["dead", "update pgclaim.job set state = 'dead', dead_at = now(), dead_reason = 'attempts' where id = $1"],
  ])("%s is gone at once, its unique key and its place at the gate with it", async (state, put) => {
    const world = await setup();
    const claimer = world.claimer("pg", { jobs: [job] });
    await claimer.register();
    const { id } = await claimer.enqueue(job, { n: 1 });
    await world.sql.query(put, [id]);
    expect(await stateOf(world, id)).toBe(state);
    expect(await claimer.cancel(id)).toEqual({ type: "cancelled" });
    expect(await gone(world, id)).toEqual([{ outcome: "cancelled", attempts: 0 }]);
    expect(await claimer.job(id)).toMatchObject({ state: "cancelled" });
    expect(await claimer.cancel(id)).toEqual({ type: "not-dead", state: "cancelled" });
    expect(await requests(world)).toBe(0);
    expect(await claimer.enqueue(job, { n: 1 })).toMatchObject({ type: "enqueued" });
  });

  it("at the head of its gate lets the next one in", async () => {
    const world = await install();
    const ids = [];
    for (let i = 0; i < 3; i++) ids.push(await addOne(world.sql, "x1", { a: "n" }));
    expect(await stateOf(world, the(ids, 2))).toBe("blocked");
    await world.sql.query("select pgclaim.cancel_v1($1)", [the(ids)]);
    expect(await stateOf(world, the(ids, 2))).toBe("ready");
  });
});

describe.each(transports)("over %s, a job that runs", (transport) => {
  it("sees its signal within the poll; its turn is undone, history and attempt say cancelled", async () => {
    const world = await setup();
    await effectTable(world);
    const begun = gate<JobId>();
    let reason: unknown;
    const job = defineJob({
      kind: "k",
      payload,
      locks: ["n"],
      uniqueKey: "{n}",
      async run({ tx, job: { id }, signal }) {
        await effect(tx, 1);
        begun.open(id);
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        reason = signal.reason;
        throw signal.reason;
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], maxTicks: 1, limits });
    await claimer.enqueue(job, { n: 1 });
    const report = invoke(claimer);
    const id = await begun.promise;
    const askedAt = performance.now();
    expect(await claimer.cancel(id)).toEqual({ type: "requested" });
    const tick = workTick(await report);
    expect(performance.now() - askedAt).toBeLessThan(3_000);
    expect(tick).toMatchObject({ claimed: 1, cancelled: 1, done: 0, retried: 0, jobs: [{ result: "cancelled" }] });
    expect(String(reason)).toContain("Somebody has cancelled the job");
    expect(await gone(world, id)).toEqual([{ outcome: "cancelled", attempts: 1 }]);
    expect(await outcomes(world, id)).toEqual(["cancelled"]);
    expect(await requests(world)).toBe(0);
    expect(await claimer.enqueue(job, { n: 1 })).toMatchObject({ type: "enqueued" });
    await world.sql.query("delete from pgclaim.job");
    await expectWhole(world, { effects: [] });
  });

  it("in a query is cancelled out of it, and the others of its tick keep what they did", async () => {
    const world = await setup();
    await effectTable(world);
    const begun = gate<JobId>();
    const stuck = defineJob({
      kind: "stuck",
      payload,
      async run({ tx, job: { id } }) {
        await tx.query("select 1");
        begun.open(id);
        await tx.query("select pg_sleep(20)");
      },
    });
    const other = defineJob({ kind: "other", payload, run: ({ tx, payload: { n } }) => effect(tx, n).then(() => {}) });
    const claimer = world.claimer(transport, { jobs: [stuck, other], maxTicks: 1, limits });
    await claimer.enqueue(other, { n: 1 });
    await claimer.enqueue(stuck, { n: 2 });
    await claimer.enqueue(other, { n: 3 });
    const report = invoke(claimer);
    const id = await begun.promise;
    await claimer.cancel(id);
    expect(workTick(await report)).toMatchObject({ done: 2, cancelled: 1 });
    expect(await effects(world)).toEqual([1, 3]);
  });

  it("and ends done before it sees it is done; the request is gone", async () => {
    const world = await setup();
    await effectTable(world);
    const meeting = rendezvous();
    const job = defineJob({
      kind: "k",
      payload,
      async run({ payload: { n }, tx }) {
        await meeting.meet(n);
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], maxTicks: 1 });
    const { id } = await claimer.enqueue(job, { n: 1 });
    const report = invoke(claimer);
    await meeting.arrived(1);
    expect(await claimer.cancel(id)).toEqual({ type: "requested" });
    meeting.release(1);
    expect(workTick(await report)).toMatchObject({ done: 1, cancelled: 0 });
    expect(await gone(world, id)).toEqual([{ outcome: "done", attempts: 1 }]);
    expect(await requests(world)).toBe(0);
    await expectWhole(world, { effects: [1] });
  });
});

describe("a job that does not end done", () => {
  it.each([
    ["throws", () => Promise.reject(new Error("no"))],
    ["answers retryIn", () => retryIn("1h")],
    ["answers snooze", () => snooze("1h")],
  ] as const)("and %s is cancelled instead of tried again", async (_, ends) => {
    const world = await setup();
    const meeting = rendezvous();
    const job = defineJob({
      kind: "k",
      payload,
      async run({ payload: { n } }) {
        await meeting.meet(n);
        return ends();
      },
    });
    const claimer = world.claimer("pg", { jobs: [job], maxTicks: 1 });
    const { id } = await claimer.enqueue(job, { n: 1 });
    const report = invoke(claimer);
    await meeting.arrived(1);
    await claimer.cancel(id);
    meeting.release(1);
    expect(workTick(await report)).toMatchObject({ cancelled: 1, retried: 0, snoozed: 0 });
    expect(await gone(world, id)).toEqual([{ outcome: "cancelled", attempts: 1 }]);
    expect(await outcomes(world, id)).toEqual(["cancelled"]);
    expect(await requests(world)).toBe(0);
  });

  it("and whose request comes after finish has looked is not started again: the next wake takes it out", async () => {
    const world = await install();
    const id = await addOne(world.sql, "x1", { a: "n" });
    const session = await claim(world);
    const jobs = session.jobs.map(({ id, n }) => ({ id, n }));
    await world.sql.query("select from pgclaim.fence_v1($1)", [
      JSON.stringify({ tick: session.tick, quarantined: false, jobs }),
    ]);
    // finish has run, COMMIT has not: it did not see the request, and the lock is still there.
    await session.client.query("select pgclaim.finish_v1($1)", [
      JSON.stringify({ tick: session.tick, invocation: "test", report: {}, jobs: all(jobs, "failed", { inMs: 0 }) }),
    ]);
    expect(await world.value("select pgclaim.cancel_v1($1)", [id])).toEqual({ type: "requested" });
    await session.client.query("commit");
    expect(await stateOf(world, id)).toBe("ready");
    expect((await claim(world)).skipped).toEqual({ cancelled: 1 });
    const next = await addOne(world.sql, "x1", { a: "n" });
    expect(await wake(world.sql, { gateSlice: 200, cancelSlice: 200 })).toMatchObject({ faults: [] });
    expect(await gone(world, id)).toEqual([{ outcome: "cancelled", attempts: 1 }]);
    expect(await requests(world)).toBe(0);
    expect(await stateOf(world, next)).toBe("ready");
  });

  it("but dies with its invocation is taken out by the wake that notices", async () => {
    const world = await install();
    const id = await addOne(world.sql, "x1", { a: "n" });
    const session = await claim(world);
    await world.sql.query("select from pgclaim.fence_v1($1)", [
      JSON.stringify({ tick: session.tick, quarantined: false, jobs: session.jobs.map(({ id, n }) => ({ id, n })) }),
    ]);
    await world.sql.query("select pgclaim.cancel_v1($1)", [id]);
    // While it runs, wake leaves it alone.
    await wake(world.sql, { gateSlice: 200, cancelSlice: 200 });
    expect(await requests(world)).toBe(1);
    await kill(world, await pidOf(session.client));
    await wake(world.sql, { gateSlice: 200, cancelSlice: 200 });
    expect(await gone(world, id)).toEqual([{ outcome: "cancelled", attempts: 1 }]);
    expect(await outcomes(world, id)).toEqual(["crashed"]);
    expect(await requests(world)).toBe(0);
  });

  it("but is handed back is not started again", async () => {
    const world = await install();
    const id = await addOne(world.sql, "x1", { a: "n" });
    const session = await claim(world);
    const jobs = session.jobs.map(({ id, n }) => ({ id, n }));
    await world.sql.query("select pgclaim.cancel_v1($1)", [id]);
    await finish(session.client, session.tick, all(jobs, "released"));
    expect((await claim(world)).skipped).toEqual({ cancelled: 1 });
    await wake(world.sql, { gateSlice: 200, cancelSlice: 200 });
    expect(await gone(world, id)).toEqual([{ outcome: "cancelled", attempts: 1 }]);
  });

  it("but is gone already leaves no request behind", async () => {
    const world = await install();
    await world.sql.query("insert into pgclaim.cancel_request (job_id) values (4711)");
    await wake(world.sql, { gateSlice: 200, cancelSlice: 200 });
    expect(await requests(world)).toBe(0);
  });
});

describe("a follower", () => {
  it("that has not started in its tick is cancelled there, the one before it is done, those behind it are handed back", async () => {
    const world = await setup();
    await effectTable(world);
    const meeting = rendezvous();
    const job = defineJob({
      kind: "k",
      payload,
      orderingKey: "one",
      async run({ payload: { n }, tx }) {
        await meeting.meet(n);
        await effect(tx, n);
      },
    });
    const database = world.database("pg");
    let asked = 0;
    const claimer = createClaimer({
      jobs: [job],
      log: () => {},
      maxTicks: 1,
      limits,
      database: {
        ...database,
        oneShot(request) {
          if (request.text.includes("cancelled_v1")) asked++;
          return database.oneShot(request);
        },
      },
    });
    const enqueued = await claimer.enqueueMany(job, [{ n: 1 }, { n: 2 }, { n: 3 }]);
    const id = the(enqueued, 1).id;
    const report = invoke(claimer);
    await meeting.arrived(1);
    expect(await claimer.cancel(id)).toEqual({ type: "requested" });
    // A second question is asked only when the first one has been answered, and acted on.
    const before = asked;
    await eventually(() => expect(asked).toBeGreaterThanOrEqual(before + 2));
    meeting.release(1);
    const tick = workTick(await report);
    expect(tick.jobs.map(({ result }) => result)).toEqual(["done", "cancelled", "released"]);
    expect(await gone(world, id)).toEqual([{ outcome: "cancelled", attempts: 1 }]);
    meeting.release(3);
    await makeDue(world);
    expect(workTick(await invoke(claimer))).toMatchObject({ done: 1 });
    await expectWhole(world, { effects: [1, 3] });
  });
});

describe("the question", () => {
  it("is not asked by a tick that is shorter than the poll: 2 + 1 round trips", async () => {
    const world = await setup();
    const job = defineJob({ kind: "k", payload, run() {} });
    const claimer = world.claimer("neon", { jobs: [job], maxTicks: 1, limits: { cancelPoll: "10s" } });
    await claimer.register();
    await claimer.enqueue(job, { n: 1 });
    const before = { ...world.bridge.stats };
    expect(workTick(await invoke(claimer)).roundTrips).toEqual({ session: 2, oneShot: 1 });
    expect(world.bridge.stats.sqlRequests - before.sqlRequests).toBe(2); // wake and fence
  });

  it("that gets no answer harms nothing, and the next one is asked", async () => {
    const world = await setup();
    await effectTable(world);
    const meeting = rendezvous();
    const begun = gate<JobId>();
    const job = defineJob({
      kind: "k",
      payload,
      async run({ payload: { n }, job: { id }, tx, signal }) {
        begun.open(id);
        await Promise.race([meeting.meet(n), new Promise((resolve) => signal.addEventListener("abort", resolve))]);
        await effect(tx, n);
      },
    });
    const database = world.database("neon");
    let fails = 3;
    let failed = 0;
    const claimer = createClaimer({
      jobs: [job],
      log: () => {},
      maxTicks: 1,
      limits,
      database: {
        ...database,
        oneShot(request) {
          if (!request.text.includes("cancelled_v1") || fails === 0) return database.oneShot(request);
          fails--;
          failed++;
          return Promise.reject(new Error("the network is gone for a moment"));
        },
      },
    });
    await claimer.enqueue(job, { n: 1 });
    const report = invoke(claimer);
    const id = await begun.promise;
    await eventually(() => expect(failed).toBe(3));
    await claimer.cancel(id);
    expect(workTick(await report)).toMatchObject({ cancelled: 1, fate: "committed" });
    expect(await effects(world)).toEqual([]);
  });
});
