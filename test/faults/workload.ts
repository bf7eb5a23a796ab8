// The work that the fault sweep does, one job of each sort that an invocation treats differently, and what must be true
// of the database afterwards.

import type pg from "pg";
import * as z from "zod";
import { type AnyJobDefinition, defineJob, type Tx } from "../../src/index.ts";

const numbered = z.object({ n: z.number() });

/** Effects that there must be, each once; 1 and 2 in this order. */
export const expectedEffects = [1, 2, 3, 4, 104, 105];
/** Jobs that must be in history, done. */
export const expectedJobs = 8;

export interface WorkloadOptions {
  /** Of every handler. Short, so that one whose query vanishes is over soon. */
  readonly timeoutMs: number;
  /** Called as a handler starts. */
  readonly onStart: (job: { readonly id: string; readonly attempt: number }) => void;
  /** Leaves an effect. Default: on the claiming transaction, as it should be. */
  readonly effect?: (tx: Tx, n: number) => Promise<unknown>;
}

export function workload({ timeoutMs, onStart, effect = inTransaction }: WorkloadOptions): AnyJobDefinition[] {
  // Backoff is next to nothing, so that a retry is due at once.
  const short = { timeout: `${timeoutMs}ms`, retry: { minBackoff: "1ms", maxBackoff: "2ms" } } as const;
  const child = defineJob({
    kind: "child",
    payload: numbered,
    ...short,
    async run({ payload: { n }, tx, job }) {
      onStart(job);
      await effect(tx, n);
    },
  });
  return [
    child,
    defineJob({ kind: "plain", payload: numbered, ...short, run: ({ job }) => onStart(job) }),
    defineJob({
      kind: "line",
      payload: z.object({ n: z.number(), key: z.string() }),
      orderingKey: "line:{key}",
      ...short,
      async run({ payload: { n }, tx, job }) {
        onStart(job);
        await effect(tx, n);
      },
    }),
    defineJob({
      kind: "held",
      payload: z.object({ n: z.number(), tenant: z.string() }),
      locks: ["printer:{tenant}"],
      limits: [{ name: "tenant:{tenant}", max: 1 }],
      ...short,
      async run({ payload: { n }, tx, job }) {
        onStart(job);
        await effect(tx, n);
      },
    }),
    defineJob({
      kind: "turn",
      payload: numbered,
      ...short,
      async run({ payload: { n }, tx, enqueue, job }) {
        onStart(job);
        await effect(tx, n);
        await tx.query("select count(*) from effect");
        await enqueue(child, { n: 100 + n });
      },
    }),
    defineJob({
      kind: "spawn",
      payload: numbered,
      ...short,
      async run({ payload: { n }, enqueue, job }) {
        onStart(job);
        await enqueue(child, { n: 100 + n });
      },
    }),
  ];
}

function inTransaction(tx: Tx, n: number): Promise<unknown> {
  return tx.query("insert into effect (n) values ($1)", [n]);
}

export async function createEffects(sql: pg.Client): Promise<void> {
  await sql.query("create table effect (seq bigint generated always as identity, n integer not null)");
}

/** The database as on the first day: kinds are known, this deployment is not yet, and the work waits. */
export async function reset(sql: pg.Client): Promise<void> {
  const tables = ["job", "attempt", "tick", "history", "recheck", "reservation", "revision"];
  await sql.query(["delete from effect", ...tables.map((table) => `delete from pgclaim.${table}`)].join(";"));
  // One transaction each: the order of a line is the order of commits.
  for (const [kind, payload] of [
    ["line", { n: 1, key: "a" }],
    ["line", { n: 2, key: "a" }],
    ["held", { n: 3, tenant: "t" }],
    ["turn", { n: 4 }],
    ["spawn", { n: 5 }],
    ["plain", { n: 6 }],
  ] as const) {
    await sql.query("select pgclaim.enqueue($1, $2)", [kind, JSON.stringify(payload)]);
  }
}

/** Advisory locks that are held in this database. */
export const countLocks = `select count(*)::integer as n from pg_locks
  where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`;

/** Transactions that are open in this database, but for the asker's. */
export const countTransactions = `select count(*)::integer as n from pg_stat_activity
  where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
    and xact_start is not null`;

export async function count(sql: pg.Client, text: string): Promise<number> {
  return Number((await sql.query<{ n: number }>(text)).rows[0]?.n);
}

/** What is wrong with the database when all the work should be done; nothing, if nothing is. */
export async function complaints(sql: pg.Client, starts: readonly string[]): Promise<string[]> {
  const found: string[] = [];
  const expectThat = (holds: boolean, what: string) => {
    if (!holds) found.push(what);
  };
  const column = async <T>(text: string) => (await sql.query<{ v: T }>(text)).rows.map(({ v }) => v);
  const effects = await column<number>("select n as v from effect order by seq");
  expectThat(
    JSON.stringify([...effects].sort((a, b) => a - b)) === JSON.stringify(expectedEffects),
    `effects are ${effects}`,
  );
  expectThat(effects.indexOf(1) < effects.indexOf(2), `a line is out of order: ${effects}`);
  const jobs = await column<string>("select id || ' ' || kind || ' ' || state as v from pgclaim.job order by id");
  expectThat(jobs.length === 0, `jobs are left: ${jobs}`);
  const history = await column<string>("select outcome as v from pgclaim.history");
  expectThat(
    history.length === expectedJobs && history.every((outcome) => outcome === "done"),
    `history says ${history}`,
  );
  const open = await column<string>("select job_id || ':' || n as v from pgclaim.attempt where outcome is null");
  expectThat(open.length === 0, `attempts are open: ${open}`);
  const done = await column<number>(
    "select count(*)::integer as v from pgclaim.attempt where outcome = 'done' group by job_id",
  );
  expectThat(done.length === expectedJobs && done.every((n) => n === 1), `attempts that ended done: ${done}`);
  expectThat(new Set(starts).size === starts.length, `(job, attempt) started twice: ${starts}`);
  const known = new Set(await column<string>("select job_id || ':' || n as v from pgclaim.attempt"));
  const unknown = starts.filter((start) => !known.has(start));
  expectThat(unknown.length === 0, `started without being on record: ${unknown}`);
  const locks = await count(sql, countLocks);
  expectThat(locks === 0, `${locks} advisory locks are held`);
  const transactions = await count(sql, countTransactions);
  expectThat(transactions === 0, `${transactions} transactions are open`);
  return found;
}
