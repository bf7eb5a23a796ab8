// pgclaim, pg-boss and Graphile Worker behind one face: enqueue with an ordering key inside a caller's transaction, and work.

import { setTimeout as pause } from "node:timers/promises";
import pg from "pg";
import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import type { Peers, PgBoss } from "./peers.ts";
import { bossDb } from "./peers.ts";
import { claimerOf } from "./stage.ts";

export const workers = 8;

export interface Payload {
  readonly k: string;
  readonly n: number;
}

/** One job system, as a load sees it. */
export interface System {
  readonly name: string;
  /** Makes its schema in an empty database. */
  prepare(url: string): Promise<void>;
  /** Enqueues inside the caller's open transaction. */
  enqueue(client: pg.Client, payload: Payload): Promise<void>;
  /** Works until the answer is called. */
  work(url: string, run: (payload: Payload) => Promise<void>): Promise<() => Promise<void>>;
}

/** Each system with what it has for order: ordering keys, the policy key_strict_fifo, queue names. */
export function orderingSystems(peers: Peers | null): readonly System[] {
  return [pgclaim, ...(peers === null ? [] : [pgBoss(peers), graphileWorker(peers)])];
}

const pgclaim: System = {
  name: "pgclaim, ordering keys",
  async prepare(url) {
    await keyed(url, async () => {}).register();
  },
  async enqueue(client, payload) {
    await client.query("select from pgclaim.enqueue('exhibit', $1)", [JSON.stringify(payload)]);
  },
  async work(url, run) {
    let over = false;
    const loops = Array.from({ length: workers }, async () => {
      const own = keyed(url, run);
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

function keyed(url: string, run: (payload: Payload) => Promise<void>) {
  const job = defineJob({
    kind: "exhibit",
    payload: z.object({ k: z.string(), n: z.number() }),
    orderingKey: "key:{k}",
    retry: { minBackoff: "1s", maxBackoff: "1s" },
    run: ({ payload }) => run(payload),
  });
  return claimerOf(url, [job], { maxTicks: 1, batch: 5 });
}

function pgBoss({ boss: { name, PgBoss } }: Peers): System {
  let boss: PgBoss | null = null;
  const queue = "exhibit";
  return {
    name: `${name}, key_strict_fifo`,
    async prepare(url) {
      boss = new PgBoss({ connectionString: url, supervise: false, schedule: false });
      boss.on("error", () => {});
      await boss.start();
      await boss.createQueue(queue, { policy: "key_strict_fifo", retryLimit: 5, retryDelay: 1 });
    },
    async enqueue(client, payload) {
      await boss?.send(queue, payload, { singletonKey: payload.k, db: bossDb(client) });
    },
    async work(_, run) {
      let over = false;
      const loops = Array.from({ length: workers }, async () => {
        while (!over) {
          const [job] = (await boss?.fetch<Payload>(queue)) ?? [];
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

function graphileWorker({ graphile: { name, module, logger } }: Peers): System {
  return {
    name: `${name}, queue names`,
    prepare: (connectionString) => module.runMigrations({ connectionString, logger }),
    async enqueue(client, payload) {
      await client.query("select from graphile_worker.add_job('exhibit', $1::json, queue_name := $2)", [
        JSON.stringify(payload),
        payload.k,
      ]);
    },
    async work(connectionString, run) {
      const pgPool = ownPool(connectionString, workers + 2);
      const runner = await module.run({
        pgPool,
        logger,
        concurrency: workers,
        pollInterval: 100,
        noHandleSignals: true,
        taskList: { exhibit: (payload) => run(payload as Payload) },
      });
      return async () => {
        await runner.stop();
        await pgPool.end();
      };
    },
  };
}

/** A pool of ours, whose end waits for what a runner still has to write after its stop. */
export function ownPool(connectionString: string, max = 10): pg.Pool {
  const pool = new pg.Pool({ connectionString, max });
  pool.on("error", () => {});
  pool.on("connect", (client) => client.on("error", () => {}));
  return pool;
}
