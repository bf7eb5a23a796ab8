// Two jobs of one key, small enough to follow: both in one transaction, and in two transactions whose commits are the other
// way round than their beginnings.

import type pg from "pg";
import { type Exhibit, main, type Row, type Stage, until } from "./stage.ts";
import { orderingSystems, type Payload, type System } from "./systems.ts";

const LIMIT_MS = 30_000;
const LOCK_TIMEOUT = "55P03";

/** One pair of jobs of a key: the one with the even number must run first. */
type Enqueue = (system: System, pair: { first: Payload; second: Payload }) => Promise<void>;

/** Enqueues pairs, then works, and counts the pairs whose second job started before their first. */
async function wrongPairs(stage: Stage, system: System, pairs: number, enqueue: (url: string) => Promise<Enqueue>) {
  const url = await stage.database({ bare: !system.name.startsWith("pgclaim") });
  await system.prepare(url);
  const one = await enqueue(url);
  // Keys that have been used before: a key's first use has a cost of its own in some systems (see waits).
  const warm = await stage.connect(url);
  for (let i = 0; i < pairs; i++) await system.enqueue(warm, { k: `k${i}`, n: -1 - i });
  for (let i = 0; i < pairs; i++) {
    await one(system, { first: { k: `k${i}`, n: 2 * i }, second: { k: `k${i}`, n: 2 * i + 1 } });
  }
  const started: number[] = [];
  const stop = await system.work(url, async ({ n }) => {
    if (n >= 0) started.push(n);
  });
  await until(LIMIT_MS, () => (new Set(started).size === 2 * pairs ? true : null));
  await stop();
  if (new Set(started).size !== 2 * pairs) return `${new Set(started).size} of ${2 * pairs} jobs ran`;
  return Array.from({ length: pairs }, (_, i) => started.indexOf(2 * i + 1) < started.indexOf(2 * i)).filter(Boolean)
    .length;
}

/** Enqueues to new keys beside an open transaction that did so first: how many had to wait for its commit? */
async function waits(stage: Stage, system: System, keys: number): Promise<number> {
  const url = await stage.database({ bare: !system.name.startsWith("pgclaim") });
  await system.prepare(url);
  const [early, late] = [await stage.connect(url), await stage.connect(url)];
  let waited = 0;
  for (let i = 0; i < keys; i++) {
    await early.query("begin");
    await system.enqueue(early, { k: `new${i}`, n: 0 });
    await late.query("begin; set local lock_timeout = '200ms'");
    try {
      await system.enqueue(late, { k: `new${i}`, n: 1 });
    } catch (error) {
      if ((error as { code?: string }).code !== LOCK_TIMEOUT) throw error;
      waited++;
    }
    await late.query("rollback");
    await early.query("rollback");
  }
  // Ends what prepare() may have started.
  await (await system.work(url, async () => {}))();
  return waited;
}

async function each(stage: Stage, column: string, pairs: number, enqueue: (url: string) => Promise<Enqueue>) {
  const figures: (readonly [string, Row["figures"]])[] = [];
  for (const system of orderingSystems(stage.peers)) {
    figures.push([system.name, { pairs, [column]: await wrongPairs(stage, system, pairs, enqueue) }]);
  }
  return figures;
}

export const sameTransaction: Exhibit = {
  name: "same_transaction",
  title: "The same key twice in one transaction",
  says: "Each transaction enqueues two jobs of one key, one after the other. Wrong: the second one ran first.",
  async run(stage) {
    const figures = await each(stage, "second ran first", stage.quick ? 20 : 100, async (url) => {
      const client = await stage.connect(url);
      return async (system, { first, second }) => {
        await client.query("begin");
        await system.enqueue(client, first);
        await system.enqueue(client, second);
        await client.query("commit");
      };
    });
    return figures.map(([system, own]) => ({ system, figures: own }));
  },
};

export const invertedCommits: Exhibit = {
  name: "inverted_commits",
  title: "Commits the other way round than beginnings",
  says: "Two transactions, one key; the one that begins first commits last. In the first column it enqueues after the other one's commit was answered, in the second it enqueues first and commits last. Wrong: the job that was committed last ran first.",
  async run(stage) {
    const pairs = stage.quick ? 5 : 50;
    const two = async (url: string): Promise<[pg.Client, pg.Client]> => [
      await stage.connect(url),
      await stage.connect(url),
    ];
    const after = await each(stage, "enqueued after the other's commit, ran first", pairs, async (url) => {
      const [early, late] = await two(url);
      return async (system, { first, second }) => {
        await early.query("begin");
        await early.query("select now()"); // its transaction has begun, and so has its now()
        await late.query("begin");
        await system.enqueue(late, first);
        await late.query("commit");
        await system.enqueue(early, second);
        await early.query("commit");
      };
    });
    const before = await each(stage, "committed last, ran first", pairs, async (url) => {
      const [early, late] = await two(url);
      return async (system, { first, second }) => {
        await early.query("begin");
        await system.enqueue(early, second);
        await late.query("begin");
        await system.enqueue(late, first);
        await late.query("commit");
        await early.query("commit");
      };
    });
    const newKeys = stage.quick ? 1 : 5;
    const rows: Row[] = [];
    for (const [i, system] of orderingSystems(stage.peers).entries()) {
      const waited = `${await waits(stage, system, newKeys)} of ${newKeys}`;
      const figures = {
        ...after[i]?.[1],
        ...before[i]?.[1],
        "enqueuers to a new key that waited for the other": waited,
      };
      rows.push({ system: system.name, figures });
    }
    return rows;
  },
};

if (import.meta.main) await main([sameTransaction, invertedCommits]);
