// Order per key, side by side: one load on pgclaim, on pg-boss (policy key_strict_fifo) and on Graphile Worker (queue
// names), each through its own package and inside the enqueuers' own transactions. What is out of order is counted from
// outside and asks nobody for places.

import { setTimeout as pause } from "node:timers/promises";
import pg from "pg";
import { draws } from "../world/draws.ts";
import { type Exhibit, main, type Row } from "./stage.ts";
import { orderingSystems, type Payload, type System, workers } from "./systems.ts";

const keys = 10;
const enqueuers = 4;
/** One transaction in so many is rolled back. */
const rollbackIn = 20;
const drainLimitMs = 120_000;

interface Load {
  readonly transactions: number;
  readonly seed: number;
  /** One job in so many fails at its first try; 0 for none. */
  readonly failIn: number;
}

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client(url);
  client.on("error", () => {});
  await client.connect();
  return client;
}

interface Figures {
  readonly jobs: number;
  readonly lost: number;
  readonly twice: number;
  readonly withinTransaction: number;
  readonly acrossCommits: number;
}

interface Transaction {
  readonly sentAt: number;
  readonly ackedAt: number;
  readonly jobs: readonly Payload[];
}

/** Runs one load on one system in a database of its own and counts. */
async function measure(system: System, url: string, load: Load): Promise<Figures> {
  const admin = await connect(url);
  await admin.query("create table effect (serial bigserial, k text, n integer)");
  await system.prepare(url);
  const effects = new pg.Pool({ connectionString: url, max: workers });
  const draw = draws(load.seed);
  const fails = new Set<number>();
  const stop = await system.work(url, async ({ k, n }) => {
    if (fails.delete(n)) throw new Error("fails at its first try");
    await effects.query("insert into effect (k, n) values ($1, $2)", [k, n]);
  });

  let n = 0;
  const committed: Transaction[] = [];
  await Promise.all(
    Array.from({ length: enqueuers }, async (_, who) => {
      const own = draws(load.seed + 1 + who);
      const client = await connect(url);
      for (let i = 0; i < load.transactions / enqueuers; i++) {
        await client.query("begin");
        const jobs: Payload[] = [];
        for (let j = 1 + Math.floor(own() * 3); j > 0; j--) {
          const payload = { k: String(Math.floor(own() * keys)), n: ++n };
          if (load.failIn > 0 && Math.floor(draw() * load.failIn) === 0) fails.add(payload.n);
          await system.enqueue(client, payload);
          jobs.push(payload);
          // A transaction does other work as well.
          if (own() < 0.5) await client.query("select pg_sleep($1)", [own() * 0.02]);
        }
        if (Math.floor(own() * rollbackIn) === 0) {
          await client.query("rollback");
          continue;
        }
        const sentAt = performance.now();
        await client.query("commit");
        committed.push({ sentAt, ackedAt: performance.now(), jobs });
      }
      await client.end();
    }),
  );

  const expected = committed.reduce((sum, { jobs }) => sum + jobs.length, 0);
  const until = performance.now() + drainLimitMs;
  const done = async () => Number((await admin.query("select count(distinct n) as n from effect")).rows[0]?.n);
  while ((await done()) < expected && performance.now() < until) await pause(50);
  await stop();
  const { rows } = await admin.query<Payload>("select k, n from effect order by serial");
  await effects.end();
  await admin.end();
  return { jobs: expected, ...judge(rows, committed) };
}

function judge(effects: readonly Payload[], committed: readonly Transaction[]): Omit<Figures, "jobs"> {
  const of = new Map(committed.flatMap((transaction) => transaction.jobs.map((job) => [job.n, transaction] as const)));
  const seen = new Set<number>();
  const latestSent = new Map<string, number>();
  const lastOf = new Map<string, number>();
  let [withinTransaction, acrossCommits] = [0, 0];
  for (const { k, n } of effects) {
    const transaction = of.get(n);
    if (transaction === undefined || seen.has(n)) continue;
    seen.add(n);
    const own = `${k} ${transaction.sentAt}`;
    // Numbers ascend in the order of the calls.
    if ((lastOf.get(own) ?? 0) > n) withinTransaction++;
    else if ((latestSent.get(k) ?? 0) > transaction.ackedAt) acrossCommits++;
    lastOf.set(own, Math.max(lastOf.get(own) ?? 0, n));
    latestSent.set(k, Math.max(latestSent.get(k) ?? 0, transaction.sentAt));
  }
  return { lost: of.size - seen.size, twice: effects.length - seen.size, withinTransaction, acrossCommits };
}

export const order: Exhibit = {
  name: "order",
  title: "Order per key under a load",
  says: `${keys} keys, ${enqueuers} enqueuers that hold transactions open, ${workers} workers. Out of order: a job ran after one that must follow it, be it a later one of its own transaction or one whose commit was sent after its own had been answered.`,
  async run(stage) {
    const transactions = stage.quick ? 24 : 240;
    const rows: Row[] = [];
    for (const failIn of stage.quick ? [20] : [0, 20]) {
      for (const system of orderingSystems(stage.peers)) {
        const url = await stage.database({ bare: !system.name.startsWith("pgclaim") });
        const figures = await measure(system, url, { transactions, seed: 7, failIn });
        rows.push({
          system: system.name,
          figures: {
            "failing at first": failIn === 0 ? "none" : `1 job in ${failIn}`,
            jobs: figures.jobs,
            "out of order in one transaction": figures.withinTransaction,
            "out of order across commits": figures.acrossCommits,
            lost: figures.lost,
            twice: figures.twice,
          },
        });
      }
    }
    return rows;
  },
};

if (import.meta.main) await main([order]);
