// A handler goes on after its job was taken away from it and given to another. What does the system make of its completion?

import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import type { BossJob, Peers } from "./peers.ts";
import { claimerOf, type Exhibit, gate, main, type Row, reached, type Stage, until, value } from "./stage.ts";
import { ownPool } from "./systems.ts";

const LIMIT_MS = 20_000;
const queue = "exhibit";

async function pgclaim(stage: Stage): Promise<Row> {
  const url = await stage.database();
  const sql = await stage.connect(url);
  await sql.query("create table effect (attempt integer)");
  const first = gate();
  const second = gate();
  const standing = [gate(), gate()] as const;
  let completion = "";
  // The handler is deaf to its signal, as a zombie is.
  const job = defineJob({
    kind: "exhibit",
    payload: z.object({}),
    retry: { minBackoff: "1h", maxBackoff: "1h" },
    async run({ job: { attempt }, tx }) {
      standing[attempt - 1]?.open();
      await (attempt === 1 ? first : second).promise;
      if (attempt === 2) throw new Error("the second attempt fails");
      await tx.query("insert into effect values ($1)", [attempt]).then(
        () => {
          completion = "accepted";
        },
        () => {
          completion = "refused";
        },
      );
    },
  });
  await claimerOf(url, [job]).enqueue(job, {});
  const lost = claimerOf(url, [job]).invoke({ type: "manual" });
  await reached(standing[0].promise, "attempt 1 stands");
  await sql.query(
    "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())",
  );
  const report = await lost;
  const taken = claimerOf(url, [job]).invoke({ type: "manual" });
  await reached(standing[1].promise, "attempt 2 stands");
  first.open();
  await until(LIMIT_MS, () => (completion === "" ? null : true));
  const then = await value<string>(
    sql,
    "select state || ', attempt ' || (select max(n) from pgclaim.attempt where outcome is null) || ' open' from pgclaim.job",
  );
  second.open();
  await taken;
  return {
    system: "pgclaim",
    figures: {
      "the zombie's completion": `${completion}, its tick is ${report.ticks[0]?.fate}`,
      "the job then": then,
      "after attempt 2 failed": await value(
        sql,
        "select case when exists (select from pgclaim.job where state = 'scheduled') then 'waits for attempt 3' else 'gone' end",
      ),
    },
    remark: `rows that the zombie left on tx: ${await value(sql, "select count(*) from effect")}`,
  };
}

async function boss(stage: Stage, { boss: { name, PgBoss } }: Peers, by: "id" | "job"): Promise<Row> {
  const url = await stage.database({ bare: true });
  const sql = await stage.connect(url);
  const one = new PgBoss({
    connectionString: url,
    schedule: false,
    superviseIntervalSeconds: 1,
    monitorIntervalSeconds: 1,
  });
  one.on("error", () => {});
  await one.start();
  await one.createQueue(queue, { expireInSeconds: 1, retryLimit: 5, retryDelay: 0 });
  await one.send(queue, {});
  const fetch = async () => (await one.fetch<object>(queue))[0] ?? null;
  const first = await until<BossJob<object>>(LIMIT_MS, fetch);
  const second = await until<BossJob<object>>(LIMIT_MS, fetch);
  if (first === null || second === null || first.id !== second.id) throw new Error("the job was not taken over");
  // Nothing of the supervisor's from here on.
  const state = () => value<string>(sql, "select state::text from pgboss.job where id = $1", [first.id]);
  await one.complete(queue, by === "id" ? first.id : [first]);
  const then = await state();
  await one.fail(queue, second.id);
  const end = await state();
  await one.stop({ graceful: false });
  return {
    system: `${name}, complete(queue, ${by === "id" ? "id" : "[job]"})`,
    figures: {
      "the zombie's completion": then === "completed" ? "accepted" : "refused",
      "the job then": then,
      "after attempt 2 failed": end === "completed" ? "completed: the failure is forgotten" : "waits for attempt 3",
    },
    ...(by === "job"
      ? {
          remark:
            "work() fences its attempts in this way, and its transactional workers guard their commit by it (from its source)",
        }
      : { remark: "taken over after expireInSeconds = 1" }),
  };
}

async function graphile(stage: Stage, { graphile: { name, module, logger } }: Peers): Promise<Row> {
  const url = await stage.database({ bare: true });
  const sql = await stage.connect(url);
  await module.runMigrations({ connectionString: url, logger });
  await sql.query("select from graphile_worker.add_job('exhibit', '{}')");
  const start = async (run: (holder: string) => Promise<void>) => {
    const pgPool = ownPool(url);
    const runner = await module.run({
      pgPool,
      logger,
      concurrency: 1,
      pollInterval: 50,
      noHandleSignals: true,
      taskList: { exhibit: (_, { job }) => run(job.locked_by) },
    });
    return async () => {
      await runner.stop();
      await pgPool.end();
    };
  };
  const [first, second] = [gate(), gate()];
  let holder = "";
  const stopFirst = await start(async (who) => {
    holder = who;
    await first.promise;
  });
  await until(LIMIT_MS, () => (holder === "" ? null : true));
  const utils = await module.makeWorkerUtils({ connectionString: url, logger });
  await utils.forceUnlockWorkers([holder]);
  await utils.release();
  const taken = gate();
  const stopSecond = await start(async () => {
    taken.open();
    await second.promise;
    throw new Error("the second attempt fails");
  });
  await reached(taken.promise, "the other worker stands");
  const jobs = () => value<string>(sql, "select count(*) from graphile_worker._private_jobs");
  first.open();
  await stopFirst();
  const then = (await jobs()) === "0" ? "gone, while attempt 2 runs" : "there, attempt 2 runs";
  second.open();
  await stopSecond();
  return {
    system: name,
    figures: {
      "the zombie's completion": then.startsWith("gone") ? "accepted" : "refused",
      "the job then": then,
      "after attempt 2 failed": (await jobs()) === "0" ? "gone: the failure is forgotten" : "waits for attempt 3",
    },
    remark: "taken over by forceUnlockWorkers(); by itself it happens after four hours",
  };
}

export const zombie: Exhibit = {
  name: "zombie",
  title: "Late completion of a dead attempt",
  says: "Attempt 1 is taken for dead and attempt 2 is running when attempt 1 reports its success. Then attempt 2 fails.",
  async run(stage) {
    const { peers } = stage;
    const rows = [await pgclaim(stage)];
    if (peers !== null) {
      rows.push(await boss(stage, peers, "id"), await boss(stage, peers, "job"), await graphile(stage, peers));
    }
    return rows;
  },
};

if (import.meta.main) await main([zombie]);
