// Kills workerd for real (SIGKILL), at each place where an invocation can die, and lets another workerd go on. What must
// hold after each: the locks are free with nothing but the connection's end, the first trigger afterwards finds the dead
// attempts and does the jobs, effects are there once, calls outside are repeated only with the same key.
//
// That no clock decides is shown by order: the budget and every server-side limit of the transaction lie far behind the
// time these tests take, and still the first trigger after the kill gets the jobs.

import { describe, expect, it } from "vitest";
import type { ArmedFault } from "../../scripts/world/bridge.ts";
import { endsWithin, eventually, gate } from "../support/gate.ts";
import {
  expectAllDone,
  type Instance,
  type Lab,
  namesOf,
  never,
  setupLab,
  soonMs,
  type WorkerSettings,
} from "./support.ts";

/** Nothing in here ends by itself within a test. */
const longLimits: WorkerSettings = {
  budget: { cron: "10m", http: "10m" },
  limits: { connect: "60s", oneShot: "60s", message: "60s", serverGrace: "10m" },
};

const names = namesOf(3);

/** Two workerd processes; the second has been triggered while the first was alive, and got nothing. */
interface Pair {
  readonly victim: Instance;
  readonly next: Instance;
}

async function pair(lab: Lab, kind: string): Promise<Pair> {
  await lab.enqueue(kind, names);
  return { victim: await lab.start({ settings: longLimits }), next: await lab.start({ settings: longLimits }) };
}

/** Kills the victim in the middle of its scheduled(), and waits until its locks are gone. Answers how long that took. */
async function killInside(lab: Lab, victim: Instance, there: (running: Promise<unknown>) => Promise<unknown>) {
  const running = victim.scheduled().then(
    () => "it ended",
    (error: unknown) => String(error),
  );
  await endsWithin(soonMs, there(running), "getting to where it is killed");
  expect(await lab.locks()).toBe(names.length);
  const killedAt = performance.now();
  await victim.kill();
  expect(await endsWithin(soonMs, running, "the killed scheduled()")).toMatch(/ended before it answered/);
  await lab.locksFree();
  return Math.round(performance.now() - killedAt);
}

/** The first trigger after the kill does everything. */
async function takeOver(lab: Lab, next: Instance, found: { readonly crashed: number; readonly done: number }) {
  const { outcome, report } = await endsWithin(soonMs, next.cron(), "the next scheduled()");
  expect(outcome).toBe("ok");
  expect(report).toMatchObject({ ...found, ended: found.done === 0 ? "idle" : "empty", retried: 0, dead: 0 });
  await expectAllDone(lab, names);
  const idle = await endsWithin(soonMs, next.cron(), "the last scheduled()");
  expect(idle.report).toMatchObject({ ended: "idle", crashed: 0 });
}

const twice = (outcomes: readonly [string, string]) => names.flatMap((name) => outcomes.map((end) => `${name} ${end}`));

describe("an invocation that is killed", () => {
  it("in its handlers, before their external calls are answered: their jobs are free at once", async ({ annotate }) => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    lab.outside.answer(({ instance }) => (instance === victim.name ? never() : "ok"));
    const freeMs = await killInside(lab, victim, async () => {
      await lab.outside.reached(3);
      // While the holder lives, its jobs wake nobody: an open attempt whose lock is held is no crash.
      const meanwhile = await endsWithin(soonMs, next.cron(), "the scheduled() of a rival");
      expect(meanwhile.report).toMatchObject({ ended: "idle", claimed: 0, crashed: 0 });
      expect(await lab.attempts()).toEqual(names.map((name) => `${name} 1 open`));
    });
    await takeOver(lab, next, { crashed: 3, done: 3 });
    await annotate(`killed, locks free after ${freeMs} ms, taken by the first trigger after that`);
    expect(await lab.attempts()).toEqual(twice(["1 crashed", "2 done alone"]));
    expect(lab.outside.calls.map(({ name, attempt }) => `${name} ${attempt}`).sort()).toEqual(twice(["1", "2"]));
  });

  it("after some external calls were answered: those are repeated with the same key", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const answered: string[] = [];
    lab.outside.answer(async ({ instance, name }) => {
      if (instance !== victim.name) return "ok";
      if (name === names[2]) return never();
      answered.push(name);
      return "ok";
    });
    await killInside(lab, victim, () => lab.outside.reached(3));
    expect(answered.sort()).toEqual([names[0], names[1]]);
    await takeOver(lab, next, { crashed: 3, done: 3 });
    expect(lab.outside.calls).toHaveLength(6);
  });

  it("in its turn, after its write: the write is gone, and is there once in the end", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "write");
    lab.outside.answer(({ instance }) => (instance === victim.name ? never() : "ok"));
    await killInside(lab, victim, async () => {
      await lab.outside.reached(1);
      // It has written: a transaction id is assigned, and nobody else sees the row.
      const written =
        "select count(*)::int from pg_stat_activity where backend_xid is not null and datname = current_database()";
      expect(await lab.value(written)).toBe(1);
      expect(await lab.effects()).toEqual([]);
    });
    expect(await lab.effects()).toEqual([]);
    await takeOver(lab, next, { crashed: 3, done: 3 });
    expect(await lab.attempts()).toEqual(twice(["1 crashed", "2 done alone"]));
  });

  it("when finish was sent and has not arrived: nothing is committed", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const later = gate();
    const held = lab.bridge.breakSession({ contains: "finish_v1", at: "before", how: { hold: later.promise } });
    await killInside(lab, victim, () => held.fired);
    later.open();
    expect(await lab.effects()).toEqual([]);
    await takeOver(lab, next, { crashed: 3, done: 3 });
    expect(lab.outside.calls).toHaveLength(6);
  });

  it("when COMMIT was done and its answer is on the way: nothing is left to do", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const held = lab.bridge.breakSession({ contains: "finish_v1", at: "after", how: { hold: never() } });
    const running = victim.scheduled().catch(() => "killed");
    await endsWithin(soonMs, held.fired, "sending finish");
    await eventually(async () => expect(await lab.effects()).toEqual(names));
    await victim.kill();
    expect(await endsWithin(soonMs, running, "the killed scheduled()")).toBe("killed");
    await takeOver(lab, next, { crashed: 0, done: 0 });
    expect(lab.outside.calls).toHaveLength(3);
  });

  it("when the fence was delivered and its answer is on the way: attempts are on record, nothing has started", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const held = lab.bridge.breakSql({ contains: "fence_v1", at: "after", how: { hold: never() } });
    await killInside(lab, victim, () => held.fired);
    expect(await lab.attempts()).toEqual(names.map((name) => `${name} 1 open`));
    expect(lab.outside.calls).toEqual([]);
    await takeOver(lab, next, { crashed: 3, done: 3 });
    expect(lab.outside.calls.map(({ attempt }) => attempt)).toEqual([2, 2, 2]);
  });

  it("after its claim, before its fence: nothing is on record", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const held = lab.bridge.breakSession({ contains: "claim_v1", at: "after", how: { hold: never() } });
    await killInside(lab, victim, async () => {
      await held.fired;
      await eventually(async () => expect(await lab.locks()).toBe(3));
    });
    expect(await lab.attempts()).toEqual([]);
    await takeOver(lab, next, { crashed: 0, done: 3 });
    expect(lab.outside.calls.map(({ attempt }) => attempt)).toEqual([1, 1, 1]);
  });
});

describe("an invocation that lives and loses an answer", () => {
  it("of COMMIT: it asks, and reports the tick as committed", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const cut = lab.bridge.breakSession({ contains: "finish_v1", at: "after", how: "tcp-reset" });
    const { outcome, report } = await endsWithin(soonMs, victim.cron(), "scheduled()");
    expect(cut.struck).toBe(1);
    expect(outcome).toBe("ok");
    expect(report).toMatchObject({ done: 3, ticks: [{ fate: "committed" }, { fate: "empty" }] });
    await takeOver(lab, next, { crashed: 0, done: 0 });
    expect(lab.outside.calls).toHaveLength(3);
  });

  it("because COMMIT never arrived: it asks, reports the tick as lost, and charges nobody", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    lab.bridge.breakSession({ contains: "finish_v1", at: "before", how: "tcp-reset" });
    const { outcome, report } = await endsWithin(soonMs, victim.cron(), "scheduled()");
    expect(outcome).toBe("exception");
    expect(report).toMatchObject({
      ended: "error",
      done: 0,
      ticks: [{ fate: "lost" }],
      error: { code: "PGCLAIM_TX_LOST" },
    });
    await lab.locksFree();
    await takeOver(lab, next, { crashed: 0, done: 3 });
    expect(await lab.attempts()).toEqual(twice(["1 interrupted", "2 done"]));
  });

  it("of the fence: it asks once more, and runs everything once", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const cut = lab.bridge.breakSql({ contains: "fence_v1", at: "after", how: "reset" });
    const { outcome, report } = await endsWithin(soonMs, victim.cron(), "scheduled()");
    expect(cut.struck).toBe(1);
    expect(outcome).toBe("ok");
    expect(report).toMatchObject({
      done: 3,
      ticks: [{ fate: "committed", roundTrips: { oneShot: 2 } }, { fate: "empty" }],
    });
    await takeOver(lab, next, { crashed: 0, done: 0 });
    expect(lab.outside.calls.map(({ attempt }) => attempt)).toEqual([1, 1, 1]);
  });

  it.each(["before", "after"] as const)(
    "of the fence twice (%s it ran): it burns the numbers and starts nothing",
    async (at) => {
      const lab = await setupLab();
      const { victim, next } = await pair(lab, "call");
      const cut = lab.bridge.breakSql({ contains: "fence_v1", at, how: "reset", times: 2 });
      const { outcome, report } = await endsWithin(soonMs, victim.cron(), "scheduled()");
      expect(cut.struck).toBe(2);
      expect(outcome).toBe("exception");
      expect(report).toMatchObject({
        released: 3,
        done: 0,
        ticks: [{ fate: "committed" }],
        error: { code: expect.stringMatching(/^PGCLAIM_/) },
      });
      expect(lab.outside.calls).toEqual([]);
      expect(await lab.attempts()).toEqual(names.map((name) => `${name} 1 released`));
      await takeOver(lab, next, { crashed: 0, done: 3 });
      expect(await lab.attempts()).toEqual(twice(["1 released", "2 done"]));
    },
  );
});

// A fence that was under way when its invocation died, and arrives when the world has moved on.
describe("a late fence of a dead invocation", () => {
  /** Kills the victim while its fence is held at the bridge, before the database has seen it. */
  async function killBeforeFence(lab: Lab, victim: Instance) {
    const later = gate();
    const held = lab.bridge.breakSql({ contains: "fence_v1", at: "before", how: { hold: later.promise } });
    await killInside(lab, victim, () => held.fired);
    expect(await lab.attempts()).toEqual([]);
    return { deliver: () => delivered(lab, held, later.open) };
  }

  /** Lets the fence go, and waits until the database has run it: a trigger in the database says so. */
  async function delivered(lab: Lab, held: ArmedFault, open: () => void) {
    const listener = await lab.connect();
    const ran = new Promise<void>((resolve) => listener.once("notification", () => resolve()));
    await listener.query("listen attempt_statement");
    await lab.sql.query(
      `create function public.attempt_statement() returns trigger language plpgsql as
       $$ begin perform pg_notify('attempt_statement', ''); return null; end $$`,
    );
    // For each statement, so that it speaks also when nothing was inserted.
    await lab.sql.query(
      `create trigger says_so after insert on pgclaim.attempt
       for each statement execute function public.attempt_statement()`,
    );
    open();
    await endsWithin(soonMs, ran, "delivering the late fence");
    expect(held.struck).toBe(1);
  }

  it("grants nothing when another invocation has run the jobs to their end", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const fence = await killBeforeFence(lab, victim);
    expect((await endsWithin(soonMs, next.cron(), "scheduled()")).report).toMatchObject({ done: 3, crashed: 0 });
    await fence.deliver();
    expect(await lab.attempts()).toEqual(names.map((name) => `${name} 1 done`));
    await takeOver(lab, next, { crashed: 0, done: 0 });
    expect(lab.outside.calls).toHaveLength(3);
  });

  it("grants nothing when another invocation has failed the same numbers", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const fence = await killBeforeFence(lab, victim);
    // The second failure of a job waits, so that the loop of this invocation ends with the jobs unfinished.
    const held = gate();
    lab.outside.answer(async ({ attempt }) => {
      if (attempt === 1) return "throw";
      await held.promise;
      return "ok";
    });
    const running = next.cron();
    await lab.outside.reached(6); // the first attempts have failed, the second are under way
    await fence.deliver();
    expect(await lab.attempts()).toEqual(twice(["1 failed", "2 open"]));
    held.open();
    expect((await endsWithin(soonMs, running, "scheduled()")).report).toMatchObject({ done: 3, retried: 3 });
    await takeOver(lab, next, { crashed: 0, done: 0 });
    expect(lab.outside.calls.map(({ name, attempt }) => `${name} ${attempt}`).sort()).toEqual(twice(["1", "2"]));
  });

  it("starts nothing when it comes first: it closes itself what it opened, and no number is granted twice", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const fence = await killBeforeFence(lab, victim);
    await fence.deliver();
    // A fence does a wake's housekeeping too, and found the locks of its own jobs free.
    expect(await lab.attempts()).toEqual(names.map((name) => `${name} 1 crashed`));
    expect(lab.outside.calls).toEqual([]);
    await takeOver(lab, next, { crashed: 0, done: 3 });
    expect(await lab.attempts()).toEqual(twice(["1 crashed", "2 done alone"]));
    expect(lab.outside.calls.map(({ attempt }) => attempt)).toEqual([2, 2, 2]);
  });

  it("takes the numbers away from an invocation that has claimed and not fenced: it runs nothing", async () => {
    const lab = await setupLab();
    const { victim, next } = await pair(lab, "call");
    const fence = await killBeforeFence(lab, victim);
    const second = gate();
    const held = lab.bridge.breakSql({ contains: "fence_v1", at: "before", how: { hold: second.promise } });
    const running = next.cron();
    await endsWithin(soonMs, held.fired, "the second fence");
    expect(await lab.locks()).toBe(3);
    await fence.deliver();
    second.open();
    const { report } = await endsWithin(soonMs, running, "scheduled()");
    // Its own tick is over before it could know: the numbers belong to the dead one, and the same invocation goes on.
    expect(report.ticks[0]).toMatchObject({ fate: "committed", claimed: 3, done: 0 });
    expect(lab.outside.calls.filter(({ attempt }) => attempt === 1)).toEqual([]);
    await eventually(async () => {
      await endsWithin(soonMs, next.cron(), "a later scheduled()");
      expect(await lab.effects()).toEqual(names);
    });
    expect(await lab.attempts()).toEqual(twice(["1 crashed", "2 done alone"]));
    await expectAllDone(lab, names);
  });
});
