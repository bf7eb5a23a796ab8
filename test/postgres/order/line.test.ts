// Ordering keys through the whole engine: jobs behind a head run after it in the same tick, in order, or are handed back
// untouched. Handlers leave what they did in one table, whose serial is the order of their effects.

import { describe, expect, it } from "vitest";
import * as z from "zod";
import { createApp } from "../../../src/http/app.ts";
import {
  type Claimer,
  type ClaimerOptions,
  deadLetter,
  defineJob,
  done,
  retryIn,
  snooze,
  type Tx,
} from "../../../src/index.ts";
import { invoke, makeDue, quick, rendezvous, results, wire, workTick } from "../../support/engine.ts";
import { endsWithin, eventually, gate } from "../../support/gate.ts";
import { setup, transports, type World } from "../../support/world.ts";
import { finished, line, notes } from "./support.ts";

const payload = z.object({ k: z.string(), n: z.number(), how: z.string().optional() });
const retry = { minBackoff: "1h", maxBackoff: "1h", maxAttempts: 2 } as const;
const leave = (tx: Tx, n: number) => tx.query("insert into effect (n) values ($1)", [n]);

/** The usual kind: external work by the log, an effect by tx, and an end of the payload's choice. */
function ordered(started: number[] = [], more: { readonly whenDead?: "halt" | "skip" } = {}) {
  return defineJob({
    kind: "ordered",
    payload,
    orderingKey: "k:{k}",
    retry,
    ...more,
    async run({ payload: { n, how }, tx, job }) {
      started.push(n);
      if (how === "throw early" && job.failures === 0) throw new Error("no");
      await leave(tx, n);
      if (job.failures > 0 || job.attempt > 1) return done();
      if (how === "throw") throw new Error("no");
      if (how === "retryIn") return retryIn("1h");
      if (how === "snooze") return snooze("1h");
      if (how === "deadLetter") return deadLetter("never");
      if (how === "orphan") await tx.query("insert into child values ($1)", [n]);
      if (how === "broken") await tx.query("select 1 / 0").catch(() => {});
      return done();
    },
  });
}

async function world(): Promise<World> {
  const made = await setup();
  await made.sql.query(`
    create table effect (serial bigserial, n integer not null);
    create table parent (id integer primary key);
    create table child (parent integer references parent deferrable initially deferred)`);
  return made;
}

const effectsInOrder = async (made: World) =>
  (await made.rows<{ n: number }>("select n from effect order by serial")).map(({ n }) => n);

const deadlocks = (made: World) =>
  made.value<number>("select deadlocks::integer from pg_stat_database where datname = current_database()");

const jobsOf = (k: string, count: number, hows: Readonly<Record<number, string>> = {}) =>
  Array.from({ length: count }, (_, i) => ({
    k,
    n: i + 1,
    ...(hows[i + 1] === undefined ? {} : { how: hows[i + 1] }),
  }));

const whole = async (made: World) => {
  expect(await made.locks()).toBe(0);
  expect(await notes(made.sql)).toEqual([]);
  expect(await made.value("select count(*)::integer from pgclaim.attempt where outcome is null")).toBe(0);
};

describe.each(transports)("a line over %s", (transport) => {
  it("runs in one tick after its head, in the order of places, effects and history alike", async () => {
    const made = await world();
    const started: number[] = [];
    const job = ordered(started);
    const claimer = made.claimer(transport, { jobs: [job] });
    await claimer.register();
    // The smallest id commits last.
    const late = await made.connect();
    await late.query("begin");
    await claimer.enqueue(job, { k: "x", n: 4 }, { client: late });
    await claimer.enqueueMany(job, jobsOf("x", 3));
    await late.query("commit");
    const tick = workTick(await invoke(claimer));
    expect(results(tick)).toEqual(["done", "done", "done", "done"]);
    expect(started).toEqual([1, 2, 3, 4]);
    expect(await effectsInOrder(made)).toEqual([1, 2, 3, 4]);
    expect(await finished(made.sql)).toEqual([1, 2, 3, 4]);
    await whole(made);
  });

  it.each([
    ["throws before its turn", "throw early", "retried:PGCLAIM_HANDLER_THREW", 2],
    ["throws in its turn", "throw", "retried:PGCLAIM_HANDLER_THREW", 2],
    ["answers retryIn", "retryIn", "retried:PGCLAIM_HANDLER_THREW", 2],
    ["is snoozed", "snooze", "snoozed", 2],
    ["violates a deferred constraint at the end of its turn", "orphan", "retried:PGCLAIM_TURN_FAILED", 2],
    ["swallows an error of its query", "broken", "retried:PGCLAIM_TURN_FAILED", 2],
  ])(
    "is handed back untouched behind a job that %s, which keeps its place and its key",
    async (_, how, result, bad) => {
      const made = await world();
      const started: number[] = [];
      const job = ordered(started);
      const claimer = made.claimer(transport, { jobs: [job] });
      await claimer.enqueueMany(job, jobsOf("x", 4, { [bad]: how }));
      await claimer.enqueue(job, { k: "y", n: 9 });
      const tick = workTick(await invoke(claimer));
      expect(results(tick)).toEqual(["done", result, "released", "released", "done"]);
      expect(started.toSorted()).toEqual([1, 2, 9]);
      expect(await line(made.sql, "x")).toEqual(["2 scheduled", "3 blocked", "4 blocked"]);
      expect(
        await made.rows("select outcome, count(*)::integer from pgclaim.attempt where outcome = 'released' group by 1"),
      ).toEqual([{ outcome: "released", count: 2 }]);
      // It costs other keys nothing, and nobody passes it.
      await claimer.enqueue(job, { k: "y", n: 10 });
      await claimer.enqueue(job, { k: "x", n: 5 });
      expect(results(workTick(await invoke(claimer)))).toEqual(["done"]);
      await made.sql.query("insert into parent values (2)");
      await makeDue(made);
      expect(results(workTick(await invoke(claimer)))).toEqual(["done", "done", "done", "done"]);
      const kept = how === "snooze" ? [1, 2, 2, 3, 4, 5] : [1, 2, 3, 4, 5];
      expect((await effectsInOrder(made)).filter((n) => n < 9)).toEqual(kept);
      expect((await finished(made.sql)).filter((n) => n < 9)).toEqual([1, 2, 3, 4, 5]);
      await whole(made);
    },
  );
});

describe("a line", () => {
  it("starts a job only when the turn of the one before has ended, and lets other keys overlap", async () => {
    const made = await world();
    const meet = rendezvous();
    const job = defineJob({
      kind: "ordered",
      payload,
      orderingKey: "k:{k}",
      async run({ payload: { n }, tx }) {
        await meet.meet(n);
        await leave(tx, n);
      },
    });
    const claimer = made.claimer("pg", { jobs: [job], concurrency: 10 });
    await claimer.enqueueMany(job, jobsOf("x", 3));
    await claimer.enqueue(job, { k: "y", n: 9 });
    let arrived = 0;
    for (const n of [2, 3]) void meet.arrived(n).then(() => arrived++);
    const invocation = invoke(claimer);
    await Promise.all([meet.arrived(1), meet.arrived(9)]);
    expect(arrived).toBe(0);
    meet.release(1);
    meet.release(9);
    await meet.arrived(2);
    expect(arrived).toBe(1);
    meet.release(2);
    await meet.arrived(3);
    meet.release(3);
    expect(results(workTick(await invocation))).toEqual(["done", "done", "done", "done"]);
    expect((await effectsInOrder(made)).filter((n) => n < 9)).toEqual([1, 2, 3]);
  });

  it("is handed back behind a job that ran into its timeout, also when its handler goes on", async () => {
    const made = await world();
    const release = gate();
    const started: number[] = [];
    const job = defineJob({
      kind: "ordered",
      payload,
      orderingKey: "k:{k}",
      timeout: "300ms",
      async run({ payload: { n } }) {
        started.push(n);
        if (n === 1) await release.promise;
      },
    });
    const claimer = made.claimer("pg", { jobs: [job] });
    await claimer.enqueueMany(job, jobsOf("x", 3));
    const tick = workTick(await invoke(claimer));
    release.open();
    expect(results(tick)).toEqual(["retried:PGCLAIM_HANDLER_TIMEOUT", "released", "released"]);
    expect(started).toEqual([1]);
  });

  it("is handed back behind a job that the end of the budget stopped, and behind one that was cancelled while it ran", async () => {
    const made = await world();
    const running = gate();
    const started: number[] = [];
    const job = defineJob({
      kind: "ordered",
      payload,
      orderingKey: "k:{k}",
      timeout: "1s",
      async run({ payload: { n }, signal, tx }) {
        started.push(n);
        if (n > 1) return void (await leave(tx, n));
        running.open();
        await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
      },
    });
    const claimer = made.claimer("pg", {
      jobs: [job],
      limits: { ...quick, cancelPoll: "50ms" },
      budget: { http: "5s", cron: "5s" },
    });
    const [head] = await claimer.enqueueMany(job, jobsOf("x", 3));
    const invocation = invoke(claimer);
    await running.promise;
    expect(await claimer.cancel(String(head?.id))).toEqual({ type: "requested" });
    const report = await invocation;
    expect(results(report.ticks[0] as never)).toEqual(["cancelled", "released", "released"]);
    expect(started).toEqual([1, 2, 3]);
    expect(await finished(made.sql, "cancelled")).toEqual([1]);
    expect(await effectsInOrder(made)).toEqual([2, 3]);
    await whole(made);
  });

  it.each(["halt", "skip"] as const)("behind a dead letter of a kind that says %s", async (whenDead) => {
    const made = await world();
    const job = ordered([], { whenDead });
    const claimer = made.claimer("pg", { jobs: [job], maxTicks: 1 });
    const [head] = await claimer.enqueueMany(job, jobsOf("x", 3, { 1: "deadLetter" }));
    expect(results(workTick(await invoke(claimer)))).toEqual(["dead", "released", "released"]);
    if (whenDead === "skip") {
      expect(results(workTick(await invoke(claimer)))).toEqual(["done", "done"]);
      expect(await claimer.retry(String(head?.id))).toEqual({ type: "retried" });
      await claimer.enqueue(job, { k: "x", n: 4 });
      expect(results(workTick(await invoke(claimer)))).toEqual(["done", "done"]);
      expect(await effectsInOrder(made)).toEqual([2, 3, 1, 4]);
      return;
    }
    expect((await invoke(claimer)).claimed).toBe(0);
    expect(await claimer.retry(String(head?.id))).toEqual({ type: "retried" });
    expect(results(workTick(await invoke(claimer)))).toEqual(["done", "done", "done"]);
    expect(await effectsInOrder(made)).toEqual([1, 2, 3]);
    await whole(made);
  });

  it.each(["retry", "skip", "discard", "cancel"] as const)("that is halted goes on after %s", async (verb) => {
    const made = await world();
    const job = ordered();
    const claimer = made.claimer("pg", { jobs: [job] });
    const [head] = await claimer.enqueueMany(job, jobsOf("x", 3, { 1: "deadLetter" }));
    await invoke(claimer);
    expect(await line(made.sql, "x")).toEqual(["1 dead", "2 blocked", "3 blocked"]);
    expect((await claimer[verb](String(head?.id))).type).toMatch(/ed$/);
    const after = await invoke(claimer);
    expect(await effectsInOrder(made)).toEqual(verb === "retry" ? [1, 2, 3] : [2, 3]);
    expect(after.claimed).toBe(verb === "retry" ? 3 : 2);
    await whole(made);
  });

  it("with a missed deadline at its head: a dead letter that halts, and nothing of the line starts", async () => {
    const made = await world();
    const started: number[] = [];
    const job = ordered(started);
    const claimer = made.claimer("pg", { jobs: [job], maxTicks: 1 });
    const past = new Date("2001-01-01T00:00:00Z");
    const head = await claimer.enqueue(job, { k: "x", n: 1 }, { deadlineAt: past });
    await claimer.enqueue(job, { k: "x", n: 2 });
    expect(results(workTick(await invoke(claimer))).map((result) => result.split(":")[0])).toEqual([
      "missed",
      "released",
    ]);
    expect(started).toEqual([]);
    expect(await line(made.sql, "x")).toEqual(["1 dead", "2 blocked"]);
    expect((await claimer.job(head.id))?.deadReason).toBe("missed");
    // Retried, it is run all the same.
    await claimer.retry(head.id);
    expect(results(workTick(await invoke(claimer)))).toEqual(["done", "done"]);
    expect(await effectsInOrder(made)).toEqual([1, 2]);
  });

  it("with a missed deadline in its middle stops there, and lets the others pass where its kind says so", async () => {
    for (const whenDead of ["halt", "skip"] as const) {
      const made = await world();
      const job = ordered([], { whenDead });
      const claimer = made.claimer("pg", { jobs: [job] });
      await claimer.enqueue(job, { k: "x", n: 1, how: "throw" });
      await claimer.enqueue(job, { k: "x", n: 2 }, { deadlineAt: new Date("2001-01-01T00:00:00Z") });
      await claimer.enqueue(job, { k: "x", n: 3 });
      await invoke(claimer);
      expect(await line(made.sql, "x")).toEqual(["1 scheduled", "2 dead", "3 blocked"]);
      await makeDue(made);
      await invoke(claimer);
      expect(await effectsInOrder(made)).toEqual(whenDead === "halt" ? [1] : [1, 3]);
      await whole(made);
    }
  });

  it("that loses its session in the middle is run again from its head, in order, and nothing is left of the first try", async () => {
    const made = await world();
    let killed = false;
    const job = defineJob({
      kind: "ordered",
      payload,
      orderingKey: "k:{k}",
      retry,
      async run({ payload: { n }, tx }) {
        await leave(tx, n);
        if (n !== 2 || killed) return;
        killed = true;
        const { rows } = await tx.query<{ pid: number }>("select pg_backend_pid() as pid");
        await made.sql.query("select pg_terminate_backend($1)", [rows[0]?.pid]);
        await tx.query("select 1");
      },
    });
    const claimer = made.claimer("pg", { jobs: [job] });
    await claimer.enqueueMany(job, jobsOf("x", 4));
    expect((await invoke(claimer)).error?.code).toBe("PGCLAIM_TX_LOST");
    expect(await effectsInOrder(made)).toEqual([]);
    await eventually(async () => {
      await invoke(claimer);
      expect(await made.value("select count(*)::integer from pgclaim.job")).toBe(0);
    });
    expect(await effectsInOrder(made)).toEqual([1, 2, 3, 4]);
    await whole(made);
  });

  it("whose head lost its number to a late fence runs nobody behind it", async () => {
    const made = await world();
    const started: number[] = [];
    const job = ordered(started);
    const net = await wire(made, "pg");
    const claimer = net.claimer({ jobs: [job], maxTicks: 1 });
    const [head] = await claimer.enqueueMany(job, jobsOf("x", 3));
    const hold = gate();
    const fence = net.breakOneShot({ contains: "fence_v1", at: "before", how: { hold: hold.promise }, times: 1 });
    const invocation = invoke(claimer);
    await fence.fired;
    await made.sql.query(
      `insert into pgclaim.attempt (job_id, n, tick, quarantined) values ($1, 1, gen_random_uuid(), false)`,
      [head?.id],
    );
    hold.open();
    const tick = workTick(await invocation);
    expect(results(tick).filter((result) => result === "released")).toHaveLength(2);
    expect(started).toEqual([]);
    const after = net.claimer({ jobs: [job] });
    await eventually(async () => {
      await invoke(after);
      expect(await made.value("select count(*)::integer from pgclaim.job")).toBe(0);
    });
    expect(await effectsInOrder(made)).toEqual([1, 2, 3]);
    await whole(made);
  });
});

describe("a job that enqueues", () => {
  const step = z.object({ k: z.string(), n: z.number(), next: z.array(z.object({ k: z.string(), n: z.number() })) });
  /** Enqueues what its payload says, with tx or without, by SQL or by ctx. */
  function chain(how: (n: number) => "tx" | "sql" | "no tx") {
    const leaf = defineJob({
      kind: "leaf",
      payload,
      orderingKey: "k:{k}",
      async run({ payload: { n }, tx }) {
        await leave(tx, n);
      },
    });
    const parent = defineJob({
      kind: "parent",
      payload: step,
      orderingKey: "k:{k}",
      async run({ payload: { n, next }, tx, enqueue }) {
        if (how(n) !== "no tx") await leave(tx, n);
        for (const job of next) {
          if (how(n) === "sql") await tx.query("select from pgclaim.enqueue('leaf', $1)", [JSON.stringify(job)]);
          else await enqueue(leaf, job);
        }
      },
    });
    return { leaf, parent };
  }

  it.each(["tx", "sql", "no tx"] as const)(
    "into its own key and into another stands behind what is there: %s",
    async (how) => {
      const made = await world();
      const { leaf, parent } = chain(() => how);
      const claimer = made.claimer("pg", { jobs: [leaf, parent], maxTicks: 1 });
      await claimer.enqueue(parent, {
        k: "x",
        n: 1,
        next: [
          { k: "x", n: 10 },
          { k: "y", n: 11 },
          { k: "x", n: 12 },
        ],
      });
      await claimer.enqueue(leaf, { k: "x", n: 2 });
      await claimer.enqueue(leaf, { k: "y", n: 3 });
      await invoke(claimer);
      expect(await line(made.sql, "x")).toEqual(["10 ready", "12 blocked"]);
      expect(await line(made.sql, "y")).toEqual(["11 ready"]);
      await invoke(claimer);
      const order = await effectsInOrder(made);
      expect(order.filter((n) => [2, 10, 12].includes(n))).toEqual([2, 10, 12]);
      expect(order.filter((n) => [3, 11].includes(n))).toEqual([3, 11]);
      await whole(made);
    },
  );

  it.each([
    ["without tx, before one with tx", (n: number) => (n === 1 ? "no tx" : "tx")],
    ["without tx, before one by SQL", (n: number) => (n === 1 ? "no tx" : "sql")],
    ["with tx, before one without", (n: number) => (n === 1 ? "tx" : "no tx")],
    ["without tx, both", () => "no tx"],
  ] as const)("hands the order of its line on to the keys it enqueues into: %s", async (_, how) => {
    const made = await world();
    const { leaf, parent } = chain(how as (n: number) => "tx");
    const claimer = made.claimer("pg", { jobs: [leaf, parent], maxTicks: 1 });
    await claimer.register();
    // The second in place has the smaller id.
    const late = await made.connect();
    await late.query("begin");
    await claimer.enqueue(parent, { k: "x", n: 2, next: [{ k: "y", n: 20 }] }, { client: late });
    await claimer.enqueue(parent, { k: "x", n: 1, next: [{ k: "y", n: 10 }] });
    await late.query("commit");
    expect(results(workTick(await invoke(claimer)))).toEqual(["done", "done"]);
    expect(await line(made.sql, "y")).toEqual(["10 ready", "20 blocked"]);
  });

  it("and is refused fails before anybody behind it has run", async () => {
    const made = await world();
    const started: number[] = [];
    const known = defineJob({ kind: "known", payload });
    const job = defineJob({
      kind: "ordered",
      payload,
      orderingKey: "k:{k}",
      retry,
      async run({ payload: { n }, enqueue, tx }) {
        started.push(n);
        if (n === 1) await enqueue(known, { k: "z", n: 7 });
        else await leave(tx, n);
      },
    });
    const claimer = made.claimer("pg", { jobs: [job, known] });
    await claimer.enqueueMany(job, jobsOf("x", 2));
    await made.sql.query("delete from pgclaim.kind where name = 'known'");
    const tick = workTick(await invoke(claimer));
    expect(results(tick).map((result) => result.split(":")[0])).toEqual(["retried", "released"]);
    expect(started).toEqual([1]);
    expect(await effectsInOrder(made)).toEqual([]);
    expect(await line(made.sql, "x")).toEqual(["1 scheduled", "2 blocked"]);
  });

  it("and fails leaves nothing of what it enqueued in any key", async () => {
    const made = await world();
    const { leaf } = chain(() => "tx");
    const job = defineJob({
      kind: "fails",
      payload,
      orderingKey: "k:{k}",
      retry,
      async run({ tx, enqueue }) {
        await tx.query("select from pgclaim.enqueue('leaf', $1)", [JSON.stringify({ k: "x", n: 5 })]);
        await enqueue(leaf, { k: "y", n: 6 });
        throw new Error("no");
      },
    });
    const claimer = made.claimer("pg", { jobs: [job, leaf] });
    await claimer.enqueue(job, { k: "x", n: 1 });
    expect(results(workTick(await invoke(claimer)))).toEqual(["retried:PGCLAIM_HANDLER_THREW"]);
    expect(await line(made.sql, "x")).toEqual(["1 scheduled"]);
    expect(await line(made.sql, "y")).toEqual([]);
    await whole(made);
  });

  it.each(transports)("crossed with another tick, by SQL on tx, deadlocks with nobody over %s", async (transport) => {
    const made = await world();
    const meet = rendezvous();
    const job = defineJob({
      kind: "crossed",
      payload,
      orderingKey: "k:{k}",
      async run({ payload: { k, n }, tx }) {
        if (n > 9) return;
        const others = k === "x" ? ["y", "z", "x"] : ["x", "z", "y"];
        for (const [i, other] of others.entries())
          await tx.query("select from pgclaim.enqueue('crossed', $1)", [JSON.stringify({ k: other, n: 10 * n + i })]);
        await meet.meet(n);
      },
    });
    const claimers = [1, 2].map(() => made.claimer(transport, { jobs: [job], batch: 1, maxTicks: 1 })) as [
      Claimer,
      Claimer,
    ];
    await claimers[0].enqueue(job, { k: "x", n: 1 });
    await claimers[0].enqueue(job, { k: "y", n: 2 });
    const before = await deadlocks(made);
    const invocations = claimers.map((claimer) => invoke(claimer));
    await Promise.all([meet.arrived(1), meet.arrived(2)]);
    // Both are in their turns, with jobs for each other's key in their transactions; nobody holds a gate.
    await made.sql.query("set lock_timeout = '1ms'");
    for (const k of ["x", "y", "z"])
      await made.sql.query("select from pgclaim.enqueue('crossed', $1)", [JSON.stringify({ k, n: 99 })]);
    meet.release(1);
    meet.release(2);
    for (const report of await endsWithin(20_000, Promise.all(invocations), "both ticks"))
      expect(results(workTick(report))).toEqual(["done"]);
    expect(await deadlocks(made)).toBe(before);
    expect((await line(made.sql, "z")).map((row) => Number.parseInt(row, 10))[0]).toBe(99);
    for (const k of ["x", "y", "z"]) expect(await line(made.sql, k)).toHaveLength(3);
    const rest = made.claimer(transport, { jobs: [job] });
    await eventually(async () => {
      await invoke(rest);
      expect(await made.value("select count(*)::integer from pgclaim.job")).toBe(0);
    });
    await whole(made);
  });
});

describe("one key from everywhere", () => {
  it("is one line, whoever enqueues: SQL, a client's transaction, the claimer, HTTP, a handler", async () => {
    const made = await world();
    const job = ordered();
    const starter = defineJob({
      kind: "starter",
      payload: z.object({}),
      async run({ enqueue }) {
        await enqueue(job, { k: "x", n: 5 });
      },
    });
    const options: Omit<ClaimerOptions, "database"> = { jobs: [job, starter], maxTicks: 1 };
    const claimer = made.claimer("neon", options);
    await claimer.register();
    const app = createApp({ claimer: () => claimer, secrets: () => ({ enqueue: "secret-of-16-chars" }) });
    const client = await made.connect();
    await client.query("begin isolation level repeatable read");
    await claimer.enqueue(job, { k: "x", n: 6 }, { client });
    await made.sql.query("select from pgclaim.enqueue('ordered', $1)", [JSON.stringify({ k: "x", n: 1 })]);
    await claimer.enqueue(job, { k: "x", n: 2 });
    const answer = await app.request("/api/jobs", {
      method: "POST",
      headers: { authorization: "Bearer secret-of-16-chars", "content-type": "application/json" },
      body: JSON.stringify({ kind: "ordered", payload: { k: "x", n: 3 } }),
    });
    expect(answer.status).toBeLessThan(300);
    await claimer.enqueueByKind([{ kind: "ordered", payload: { k: "x", n: 4 } }]);
    await claimer.enqueue(starter, {});
    await made.sql.query("select pgclaim.pause_queue_v1('default')");
    await made.sql.query("select pgclaim.resume_queue_v1('default')");
    await invoke(claimer);
    await client.query("commit");
    await invoke(claimer);
    await invoke(claimer);
    expect(await effectsInOrder(made)).toEqual([1, 2, 3, 4, 5, 6]);
    await whole(made);
  });
});
