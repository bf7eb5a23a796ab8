// The failure that articles about this design warn of: session and one-shots on the same small pool, and as many ticks as it
// has connections. Each holds a connection and waits for another one. Nobody waits for ever: the fence ends in its limit,
// the jobs are handed back, a code says so, and when the pressure is gone everything is done exactly once.

import { describe, expect, it } from "vitest";
import type { Database } from "../../src/database.ts";
import { createClaimer, defineJob } from "../../src/index.ts";
import {
  attempts,
  effect,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  results,
  upTo,
  watchUnhandled,
  workTick,
} from "../support/engine.ts";
import { endsWithin, type Gate, gate } from "../support/gate.ts";
import { setup, transports, type World } from "../support/world.ts";
import { installed, openTransactions, startPooler } from "./support.ts";

/** A one-shot gives up after a second; everything else has time. */
const limits = { oneShot: "1s", reserve: "1s" } as const;
const oneShotMs = 1_000;
/** What a loaded machine may take on top of two limits. */
const slackMs = 3_000;

function job(gates: ReadonlyMap<number, { readonly started: Gate; readonly go: Gate }> = new Map()) {
  return defineJob({
    kind: "plain",
    payload: numbered,
    timeout: "10s",
    async run({ payload: { n }, tx, job: { attempt } }) {
      const held = attempt === 1 ? gates.get(n) : undefined;
      held?.started.open();
      await held?.go.promise;
      await effect(tx, n);
    },
  });
}

/** Holds every first fence until `count` ticks have claimed, so that each of them has its connection by then. */
function whenAllHaveClaimed(database: Database, count: number): Database {
  const all = gate();
  const asked = new Set<string>();
  return {
    open: () => database.open(),
    async oneShot(call) {
      if (call.text.includes("fence_v1")) {
        asked.add((JSON.parse(call.argument) as { tick: string }).tick);
        if (asked.size === count) all.open();
        await all.promise;
      }
      return database.oneShot(call);
    },
  };
}

async function world(): Promise<World> {
  watchUnhandled();
  const made = await setup();
  await effectTable(made);
  return made;
}

describe.runIf(installed).each(transports)("one pool for session and one-shots over %s", (transport) => {
  it.each([1, 2, 4])(
    "of %i, with as many ticks: each fence ends in its limit, jobs are handed back, a code says so",
    async (size) => {
      const made = await world();
      const pooled = await startPooler(made, size);
      const database = await pooled.database(transport, { oneShot: "session" });
      const plain = job();
      const log = () => {};
      // One that does not need the pool enqueues and registers.
      await createClaimer({ jobs: [plain], database: made.database("pg"), log }).enqueueMany(
        plain,
        upTo(size).map((n) => ({ n })),
      );
      const crowded = createClaimer({
        jobs: [plain],
        database: whenAllHaveClaimed(database, size),
        limits,
        batch: 1,
        maxTicks: 1,
        log,
      });
      const began = performance.now();
      const reports = await endsWithin(
        20_000,
        Promise.all(upTo(size).map(() => invoke(crowded, { budget: "15s" }))),
        "the ticks",
      );
      expect(performance.now() - began).toBeLessThan(15_000);
      const ticks = reports.map(workTick);
      for (const tick of ticks) expect(tick.fenceMs).toBeLessThan(2 * oneShotMs + slackMs);
      // Whoever gives up first frees a connection, and with luck another one's second question gets it. Not the first's.
      const failed = reports.filter(({ error }) => error?.code === "PGCLAIM_FENCE_FAILED");
      expect(failed.length).toBeGreaterThanOrEqual(1);
      for (const report of failed) {
        const tick = workTick(report);
        expect(report.ended).toBe("error");
        expect(tick).toMatchObject({ fate: "committed", claimed: 1, done: 0, released: 1 });
        expect(tick.fenceMs).toBeGreaterThanOrEqual(2 * oneShotMs - 50);
        expect(results(tick)).toEqual(["released"]);
      }
      for (const report of reports) if (!failed.includes(report)) expect(workTick(report).done).toBe(1);
      // No lock and no transaction is left, and nobody is suspected of anything.
      expect(await made.locks()).toBe(0);
      expect(await openTransactions(made)).toBe(0);
      expect((await attempts(made)).filter((line) => /released/.test(line))).toHaveLength(failed.length);
      expect(await made.value("select count(*)::integer from pgclaim.job where suspect")).toBe(0);

      // The pressure is gone: one tick at a time, where the pool has two connections; else a pool that has.
      const roomy = size === 1 ? made.database("pg") : database;
      const report = await invoke(createClaimer({ jobs: [plain], database: roomy, log }));
      expect(report).toMatchObject({ ended: failed.length === 0 ? "idle" : "empty", done: failed.length });
      await expectWhole(made, { effects: upTo(size) });
    },
  );

  it("of 2, with a tick that runs: the second tick's fence ends in its limit, and a third wake-up says that it was not answered", async () => {
    const made = await world();
    const pooled = await startPooler(made, 2);
    const database = await pooled.database(transport, { oneShot: "session" });
    const first = { started: gate(), go: gate() };
    const plain = job(new Map([[1, first]]));
    const log = () => {};
    const claimer = createClaimer({ jobs: [plain], database, limits, batch: 1, maxTicks: 1, log });
    await claimer.enqueueMany(
      plain,
      upTo(2).map((n) => ({ n })),
    );
    const running = invoke(claimer, { budget: "15s" });
    await endsWithin(5_000, first.started.promise, "the first handler");
    // The second tick has claimed and waits for its fence: now both connections are taken.
    const claimed = gate();
    const second = invoke(
      createClaimer({
        jobs: [plain],
        database: {
          open: () => database.open(),
          oneShot(call) {
            if (call.text.includes("fence_v1")) claimed.open();
            return database.oneShot(call);
          },
        },
        limits,
        batch: 1,
        maxTicks: 1,
        log,
      }),
      { budget: "15s" },
    );
    await endsWithin(5_000, claimed.promise, "the second claim");
    const third = await invoke(claimer, { budget: "15s", within: oneShotMs + slackMs });
    expect(third).toMatchObject({ ended: "error", error: { code: "PGCLAIM_CONNECT_FAILED" }, ticks: [] });
    const report = await endsWithin(2 * oneShotMs + slackMs, second, "the second tick");
    expect(report).toMatchObject({ ended: "error", error: { code: "PGCLAIM_FENCE_FAILED" } });
    expect(workTick(report)).toMatchObject({ fate: "committed", done: 0, released: 1 });
    // The one that ran has heard nothing of all this.
    first.go.open();
    expect(workTick(await running)).toMatchObject({ fate: "committed", done: 1 });
    const last = await invoke(createClaimer({ jobs: [plain], database, log }));
    expect(last).toMatchObject({ ended: "empty", done: 1 });
    expect(await attempts(made)).toEqual(["1:1 done", "2:1 released", "2:2 done"]);
    await expectWhole(made, { effects: [1, 2] });
  });
});
