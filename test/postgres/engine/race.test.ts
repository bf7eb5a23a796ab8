// Many invocations at once, over both transports, on one set of jobs: every effect exactly once.

import { beforeEach, describe, expect, it } from "vitest";
import { defineJob } from "../../../src/index.ts";
import {
  effect,
  effectTable,
  expectWhole,
  invoke,
  makeDue,
  numbered,
  upTo,
  watchUnhandled,
} from "../../support/engine.ts";
import { setup } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

describe("two claimers", () => {
  it("race over 200 jobs with eight invocations at once, failures and hand-ons among them, and every effect is there once", async () => {
    const world = await setup();
    await effectTable(world);
    let running = 0;
    let most = 0;
    const job = defineJob({
      kind: "raced",
      payload: numbered,
      retry: { minBackoff: "1ms", maxBackoff: "1ms" },
      async run({ payload: { n }, tx, enqueue, job: { attempt } }) {
        running++;
        most = Math.max(most, running);
        try {
          await effect(tx, n);
          if (n % 10 === 0 && attempt === 1) throw new Error("once");
          // Every 25th hands on a second job.
          if (n % 25 === 0) await enqueue(job, { n: n + 1_001 });
        } finally {
          running--;
        }
      },
    });
    const claimers = [
      world.claimer("pg", { jobs: [job], batch: 7 }),
      world.claimer("neon", { jobs: [job], batch: 10 }),
    ] as const;
    await claimers[0].enqueueMany(
      job,
      upTo(200).map((n) => ({ n })),
    );
    const reports = await Promise.all(upTo(8).map((i) => invoke(claimers[i % 2 === 0 ? 0 : 1], { within: 25_000 })));
    for (const report of reports) expect(report.error).toBeUndefined();
    let done = reports.reduce((sum, report) => sum + report.done, 0);
    for (let i = 0; i < 5; i++) {
      await makeDue(world);
      done += (await invoke(claimers[0])).done;
    }
    const expected = [...upTo(200), ...upTo(8).map((i) => 25 * i + 1_001)];
    expect(done).toBe(expected.length);
    expect(most).toBeGreaterThan(1);
    expect(reports.filter((report) => report.claimed > 0).length).toBeGreaterThan(1);
    await expectWhole(world, { effects: expected });
    // No number was ever given twice, and every attempt belongs to one tick.
    expect(await world.value("select count(*)::integer from pgclaim.attempt where outcome = 'done'")).toBe(
      expected.length,
    );
    expect(await world.value("select count(*)::integer from pgclaim.attempt where outcome = 'crashed'")).toBe(0);
  });
});
