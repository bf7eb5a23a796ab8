// The fence's message and answer, lost, late and repeated. Nothing runs that is not on record, nothing on record runs twice.

import { beforeEach, describe, expect, it } from "vitest";
import { defineJob } from "../../../src/index.ts";
import {
  attempts,
  claimingBackends,
  drain,
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  results,
  upTo,
  watchUnhandled,
  wire,
  workTick,
} from "../../support/engine.ts";
import { eventually, gate } from "../../support/gate.ts";
import { startRunner } from "../../support/process.ts";
import { connections, setup, transports } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

/** A kind that counts its starts. */
function counted() {
  const starts: string[] = [];
  const job = defineJob({
    kind: "counted",
    payload: numbered,
    async run({ payload: { n }, tx, job: { attempt } }) {
      starts.push(`${n}:${attempt}`);
      await effect(tx, n);
    },
  });
  return { job, starts };
}

describe.each(transports)("a fence over %s", (transport) => {
  it.each(["before", "after"] as const)(
    "lost once (%s it was carried out) is repeated, and the tick goes on",
    async (at) => {
      const world = await setup();
      await effectTable(world);
      const { job, starts } = counted();
      const net = await wire(world, transport);
      const claimer = net.claimer({ jobs: [job] });
      await claimer.enqueueMany(
        job,
        upTo(3).map((n) => ({ n })),
      );
      net.breakOneShot({ contains: "fence_v1", at, how: "reset" });
      const report = await invoke(claimer);
      expect(report).toMatchObject({ ended: "empty", done: 3 });
      expect(workTick(report).roundTrips.oneShot).toBe(2);
      expect(starts).toEqual(["1:1", "2:1", "3:1"]);
      await expectWhole(world, { effects: [1, 2, 3] });
    },
  );

  it.each([
    ["before", "reset"],
    ["after", "reset"],
    ["before", "black-hole"],
    ["after", "black-hole"],
  ] as const)("lost twice (%s, %s) starts nothing, burns its numbers, and frees the jobs", async (at, how) => {
    const world = await setup();
    await effectTable(world);
    const { job, starts } = counted();
    const net = await wire(world, transport);
    const claimer = net.claimer({ jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    net.breakOneShot({ contains: "fence_v1", at, how, times: 2 });
    const report = await invoke(claimer, { within: 6_000 });
    const tick = workTick(report);
    expect(report).toMatchObject({ ended: "error", error: { code: "PGCLAIM_FENCE_FAILED" } });
    expect(tick).toMatchObject({ fate: "committed", released: 3, roundTrips: { session: 2, oneShot: 2 } });
    expect(starts).toEqual([]);
    expect(await attempts(world)).toEqual(["1:1 released", "2:1 released", "3:1 released"]);
    expect(await world.rows("select distinct state, attempt, failures, suspect from pgclaim.job")).toEqual([
      { state: "ready", attempt: 1, failures: 0, suspect: false },
    ]);
    expect(await world.locks()).toBe(0);
    expect(await invoke(claimer)).toMatchObject({ done: 3, crashed: 0 });
    expect(starts).toEqual(["1:2", "2:2", "3:2"]);
    await expectWhole(world, { effects: [1, 2, 3] });
  });

  it("that arrives after its tick burned the number grants nothing", async () => {
    const world = await setup();
    await effectTable(world);
    const { job, starts } = counted();
    const net = await wire(world, transport);
    const claimer = net.claimer({ jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    const go = gate();
    net.breakOneShot({ contains: "fence_v1", at: "before", how: { hold: go.promise }, times: 2 });
    expect(workTick(await invoke(claimer, { within: 6_000 }))).toMatchObject({ fate: "committed", released: 2 });
    go.open();
    await noOneShots(world);
    expect(await attempts(world)).toEqual(["1:1 released", "2:1 released"]);
    expect(starts).toEqual([]);
    await drain(world, claimer, [1, 2]);
    expect(starts).toEqual(["1:2", "2:2"]);
    await expectWhole(world, { effects: [1, 2] });
  });

  it("that arrives after its session is lost and settled grants nothing", async () => {
    const world = await setup();
    await effectTable(world);
    const { job, starts } = counted();
    const net = await wire(world, transport);
    const claimer = net.claimer({ jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    const go = gate();
    const fault = net.breakOneShot({ contains: "fence_v1", at: "before", how: { hold: go.promise }, times: 2 });
    const invocation = invoke(claimer, { within: 8_000 });
    await fault.fired;
    const [pid] = await claimingBackends(world);
    await world.sql.query("select pg_terminate_backend($1)", [pid]);
    const tick = workTick(await invocation);
    expect(tick.fate).toBe("lost");
    expect(results(tick)).toEqual(["interrupted", "interrupted"]);
    go.open();
    await noOneShots(world);
    expect(await attempts(world)).toEqual(["1:1 interrupted", "2:1 interrupted"]);
    expect(starts).toEqual([]);
    await drain(world, claimer, [1, 2]);
    await expectWhole(world, { effects: [1, 2] });
  });
});

describe("a fence that arrives after its sender's death", () => {
  it("grants nothing that runs, and the job is done by another", async () => {
    const world = await setup();
    await effectTable(world);
    const { claimer, fault, runner, go } = await heldSender(world);
    await fault.fired;
    runner.kill();
    expect(await runner.ended).toBeNull();
    await eventually(async () => expect(await world.locks()).toBe(0));
    go.open();
    // The number is on record and nobody holds the job: a crash, known without a clock, to the late fence's own reaper too.
    await eventually(async () => expect(await attempts(world)).toEqual(["1:1 crashed"]));
    await noOneShots(world);
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
    expect(await attempts(world)).toEqual(["1:1 crashed", "1:2 done"]);
    await expectWhole(world, { effects: [1] });
  });

  it("finds its number taken when another has run the job meanwhile", async () => {
    const world = await setup();
    await effectTable(world);
    const { claimer, fault, runner, go } = await heldSender(world);
    await fault.fired;
    runner.kill();
    await runner.ended;
    await eventually(async () => expect(await world.locks()).toBe(0));
    expect(await invoke(claimer)).toMatchObject({ crashed: 0, done: 1 });
    go.open();
    await noOneShots(world);
    expect(await attempts(world)).toEqual(["1:1 done"]);
    expect(await effects(world)).toEqual([1]);
  });
});

/** A process that has claimed a job, and whose fence the bridge holds. */
async function heldSender(world: Awaited<ReturnType<typeof setup>>) {
  const job = defineJob({
    kind: "innocent",
    payload: numbered,
    async run({ payload: { n }, tx }) {
      await effect(tx, n);
    },
  });
  const claimer = world.claimer("pg", { jobs: [job] });
  const go = gate();
  const fault = world.bridge.breakSql({ contains: "fence_v1", at: "before", how: { hold: go.promise } });
  const runner = startRunner(world, "neon");
  await runner.ended; // registers the kinds, finds nothing
  await claimer.enqueue(job, { n: 1 });
  return { claimer, fault, go, runner: startRunner(world, "neon") };
}

/** Until whatever was held has run and gone. */
async function noOneShots(world: Awaited<ReturnType<typeof setup>>): Promise<void> {
  await eventually(async () => expect(await connections(world)).toBe(0));
}
