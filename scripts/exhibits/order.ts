// Order per key, side by side: one load on pgclaim, on pg-boss (policy key_strict_fifo) and on Graphile Worker (queue
// names), each through its own package and inside the enqueuers' own transactions. Four enqueuers hold transactions open;
// a job is out of order where it ran after one that must follow it: a later one of its own transaction, or one whose commit
// was sent after its own had been answered. That is counted from outside and asks nobody for places.
//
// The peers are no dependencies of pgclaim:
//   npm install --no-save --prefix /tmp/peers pg-boss@12 graphile-worker@0.18
//   node scripts/exhibits/order.ts --peers /tmp/peers [--transactions 240] [--seed 7]

import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import pg from "pg";
import * as z from "zod";
import { pgDatabase } from "../../src/adapters/node.ts";
import { migrate } from "../../src/cli/migrate.ts";
import { createClaimer, defineJob } from "../../src/index.ts";
import { resolveDatabase } from "../world/postgres.ts";

const keys = 10;
const enqueuers = 4;
const workers = 8;
/** One transaction in so many is rolled back. */
const rollbackIn = 20;
const drainLimitMs = 120_000;

interface Load {
  readonly transactions: number;
  readonly seed: number;
  /** One job in so many fails at its first try; 0 for none. */
  readonly failIn: number;
}

interface Payload {
  readonly k: string;
  readonly n: number;
}

/** One job system, as the load sees it. */
interface System {
  readonly name: string;
  /** Makes its schema in an empty database. */
  prepare(url: string): Promise<void>;
  /** Enqueues inside the caller's open transaction. */
  enqueue(client: pg.Client, payload: Payload): Promise<void>;
  /** Works until the answer is called. */
  work(url: string, run: (payload: Payload) => Promise<void>): Promise<() => Promise<void>>;
}

/** Numbers in [0, 1) from a seed (mulberry32). */
function draws(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client(url);
  client.on("error", () => {});
  await client.connect();
  return client;
}

const pgclaim: System = {
  name: "pgclaim",
  async prepare(url) {
    const client = await connect(url);
    await migrate({ client });
    await client.end();
    await claimer(url, async () => {}).register();
  },
  async enqueue(client, payload) {
    await client.query("select from pgclaim.enqueue('exhibit', $1)", [JSON.stringify(payload)]);
  },
  async work(url, run) {
    let over = false;
    const loops = Array.from({ length: workers }, async () => {
      const own = claimer(url, run);
      while (!over) {
        const report = await own.invoke({ type: "manual" }, { budget: "20s" });
        if (report.claimed === 0) await pause(20);
      }
    });
    return async () => {
      over = true;
      await Promise.all(loops);
    };
  },
};

function claimer(url: string, run: (payload: Payload) => Promise<void>) {
  const job = defineJob({
    kind: "exhibit",
    payload: z.object({ k: z.string(), n: z.number() }),
    orderingKey: "key:{k}",
    retry: { minBackoff: "1s", maxBackoff: "1s" },
    run: ({ payload }) => run(payload),
  });
  return createClaimer({ jobs: [job], database: pgDatabase(url), maxTicks: 1, batch: 5, log: () => {} });
}

interface PgBoss {
  on(event: "error", listener: () => void): void;
  start(): Promise<unknown>;
  stop(options: { readonly graceful: boolean }): Promise<unknown>;
  createQueue(name: string, options: Readonly<Record<string, unknown>>): Promise<unknown>;
  send(name: string, data: Payload, options: Readonly<Record<string, unknown>>): Promise<string | null>;
  fetch(name: string): Promise<readonly { readonly id: string; readonly data: Payload }[]>;
  complete(name: string, id: string): Promise<unknown>;
  fail(name: string, id: string): Promise<unknown>;
}

function pgBoss(module: { readonly PgBoss: new (options: Readonly<Record<string, unknown>>) => PgBoss }): System {
  let boss: PgBoss | null = null;
  const queue = "exhibit";
  return {
    name: "pg-boss, key_strict_fifo",
    async prepare(url) {
      boss = new module.PgBoss({ connectionString: url, supervise: false, schedule: false });
      boss.on("error", () => {});
      await boss.start();
      await boss.createQueue(queue, { policy: "key_strict_fifo", retryLimit: 5, retryDelay: 1 });
    },
    async enqueue(client, payload) {
      const db = { executeSql: (text: string, values: unknown[]) => client.query(text, values) };
      await boss?.send(queue, payload, { singletonKey: payload.k, db });
    },
    async work(_, run) {
      let over = false;
      const loops = Array.from({ length: workers }, async () => {
        while (!over) {
          const [job] = (await boss?.fetch(queue)) ?? [];
          if (job === undefined) {
            await pause(20);
            continue;
          }
          const done = await run(job.data).then(
            () => true,
            () => false,
          );
          if (done) await boss?.complete(queue, job.id);
          else await boss?.fail(queue, job.id);
        }
      });
      return async () => {
        over = true;
        await Promise.all(loops);
        await boss?.stop({ graceful: false });
      };
    },
  };
}

interface GraphileWorker {
  runMigrations(options: Readonly<Record<string, unknown>>): Promise<void>;
  run(options: Readonly<Record<string, unknown>>): Promise<{ stop(): Promise<void> }>;
  readonly Logger: new (factory: () => () => void) => unknown;
}

function graphileWorker(module: GraphileWorker): System {
  const logger = new module.Logger(() => () => {});
  return {
    name: "Graphile Worker, queue names",
    prepare: (connectionString) => module.runMigrations({ connectionString, logger }),
    async enqueue(client, payload) {
      await client.query("select from graphile_worker.add_job('exhibit', $1::json, queue_name := $2)", [
        JSON.stringify(payload),
        payload.k,
      ]);
    },
    async work(connectionString, run) {
      // A pool of ours, whose end waits for what the runner still has to write after its stop.
      const pgPool = new pg.Pool({ connectionString, max: workers + 2 });
      pgPool.on("error", () => {});
      pgPool.on("connect", (client) => client.on("error", () => {}));
      const runner = await module.run({
        pgPool,
        logger,
        concurrency: workers,
        pollInterval: 100,
        noHandleSignals: true,
        taskList: { exhibit: (payload: Payload) => run(payload) },
      });
      return async () => {
        await runner.stop();
        await pgPool.end();
      };
    },
  };
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

async function peers(folder: string | undefined): Promise<System[]> {
  if (folder === undefined) return [];
  const require = createRequire(join(resolve(folder), "package.json"));
  const load = async (name: string): Promise<unknown> => import(pathToFileURL(require.resolve(name)).href);
  return [
    pgBoss((await load("pg-boss")) as Parameters<typeof pgBoss>[0]),
    graphileWorker((await load("graphile-worker")) as GraphileWorker),
  ];
}

function argument(name: string): string | undefined {
  const i = process.argv.indexOf(name);
  return i === -1 ? undefined : process.argv[i + 1];
}

const transactions = Number(argument("--transactions") ?? 240);
const seed = Number(argument("--seed") ?? 7);
const server = await resolveDatabase();
const admin = await connect(server.url());
const table: Record<string, string | number>[] = [];
try {
  const systems = [pgclaim, ...(await peers(argument("--peers")))];
  if (systems.length === 1) console.log("Only pgclaim; see the head of this file for how to bring the peers.");
  for (const failIn of [0, 20]) {
    for (const system of systems) {
      const name = `pgclaim_exhibit_${process.pid}`;
      await admin.query(`create database ${name}`);
      const figures = await measure(system, server.url(name), { transactions, seed, failIn });
      await admin.query(`drop database ${name} with (force)`);
      table.push({
        system: system.name,
        failures: failIn === 0 ? "none" : `1 in ${failIn}`,
        jobs: figures.jobs,
        "out of order: of one transaction": figures.withinTransaction,
        "out of order: across commits": figures.acrossCommits,
        lost: figures.lost,
        twice: figures.twice,
      });
    }
  }
  console.log(`${keys} keys, ${enqueuers} enqueuers, ${workers} workers, ${transactions} transactions, seed ${seed}`);
  console.table(table);
} finally {
  await admin.end();
  await server.stop();
}
process.exit(0);
