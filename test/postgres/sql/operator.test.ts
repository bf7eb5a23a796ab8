// Retry and discard: an operator's verbs act on dead letters only, try the job's lock like everybody else, and answer in
// values. job_v1 is what an operator looks at before.

import { describe, expect, it } from "vitest";
import {
  all,
  attempts,
  claimer,
  crash,
  type Db,
  enqueueOne,
  fence,
  finish,
  history,
  type Installation,
  install,
  job,
  newTick,
  outcomes,
  reap,
  runTick,
  sqlState,
} from "./support.ts";

type Verb = "retry_v1" | "discard_v1";

const ask = async (db: Db, verb: Verb | "job_v1", id: string): Promise<Record<string, unknown> | null> =>
  (await db.query<{ answer: Record<string, unknown> | null }>(`select pgclaim.${verb}($1) as answer`, [id])).rows[0]
    ?.answer ?? null;

const verbs: Verb[] = ["retry_v1", "discard_v1"];

async function dead(world: Installation): Promise<string> {
  const id = await enqueueOne(world.sql);
  await runTick(world, {}, "dead");
  expect((await job(world.sql, id)).state).toBe("dead");
  return id;
}

describe.each(verbs)("%s", (verb) => {
  it("finds nothing where there is nothing, and says of a job in history how it ended", async () => {
    const world = await install();
    expect(await ask(world.sql, verb, "4711")).toEqual({ type: "not-found" });
    const id = await enqueueOne(world.sql);
    await runTick(world);
    const before = await history(world.sql);
    expect(await ask(world.sql, verb, id)).toEqual({ type: "not-dead", state: "done" });
    expect(await history(world.sql)).toEqual(before);
  });

  it("leaves a job alone that is not dead, and says how it stands", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const before = await job(world.sql, id);
    expect(await ask(world.sql, verb, id)).toEqual({ type: "not-dead", state: "ready" });
    await world.sql.query("update pgclaim.job set state = 'scheduled'");
    expect(await ask(world.sql, verb, id)).toEqual({ type: "not-dead", state: "scheduled" });
    expect(await job(world.sql, id)).toEqual({ ...before, state: "scheduled" });
  });

  it("is busy while another session holds the job's lock, and waits for nobody", async () => {
    const world = await install();
    const running = await enqueueOne(world.sql);
    const session = await claimer(world);
    expect(await ask(world.sql, verb, running)).toEqual({ type: "busy" });
    await session.client.query("rollback");
    const id = await (async () => {
      await runTick(world);
      return dead(world);
    })();
    const other = await world.connect();
    await other.query(`begin; select pgclaim.try_job_lock('a', ${id})`);
    expect(await ask(world.sql, verb, id)).toEqual({ type: "busy" });
    await other.query("rollback");
    expect(await ask(world.sql, verb, id)).not.toEqual({ type: "busy" });
  });

  it("refuses a transaction that is not READ COMMITTED", async () => {
    const world = await install();
    const id = await dead(world);
    await world.sql.query("begin isolation level repeatable read");
    expect(await sqlState(ask(world.sql, verb, id))).toBe("PC001");
    await world.sql.query("rollback");
    expect((await job(world.sql, id)).state).toBe("dead");
  });

  it("by two operators at once acts once", async () => {
    const world = await install();
    const id = await dead(world);
    const [one, two] = [await world.connect(), await world.connect()];
    await one.query("begin isolation level read committed");
    const first = await ask(one, verb, id);
    expect(first?.type).toBe(verb === "retry_v1" ? "retried" : "discarded");
    expect(await ask(two, verb, id)).toEqual({ type: "busy" });
    await one.query("commit");
    expect(await ask(two, verb, id)).toEqual({ type: "not-dead", state: verb === "retry_v1" ? "ready" : "discarded" });
  });
});

describe("retry", () => {
  it("gives a dead letter a fresh set of attempts, while its numbers go on", async () => {
    const world = await install([{ name: "a", maxAttempts: 2, targetLatencyMs: 60_000 }]);
    const id = await enqueueOne(world.sql);
    await runTick(world, {}, "failed");
    await runTick(world, {}, "failed");
    expect(await job(world.sql, id)).toMatchObject({ state: "dead", failures: 2, dead_reason: "attempts" });
    expect(await ask(world.sql, "retry_v1", id)).toEqual({ type: "retried" });
    const row = await job(world.sql, id);
    expect(row).toMatchObject({ state: "ready", failures: 0, attempt: 2, crash_base: 2, dead_reason: null });
    expect(Number(row.rank) - Number(row.run_at)).toBeGreaterThanOrEqual(59_999);
    expect(Math.abs(Number(row.run_at) - Date.now())).toBeLessThan(10_000);
    expect(await runTick(world, {}, "failed")).toEqual([{ id, n: 3 }]);
    expect((await job(world.sql, id)).state).toBe("ready");
    expect(await runTick(world, {}, "failed")).toEqual([{ id, n: 4 }]);
    expect((await job(world.sql, id)).state).toBe("dead");
  });

  it("leaves a normal dead letter normal, and a killer in quarantine", async () => {
    const world = await install([{ name: "a", maxCrashes: 1 }]);
    const normal = await dead(world);
    await ask(world.sql, "retry_v1", normal);
    expect(await job(world.sql, normal)).toMatchObject({ state: "ready", suspect: false });
    await runTick(world);
    const killer = await enqueueOne(world.sql);
    await crash(world);
    await reap(world.sql);
    await crash(world, { quarantined: true });
    await reap(world.sql);
    expect(await ask(world.sql, "retry_v1", killer)).toEqual({ type: "retried" });
    expect(await job(world.sql, killer)).toMatchObject({ state: "ready", suspect: true });
    expect((await claimer(world)).jobs).toEqual([]);
    expect(await runTick(world, { quarantined: true })).toEqual([{ id: killer, n: 3 }]);
  });
});

describe("discard", () => {
  it("moves a dead letter to history as discarded, for good", async () => {
    const world = await install();
    const id = await dead(world);
    await world.sql.query("update pgclaim.job set last_error = 'why'");
    expect(await ask(world.sql, "discard_v1", id)).toEqual({ type: "discarded" });
    expect(await history(world.sql)).toEqual([
      { job_id: id, outcome: "discarded", attempts: 1, failures: 1, last_error: "why" },
    ]);
    expect((await claimer(world)).jobs).toEqual([]);
  });

  it("closes what a late fence left open, and a fence that comes later still finds no job", async () => {
    const world = await install();
    const id = await dead(world);
    await fence(world.sql, { tick: newTick(), jobs: [{ id, n: 2 }] });
    await ask(world.sql, "discard_v1", id);
    expect(await outcomes(world.sql, id)).toEqual(["failed", "released"]);
    expect(await fence(world.sql, { tick: newTick(), jobs: [{ id, n: 3 }] })).toEqual([]);
    expect(await attempts(world.sql, id)).toHaveLength(2);
  });
});

describe("job_v1", () => {
  it("is null where there is nothing", async () => {
    const world = await install();
    expect(await ask(world.sql, "job_v1", "4711")).toBeNull();
  });

  it("shows a job's whole way: ready, running, scheduled, dead, done", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql, "a", { n: 1 });
    const look = () => ask(world.sql, "job_v1", id);
    expect(await look()).toMatchObject({ id, kind: "a", state: "ready", attempt: 0, attempts: [], payload: { n: 1 } });
    const session = await claimer(world);
    expect(await look()).toMatchObject({ state: "ready" });
    await fence(world.sql, session);
    expect(await look()).toMatchObject({ state: "running", attempts: [{ n: 1, outcome: null, endedAt: null }] });
    await finish(session.client, session.tick, all(session.jobs, "failed", { inMs: 60_000, error: "no" }));
    expect(await look()).toMatchObject({
      state: "scheduled",
      failures: 1,
      attempts: [{ n: 1, outcome: "failed", error: "no" }],
    });
    await world.sql.query("update pgclaim.job set state = 'ready'");
    await runTick(world, {}, "dead");
    expect(await look()).toMatchObject({ state: "dead", deadReason: "handler", deadAt: expect.any(String) });
    await ask(world.sql, "retry_v1", id);
    await runTick(world);
    expect(await look()).toMatchObject({ state: "done", attempt: 3, finishedAt: expect.any(String) });
    expect((await look())?.attempts).toHaveLength(3);
  });

  it("does not call a job running whose holder is gone, nor one that is only locked", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await crash(world);
    expect(await ask(world.sql, "job_v1", id)).toMatchObject({ state: "ready", attempts: [{ outcome: null }] });
  });

  it("gives ids as text, so that none is rounded", async () => {
    const world = await install();
    await world.sql.query("alter table pgclaim.job alter column id restart with 9007199254740993");
    const id = await enqueueOne(world.sql);
    expect(await ask(world.sql, "job_v1", id)).toMatchObject({ id: "9007199254740993" });
  });
});
