// The session goes away at every point of a tick, in every way a network has. Afterwards: the signal has aborted, the
// tick's fate is what the report says, the next invocations do the jobs, every effect is there exactly once, and no lock
// is left. Every run ends within a stated bound.

import { beforeEach, describe, expect, it } from "vitest";
import { defineJob } from "../../../src/index.ts";
import {
  attempts,
  claimingBackends,
  drain,
  effect,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  quick,
  rendezvous,
  results,
  upTo,
  watchUnhandled,
  wire,
  workTick,
} from "../../support/engine.ts";
import { endsWithin, eventually, gate } from "../../support/gate.ts";
import { connections, setup, transports, type World } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

/** Ends the one backend that holds job locks, from outside. */
async function terminate(world: World): Promise<void> {
  const [pid, ...others] = await claimingBackends(world);
  expect(others).toEqual([]);
  expect(await world.value("select pg_terminate_backend($1)", [pid])).toBe(true);
}

describe.each(transports)("a terminated backend over %s", (transport) => {
  it("aborts handlers that run outside at once; nobody is to blame, and the next invocation does them", async () => {
    const world = await setup();
    await effectTable(world);
    const meeting = rendezvous();
    const aborted: unknown[] = [];
    const both = gate();
    const job = defineJob({
      kind: "outside",
      payload: numbered,
      async run({ payload: { n }, tx, signal, job: { attempt } }) {
        if (attempt === 1) {
          signal.addEventListener(
            "abort",
            () => {
              aborted.push(signal.reason);
              if (aborted.length === 3) both.open();
            },
            { once: true },
          );
          await meeting.meet(n);
        }
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], limits: quick });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const invocation = invoke(claimer, { within: 3_000 });
    await Promise.all(upTo(3).map(meeting.arrived));
    await terminate(world);
    await endsWithin(1_000, both.promise, "the abort");
    for (const reason of aborted) expect(reason).toMatchObject({ code: "PGCLAIM_HANDLER_ABORTED" });
    const report = await invocation;
    expect(report).toMatchObject({ ended: "error", error: { code: "PGCLAIM_TX_LOST" } });
    expect(workTick(report)).toMatchObject({ fate: "lost", done: 0 });
    expect(results(workTick(report))).toEqual(["interrupted", "interrupted", "interrupted"]);
    expect(await attempts(world)).toEqual(["1:1 interrupted", "2:1 interrupted", "3:1 interrupted"]);
    expect(await world.locks()).toBe(0);
    // Deaf ones that go on after the loss reach nothing.
    for (const n of upTo(3)) meeting.release(n);
    expect(await invoke(claimer)).toMatchObject({ done: 3, crashed: 0 });
    await expectWhole(world, { effects: [1, 2, 3] });
  });

  it.each(["idle in its turn", "with its query running"])(
    "suspects the job whose turn it was, %s, and no other",
    async (how) => {
      const world = await setup();
      await effectTable(world);
      const meeting = rendezvous();
      const errors: unknown[] = [];
      const job = defineJob({
        kind: "turn",
        payload: numbered,
        async run({ payload: { n }, tx, job: { attempt } }) {
          await effect(tx, n);
          if (attempt > 1 || n > 1) return;
          const sleep = how === "with its query running" ? tx.query("select pg_sleep(60)") : Promise.resolve();
          sleep.catch((error: unknown) => errors.push(error));
          await meeting.meet(1);
          await sleep;
          await effect(tx, 99);
        },
      });
      const claimer = world.claimer(transport, { jobs: [job], limits: quick });
      await claimer.enqueueMany(
        job,
        upTo(3).map((n) => ({ n })),
      );
      const invocation = invoke(claimer, { within: 3_000 });
      await meeting.arrived(1);
      if (how === "with its query running") {
        await eventually(async () => {
          expect(
            await world.value(
              "select count(*)::integer from pg_stat_activity where query like 'select pg_sleep%' and state = 'active' and datname = current_database()",
            ),
          ).toBe(1);
        });
      }
      await terminate(world);
      const report = await invocation;
      expect(results(workTick(report))).toEqual(["unsettled", "interrupted", "interrupted"]);
      expect(await attempts(world)).toEqual(["1:1 open", "2:1 interrupted", "3:1 interrupted"]);
      meeting.release(1);
      await eventually(async () => {
        const next = await invoke(claimer);
        expect(next.crashed + next.done).toBeGreaterThan(0);
        expect(await attempts(world)).toContain("1:2 done");
      });
      expect(await world.value("select quarantined from pgclaim.attempt where job_id = 1 and n = 2")).toBe(true);
      await expectWhole(world, { effects: [1, 2, 3] });
      if (how === "with its query running") expect(errors).toHaveLength(1);
    },
  );

  it("opens one session for each invocation and leaves none, whatever happened to it", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "plain",
      payload: numbered,
      run: async ({ payload: { n }, tx }) => void (await effect(tx, n)),
    });
    const net = await wire(world, transport);
    const claimer = net.claimer({ jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    net.breakSession({ contains: "finish_v1", at: "before", how: "reset" });
    expect(workTick(await invoke(claimer)).fate).toBe("lost");
    await drain(world, claimer, [1, 2]);
    await eventually(async () => expect(await connections(world)).toBe(0));
  });
});

const points = [
  { name: "claim", contains: "claim_v1", at: "before", fate: "committed" },
  { name: "the answer to claim", contains: "claim_v1", at: "after", fate: "committed" },
  { name: "the message that opens a turn", contains: "savepoint pgclaim_turn", at: "before", fate: "lost" },
  { name: "the answer that opens a turn", contains: "savepoint pgclaim_turn", at: "after", fate: "lost" },
  { name: "a handler's query", contains: "insert into effect", at: "before", fate: "lost" },
  { name: "the answer to a handler's query", contains: "insert into effect", at: "after", fate: "lost" },
  { name: "the message that ends a turn", contains: "end_turn_v1", at: "before", fate: "lost" },
  { name: "the answer that ends a turn", contains: "end_turn_v1", at: "after", fate: "lost" },
  { name: "finish", contains: "finish_v1", at: "before", fate: "lost" },
  { name: "the answer to finish", contains: "finish_v1", at: "after", fate: "committed" },
] as const;

const limits = { ...quick, connect: "1500ms", message: "1s", reserve: "500ms", serverGrace: "500ms" } as const;

/** Points at which a silent connection shows something a broken one does not. */
const silent = [
  "claim",
  "the answer that opens a turn",
  "a handler's query",
  "the message that ends a turn",
  "finish",
  "the answer to finish",
];

describe.each(transports)("a session over %s", (transport) => {
  it.each([
    ...points.map((point) => ({ ...point, how: "reset" as const })),
    ...points.flatMap((point) => (silent.includes(point.name) ? [{ ...point, how: "black-hole" as const }] : [])),
  ])(
    "broken by $how at $name: the report is right, and every effect comes exactly once",
    async ({ contains, at, fate, how }) => {
      const world = await setup();
      await effectTable(world);
      const aborted: string[] = [];
      const job = defineJob({
        kind: "plain",
        payload: numbered,
        timeout: "500ms",
        async run({ payload: { n }, tx, signal }) {
          signal.addEventListener("abort", () => aborted.push(`${n}`), { once: true });
          await effect(tx, n);
        },
      });
      const net = await wire(world, transport);
      const claimer = net.claimer({ jobs: [job], limits });
      const healthy = world.claimer(transport, { jobs: [job], limits });
      await claimer.enqueueMany(
        job,
        upTo(3).map((n) => ({ n })),
      );
      const fault = net.breakSession({ contains, at, how });
      // Two connects, a claim, a turn, finish and settle at their limits, and the rest is milliseconds.
      // Short where the locks of a silent session have to run out, long where another session carries on.
      const report = await invoke(claimer, { budget: fate === "lost" ? "3500ms" : "10s", within: 14_000 });
      await endsWithin(1_000, fault.fired, "the fault");
      const tick = workTick(report);
      expect(tick.fate).toBe(fate);
      if (fate === "lost") {
        expect(report.ended).toBe("error");
        expect(report.error?.code).toMatch(/^PGCLAIM_(TX_LOST|NO_ANSWER)$/);
        expect(tick).toMatchObject({ claimed: 3, done: 0 });
        const blamed = contains === "finish_v1" ? "interrupted" : "unsettled";
        expect(results(tick)).toEqual([blamed, "interrupted", "interrupted"]);
        expect(await attempts(world)).toEqual([
          contains === "finish_v1" ? "1:1 interrupted" : "1:1 open",
          "2:1 interrupted",
          "3:1 interrupted",
        ]);
        // Whoever had not ended has heard of it.
        if (contains !== "finish_v1")
          expect(aborted).toEqual(contains === "end_turn_v1" ? ["2", "3"] : ["1", "2", "3"]);
      } else {
        expect(report).toMatchObject({ ended: "empty", done: 3 });
        expect(aborted).toEqual([]);
      }
      // A black hole keeps its transaction until the server's own limit: what was left of the budget, and the grace.
      await drain(world, healthy, [1, 2, 3], 15_000);
      await eventually(async () => expect(await world.locks()).toBe(0), 10_000);
      await expectWhole(world, { effects: [1, 2, 3] });
    },
  );

  it("leaves its locks to the server's own limit when the answer to claim is swallowed", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "plain",
      payload: numbered,
      timeout: "500ms",
      run: async ({ payload: { n }, tx }) => void (await effect(tx, n)),
    });
    const net = await wire(world, transport);
    const claimer = net.claimer({ jobs: [job], limits });
    const healthy = world.claimer(transport, { jobs: [job], limits });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    net.breakSession({ contains: "claim_v1", at: "after", how: "black-hole" });
    // The second session finds them busy: nobody has told the server that the first is dead.
    const report = await invoke(claimer, { budget: "3500ms", within: 6_000 });
    expect(report.skipped.busy).toBeGreaterThan(0);
    await drain(world, healthy, [1, 2, 3], 10_000);
    await expectWhole(world, { effects: [1, 2, 3] });
  });
});

describe("a WebSocket", () => {
  it.each(points)(
    "closed at $name: the report is right, and every effect comes exactly once",
    async ({ contains, at, fate }) => {
      const world = await setup();
      await effectTable(world);
      const job = defineJob({
        kind: "plain",
        payload: numbered,
        run: async ({ payload: { n }, tx }) => void (await effect(tx, n)),
      });
      const claimer = world.claimer("neon", { jobs: [job], limits: quick });
      await claimer.enqueueMany(
        job,
        upTo(3).map((n) => ({ n })),
      );
      const fault = world.bridge.breakSession({ contains, at, how: "ws-close" });
      const report = await invoke(claimer, { within: 5_000 });
      await endsWithin(1_000, fault.fired, "the fault");
      expect(workTick(report).fate).toBe(fate);
      await drain(world, claimer, [1, 2, 3]);
      await expectWhole(world, { effects: [1, 2, 3] });
    },
  );
});
