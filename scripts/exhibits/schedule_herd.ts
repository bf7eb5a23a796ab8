// Eight processes wake at one instant, and one schedule is due.

import * as z from "zod";
import { defineJob, defineSchedule } from "../../src/index.ts";
import type { Peers } from "./peers.ts";
import { claimerOf, type Exhibit, main, type Row, type Stage, until, value } from "./stage.ts";
import { ownPool } from "./systems.ts";

const HERD = 8;
const LIMIT_MS = 15_000;
/** After the first job was seen: what comes too much comes within this. */
const REST_MS = 1_500;
const COLUMN = "jobs of one occurrence";

const herd = <T>(one: () => Promise<T>): Promise<T[]> => Promise.all(Array.from({ length: HERD }, one));
const rest = ({ quick }: Stage) => new Promise((resolve) => setTimeout(resolve, quick ? 300 : REST_MS));

async function pgclaim(stage: Stage): Promise<Row> {
  const url = await stage.database();
  const sql = await stage.connect(url);
  await sql.query("create table effect (n integer)");
  const job = defineJob({
    kind: "exhibit",
    payload: z.object({}),
    async run({ tx }) {
      await tx.query("insert into effect values (1)");
    },
  });
  // Once a year: one occurrence is due, whatever the minute.
  const yearly = defineSchedule({ name: "exhibit", cron: "0 0 1 1 *", job, payload: {} });
  const options = { schedules: [yearly] };
  await claimerOf(url, [job], options).register();
  await sql.query("update pgclaim.schedule set next_at = clock_timestamp() - interval '1 second', fresh = false");
  const startedAt = performance.now();
  const reports = await herd(() => claimerOf(url, [job], options).invoke({ type: "manual" }));
  const failed = reports.filter(({ error }) => error !== undefined).length;
  return {
    system: "pgclaim",
    figures: {
      [COLUMN]: Number(await value(sql, "select count(*) from effect")),
      "seen after, s": ((performance.now() - startedAt) / 1_000).toFixed(2),
      errors: failed,
    },
    remark: "seen when it was done; the peers' when it was enqueued",
  };
}

/** The database's minute and hour in UTC, with a little of the minute gone, so that its beginning has passed for everybody. */
async function thisMinute(sql: Parameters<typeof value>[0]): Promise<string> {
  const now = await until(LIMIT_MS, async () => {
    const { rows } = await sql.query<{ m: number; h: number; s: number }>(
      "select extract(minute from t)::integer as m, extract(hour from t)::integer as h, extract(second from t)::float as s from (select clock_timestamp() at time zone 'UTC' as t) x",
    );
    const [row] = rows;
    return row !== undefined && row.s > 1 && row.s < 50 ? `${row.m} ${row.h} * * *` : null;
  });
  if (now === null) throw new Error("the clock does not move");
  return now;
}

async function boss(stage: Stage, { boss: { name, PgBoss } }: Peers): Promise<Row> {
  const url = await stage.database({ bare: true });
  const sql = await stage.connect(url);
  const errors: string[] = [];
  const make = (options: Readonly<Record<string, unknown>>) => {
    const one = new PgBoss({ connectionString: url, supervise: false, max: 4, ...options });
    one.on("error", (error) => errors.push(error.message));
    return one;
  };
  const first = make({ schedule: false });
  await first.start();
  await first.createQueue("exhibit");
  await first.schedule("exhibit", await thisMinute(sql), {}, { tz: "UTC" });
  const startedAt = performance.now();
  const all = await herd(async () => {
    const one = make({ schedule: true, cronMonitorIntervalSeconds: 1, cronWorkerIntervalSeconds: 1 });
    await one.start();
    return one;
  });
  const count = async () => Number(await value(sql, "select count(*) from pgboss.job where name = 'exhibit'"));
  await until(LIMIT_MS, async () => ((await count()) > 0 ? true : null));
  const seconds = ((performance.now() - startedAt) / 1_000).toFixed(2);
  await rest(stage);
  const jobs = await count();
  await Promise.all([first, ...all].map((one) => one.stop({ graceful: false })));
  return {
    system: name,
    figures: { [COLUMN]: jobs, "seen after, s": seconds, errors: errors.length },
    remark: "with its cron intervals at their shortest, 1 s; the default is 30 s",
  };
}

async function graphile(stage: Stage, { graphile: { name, module, logger } }: Peers): Promise<Row> {
  const url = await stage.database({ bare: true });
  const sql = await stage.connect(url);
  await module.runMigrations({ connectionString: url, logger });
  const match = await thisMinute(sql);
  await sql.query(
    "insert into graphile_worker._private_known_crontabs (identifier, known_since) values ('exhibit', now() - interval '1 hour')",
  );
  const startedAt = performance.now();
  const stops = await herd(async () => {
    const pgPool = ownPool(url, 4);
    const runner = await module.run({
      pgPool,
      logger,
      concurrency: 1,
      noHandleSignals: true,
      // The job stays where it can be counted.
      taskList: { other: async () => {} },
      parsedCronItems: module.parseCronItems([
        { task: "exhibit", match, identifier: "exhibit", options: { backfillPeriod: 10 * 60_000 } },
      ]),
    });
    return async () => {
      await runner.stop();
      await pgPool.end();
    };
  });
  const count = async () => Number(await value(sql, "select count(*) from graphile_worker._private_jobs"));
  await until(LIMIT_MS, async () => ((await count()) > 0 ? true : null));
  const seconds = ((performance.now() - startedAt) / 1_000).toFixed(2);
  await rest(stage);
  const jobs = await count();
  await Promise.all(stops.map((stop) => stop()));
  return {
    system: name,
    figures: { [COLUMN]: jobs, "seen after, s": seconds, errors: 0 },
    remark: "as a backfill at start; its crontab matches in UTC only",
  };
}

export const scheduleHerd: Exhibit = {
  name: "schedule_herd",
  title: "Eight invocations at one due schedule",
  says: "One occurrence is due, and eight processes (for pgclaim: invocations) start at once.",
  async run(stage) {
    const { peers } = stage;
    const rows = [await pgclaim(stage)];
    if (peers !== null) rows.push(await boss(stage, peers), await graphile(stage, peers));
    return rows;
  },
};

if (import.meta.main) await main([scheduleHerd]);
