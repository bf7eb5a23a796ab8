// workerd killed (SIGKILL) where test/workerd/crash.test.ts does not: before anything is claimed, between two turns, when all
// is committed, while it was called over HTTP, and with two isolates under way in the one process. And a server restarted
// under workerd, whose isolates live on.

import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { endsWithin, eventually, gate } from "../support/gate.ts";
import {
  expectAllDone,
  type Instance,
  type Lab,
  namesOf,
  never,
  secrets,
  setupLab,
  soonMs,
  type WorkerSettings,
} from "../workerd/support.ts";
import { everyStage, type OwnServer, ownServer } from "./server.ts";

vi.setConfig({ testTimeout: 60_000 }); // a busy machine has room

/** Nothing in here ends by itself within a test. */
const longLimits: WorkerSettings = {
  budget: { cron: "10m", http: "10m" },
  limits: { connect: "60s", oneShot: "60s", message: "60s", serverGrace: "10m" },
};
const names = namesOf(3);
const terminate = "X\u0000\u0000\u0000\u0004";

/** Of the database after the kill: what is left, and so what the next trigger finds. */
interface Left {
  readonly attempts: readonly string[];
  readonly crashed: number;
  readonly done: number;
}
const nothing: Left = { attempts: [], crashed: 0, done: 3 };
const open: Left = { attempts: names.map((name) => `${name} 1 open`), crashed: 3, done: 3 };
const committed: Left = { attempts: names.map((name) => `${name} 1 done`), crashed: 0, done: 0 };

interface Stage {
  readonly what: string;
  readonly kind?: "call" | "write";
  /** Holds the invocation exactly there; resolves when it stands. */
  readonly hold: (lab: Lab) => Promise<unknown>;
  readonly left: Left;
}

const onSession =
  (contains: string, at: "before" | "after", skip = 0) =>
  (lab: Lab) =>
    lab.bridge.breakSession({ contains, at, skip, how: { hold: never() } }).fired;

const stages: readonly Stage[] = [
  {
    what: "in its wake, which has not arrived",
    hold: (lab) => lab.bridge.breakSql({ contains: "wake_v1", at: "before", how: { hold: never() } }).fired,
    left: nothing,
  },
  {
    what: "in its wake, whose answer is on the way",
    hold: (lab) => lab.bridge.breakSql({ contains: "wake_v1", at: "after", how: { hold: never() } }).fired,
    left: nothing,
  },
  {
    what: "while it connects",
    hold: (lab) => lab.bridge.breakConnect({ how: "black-hole" }).fired,
    left: nothing,
  },
  { what: "when its claim was sent and has not arrived", hold: onSession("claim_v1", "before"), left: nothing },
  {
    what: "when the savepoint of its first turn was sent",
    hold: onSession("savepoint pgclaim_turn", "before"),
    left: open,
  },
  {
    what: "when the first turn is over and the second one is open",
    hold: onSession("end_turn_v1", "after"),
    left: open,
  },
  { what: "in its last turn, after the writes of all", hold: onSession("end_turn_v1", "before", 2), left: open },
  { what: "after COMMIT, when it says goodbye", hold: onSession(terminate, "before"), left: committed },
];

/** Called over HTTP an invocation is the same one, so that CI kills it at two stages only; PGCLAIM_KILLS=all at each. */
const overHttp = stages.filter(({ what }) => everyStage || /connects|second one/.test(what));
const cases = [
  ["scheduled", stages],
  ["POST /api/trigger", overHttp],
] as const;

describe.each(cases)("workerd, in %s, killed", (how, at) => {
  it.each(at)("$what", async ({ hold, left }) => {
    const lab = await setupLab();
    await lab.enqueue("call", names);
    const victim = await lab.start({ settings: longLimits });
    const standing = hold(lab);
    const running = trigger(victim, how).then(
      () => "it ended",
      (error: unknown) => String(error),
    );
    await endsWithin(soonMs, standing, "getting to where it is killed");
    if (left === committed) await eventually(async () => expect(await lab.effects()).toEqual(names));
    await victim.kill();
    expect(await endsWithin(soonMs, running, "the killed invocation")).toMatch(/ended before it answered/);
    await lab.locksFree();
    expect(await lab.effects()).toEqual(left === committed ? names : []);
    expect(await lab.attempts()).toEqual(left.attempts);
    lab.bridge.clearFaults();
    const next = await lab.start({ settings: longLimits });
    const { outcome, report } = await endsWithin(soonMs, next.cron(), "the next scheduled()");
    expect(outcome).toBe("ok");
    expect(report).toMatchObject({ crashed: left.crashed, done: left.done, retried: 0, dead: 0 });
    await expectAllDone(lab, names);
  });
});

function trigger(instance: Instance, how: "scheduled" | "POST /api/trigger"): Promise<unknown> {
  if (how === "scheduled") return instance.scheduled();
  const headers = { authorization: `Bearer ${secrets.PGCLAIM_TRIGGER_SECRET}` };
  return instance.fetch("/api/trigger", { method: "POST", headers });
}

describe("a process with several isolates", () => {
  it("killed with a tick in each: all of their jobs are free at once and done once", async () => {
    const lab = await setupLab();
    const all = namesOf(12);
    await lab.enqueue("call", all);
    const victim = await lab.start({ settings: { ...longLimits, batch: 4 }, isolates: 3 });
    lab.outside.answer(({ instance }) => (instance === victim.name ? never() : "ok"));
    const running = [0, 1, 2].map((isolate) => victim.scheduled({}, isolate).catch(() => "killed"));
    await lab.outside.reached(all.length);
    expect(await lab.locks()).toBe(all.length);
    await victim.kill();
    expect(await endsWithin(soonMs, Promise.all(running), "the killed scheduled()s")).toEqual(Array(3).fill("killed"));
    await lab.locksFree();
    const next = await lab.start({ settings: longLimits });
    const { report } = await endsWithin(soonMs, next.cron(), "the next scheduled()");
    expect(report).toMatchObject({ crashed: 12, done: 12 });
    await expectAllDone(lab, all);
  });
});

describe("a server restarted under workerd", () => {
  let own: OwnServer;
  beforeAll(async () => {
    own = await ownServer();
  });
  afterAll(() => own.server.stop());

  it.each(["fast", "immediate"] as const)(
    "(%s) in the middle of its handlers: scheduled() rejects with a code, and the same isolate does the work",
    async (how) => {
      const lab = await setupLab(own);
      await lab.enqueue("call", names);
      const worker = await lab.start();
      const held = gate<"ok">();
      lab.outside.answer(({ attempt }) => (attempt === 1 ? held.promise : "ok"));
      const running = worker.cron();
      await lab.outside.reached(names.length);
      await own.restart(how);
      await lab.reconnect();
      const { outcome, report } = await endsWithin(soonMs, running, "scheduled()");
      expect(outcome).toBe("exception");
      expect(report.error?.code).toMatch(/^PGCLAIM_(TX_LOST|OUTCOME_UNKNOWN)$/);
      const next = await endsWithin(soonMs, worker.cron(), "the next scheduled()");
      expect(next).toMatchObject({ outcome: "ok", report: { done: 3 } });
      await expectAllDone(lab, names);
    },
  );
});
