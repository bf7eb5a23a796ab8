// What can happen beside the session while scheduled() runs: to its one-shots, and in its handlers.

import { describe, expect, it } from "vitest";
import { endsWithin, eventually } from "../support/gate.ts";
import { boundMs, type Failure, names, settlesDespite } from "./settles.ts";
import { expectAllDone, never, setupLab, shortLimits } from "./support.ts";

const always = Number.POSITIVE_INFINITY;

const failures: Failure[] = [
  {
    what: "wake never gets an answer",
    arrange: (lab) => void lab.bridge.breakSql({ contains: "wake_v1", at: "before", how: "hang", times: always }),
    code: "PGCLAIM_CONNECT_FAILED",
  },
  {
    what: "wake's request is reset",
    arrange: (lab) => void lab.bridge.breakSql({ contains: "wake_v1", at: "before", how: "reset", times: always }),
    code: "PGCLAIM_CONNECT_FAILED",
    withinMs: 3_000,
  },
  {
    what: "the proxy answers wake with 500",
    arrange: (lab) => void lab.bridge.breakSql({ contains: "wake_v1", at: "before", how: "http-500", times: always }),
    code: "PGCLAIM_CONNECT_FAILED",
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

settlesDespite(failures);

describe("scheduled() rejects", () => {
  it("when the password is wrong, and never says it", async () => {
    const lab = await setupLab();
    await lab.enqueue("call", names);
    const url = new URL(lab.url);
    url.password = "hunter2";
    const worker = await lab.start({ bindings: { DATABASE_URL: url.toString() } });
    const { outcome, report } = await endsWithin(3_000, worker.cron(), "scheduled()");
    expect([outcome, report.error?.code]).toEqual(["exception", "PGCLAIM_AUTHENTICATION_FAILED"]);
    expect(JSON.stringify(worker.log)).not.toContain("hunter2");
    expect(lab.bridge.stats).toMatchObject({ wsOpened: 0, sqlRequests: 1 });
  });
});

describe("an isolate whose handler never ended", () => {
  // workerd ends the handler together with its invocation, so it never settles and its end is never heard of.
  it("runs suspects again once the limit for such handlers has passed", async () => {
    const lab = await setupLab();
    const worker = await lab.start({ settings: { limits: { ...shortLimits.limits, unsettled: "2s" } } });
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

    await eventually(async () => {
      await endsWithin(boundMs, worker.cron(), "a later scheduled()");
      await expectAllDone(lab, ["ignores", "suspect"]);
    }, 10_000);
  });
});
