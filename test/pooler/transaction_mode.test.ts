// The promises behind PgBouncer in transaction mode, where a session belongs to nobody. Not run where PgBouncer is not
// installed; .ci/run installs it.

import pg from "pg";
import { describe, expect, it, onTestFinished } from "vitest";
import * as z from "zod";
import { startPgBouncer } from "../../scripts/world/pgbouncer.ts";
import { pgDatabase } from "../../src/adapters/node.ts";
import { migrate } from "../../src/cli/migrate.ts";
import { type Claimer, createClaimer, defineJob } from "../../src/index.ts";
import { endsWithin, eventually, gate } from "../support/gate.ts";
import { setup } from "../support/world.ts";
import { installed } from "./support.ts";

async function pooledWorld(poolSize: number) {
  const world = await setup();
  const pooler = await startPgBouncer({ target: world.url, poolSize });
  onTestFinished(() => pooler.stop());
  const claimer = (job: ReturnType<typeof insertJob>): Claimer =>
    createClaimer({
      jobs: [job],
      database: pgDatabase(pooler.url("session"), { oneShotConnectionString: pooler.url("oneshot") }),
      log: (entry) => world.log.push(entry),
      batch: 5,
    });
  await world.sql.query("create table effect (n integer not null, pid integer not null)");
  return { world, pooler, claimer };
}

function insertJob(before: () => Promise<void> = async () => {}) {
  return defineJob({
    kind: "effect.insert",
    payload: z.object({ n: z.number() }),
    async run({ payload, tx }) {
      await before();
      await tx.query("set search_path = ''"); // session state a handler should not leave behind, and does
      await tx.query("insert into public.effect values ($1, pg_backend_pid())", [payload.n]);
    },
  });
}

describe.runIf(installed)("a transaction-mode pooler", () => {
  it("runs 200 jobs by 50 invocations over a pool of 2, each effect exactly once, leaving no lock and no setting", async () => {
    const { world, pooler, claimer } = await pooledWorld(2);
    const job = insertJob();
    await claimer(job).enqueueMany(
      job,
      Array.from({ length: 200 }, (_, n) => ({ n })),
    );
    const invocations = Array.from({ length: 50 }, () => claimer(job).invoke({ type: "manual" }, { budget: "20s" }));
    const reports = await endsWithin(60_000, Promise.all(invocations), "50 invocations");
    expect(reports.map((report) => report.error)).toEqual(reports.map(() => undefined));
    await eventually(async () => {
      const { done } = await claimer(job).invoke({ type: "manual" });
      expect(done).toBe(0);
      expect(await world.value("select count(*) from pgclaim.job")).toBe("0");
    }, 20_000);
    expect(await world.rows("select count(*) as rows, count(distinct n) as jobs from effect")).toEqual([
      { rows: "200", jobs: "200" },
    ]);
    expect(Number(await world.value("select count(distinct pid) from effect"))).toBeLessThanOrEqual(2);
    expect(await world.locks()).toBe(0);
    // Every server connection of the session pool, asked for what a handler set in it.
    const client = new pg.Client(pooler.url("session"));
    await client.connect();
    onTestFinished(() => client.end());
    for (let i = 0; i < 10; i++) {
      expect((await client.query("show search_path")).rows).toEqual([{ search_path: '"$user", public' }]);
      expect((await client.query("select coalesce(current_setting('pgclaim.tick', true), '') as tick")).rows).toEqual([
        { tick: "" },
      ]);
    }
  });

  it("frees a dead holder's locks at once, and the next trigger finds the crash", async () => {
    const { world, claimer } = await pooledWorld(4);
    const inside = gate();
    const never = gate();
    const stuck = insertJob(async () => {
      inside.open();
      await never.promise;
    });
    await claimer(stuck).enqueueMany(stuck, [{ n: 1 }]);
    const lost = claimer(stuck).invoke({ type: "manual" });
    await inside.promise;
    expect(await world.locks()).toBe(1);
    // The pooler's client goes away in the middle of a transaction: its server connection is closed by the pooler.
    await world.sql.query(
      "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())",
    );
    await eventually(async () => expect(await world.locks()).toBe(0), 5_000);
    never.fail(new Error("the handler gives up"));
    expect((await endsWithin(20_000, lost, "the lost invocation")).ticks.at(-1)?.fate).toBe("lost");
    const report = await claimer(insertJob()).invoke({ type: "manual" });
    expect(report.done).toBe(1);
    expect(await world.value("select count(*) from effect")).toBe("1");
  });

  it("migrates twenty times at once", async () => {
    const { world, pooler } = await pooledWorld(20);
    await world.sql.query("drop schema pgclaim cascade");
    const runs = await Promise.all(
      Array.from({ length: 20 }, async () => {
        const client = new pg.Client(pooler.url("session"));
        await client.connect();
        try {
          return await migrate({ client });
        } finally {
          await client.end();
        }
      }),
    );
    expect(runs.filter((run) => run.applied.length > 0)).toHaveLength(1);
    expect(await world.locks()).toBe(0);
  });
});
