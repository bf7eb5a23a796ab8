// settle and finish where the fate of a tick is not plain: COMMIT without an answer, a database nobody can ask, a finish
// that comes too late, and a finish that fails on its own account. `committed` and `lost` are said only when they are true.

import { beforeEach, describe, expect, it } from "vitest";
import * as z from "zod";
import { deadLetter, defineJob, done, snooze } from "../../../src/index.ts";
import {
  attempts,
  drain,
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  makeDue,
  numbered,
  plain,
  quick,
  results,
  upTo,
  watchUnhandled,
  wire,
  workTick,
} from "../../support/engine.ts";
import { endsWithin, eventually, gate } from "../../support/gate.ts";
import { setup, transports, type World } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

describe.each(transports)("COMMIT without an answer over %s", (transport) => {
  it("settles committed, and the report counts what each handler said", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "mixed",
      payload: z.object({ n: z.number(), end: z.string() }),
      async run({ payload: { n, end }, tx }) {
        await effect(tx, n);
        if (end === "throw") throw new Error("no");
        if (end === "snooze") return snooze("1h");
        return end === "deadLetter" ? deadLetter("enough") : done();
      },
    });
    const net = await wire(world, transport);
    const claimer = net.claimer({ jobs: [job] });
    await claimer.enqueueMany(
      job,
      ["done", "throw", "snooze", "deadLetter", "done"].map((end, i) => ({ n: i + 1, end })),
    );
    net.breakSession({ contains: "finish_v1", at: "after", how: "reset" });
    const report = await invoke(claimer, { within: 5_000 });
    expect(workTick(report)).toMatchObject({ fate: "committed", done: 2, retried: 1, snoozed: 1, dead: 1 });
    expect(report).toMatchObject({ ended: "empty", done: 2 });
    expect(report.error).toBeUndefined();
    expect(workTick(report).roundTrips).toEqual({ session: 2 + 5 + 1, oneShot: 2 });
    expect(await effects(world)).toEqual([1, 3, 5]);
    expect(await world.rows("select outcome from pgclaim.tick where report ->> 'claimed' = '5'")).toEqual([
      { outcome: "committed" },
    ]);
  });

  it.each([
    ["committed in truth", "after"],
    ["lost in truth", "before"],
  ] as const)(
    "says unknown while nobody can be asked, %s, and the next invocation finds the truth",
    async (_what, at) => {
      const world = await setup();
      await effectTable(world);
      const job = plain();
      const net = await wire(world, transport);
      const claimer = net.claimer({ jobs: [job], limits: { ...quick, settle: "800ms" } });
      const healthy = world.claimer(transport, { jobs: [job] });
      await claimer.enqueueMany(
        job,
        upTo(3).map((n) => ({ n })),
      );
      net.breakSession({ contains: "finish_v1", at, how: "reset" });
      const settle = net.breakOneShot({
        contains: "settle_v1",
        at: "before",
        how: "reset",
        times: Number.POSITIVE_INFINITY,
      });
      const report = await invoke(claimer, { within: 4_000 });
      await endsWithin(1_000, settle.fired, "settle");
      const tick = workTick(report);
      expect(tick).toMatchObject({ fate: "unknown", done: 0, error: { code: "PGCLAIM_OUTCOME_UNKNOWN" } });
      expect(report).toMatchObject({ ended: "error", error: { code: "PGCLAIM_OUTCOME_UNKNOWN" } });
      expect(results(tick)).toEqual(["unsettled", "unsettled", "unsettled"]);
      expect(tick.roundTrips.oneShot).toBeGreaterThan(2);
      if (transport === "neon") world.bridge.clearFaults();
      await drain(world, healthy, [1, 2, 3]);
      await expectWhole(world, { effects: [1, 2, 3] });
    },
  );

  it("asks again until it is answered, and settle may be answered twice", async () => {
    const world = await setup();
    await effectTable(world);
    const job = plain();
    const net = await wire(world, transport);
    const claimer = net.claimer({ jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    net.breakSession({ contains: "finish_v1", at: "before", how: "reset" });
    // The first two are carried out, and their answers lost.
    net.breakOneShot({ contains: "settle_v1", at: "after", how: "reset", times: 2 });
    const tick = workTick(await invoke(claimer, { within: 5_000 }));
    expect(tick.fate).toBe("lost");
    expect(tick.roundTrips.oneShot).toBe(1 + 3);
    expect(await attempts(world)).toEqual(["1:1 interrupted", "2:1 interrupted"]);
    await drain(world, claimer, [1, 2]);
    await expectWhole(world, { effects: [1, 2] });
  });
});

describe("a finish that arrives late", () => {
  it("cannot commit what settle has declared lost", async () => {
    const world = await setup();
    await effectTable(world);
    const job = plain();
    const net = await wire(world, "pg");
    const claimer = net.claimer({ jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    const go = gate();
    net.breakSession({ contains: "finish_v1", at: "before", how: { hold: go.promise } });
    expect(workTick(await invoke(claimer, { within: 6_000 })).fate).toBe("lost");
    // Its transaction still stands on the server, locks and effects in it, and now its COMMIT comes.
    expect(await world.locks()).toBe(2);
    go.open();
    await eventually(async () => expect(await world.locks()).toBe(0));
    expect(await effects(world)).toEqual([]);
    expect(await world.rows("select outcome from pgclaim.tick")).toEqual([{ outcome: "lost" }]);
    await drain(world, claimer, [1, 2]);
    await expectWhole(world, { effects: [1, 2] });
  });
});

describe.each(transports)("a finish that fails on its own account over %s", (transport) => {
  /** Fails at COMMIT, which no turn's end can see: the constraint is on a table of pgclaim's own. */
  const atCommit = `
    create function refuse() returns trigger language plpgsql as
      $$ begin if new.payload ->> 'n' = '2' then raise exception 'not this one' using errcode = 'P0001'; end if; return null; end $$;
    create constraint trigger refuse after insert on pgclaim.history deferrable initially deferred
      for each row execute function refuse();
  `;
  const inFinish = atCommit.replace("deferrable initially deferred", "");

  it.each([
    ["at COMMIT", atCommit],
    ["inside finish", inFinish],
  ])("%s: attempts stay open, quarantine finds the culprit, and the innocent end done", async (_where, trigger) => {
    const world = await setup();
    await effectTable(world);
    await world.sql.query(trigger);
    const job = defineJob({
      kind: "plain",
      payload: numbered,
      maxCrashes: 2,
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(4).map((n) => ({ n })),
    );
    const first = await invoke(claimer);
    expect(first).toMatchObject({ ended: "error", error: { code: "PGCLAIM_FINISH_FAILED" } });
    expect(results(workTick(first))).toEqual(upTo(4).map(() => "unsettled"));
    expect(await attempts(world)).toEqual(upTo(4).map((id) => `${id}:1 open`));
    expect(await world.locks()).toBe(0);
    let crashed = 0;
    await eventually(async () => {
      const report = await invoke(claimer);
      crashed += report.crashed;
      await makeDue(world);
      expect(await world.value("select count(*)::integer from pgclaim.job where state <> 'dead'")).toBe(0);
    });
    await expectWhole(world, { effects: [1, 3, 4], dead: 1 });
    expect(crashed).toBe(4 + 2);
    expect(await world.rows("select payload ->> 'n' as n, dead_reason, attempt, failures from pgclaim.job")).toEqual([
      { n: "2", dead_reason: "crashed", attempt: 3, failures: 0 },
    ]);
    expect(await quarantinedCrashes(world)).toEqual([{ job_id: "2", count: 2 }]);
  });
});

function quarantinedCrashes(world: World) {
  return world.rows(
    "select job_id, count(*)::integer from pgclaim.attempt where quarantined and outcome = 'crashed' group by job_id",
  );
}
