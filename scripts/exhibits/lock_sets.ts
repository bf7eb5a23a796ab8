// Two jobs need the same two names and list them the other way round.

import type pg from "pg";
import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import { claimerOf, type Exhibit, main, type Row, type Stage, value } from "./stage.ts";

const DEADLOCK = "40P01";

/** Two sessions in step: each its first name, then each its second one. */
async function inStep(stage: Stage, rounds: number, how: "wait" | "try"): Promise<Row> {
  const url = await stage.database({ bare: true });
  const [a, b] = [await stage.connect(url), await stage.connect(url)];
  const lock = how === "wait" ? "pg_advisory_xact_lock" : "pg_try_advisory_xact_lock";
  const take = async (client: pg.Client, key: number): Promise<boolean | string> =>
    value<unknown>(client, `select ${lock}($1)`, [key]).then(
      (got) => got !== false,
      (error: { code?: string }) => error.code ?? "",
    );
  let [deadlocks, nobody] = [0, 0];
  for (let i = 0; i < rounds; i++) {
    for (const client of [a, b]) await client.query("begin; set local deadlock_timeout = '100ms'");
    await take(a, 1);
    await take(b, 2);
    const got = await Promise.all([take(a, 2), take(b, 1)]);
    if (got.includes(DEADLOCK)) deadlocks++;
    else if (!got.includes(true)) nobody++;
    for (const client of [a, b]) await client.query("rollback");
  }
  return {
    system: how === "wait" ? "locks waited for, in the order listed" : "locks tried, in the order listed",
    figures: { rounds, deadlocks, "rounds in which nobody got both": nobody },
    remark: "by hand, on two sessions in step",
  };
}

async function pgclaim(stage: Stage, rounds: number): Promise<Row> {
  const url = await stage.database();
  const sql = await stage.connect(url);
  const deadlocks = () =>
    value<string>(sql, "select deadlocks from pg_stat_database where datname = current_database()");
  const before = Number(await deadlocks());
  let most = 0;
  let inside = 0;
  const job = defineJob({
    kind: "exhibit",
    payload: z.object({ one: z.string(), other: z.string() }),
    locks: ["{one}", "{other}"],
    async run() {
      most = Math.max(most, ++inside);
      await new Promise((resolve) => setImmediate(resolve));
      inside--;
    },
  });
  const claimer = () => claimerOf(url, [job], { batch: 1, maxTicks: 1 });
  let nobody = 0;
  for (let i = 0; i < rounds; i++) {
    await claimer().enqueueMany(job, [
      { one: "a", other: "b" },
      { one: "b", other: "a" },
    ]);
    const first = await Promise.all([claimer().invoke({ type: "manual" }), claimer().invoke({ type: "manual" })]);
    if (first.every(({ ticks }) => (ticks[0]?.claimed ?? 0) === 0)) nobody++;
    while (Number(await value(sql, "select count(*) from pgclaim.job")) > 0) await claimer().invoke({ type: "manual" });
  }
  if (most !== 1) throw new Error(`${most} handlers held the same two names`);
  return {
    system: "pgclaim, locks: two names",
    figures: { rounds, deadlocks: Number(await deadlocks()) - before, "rounds in which nobody got both": nobody },
    remark: "two invocations at once; the names are tried in sorted order, all or none",
  };
}

export const lockSets: Exhibit = {
  name: "lock_sets",
  title: "Unsorted lock sets",
  says: "Two jobs need the same two names and list them the other way round. pg-boss and Graphile Worker have one key or queue name a job, and so no such sets.",
  async run(stage) {
    return [
      await pgclaim(stage, stage.quick ? 5 : 20),
      await inStep(stage, stage.quick ? 2 : 10, "wait"),
      await inStep(stage, stage.quick ? 5 : 50, "try"),
    ];
  },
};

if (import.meta.main) await main([lockSets]);
