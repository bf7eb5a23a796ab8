// Crashes for real: processes die by SIGKILL, and fresh ones take over. A job that kills its process ends as a dead letter,
// and every job that ran beside it ends done.

import { beforeEach, describe, expect, it } from "vitest";
import { defineJob } from "../../../src/index.ts";
import {
  attempts,
  effects,
  effectTable,
  expectWhole,
  invoke,
  makeDue,
  numbered,
  rendezvous,
  upTo,
  watchUnhandled,
  workTick,
} from "../../support/engine.ts";
import { eventually } from "../../support/gate.ts";
import { startRunner } from "../../support/process.ts";
import { isPooled, setup, transports, type World } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

/** Registers the runner's kinds and enqueues from SQL, as another program would. */
async function enqueue(world: World, jobs: readonly (readonly [kind: string, n: number])[]): Promise<void> {
  await world.sql.query("begin");
  for (const [kind, n] of jobs)
    await world.sql.query("select pgclaim.enqueue($1, jsonb_build_object('n', $2::integer))", [kind, n]);
  await world.sql.query("commit");
}

describe.each(transports)("a job that kills its process, over %s", (transport) => {
  it.each(["poison", "poison.in_turn"])(
    "(%s) ends as a dead letter after maxCrashes alone, and the nine beside it end done",
    async (kind) => {
      const world = await setup();
      await effectTable(world);
      expect(await startRunner(world, transport).ended).toMatchObject({ ended: "idle" });
      await enqueue(
        world,
        upTo(10).map((n) => [n === 5 ? kind : "innocent", n]),
      );
      let processes = 0;
      let deaths = 0;
      await eventually(async () => {
        processes++;
        if ((await startRunner(world, transport).ended) === null) deaths++;
        await makeDue(world);
        expect(await world.value("select count(*)::integer from pgclaim.job where state <> 'dead'")).toBe(0);
      }, 80_000);
      await expectWhole(world, { effects: upTo(10).filter((n) => n !== 5), dead: 1 });
      // Once beside the others, three times alone.
      expect(deaths).toBe(4);
      expect(processes).toBeLessThanOrEqual(8);
      expect(await world.rows("select dead_reason, attempt, failures, suspect from pgclaim.job")).toEqual([
        { dead_reason: "crashed", attempt: 4, failures: 0, suspect: true },
      ]);
      const of = async (id: number) => (await attempts(world)).filter((line) => line.startsWith(`${id}:`));
      expect(await of(5)).toEqual(upTo(4).map((n) => `5:${n} crashed`));
      expect(await world.rows("select n from pgclaim.attempt where job_id = 5 and quarantined order by n")).toEqual(
        [2, 3, 4].map((n) => ({ n })),
      );
      for (const n of upTo(10).filter((id) => id !== 5)) expect(await of(n)).toEqual([`${n}:1 crashed`, `${n}:2 done`]);
    },
    90_000,
  );
});

describe("a process killed while its handlers run", () => {
  it("frees its jobs at once: the next invocation counts the crash and runs them", async () => {
    const world = await setup();
    await effectTable(world);
    await startRunner(world, "pg").ended;
    await enqueue(world, [["stands", 1]]);
    const runner = startRunner(world, "pg");
    await runner.standing;
    const stands = defineJob({
      kind: "stands",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await tx.query("insert into effect values ($1)", [n]);
      },
    });
    const claimer = world.claimer("pg", { jobs: [stands] });
    // While it lives it is running, and nobody else's.
    expect(await invoke(claimer)).toMatchObject({ claimed: 0, crashed: 0, ended: "idle" });
    expect(await claimer.job("1")).toMatchObject({ state: "running", attempt: 0 });
    runner.kill();
    expect(await runner.ended).toBeNull();
    await eventually(async () => expect(await world.locks()).toBe(0));
    expect(await invoke(claimer)).toMatchObject({ crashed: 1, done: 1 });
    expect(await attempts(world)).toEqual(["1:1 crashed", "1:2 done"]);
    await expectWhole(world, { effects: [1] });
  });
});

if (isPooled)
  console.warn("NOT RUN: suspects by interruption. Through a pooler it is another interruption that counts.");

describe.each(transports)("suspects over %s", (transport) => {
  it("run one by one, after the normal work of the invocation", async () => {
    const world = await setup();
    await effectTable(world);
    const order: string[] = [];
    const job = defineJob({
      kind: "any",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        order.push(`${n}`);
        await tx.query("insert into effect values ($1)", [n]);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(6).map((n) => ({ n })),
    );
    await world.sql.query("update pgclaim.job set suspect = true where id <= 3");
    const report = await invoke(claimer);
    expect(report).toMatchObject({ done: 6 });
    expect(order).toEqual(["4", "5", "6", "1", "2", "3"]);
    expect(
      report.ticks.filter(({ quarantined, claimed }) => quarantined && claimed > 0).map(({ claimed }) => claimed),
    ).toEqual([1, 1, 1]);
    await expectWhole(world, { effects: upTo(6) });
  });

  it("get their turn although normal work never ends: time for one is kept", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "endless",
      payload: numbered,
      timeout: "400ms",
      async run({ payload: { n }, tx, enqueue }) {
        await tx.query("insert into effect values ($1)", [n]);
        if (n > 0) await enqueue(job, { n: n + 1 });
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], limits: { reserve: "300ms" } });
    await claimer.enqueue(job, { n: 0 });
    await world.sql.query("update pgclaim.job set suspect = true");
    await claimer.enqueue(job, { n: 1 });
    const report = await invoke(claimer, { budget: "4s" });
    expect(report.ticks.at(-1)).toMatchObject({ quarantined: true, done: 1 });
    expect(await effects(world)).toContain(0);
    expect((await effects(world)).length).toBeGreaterThan(1);
  });

  it("stay suspects through a hand-back, and are cleared by any handled end", async () => {
    const world = await setup();
    const meeting = rendezvous();
    const job = defineJob({
      kind: "any",
      payload: numbered,
      retry: { minBackoff: "1h", maxBackoff: "2h" },
      async run({ job: { attempt } }) {
        if (attempt === 1) await meeting.meet(1);
        throw new Error("handled");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], limits: { reserve: "300ms" } });
    await claimer.enqueue(job, { n: 1 });
    await world.sql.query("update pgclaim.job set suspect = true");
    const one = invoke(claimer, { budget: "16s" });
    await meeting.arrived(1);
    meeting.release(1);
    expect(await one).toMatchObject({ retried: 1 });
    expect(await world.rows("select suspect, failures from pgclaim.job")).toEqual([{ suspect: false, failures: 1 }]);
  });

  // Through a pooler the client may hear of its end before the backend has given its locks back: then the next one counts.
  it.skipIf(isPooled)(
    "are what a job becomes that was interrupted five times in a row, and it runs alone uncharged",
    async () => {
      const world = await setup();
      await effectTable(world);
      const job = defineJob({
        kind: "unlucky",
        payload: numbered,
        async run({ payload: { n }, tx, signal, job: { attempt } }) {
          // Its own transaction is not to blame: the backend is ended from outside, in nobody's turn.
          if (attempt <= 5) {
            const aborted = new Promise<void>((resolve) => {
              signal.addEventListener("abort", () => resolve(), { once: true });
            });
            await world.sql.query(
              "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())",
            );
            await aborted;
          }
          await tx.query("insert into effect values ($1)", [n]);
        },
      });
      const claimer = world.claimer(transport, { jobs: [job] });
      await claimer.enqueue(job, { n: 1 });
      for (const n of upTo(5)) {
        expect(await world.value("select suspect from pgclaim.job")).toBe(false);
        expect(await invoke(claimer)).toMatchObject({ ended: "error", crashed: 0 });
        expect((await attempts(world)).at(-1)).toBe(`1:${n} interrupted`);
      }
      expect(await world.value("select suspect from pgclaim.job")).toBe(true);
      const report = await invoke(claimer);
      expect(report).toMatchObject({ done: 1, crashed: 0 });
      expect(workTick(report).quarantined).toBe(true);
      await expectWhole(world, { effects: [1] });
    },
  );
});
