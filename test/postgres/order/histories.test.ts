// Histories in which a weaker protocol of gates inverts an order, forgets a job or deadlocks: each was the shortest
// counterexample to it, played here step by step on real sessions. "would" marks the same history with the rule taken away
// in this test's own database, which shows that the history finds it.

import type pg from "pg";
import { describe, expect, it } from "vitest";
import { endsWithin, eventually } from "../../support/gate.ts";
import type { World } from "../../support/world.ts";
import {
  alter,
  claim,
  type Db,
  fence,
  finish,
  finishOnly,
  type Installation,
  install,
  kill,
  newTick,
  pidOf,
  runTick,
  the,
  waitsForLock,
  wake,
} from "../sql/support.ts";
import {
  at,
  claimLine,
  finished,
  installOrdered,
  type KeyedClaim,
  keyed,
  line,
  notes,
  put,
  recheck,
} from "./support.ts";

/** Makes every commit that inserts into `slow` stand still behind our trigger, until the answer is called. */
async function slowCommits(world: World): Promise<() => Promise<void>> {
  await world.sql.query(`
    create table slow (n integer);
    create function stand_still() returns trigger language plpgsql as
      $$ begin perform pg_advisory_xact_lock_shared(4711); return null; end $$;
    create constraint trigger slow_commit after insert on slow deferrable initially deferred
      for each row execute function stand_still()`);
  const barrier = await world.connect();
  await barrier.query("select pg_advisory_lock(4711)");
  return async () => {
    await barrier.query("select pg_advisory_unlock(4711)");
    await barrier.end();
  };
}

/** Begins a commit that has drawn its places and then stands still. */
async function beginCommit(world: World, client: pg.Client): Promise<{ readonly committed: Promise<unknown> }> {
  const pid = await pidOf(client);
  await client.query("insert into slow values (1)");
  const committed = client.query("commit");
  await waitsForLock(world, pid);
  return { committed };
}

async function fenced(world: World, tick: KeyedClaim): Promise<KeyedClaim> {
  await fence(world.sql, { tick: tick.tick, jobs: tick.jobs });
  return tick;
}

const lines = (tick: KeyedClaim, outcome: "done" | "released") => tick.jobs.map(({ id, n }) => ({ id, n, outcome }));

/** Waits until the backend waits for an advisory lock, and so for no row. */
async function waitsForGate(world: World, pid: number): Promise<void> {
  await eventually(async () => {
    expect(await world.value("select wait_event from pg_stat_activity where pid = $1", [pid])).toBe("advisory");
  });
}

const deadlocks = (world: World) =>
  world.value<number>("select deadlocks::integer from pg_stat_database where datname = current_database()");

describe("an enqueue that commits after a later one", () => {
  it("would run before it if places were drawn at the insert", async () => {
    const world = await installOrdered();
    await world.sql.query(`
      create function draw() returns trigger language plpgsql as
        $$ begin new.place := nextval('pgclaim.place_seq'); new.state := 'ready'; return new; end $$;
      create trigger draw before insert on pgclaim.job for each row execute function draw()`);
    const [first, second] = [await world.connect(), await world.connect()];
    await at(first, "read committed");
    await put(first, "x", 1);
    await put(second, "x", 2);
    await first.query("commit");
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 ready"]);
    await world.sql.query("delete from pgclaim.job");
  });

  it("runs after it", async () => {
    const world = await installOrdered();
    const [first, second] = [await world.connect(), await world.connect()];
    await at(first, "read committed");
    await put(first, "x", 1);
    await put(second, "x", 2);
    expect(await runTick(world)).toHaveLength(1);
    await first.query("commit");
    await put(second, "x", 3);
    await runTick(world);
    expect(await finished(world.sql)).toEqual([2, 1, 3]);
  });
});

describe("an enqueue that commits while finish is under way", () => {
  async function play(world: Installation): Promise<void> {
    await put(world.sql, "x", 1);
    const tick = await fenced(world, await claimLine(world));
    await finishOnly(tick.client, tick.tick, lines(tick, "done"));
    const enqueuer = await world.connect();
    const pid = await pidOf(enqueuer);
    const enqueued = put(enqueuer, "x", 2);
    // Either it waits for finish's gate, or it has committed before finish has.
    let over = false;
    void enqueued.then(() => {
      over = true;
    });
    await eventually(async () => {
      const waits = await world.value("select wait_event from pg_stat_activity where pid = $1", [pid]);
      expect(over || waits === "advisory").toBe(true);
    });
    await tick.client.query("commit");
    await enqueued;
  }

  it("is promoted by whoever of the two commits last", async () => {
    const world = await installOrdered();
    await play(world);
    expect(await line(world.sql, "x")).toEqual(["2 ready"]);
  });

  it("would be forgotten if the enqueuer did not wait for the gate", async () => {
    const world = await installOrdered();
    await alter(world.sql, "pgclaim.place_at_commit()", [["perform pgclaim.lock_gates(gates);", ""]]);
    await play(world);
    expect(await line(world.sql, "x")).toEqual(["2 blocked"]);
    expect(await notes(world.sql)).toEqual([]);
    await world.sql.query("select pgclaim.refill('order:k:x')");
  });

  it("would be forgotten if finish looked with a snapshot older than the gate's lock", async () => {
    const world = await installOrdered();
    await put(world.sql, "x", 1);
    const release = await slowCommits(world);
    const enqueuer = await world.connect();
    await at(enqueuer, "read committed");
    await put(enqueuer, "x", 2);
    const { committed } = await beginCommit(world, enqueuer);
    // A finish that waits and looks in one statement looks with a snapshot from before its wait.
    const tick = await claimLine(world);
    const looked = tick.client.query<{ seen: number }>(
      `select (select count(*)::integer from pgclaim.job where state = 'blocked') as seen
       from (select pgclaim.lock_gates(array['order:k:x'])::text as locked offset 0) g`,
    );
    await waitsForGate(world, tick.pid);
    await release();
    await committed;
    expect(the((await looked).rows).seen).toBe(0);
    const next = await tick.client.query("select from pgclaim.job where state = 'blocked'");
    expect(next.rowCount).toBe(1);
    await tick.client.query("rollback");
  });

  it("and holds the gate first lets finish see it", async () => {
    const world = await installOrdered();
    await put(world.sql, "x", 1);
    const release = await slowCommits(world);
    const enqueuer = await world.connect();
    await at(enqueuer, "read committed");
    await put(enqueuer, "x", 2);
    const { committed } = await beginCommit(world, enqueuer);
    const tick = await fenced(world, await claimLine(world));
    const finishing = finishOnly(tick.client, tick.tick, lines(tick, "done"));
    await waitsForGate(world, tick.pid);
    await release();
    await committed;
    await finishing;
    await tick.client.query("commit");
    expect(await line(world.sql, "x")).toEqual(["2 ready"]);
  });
});

describe.each(["repeatable read", "serializable"])("an enqueuer at %s that began before the head finished", (level) => {
  async function play(world: Installation): Promise<void> {
    await put(world.sql, "x", 1);
    const client = await world.connect();
    await at(client, level);
    await client.query("select count(*) from pgclaim.job"); // its snapshot: the head is there
    expect(await runTick(world)).toHaveLength(1);
    await put(client, "x", 2);
    await client.query("commit");
    expect(await line(world.sql, "x")).toEqual(["2 blocked"]);
  }

  it("leaves a note, since it cannot see that its job is the head", async () => {
    const world = await installOrdered();
    await play(world);
    expect(await notes(world.sql)).toEqual(["order:k:x"]);
    expect(await wake(world.sql)).toMatchObject({ ready: true, promoted: 1 });
    expect(await line(world.sql, "x")).toEqual(["2 ready"]);
  });

  it("would lose its job if it decided from its snapshot", async () => {
    const world = await installOrdered();
    await alter(world.sql, "pgclaim.place_at_commit()", [
      ["current_setting('transaction_isolation') = 'read committed'", "true"],
    ]);
    await play(world);
    await wake(world.sql);
    expect(await line(world.sql, "x")).toEqual(["2 blocked"]);
    await world.sql.query("select pgclaim.refill('order:k:x')");
  });
});

describe("a note that is written while wake looks", () => {
  it("survives it", async () => {
    const world = await installOrdered();
    await world.sql.query("insert into pgclaim.recheck (gate) values ('order:k:x')");
    const barrier = await world.connect();
    await barrier.query("select pg_advisory_lock(4711)");
    await alter(
      world.sql,
      "pgclaim.recheck_gates(integer)",
      [
        [
          "delete from pgclaim.recheck n where n.gate = g;",
          "perform pg_advisory_lock_shared(4711); delete from pgclaim.recheck n where n.gate = g;",
        ],
      ],
      "pgclaim.slow_recheck",
    );
    const waker = await world.connect();
    const wakerPid = await pidOf(waker);
    const looked = waker.query("select pgclaim.slow_recheck(200)");
    await waitsForLock(world, wakerPid);
    const enqueuer = await world.connect();
    const enqueuerPid = await pidOf(enqueuer);
    await at(enqueuer, "repeatable read");
    await put(enqueuer, "x", 1);
    const committed = enqueuer.query("commit");
    await waitsForGate(world, enqueuerPid);
    await barrier.query("select pg_advisory_unlock(4711)");
    await Promise.all([looked, committed]);
    expect(await notes(world.sql)).toEqual(["order:k:x"]);
    await recheck(world.sql);
    expect(await line(world.sql, "x")).toEqual(["1 ready"]);
    await waker.end();
  });

  it("would be deleted unread if wake looked before it had the gate", async () => {
    const world = await installOrdered();
    await world.sql.query("insert into pgclaim.recheck (gate) values ('order:k:x')");
    const waker = await world.connect();
    await waker.query("begin");
    await waker.query("select pgclaim.refill('order:k:x')");
    const enqueuer = await world.connect();
    await at(enqueuer, "repeatable read");
    await put(enqueuer, "x", 1);
    await enqueuer.query("commit");
    await waker.query("select pgclaim.lock_gates(array['order:k:x'])");
    await waker.query("delete from pgclaim.recheck where gate = 'order:k:x'");
    await waker.query("commit");
    expect(await line(world.sql, "x")).toEqual(["1 blocked"]);
    expect(await notes(world.sql)).toEqual([]);
    await world.sql.query("select pgclaim.refill('order:k:x')");
  });
});

describe("two ticks, each with a job of the key the other one enqueues into", () => {
  async function two(world: Installation): Promise<readonly [KeyedClaim, KeyedClaim]> {
    await put(world.sql, "x", 1);
    await put(world.sql, "y", 2);
    const ticks = [await claimLine(world, { batch: 1 }), await claimLine(world, { batch: 1 })] as const;
    for (const tick of ticks) await fenced(world, tick);
    return ticks;
  }

  it("finish one after the other", async () => {
    const world = await installOrdered();
    const [one, other] = await two(world);
    for (const [tick, keys] of [
      [one, ["y", "z", "x"]],
      [other, ["x", "z", "y"]],
    ] as const) {
      for (const [i, k] of keys.entries()) await put(tick.client, k, 10 * (tick === one ? 1 : 2) + i);
      // What a handler may do, and what the end of a turn must not: ours would fire.
      await tick.client.query("set constraints all immediate");
    }
    // Both arrive at the gates while somebody holds them all, so that each has got as far as it can.
    const holder = await world.connect();
    await holder.query("begin");
    await holder.query("select pgclaim.lock_gates(array['order:k:x', 'order:k:y', 'order:k:z'])");
    const before = await deadlocks(world);
    const finishing = [one, other].map((tick) => finish(tick.client, tick.tick, lines(tick, "done")));
    await waitsForGate(world, one.pid);
    await waitsForGate(world, other.pid);
    await holder.query("commit");
    await endsWithin(10_000, Promise.all(finishing), "both finishes");
    expect(await deadlocks(world)).toBe(before);
    for (const k of ["x", "y", "z"])
      expect((await line(world.sql, k)).map((row) => row.slice(3))).toEqual(["ready", "blocked"]);
  });

  it("would deadlock if places were drawn at the end of a turn", async () => {
    const world = await installOrdered();
    await alter(world.sql, "pgclaim.place_at_commit()", [["pgclaim.in_tick()", "false"]]);
    const [one, other] = await two(world);
    for (const tick of [one, other]) await tick.client.query("set constraints all immediate");
    await put(one.client, "y", 3);
    await put(other.client, "x", 4);
    const waiting = put(one.client, "x", 5);
    await waitsForGate(world, one.pid);
    const states = await Promise.all([sqlStateOrNone(waiting), sqlStateOrNone(put(other.client, "y", 6))]);
    expect(states).toContain("40P01");
    await Promise.all([kill(world, one.pid), kill(world, other.pid)]);
  });

  it("would deadlock if finish took the gates of what ended first and of what it enqueued later", async () => {
    const world = await installOrdered();
    await alter(world.sql, "pgclaim.finish_v1(jsonb)", [
      [
        "select j.gate, true from pgclaim.job j where j.gate is not null and j.place is null",
        "select null::text, true where false",
      ],
      [
        "-- Places for what this tick has enqueued, and then",
        `select array_agg(distinct j.gate) into gates from pgclaim.job j where j.gate is not null and j.place is null;
         perform pgclaim.lock_gates(gates);
         -- Places for what this tick has enqueued, and then`,
      ],
    ]);
    const [one, other] = await two(world);
    await put(one.client, "y", 3);
    await put(other.client, "x", 4);
    // Each has its first gate before either asks for its second.
    const barrier = await world.connect();
    await barrier.query("begin");
    await barrier.query("lock table pgclaim.unique_key in exclusive mode");
    const finishing = [one, other].map((tick) => sqlStateOrNone(finish(tick.client, tick.tick, lines(tick, "done"))));
    await waitsForLock(world, one.pid);
    await waitsForLock(world, other.pid);
    await barrier.query("rollback");
    expect(await Promise.all(finishing)).toContain("40P01");
    await Promise.all([kill(world, one.pid), kill(world, other.pid)]);
  });
});

describe("two enqueuers of the same keys in opposite order", () => {
  it("commit one after the other", async () => {
    const world = await installOrdered();
    const clients = [await world.connect(), await world.connect()] as const;
    for (const [i, keys] of [
      ["x", "y"],
      ["y", "x"],
    ].entries()) {
      await at(clients[i === 0 ? 0 : 1], "read committed");
      for (const k of keys) await put(clients[i === 0 ? 0 : 1], k, i);
    }
    const holder = await world.connect();
    await holder.query("begin");
    await holder.query("select pgclaim.lock_gates(array['order:k:x', 'order:k:y'])");
    const pids = await Promise.all(clients.map(pidOf));
    const committing = clients.map((client) => client.query("commit"));
    for (const pid of pids) await waitsForGate(world, pid);
    await holder.query("commit");
    await endsWithin(10_000, Promise.all(committing), "both commits");
    const [x, y] = [await line(world.sql, "x"), await line(world.sql, "y")];
    expect(x).toEqual(y);
  });

  it("would deadlock if each took the gates in its own order", async () => {
    const world = await installOrdered();
    const [one, other] = [await world.connect(), await world.connect()];
    for (const client of [one, other]) await client.query("begin");
    const lock = (client: Db, k: string) => client.query("select pgclaim.lock_gates(array[$1])", [`order:k:${k}`]);
    await lock(one, "x");
    await lock(other, "y");
    const pid = await pidOf(one);
    const waiting = lock(one, "y");
    await waitsForGate(world, pid);
    expect(await Promise.all([sqlStateOrNone(waiting), sqlStateOrNone(lock(other, "x"))])).toContain("40P01");
    for (const client of [one, other]) await client.query("rollback");
  });
});

describe("a job of a limit whose time has come", () => {
  const limited = { name: "a", limitNames: ["t:{k}"], limitMaxes: [1] };
  const ready = (world: World) =>
    world.value<number>("select count(*)::integer from pgclaim.job where state = 'ready'");
  async function play(world: Installation): Promise<void> {
    await put(world.sql, "x", 1);
    await put(world.sql, "x", 2, { delayMs: 3_600_000 });
    await put(world.sql, "x", 3, { delayMs: 3_600_000 });
    await world.sql.query("update pgclaim.job set run_at = clock_timestamp() where state = 'scheduled'");
    await wake(world.sql);
  }

  it("goes behind its gate first, so that no more are ready than may run", async () => {
    const world = await install([limited]);
    await play(world);
    expect(await ready(world)).toBe(1);
    for (const left of [2, 1, 0]) {
      expect(await runTick(world)).toHaveLength(1);
      await wake(world.sql);
      expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(left);
      expect(await ready(world)).toBe(Math.min(1, left));
    }
  });

  it("would stand in the claim index beside the others if it went there straight", async () => {
    const world = await install([limited]);
    await alter(world.sql, "pgclaim.promote_due(integer)", [
      ["j.gate is null or j.ordering_key is not null then 'ready' else 'blocked'", "true then 'ready' else 'ready'"],
    ]);
    await play(world);
    expect(await ready(world)).toBe(3);
  });
});

describe("a dead letter that let others pass and is retried while one of them runs", () => {
  it("stands at the end; the one that runs goes on, and the key never stands still", async () => {
    const world = await installOrdered([{ ...keyed, whenDead: "skip" }]);
    const first = await put(world.sql, "x", 1);
    for (const n of [2, 3]) await put(world.sql, "x", n);
    await runTick(world, { batch: 1 }, "dead");
    const tick = await fenced(world, await claimLine(world, { batch: 1 }));
    await world.sql.query("select pgclaim.retry_v1($1)", [first]);
    expect(await line(world.sql, "x")).toEqual(["2 ready", "3 blocked", "1 blocked"]);
    await finish(tick.client, tick.tick, [{ ...the(lines(tick, "done")), outcome: "failed", inMs: 0 }]);
    expect(await runTick(world)).toHaveLength(3);
    expect(await finished(world.sql)).toEqual([2, 3, 1]);
  });

  it("would stand before it with its old place, and nobody could say who is the head", async () => {
    const world = await installOrdered([{ ...keyed, whenDead: "skip" }]);
    await alter(world.sql, "pgclaim.revive(bigint[],timestamptz[])", [
      ["nextval('pgclaim.place_seq')", "null::bigint"],
    ]);
    const first = await put(world.sql, "x", 1);
    await put(world.sql, "x", 2);
    await runTick(world, { batch: 1 }, "dead");
    const tick = await claimLine(world, { batch: 1 });
    await world.sql.query("select pgclaim.retry_v1($1)", [first]);
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 ready"]);
    await tick.client.query("rollback");
    await world.sql.query("select pgclaim.refill('order:k:x')");
  });
});

describe("cancel of a job that finish is promoting", () => {
  it("waits for the gate, not for the row, and then takes the job out", async () => {
    const world = await installOrdered();
    await put(world.sql, "x", 1);
    const two = await put(world.sql, "x", 2);
    await put(world.sql, "x", 3);
    const tick = await fenced(world, await claimLine(world, { batch: 1 }));
    await finishOnly(tick.client, tick.tick, lines(tick, "done"));
    const operator = await world.connect();
    const pid = await pidOf(operator);
    const cancelled = operator.query<{ answer: unknown }>("select pgclaim.cancel_v1($1) as answer", [two]);
    await waitsForGate(world, pid);
    await tick.client.query("commit");
    expect(the((await cancelled).rows).answer).toEqual({ type: "cancelled" });
    expect(await line(world.sql, "x")).toEqual(["3 ready"]);
  });

  it("would wait for the row while finish may wait for the operator's next gate, without the gate first", async () => {
    const world = await installOrdered();
    await alter(world.sql, "pgclaim.lock_for_operator(bigint)", [["if gate is not null then", "if false then"]]);
    await put(world.sql, "x", 1);
    const two = await put(world.sql, "x", 2);
    const tick = await fenced(world, await claimLine(world, { batch: 1 }));
    await finishOnly(tick.client, tick.tick, lines(tick, "done"));
    const operator = await world.connect();
    const pid = await pidOf(operator);
    const cancelled = operator.query("select pgclaim.cancel_v1($1)", [two]);
    await eventually(async () => {
      expect(await world.value("select wait_event from pg_stat_activity where pid = $1", [pid])).toBe("transactionid");
    });
    await tick.client.query("commit");
    await cancelled;
  });

  it("would leave a halted key standing for ever if discard did not refill", async () => {
    const world = await installOrdered();
    await alter(world.sql, "pgclaim.take_out(bigint,text,text)", [["perform pgclaim.refill(gate_name);", ""]]);
    const head = await put(world.sql, "x", 1);
    await put(world.sql, "x", 2);
    await runTick(world, { batch: 1 }, "dead");
    await world.sql.query("select pgclaim.discard_v1($1)", [head]);
    await wake(world.sql);
    expect(await line(world.sql, "x")).toEqual(["2 blocked"]);
    await world.sql.query("select pgclaim.refill('order:k:x')");
  });
});

describe("a late fence of a dead tick that takes the head's number", () => {
  it("is granted to nobody, while the one behind is: run must hand it back, and the reaper frees the line", async () => {
    const world = await installOrdered();
    const one = await put(world.sql, "x", 1);
    await put(world.sql, "x", 2);
    const dead = await claimLine(world);
    await kill(world, dead.pid);
    const tick = await claimLine(world);
    await fence(world.sql, { tick: dead.tick, jobs: [{ id: one, n: 1 }] });
    const granted = await fence(world.sql, { tick: tick.tick, jobs: tick.jobs });
    expect(granted.map(({ id }) => id)).toEqual(tick.jobs.slice(1).map(({ id }) => id));
    await finish(tick.client, tick.tick, lines(tick, "released").slice(1));
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked"]);
    expect(await runTick(world)).toEqual([]);
    expect((await wake(world.sql)).crashed).toBe(1);
    expect(await runTick(world, { quarantined: true })).toEqual([{ id: one, n: 2 }]);
    expect((await runTick(world)).map(({ n }) => n)).toEqual([2]);
    expect(await finished(world.sql)).toEqual([1, 2]);
  });
});

describe("housekeeping beside others", () => {
  it("in a fence waits for no gate, since finish may wait for the fence's rows while it holds one", async () => {
    const world = await installOrdered();
    await put(world.sql, "x", 1);
    await put(world.sql, "y", 2);
    const burning = await claimLine(world, { batch: 1 });
    await world.sql.query("insert into pgclaim.recheck (gate) values ('order:k:x')");
    // A finish that burns holds its gate and writes the number of a fence whose answer never came.
    await finishOnly(burning.client, burning.tick, lines(burning, "released"));
    const tick = await claimLine(world);
    await world.sql.query("set statement_timeout = '5s'");
    const { rows } = await world.sql.query("select job_id from pgclaim.fence_v1($1)", [
      JSON.stringify({
        tick: tick.tick,
        quarantined: false,
        jobs: tick.jobs.map(({ id, n }) => ({ id, n })),
        reapSlice: 200,
        dueSlice: 200,
        gateSlice: 200,
      }),
    ]);
    expect(rows).toHaveLength(1);
    expect(await notes(world.sql)).toEqual(["order:k:x"]);
    await burning.client.query("commit");
    await finish(tick.client, tick.tick, lines(tick, "done"));
  });

  it("leaves an attempt to the settle that has its row, since each may want the other's next", async () => {
    const world = await installOrdered();
    const [one, two] = [await put(world.sql, "x", 1), await put(world.sql, "y", 2)];
    const tick = await fenced(world, await claimLine(world));
    await kill(world, tick.pid);
    const settling = await world.connect();
    await settling.query("begin");
    await settling.query("update pgclaim.attempt set outcome = 'interrupted', ended_at = now() where job_id = $1", [
      one,
    ]);
    await world.sql.query("set statement_timeout = '5s'");
    for (let i = 0; i < 8; i++) await world.sql.query("select pgclaim.reap(200)");
    expect(await world.rows("select job_id, outcome from pgclaim.attempt order by job_id")).toEqual([
      { job_id: one, outcome: null },
      { job_id: two, outcome: "crashed" },
    ]);
    await settling.query("commit");
    expect(await line(world.sql, "x")).toEqual(["1 ready"]);
  });

  it("never takes a tick's head away while the tick is alive", async () => {
    const world = await installOrdered();
    await put(world.sql, "x", 1);
    await put(world.sql, "x", 2);
    const tick = await fenced(world, await claimLine(world));
    for (let i = 0; i < 3; i++) expect((await wake(world.sql)).crashed).toBe(0);
    const rival = await world.connect();
    await rival.query(`begin; set local pgclaim.tick = '${newTick()}'`);
    expect((await claim(rival)).jobs).toEqual([]);
    await finish(tick.client, tick.tick, lines(tick, "done"));
    expect(await finished(world.sql)).toEqual([1, 2]);
  });
});

async function sqlStateOrNone(promise: Promise<unknown>): Promise<string | null> {
  return promise.then(
    () => null,
    (error: { readonly code?: string }) => error.code ?? "?",
  );
}
