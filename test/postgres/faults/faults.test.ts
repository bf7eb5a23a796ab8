// What users of other job systems suffered, where no suite of ours had its test yet; docs/faults.md names each source.

import pg from "pg";
import { describe, expect, it, onTestFinished } from "vitest";
import * as z from "zod";
import { startPostgres } from "../../../scripts/world/postgres.ts";
import { pgDatabase } from "../../../src/adapters/node.ts";
import { migrate } from "../../../src/cli/migrate.ts";
import { createClaimer, defineJob, defineSchedule } from "../../../src/index.ts";
import { effectTable, expectWhole, invoke, numbered, plain, upTo } from "../../support/engine.ts";
import { eventually, gate } from "../../support/gate.ts";
import { setup } from "../../support/world.ts";

describe("a job that takes longer than many triggers", () => {
  it("runs once: each of them finds its lock held, and none takes it over", async () => {
    const world = await setup();
    await effectTable(world);
    const [standing, leave] = [gate(), gate()];
    let started = 0;
    const job = defineJob({
      kind: "long",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        started++;
        standing.open();
        await leave.promise;
        await tx.query("insert into effect (n) values ($1)", [n]);
      },
    });
    const claimer = () => world.claimer("pg", { jobs: [job] });
    await claimer().enqueue(job, { n: 1 });
    const running = claimer().invoke({ type: "manual" });
    await standing.promise;
    for (let i = 0; i < 10; i++) {
      expect(await invoke(claimer(), { budget: "4s" })).toMatchObject({ claimed: 0, crashed: 0 });
    }
    leave.open();
    expect(await running).toMatchObject({ done: 1 });
    expect(started).toBe(1);
    await expectWhole(world, { effects: [1] });
  });
});

describe("a claim that fails at one candidate", () => {
  it("holds none of those it had taken before, and loses none: they run once the fault is gone", async () => {
    const world = await setup();
    await effectTable(world);
    const job = plain();
    const claimer = world.claimer("pg", { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(5).map((n) => ({ n })),
    );
    const definition = await world.value<string>(
      "select pg_get_functiondef(oid) from pg_proc where proname = 'take_locks' and pronamespace = 'pgclaim'::regnamespace",
    );
    const third = await world.value<string>("select id::text from pgclaim.job order by id offset 2 limit 1");
    const [argument] = /\(([a-z_]+) bigint/.exec(definition)?.slice(1) ?? [];
    const broken = definition.replace(
      /\nbegin\n/i,
      `\nbegin\n  if ${argument} = ${third} then raise exception 'out of order' using errcode = 'XX001'; end if;\n`,
    );
    expect(broken).not.toBe(definition);
    await world.sql.query(broken);
    const report = await invoke(claimer);
    expect(report.error?.message).toContain("out of order");
    expect(report.claimed).toBe(0);
    expect(await world.locks()).toBe(0);
    expect(await world.value("select count(*)::integer from pgclaim.job where state = 'ready'")).toBe(5);
    await world.sql.query(definition);
    expect(await invoke(claimer)).toMatchObject({ done: 5 });
    await expectWhole(world, { effects: upTo(5) });
  });
});

describe("the schema", () => {
  it("has no GIN index, and on the table of jobs B-trees only: nothing that grows with every change", async () => {
    const world = await setup();
    const indexes = await world.rows<{ table: string; method: string }>(
      `select distinct i.indrelid::regclass::text as table, am.amname as method from pg_index i
       join pg_class c on c.oid = i.indexrelid join pg_am am on am.oid = c.relam
       where c.relnamespace = 'pgclaim'::regnamespace`,
    );
    expect(indexes.filter(({ table }) => table === "pgclaim.job")).toEqual([{ table: "pgclaim.job", method: "btree" }]);
    expect(indexes.filter(({ method }) => !["btree", "brin"].includes(method))).toEqual([]);
  });
});

describe("sixty invocations at one instant", () => {
  it("do one due occurrence once, report no error, cost a bounded number of messages, and the server logs none", async () => {
    const complaints: string[] = [];
    const server = await startPostgres({
      onLog: (line) => {
        if (/\b(ERROR|FATAL|PANIC|WARNING):/.test(line)) complaints.push(line);
      },
    });
    onTestFinished(() => server.stop());
    const client = new pg.Client(server.url());
    await client.connect();
    onTestFinished(() => client.end());
    await migrate({ client });
    await client.query("create table effect (n integer)");
    const job = defineJob({
      kind: "tick",
      payload: z.object({}),
      async run({ tx }) {
        await tx.query("insert into effect values (1)");
      },
    });
    const yearly = defineSchedule({ name: "yearly", cron: "0 0 1 1 *", job, payload: {} });
    const claimer = () =>
      createClaimer({ jobs: [job], schedules: [yearly], database: pgDatabase(server.url()), log: () => {} });
    await claimer().register();
    await client.query("update pgclaim.schedule set next_at = clock_timestamp() - interval '1 s', fresh = false");
    complaints.length = 0;
    const reports = await Promise.all(
      Array.from({ length: 60 }, () => claimer().invoke({ type: "cron", cron: "* * * * *", scheduledAt: null })),
    );
    expect(reports.flatMap(({ error, faults }) => [...(error ? [error] : []), ...faults])).toEqual([]);
    expect((await client.query("select n from effect")).rows).toEqual([{ n: 1 }]);
    // Sixty wakes, one or a few that fire, and those who were told of work and look for it a few times.
    const messages = reports.reduce((sum, { roundTrips }) => sum + roundTrips.session + roundTrips.oneShot, 0);
    expect(messages).toBeLessThan(60 * 20);
    expect(complaints).toEqual([]);
    // And the ear is open.
    await expect(client.query("select 1 / 0")).rejects.toThrow("division by zero");
    await eventually(() => expect(complaints.join()).toContain("division by zero"));
  }, 120_000);
});
