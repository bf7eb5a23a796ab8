// scheduled() never hangs. workerd does not end it while a socket of its invocation is open, so "it ended" proves that
// everything was closed. After each failure: it has settled within its bound, what it rejects with is in the log with a
// code, no socket and no lock stays, and the same isolate does the work at its next trigger.

import { describe, expect, it } from "vitest";
import { endsWithin } from "../support/gate.ts";
import { expectAllDone, type Instance, type Lab, namesOf, setupLab, soonMs, type WorkerSettings } from "./support.ts";

export const names = namesOf(2);

/**
 * The longest scheduled() may take under `shortLimits`: the budget, then one message and one settle to their limits, and
 * the close. Most failures take far less; this is what no failure exceeds.
 */
export const boundMs = 8_000 + 2_000 + 1_500 + 1_500 + 500;

export interface Failure {
  readonly what: string;
  /** Options of the Worker. Default: `shortLimits`. */
  readonly settings?: WorkerSettings;
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

/** One test for each failure. */
export function settlesDespite(failures: readonly Failure[]): void {
  describe("scheduled() settles", () => {
    it.for(failures)("when $what", { timeout: 60_000 }, async (failure) => {
      const lab = await setupLab();
      await lab.enqueue("call", names);
      const worker = await lab.start(failure.settings === undefined ? {} : { settings: failure.settings });
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
      // An error in a timer would have made the outcome an exception; a rejection that nobody handles is logged.
      expect(worker.log.filter(({ event }) => event === "text")).toEqual([]);

      lab.bridge.clearFaults();
      lab.outside.answer(() => "ok");
      // A black hole keeps its half-open connection until the server's own limits end the transaction.
      await lab.locksFree(failure.locksMs ?? soonMs);
      await expectNextWorks(lab, worker, failure);
    });
  });
}

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
