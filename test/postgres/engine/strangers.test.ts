// What the rest of the database, and a careless handler, must not be able to do to everybody's jobs.

import { spawn } from "node:child_process";
import { describe, expect, it, onTestFinished } from "vitest";
import * as z from "zod";
import { defineJob, type Tx } from "../../../src/index.ts";
import { counts } from "../../../src/limits.ts";
import { endsWithin, eventually } from "../../support/gate.ts";
import { setup, type TransportName, transports, type World } from "../../support/world.ts";

const payload = z.object({ n: z.number() });

/** Enqueues jobs of one kind whose handler gets its number, and runs one invocation. */
async function runJobs(
  world: World,
  transport: TransportName,
  count: number,
  run: (tx: Tx, n: number) => Promise<void>,
) {
  const job = defineJob({ kind: "stranger", payload, timeout: "5s", run: ({ tx, payload: { n } }) => run(tx, n) });
  const claimer = world.claimer(transport, { jobs: [job] });
  await claimer.enqueueMany(
    job,
    Array.from({ length: count }, (_, n) => ({ n })),
  );
  return claimer.invoke({ type: "manual" });
}

async function effectTable(world: World): Promise<void> {
  await world.sql.query("create table effect (n integer)");
}

const write = async (tx: Tx, n: number): Promise<void> => {
  await tx.query("insert into effect values ($1)", [n]);
};

describe.each(transports)("a handler's turn over %s", (transport) => {
  it("ends well although one constraint's name stands on two tables, one of them not deferrable", async () => {
    const world = await setup();
    await effectTable(world);
    await world.sql.query("create table a (id integer, constraint pos unique (id) deferrable initially deferred)");
    await world.sql.query("create table b (id integer, constraint pos check (id > 0))");
    expect(await runJobs(world, transport, 2, write)).toMatchObject({ done: 2, retried: 0 });
  });

  it("ends well for a role that may not use the schema of somebody else's deferrable constraint, temporary ones too", async () => {
    const world = await setup();
    await effectTable(world);
    await world.sql.query("create schema secret");
    await world.sql.query("create table secret.a (id integer unique deferrable)");
    const other = await world.connect();
    await other.query("create temp table scratch (id integer unique deferrable)");
    const role = `runner_${process.pid}_${transport}`;
    await world.sql.query(`create role ${role} login password 'runner'`);
    onTestFinished(async () => {
      await world.sql.query(`drop owned by ${role}`);
      await world.sql.query(`drop role ${role}`);
    });
    await world.sql.query("select pgclaim.grant_v1('run', $1)", [role]);
    await world.sql.query(`grant insert on effect to ${role}`);
    const url = new URL(world.url);
    url.username = role;
    url.password = "runner";
    expect(await runJobs({ ...world, ...world.as(url.toString()) }, transport, 2, write)).toMatchObject({
      done: 2,
      retried: 0,
    });
  });

  it.each(["SQL, DMY", "German", "Postgres, MDY"])(
    "runs jobs, failing ones too, in a database whose DateStyle is %s",
    async (style) => {
      const world = await setup();
      await effectTable(world);
      const name = await world.value<string>("select current_database()");
      await world.sql.query(`alter database ${name} set datestyle = '${style}'`);
      const report = await runJobs(world, transport, 2, async (tx, n) => {
        if (n === 1) throw new Error("fails");
        await write(tx, n);
      });
      expect(report).toMatchObject({ done: 1, retried: 1, ended: "empty" });
    },
  );

  it("is undone at once when its handler no longer waits for its query, and the others of the tick commit", async () => {
    const world = await setup();
    await effectTable(world);
    const running = runJobs(world, transport, 3, async (tx, n) => {
      if (n !== 1) return write(tx, n);
      const slow = tx.query("select pg_sleep(60)");
      slow.catch(() => {});
      await eventually(async () =>
        expect(
          await world.value(
            "select count(*) from pg_stat_activity where query like '%pg_sleep(60)%' and pid <> pg_backend_pid() and state = 'active'",
          ),
        ).toBe("1"),
      );
      throw new Error("will not wait");
    });
    expect(await endsWithin(15_000, running, "the invocation")).toMatchObject({ done: 2, retried: 1 });
  });

  it("waits for a query its handler forgot, since it is part of the turn", async () => {
    const world = await setup();
    await effectTable(world);
    const report = await runJobs(world, transport, 1, async (tx, n) => {
      void tx.query("insert into effect select $1::integer from pg_sleep(0.2)", [n]);
    });
    expect(report).toMatchObject({ done: 0 }); // it waits for its turn only when somebody awaits it
    expect(report.retried).toBe(1);
  });

  it("refuses COPY FROM STDIN, which would hang the session, and what is no text", async () => {
    const world = await setup();
    await effectTable(world);
    const running = runJobs(world, transport, 3, async (tx, n) => {
      if (n === 0) await tx.query(" /* rows */ copy effect (n)\nfrom stdin");
      if (n === 1) await tx.query(undefined as never);
      await write(tx, n);
    });
    const report = await endsWithin(10_000, running, "the invocation");
    expect(report).toMatchObject({ done: 1, retried: 2 });
    expect(report.ticks[0]?.jobs.map(({ code }) => code)).toEqual([
      "PGCLAIM_TX_CONTROL",
      "PGCLAIM_TX_CONTROL",
      undefined,
    ]);
  });
});

describe("a claim", () => {
  it("takes no more payload than one answer carries, the first job always, and goes on in the next tick", async () => {
    const world = await setup();
    const job = defineJob({ kind: "large", payload: z.object({ text: z.string() }), async run() {} });
    const claimer = world.claimer("pg", { jobs: [job], batch: 100 });
    // Random text, so that it does not compress; 21 of them are more than the limit.
    const text = Array.from({ length: 65_000 }, () => crypto.randomUUID().slice(0, 16)).join("");
    const fit = Math.floor(counts.tickBytes / (text.length + 12));
    await claimer.enqueueMany(
      job,
      Array.from({ length: fit + 5 }, () => ({ text })),
    );
    const report = await claimer.invoke({ type: "manual" });
    expect(report.ticks.map(({ claimed }) => claimed)).toEqual([fit, 5, 0]);
    expect(report.done).toBe(fit + 5);
  });
});

describe("a process killed while its statement runs", () => {
  it("frees its locks within the interval at which the server looks at the socket", async () => {
    const world = await setup();
    const script = `
      const { createClaimer, defineJob } = await import("${new URL("../../../src/index.ts", import.meta.url)}");
      const { pgDatabase } = await import("${new URL("../../../src/adapters/node.ts", import.meta.url)}");
      const z = await import("zod");
      const job = defineJob({ kind: "sleeps", payload: z.object({}), run: ({ tx }) => tx.query("select pg_sleep(14)").then(() => {}) });
      const claimer = createClaimer({ jobs: [job], database: pgDatabase(process.env.URL) });
      await claimer.enqueue(job, {});
      await claimer.invoke({ type: "manual" });`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
      env: { ...process.env, URL: world.url },
      stdio: "ignore",
    });
    onTestFinished(() => void child.kill("SIGKILL"));
    await eventually(async () =>
      expect(
        await world.value(
          "select count(*) from pg_stat_activity where query like '%pg_sleep(14)%' and pid <> pg_backend_pid() and state = 'active'",
        ),
      ).toBe("1"),
    );
    child.kill("SIGKILL");
    await eventually(async () => expect(await world.locks()).toBe(0), 6_000);
  });
});

describe("an operator verb", () => {
  it("says of a job that is done that it is done, not that there is none", async () => {
    const world = await setup();
    const job = defineJob({ kind: "plain", payload, async run() {} });
    const claimer = world.claimer("pg", { jobs: [job] });
    const { id } = await claimer.enqueue(job, { n: 1 });
    await claimer.invoke({ type: "manual" });
    expect(await claimer.retry(id)).toEqual({ type: "not-dead", state: "done" });
    expect(await claimer.discard(id)).toEqual({ type: "not-dead", state: "done" });
    expect(await claimer.retry("999")).toEqual({ type: "not-found" });
  });
});
