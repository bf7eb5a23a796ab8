// What a tick costs, counted where it crosses the wire (at the bridge) and by the report. And what it holds meanwhile:
// until the last external call of a tick has returned, its transaction has no xid and no snapshot.

import { beforeEach, describe, expect, it } from "vitest";
import { defineJob } from "../../../src/index.ts";
import {
  claimingBackends,
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  startAuthority,
  upTo,
  watchUnhandled,
  workTick,
} from "../../support/engine.ts";
import { eventually } from "../../support/gate.ts";
import { setup, transports } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

describe.each(transports)("round trips over %s", (transport) => {
  it.each([1, 100])("2 on the session and 1 one-shot at batch %i, whatever the number of jobs", async (batch) => {
    const world = await setup();
    const job = defineJob({ kind: "noop", payload: numbered, run() {} });
    const claimer = world.claimer(transport, { jobs: [job], batch, maxTicks: 1 });
    await claimer.enqueueMany(
      job,
      upTo(batch).map((n) => ({ n })),
    );
    const before = { ...world.bridge.stats };
    const report = await invoke(claimer);
    expect(report).toMatchObject({ done: batch, ended: "max-ticks" });
    expect(workTick(report).roundTrips).toEqual({ session: 2, oneShot: 1 });
    expect(report.roundTrips).toEqual({ session: 2, oneShot: 2 }); // wake is the other one-shot
    if (transport === "neon") {
      expect(world.bridge.stats.wsOpened - before.wsOpened).toBe(1);
      expect(world.bridge.stats.roundTrips - before.roundTrips).toBe(2);
      expect(world.bridge.stats.sqlRequests - before.sqlRequests).toBe(2);
    }
  });

  it.each([1, 3, 25])("2 + 1 and, with %i turns, one more for each turn and one", async (turns) => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "writes",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        if (n <= turns) await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], batch: 30, maxTicks: 1 });
    await claimer.enqueueMany(
      job,
      upTo(30).map((n) => ({ n })),
    );
    const before = { ...world.bridge.stats };
    const report = await invoke(claimer);
    const tick = workTick(report);
    expect(tick).toMatchObject({ done: 30, handlerQueries: turns, roundTrips: { session: 2 + turns + 1, oneShot: 1 } });
    if (transport === "neon") {
      expect(world.bridge.stats.roundTrips - before.roundTrips).toBe(2 + turns + 1 + turns);
      expect(world.bridge.stats.sqlRequests - before.sqlRequests).toBe(2);
    }
    expect(await effects(world)).toEqual(upTo(turns));
  });

  it("one one-shot and no session for an idle wake-up", async () => {
    const world = await setup();
    const job = defineJob({ kind: "noop", payload: numbered, run() {} });
    const claimer = world.claimer(transport, { jobs: [job] });
    await invoke(claimer); // registers the kinds, once for each deployment
    const before = { ...world.bridge.stats };
    const report = await invoke(claimer);
    expect(report).toMatchObject({ ended: "idle", ticks: [], roundTrips: { session: 0, oneShot: 1 } });
    if (transport === "neon") {
      expect(world.bridge.stats.sqlRequests - before.sqlRequests).toBe(1);
      expect(world.bridge.stats.wsOpened).toBe(0);
    }
  });

  it("one session for an invocation, however many ticks", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "writes",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
      },
    });
    const lonely = defineJob({
      kind: "alone",
      alone: true,
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job, lonely], batch: 5 });
    await claimer.enqueueMany(
      job,
      upTo(20).map((n) => ({ n })),
    );
    await claimer.enqueueMany(
      lonely,
      upTo(3).map((n) => ({ n: 20 + n })),
    );
    const report = await invoke(claimer);
    expect(report.ticks.map(({ claimed }) => claimed)).toEqual([5, 5, 5, 5, 1, 1, 1, 0]);
    if (transport === "neon") expect(world.bridge.stats.wsOpened).toBe(1);
    await expectWhole(world, { effects: upTo(23) });
  });

  it("claims jobs of an `alone` kind one a tick, also in front of others", async () => {
    const world = await setup();
    const order: string[] = [];
    const run = ({ payload: { n }, job: { kind } }: { payload: { n: number }; job: { kind: string } }) =>
      void order.push(`${kind}${n}`);
    const lonely = defineJob({ kind: "alone", alone: true, priority: 0, payload: numbered, run });
    const job = defineJob({ kind: "plain", payload: numbered, run });
    const claimer = world.claimer(transport, { jobs: [job, lonely] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    await claimer.enqueueMany(
      lonely,
      upTo(2).map((n) => ({ n })),
    );
    const report = await invoke(claimer);
    expect(report.ticks.map(({ claimed }) => claimed)).toEqual([1, 1, 3, 0]);
    expect(order).toEqual(["alone1", "alone2", "plain1", "plain2", "plain3"]);
  });

  it("ends after maxTicks, and says so", async () => {
    const world = await setup();
    const job = defineJob({ kind: "noop", payload: numbered, run() {} });
    const claimer = world.claimer(transport, { jobs: [job], batch: 2, maxTicks: 2 });
    await claimer.enqueueMany(
      job,
      upTo(5).map((n) => ({ n })),
    );
    expect(await invoke(claimer)).toMatchObject({ ended: "max-ticks", done: 4 });
    expect(await invoke(claimer)).toMatchObject({ ended: "empty", done: 1 });
  });
});

describe.each(transports)("external work over %s", (transport) => {
  it("precedes the first write: 25 handlers call out, 4 at a time, and until the 25th has its answer there is no xid and no snapshot", async () => {
    const world = await setup();
    await effectTable(world);
    const authority = await startAuthority();
    let inTx = 0;
    let mostInTx = 0;
    const job = defineJob({
      kind: "report",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await (await fetch(authority.url, { method: "POST", body: String(n) })).text();
        await effect(tx, n);
        inTx++;
        mostInTx = Math.max(mostInTx, inTx);
        await tx.query("select pg_sleep(0.002)");
        inTx--;
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], batch: 25, concurrency: 4, maxTicks: 1 });
    await claimer.enqueueMany(
      job,
      upTo(25).map((n) => ({ n })),
    );
    const invocation = invoke(claimer);
    const untouched = async () => {
      const backends = await claimingBackends(world);
      expect(backends).toHaveLength(1);
      expect(
        await world.rows("select backend_xid, backend_xmin, state from pg_stat_activity where pid = $1", [backends[0]]),
      ).toEqual([{ backend_xid: null, backend_xmin: null, state: "idle in transaction" }]);
    };
    for (let answered = 0; answered < 24; answered++) {
      // A handler that waits for its turn has given its slot back, so four calls are always out while any are left.
      await eventually(() => expect(authority.calls).toHaveLength(Math.min(25, answered + 4)));
      await untouched();
      authority.answer(1);
    }
    await eventually(() => expect(authority.waiting.now).toBe(1));
    // 24 have their answer and wait for their turn; the 25th is still out.
    await untouched();
    expect(await effects(world)).toEqual([]);
    authority.answer(1);
    expect(workTick(await invocation)).toMatchObject({ done: 25, roundTrips: { session: 2 + 25 + 1, oneShot: 1 } });
    expect(authority.waiting.most).toBe(4);
    expect(mostInTx).toBe(1);
    expect([...authority.calls].map(Number).sort((a, b) => a - b)).toEqual(upTo(25));
    await expectWhole(world, { effects: upTo(25) });
  });
});
