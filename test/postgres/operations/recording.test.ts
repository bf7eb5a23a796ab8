// What wake and the ticks leave behind for whoever is on call: no wake is lost, none waits for another, and none of it can stop
// the work.

import { describe, expect, it } from "vitest";
import { defineJob } from "../../../src/index.ts";
import { results, workTick } from "../../support/engine.ts";
import { endsWithin } from "../../support/gate.ts";
import { numbered } from "../../support/kinds.ts";
import { roleOf } from "../../support/roles.ts";
import { setup, type World } from "../../support/world.ts";
import {
  alter,
  claimer,
  enqueue,
  enqueueOne,
  fence,
  type Installation,
  install,
  runTick,
  the,
  waitsForLock,
  wake,
} from "../sql/support.ts";
import { MANUAL, recordingWake, records } from "./recording_support.ts";

interface TriggerRow {
  readonly name: string;
  readonly type: string;
  readonly first_seen_at: Date;
  readonly last_seen_at: Date;
  readonly last_work_at: Date | null;
  readonly recent: readonly Date[];
}

const triggers = (world: Pick<World, "rows">) => world.rows<TriggerRow>("select * from pgclaim.trigger order by name");

/** Wakes and wakes that found work, of one trigger, in all minutes. */
const counted = async (world: Pick<World, "rows">, name = "manual") =>
  the(
    await world.rows<{ woken: number; worked: number }>(
      "select coalesce(sum(woken), 0)::integer as woken, coalesce(sum(worked), 0)::integer as worked from pgclaim.trigger_minute where name = $1",
      [name],
    ),
  );

describe("a trigger", () => {
  it("is seen by each wake it causes, and has worked where something was due", async () => {
    const world = await install();
    const idle = await recordingWake(world.sql);
    const first = the(await triggers(world));
    expect(first).toMatchObject({ ...MANUAL, last_work_at: null });
    expect(first.last_seen_at.toISOString()).toBe(new Date(idle.now).toISOString());
    expect(first.recent).toEqual([first.last_seen_at]);
    await enqueueOne(world.sql);
    const busy = await recordingWake(world.sql);
    const second = the(await triggers(world));
    expect(second).toMatchObject({ first_seen_at: first.first_seen_at, last_work_at: second.last_seen_at });
    expect(second.last_seen_at.toISOString()).toBe(new Date(busy.now).toISOString());
    await runTick(world);
    await recordingWake(world.sql);
    expect(the(await triggers(world)).last_work_at).toEqual(second.last_work_at);
    expect(await counted(world)).toEqual({ woken: 3, worked: 1 });
  });

  it("leaves nothing where the caller names none, as code before this does", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    expect(await wake(world.sql)).toMatchObject({ ready: true, faults: [] });
    for (const table of records) expect(await world.rows(`select from pgclaim.${table}`), table).toEqual([]);
  });

  it("keeps its last 21 instants, the newest last", async () => {
    const world = await install();
    const seen: string[] = [];
    for (let i = 0; i < 25; i++) seen.push(new Date((await recordingWake(world.sql)).now).toISOString());
    const { recent } = the(await triggers(world));
    expect(recent.map((at) => at.toISOString())).toEqual(seen.slice(-21));
  });

  it("is counted by minute, each wake in its own", async () => {
    const world = await install();
    await recordingWake(world.sql);
    await world.sql.query("update pgclaim.trigger_minute set at = at - interval '1 minute'");
    await recordingWake(world.sql);
    await recordingWake(world.sql);
    const minutes = await world.rows<{ at: Date; woken: number }>(
      "select at, woken from pgclaim.trigger_minute order by at",
    );
    expect(minutes.reduce((sum, { woken }) => sum + woken, 0)).toBe(3);
    for (const { at } of minutes) expect(at.getTime() % 60_000).toBe(0);
    expect(minutes.length).toBeGreaterThan(1);
  });

  it("loses no wake and holds none up, however many of them come at once", async () => {
    const world = await install();
    const first = await world.connect();
    await first.query("begin isolation level read committed");
    await recordingWake(first); // has the trigger's rows until it commits
    const clients = await Promise.all(Array.from({ length: 12 }, () => world.connect()));
    const storm = clients.map(async (client) => {
      const faults = [];
      for (let i = 0; i < 10; i++) faults.push(...(await recordingWake(client)).faults);
      return faults;
    });
    expect((await endsWithin(20_000, Promise.all(storm), "wakes beside one that has not committed")).flat()).toEqual(
      [],
    );
    expect(await counted(world)).toEqual({ woken: 0, worked: 0 });
    await first.query("commit");
    await Promise.all(clients.map((client) => recordingWake(client)));
    await recordingWake(world.sql);
    expect(await counted(world)).toEqual({ woken: 1 + 12 * 10 + 12 + 1, worked: 0 });
    expect(await world.rows("select from pgclaim.trigger_bump")).toEqual([]);
    expect(the(await triggers(world)).recent).toHaveLength(21);
  });

  it("is one of 200 at most, also where two new ones come at once; those that are known go on", async () => {
    const world = await install();
    for (let i = 0; i < 199; i++) {
      await world.sql.query("select pgclaim.bump_trigger($1, 'http', clock_timestamp(), false)", [`http ${i}`]);
    }
    const other = await world.connect();
    for (const [client, name] of [
      [world.sql, "x"],
      [other, "y"],
    ] as const) {
      await client.query("begin isolation level read committed");
      expect((await recordingWake(client, { trigger: { name, type: "http" } })).faults).toEqual([]);
    }
    await other.query("commit");
    await world.sql.query("commit");
    for (const name of ["y", "z", "http 7"]) {
      expect((await recordingWake(world.sql, { trigger: { name, type: "http" } })).faults).toEqual([]);
    }
    const names = (await triggers(world)).map(({ name }) => name);
    expect(names).toHaveLength(200);
    expect(names).toContain("x");
    expect(await counted(world, "http 7")).toEqual({ woken: 2, worked: 0 });
  });

  it("has 200 characters of its name, and a type that is known, else that is a fault and no more", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    await recordingWake(world.sql, { trigger: { name: "é".repeat(300), type: "http" } });
    expect(the(await triggers(world)).name).toBe("é".repeat(200));
    for (const trigger of [
      { name: "a", type: "telepathy" },
      { name: "", type: "http" },
    ]) {
      expect(await recordingWake(world.sql, { trigger })).toMatchObject({
        ready: true,
        faults: [{ step: "trigger", sqlstate: "23514" }],
      });
    }
  });
});

describe("a record that cannot be written", () => {
  it.each([
    ["roll_up(integer)", "roll up"],
    ["prune_records(integer)", "prune records"],
    ["sample_depth(integer,integer)", "sample"],
    ["bump_trigger(text,text,timestamp with time zone,boolean)", "trigger"],
  ])("%s is a fault, and the work is found all the same", async (signature, step) => {
    const world = await install();
    await enqueueOne(world.sql);
    await alter(world.sql, `pgclaim.${signature}`, [["\nbegin\n", "\nbegin\n  perform 1 / 0;\n"]]);
    expect(await recordingWake(world.sql)).toMatchObject({ ready: true, faults: [{ step, sqlstate: "22012" }] });
  });

  it("is none for a role that may run: it has every right its records need", async () => {
    const world = await install();
    const { client } = await roleOf(world, "run");
    await enqueue(world.sql, 3);
    await world.sql.query("update pgclaim.job set state = 'scheduled', run_at = now() + interval '1 day' where id = 1");
    await runTick(world);
    await world.sql.query("update pgclaim.tick set decided_at = decided_at - interval '1 minute'");
    await oldRecords(world);
    for (let i = 0; i < 2; i++) expect((await recordingWake(client)).faults).toEqual([]);
    for (const table of ["action", "request_key"]) expect(await world.rows(`select from pgclaim.${table}`)).toEqual([]);
    for (const table of ["trigger", "rollup", "tick_rollup", "depth"])
      expect((await world.rows(`select from pgclaim.${table}`)).length, table).toBeGreaterThan(0);
  });
});

/** One row of each table that is too old to be kept. */
async function oldRecords(world: Installation): Promise<void> {
  await world.sql.query(`
    insert into pgclaim.action (job_id, at, verb, actor) values (1, now() - interval '91 days', 'retry', 'cli');
    insert into pgclaim.request_key (role_name, key, digest, created_at) values (current_user, 'old', 'x', now() - interval '25 hours');
    insert into pgclaim.trigger_minute (name, at) values ('old', now() - interval '3 days');
    insert into pgclaim.trigger_bump (name, at, worked) values ('old', now() - interval '3 days', false);
    insert into pgclaim.rollup (width, at, kind) values (1, now() - interval '3 days', 'old');
    insert into pgclaim.tick_rollup (width, at) values (60, now() - interval '91 days')`);
}

describe("a tick's row", () => {
  const job = defineJob({ kind: "a", payload: numbered, run() {} });
  const reports = (world: World) =>
    world.rows<{ id: string; outcome: string; report: Record<string, unknown> }>(
      "select id, outcome, report from pgclaim.tick order by decided_at",
    );

  it("says what woke it, which one it was, when and for how long, and what it cost", async () => {
    const world = await setup();
    const claims = world.claimer("pg", { jobs: [job], batch: 2 });
    await claims.enqueueMany(job, [{ n: 1 }, { n: 2 }, { n: 3 }]);
    const report = await claims.invoke({ type: "cron", cron: "*/5 * * * *", scheduledAt: null });
    const rows = await reports(world);
    expect(rows).toHaveLength(2);
    for (const [i, row] of rows.entries()) {
      const told = the(report.ticks, i);
      expect(row).toMatchObject({
        id: told.tickId,
        outcome: "committed",
        report: {
          trigger: "cron */5 * * * *",
          n: i + 1,
          wakeMs: report.wakeMs,
          connectMs: report.connectMs,
          // The message that stored them is one of them.
          roundTrips: told.roundTrips,
          claimed: told.claimed,
          skips: [],
          kinds: { a: { done: told.done } },
        },
      });
      const { startedAt, totalMs } = row.report as { startedAt: string; totalMs: number };
      expect(new Date(startedAt).toISOString()).toBe(startedAt);
      expect(startedAt >= report.startedAt).toBe(true);
      expect(totalMs).toBeLessThanOrEqual(told.totalMs);
      expect(totalMs).toBeGreaterThanOrEqual(told.claimMs + told.fenceMs + told.runMs - 2); // each is rounded
    }
  });

  it("names the first 25 it skipped, and why", async () => {
    const world = await setup();
    const claims = world.claimer("pg", { jobs: [job], batch: 50, maxTicks: 1 });
    const busy = await claims.enqueueMany(
      job,
      Array.from({ length: 30 }, (_, n) => ({ n })),
    );
    const other = await world.connect();
    await other.query("begin");
    for (const { id } of busy) await other.query("select pgclaim.try_job_lock('a', $1)", [id]);
    await claims.enqueue(job, { n: 31 });
    const report = await claims.invoke({ type: "manual" });
    expect(workTick(report).skipped).toMatchObject({ busy: 30 });
    const { skips, skipped } = the(await reports(world)).report as { skips: object[]; skipped: object };
    expect(skipped).toMatchObject({ busy: 30 });
    expect(skips).toEqual(busy.slice(0, 25).map(({ id }) => ({ jobId: id, kind: "a", reason: "busy" })));
  });

  it("says the same of a tick that was lost", async () => {
    const world = await setup();
    const deadly = defineJob({
      kind: "deadly",
      payload: numbered,
      async run({ tx }) {
        await tx.query("select pg_terminate_backend(pg_backend_pid())");
      },
    });
    const claims = world.claimer("pg", { jobs: [deadly], maxTicks: 1 });
    await claims.enqueue(deadly, { n: 1 });
    const report = await claims.invoke({ type: "http", by: "/api/trigger" });
    expect(results(workTick(report))).toEqual(["unsettled"]);
    expect(await reports(world)).toEqual([
      {
        id: workTick(report).tickId,
        outcome: "lost",
        report: expect.objectContaining({
          trigger: "http /api/trigger",
          n: 1,
          claimed: 1,
          roundTrips: workTick(report).roundTrips,
          totalMs: expect.any(Number),
          skips: [],
        }),
      },
    ]);
  });

  it("and the trigger's have names the database can keep, whatever woke us", async () => {
    const world = await setup();
    const claims = world.claimer("pg", { jobs: [job] });
    await claims.enqueue(job, { n: 1 });
    expect(await claims.invoke({ type: "http", by: `a\0b\ud800${"c".repeat(300)}` })).toMatchObject({
      done: 1,
      faults: [],
    });
    const name = `http a\u2400b\ufffd${"c".repeat(300)}`.slice(0, 200);
    expect(await triggers(world)).toMatchObject([{ name, type: "http" }]);
    expect(the(await reports(world)).report.trigger).toBe(name);
  });

  it("is decided when finish ends, not when it began: sums go by that instant", async () => {
    const world = await install();
    await enqueue(world.sql, 1);
    const session = await claimer(world);
    await fence(world.sql, session);
    const barrier = await world.connect();
    await barrier.query("begin; lock table pgclaim.reservation in exclusive mode");
    const finishing = session.client.query("select from pgclaim.finish_v1($1)", [
      JSON.stringify({
        tick: session.tick,
        invocation: "x",
        jobs: session.jobs.map((one) => ({ ...one, outcome: "done" })),
      }),
    ]);
    await waitsForLock(world, session.pid);
    const late = await world.value<Date>("select clock_timestamp()");
    await barrier.query("rollback");
    await finishing;
    await session.client.query("commit");
    expect(Number(await world.value<Date>("select decided_at from pgclaim.tick"))).toBeGreaterThanOrEqual(Number(late));
  });
});
