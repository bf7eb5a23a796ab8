// Two jobs of one key, small enough to follow: both in one transaction, and in two transactions whose commits are the other
// way round than their beginnings.

import type pg from "pg";
import { type Exhibit, main, type Row, type Stage, until } from "./stage.ts";
import { orderingSystems, type Payload, type System } from "./systems.ts";

const LIMIT_MS = 60_000;
const LOCK_TIMEOUT = "55P03";

/** Two connections of a system's callers; what the one begins, the other may overtake. */
interface Callers {
  readonly system: System;
  readonly early: pg.Client;
  readonly late: pg.Client;
}

/** Enqueues one pair of jobs of a key; `first` must run first. */
type Enqueue = (callers: Callers, pair: { readonly first: Payload; readonly second: Payload }) => Promise<void>;

async function callersOf(stage: Stage, system: System): Promise<Callers & { readonly url: string }> {
  const url = await stage.database({ bare: !system.name.startsWith("pgclaim") });
  await system.prepare(url);
  return { system, url, early: await stage.connect(url), late: await stage.connect(url) };
}

/** Enqueues pairs in each of the ways, then works, and counts for each way the pairs whose second job started first. */
async function wrongPairs(
  callers: Callers & { readonly url: string },
  pairs: number,
  ways: Readonly<Record<string, Enqueue>>,
): Promise<Record<string, string | number>> {
  const { system, url, early } = callers;
  const all = Object.entries(ways).flatMap(([column, enqueue], way) =>
    Array.from({ length: pairs }, (_, i) => {
      const n = 2 * (way * pairs + i);
      return { column, enqueue, first: { k: `k${n}`, n }, second: { k: `k${n}`, n: n + 1 } };
    }),
  );
  // Keys that have been used before: a key's first use has a cost of its own in some systems (see waits).
  for (const { first } of all) await system.enqueue(early, { k: first.k, n: -1 - first.n });
  for (const { enqueue, first, second } of all) await enqueue(callers, { first, second });
  const started: number[] = [];
  const stop = await system.work(url, async ({ n }) => {
    if (n >= 0) started.push(n);
  });
  const seen = () => new Set(started).size;
  await until(LIMIT_MS, () => (seen() === 2 * all.length ? true : null));
  await stop();
  if (seen() !== 2 * all.length) throw new Error(`${system.name}: ${seen()} of ${2 * all.length} jobs ran`);
  const wrong = all.filter(({ first, second }) => started.indexOf(second.n) < started.indexOf(first.n));
  return Object.fromEntries(
    Object.keys(ways).map((column) => [column, wrong.filter((pair) => pair.column === column).length]),
  );
}

/** Enqueues to new keys beside an open transaction that did so first: how many had to wait for its commit? */
async function waits({ system, early, late }: Callers, keys: number): Promise<number> {
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
  return waited;
}

const inOne: Enqueue = async ({ system, early }, { first, second }) => {
  await early.query("begin");
  await system.enqueue(early, first);
  await system.enqueue(early, second);
  await early.query("commit");
};

const afterTheOther: Enqueue = async ({ system, early, late }, { first, second }) => {
  await early.query("begin");
  await early.query("select now()"); // its transaction has begun, and so has its now()
  await late.query("begin");
  await system.enqueue(late, first);
  await late.query("commit");
  await system.enqueue(early, second);
  await early.query("commit");
};

const beforeTheOther: Enqueue = async ({ system, early, late }, { first, second }) => {
  await early.query("begin");
  await system.enqueue(early, second);
  await late.query("begin");
  await system.enqueue(late, first);
  await late.query("commit");
  await early.query("commit");
};

export const sameTransaction: Exhibit = {
  name: "same_transaction",
  title: "The same key twice in one transaction",
  says: "Each transaction enqueues two jobs of one key, one after the other. Wrong: the second one ran first.",
  async run(stage) {
    const pairs = stage.quick ? 20 : 100;
    const rows: Row[] = [];
    for (const system of orderingSystems(stage.peers)) {
      const wrong = await wrongPairs(await callersOf(stage, system), pairs, { "second ran first": inOne });
      rows.push({ system: system.name, figures: { pairs, ...wrong } });
    }
    return rows;
  },
};

export const invertedCommits: Exhibit = {
  name: "inverted_commits",
  title: "Commits the other way round than beginnings",
  says: "Two transactions, one key; the one that begins first commits last. In the first column it enqueues after the other one's commit was answered, in the second it enqueues first and commits last. Wrong: the job that was committed last ran first.",
  async run(stage) {
    const pairs = stage.quick ? 5 : 50;
    const newKeys = stage.quick ? 1 : 5;
    const rows: Row[] = [];
    for (const system of orderingSystems(stage.peers)) {
      const callers = await callersOf(stage, system);
      const waited = await waits(callers, newKeys);
      const wrong = await wrongPairs(callers, pairs, {
        "enqueued after the other's commit, ran first": afterTheOther,
        "committed last, ran first": beforeTheOther,
      });
      const column = "enqueuers to a new key that waited for the other";
      rows.push({ system: system.name, figures: { pairs, ...wrong, [column]: `${waited} of ${newKeys}` } });
    }
    return rows;
  },
};

if (import.meta.main) await main([sameTransaction, invertedCommits]);
