// The server goes away under ticks that stand at every stage at once, and comes back; or one backend goes away while finish
// runs or waits in it. What must hold: every invocation ends within its limits and with a code, says of its tick what is true,
// and the next ones do what is left, each effect once.

import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from "vitest";
import { defineJob } from "../../src/index.ts";
import {
  attempts,
  drain,
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  quick,
  rendezvous,
  upTo,
  watchUnhandled,
  workTick,
} from "../support/engine.ts";
import { endsWithin, eventually } from "../support/gate.ts";
import { setup, type TransportName, transports, type World } from "../support/world.ts";
import { type OwnServer, ownServer, setting, stops } from "./server.ts";

let own: OwnServer;
beforeAll(async () => {
  own = await ownServer();
});
afterAll(() => own.server.stop());
beforeEach(() => watchUnhandled());

/** A busy machine takes its time to bring ticks where they are to stand; nothing here is ended by a limit. */
const limits = { ...quick, oneShot: "30s", message: "30s", connect: "30s" } as const;
/** Longer than any of these takes: a restart, and a settle to its end. */
const boundMs = 30_000;
vi.setConfig({ testTimeout: 90_000 });

/** Stages of a tick, each in a queue of its own, so that five ticks stand in them at the same time. */
const stages = ["outside", "in its turn", "in a query", "in its fence", "in finish"] as const;
type Stage = (typeof stages)[number];

const queueOf = (stage: Stage) => stage.replaceAll(" ", "-");

function stageJobs(meeting: ReturnType<typeof rendezvous>, starts: string[]) {
  return stages.map((stage, i) => {
    const n = i + 1;
    return {
      stage,
      n,
      job: defineJob({
        kind: `stage.${queueOf(stage)}`,
        queue: queueOf(stage),
        payload: numbered,
        async run({ tx, signal, job: { attempt } }) {
          starts.push(`${n}:${attempt}`);
          if (stage !== "outside") await effect(tx, n);
          if (attempt === 1 && stage === "in a query") await tx.query("select pg_sleep(60)");
          if (attempt === 1 && (stage === "outside" || stage === "in its turn")) {
            await Promise.race([meeting.meet(n), new Promise((resolve) => signal.addEventListener("abort", resolve))]);
          }
          if (stage === "outside") await effect(tx, n);
        },
      }),
    };
  });
}

/** Until a backend waits for a lock of this one. */
async function waitsFor(world: World, pid: number, text: string): Promise<number> {
  return eventually(async () => {
    const rows = await world.rows<{ pid: number }>(
      "select pid from pg_stat_activity where $1 = any(pg_blocking_pids(pid)) and query like $2",
      [pid, `%${text}%`],
    );
    expect(rows).toHaveLength(1);
    return rows[0]?.pid ?? 0;
  });
}

const pidOf = (client: { query(text: string): Promise<{ rows: { pid: number }[] }> }) =>
  client.query("select pg_backend_pid() as pid").then(({ rows }) => rows[0]?.pid ?? 0);

describe.each(transports)("a server stopped in the middle of ticks over %s", (transport) => {
  it.each(stops)(
    "(%s) and started again: nothing lost, nothing twice, each invocation ends with a code",
    async (how) => {
      const world = await setup(own);
      await effectTable(world);
      const meeting = rendezvous();
      const starts: string[] = [];
      const all = stageJobs(meeting, starts);
      const claimer = world.claimer(transport, { jobs: all.map(({ job }) => job), limits });
      for (const { job, n } of all) await claimer.enqueue(job, { n });
      const idOf = (stage: Stage) =>
        world.value<string>("select id from pgclaim.job where kind = $1", [`stage.${queueOf(stage)}`]);
      // A stranger stands in the way of one tick's fence, and of another one's finish.
      const stranger = await world.connect();
      const strangerPid = await pidOf(stranger);
      await stranger.query("begin");
      await stranger.query(
        "insert into pgclaim.attempt (job_id, n, tick, quarantined) values ($1, 1, gen_random_uuid(), false)",
        [await idOf("in its fence")],
      );
      await stranger.query("select from pgclaim.job where id = $1 for update", [await idOf("in finish")]);
      const running = all.map(({ stage }) =>
        endsWithin(boundMs, claimer.invoke({ type: "manual" }, { queues: [queueOf(stage)] }), `the one ${stage}`),
      );
      await Promise.all([meeting.arrived(1), meeting.arrived(2)]);
      await eventually(async () =>
        expect(
          await world.rows("select from pg_stat_activity where state = 'active' and query like 'select pg_sleep%'"),
        ).toHaveLength(1),
      );
      await waitsFor(world, strangerPid, "fence_v1");
      await waitsFor(world, strangerPid, "finish_v1");
      await own.restart(how);
      await world.reconnect();
      const reports = await Promise.all(running);
      for (const { ended, error } of reports) {
        expect(ended).toBe("error");
        expect(error?.code).toMatch(/^PGCLAIM_(TX_LOST|NO_ANSWER|OUTCOME_UNKNOWN|CONNECT_FAILED|FENCE_FAILED)$/);
      }
      for (const tick of reports.map(workTick)) expect(tick.fate).toMatch(/^(lost|unknown)$/);
      expect(await effects(world)).toEqual([]);
      await drain(world, claimer, upTo(stages.length));
      expect(new Set(starts).size).toBe(starts.length);
      await expectWhole(world, { effects: upTo(stages.length) });
    },
  );
});

/** One job with an effect, and its finish held up in the server: the pid of the backend that waits there. */
async function inFinish(world: World, transport: TransportName) {
  await effectTable(world);
  const job = defineJob({
    kind: "finishing",
    payload: numbered,
    async run({ payload: { n }, tx }) {
      await effect(tx, n);
    },
  });
  const claimer = world.claimer(transport, { jobs: [job], limits });
  const { id } = await claimer.enqueue(job, { n: 1 });
  const stranger = await world.connect();
  await stranger.query("begin");
  await stranger.query("select from pgclaim.job where id = $1 for update", [id]);
  const running = invoke(claimer, { within: boundMs });
  const pid = await waitsFor(world, await pidOf(stranger), "finish_v1");
  return { claimer, running, pid, letGo: () => stranger.query("rollback") };
}

describe.each(transports)("a finish that waits in the server over %s", (transport) => {
  it("whose backend is terminated is lost, blames nobody, and comes once", async () => {
    const world = await setup(own);
    const { claimer, running, pid, letGo } = await inFinish(world, transport);
    await world.sql.query("select pg_terminate_backend($1)", [pid]);
    await letGo();
    const report = await running;
    expect(report).toMatchObject({ ended: "error", error: { code: "PGCLAIM_TX_LOST" } });
    expect(workTick(report)).toMatchObject({ fate: "lost", done: 0 });
    expect(await attempts(world)).toEqual(["1:1 interrupted"]);
    expect(await effects(world)).toEqual([]);
    await drain(world, claimer, [1]);
    await expectWhole(world, { effects: [1] });
  });

  it("whose statement is cancelled says so with a code, and comes once", async () => {
    const world = await setup(own);
    const { claimer, running, pid, letGo } = await inFinish(world, transport);
    await world.sql.query("select pg_cancel_backend($1)", [pid]);
    await letGo();
    const report = await running;
    expect(report).toMatchObject({ ended: "error", error: { code: expect.stringMatching(/^PGCLAIM_/) } });
    expect(workTick(report)).toMatchObject({ fate: "lost", done: 0 });
    expect(await world.locks()).toBe(0);
    await drain(world, claimer, [1]);
    await expectWhole(world, { effects: [1] });
  });
});

describe.each(transports)("a fence that waits in the server over %s", (transport) => {
  it("whose backend is terminated is sent once more, and grants its number once", async () => {
    const world = await setup(own);
    await effectTable(world);
    const starts: number[] = [];
    const job = defineJob({
      kind: "fenced",
      payload: numbered,
      async run({ payload: { n }, tx, job: { attempt } }) {
        starts.push(attempt);
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], limits });
    const { id } = await claimer.enqueue(job, { n: 1 });
    const stranger = await world.connect();
    await stranger.query("begin");
    await stranger.query(
      "insert into pgclaim.attempt (job_id, n, tick, quarantined) values ($1, 1, gen_random_uuid(), false)",
      [id],
    );
    const strangerPid = await pidOf(stranger);
    const running = invoke(claimer, { within: boundMs });
    const first = await waitsFor(world, strangerPid, "fence_v1");
    await world.sql.query("select pg_terminate_backend($1)", [first]);
    await stranger.query("rollback"); // the second one, or its way to the server, meets nobody
    const report = await running;
    expect(report).toMatchObject({ ended: "empty", done: 1 });
    expect(workTick(report).roundTrips.oneShot).toBe(2);
    expect(starts).toEqual([1]);
    expect(await attempts(world)).toEqual(["1:1 done"]);
    await expectWhole(world, { effects: [1] });
  });
});

// synchronous_standby_names names a standby that does not exist, so COMMIT waits for it, having committed already. Whoever is
// disturbed there gets an error, and the transaction stands.
describe.each(transports)("a COMMIT that waits for a standby over %s", (transport) => {
  it.each(["its backend terminated", "the server crashed"] as const)("(%s) is told as committed", async (how) => {
    const world = await setup(own);
    await effectTable(world);
    const meeting = rendezvous();
    const job = defineJob({
      kind: "committing",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await meeting.meet(n);
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], limits });
    await claimer.enqueue(job, { n: 1 });
    const running = invoke(claimer, { within: boundMs });
    await meeting.arrived(1); // its fence is on record
    try {
      await commitsWait(world);
      meeting.release(1);
      const pid = await eventually(async () => {
        const rows = await world.rows<{ pid: number }>(
          "select pid from pg_stat_activity where wait_event = 'SyncRep' and query like '%finish_v1%'",
        );
        expect(rows).toHaveLength(1);
        return rows[0]?.pid;
      });
      if (how === "the server crashed") {
        await own.restart("immediate");
        await world.reconnect();
      } else {
        await world.sql.query("select pg_terminate_backend($1)", [pid]);
      }
      const report = await running;
      expect(workTick(report)).toMatchObject({ fate: "committed", done: 1 });
      expect(workTick(report).roundTrips.oneShot).toBeGreaterThan(1); // COMMIT was not answered: settle knew
    } finally {
      await setting(own, "synchronous_standby_names", null);
    }
    expect(await invoke(claimer)).toMatchObject({ claimed: 0, crashed: 0 });
    expect(await attempts(world)).toEqual(["1:1 done"]);
    await expectWhole(world, { effects: [1] });
  });
});

/** From here on every COMMIT waits for a standby that does not exist; seen on one that waits, whose statement is cancelled. */
async function commitsWait(world: World): Promise<void> {
  await setting(own, "synchronous_standby_names", "nobody");
  const prober = await world.connect();
  const pid = await pidOf(prober);
  await eventually(async () => {
    const probe = prober.query("create table probe (); drop table probe");
    probe.catch(() => {});
    let over = false;
    const ended = probe.then(
      () => (over = true),
      () => (over = true),
    );
    while (!over) {
      const event = await world.value("select wait_event from pg_stat_activity where pid = $1", [pid]);
      if (event !== "SyncRep") continue;
      await world.sql.query("select pg_cancel_backend($1)", [pid]);
      await ended;
      return;
    }
    expect.fail("COMMIT does not wait yet");
  });
}
