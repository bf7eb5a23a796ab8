// A session that falls silent without a word: the server keeps its transaction and its locks, because it never hears of
// anything. What bounds that are the limits which the claim set with SET LOCAL: the invocation's budget and a grace.

import { describe, expect, it } from "vitest";
import { endsWithin, gate } from "../support/gate.ts";
import { expectAllDone, type Lab, namesOf, never, setupLab, shortLimits, soonMs } from "./support.ts";
import type { Order } from "./workers/kinds.ts";

const names = namesOf(3);

/** What idle_in_transaction_session_timeout was set to by the claim: the budget in milliseconds, and the grace. */
const keptMs = (budgetMs: number) => budgetMs + 500;
/** For a loaded machine: the server's timer is exact, our looking is not. */
const slackMs = 5_000;

/** Swallows the newest session once all handlers call out. Answers the time of its claim at the latest. */
async function swallow(lab: Lab): Promise<number> {
  await lab.outside.reached(names.length);
  const claimedAt = performance.now();
  expect(await lab.locks()).toBe(names.length);
  lab.bridge.connections.at(-1)?.break("black-hole");
  return claimedAt;
}

describe("a session that falls silent while handlers wait", () => {
  it("is given up by its invocation, and its locks by the server, after the budget and a grace", async () => {
    const lab = await setupLab();
    await lab.enqueue("call", names);
    const held = gate<Order>();
    lab.outside.answer(({ attempt }) => (attempt === 1 ? held.promise : "ok"));
    const settings = { ...shortLimits, budget: { cron: "8s" } } as const;
    const [first, next] = [await lab.start({ settings }), await lab.start({ settings })];
    const running = first.cron();
    const claimedAt = await swallow(lab);
    held.open("ok");

    // The turn that is opened next gets no answer within limits.message; settle then says what became of the tick.
    const { outcome, report } = await endsWithin(4_000, running, "scheduled()");
    expect(outcome).toBe("exception");
    expect(report).toMatchObject({ ticks: [{ fate: "lost" }], error: { code: "PGCLAIM_NO_ANSWER" } });
    expect(await lab.attempts()).toEqual([
      // The first one held the turn, so it is not taken for innocent.
      `${names[0]} 1 open`,
      `${names[1]} 1 interrupted`,
      `${names[2]} 1 interrupted`,
    ]);

    // The server has not heard of it: what others find is busy, and stays untouched.
    expect(await lab.locks()).toBe(names.length);
    const meanwhile = await endsWithin(soonMs, next.cron(), "a scheduled() meanwhile");
    expect(meanwhile).toMatchObject({ outcome: "ok", report: { claimed: 0, crashed: 0 } });
    expect(meanwhile.report.skipped.busy).toBeGreaterThan(0);

    await lab.locksFree(claimedAt + keptMs(8_000) + slackMs - performance.now());
    const last = await endsWithin(soonMs, next.cron(), "the next scheduled()");
    expect(last.report).toMatchObject({ done: 3, crashed: 1 });
    await expectAllDone(lab, names, 1);
  });

  it("whose process is killed as well: the next trigger after the server's limit finds the crash", async () => {
    const lab = await setupLab();
    await lab.enqueue("call", names);
    lab.outside.answer(({ attempt }) => (attempt === 1 ? never() : "ok"));
    const settings = { ...shortLimits, budget: { cron: "4s" } } as const;
    const [victim, next] = [await lab.start({ settings }), await lab.start({ settings })];
    const running = victim.scheduled().catch(() => "killed");
    const claimedAt = await swallow(lab);
    await victim.kill();
    expect(await endsWithin(soonMs, running, "the killed scheduled()")).toBe("killed");

    // An open attempt whose lock is held looks like a running one, and nobody may think otherwise.
    const meanwhile = await endsWithin(soonMs, next.cron(), "a scheduled() meanwhile");
    expect(meanwhile.report).toMatchObject({ ended: "idle", crashed: 0 });
    expect(await lab.locks()).toBe(names.length);

    await lab.locksFree(claimedAt + keptMs(4_000) + slackMs - performance.now());
    const last = await endsWithin(soonMs, next.cron(), "the next scheduled()");
    expect(last.report).toMatchObject({ done: 3, crashed: 3 });
    await expectAllDone(lab, names, 1);
  });

  it("while a handler holds its turn: neither its writes nor its locks outlive the server's limit", async () => {
    const lab = await setupLab();
    await lab.enqueue("write", names);
    lab.outside.answer(({ attempt }) => (attempt === 1 ? never() : "ok"));
    const settings = { ...shortLimits, budget: { cron: "4s" } } as const;
    const [first, next] = [await lab.start({ settings }), await lab.start()];
    const running = first.cron();
    await lab.outside.reached(1);
    lab.bridge.connections.at(-1)?.break("black-hole");
    const { outcome, report } = await endsWithin(8_000, running, "scheduled()");
    expect([outcome, report.error?.code]).toEqual(["exception", "PGCLAIM_NO_ANSWER"]);
    expect(await lab.effects()).toEqual([]);
    await lab.locksFree(keptMs(4_000) + slackMs);
    const last = await endsWithin(soonMs, next.cron(), "the next scheduled()");
    expect(last.report).toMatchObject({ done: 3, crashed: 1 });
    await expectAllDone(lab, names, 1);
  });
});
