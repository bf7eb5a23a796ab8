// Behind a transaction-mode pooler a server connection belongs to whoever comes next. So nothing may be left on it: no lock, no
// setting, no role, no prepared statement, no LISTEN, no temporary table, no transaction. Asked of the server's connections
// themselves, each compared with one that nobody has used.

import pg from "pg";
import { describe, expect, it } from "vitest";
import * as z from "zod";
import { createClaimer, deadLetter, defineJob, done, retryIn, snooze } from "../../src/index.ts";
import {
  effect,
  effectTable,
  expectWhole,
  invoke,
  makeDue,
  numbered,
  upTo,
  watchUnhandled,
} from "../support/engine.ts";
import { endsWithin, eventually } from "../support/gate.ts";
import { setup, transports } from "../support/world.ts";
import { freshConnection, installed, leftovers, openTransactions, serverConnections, startPooler } from "./support.ts";

/** Session state that a handler should not leave behind, and does; tx takes one statement a call. */
const mess = [
  "set search_path = ''",
  "set local work_mem = '1MB'",
  "set statement_timeout = 12345",
  "select set_config('timezone', 'Asia/Tokyo', false)",
  "select set_config('app.tenant', 'left behind', false)",
  "set default_transaction_isolation = 'serializable'",
  "set default_transaction_read_only = on",
  "set session authorization pg_monitor",
  "set role pg_monitor",
];

const keyed = z.object({ n: z.number(), key: z.string() });

function jobs() {
  const run = async (n: number, tx: Parameters<typeof effect>[0]) => {
    await effect(tx, n);
    const statement = mess[n % mess.length];
    if (statement !== undefined) await tx.query(statement);
    await tx.query("select pg_backend_pid()");
  };
  return [
    defineJob({ kind: "messy", payload: numbered, run: ({ payload: { n }, tx }) => run(n, tx) }),
    defineJob({
      kind: "line",
      payload: keyed,
      orderingKey: "line:{key}",
      run: ({ payload: { n }, tx }) => run(n, tx),
    }),
    defineJob({
      kind: "held",
      payload: keyed,
      locks: ["held:{key}"],
      limits: [{ name: "key:{key}", max: 1 }],
      run: ({ payload: { n }, tx }) => run(n, tx),
    }),
    // Ends in every other way, with its mess made before.
    defineJob({
      kind: "fails",
      payload: numbered,
      retry: { minBackoff: "1ms", maxBackoff: "2ms" },
      async run({ payload: { n }, tx, job: { attempt } }) {
        if (attempt > 1) {
          await effect(tx, n);
          return done();
        }
        for (const statement of mess) await tx.query(statement);
        switch (n % 4) {
          case 0:
            throw new Error("a handler throws");
          case 1:
            return retryIn("1ms");
          case 2:
            return snooze("1ms");
          default:
            await tx.query("select 1 / 0");
            return done();
        }
      },
    }),
    defineJob({
      kind: "dies",
      payload: numbered,
      async run({ tx }) {
        for (const statement of mess) await tx.query(statement);
        return deadLetter("as planned");
      },
    }),
  ] as const;
}

const poolSize = 2;
const clients = 50;

describe.runIf(installed).each(transports)("50 clients over pools of 2, over %s", (transport) => {
  it("do every job once, and leave the server's connections as if nobody had used them", {
    timeout: 120_000,
  }, async () => {
    watchUnhandled();
    const world = await setup();
    await effectTable(world);
    const pooled = await startPooler(world, poolSize);
    const database = await pooled.database(transport);
    const all = jobs();
    const [messy, line, held, fails, dies] = all;
    // Made by whoever has the connection, so an effect says which connection ran it.
    await world.sql.query("alter table effect add column pid integer not null default pg_backend_pid()");
    const claimer = () => createClaimer({ jobs: [...all], database, batch: 5, log: (entry) => world.log.push(entry) });
    const numbers = (from: number, count: number) => upTo(count).map((i) => from + i);
    await claimer().enqueueMany(
      messy,
      numbers(0, 40).map((n) => ({ n })),
    );
    await claimer().enqueueMany(
      line,
      numbers(100, 20).map((n) => ({ n, key: String(n % 3) })),
    );
    await claimer().enqueueMany(
      held,
      numbers(200, 20).map((n) => ({ n, key: String(n % 3) })),
    );
    await claimer().enqueueMany(
      fails,
      numbers(300, 12).map((n) => ({ n })),
    );
    await claimer().enqueueMany(
      dies,
      numbers(400, 3).map((n) => ({ n })),
    );
    const expected = [...numbers(0, 40), ...numbers(100, 20), ...numbers(200, 20), ...numbers(300, 12)];

    const reports = await endsWithin(
      90_000,
      Promise.all(Array.from({ length: clients }, () => claimer().invoke({ type: "manual" }, { budget: "20s" }))),
      `${clients} invocations`,
    );
    expect(reports.map(({ error }) => error)).toEqual(reports.map(() => undefined));
    await eventually(async () => {
      await makeDue(world);
      await invoke(claimer());
      expect(await world.value("select count(*)::integer from pgclaim.job where state <> 'dead'")).toBe(0);
    }, 30_000);
    await expectWhole(world, { effects: expected, dead: 3 });

    // Nobody is on a connection now; seen from beside them.
    await eventually(async () => expect(await openTransactions(world)).toBe(0));
    const fresh = await freshConnection(world.url);
    const used = new Set((await world.rows<{ pid: number }>("select distinct pid from effect")).map(({ pid }) => pid));
    for (const pool of ["session", "oneshot"] as const) {
      const connections = await serverConnections(pooled.pooler.url(pool), poolSize);
      const pids = new Set(connections.map(({ pid }) => pid));
      expect(pids.size).toBe(poolSize);
      // These are the ones that ran the jobs, not new ones.
      if (pool === "session") expect([...used].filter((pid) => !pids.has(pid))).toEqual([]);
      expect(connections.map((one) => leftovers(one, fresh))).toEqual(connections.map(() => []));
    }
  });
});

describe.runIf(installed)("the look at a server's connection", () => {
  it("sees each thing that somebody could leave there", async () => {
    const world = await setup();
    const pooled = await startPooler(world, 1);
    const url = pooled.pooler.url("session");
    const fresh = await freshConnection(world.url);
    const [before] = await serverConnections(url, 1);
    if (before === undefined) throw new Error("the pool has no connection");
    expect(leftovers(before, fresh)).toEqual([]);
    const client = new pg.Client(url);
    await client.connect();
    for (const statement of [
      "set work_mem = '1MB'",
      "set pgclaim.tick = 'left'",
      "prepare p as select 1",
      "listen l",
      "create temporary table t (n integer)",
      "select pg_advisory_lock(1)",
      "set role pg_monitor",
    ])
      await client.query(statement);
    await client.end();
    const [after] = await serverConnections(url, 1);
    if (after === undefined) throw new Error("the pool has no connection");
    expect(after.pid).toBe(before.pid);
    expect(leftovers(after, fresh).map((what) => what.split(" is ")[0])).toEqual([
      "work_mem",
      "user",
      "tick",
      "prepared",
      "listening",
      "tempSchema",
      "locks",
    ]);
  });
});
