// A handler sleeps. What do its system's connections hold meanwhile, and can vacuum remove rows that die now?

import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import type { Peers } from "./peers.ts";
import { claimerOf, type Exhibit, gate, main, type Row, reached, type Stage } from "./stage.ts";
import { ownPool } from "./systems.ts";

const DEAD = 1_000;

/** Looks while the handler stands, then lets it go. `start` begins the work and answers what ends it. */
async function look(
  stage: Stage,
  url: string,
  system: string,
  start: (stand: () => Promise<void>) => Promise<() => Promise<unknown>>,
  remark?: string,
): Promise<Row> {
  const sql = await stage.connect(url);
  await sql.query("create table litter as select generate_series(1, 1000) as n");
  const [standing, leave] = [gate(), gate()];
  const stop = await start(async () => {
    standing.open();
    await leave.promise;
  });
  await reached(standing.promise, `a handler of ${system} stands`);
  const { rows } = await sql.query<{ open: string; xid: string; xmin: string }>(
    `select count(*) as open, count(backend_xid) as xid, count(backend_xmin) as xmin from pg_stat_activity
     where datname = current_database() and pid <> pg_backend_pid() and state like 'idle in transaction%'`,
  );
  await sql.query("delete from litter");
  let left = "unknown";
  const hear = ({ message }: { message?: string | undefined }) => {
    left = /(\d+) are dead but not yet removable/.exec(message ?? "")?.[1] ?? left;
  };
  sql.on("notice", hear);
  await sql.query("vacuum (verbose) litter");
  sql.off("notice", hear);
  leave.open();
  await stop();
  return {
    system,
    figures: {
      "transactions open": Number(rows[0]?.open),
      "with an xid": Number(rows[0]?.xid),
      "with a snapshot (xmin)": Number(rows[0]?.xmin),
      [`dead rows kept from vacuum, of ${DEAD}`]: left,
    },
    ...(remark === undefined ? {} : { remark }),
  };
}

async function pgclaim(stage: Stage, wrote: boolean): Promise<Row> {
  const url = await stage.database();
  const sql = await stage.connect(url);
  await sql.query("create table effect (n integer)");
  const start = async (stand: () => Promise<void>) => {
    const job = defineJob({
      kind: "exhibit",
      payload: z.object({}),
      async run({ tx }) {
        if (wrote) await tx.query("insert into effect values (1)");
        await stand();
        if (!wrote) await tx.query("insert into effect values (1)");
      },
    });
    const claimer = claimerOf(url, [job]);
    await claimer.enqueue(job, {});
    const running = claimer.invoke({ type: "manual" });
    return () => running;
  };
  return look(
    stage,
    url,
    wrote ? "pgclaim, a handler that writes on tx and sleeps then" : "pgclaim, a handler that sleeps and writes then",
    start,
    wrote ? "against the advice to write last" : "the transaction is the claim; it costs a connection",
  );
}

async function boss(stage: Stage, { boss: { name, PgBoss } }: Peers, transactional: boolean): Promise<Row> {
  const url = await stage.database({ bare: true });
  return look(
    stage,
    url,
    `${name}, work()${transactional ? " with transactional: true" : ""}`,
    async (stand) => {
      const one = new PgBoss({ connectionString: url, supervise: false, schedule: false });
      one.on("error", () => {});
      await one.start();
      await one.createQueue("exhibit");
      await one.send("exhibit", {});
      await one.work("exhibit", { pollingIntervalSeconds: 0.5, transactional }, stand);
      return () => one.stop({ graceful: false });
    },
    transactional
      ? "effects commit with the completion, as pgclaim's do"
      : "no connection is held: better than pgclaim",
  );
}

async function graphile(stage: Stage, { graphile: { name, module, logger } }: Peers): Promise<Row> {
  const url = await stage.database({ bare: true });
  return look(
    stage,
    url,
    name,
    async (stand) => {
      await module.runMigrations({ connectionString: url, logger });
      const pgPool = ownPool(url);
      await pgPool.query("select from graphile_worker.add_job('exhibit', '{}')");
      const taskList = { exhibit: () => stand() };
      const runner = await module.run({ pgPool, logger, concurrency: 1, noHandleSignals: true, taskList });
      return async () => {
        await runner.stop();
        await pgPool.end();
      };
    },
    "no connection is held: better than pgclaim",
  );
}

export const vacuum: Exhibit = {
  name: "vacuum",
  title: "Vacuum while a handler sleeps",
  says: `While a handler sleeps, its system's connections are looked at, ${DEAD} rows are deleted by somebody else, and their table is vacuumed.`,
  async run(stage) {
    const { peers } = stage;
    const rows = [await pgclaim(stage, false), await pgclaim(stage, true)];
    if (peers !== null) {
      rows.push(await boss(stage, peers, false), await boss(stage, peers, true), await graphile(stage, peers));
    }
    return rows;
  },
};

if (import.meta.main) await main([vacuum]);
