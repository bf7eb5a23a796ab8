// A session's advisory lock through a pooler in transaction mode, beside ours, which is a transaction's.

import * as z from "zod";
import { pgDatabase } from "../../src/adapters/node.ts";
import { createClaimer, defineJob } from "../../src/index.ts";
import { findPgBouncer, type PgBouncer, startPgBouncer } from "../world/pgbouncer.ts";
import { startChild } from "./child.ts";
import { type Exhibit, gate, main, type Row, reached, type Stage, until, value } from "./stage.ts";

/** A lock that is still held so long after its holder has gone is stranded. */
const STRANDED_AFTER_MS = 2_000;

const HELD = `select count(*) from pg_locks
  where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`;

async function sessionLocks(stage: Stage, url: string, pooler: PgBouncer, keys: number): Promise<Row> {
  const sql = await stage.connect(url);
  const [a, b, c] = [
    await stage.connect(pooler.url("session")),
    await stage.connect(pooler.url("session")),
    await stage.connect(pooler.url("session")),
  ];
  let [twice, kept] = [0, 0];
  for (let key = 1; key <= keys; key++) {
    const got = async (client: typeof a) => value<boolean>(client, "select pg_try_advisory_lock($1)", [key]);
    if ((await got(a)) && (await got(b))) twice++;
  }
  for (let key = 1; key <= keys; key++) {
    // The server connection on which it was granted works for somebody else just now.
    await c.query("begin");
    await c.query("select 1");
    if (!(await value<boolean>(a, "select pg_advisory_unlock($1)", [key]))) kept++;
    await c.query("commit");
  }
  await Promise.all([a, b, c].map((client) => client.end()));
  const left = await until(STRANDED_AFTER_MS, async () => ((await value<string>(sql, HELD)) === "0" ? "0" : null));
  return {
    system: "a session lock (pg_try_advisory_lock), as Que and GoodJob take it",
    figures: {
      "granted to two at once": `${twice} of ${keys}`,
      "the holder's unlock refused": `${kept} of ${keys}`,
      [`still held ${STRANDED_AFTER_MS / 1_000} s after the holder has gone`]: `${left ?? (await value<string>(sql, HELD))} of ${keys}`,
    },
    remark: "both tell their users to connect directly; the statement is theirs, the packages are Ruby's",
  };
}

async function pgclaim(stage: Stage, url: string, pooler: PgBouncer, jobs: number): Promise<Row> {
  const sql = await stage.connect(url);
  const leave = gate();
  const running = new Map<number, number>();
  const standing = gate();
  const job = defineJob({
    kind: "exhibit",
    payload: z.object({ n: z.number() }),
    async run({ payload: { n } }) {
      running.set(n, (running.get(n) ?? 0) + 1);
      if (running.size === jobs) standing.open();
      await leave.promise;
    },
  });
  const database = () => pgDatabase(pooler.url("session"), { oneShotConnectionString: pooler.url("oneshot") });
  const claimer = () =>
    createClaimer({ jobs: [job], database: database(), log: () => {}, batch: jobs, concurrency: jobs, maxTicks: 1 });
  await claimer().enqueueMany(
    job,
    Array.from({ length: jobs }, (_, n) => ({ n })),
  );
  const both = [claimer().invoke({ type: "manual" }), claimer().invoke({ type: "manual" })];
  await reached(standing.promise, "the handlers stand");
  leave.open();
  await Promise.all(both);
  const twice = [...running.values()].filter((count) => count > 1).length;
  // And a holder that is killed, behind the same pooler.
  await claimer().enqueueMany(
    job,
    Array.from({ length: jobs }, (_, n) => ({ n: jobs + n })),
  );
  const child = startChild({
    system: "pgclaim",
    url: pooler.url("session"),
    oneShotUrl: pooler.url("oneshot"),
    act: "stand",
  });
  stage.later(child.kill);
  await child.standing;
  const held = await value<string>(sql, HELD);
  child.kill();
  const left = await until(STRANDED_AFTER_MS, async () => ((await value<string>(sql, HELD)) === "0" ? "0" : null));
  return {
    system: "pgclaim",
    figures: {
      "granted to two at once": `${twice} of ${jobs}`,
      "the holder's unlock refused": "there is none",
      [`still held ${STRANDED_AFTER_MS / 1_000} s after the holder has gone`]: `${left ?? (await value<string>(sql, HELD))} of ${held}`,
    },
    remark: "the holder was killed with SIGKILL",
  };
}

export const poolerLock: Exhibit = {
  name: "pooler_lock",
  title: "A lock through a transaction pooler",
  says: "PgBouncer in transaction mode, four server connections; two clients want the same locks. pg-boss and Graphile Worker take no such locks for their jobs: they mark rows, which a pooler does not touch.",
  async run(stage) {
    if (findPgBouncer() === null) {
      console.warn(
        "NOT RUN: the lock through a pooler. PgBouncer is not installed (Debian: apt-get install pgbouncer).",
      );
      return [];
    }
    const count = stage.quick ? 5 : 20;
    const rows: Row[] = [];
    for (const one of [sessionLocks, pgclaim]) {
      const url = await stage.database({ bare: one === sessionLocks });
      const pooler = await startPgBouncer({ target: url, poolSize: 4 });
      stage.later(() => pooler.stop());
      rows.push(await one(stage, url, pooler, count));
    }
    return rows;
  },
};

if (import.meta.main) await main([poolerLock]);
