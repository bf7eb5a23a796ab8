// A thousand jobs at the head are running. Is the one behind them found, and how much is read to find it?

import type pg from "pg";
import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import type { Peers } from "./peers.ts";
import { bossDb } from "./peers.ts";
import { claimerOf, type Exhibit, gate, main, type Row, type Stage, until, value } from "./stage.ts";
import { ownPool } from "./systems.ts";

const LIMIT_MS = 60_000;
/** Jobs of one holder's batch. */
const BATCH = 100;

/** Enqueues `count` jobs and has them run until the answer is called. */
type Hold = (count: number) => Promise<() => Promise<unknown>>;
/** Runs the one job that is left, over connections of its own that are closed at the end. */
type RunOne = () => Promise<boolean>;

interface Held {
  readonly system: string;
  readonly schema: string;
  readonly remark?: string;
  prepare(stage: Stage, url: string): Promise<{ hold: Hold; enqueueOne(): Promise<unknown>; runOne: RunOne }>;
}

const pgclaim: Held = {
  system: "pgclaim",
  schema: "pgclaim",
  remark: "tries the lock of each one; the peers' index leaves running jobs out, which is better",
  async prepare(stage, url) {
    void stage;
    const leave = gate();
    let standing = 0;
    let ran = false;
    const job = defineJob({
      kind: "exhibit",
      payload: z.object({ hold: z.boolean() }),
      timeout: "50s",
      async run({ payload: { hold } }) {
        if (!hold) ran = true;
        else {
          standing++;
          await leave.promise;
        }
      },
    });
    const claimer = (maxTicks = 1) => claimerOf(url, [job], { maxTicks, batch: BATCH, concurrency: BATCH });
    await claimer().register();
    return {
      async hold(count) {
        const jobs = Array.from({ length: count }, () => ({ hold: true }));
        if (count > 0) await claimer().enqueueMany(job, jobs);
        const holders: Promise<unknown>[] = [];
        for (let i = 0; i < count / BATCH; i++) {
          holders.push(claimer().invoke({ type: "cron", cron: "* * * * *", scheduledAt: null }));
          await until(LIMIT_MS, () => (standing >= Math.min(count, (i + 1) * BATCH) ? true : null));
        }
        if (standing !== count) throw new Error(`${standing} of ${count} jobs stand`);
        return () => {
          leave.open();
          return Promise.all(holders);
        };
      },
      enqueueOne: () => claimer().enqueue(job, { hold: false }),
      async runOne() {
        await claimer().invoke({ type: "manual" });
        return ran;
      },
    };
  },
};

function boss({ boss: { name, PgBoss } }: Peers): Held {
  return {
    system: name,
    schema: "pgboss",
    async prepare(stage, url) {
      const one = new PgBoss({ connectionString: url, supervise: false, schedule: false });
      one.on("error", () => {});
      await one.start();
      await one.createQueue("exhibit");
      stage.later(() => one.stop({ graceful: false }));
      return {
        async hold(count) {
          const sql = await stage.connect(url);
          for (let i = 0; i < count; i++) await one.send("exhibit", {}, { db: bossDb(sql) });
          if (count > 0) await one.fetch("exhibit", { batchSize: count });
          return async () => {};
        },
        enqueueOne: () => one.send("exhibit", {}),
        async runOne() {
          const pool = ownPool(url, 1);
          const other = new PgBoss({ db: bossDb(pool as unknown as pg.Client), supervise: false, schedule: false });
          await other.start();
          const [job] = await other.fetch<object>("exhibit");
          if (job !== undefined) await other.complete("exhibit", [job]);
          await other.stop({ graceful: false, close: false });
          await pool.end();
          return job !== undefined;
        },
      };
    },
  };
}

function graphile({ graphile: { name, module, logger } }: Peers): Held {
  return {
    system: name,
    schema: "graphile_worker",
    async prepare(stage, url) {
      await module.runMigrations({ connectionString: url, logger });
      const sql = await stage.connect(url);
      return {
        async hold(count) {
          if (count === 0) return async () => {};
          await sql.query("select graphile_worker.add_job('exhibit', '{}') from generate_series(1, $1)", [count]);
          const leave = gate();
          const pgPool = ownPool(url);
          const runner = await module.run({
            pgPool,
            noHandleSignals: true,
            taskList: { exhibit: () => leave.promise },
            // One fetch of as many; that is how this worker holds a thousand.
            preset: { worker: { concurrentJobs: 1, localQueue: { size: count }, logger } },
          });
          const locked = "select count(*) from graphile_worker._private_jobs where locked_at is not null";
          await until(LIMIT_MS, async () => ((await value<string>(sql, locked)) === String(count) ? true : null));
          return async () => {
            leave.open();
            await runner.stop();
            await pgPool.end();
          };
        },
        enqueueOne: () => sql.query("select from graphile_worker.add_job('exhibit', '{}')"),
        async runOne() {
          let ran = false;
          const pgPool = ownPool(url, 2);
          const taskList = {
            exhibit: async () => {
              ran = true;
            },
          };
          await module.runOnce({ pgPool, logger, noHandleSignals: true, taskList });
          await pgPool.end();
          return ran;
        },
      };
    },
  };
}

/** Blocks of a schema's tables and indexes that were touched so far. What is open counts when it is closed. */
const TOUCHED = `select coalesce(sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0)), 0)
  from pg_statio_all_tables where schemaname = $1`;

async function measure(stage: Stage, one: Held, count: number) {
  const url = await stage.database({ bare: one.system !== "pgclaim" });
  const { hold, enqueueOne, runOne } = await one.prepare(stage, url);
  const leave = await hold(count);
  await enqueueOne();
  const sql = await stage.connect(url);
  await sql.query(`analyze`);
  const others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
  const open = await value<string>(sql, others);
  const touched = async () => Number(await value(sql, TOUCHED, [one.schema]));
  const before = await touched();
  const startedAt = performance.now();
  const ran = await runOne();
  const ms = performance.now() - startedAt;
  // A backend tells its counts when it ends.
  await until(LIMIT_MS, async () => (Number(await value(sql, others)) <= Number(open) ? true : null));
  await sql.query("select pg_stat_clear_snapshot()");
  const blocks = (await touched()) - before;
  await leave();
  return { ran, ms, blocks };
}

export const lockedHead: Exhibit = {
  name: "locked_head",
  title: "1,000 running jobs at the head",
  says: "One process (for pgclaim: one invocation) runs the one job that is free, alone and then behind the running ones. Blocks are those of the system's tables and indexes, for the whole of its start, claim and completion.",
  async run(stage) {
    const { peers } = stage;
    const count = stage.quick ? 200 : 1_000;
    const rows: Row[] = [];
    for (const one of [pgclaim, ...(peers === null ? [] : [boss(peers), graphile(peers)])]) {
      const alone = await measure(stage, one, 0);
      const behind = await measure(stage, one, count);
      rows.push({
        system: one.system,
        figures: {
          [`job ${(count + 1).toLocaleString("en")} runs`]: behind.ran ? "yes" : "no",
          "blocks touched, alone": alone.blocks,
          "blocks touched, behind them": behind.blocks,
          "ms, alone": Math.round(alone.ms),
          "ms, behind them": Math.round(behind.ms),
        },
        ...(one.remark === undefined ? {} : { remark: one.remark }),
      });
    }
    return rows;
  },
};

if (import.meta.main) await main([lockedHead]);
