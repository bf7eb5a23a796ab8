// Gates of ordering keys, function by function: who stands in the claim index, what a claim takes of a line, what finish
// and the operator's verbs leave of it, and what refill heals. The engine stands aside.

import { describe, expect, it } from "vitest";
import {
  alter,
  crash,
  fence,
  finish,
  type Installation,
  ids,
  kill,
  newTick,
  outcomes,
  pidOf,
  reap,
  runTick,
  sqlState,
  the,
  waitsForLock,
  wake,
} from "../sql/support.ts";
import { at, attemptsOf, claimLine, finished, installOrdered, keyed, line, notes, put } from "./support.ts";

async function putMany(world: Installation, k: string, count: number, from = 1): Promise<string[]> {
  const made: string[] = [];
  for (let n = from; n < from + count; n++) made.push(await put(world.sql, k, n));
  return made;
}

const verb = async (world: Installation, name: string, id: string) =>
  (await world.value<{ type: string }>(`select pgclaim.${name}($1)`, [id])).type;

const elapse = async (world: Installation) => {
  await world.sql.query("update pgclaim.job set run_at = clock_timestamp() where state = 'scheduled'");
  await world.sql.query("select pgclaim.promote_due(500)");
};

describe("a claim of a line", () => {
  it("takes the head and those behind it in the order of places, each behind the one before", async () => {
    const world = await installOrdered();
    const late = await world.connect();
    await at(late, "read committed");
    const last = await put(late, "x", 4); // the smallest id and the last place
    const [one, two, three] = (await putMany(world, "x", 3)) as [string, string, string];
    await late.query("commit");
    const other = await put(world.sql, "y", 9);
    const { jobs } = await claimLine(world);
    expect(jobs.map(({ id, behind }) => [id, behind])).toEqual([
      [one, null],
      [two, one],
      [three, two],
      [last, three],
      [other, null],
    ]);
  });

  it("leaves a key alone whose lock somebody holds, and names it", async () => {
    const world = await installOrdered();
    await putMany(world, "x", 2);
    await put(world.sql, "y", 3);
    const holder = await world.connect();
    await holder.query("begin");
    await holder.query(
      "select pg_advisory_xact_lock(pgclaim.name_key('order', 'k:x', i.seed)) from pgclaim.installation i",
    );
    expect((await runTick(world)).length).toBe(1);
    expect(await finished(world.sql)).toEqual([3]);
    await holder.query("rollback");
    expect((await runTick(world)).length).toBe(2);
    expect(await finished(world.sql)).toEqual([3, 1, 2]);
  });

  it("holds the key once: another session gets nothing of the line and all of the other lines", async () => {
    const world = await installOrdered();
    await putMany(world, "x", 3);
    const holder = await claimLine(world, { batch: 1 });
    const other = await put(world.sql, "y", 9);
    const rival = await claimLine(world);
    expect(ids(rival.jobs)).toEqual([other]);
    expect(rival.skips).toEqual([`${the(holder.jobs).id} busy`]);
  });

  it("ends at the batch, and the next tick goes on from there", async () => {
    const world = await installOrdered();
    await putMany(world, "x", 5);
    expect(await runTick(world, { batch: 3 })).toHaveLength(3);
    expect(await line(world.sql, "x")).toEqual(["4 ready", "5 blocked"]);
    expect(await runTick(world, { batch: 3 })).toHaveLength(2);
    expect(await finished(world.sql)).toEqual([1, 2, 3, 4, 5]);
  });

  it("ends before one that is not due yet; that one then keeps the key until its time", async () => {
    const world = await installOrdered();
    await put(world.sql, "x", 1);
    await put(world.sql, "x", 2, { delayMs: 3_600_000 });
    await put(world.sql, "x", 3);
    expect(await runTick(world)).toHaveLength(1);
    expect(await line(world.sql, "x")).toEqual(["2 scheduled", "3 blocked"]);
    await put(world.sql, "y", 9);
    expect(await runTick(world)).toHaveLength(1);
    expect(await line(world.sql, "x")).toEqual(["2 scheduled", "3 blocked"]);
    await elapse(world);
    expect(await runTick(world)).toHaveLength(2);
    expect(await finished(world.sql)).toEqual([1, 9, 2, 3]);
  });

  it("ends before one whose queue is paused or not served here", async () => {
    const world = await installOrdered([keyed, { ...keyed, name: "b", queue: "slow" }]);
    await put(world.sql, "x", 1);
    await put(world.sql, "x", 2, { kind: "b" });
    await put(world.sql, "x", 3);
    const asked = await claimLine(world);
    expect(asked.jobs).toHaveLength(1);
    await asked.client.query("rollback");
    await world.sql.query("select pgclaim.pause_queue_v1('slow')");
    const paused = await claimLine(world, { queues: ["default", "slow"] });
    expect(paused.jobs).toHaveLength(1);
    await paused.client.query("rollback");
    await world.sql.query("select pgclaim.resume_queue_v1('slow')");
    expect((await claimLine(world, { queues: ["default", "slow"] })).jobs).toHaveLength(3);
  });

  it.each([
    ["a kind not handled here", { kinds: ["a"] }],
    ["a kind whose timeout does not fit", { kinds: ["a"], unfit: ["b"] }],
  ])("ends before %s", async (_, request) => {
    const world = await installOrdered([keyed, { ...keyed, name: "b" }]);
    await put(world.sql, "x", 1);
    await put(world.sql, "x", 2, { kind: "b" });
    await put(world.sql, "x", 3);
    expect((await claimLine(world, request)).jobs).toHaveLength(1);
  });

  it("ends before one that wants a tick of its own, and before one with an open attempt", async () => {
    const world = await installOrdered([keyed, { ...keyed, name: "b", alone: true }]);
    await put(world.sql, "x", 1);
    await put(world.sql, "x", 2, { kind: "b" });
    const second = await put(world.sql, "y", 3).then(() => put(world.sql, "y", 4));
    await put(world.sql, "y", 5);
    await fence(world.sql, { tick: newTick(), jobs: [{ id: second, n: 1 }] });
    const { jobs, skips } = await claimLine(world);
    expect(jobs).toHaveLength(2);
    expect(skips.map((skip) => skip.replace(/^\d+ /, ""))).toEqual(["alone", "open-attempt"]);
  });

  it("ends before a dead letter that halts the key, and does not run past it", async () => {
    // The second one's deadline has passed while the first one fails: a dead letter in the middle of the line.
    const world = await installOrdered();
    await put(world.sql, "x", 1);
    const missed = await put(world.sql, "x", 2, { deadlineAt: "2000-01-01T00:00:00Z" });
    await put(world.sql, "x", 3);
    const tick = await claimLine(world);
    expect(tick.jobs.map((job) => job.missed)).toEqual([false, true, false]);
    const startable = tick.jobs.filter((job) => !job.missed);
    await fence(world.sql, { tick: tick.tick, jobs: startable });
    const [head, third] = startable.map(({ id, n }) => ({ id, n })) as [
      { id: string; n: number },
      { id: string; n: number },
    ];
    await finish(tick.client, tick.tick, [
      { ...head, outcome: "failed", inMs: 0 },
      { id: missed, n: 1, outcome: "missed" as never },
      { ...third, outcome: "released" },
    ]);
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 dead", "3 blocked"]);
    expect(await runTick(world)).toEqual([{ id: head.id, n: 2 }]);
    expect(await line(world.sql, "x")).toEqual(["2 dead", "3 blocked"]);
    expect(await runTick(world)).toEqual([]);
    expect(await verb(world, "skip_v1", missed)).toBe("skipped");
    expect(await line(world.sql, "x")).toEqual(["2 dead", "3 ready"]);
    expect(await runTick(world)).toEqual([{ id: third.id, n: 2 }]);
  });

  it("skips a head that another session finished between its look and its lock, and takes nobody behind it", async () => {
    const world = await installOrdered();
    await putMany(world, "x", 2);
    const barrier = await world.connect();
    await barrier.query("select pg_advisory_lock(4711)");
    await alter(
      world.sql,
      "pgclaim.claim_v1(jsonb)",
      [["took := pgclaim.take_locks(", "perform pg_advisory_lock_shared(4711); took := pgclaim.take_locks("]],
      "pgclaim.slow_claim",
    );
    const client = await world.connect();
    const pid = await pidOf(client);
    await client.query("begin");
    const slow = client.query<{ job_id: string; skip: string | null }>(
      `select job_id, skip from pgclaim.slow_claim('{"queues":["default"],"kinds":["a"],"unfit":[],"revision":9,"batch":9,"quarantined":false,"maxCandidates":9,"maxSkips":9}') where job_id is not null`,
    );
    await waitsForLock(world, pid);
    expect(await runTick(world, { batch: 1 })).toHaveLength(1);
    await barrier.query("select pg_advisory_unlock(4711)");
    expect((await slow).rows.map(({ skip }) => skip)).toEqual(["stale"]);
    await client.query("rollback");
    await barrier.end();
    await client.end();
    expect(await line(world.sql, "x")).toEqual(["2 ready"]);
  });

  it("leaves a ready job that is not the lowest of its key to those before it", async () => {
    const world = await installOrdered();
    const [, two] = (await putMany(world, "x", 2)) as [string, string];
    await world.sql.query("update pgclaim.job set state = case id when $1 then 'ready' else 'blocked' end", [two]);
    const rival = await claimLine(world);
    expect(rival.skips).toEqual([`${two} behind`]);
    expect(rival.jobs).toEqual([]);
    await rival.client.query("rollback");
    await world.sql.query("select pgclaim.refill('order:k:x')");
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked"]);
  });

  it("does not mistake a busy key for a busy name that reads the same", async () => {
    const world = await installOrdered([keyed, { name: "b", locks: ["k:{k}"] }]);
    await put(world.sql, "x", 1);
    const holder = await claimLine(world);
    expect(holder.jobs).toHaveLength(1);
    await put(world.sql, "x", 2, { kind: "b" });
    const rival = await claimLine(world);
    expect(rival.jobs).toHaveLength(1);
    expect(rival.skips).toHaveLength(1);
  });
});

describe("a suspect", () => {
  it("runs without those behind it, and then they run in order, each alone if it is one too", async () => {
    const world = await installOrdered();
    await putMany(world, "x", 3);
    await put(world.sql, "y", 9);
    await crash(world, { batch: 2 });
    expect(await reap(world.sql)).toBe(2);
    expect(await line(world.sql, "x")).toEqual(["1 ready suspect", "2 blocked suspect", "3 blocked"]);
    // The key stands still for normal ticks, and costs the others nothing.
    expect(await runTick(world)).toHaveLength(1);
    const tick = await claimLine(world, { quarantined: true });
    expect(tick.jobs).toHaveLength(1);
    await tick.client.query("rollback");
    expect(await runTick(world, { quarantined: true })).toHaveLength(1);
    expect(await runTick(world)).toHaveLength(0);
    expect(await runTick(world, { quarantined: true })).toHaveLength(1);
    expect(await runTick(world)).toHaveLength(1);
    expect(await finished(world.sql)).toEqual([9, 1, 2, 3]);
  });

  it("that is charged waits with its key, and as a dead letter halts it or lets the others pass", async () => {
    for (const whenDead of ["halt", "skip"] as const) {
      const world = await installOrdered([
        { ...keyed, whenDead, maxCrashes: 2, minBackoffMs: 3_600_000, maxBackoffMs: 3_600_000 },
      ]);
      const [head] = await putMany(world, "x", 2);
      await crash(world, { batch: 1 });
      await reap(world.sql);
      await crash(world, { quarantined: true });
      await reap(world.sql);
      expect(await line(world.sql, "x")).toEqual(["1 scheduled suspect", "2 blocked"]);
      await elapse(world);
      await crash(world, { quarantined: true });
      await wake(world.sql);
      expect(await line(world.sql, "x")).toEqual(["1 dead suspect", whenDead === "halt" ? "2 blocked" : "2 ready"]);
      expect(await notes(world.sql)).toEqual([]);
      expect(await verb(world, "retry_v1", String(head))).toBe("retried");
      expect(await line(world.sql, "x")).toEqual(
        whenDead === "halt" ? ["1 ready suspect", "2 blocked"] : ["2 ready", "1 blocked suspect"],
      );
    }
  });

  it("in the middle of a line ends it", async () => {
    const world = await installOrdered();
    const [, two] = await putMany(world, "x", 3);
    await world.sql.query("update pgclaim.job set suspect = true where id = $1", [two]);
    expect(await runTick(world)).toHaveLength(1);
    expect(await line(world.sql, "x")).toEqual(["2 ready suspect", "3 blocked"]);
    expect(await runTick(world, { quarantined: true })).toHaveLength(1);
    expect(await runTick(world)).toHaveLength(1);
    expect(await finished(world.sql)).toEqual([1, 2, 3]);
  });
});

describe("finish", () => {
  it("writes history in the order of places, which is not that of ids", async () => {
    const world = await installOrdered();
    const late = await world.connect();
    await at(late, "read committed");
    await put(late, "x", 3);
    await putMany(world, "x", 2);
    await late.query("commit");
    expect(await runTick(world)).toHaveLength(3);
    expect(await finished(world.sql)).toEqual([1, 2, 3]);
    expect(
      await world.rows(
        "select from pgclaim.history h join pgclaim.history o on o.place < h.place and o.job_id > h.job_id",
      ),
    ).not.toEqual([]);
  });

  it.each(["failed", "snoozed"] as const)(
    "of a %s head keeps its place and its key while it waits",
    async (outcome) => {
      const world = await installOrdered();
      await putMany(world, "x", 2);
      await put(world.sql, "y", 9);
      const tick = await claimLine(world);
      await fence(world.sql, { tick: tick.tick, jobs: tick.jobs });
      const [head, follower, other] = tick.jobs.map(({ id, n }) => ({ id, n })) as [
        { id: string; n: number },
        { id: string; n: number },
        { id: string; n: number },
      ];
      await finish(tick.client, tick.tick, [
        { ...head, outcome, inMs: 3_600_000 },
        { ...follower, outcome: "released" },
        { ...other, outcome: "done" },
      ]);
      expect(await line(world.sql, "x")).toEqual(["1 scheduled", "2 blocked"]);
      expect(await outcomes(world.sql, follower.id)).toEqual(["released"]);
      await put(world.sql, "x", 3);
      await put(world.sql, "y", 10);
      expect(await runTick(world)).toHaveLength(1);
      expect(await line(world.sql, "x")).toEqual(["1 scheduled", "2 blocked", "3 blocked"]);
      await elapse(world);
      expect(await runTick(world)).toHaveLength(3);
      expect(await finished(world.sql)).toEqual([9, 10, 1, 2, 3]);
    },
  );

  it("of a dead head halts the key, or lets the others pass, as its kind says", async () => {
    for (const whenDead of ["halt", "skip"] as const) {
      const world = await installOrdered([{ ...keyed, whenDead }]);
      await putMany(world, "x", 3);
      expect(await runTick(world, { batch: 1 }, "dead")).toHaveLength(1);
      await put(world.sql, "x", 4);
      expect(await line(world.sql, "x")).toEqual(
        whenDead === "halt"
          ? ["1 dead", "2 blocked", "3 blocked", "4 blocked"]
          : ["1 dead", "2 ready", "3 blocked", "4 blocked"],
      );
      expect(await runTick(world)).toHaveLength(whenDead === "halt" ? 0 : 3);
    }
  });

  it("burns a whole line when the fence's answer never came, and the next tick takes the same line", async () => {
    const world = await installOrdered();
    await putMany(world, "x", 3);
    const tick = await claimLine(world);
    await finish(
      tick.client,
      tick.tick,
      tick.jobs.map(({ id, n }) => ({ id, n, outcome: "released" as const })),
    );
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "3 blocked"]);
    expect((await runTick(world)).map(({ n }) => n)).toEqual([2, 2, 2]);
    expect(await finished(world.sql)).toEqual([1, 2, 3]);
  });

  it("draws the places of what its tick enqueued, behind what committed before and before what commits after", async () => {
    const world = await installOrdered();
    await put(world.sql, "x", 1);
    const tick = await claimLine(world);
    await fence(world.sql, { tick: tick.tick, jobs: tick.jobs });
    await put(tick.client, "x", 3);
    await put(tick.client, "y", 4);
    await put(world.sql, "x", 2);
    await finish(tick.client, tick.tick, [
      { id: the(tick.jobs).id, n: 1, outcome: "done", enqueue: [{ kind: "a", payload: { k: "x", n: 5 } }] },
    ]);
    await put(world.sql, "x", 6);
    expect(await line(world.sql, "x")).toEqual(["2 ready", "3 blocked", "5 blocked", "6 blocked"]);
    expect(await line(world.sql, "y")).toEqual(["4 ready"]);
  });

  it("leaves a gate that somebody holds to the next wake: a caller that set its constraints immediate stops no tick", async () => {
    const world = await installOrdered();
    await putMany(world, "x", 2);
    await put(world.sql, "y", 1);
    const caller = await world.connect();
    await at(caller, "read committed");
    await put(caller, "x", 3);
    await caller.query("set constraints all immediate");
    expect(await runTick(world, { batch: 1 })).toHaveLength(1);
    expect(await runTick(world, { batch: 1 }, "failed")).toHaveLength(1);
    expect(await notes(world.sql)).toEqual(["order:k:x"]);
    expect(await line(world.sql, "x")).toEqual(["2 blocked"]);
    expect(await line(world.sql, "y")).toEqual(["1 ready"]);
    // As long as the gate is held nobody of its key runs, and a wake waits for nobody either.
    expect((await wake(world.sql)).faults).toEqual([]);
    expect(await line(world.sql, "x")).toEqual(["2 blocked"]);
    await caller.query("commit");
    await wake(world.sql);
    expect(await line(world.sql, "x")).toEqual(["2 ready", "3 blocked"]);
    await elapse(world);
    expect(await runTick(world)).toHaveLength(3);
    expect((await finished(world.sql)).sort()).toEqual([1, 1, 2, 3]);
  });

  it.each(["done", "failed", "dead", "released", "snoozed"] as const)(
    "of jobs that ended %s needs no gate that is held, of an order, a limit or a name, and the wake after it puts all right",
    async (outcome) => {
      const world = await installOrdered([
        { ...keyed, name: "a" },
        { name: "l", limitNames: ["{k}"], limitMaxes: [1], minBackoffMs: 0, maxBackoffMs: 0 },
        { name: "x", locks: ["{k}"], minBackoffMs: 0, maxBackoffMs: 0 },
      ]);
      for (const kind of ["a", "l", "x"]) for (const n of [1, 2, 3]) await put(world.sql, "g", n, { kind });
      const holder = await world.connect();
      await holder.query("begin");
      await holder.query("select pgclaim.lock_gates(array(select distinct gate from pgclaim.job))");
      const kinds = ["a", "l", "x"];
      expect((await runTick(world, { kinds, batch: 3 }, outcome)).length).toBeGreaterThan(0);
      expect((await notes(world.sql)).length).toBeGreaterThan(0);
      await holder.query("commit");
      for (let rounds = 0; rounds < 12; rounds++) {
        await elapse(world);
        await wake(world.sql);
        await runTick(world, { kinds });
      }
      const left = await world.rows("select kind from pgclaim.job where state <> 'dead'");
      // A dead letter halts its key, and nothing else.
      expect(left).toEqual(outcome === "dead" ? left.filter(({ kind }) => kind === "a") : []);
    },
  );

  it("waits for a gate that it enqueues behind: the place is drawn there", async () => {
    const world = await installOrdered();
    await put(world.sql, "x", 1);
    const tick = await claimLine(world);
    await fence(world.sql, { tick: tick.tick, jobs: tick.jobs });
    await put(tick.client, "y", 2);
    const holder = await world.connect();
    await holder.query("begin");
    await holder.query("select pgclaim.lock_gates(array['order:k:y'])");
    const pid = await pidOf(tick.client);
    const finishing = finish(tick.client, tick.tick, [{ id: the(tick.jobs).id, n: 1, outcome: "done" }]);
    await waitsForLock(world, pid);
    await holder.query("commit");
    await finishing;
    expect(await notes(world.sql)).toEqual([]);
    expect(await line(world.sql, "y")).toEqual(["2 ready"]);
  });

  it("sets nothing free early: between a tick's claim and its finish nobody holds a gate", async () => {
    const world = await installOrdered();
    await putMany(world, "x", 2);
    const tick = await claimLine(world);
    await put(tick.client, "x", 4);
    await put(tick.client, "y", 5);
    await tick.client.query("set constraints all immediate");
    await world.sql.query("set lock_timeout = '1ms'");
    await put(world.sql, "x", 3);
    await put(world.sql, "y", 6);
    expect(await line(world.sql, "y")).toEqual(["6 ready"]);
    await tick.client.query("set constraints all deferred");
    await finish(
      tick.client,
      tick.tick,
      tick.jobs.map(({ id, n }) => ({ id, n, outcome: "released" as const })),
    );
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "3 blocked", "4 blocked"]);
    expect(await line(world.sql, "y")).toEqual(["6 ready", "5 blocked"]);
  });
});

describe("an operator's verb", () => {
  async function halted(whenDead: "halt" | "skip" = "halt"): Promise<{ world: Installation; head: string }> {
    const world = await installOrdered([{ ...keyed, whenDead }]);
    const [head] = await putMany(world, "x", 3);
    await runTick(world, { batch: 1 }, "dead");
    return { world, head: String(head) };
  }

  it("retry puts a halted key right: the head keeps its place, and the others follow it", async () => {
    const { world, head } = await halted();
    expect(await verb(world, "retry_v1", head)).toBe("retried");
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "3 blocked"]);
    expect(await runTick(world)).toHaveLength(3);
    expect(await finished(world.sql)).toEqual([1, 2, 3]);
  });

  it("retry of a head runs it although a dead letter behind it halts the key further down", async () => {
    const { world, head } = await halted();
    await world.sql.query(
      "update pgclaim.job set state = 'dead', dead_at = now(), dead_reason = 'missed' where payload ->> 'n' = '2'",
    );
    expect(await verb(world, "retry_v1", head)).toBe("retried");
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 dead", "3 blocked"]);
    expect(await runTick(world)).toHaveLength(1);
    expect(await line(world.sql, "x")).toEqual(["2 dead", "3 blocked"]);
  });

  it("skip lets the others pass, and a retry after it goes to the end", async () => {
    const { world, head } = await halted();
    expect(await verb(world, "skip_v1", head)).toBe("skipped");
    expect(await line(world.sql, "x")).toEqual(["1 dead", "2 ready", "3 blocked"]);
    expect(await verb(world, "retry_v1", head)).toBe("retried");
    expect(await line(world.sql, "x")).toEqual(["2 ready", "3 blocked", "1 blocked"]);
    expect(await runTick(world)).toHaveLength(3);
    expect(await finished(world.sql)).toEqual([2, 3, 1]);
  });

  it("skip is for the dead letter: retried, it halts its key again when it dies again", async () => {
    const { world, head } = await halted();
    expect(await verb(world, "skip_v1", head)).toBe("skipped");
    expect(await runTick(world)).toHaveLength(2);
    expect(await verb(world, "retry_v1", head)).toBe("retried");
    expect(await runTick(world, {}, "dead")).toHaveLength(1);
    await put(world.sql, "x", 4);
    expect(await line(world.sql, "x")).toEqual(["1 dead", "4 blocked"]);
  });

  it("discard takes the head out and refills", async () => {
    const { world, head } = await halted();
    expect(await verb(world, "discard_v1", head)).toBe("discarded");
    expect(await line(world.sql, "x")).toEqual(["2 ready", "3 blocked"]);
    expect(await finished(world.sql, "discarded")).toEqual([1]);
  });

  it("retry of a dead letter that let others pass draws a new place at the end, also with nobody before it", async () => {
    const { world, head } = await halted("skip");
    expect(await verb(world, "retry_v1", head)).toBe("retried");
    expect(await line(world.sql, "x")).toEqual(["2 ready", "3 blocked", "1 blocked"]);
    await runTick(world, { batch: 2 });
    await put(world.sql, "x", 4);
    expect(await line(world.sql, "x")).toEqual(["1 ready", "4 blocked"]);
    await runTick(world, { batch: 1 }, "dead");
    await runTick(world);
    expect(await verb(world, "retry_v1", head)).toBe("retried");
    expect(await line(world.sql, "x")).toEqual(["1 ready"]);
  });

  it.each([
    ["the head", 1, ["2 ready", "3 blocked"]],
    ["one in the middle", 2, ["1 ready", "3 blocked"]],
    ["the last", 3, ["1 ready", "2 blocked"]],
  ] as const)("cancel of %s leaves the others in order", async (_, n, left) => {
    const world = await installOrdered();
    const made = await putMany(world, "x", 3);
    expect(await verb(world, "cancel_v1", String(made[n - 1]))).toBe("cancelled");
    expect(await line(world.sql, "x")).toEqual(left);
    expect(await runTick(world)).toHaveLength(2);
    expect(await finished(world.sql)).toEqual([1, 2, 3].filter((other) => other !== n));
  });

  it("cancel of a head that waits for its retry sets its key free", async () => {
    const world = await installOrdered();
    const [head] = await putMany(world, "x", 2);
    const tick = await claimLine(world, { batch: 1 });
    await fence(world.sql, { tick: tick.tick, jobs: tick.jobs });
    await finish(tick.client, tick.tick, [{ id: String(head), n: 1, outcome: "failed", inMs: 3_600_000 }]);
    expect(await verb(world, "cancel_v1", String(head))).toBe("cancelled");
    expect(await line(world.sql, "x")).toEqual(["2 ready"]);
  });

  it("on a follower that a tick holds asks for it and changes nothing", async () => {
    const world = await installOrdered();
    const made = await putMany(world, "x", 3);
    const tick = await claimLine(world, { batch: 2 });
    expect(await verb(world, "cancel_v1", String(made[1]))).toBe("requested");
    expect(await verb(world, "cancel_v1", String(made[2]))).toBe("cancelled");
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked"]);
    await tick.client.query("rollback");
  });

  it("waits for the gate of a finish that is about to commit, and sees what it did", async () => {
    const { world, head } = await halted();
    const client = await world.connect();
    await at(client, "read committed");
    await client.query("select pgclaim.lock_gates(array['order:k:x'])");
    const operator = await world.connect();
    const pid = await pidOf(operator);
    const answer = operator.query("select pgclaim.discard_v1($1)", [head]);
    await waitsForLock(world, pid);
    await client.query("commit");
    await answer;
    expect(await line(world.sql, "x")).toEqual(["2 ready", "3 blocked"]);
  });
});

describe("refill", () => {
  const broken: readonly (readonly [what: string, sql: string])[] = [
    ["all blocked", "update pgclaim.job set state = 'blocked'"],
    ["all ready", "update pgclaim.job set state = 'ready'"],
    [
      "the last one ready",
      "update pgclaim.job set state = case when place = (select max(place) from pgclaim.job) then 'ready' else 'blocked' end",
    ],
    [
      "the last one waiting for its time",
      "update pgclaim.job set state = case when place = (select max(place) from pgclaim.job) then 'scheduled' else 'blocked' end",
    ],
    ["the head and another ready", "update pgclaim.job set state = 'ready' where payload ->> 'n' <> '2'"],
  ];
  it.each(broken)("heals a gate that was broken by hand: %s", async (_, sql) => {
    const world = await installOrdered();
    await putMany(world, "x", 4);
    await world.sql.query(sql);
    await world.sql.query("insert into pgclaim.recheck (gate) values ('order:k:x')");
    expect((await wake(world.sql)).ready).toBe(true);
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "3 blocked", "4 blocked"]);
    expect(await runTick(world)).toHaveLength(4);
    expect(await finished(world.sql)).toEqual([1, 2, 3, 4]);
  });

  it("heals it at the next enqueue, finish or verb as well", async () => {
    const world = await installOrdered();
    const made = await putMany(world, "x", 3);
    const breakIt = () => world.sql.query("update pgclaim.job set state = 'blocked'");
    await breakIt();
    await put(world.sql, "x", 4);
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "3 blocked", "4 blocked"]);
    await breakIt();
    await verb(world, "cancel_v1", String(made[2]));
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "4 blocked"]);
    const tick = await claimLine(world);
    await breakIt();
    await fence(world.sql, { tick: tick.tick, jobs: tick.jobs });
    await finish(
      tick.client,
      tick.tick,
      tick.jobs.map(({ id, n }) => ({ id, n, outcome: "released" as const })),
    );
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "4 blocked"]);
  });

  it("leaves one that somebody runs where it stands", async () => {
    const world = await installOrdered();
    const [, two] = (await putMany(world, "x", 3)) as [string, string];
    const holder = await world.connect();
    await holder.query("begin");
    await holder.query("select pgclaim.try_job_lock('a', $1)", [two]);
    await world.sql.query("update pgclaim.job set state = case id when $1 then 'ready' else 'blocked' end", [two]);
    await world.sql.query("select pgclaim.refill('order:k:x')");
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 ready", "3 blocked"]);
    await holder.query("rollback");
    await world.sql.query("select pgclaim.refill('order:k:x')");
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "3 blocked"]);
  });

  it("waits for nobody's row: it leaves a note, and the next wake goes on", async () => {
    const world = await installOrdered();
    const [one, two] = (await putMany(world, "x", 2)) as [string, string];
    const caller = await world.connect();
    await caller.query("begin");
    await caller.query("select from pgclaim.job where id = $1 for update", [two]);
    expect(await verb(world, "cancel_v1", one)).toBe("cancelled");
    expect(await notes(world.sql)).toEqual(["order:k:x"]);
    await wake(world.sql);
    expect(await line(world.sql, "x")).toEqual(["2 blocked"]);
    await caller.query("rollback");
    expect((await wake(world.sql)).ready).toBe(true);
    expect(await line(world.sql, "x")).toEqual(["2 ready"]);
  });
});

describe("wake", () => {
  it("waits for no gate: a busy one keeps its note, and the others are looked at", async () => {
    const world = await installOrdered();
    const client = await world.connect();
    for (const [i, k] of ["x", "y"].entries()) {
      await at(client, "repeatable read");
      await put(client, k, i);
      await client.query("commit");
    }
    const holder = await world.connect();
    await holder.query("begin");
    await holder.query("select pgclaim.lock_gates(array['order:k:x'])");
    await world.sql.query("set statement_timeout = '5s'");
    expect(await wake(world.sql, { gateSlice: 200 } as never)).toMatchObject({ ready: true });
    expect(await line(world.sql, "x")).toEqual(["0 blocked"]);
    expect(await line(world.sql, "y")).toEqual(["1 ready"]);
    expect(await notes(world.sql)).toEqual(["order:k:x"]);
    await holder.query("rollback");
    await wake(world.sql);
    expect(await line(world.sql, "x")).toEqual(["0 ready"]);
    expect(await notes(world.sql)).toEqual([]);
  });

  it("looks at other gates than a few that are busy for long, whatever the slice", async () => {
    const world = await installOrdered();
    const client = await world.connect();
    for (let i = 0; i < 6; i++) {
      await at(client, "repeatable read");
      await put(client, `k${i}`, i);
      await client.query("commit");
    }
    const holder = await world.connect();
    await holder.query("begin");
    await holder.query(
      "select pgclaim.lock_gates(array['order:k:k0', 'order:k:k1', 'order:k:k2', 'order:k:k3', 'order:k:k4'])",
    );
    await world.sql.query("set statement_timeout = '5s'");
    // The start rotates: it must come by the one that is free, and never by all at once.
    let looks = 0;
    while ((await notes(world.sql)).includes("order:k:k5")) {
      await world.sql.query("select pgclaim.recheck_gates(2)");
      expect(++looks).toBeLessThan(200);
    }
    expect(await line(world.sql, "k5")).toEqual(["5 ready"]);
    expect(await notes(world.sql)).toHaveLength(5);
    await holder.query("rollback");
  });

  it("consumes a thousand notes of one gate at once", async () => {
    const world = await installOrdered();
    await put(world.sql, "x", 1);
    await world.sql.query("insert into pgclaim.recheck (gate) select 'order:k:x' from generate_series(1, 1000)");
    await world.sql.query("update pgclaim.job set state = 'blocked'");
    await wake(world.sql, { gateSlice: 1 } as never);
    expect(await notes(world.sql)).toEqual([]);
    expect(await line(world.sql, "x")).toEqual(["1 ready"]);
  });

  it("makes a head due again and not one behind it", async () => {
    const world = await installOrdered();
    await put(world.sql, "x", 1, { delayMs: 3_600_000 });
    await put(world.sql, "x", 2);
    expect(await line(world.sql, "x")).toEqual(["1 scheduled", "2 blocked"]);
    await world.sql.query("update pgclaim.job set run_at = clock_timestamp()");
    expect((await wake(world.sql)).ready).toBe(true);
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked"]);
  });
});

describe("a tick that dies", () => {
  it("leaves the line as it was, and its successors run in order", async () => {
    const world = await installOrdered();
    await putMany(world, "x", 3);
    const tick = await claimLine(world);
    await kill(world, tick.pid);
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "3 blocked"]);
    expect(await runTick(world)).toHaveLength(3);
    expect(await finished(world.sql)).toEqual([1, 2, 3]);
    expect(await attemptsOf(world.sql, 1)).toEqual(["done"]);
  });

  it("refuses callers' levels nowhere but inside: internal verbs need READ COMMITTED", async () => {
    const world = await installOrdered();
    const client = await world.connect();
    await at(client, "repeatable read");
    await put(client, "x", 1);
    expect(await sqlState(client.query("select pgclaim.wake_v1('{}')"))).toBe("PC001");
    await client.query("rollback");
  });
});
