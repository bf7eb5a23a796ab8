// Handlers that do not end by themselves: waiting outside, stuck in a query, waiting for a lock, deaf to their abort; and
// the end of the invocation's budget. What is done commits, what is not goes back, and nothing hangs.

import { beforeEach, describe, expect, it } from "vitest";
import * as z from "zod";
import { systemClock } from "../../../src/clock.ts";
import { type createClaimer, defineJob, done, type JobDefinition } from "../../../src/index.ts";
import {
  effect,
  effects,
  effectTable,
  invoke,
  makeDue,
  numbered,
  quick,
  rendezvous,
  results,
  startAuthority,
  upTo,
  watchUnhandled,
  wire,
  workTick,
} from "../../support/engine.ts";
import { endsWithin, eventually, gate } from "../../support/gate.ts";
import { setup, transports } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

const timedOut = "retried:PGCLAIM_HANDLER_TIMEOUT";

describe.each(transports)("a timeout over %s", (transport) => {
  it("ends a handler that waits for an external call, aborts the call, and keeps what the others did", async () => {
    const world = await setup();
    await effectTable(world);
    const authority = await startAuthority();
    const aborted = gate<unknown>();
    const job = defineJob({
      kind: "waits",
      payload: numbered,
      timeout: "400ms",
      async run({ payload: { n }, tx, signal }) {
        if (n === 2) {
          signal.addEventListener("abort", () => aborted.open(signal.reason), { once: true });
          await fetch(authority.url, { signal });
        }
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    expect(results(workTick(await invoke(claimer)))).toEqual(["done", timedOut, "done"]);
    expect(await aborted.promise).toMatchObject({ code: "PGCLAIM_HANDLER_TIMEOUT" });
    expect(await effects(world)).toEqual([1, 3]);
    expect(await world.locks()).toBe(0);
  });

  it("cancels the query a handler is stuck in, and the others of the tick commit", async () => {
    const world = await setup();
    await effectTable(world);
    const ended = gate<unknown>();
    const job = defineJob({
      kind: "stuck",
      payload: numbered,
      timeout: "500ms",
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        if (n === 2)
          await tx.query("select pg_sleep(60)").catch((error: unknown) => {
            ended.open(error);
            throw error;
          });
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(4).map((n) => ({ n })),
    );
    const tick = workTick(await invoke(claimer, { within: 5_000 }));
    expect(results(tick)).toEqual(["done", timedOut, "done", "done"]);
    // Cancelled, not run into statement_timeout, which is a second longer.
    expect(await ended.promise).toMatchObject({ code: "57014", message: expect.stringContaining("user request") });
    expect(await effects(world)).toEqual([1, 3, 4]);
  });

  it("leaves a stuck query to statement_timeout when the one-shot is broken", async () => {
    const world = await setup();
    await effectTable(world);
    const net = await wire(world, transport);
    const job = defineJob({
      kind: "stuck",
      payload: numbered,
      timeout: "500ms",
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        if (n === 2) await tx.query("select pg_sleep(60)");
      },
    });
    const claimer = net.claimer({ jobs: [job], limits: { ...quick, message: "5s" } });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const fault = net.breakOneShot({ contains: "cancel_query_v1", at: "before", how: "black-hole" });
    const tick = workTick(await invoke(claimer, { within: 8_000 }));
    await fault.fired;
    expect(results(tick)).toEqual(["done", timedOut, "done"]);
    expect(await effects(world)).toEqual([1, 3]);
  });

  it("never cancels the query of the handler that comes after", async () => {
    // The stuck query ends by itself while its cancel is still on the way. The next handler's turn must not begin before
    // that cancel has landed, or it would strike the innocent query.
    const world = await setup();
    await effectTable(world);
    await world.sql.query("create table row_lock (id integer); insert into row_lock values (1)");
    const net = await wire(world, transport);
    const holder = await world.connect();
    await holder.query("begin; update row_lock set id = id");
    const started = gate();
    const letGo = gate();
    const job = defineJob({
      kind: "race",
      payload: numbered,
      timeout: "700ms",
      async run({ payload: { n }, tx }) {
        if (n === 1) await tx.query("update row_lock set id = id");
        await effect(tx, n);
        if (n === 2) {
          started.open();
          await tx.query("select pg_sleep(0.3)");
        }
      },
    });
    const claimer = net.claimer({ jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    const fault = net.breakOneShot({ contains: "cancel_query_v1", at: "before", how: { hold: letGo.promise } });
    const invocation = invoke(claimer);
    await fault.fired;
    await holder.query("commit");
    // The second handler's turn, or the proof that it waits: either way the cancel goes out now.
    await Promise.race([
      started.promise,
      eventually(async () => {
        expect(
          await world.value(
            "select count(*)::integer from pg_stat_activity where state = 'idle in transaction' and datname = current_database()",
          ),
        ).toBe(1);
      }),
    ]);
    letGo.open();
    expect(results(workTick(await invocation))).toEqual([timedOut, "done"]);
    expect(await effects(world)).toEqual([2]);
  });

  it("ends a handler that waits for a row another session holds", async () => {
    const world = await setup();
    await effectTable(world);
    await world.sql.query("create table row_lock (id integer); insert into row_lock values (1)");
    const holder = await world.connect();
    await holder.query("begin; update row_lock set id = id");
    const job = defineJob({
      kind: "row_lock",
      payload: numbered,
      timeout: "400ms",
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        if (n === 1) await tx.query("update row_lock set id = id");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    expect(results(workTick(await invoke(claimer, { within: 5_000 })))).toEqual([timedOut, "done"]);
    expect(await effects(world)).toEqual([2]);
    await holder.query("rollback");
  });

  it("makes tx dead after the timeout, whatever a handler deaf to its abort still does", async () => {
    const world = await setup();
    await effectTable(world);
    const go = gate();
    const late = gate<unknown>();
    const job = defineJob({
      kind: "deaf",
      payload: numbered,
      timeout: "300ms",
      async run({ payload: { n }, tx, enqueue }) {
        if (n === 1) {
          await go.promise;
          await enqueue(job as JobDefinition<typeof numbered>, { n: 77 }).catch(() => {});
          await effect(tx, 99).then(late.open, late.open);
          return;
        }
        await effect(tx, n);
        go.open();
        await late.promise;
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    expect(results(workTick(await invoke(claimer)))).toEqual([timedOut, "done"]);
    expect(await late.promise).toMatchObject({ code: "PGCLAIM_HANDLER_TIMEOUT" });
    expect(await effects(world)).toEqual([2]);
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(1);
  });

  it("stands still while a handler waits for its turn", async () => {
    const world = await setup();
    await effectTable(world);
    const authority = await startAuthority();
    const job = defineJob({
      kind: "patient",
      payload: numbered,
      timeout: "10s",
      async run({ tx, payload: { n } }) {
        await fetch(authority.url);
        await effect(tx, n);
      },
    });
    const patient = defineJob({
      kind: "quick",
      payload: numbered,
      timeout: "300ms",
      async run({ tx, payload: { n } }) {
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job, patient] });
    await claimer.enqueue(patient, { n: 1 });
    await claimer.enqueue(job, { n: 2 });
    const invocation = invoke(claimer);
    await eventually(() => expect(authority.waiting.now).toBe(1));
    // Far longer than the quick one's timeout, by the clock that measures it.
    const until = performance.now() + 700;
    await eventually(() => expect(performance.now()).toBeGreaterThan(until));
    authority.answer(1);
    expect((await invocation).done).toBe(2);
    expect(await effects(world)).toEqual([1, 2]);
  });
});

describe.each(transports)("quarantine and unsettled handlers over %s", (transport) => {
  it("does not start in this process before a handler that ignored its abort has ended", async () => {
    const world = await setup();
    const go = gate();
    const settled = gate();
    const deaf = defineJob({
      kind: "deaf",
      payload: numbered,
      timeout: "200ms",
      retry: { maxAttempts: 1 },
      async run() {
        await go.promise;
        settled.open();
      },
    });
    let suspectRuns = 0;
    const suspect = defineJob({
      kind: "suspect",
      payload: numbered,
      run() {
        suspectRuns++;
      },
    });
    const claimer = world.claimer(transport, { jobs: [deaf, suspect] });
    await claimer.enqueue(deaf, { n: 1 });
    expect((await invoke(claimer)).dead).toBe(1);
    await claimer.enqueue(suspect, { n: 2 });
    await world.sql.query("update pgclaim.job set suspect = true where kind = 'suspect'");
    expect(await invoke(claimer)).toMatchObject({ claimed: 0 });
    expect(suspectRuns).toBe(0);
    go.open();
    await settled.promise;
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
    expect(suspectRuns).toBe(1);
  });

  it("refuses every other tick of the process while a suspect runs, and says busy", async () => {
    const world = await setup();
    const meeting = rendezvous();
    const job = defineJob({
      kind: "suspect",
      payload: numbered,
      run: ({ payload: { n } }) => (n === 1 ? meeting.meet(1) : undefined),
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    const other = world.claimer(transport, { jobs: [job] });
    await claimer.enqueue(job, { n: 1 });
    await invokeNothing(world.sql, claimer);
    await world.sql.query("update pgclaim.job set suspect = true");
    const invocation = invoke(claimer);
    await meeting.arrived(1);
    await claimer.enqueue(job, { n: 2 });
    expect(await invoke(other)).toMatchObject({ ended: "busy", claimed: 0, roundTrips: { session: 0, oneShot: 0 } });
    meeting.release(1);
    expect((await invocation).done).toBeGreaterThanOrEqual(1);
    await invoke(claimer);
    expect(await world.value("select count(*)::integer from pgclaim.history")).toBe(2);
  });
});

/** Registers the kinds without running anything. */
async function invokeNothing(
  sql: { query(text: string): Promise<unknown> },
  claimer: { invoke: ReturnType<typeof createClaimer>["invoke"] },
) {
  await sql.query("update pgclaim.job set state = 'scheduled', run_at = clock_timestamp() + interval '1 hour'");
  await claimer.invoke({ type: "manual" });
  await sql.query("update pgclaim.job set state = 'ready', run_at = clock_timestamp()");
}

describe.each(transports)("the budget over %s", (transport) => {
  it("hands back what has not started, aborts what runs, and commits what is done", async () => {
    const world = await setup();
    await effectTable(world);
    const aborted: number[] = [];
    const started: number[] = [];
    const job = defineJob({
      kind: "long",
      payload: numbered,
      timeout: "1500ms",
      async run({ payload: { n }, tx, signal }) {
        started.push(n);
        if (n > 2) {
          await new Promise((_, reject) => {
            signal.addEventListener(
              "abort",
              () => {
                aborted.push(n);
                reject(signal.reason);
              },
              { once: true },
            );
          });
        }
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], concurrency: 2, limits: { reserve: "1s" } });
    await claimer.enqueueMany(
      job,
      upTo(8).map((n) => ({ n })),
    );
    const report = await invoke(claimer, { budget: "3800ms", within: 6_000 });
    expect(report.ended).toBe("budget");
    const tick = workTick(report);
    expect(tick.fate).toBe("committed");
    // 1 and 2 hand their slots on, 3 and 4 run into their timeout, and 1,500 ms are not left for the rest.
    expect(started).toEqual([1, 2, 3, 4]);
    expect(aborted).toEqual([3, 4]);
    expect(results(tick)).toEqual(["done", "done", timedOut, timedOut, "released", "released", "released", "released"]);
    expect(await effects(world)).toEqual([1, 2]);
    expect(
      await world.rows("select distinct state, attempt, failures from pgclaim.job where payload ->> 'n' > '4'"),
    ).toEqual([{ state: "ready", attempt: 1, failures: 0 }]);
    expect(await world.locks()).toBe(0);
  });

  it("claims nothing that would be handed back, for what the last tick needed before its first handler", async () => {
    const world = await setup();
    const made = await wire(world, transport);
    let aheadMs = 0;
    const clock = { ...systemClock, now: () => systemClock.now() + aheadMs };
    const job = defineJob({
      kind: "long",
      payload: numbered,
      timeout: "20s",
      run() {
        aheadMs += 15_000;
      },
    });
    const claimer = made.claimer({ jobs: [job], batch: 1, clock, limits: { ...quick, reserve: "1s", oneShot: "60s" } });
    await claimer.enqueueMany(job, [{ n: 1 }, { n: 2 }]);
    const held = gate();
    const { fired } = made.breakOneShot({ contains: "fence_v1", at: "after", how: { hold: held.promise } });
    const running = invoke(claimer, { budget: "58s" });
    await fired;
    aheadMs += 10_000;
    held.open();
    // 57 s less 10 s for the fence and 15 s for the handler leave 32 s: enough for 20 s behind another such fence.
    expect(await running).toMatchObject({ done: 2, released: 0 });
    await claimer.enqueueMany(job, [{ n: 3 }, { n: 4 }]);
    const slow = gate();
    const again = made.breakOneShot({ contains: "fence_v1", at: "after", how: { hold: slow.promise } });
    const late = invoke(claimer, { budget: "50s" });
    await again.fired;
    aheadMs += 10_000;
    slow.open();
    // 49 s less 10 s and 15 s: 24 s are left, of which another such fence would leave 14.
    expect(await late).toMatchObject({ ended: "budget", done: 1, released: 0 });
    expect(await world.rows("select attempt from pgclaim.job")).toEqual([{ attempt: 0 }]);
  });

  it("ends hard: a handler whose turn comes too late is handed back uncharged, and the done ones commit", async () => {
    const world = await setup();
    await effectTable(world);
    const reasons: unknown[] = [];
    const job = defineJob({
      kind: "slow_turn",
      payload: numbered,
      timeout: "1500ms",
      async run({ payload: { n }, tx, signal }) {
        signal.addEventListener("abort", () => reasons.push(signal.reason), { once: true });
        await effect(tx, n);
        await tx.query("select pg_sleep(0.8)");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], limits: { reserve: "1s" } });
    await claimer.enqueueMany(
      job,
      upTo(6).map((n) => ({ n })),
    );
    const report = await invoke(claimer, { budget: "3800ms", within: 6_000 });
    const tick = workTick(report);
    expect(tick.fate).toBe("committed");
    const finished = tick.jobs.flatMap(({ result }, i) => (result === "done" ? [i + 1] : []));
    expect(finished.length).toBeGreaterThanOrEqual(1);
    expect(finished.length).toBeLessThan(6);
    expect(tick.released).toBe(6 - finished.length);
    expect(await effects(world)).toEqual(finished);
    for (const reason of reasons) expect(reason).toMatchObject({ code: "PGCLAIM_HANDLER_ABORTED" });
    expect(await world.value("select sum(failures)::integer from pgclaim.job")).toBe(0);
    await makeDue(world);
    while ((await invoke(claimer)).done > 0);
    expect(await effects(world)).toEqual(upTo(6));
  });

  it("does not claim a kind whose timeout does not fit, and says unfit", async () => {
    const world = await setup();
    await effectTable(world);
    const run: JobDefinition<typeof numbered>["run"] = async ({ payload: { n }, tx }) => {
      await effect(tx, n);
    };
    const long = defineJob({ kind: "long", payload: numbered, timeout: "20s", run });
    const short = defineJob({ kind: "short", payload: numbered, timeout: "500ms", run });
    const claimer = world.claimer(transport, { jobs: [long, short], limits: { reserve: "1s" } });
    await claimer.enqueue(long, { n: 1 });
    await claimer.enqueue(short, { n: 2 });
    const report = await invoke(claimer, { budget: "5s" });
    expect(report).toMatchObject({ done: 1, ended: "empty" });
    expect(workTick(report).skips).toEqual([{ jobId: "1", kind: "long", reason: "unfit" }]);
    expect(await effects(world)).toEqual([2]);
    expect(await world.value("select attempt from pgclaim.job")).toBe(0);
    expect(await invoke(claimer, { budget: "25s" })).toMatchObject({ done: 1 });
  });

  it("refuses a kind that fits no trigger, by name, when the claimer is made", async () => {
    const world = await setup();
    const job = defineJob({ kind: "far.too.long", payload: z.object({}), timeout: "5m", run: () => done() });
    expect(() => world.claimer(transport, { jobs: [job] })).toThrow(
      expect.objectContaining({
        code: "PGCLAIM_KIND_FITS_NO_TRIGGER",
        message: expect.stringContaining('"far.too.long"'),
      }),
    );
    // It may be enqueued from here all the same when its handler is elsewhere.
    const elsewhere = defineJob({ kind: "far.too.long", payload: z.object({}), timeout: "5m" });
    expect(() => world.claimer(transport, { jobs: [elsewhere] })).not.toThrow();
    expect(() => world.claimer(transport, { jobs: [job], budget: { cron: "6m" } })).not.toThrow();
  });

  it("ends within its budget when every handler is deaf and stuck", async () => {
    const world = await setup();
    const go = gate();
    const job = defineJob({ kind: "deaf", payload: numbered, timeout: "1s", run: () => go.promise });
    const claimer = world.claimer(transport, { jobs: [job], limits: { reserve: "1s" } });
    await claimer.enqueueMany(
      job,
      upTo(4).map((n) => ({ n })),
    );
    const report = await endsWithin(
      17_500,
      claimer.invoke({ type: "manual" }, { budget: "16500ms" }),
      "the invocation",
    );
    expect(report.ticks[0]).toMatchObject({ fate: "committed", retried: 4 });
    go.open();
  });
});
