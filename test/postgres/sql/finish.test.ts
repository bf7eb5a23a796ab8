// finish writes what became of a whole tick, in the claiming transaction or not at all: rule 11's table line by line, the
// tick row as the one thing that decides, and the jobs that handlers enqueued.

import { describe, expect, it } from "vitest";
import {
  all,
  attempts,
  begin,
  claim,
  claimer,
  claimOn,
  crash,
  enqueue,
  enqueueOne,
  type FinishJob,
  failure,
  fence,
  finish,
  finishOnly,
  history,
  type Installation,
  ids,
  install,
  job,
  type KindSpec,
  newTick,
  outcomes,
  reap,
  runTick,
  type Session,
  settle,
  sqlState,
  the,
  waitsForLock,
} from "./support.ts";

/** One job of kind "a", claimed and fenced. */
async function running(kind: Partial<KindSpec> = {}): Promise<{ world: Installation; id: string; session: Session }> {
  const world = await install([{ name: "a", ...kind }, { name: "b" }]);
  const id = await enqueueOne(world.sql);
  const session = await claimer(world);
  expect(await fence(world.sql, session)).toHaveLength(1);
  return { world, id, session };
}

/** The same, of a job that is a suspect after one uncharged crash and now runs in quarantine as number 2. */
async function runningSuspect(): Promise<{ world: Installation; id: string; session: Session }> {
  const world = await install();
  const id = await enqueueOne(world.sql);
  await crash(world);
  await reap(world.sql);
  const session = await claimer(world, { quarantined: true });
  expect(await fence(world.sql, { ...session, quarantined: true })).toHaveLength(1);
  return { world, id, session };
}

const msFromNow = (date: Date | null | undefined) => Number(date) - Date.now();

describe("finish refuses", () => {
  it("where the claiming transaction's setting is missing", async () => {
    const { world, id, session } = await running();
    await session.client.query("rollback; begin");
    const error = await failure(finishOnly(session.client, session.tick, all(session.jobs, "done")));
    expect(error.code).toBe("PC004");
    expect(error.message).toContain(session.tick);
    await session.client.query("rollback");
    expect(await world.value("select count(*)::int from pgclaim.tick")).toBe(0);
    expect(await outcomes(world.sql, id)).toEqual([null]);
  });

  it("in a session that never had the setting at all", async () => {
    const { world, id, session } = await running();
    const stranger = await world.connect();
    await stranger.query("begin");
    const jobs = all(session.jobs, "done");
    expect(await sqlState(finishOnly(stranger, session.tick, jobs))).toBe("PC004");
    await stranger.query("rollback");
    expect(await outcomes(world.sql, id)).toEqual([null]);
  });

  it("where the setting is another tick's, or empty after a RESET", async () => {
    const { session } = await running();
    const jobs = all(session.jobs, "done");
    await session.client.query("savepoint s");
    for (const foreign of [newTick(), ""]) {
      await session.client.query("select set_config('pgclaim.tick', $1, true)", [foreign]);
      expect(await sqlState(finishOnly(session.client, session.tick, jobs))).toBe("PC004");
      await session.client.query("rollback to s");
    }
    expect(await finish(session.client, session.tick, jobs)).toEqual([]);
  });

  it("any level but READ COMMITTED, and a read-only transaction", async () => {
    const { session } = await running();
    await session.client.query("rollback");
    for (const start of ["isolation level repeatable read", "isolation level serializable", "read only"]) {
      await session.client.query(`begin ${start}; set local pgclaim.tick = '${session.tick}'`);
      expect(await sqlState(finishOnly(session.client, session.tick, all(session.jobs, "done")))).toBe("PC001");
      await session.client.query("rollback");
    }
  });

  it("an attempt of another tick, and then changes nothing at all", async () => {
    const { world, id, session } = await running();
    await session.client.query("rollback");
    const other = await claimOn(session.client);
    expect(other.skips).toEqual({ [id]: "open-attempt" });
    const mine = await enqueueOne(world.sql, "b");
    const claimed = await claim(session.client);
    await fence(world.sql, { tick: other.tick, jobs: claimed.jobs });
    for (const outcome of ["done", "failed", "dead", "snoozed"] as const) {
      await session.client.query("savepoint s");
      const jobs = [...all(claimed.jobs, "done"), ...all([{ id, n: 1 }], outcome)];
      expect(await sqlState(finishOnly(session.client, other.tick, jobs)), outcome).toBe("PC005");
      await session.client.query("rollback to s");
    }
    await session.client.query("rollback");
    expect(await outcomes(world.sql, id)).toEqual([null]);
    expect(await outcomes(world.sql, mine)).toEqual([null]);
    expect(await history(world.sql)).toEqual([]);
    expect(await world.value("select count(*)::int from pgclaim.tick")).toBe(0);
  });

  it("a number it never fenced", async () => {
    const { session, id } = await running();
    expect(await sqlState(finishOnly(session.client, session.tick, [{ id, n: 2, outcome: "done" }]))).toBe("PC005");
  });

  it.each(["done", "failed"] as const)("to report a job %s that is gone", async (outcome) => {
    const { world, id, session } = await running();
    await world.sql.query("delete from pgclaim.job where id = $1", [id]);
    const jobs = all(session.jobs, outcome);
    expect(await sqlState(finishOnly(session.client, session.tick, jobs))).toBe("PC005");
  });
});

describe("an outcome done", () => {
  it("deletes the job, keeps it in history, and closes the attempt", async () => {
    const { world, id, session } = await running();
    expect(await finish(session.client, session.tick, all(session.jobs, "done"))).toEqual([]);
    expect(await world.rows("select from pgclaim.job")).toHaveLength(0);
    expect(await history(world.sql)).toEqual([
      { job_id: id, outcome: "done", attempts: 1, failures: 0, last_error: null },
    ]);
    expect(await outcomes(world.sql, id)).toEqual(["done"]);
    expect(
      await world.rows("select outcome, invocation, report from pgclaim.tick where id = $1", [session.tick]),
    ).toEqual([
      {
        outcome: "committed",
        invocation: "test",
        report: {
          seen: true,
          outcomes: { done: 1 },
          kinds: { a: { done: 1, late: expect.any(Array), lateMs: expect.any(Number) } },
        },
      },
    ]);
  });

  it("carries failures and the last error into history", async () => {
    const { world, id, session } = await running();
    await finish(session.client, session.tick, all(session.jobs, "failed", { inMs: 0, error: "first" }));
    await runTick(world);
    expect(await history(world.sql)).toEqual([
      { job_id: id, outcome: "done", attempts: 2, failures: 1, last_error: "first" },
    ]);
  });

  it("and an effect of the handler commit together, or not at all", async () => {
    for (const end of ["commit", "rollback"]) {
      const { world, id, session } = await running();
      await world.sql.query("create table effect (job_id bigint)");
      await session.client.query("insert into effect values ($1)", [id]);
      await finishOnly(session.client, session.tick, all(session.jobs, "done"));
      await session.client.query(end);
      const effects = await world.value("select count(*)::int from effect");
      expect(effects, end).toBe(end === "commit" ? 1 : 0);
      expect(await world.value("select count(*)::int from pgclaim.history"), end).toBe(effects);
      expect(await world.value("select count(*)::int from pgclaim.job"), end).toBe(end === "commit" ? 0 : 1);
    }
  });
});

describe("an outcome failed", () => {
  it("counts, waits the time that was asked for, and shows the error", async () => {
    const { world, id, session } = await running();
    const rows = await finish(session.client, session.tick, all(session.jobs, "failed", { inMs: 90_000, error: "no" }));
    const row = await job(world.sql, id);
    expect(row).toMatchObject({
      state: "scheduled",
      attempt: 1,
      failures: 1,
      suspect: false,
      last_error: "no",
      dead_reason: null,
    });
    expect(msFromNow(row.run_at)).toBeGreaterThan(80_000);
    expect(msFromNow(row.run_at)).toBeLessThanOrEqual(90_500);
    expect(Number(row.rank) - Number(row.run_at)).toBe(300_000);
    expect(rows).toEqual([{ job_id: id, state: "scheduled", run_at: row.run_at, error: "no" }]);
    expect(await attempts(world.sql, id)).toMatchObject([{ n: 1, outcome: "failed", error: "no" }]);
    expect(await history(world.sql)).toEqual([]);
  });

  it("is ready again at once when it asked for no wait", async () => {
    const { world, id, session } = await running();
    const rows = await finish(session.client, session.tick, all(session.jobs, "failed", { inMs: 0 }));
    expect(the(rows).state).toBe("ready");
    expect(await runTick(world)).toEqual([{ id, n: 2 }]);
  });

  it.each([
    // kind, failures so far, the shortest and the longest wait
    [{ minBackoffMs: 1_000, maxBackoffMs: 3_600_000 }, 0, 500, 1_000],
    [{ minBackoffMs: 1_000, maxBackoffMs: 3_600_000 }, 3, 4_000, 8_000],
    [{ minBackoffMs: 1_000, maxBackoffMs: 3_600_000 }, 30, 1_800_000, 3_600_000],
    [{ minBackoffMs: 60_000, maxBackoffMs: 90_000 }, 2, 45_000, 90_000],
    [{ minBackoffMs: 60_000, maxBackoffMs: 90_000, backoff: "fixed" as const }, 7, 30_000, 60_000],
  ])("waits the backoff of its kind: %j after %i failures", async (kind, failures, least, most) => {
    const { world, id, session } = await running({ maxAttempts: 100, ...kind });
    await world.sql.query("update pgclaim.job set failures = $2 where id = $1", [id, failures]);
    await finish(session.client, session.tick, all(session.jobs, "failed"));
    const wait = msFromNow((await job(world.sql, id)).run_at);
    expect(wait).toBeGreaterThan(least - 5_000);
    expect(wait).toBeLessThanOrEqual(most + 50);
    expect((await job(world.sql, id)).state).toBe("scheduled");
  });

  it.each([
    [1, 0, "dead"],
    [3, 1, "scheduled"],
    [3, 2, "dead"],
    [3, 7, "dead"],
  ])("with maxAttempts %i and %i failures before it leaves the job %s", async (maxAttempts, failures, state) => {
    const { world, id, session } = await running({ maxAttempts });
    await world.sql.query("update pgclaim.job set failures = $2 where id = $1", [id, failures]);
    const before = await job(world.sql, id);
    const rows = await finish(session.client, session.tick, all(session.jobs, "failed", { inMs: 60_000, error: "x" }));
    const row = await job(world.sql, id);
    expect(row).toMatchObject({ state, failures: failures + 1, dead_reason: state === "dead" ? "attempts" : null });
    expect(the(rows).state).toBe(state);
    if (state === "dead") expect([row.run_at, row.rank]).toEqual([before.run_at, before.rank]);
  });

  it("does not count interruptions, hand-backs and snoozes against maxAttempts", async () => {
    const world = await install([{ name: "a", maxAttempts: 2 }]);
    const id = await enqueueOne(world.sql);
    for (const outcome of ["released", "snoozed", "released", "failed", "snoozed", "released"] as const) {
      await runTick(world, {}, outcome);
    }
    const lost = await claimer(world);
    await fence(world.sql, lost);
    await lost.client.query("rollback");
    await settle(world.sql, lost);
    expect(await job(world.sql, id)).toMatchObject({ state: "ready", failures: 1 });
    await runTick(world, {}, "failed");
    expect(await job(world.sql, id)).toMatchObject({ state: "dead", failures: 2, attempt: 8, dead_reason: "attempts" });
  });
});

describe("an outcome dead", () => {
  it("is a dead letter at the handler's wish, out of reach of every claim", async () => {
    const { world, id, session } = await running();
    const rows = await finish(session.client, session.tick, all(session.jobs, "dead", { error: "not for me" }));
    expect(rows).toMatchObject([{ job_id: id, state: "dead", error: "not for me" }]);
    expect(await job(world.sql, id)).toMatchObject({
      state: "dead",
      dead_reason: "handler",
      attempt: 1,
      failures: 1,
      suspect: false,
      last_error: "not for me",
    });
    expect(await attempts(world.sql, id)).toMatchObject([{ n: 1, outcome: "failed", error: "not for me" }]);
    expect(await world.value("select dead_at > now() - interval '1 minute' from pgclaim.job")).toBe(true);
    expect((await claimer(world)).jobs).toEqual([]);
  });
});

describe("an outcome snoozed", () => {
  it("waits without counting, keeps the last error, and takes an instant or a length", async () => {
    const { world, id, session } = await running();
    await world.sql.query("update pgclaim.job set failures = 2, last_error = 'old' where id = $1", [id]);
    const at = "2031-05-06T07:08:09.123Z";
    await finish(session.client, session.tick, all(session.jobs, "snoozed", { at }));
    expect(await job(world.sql, id)).toMatchObject({
      state: "scheduled",
      run_at: new Date(at),
      rank: new Date(Date.parse(at) + 300_000),
      failures: 2,
      attempt: 1,
      last_error: "old",
    });
    expect(await outcomes(world.sql, id)).toEqual(["snoozed"]);
  });

  it("is due at once when its instant has passed", async () => {
    const { world, session } = await running();
    const rows = await finish(
      session.client,
      session.tick,
      all(session.jobs, "snoozed", { at: "2001-01-01T00:00:00Z" }),
    );
    expect(the(rows).state).toBe("ready");
    expect((await runTick(world)).map((entry) => entry.n)).toEqual([2]);
  });
});

describe("an outcome released", () => {
  it("hands a granted job back: the number is used up, nothing else changes", async () => {
    const { world, id, session } = await running();
    await world.sql.query("update pgclaim.job set failures = 1, last_error = 'old' where id = $1", [id]);
    const before = await job(world.sql, id);
    expect(await finish(session.client, session.tick, all(session.jobs, "released"))).toEqual([]);
    expect(await job(world.sql, id)).toEqual({ ...before, attempt: 1 });
    expect(await outcomes(world.sql, id)).toEqual(["released"]);
    expect(await runTick(world)).toEqual([{ id, n: 2 }]);
  });

  it("burns a number whose fence never arrived, so that it never can", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    await finish(session.client, session.tick, all(session.jobs, "released"));
    expect(await attempts(world.sql, id)).toMatchObject([{ n: 1, tick: session.tick, outcome: "released" }]);
    expect((await job(world.sql, id)).attempt).toBe(1);
    expect(await fence(world.sql, session)).toEqual([]);
  });

  it("leaves a number alone that a late fence of another tick has taken, and the job's own number too", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    const dead = newTick();
    await fence(world.sql, { tick: dead, jobs: session.jobs });
    await finish(session.client, session.tick, all(session.jobs, "released"));
    expect(await attempts(world.sql, id)).toMatchObject([{ n: 1, tick: dead, outcome: null }]);
    expect((await job(world.sql, id)).attempt).toBe(0);
    expect(await reap(world.sql)).toBe(1);
  });

  it("waits for a fence of its own that is on its way, and closes it", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await claimer(world);
    const slow = await world.connect();
    await slow.query("begin isolation level read committed");
    await fence(slow, session);
    const burning = finish(session.client, session.tick, all(session.jobs, "released"));
    await waitsForLock(world, session.pid);
    await slow.query("commit");
    await burning;
    expect(await outcomes(world.sql, id)).toEqual(["released"]);
  });
});

describe("suspicion", () => {
  it.each([
    ["done", null],
    ["failed", false],
    ["dead", false],
    ["snoozed", false],
    ["released", true],
  ] as const)("after %s in quarantine is %s", async (outcome, suspect) => {
    const { world, id, session } = await runningSuspect();
    expect((await job(world.sql, id)).suspect).toBe(true);
    await finish(session.client, session.tick, all(session.jobs, outcome, { inMs: 0 }));
    const [row] = await world.rows<{ suspect: boolean }>("select suspect from pgclaim.job where id = $1", [id]);
    expect(row?.suspect ?? null).toBe(suspect);
    expect(await outcomes(world.sql, id)).toEqual(["crashed", outcome === "dead" ? "failed" : outcome]);
  });
});

describe("a tick of many jobs", () => {
  it("writes each its own outcome, in one go", async () => {
    const world = await install();
    const enqueued = await enqueue(world.sql, 5);
    const session = await claimer(world);
    await fence(world.sql, session);
    const wanted = ["done", "failed", "dead", "snoozed", "released"] as const;
    // In an order that is not that of the ids: what belongs together must stay together.
    const jobs = session.jobs
      .map((entry, i): FinishJob => ({ ...entry, outcome: wanted[i] ?? "done", inMs: 60_000, error: `e${i}` }))
      .reverse();
    await finish(session.client, session.tick, jobs);
    const states = await world.rows("select id, state, last_error from pgclaim.job order by id");
    expect(states).toEqual([
      { id: enqueued[1], state: "scheduled", last_error: "e1" },
      { id: enqueued[2], state: "dead", last_error: "e2" },
      { id: enqueued[3], state: "scheduled", last_error: "e3" },
      { id: enqueued[4], state: "ready", last_error: null },
    ]);
    expect(ids(session.jobs)).toEqual(enqueued);
    expect((await history(world.sql)).map((row) => row.job_id)).toEqual([enqueued[0]]);
    expect(await world.value("select report -> 'outcomes' from pgclaim.tick")).toEqual({
      done: 1,
      failed: 1,
      dead: 1,
      snoozed: 1,
      released: 1,
    });
  });

  it("of no jobs is committed all the same", async () => {
    const world = await install();
    const tick = newTick();
    const client = await world.connect();
    await begin(client, tick);
    await finish(client, tick, []);
    expect(await world.rows("select id, outcome from pgclaim.tick")).toEqual([{ id: tick, outcome: "committed" }]);
  });
});

describe("jobs enqueued with finish", () => {
  const job1 = { kind: "b", payload: { from: "handler" } };

  it("commit with the job that enqueued them, ready in the same breath", async () => {
    const { world, session } = await running();
    await finish(session.client, session.tick, all(session.jobs, "done", { enqueue: [job1, job1] }));
    const jobs = await world.rows("select kind, state, payload from pgclaim.job order by id");
    expect(jobs).toEqual([
      { kind: "b", state: "ready", payload: { from: "handler" } },
      { kind: "b", state: "ready", payload: { from: "handler" } },
    ]);
  });

  it("vanish with the tick", async () => {
    const { world, session } = await running();
    await finishOnly(session.client, session.tick, all(session.jobs, "done", { enqueue: [job1] }));
    await session.client.query("rollback");
    expect(await world.value("select count(*)::int from pgclaim.job where kind = 'b'")).toBe(0);
  });

  it.each([
    ["an unknown kind", { kind: "nobody", payload: {} }, "PC002"],
    ["a payload over the limit", { kind: "b", payload: "x".repeat(1_048_577) }, "PC003"],
    ["an instant that is none", { kind: "b", payload: {}, runAt: "soonish" }, "PC003"],
  ])("that are refused for %s fail their own handler alone, and leave nothing behind", async (_, refused, code) => {
    const world = await install();
    await enqueue(world.sql, 3);
    const session = await claimer(world);
    await fence(world.sql, session);
    const [good, bad, plain] = session.jobs;
    await finish(session.client, session.tick, [
      { ...good, id: String(good?.id), n: 1, outcome: "done", enqueue: [job1] },
      { ...bad, id: String(bad?.id), n: 1, outcome: "done", enqueue: [job1, refused] },
      { ...plain, id: String(plain?.id), n: 1, outcome: "done" },
    ]);
    expect(await world.value("select count(*)::int from pgclaim.job where kind = 'b'")).toBe(1);
    expect((await history(world.sql)).map((row) => row.job_id)).toEqual([good?.id, plain?.id]);
    const row = await job(world.sql, String(bad?.id));
    expect(row).toMatchObject({ state: "scheduled", failures: 1, attempt: 1 });
    expect(row.last_error).toContain(code);
    expect(the(await attempts(world.sql, String(bad?.id)))).toMatchObject({ outcome: "failed", error: row.last_error });
  });

  it("that are refused fail a snoozing handler too, with its kind's backoff instead of the wait it asked for", async () => {
    const { world, id, session } = await running({ minBackoffMs: 1_000 });
    await finish(
      session.client,
      session.tick,
      all(session.jobs, "snoozed", { at: "2040-01-01T00:00:00Z", enqueue: [{ kind: "nobody", payload: {} }] }),
    );
    const row = await job(world.sql, id);
    expect(row).toMatchObject({ failures: 1, state: "scheduled" });
    expect(msFromNow(row.run_at)).toBeLessThan(1_500);
  });
});

describe("the tick row", () => {
  it("lets a settle that comes while finish is uncommitted wait, and then answer committed", async () => {
    const { world, id, session } = await running();
    await finishOnly(session.client, session.tick, all(session.jobs, "done"));
    const settler = await world.connect();
    const pid = the((await settler.query("select pg_backend_pid() as pid")).rows).pid;
    const settling = settle(settler, session);
    await waitsForLock(world, pid);
    await session.client.query("commit");
    expect(await settling).toBe("committed");
    expect(await outcomes(world.sql, id)).toEqual(["done"]);
  });

  it("lets a settle that comes while finish is uncommitted win when finish rolls back", async () => {
    const { world, id, session } = await running();
    await finishOnly(session.client, session.tick, all(session.jobs, "done"));
    const settler = await world.connect();
    const pid = the((await settler.query("select pg_backend_pid() as pid")).rows).pid;
    const settling = settle(settler, session);
    await waitsForLock(world, pid);
    await session.client.query("rollback");
    expect(await settling).toBe("lost");
    expect(await outcomes(world.sql, id)).toEqual(["interrupted"]);
    expect(await history(world.sql)).toEqual([]);
  });

  it("stops a finish that comes after settle, with everything its handlers wrote", async () => {
    const { world, id, session } = await running();
    await world.sql.query("create table effect (job_id bigint)");
    await session.client.query("insert into effect values ($1)", [id]);
    expect(await settle(world.sql, session)).toBe("lost");
    const error = await failure(finishOnly(session.client, session.tick, all(session.jobs, "done")));
    expect(error).toMatchObject({ code: "23505", constraint: "tick_pkey" });
    expect((await session.client.query("commit")).command).toBe("ROLLBACK");
    expect(await world.value("select count(*)::int from effect")).toBe(0);
    expect(await outcomes(world.sql, id)).toEqual(["interrupted"]);
    expect(await runTick(world)).toEqual([{ id, n: 2 }]);
  });

  it("lets a finish that comes while settle is uncommitted wait, and then fail", async () => {
    const { world, id, session } = await running();
    const settler = await world.connect();
    await settler.query("begin isolation level read committed");
    expect(await settle(settler, session)).toBe("lost");
    const finishing = failure(finishOnly(session.client, session.tick, all(session.jobs, "done")));
    await waitsForLock(world, session.pid);
    await settler.query("commit");
    expect(await finishing).toMatchObject({ code: "23505", constraint: "tick_pkey" });
    await session.client.query("rollback");
    expect(await outcomes(world.sql, id)).toEqual(["interrupted"]);
  });
});
