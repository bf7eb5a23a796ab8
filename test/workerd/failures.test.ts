// scheduled() never hangs. workerd does not end it while a socket of its invocation is open, so "it ended" proves that
// everything was closed. After each failure: it has settled within its bound, what it rejects with is in the log with a
// code, no socket and no lock stays, and the same isolate does the work at its next trigger.

import { describe, expect, it } from "vitest";
import type { BreakKind } from "../../scripts/world/bridge.ts";
import { endsWithin, eventually, gate } from "../support/gate.ts";
import { expectAllDone, type Instance, type Lab, namesOf, never, setupLab, soonMs } from "./support.ts";

const names = namesOf(2);
const always = Number.POSITIVE_INFINITY;

/**
 * The longest scheduled() may take under `shortLimits`: the budget, then one message and one settle to their limits, and
 * the close. Most failures take far less; this is what no failure exceeds.
 */
const boundMs = 8_000 + 2_000 + 1_500 + 1_500 + 500;

interface Failure {
  readonly what: string;
  /** Kind of the jobs. Default "call". */
  readonly kind?: string;
  /** Prepares the failure; what it answers goes on beside scheduled(). */
  readonly arrange: (lab: Lab) => undefined | Promise<unknown>;
  /** Code of the error that scheduled() rejects with; null where it must end well. */
  readonly code: string | null | RegExp;
  /** What the next scheduled() finds. Default: all of the jobs. */
  readonly left?: { readonly done: number; readonly crashed?: number };
  /** What is known of the time it takes, where it is much less than the bound. */
  readonly withinMs?: number;
  /** How long the server may keep the locks, where nobody can tell it that the session is over. */
  readonly locksMs?: number;
  /** Sessions the bridge has swallowed: it shows them as open for ever. Default 0. */
  readonly swallowed?: number;
}

const session = "select pid from pg_stat_activity where datname = current_database() and state = $1 and query like $2";

/** Ends the claiming session's backend when it is there. */
async function terminate(lab: Lab, state: "idle in transaction" | "active", query: string): Promise<void> {
  await eventually(async () => {
    const rows = await lab.rows<{ pid: number }>(session, [state, query]);
    expect(rows).toHaveLength(1);
    expect(await lab.value("select pg_terminate_backend($1)", [rows[0]?.pid])).toBe(true);
  });
}

const sessionBreaks = (["tcp-reset", "ws-close", "ws-terminate"] as const satisfies BreakKind[]).flatMap(
  (how): Failure[] => [
    {
      what: `the session breaks (${how}) at its claim, twice`,
      arrange: (lab) => void lab.bridge.breakSession({ contains: "claim_v1", at: "before", how, times: 2 }),
      code: "PGCLAIM_TX_LOST",
    },
    {
      what: `the session breaks (${how}) while handlers call out`,
      async arrange(lab) {
        const held = gate<"ok">();
        lab.outside.answer(() => held.promise);
        await lab.outside.reached(2);
        lab.bridge.connections.at(-1)?.break(how);
        // The handlers are never answered: losing the session is what ends them.
      },
      code: "PGCLAIM_TX_LOST",
    },
    {
      what: `the session breaks (${how}) before its finish`,
      arrange: (lab) => void lab.bridge.breakSession({ contains: "finish_v1", at: "before", how }),
      code: "PGCLAIM_TX_LOST",
    },
  ],
);

const failures: Failure[] = [
  {
    what: "the backend is terminated while it is idle in the transaction",
    async arrange(lab) {
      lab.outside.answer(() => never());
      await lab.outside.reached(2);
      await terminate(lab, "idle in transaction", "%claim_v1%");
    },
    code: "PGCLAIM_TX_LOST",
    withinMs: 3_000,
  },
  {
    what: "the backend is terminated while a handler's query runs",
    async arrange(lab) {
      lab.outside.answer(({ name }) => (name === names[0] ? "sleep-in-query" : "ok"));
      await terminate(lab, "active", "select pg_sleep%");
    },
    code: "PGCLAIM_TX_LOST",
    // The one that held the turn may be what killed the session, so it counts as a crash and runs alone.
    left: { done: 2, crashed: 1 },
    withinMs: 3_000,
  },
  {
    what: "the session breaks at its claim",
    arrange: (lab) => void lab.bridge.breakSession({ contains: "claim_v1", at: "before", how: "tcp-reset" }),
    code: null, // nothing was fenced, so it is tried once more at once
    left: { done: 0 },
  },
  ...sessionBreaks,
  {
    what: "the session falls silent at its claim",
    arrange: (lab) => void lab.bridge.breakSession({ contains: "claim_v1", at: "before", how: "black-hole", times: 2 }),
    code: "PGCLAIM_NO_ANSWER",
    swallowed: 2,
  },
  {
    what: "the session falls silent before its finish",
    arrange: (lab) => void lab.bridge.breakSession({ contains: "finish_v1", at: "before", how: "black-hole" }),
    code: "PGCLAIM_NO_ANSWER",
    locksMs: 15_000,
    swallowed: 1,
  },
  {
    what: "the session falls silent after its finish",
    arrange: (lab) => void lab.bridge.breakSession({ contains: "finish_v1", at: "after", how: "black-hole" }),
    code: null,
    left: { done: 0 },
    swallowed: 1,
  },
  {
    what: "the bridge refuses the session once",
    arrange: (lab) => void lab.bridge.breakConnect({ how: "refuse" }),
    code: null,
    left: { done: 0 },
  },
  {
    what: "the bridge refuses every session",
    arrange: (lab) => void lab.bridge.breakConnect({ how: "refuse", times: always }),
    code: "PGCLAIM_CONNECT_FAILED",
    withinMs: 3_000,
  },
  {
    what: "the bridge never answers the session's upgrade",
    arrange: (lab) => void lab.bridge.breakConnect({ how: "black-hole", times: always }),
    code: "PGCLAIM_CONNECT_FAILED",
  },
  {
    what: "wake never gets an answer",
    arrange: (lab) => void lab.bridge.breakSql({ contains: "wake_v1", at: "before", how: "hang", times: always }),
    code: /^PGCLAIM_(TX_LOST|NO_ANSWER)$/,
  },
  {
    what: "wake's request is reset",
    arrange: (lab) => void lab.bridge.breakSql({ contains: "wake_v1", at: "before", how: "reset", times: always }),
    code: "PGCLAIM_TX_LOST",
    withinMs: 3_000,
  },
  {
    what: "the proxy answers wake with 500",
    arrange: (lab) => void lab.bridge.breakSql({ contains: "wake_v1", at: "before", how: "http-500", times: always }),
    code: "PGCLAIM_TX_LOST",
    withinMs: 3_000,
  },
  {
    what: "the fence never gets an answer, and was not run",
    arrange: (lab) => void lab.bridge.breakSql({ contains: "fence_v1", at: "before", how: "hang", times: 2 }),
    code: "PGCLAIM_FENCE_FAILED",
  },
  {
    what: "the fence never gets an answer, and was run",
    arrange: (lab) => void lab.bridge.breakSql({ contains: "fence_v1", at: "after", how: "hang", times: 2 }),
    code: "PGCLAIM_FENCE_FAILED",
  },
  {
    what: "finish breaks and settle never gets an answer",
    arrange(lab) {
      lab.bridge.breakSession({ contains: "finish_v1", at: "before", how: "tcp-reset" });
      lab.bridge.breakSql({ contains: "settle_v1", at: "before", how: "hang", times: always });
      return undefined;
    },
    code: "PGCLAIM_OUTCOME_UNKNOWN",
    left: { done: 2, crashed: 2 },
  },
  {
    what: "a handler throws until its attempts are spent",
    arrange: (lab) => void lab.outside.answer(({ name }) => (name === names[0] ? "throw" : "ok")),
    code: null, // a handler's failure is its job's, not the invocation's
    left: { done: 0 },
  },
  {
    what: "a handler ignores its abort for ever",
    arrange: (lab) => void lab.outside.answer(({ attempt }) => (attempt === 1 ? "ignore-abort" : "ok")),
    code: null,
    left: { done: 0 },
  },
  {
    what: "a handler ignores its abort and waits for an answer from outside",
    arrange: (lab) =>
      void lab.outside.answer(({ stray, attempt }) =>
        stray ? never() : attempt === 1 ? "ignore-abort-in-fetch" : "ok",
      ),
    code: null,
    left: { done: 0 },
  },
  {
    what: "a handler's query never ends",
    arrange: (lab) =>
      void lab.outside.answer(({ name, attempt }) => (name === names[0] && attempt === 1 ? "sleep-in-query" : "ok")),
    code: null,
    left: { done: 0 },
  },
  {
    what: "a handler returns while its query still waits",
    arrange: (lab) => void lab.outside.answer(({ attempt }) => (attempt === 1 ? "forget-query" : "ok")),
    code: null,
    left: { done: 0 },
  },
  {
    what: "a handler returns while its call is still under way",
    arrange: (lab) => void lab.outside.answer(({ stray }) => (stray ? never() : "forget-fetch")),
    code: null,
    left: { done: 0 },
    withinMs: 3_000,
  },
];

describe("scheduled() settles", () => {
  it.for(failures)("when $what", { timeout: 60_000 }, async (failure) => {
    const lab = await setupLab();
    await lab.enqueue(failure.kind ?? "call", names);
    const worker = await lab.start();
    const arranged = failure.arrange(lab);
    const limitMs = failure.withinMs ?? boundMs;
    const { outcome, report } = await endsWithin(limitMs, worker.cron(), "scheduled()");
    await endsWithin(soonMs, Promise.resolve(arranged), "the failure itself");

    if (failure.code === null) expect([outcome, report.error]).toEqual(["ok", undefined]);
    else {
      expect(outcome).toBe("exception");
      expect(report).toMatchObject({ level: "error", ended: "error" });
      expect(report.error?.code).toMatch(failure.code);
      expect(report.error?.message).not.toBe("");
    }
    // Whatever is no line of ours is a runtime's complaint: an unhandled rejection, a send on a closed socket.
    expect(worker.log.filter(({ event }) => event === "text")).toEqual([]);

    lab.bridge.clearFaults();
    lab.outside.answer(() => "ok");
    // A black hole keeps its half-open connection until the server's own limits end the transaction.
    await lab.locksFree(failure.locksMs ?? soonMs);
    await expectNextWorks(lab, worker, failure);
  });
});

async function expectNextWorks(lab: Lab, worker: Instance, failure: Failure): Promise<void> {
  const { done, crashed = 0 } = failure.left ?? { done: names.length };
  const { outcome, report } = await endsWithin(boundMs, worker.cron(), "the next scheduled()");
  expect(outcome).toBe("ok");
  expect(report).toMatchObject({ ended: done === 0 ? "idle" : "empty", done, crashed });
  if (failure.what.includes("attempts are spent")) {
    expect(await lab.effects()).toEqual([names[1]]);
    expect(await lab.rows("select state, dead_reason from pgclaim.job")).toEqual([
      { state: "dead", dead_reason: "attempts" },
    ]);
    return;
  }
  await expectAllDone(lab, names, failure.swallowed);
}

describe("an isolate whose handler never ended", () => {
  it("runs suspects again at its next trigger, since nothing of an invocation lives on after it", async () => {
    const lab = await setupLab();
    const worker = await lab.start();
    await lab.enqueue("call", ["ignores"]);
    lab.outside.answer(({ attempt }) => (attempt === 1 ? "ignore-abort" : "ok"));
    await endsWithin(boundMs, worker.cron(), "scheduled()");

    await lab.enqueue("call", ["suspect"]);
    const victim = await lab.start();
    lab.outside.answer(({ instance }) => (instance === victim.name ? never() : "ok"));
    const running = victim.scheduled().catch(() => "killed");
    await lab.outside.reached(3);
    await victim.kill();
    await running;
    await lab.locksFree();

    const { report } = await endsWithin(boundMs, worker.cron(), "the next scheduled()");
    expect(report).toMatchObject({ crashed: 1, done: 1 });
    await expectAllDone(lab, ["ignores", "suspect"]);
  });
});
