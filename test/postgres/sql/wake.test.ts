// wake answers first and tidies up second: nothing that housekeeping meets may hide that work is due. And the questions
// it asks must cost what is in flight, not what is waiting.

import { describe, expect, it } from "vitest";
import {
  all,
  alter,
  attempts,
  claim,
  claimer,
  claimOn,
  crash,
  enqueue,
  enqueueOne,
  fence,
  finish,
  type Installation,
  install,
  job,
  newTick,
  outcomes,
  reap,
  register,
  runTick,
  settle,
  sqlState,
  type Wake,
  wake,
} from "./support.ts";

const IDLE: Wake = {
  revision: null,
  supersededBy: null,
  ready: false,
  suspects: false,
  crashed: 0,
  promoted: 0,
  pruned: 0,
  faults: [],
  schedules: [],
  now: expect.any(String),
};

const later = (world: Installation, id: string, when: string) =>
  world.sql.query(
    `update pgclaim.job set state = 'scheduled', run_at = clock_timestamp() + $2::interval where id = $1`,
    [id, when],
  );

/** Makes rows as old as they must be to be pruned. */
const age = (world: Installation, interval: string) =>
  world.sql.query(`
    update pgclaim.attempt set started_at = started_at - interval '${interval}', ended_at = ended_at - interval '${interval}';
    update pgclaim.tick set decided_at = decided_at - interval '${interval}';
    update pgclaim.history set finished_at = finished_at - interval '${interval}'`);

describe("wake", () => {
  it("of an idle installation answers that nothing is due and writes nothing", async () => {
    const world = await install();
    const before = await world.value("select pg_current_wal_insert_lsn()");
    const client = await world.connect();
    await client.query("begin isolation level read committed");
    expect(await wake(client)).toEqual(IDLE);
    expect((await client.query("select pg_current_xact_id_if_assigned() as xid")).rows).toEqual([{ xid: null }]);
    await client.query("commit");
    expect(before).toEqual(expect.any(String));
  });

  it("tells the database's own time, which the occurrences of schedules are computed from", async () => {
    const world = await install();
    const before = await world.value<Date>("select clock_timestamp()");
    const { now } = await wake(world.sql);
    const after = await world.value<Date>("select clock_timestamp()");
    expect(Date.parse(now)).toBeGreaterThanOrEqual(Number(before));
    expect(Date.parse(now)).toBeLessThanOrEqual(Number(after));
  });

  it("knows the revision of a digest it has seen", async () => {
    const world = await install();
    const revision = await register(world.sql, [{ name: "a" }], "mine");
    expect((await wake(world.sql, { digest: "mine" })).revision).toBe(revision);
    expect((await wake(world.sql, { digest: "other" })).revision).toBeNull();
  });

  it("sees what is ready in its own queues only", async () => {
    const world = await install([{ name: "a", queue: "one" }]);
    await enqueueOne(world.sql);
    expect(await wake(world.sql, { queues: ["one"] })).toEqual({ ...IDLE, ready: true });
    expect(await wake(world.sql, { queues: ["two", "one"] })).toEqual({ ...IDLE, ready: true });
    expect(await wake(world.sql, { queues: ["two"] })).toEqual(IDLE);
    expect(await wake(world.sql, { queues: [] })).toEqual(IDLE);
  });

  it("does not wake anybody for jobs that are being run", async () => {
    const world = await install();
    await enqueue(world.sql, 3);
    const session = await claimer(world);
    expect((await wake(world.sql)).ready).toBe(true);
    await fence(world.sql, session);
    expect(await wake(world.sql)).toEqual(IDLE);
    await enqueueOne(world.sql);
    expect((await wake(world.sql)).ready).toBe(true);
  });

  it("reaps the dead and says that a suspect is due", async () => {
    const world = await install();
    await enqueue(world.sql, 2);
    await crash(world);
    expect(await wake(world.sql)).toEqual({ ...IDLE, crashed: 2, suspects: true });
    expect(await wake(world.sql)).toEqual({ ...IDLE, suspects: true });
    await runTick(world, { quarantined: true });
    await runTick(world, { quarantined: true });
    expect(await wake(world.sql)).toEqual(IDLE);
  });

  it("tells suspects of its own queues only", async () => {
    const world = await install([{ name: "a", queue: "one" }]);
    await enqueueOne(world.sql);
    await crash(world, { queues: ["one"] });
    expect(await wake(world.sql, { queues: ["two"] })).toEqual({ ...IDLE, crashed: 1 });
    expect((await wake(world.sql, { queues: ["one"] })).suspects).toBe(true);
  });

  it("refuses any level but READ COMMITTED, and a standby", async () => {
    const world = await install();
    for (const level of ["isolation level repeatable read", "isolation level serializable", "read only"]) {
      await world.sql.query(`begin ${level}`);
      expect(await sqlState(wake(world.sql))).toBe("PC001");
      await world.sql.query("rollback");
    }
  });

  it("leaves no lock behind", async () => {
    const world = await install();
    const [x] = await enqueue(world.sql, 3);
    await crash(world, { batch: 1 });
    await later(world, String(x), "-1 hour");
    await wake(world.sql);
    expect(await world.locks()).toBe(0);
  });
});

describe("promotion", () => {
  it("makes jobs ready whose time has come, oldest first within its slice, and no others", async () => {
    const world = await install();
    const [x, y, z, future] = (await enqueue(world.sql, 4)) as [string, string, string, string];
    await later(world, x, "-1 minute");
    await later(world, y, "-3 minutes");
    await later(world, z, "-2 minutes");
    await later(world, future, "1 hour");
    expect(await wake(world.sql, { dueSlice: 2 })).toEqual({ ...IDLE, ready: true, promoted: 2 });
    const states = async () =>
      (await world.rows<{ state: string }>("select state from pgclaim.job order by id")).map((row) => row.state);
    expect(await states()).toEqual(["scheduled", "ready", "ready", "scheduled"]);
    expect((await wake(world.sql)).promoted).toBe(1);
    expect(await states()).toEqual(["ready", "ready", "ready", "scheduled"]);
    expect((await wake(world.sql)).promoted).toBe(0);
  });

  it("leaves a job whose lock is held, without waiting, and moves the rest", async () => {
    const world = await install();
    const [held, free] = (await enqueue(world.sql, 2)) as [string, string];
    await later(world, held, "-1 minute");
    await later(world, free, "-1 minute");
    const other = await world.connect();
    await other.query("begin");
    expect((await other.query("select pgclaim.try_job_lock('a', $1) as got", [held])).rows).toEqual([{ got: true }]);
    expect(await wake(world.sql)).toEqual({ ...IDLE, ready: true, promoted: 1 });
    await other.query("rollback");
    expect((await wake(world.sql)).promoted).toBe(1);
    expect((await job(world.sql, held)).state).toBe("ready");
  });

  it("makes a suspect due without making it normal", async () => {
    const world = await install([{ name: "a", minBackoffMs: 60_000, maxBackoffMs: 60_000 }]);
    const id = await enqueueOne(world.sql);
    await crash(world);
    await reap(world.sql);
    await crash(world, { quarantined: true });
    await reap(world.sql);
    expect(await wake(world.sql)).toEqual(IDLE);
    await later(world, id, "-1 second");
    expect(await wake(world.sql)).toEqual({ ...IDLE, promoted: 1, suspects: true });
  });

  it("of one job by two sessions at once happens once", async () => {
    const world = await install();
    const enqueued = await enqueue(world.sql, 100);
    for (const id of enqueued) await later(world, id, "-1 minute");
    const clients = await Promise.all(Array.from({ length: 4 }, () => world.connect()));
    const answers = await Promise.all(clients.map((client) => wake(client)));
    expect(answers.flatMap((answer) => answer.faults)).toEqual([]);
    const promoted = answers.reduce((sum, answer) => sum + answer.promoted, 0);
    const rest = (await wake(world.sql)).promoted;
    expect(promoted + rest).toBe(100);
  });
});

describe("housekeeping that fails", () => {
  const dueAndDead = async () => {
    const world = await install();
    const [dead, due] = (await enqueue(world.sql, 2)) as [string, string];
    await later(world, due, "-1 minute");
    await crash(world);
    await enqueueOne(world.sql);
    return { world, dead, due };
  };
  const raise = (table: string, when: string) => `
    create function refuse() returns trigger language plpgsql as
      $$ begin raise exception 'disk on fire' using errcode = '58030'; end $$;
    create trigger refuse before ${when} on pgclaim.${table} for each row execute function refuse()`;

  it("in the reaper is named, and the rest goes on", async () => {
    const { world, dead, due } = await dueAndDead();
    await world.sql.query(raise("attempt", "update"));
    expect(await wake(world.sql)).toEqual({
      ...IDLE,
      ready: true,
      promoted: 1,
      faults: [{ step: "reap", sqlstate: "58030" }],
    });
    expect((await job(world.sql, due)).state).toBe("ready");
    expect(await outcomes(world.sql, dead)).toEqual([null]);
  });

  it("in the promotion is named, and the rest goes on", async () => {
    const { world, dead, due } = await dueAndDead();
    // The reaper writes job rows too, so the trigger looks at what is being written.
    await world.sql.query(
      raise("job", "update").replace("for each row", "for each row when (old.state = 'scheduled')"),
    );
    expect(await wake(world.sql)).toEqual({
      ...IDLE,
      ready: true,
      suspects: true,
      crashed: 1,
      faults: [{ step: "promote", sqlstate: "58030" }],
    });
    expect((await job(world.sql, due)).state).toBe("scheduled");
    expect(await outcomes(world.sql, dead)).toEqual(["crashed"]);
  });

  it("in the pruning is named, and the rest goes on", async () => {
    const { world } = await dueAndDead();
    await world.sql.query("insert into pgclaim.tick (id, outcome, invocation) values (gen_random_uuid(), 'lost', 'x')");
    await age(world, "30 days");
    await world.sql.query(raise("tick", "delete"));
    expect(await wake(world.sql)).toEqual({
      ...IDLE,
      ready: true,
      suspects: true,
      crashed: 1,
      promoted: 1,
      faults: [{ step: "prune", sqlstate: "58030" }],
    });
  });

  it("in taking out what was cancelled is named, and the rest goes on", async () => {
    const { world, dead, due } = await dueAndDead();
    await world.sql.query("insert into pgclaim.cancel_request (job_id) values ($1)", [due]);
    await world.sql.query(raise("job", "delete"));
    expect(await wake(world.sql)).toEqual({
      ...IDLE,
      ready: true,
      suspects: true,
      crashed: 1,
      promoted: 1,
      faults: [{ step: "cancel", sqlstate: "58030" }],
    });
    expect((await job(world.sql, due)).state).toBe("ready");
    expect(await outcomes(world.sql, dead)).toEqual(["crashed"]);
  });

  it("in looking at gates again is named, and the rest goes on", async () => {
    const { world, dead, due } = await dueAndDead();
    await world.sql.query("insert into pgclaim.recheck (gate) values ('order:x')");
    await world.sql.query(raise("recheck", "delete"));
    expect(await wake(world.sql)).toEqual({
      ...IDLE,
      ready: true,
      suspects: true,
      crashed: 1,
      promoted: 1,
      faults: [{ step: "recheck", sqlstate: "58030" }],
    });
    expect((await job(world.sql, due)).state).toBe("ready");
    expect(await outcomes(world.sql, dead)).toEqual(["crashed"]);
    expect(await world.value("select count(*)::integer from pgclaim.recheck")).toBe(1);
  });

  it("in every step at once still answers that work is ready", async () => {
    const { world } = await dueAndDead();
    for (const step of [
      "reap(integer)",
      "promote_due(integer)",
      "cancel_requested(integer)",
      "prune(integer,bigint)",
      "recheck_gates(integer)",
    ]) {
      await alter(world.sql, `pgclaim.${step}`, [["begin\n", "begin\n  perform 1 / 0;\n"]]);
    }
    expect(await wake(world.sql)).toEqual({
      ...IDLE,
      ready: true,
      faults: ["reap", "promote", "cancel", "prune", "recheck"].map((step) => ({ step, sqlstate: "22012" })),
    });
  });
});

describe("prune", () => {
  it("deletes closed attempts after a day, not before", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await runTick(world, {}, "failed");
    await age(world, "23 hours 55 minutes");
    expect((await wake(world.sql)).pruned).toBe(0);
    await age(world, "10 minutes");
    expect((await wake(world.sql)).pruned).toBe(1);
    expect(await attempts(world.sql, id)).toEqual([]);
    expect((await job(world.sql, id)).attempt).toBe(1);
  });

  it("never deletes an open attempt, an unfinished job or a dead letter, however old", async () => {
    const world = await install();
    const [running, waiting, dead, ready] = (await enqueue(world.sql, 4)) as [string, string, string, string];
    await world.sql.query(
      "update pgclaim.job set state = 'scheduled', run_at = 'now'::timestamptz + interval '1 day' where id = $1",
      [waiting],
    );
    const session = await claimer(world, { batch: 1 });
    await fence(world.sql, session);
    await world.sql.query(
      "update pgclaim.job set state = 'dead', dead_at = now() - interval '9 years', dead_reason = 'handler' where id = $1",
      [dead],
    );
    await world.sql.query("update pgclaim.job set enqueued_at = now() - interval '9 years'");
    await age(world, "9 years");
    expect((await wake(world.sql, { historyMs: 1 })).pruned).toBe(0);
    expect(await world.value("select array_agg(id::text order by id) from pgclaim.job")).toEqual([
      running,
      waiting,
      dead,
      ready,
    ]);
    expect(await outcomes(world.sql, running)).toEqual([null]);
  });

  it("keeps a closed attempt above the job's number, which a late fence could else be granted again", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    await session.client.query("rollback");
    await settle(world.sql, session);
    expect((await job(world.sql, id)).attempt).toBe(0);
    await age(world, "2 days");
    await wake(world.sql);
    expect(await outcomes(world.sql, id)).toEqual(["interrupted"]);
    expect(await fence(world.sql, session)).toEqual([]);
    await runTick(world, {}, "failed");
    await age(world, "2 days");
    await wake(world.sql);
    expect(await attempts(world.sql, id)).toEqual([]);
  });

  it("keeps crashes that still count, and deletes them once an operator's retry has forgiven them", async () => {
    const world = await install([{ name: "a", maxCrashes: 1 }]);
    const id = await enqueueOne(world.sql);
    await crash(world);
    await reap(world.sql);
    await crash(world, { quarantined: true });
    await reap(world.sql);
    await age(world, "2 days");
    await wake(world.sql);
    expect(await outcomes(world.sql, id)).toEqual(["crashed", "crashed"]);
    await world.sql.query("select pgclaim.retry_v1($1)", [id]);
    await wake(world.sql);
    expect(await attempts(world.sql, id)).toEqual([]);
  });

  it("deletes the attempts of finished jobs", async () => {
    const world = await install();
    await enqueue(world.sql, 3);
    await runTick(world);
    await age(world, "2 days");
    await wake(world.sql);
    expect(await world.value("select count(*)::int from pgclaim.attempt")).toBe(0);
    expect(await world.value("select count(*)::int from pgclaim.history")).toBe(3);
  });

  it("keeps the row of a tick for a week: it is what stops a zombie's finish", async () => {
    const world = await install();
    const tick = newTick();
    await settle(world.sql, { tick, jobs: [] });
    await age(world, "6 days 23 hours");
    await wake(world.sql);
    expect(await world.value("select count(*)::int from pgclaim.tick")).toBe(1);
    await age(world, "2 hours");
    expect((await wake(world.sql)).pruned).toBe(1);
    expect(await world.value("select count(*)::int from pgclaim.tick")).toBe(0);
  });

  it("deletes history past its retention, and none of it without one", async () => {
    const world = await install();
    await enqueue(world.sql, 5);
    await runTick(world);
    await age(world, "1 hour");
    expect((await wake(world.sql, { historyMs: null })).pruned).toBe(0);
    expect((await wake(world.sql, { historyMs: 7_200_000 })).pruned).toBe(0);
    expect((await wake(world.sql, { historyMs: 3_500_000, pruneSlice: 2 })).pruned).toBe(2);
    expect((await wake(world.sql, { historyMs: 3_500_000 })).pruned).toBe(3);
  });

  it("is done by one at a time: a second wake prunes nothing and does not wait", async () => {
    const world = await install();
    await enqueue(world.sql, 1);
    await runTick(world);
    await age(world, "30 days");
    const keeper = await world.connect();
    await keeper.query("begin isolation level read committed");
    expect((await wake(keeper)).pruned).toBe(2);
    expect((await wake(world.sql)).pruned).toBe(0);
    await keeper.query("rollback");
    expect((await wake(world.sql)).pruned).toBe(2);
  });
});

describe("what the questions cost", () => {
  // Tuples read from the table and entries read from each index, by a call in a transaction of its own session.
  async function reads(
    world: Installation,
    call: (client: Awaited<ReturnType<Installation["connect"]>>) => Promise<unknown>,
  ) {
    const client = await world.connect();
    const counts = async () => {
      const { rows } = await client.query<{ name: string; n: string }>(`
        select c.relname as name, pg_stat_get_xact_tuples_returned(c.oid)
          + case c.relkind when 'r' then pg_stat_get_xact_tuples_fetched(c.oid) else 0 end as n
        from pg_class c where c.relnamespace = 'pgclaim'::regnamespace and c.relkind in ('r', 'i')`);
      return new Map(rows.map((row) => [row.name, Number(row.n)]));
    };
    await client.query("begin isolation level read committed read write");
    const before = await counts();
    await call(client);
    const after = await counts();
    await client.query("rollback");
    return (name: string) => (after.get(name) ?? 0) - (before.get(name) ?? 0);
  }

  async function crowded(): Promise<Installation> {
    const world = await install();
    await enqueue(world.sql, 5_000);
    await world.sql.query(
      "update pgclaim.job set state = 'scheduled', run_at = now() + interval '1 day' where id > 3000",
    );
    const session = await claimer(world, { batch: 100 });
    await fence(world.sql, session);
    await world.sql.query(
      "insert into pgclaim.attempt (job_id, n, tick, quarantined, ended_at, outcome) select i, 1, gen_random_uuid(), false, now(), 'failed' from generate_series(101, 3000) i; update pgclaim.job set attempt = 1 where id between 101 and 3000",
    );
    return world;
  }

  it.each([true, false])("claim reads its batch from the partial index, analyzed: %s", async (analyzed) => {
    const world = await crowded();
    if (analyzed) await world.sql.query("vacuum analyze pgclaim.job, pgclaim.attempt");
    const read = await reads(world, (client) => claim(client, { batch: 10 }));
    // 100 busy ones in front, ten claims, and what the cursor's first fetches may read ahead.
    expect(read("job_ready")).toBeGreaterThanOrEqual(110);
    expect(read("job_ready")).toBeLessThan(300);
    expect(read("job")).toBeLessThan(300);
    expect(read("job_suspect")).toBe(0);
    expect(read("job_scheduled")).toBe(0);
    expect(read("attempt")).toBeLessThan(300);
    expect(read("attempt_open") + read("attempt_pkey")).toBeLessThan(300);
  });

  it("claim does so too where a role's settings make every index look ruinous", async () => {
    const world = await crowded();
    await world.sql.query("vacuum analyze pgclaim.job, pgclaim.attempt");
    const read = await reads(world, async (client) => {
      await client.query("set local random_page_cost = 1000000; set local cursor_tuple_fraction = 1");
      await claim(client, { batch: 10 });
    });
    expect(read("job_ready")).toBeLessThan(300);
    expect(read("job")).toBeLessThan(300);
    expect(read("attempt")).toBeLessThan(300);
  });

  it.each([true, false])("has_ready reads what is in flight, analyzed: %s", async (analyzed) => {
    const world = await crowded();
    if (analyzed) await world.sql.query("vacuum analyze pgclaim.job, pgclaim.attempt");
    const read = await reads(world, (client) => client.query("select pgclaim.has_ready('{default}', false)"));
    expect(read("job_ready")).toBeGreaterThanOrEqual(101);
    expect(read("job_ready")).toBeLessThan(300);
    expect(read("job")).toBeLessThan(300);
    expect(read("attempt")).toBeLessThan(300);
    expect(read("attempt_open") + read("attempt_pkey")).toBeLessThan(300);
  });

  it("the whole of an idle wake reads no job that is not due", async () => {
    const world = await install();
    await enqueue(world.sql, 5_000);
    await world.sql.query("update pgclaim.job set state = 'scheduled', run_at = now() + interval '1 day'");
    await world.sql.query("vacuum analyze pgclaim.job");
    const read = await reads(world, (client) => wake(client));
    for (const name of ["job", "job_ready", "job_suspect", "job_scheduled", "job_pkey"]) {
      expect(read(name), name).toBeLessThan(10);
    }
  });

  it("a quarantined claim reads the suspects' index, however many normal jobs are ready", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    await crash(world);
    await reap(world.sql);
    await enqueue(world.sql, 2_000);
    const read = await reads(world, (client) => claim(client, { quarantined: true }));
    expect(read("job_suspect")).toBe(1);
    expect(read("job_ready")).toBe(0);
    expect(read("job")).toBeLessThan(10);
  });

  it.each([true, false])("fence, finish, settle and reap probe for their own jobs, analyzed: %s", async (analyzed) => {
    const world = await crowded();
    if (analyzed) await world.sql.query("vacuum analyze pgclaim.job, pgclaim.attempt");
    const tick = newTick();
    const read = await reads(world, async (client) => {
      await client.query(`set local pgclaim.tick = '${tick}'`);
      const claimed = await claim(client, { batch: 1 });
      await fence(client, { tick, jobs: claimed.jobs });
      await settle(client, { tick: newTick(), jobs: claimed.jobs });
      await client.query("select pgclaim.finish_v1($1)", [
        JSON.stringify({ tick, invocation: "x", jobs: all(claimed.jobs, "failed") }),
      ]);
    });
    // The 100 in front of the claim are part of it.
    expect(read("job")).toBeLessThan(300);
    expect(read("attempt")).toBeLessThan(300);
    const reaped = await reads(world, (client) => reap(client, 10));
    expect(reaped("job")).toBeLessThan(50);
    expect(reaped("attempt")).toBeLessThan(50);
    expect(reaped("attempt_open")).toBeLessThan(50);
  });

  it("pruning reads no table in which nothing is old", async () => {
    const world = await install();
    await world.sql.query(`
      insert into pgclaim.tick (id, outcome, invocation) select gen_random_uuid(), 'committed', 'x' from generate_series(1, 30000);
      insert into pgclaim.attempt (job_id, n, tick, quarantined, ended_at, outcome)
      select i, 1, gen_random_uuid(), false, now(), 'done' from generate_series(1, 30000) i;
      insert into pgclaim.history (job_id, kind, queue, outcome, attempts, failures, run_at, enqueued_at, payload)
      select i, 'a', 'default', 'done', 1, 0, now(), now(), '{}' from generate_series(1, 30000) i`);
    await world.sql.query("vacuum analyze pgclaim.tick, pgclaim.attempt, pgclaim.history");
    const read = await reads(world, (client) => wake(client, { historyMs: 86_400_000 }));
    // The last block range is not summarized before it is full: 16 pages at most, of some hundred rows each.
    for (const name of ["tick", "attempt", "history"]) expect(read(name), name).toBeLessThan(2_500);
  });
});

describe("an invocation that finds nothing", () => {
  it("may claim all the same and goes away without a trace", async () => {
    const world = await install();
    const client = await world.connect();
    const session = await claimOn(client);
    expect(session).toMatchObject({ jobs: [], skips: {}, skipped: {} });
    await finish(client, session.tick, []);
    expect(await world.locks()).toBe(0);
  });
});
