// Deadlines: the earliest first, what is late is not started, and everybody is told. The clock is the database's.

import { describe, expect, it } from "vitest";
import * as z from "zod";
import { createApp } from "../../../src/http/app.ts";
import { type AnyJobDefinition, type Claimer, defineJob, type JobSpec, snooze } from "../../../src/index.ts";
import { effects, effectTable, invoke, makeDue, rendezvous, workTick } from "../../support/engine.ts";
import { setup, type World } from "../../support/world.ts";
import { wake } from "../sql/support.ts";

const payload = z.object({ n: z.number(), account: z.string().default("a") });
type Spec = JobSpec<typeof payload>;

async function worldOf(...jobs: readonly AnyJobDefinition[]): Promise<{ world: World; claimer: Claimer }> {
  const world = await setup();
  const claimer = world.claimer("pg", { jobs, concurrency: 1 });
  await claimer.register();
  return { world, claimer };
}

function noted(ran: number[], spec: Partial<Spec> = {}) {
  return defineJob({ kind: "a", payload, run: ({ payload: { n } }) => void ran.push(n), ...spec } as Spec);
}

const past = new Date(Date.UTC(2020, 0, 1));
const inMs = (ms: number) => new Date(Date.now() + ms);
const miss = (world: World) =>
  world.sql.query(
    "update pgclaim.job set deadline_at = clock_timestamp() - interval '1 second' where deadline_at is not null",
  );

describe("a deadline", () => {
  it("is the kind's, counted from when the job is due by the database's clock, or the job's own", async () => {
    const { world, claimer } = await worldOf(noted([], { deadline: "15m" }));
    const own = inMs(3_600_000);
    await claimer.enqueueByKind([
      { kind: "a", payload: { n: 1 } },
      { kind: "a", payload: { n: 2 }, deadlineAt: own },
      { kind: "a", payload: { n: 3 }, delay: "10m" },
    ]);
    const rows = await world.rows<{ minutes: number }>(
      "select round(extract(epoch from deadline_at - enqueued_at) / 60)::integer as minutes from pgclaim.job order by id",
    );
    expect(rows).toEqual([{ minutes: 15 }, { minutes: 60 }, { minutes: 25 }]);
    expect(await world.value("select deadline_at from pgclaim.job where payload ->> 'n' = '2'")).toEqual(own);
  });

  it("of a job that is enqueued late in a long transaction counts from then", async () => {
    const { world } = await worldOf(noted([], { deadline: "1s" }));
    const client = await world.connect();
    await client.query("begin");
    await client.query("select pg_sleep(1.2)");
    await client.query(`select pgclaim.enqueue('a', '{"n": 1}')`);
    const { rows } = await client.query(
      "select deadline_at > now() + interval '2 seconds' as counts_from_the_call from pgclaim.job",
    );
    expect(rows).toEqual([{ counts_from_the_call: true }]);
    await client.query("commit");
  });

  it("comes from SQL, HTTP and TypeScript alike, and the handler and the API show it", async () => {
    const seen: (string | null)[] = [];
    const job = defineJob({
      kind: "a",
      payload,
      run: ({ job: { deadlineAt } }) => void seen.push(deadlineAt?.toISOString() ?? null),
    });
    const { world, claimer } = await worldOf(job);
    const at = new Date(Date.UTC(2098, 0, 1));
    const { id } = await claimer.enqueue(job, { n: 1 }, { deadlineAt: at });
    await world.sql.query("select pgclaim.enqueue('a', '{\"n\": 2}', deadline_at => $1)", [at]);
    const app = createApp({ claimer: () => claimer, secrets: { enqueue: "e" }, log: () => {} });
    await app.request("/api/jobs", {
      method: "POST",
      headers: { authorization: "Bearer e", "content-type": "application/json" },
      body: JSON.stringify({ kind: "a", payload: { n: 3 }, deadlineAt: at.toISOString() }),
    });
    await claimer.enqueue(job, { n: 4 });
    expect((await claimer.job(id))?.deadlineAt).toMatch(/^2098-01-01T00:00:00/);
    await invoke(claimer);
    // The one without a deadline is due within five minutes, and so comes first.
    expect(seen).toEqual([null, at.toISOString(), at.toISOString(), at.toISOString()]);
  });

  it.each(["infinity", "-infinity"])("of %s is refused", async (value) => {
    const { world } = await worldOf(noted([]));
    await expect(
      world.sql.query("select pgclaim.enqueue('a', '{}', deadline_at => $1)", [value]),
    ).rejects.toMatchObject({
      code: "PC003",
      message: `Job 0: invalid-run-at, ${value}.`,
    });
  });
});

describe("order", () => {
  it("is the earliest deadline first within a priority; a job without one counts by its target latency", async () => {
    const ran: number[] = [];
    const { claimer } = await worldOf(noted(ran, { targetLatency: "5m" }));
    const jobs = [
      { n: 1, deadlineAt: inMs(3_600_000) },
      { n: 2 },
      { n: 3, deadlineAt: inMs(120_000) },
      { n: 4, deadlineAt: inMs(60_000) },
      { n: 5, deadlineAt: inMs(7_200_000), priority: 0 as const },
    ];
    for (const { n, ...when } of jobs) await claimer.enqueueByKind([{ kind: "a", payload: { n }, ...when }]);
    await invoke(claimer);
    expect(ran).toEqual([5, 4, 3, 2, 1]);
  });

  it("is kept by retries and snoozes", async () => {
    const ran: string[] = [];
    const job = defineJob({
      kind: "a",
      payload,
      retry: { minBackoff: "1s" },
      run({ payload: { n }, job: { attempt } }) {
        ran.push(`${n}.${attempt}`);
        if (n === 1 && attempt === 1) throw new Error("not yet");
        if (n === 2 && attempt === 1) return snooze("1h");
        return undefined;
      },
    });
    const { world, claimer } = await worldOf(job);
    await claimer.enqueue(job, { n: 1 }, { deadlineAt: inMs(200_000) });
    await claimer.enqueue(job, { n: 2 }, { deadlineAt: inMs(100_000) });
    const deadlines = "select payload ->> 'n' as n, deadline_at, rank from pgclaim.job order by 1";
    const before = await world.rows(deadlines);
    await invoke(claimer);
    expect(await world.rows(deadlines)).toEqual(before);
    await claimer.enqueue(job, { n: 3 });
    await makeDue(world);
    await invoke(claimer);
    expect(ran).toEqual(["2.1", "1.1", "2.2", "1.2", "3.1"]);
  });
});

describe("a job whose deadline has passed", () => {
  it("is not started: a dead letter `missed`, counted, named and logged", async () => {
    const ran: number[] = [];
    const { world, claimer } = await worldOf(noted(ran));
    const [late] = await claimer.enqueueByKind([{ kind: "a", payload: { n: 1 }, deadlineAt: past }]);
    await claimer.enqueueByKind([{ kind: "a", payload: { n: 2 } }]);
    const report = await invoke(claimer);
    expect(ran).toEqual([2]);
    expect(report).toMatchObject({ claimed: 2, done: 1, missed: 1, dead: 0, atRisk: 0 });
    expect(workTick(report)).toMatchObject({
      missed: 1,
      jobs: [{ jobId: late?.id, kind: "a", attempt: 1, result: "missed" }, { result: "done" }],
    });
    expect(world.log.at(-1)).toMatchObject({
      level: "warn",
      event: "pgclaim.invocation",
      missed: 1,
      ticks: [{ missed: 1, failed: [{ jobId: late?.id, result: "missed" }] }, {}],
    });
    const view = await claimer.job(late?.id ?? "");
    expect(view).toMatchObject({ state: "dead", deadReason: "missed", attempt: 0, failures: 0, attempts: [] });
    expect(await world.value("select count(*)::integer from pgclaim.attempt")).toBe(1);
    expect(await world.value("select report -> 'outcomes' ->> 'missed' from pgclaim.tick")).toBe("1");
  });

  it("alone in its tick is settled without a fence having anything to say", async () => {
    const { world, claimer } = await worldOf(noted([]));
    await claimer.enqueueByKind([{ kind: "a", payload: { n: 1 }, deadlineAt: past }]);
    expect(await invoke(claimer)).toMatchObject({ ended: "empty", claimed: 1, missed: 1 });
    expect(await world.locks()).toBe(0);
    expect(await invoke(claimer)).toMatchObject({ ended: "idle" });
  });

  it("runs all the same with whenMissed: run, and is at risk", async () => {
    const ran: number[] = [];
    const { claimer } = await worldOf(noted(ran, { whenMissed: "run" }));
    await claimer.enqueueByKind([{ kind: "a", payload: { n: 1 }, deadlineAt: past }]);
    expect(await invoke(claimer)).toMatchObject({ done: 1, missed: 0, atRisk: 1 });
    expect(ran).toEqual([1]);
  });

  it("is missed also when it passes while the job waits for its retry", async () => {
    const ran: number[] = [];
    const job = defineJob({
      kind: "a",
      payload,
      deadline: "1h",
      retry: { minBackoff: "1s" },
      run({ payload: { n } }) {
        ran.push(n);
        throw new Error("not yet");
      },
    });
    const { world, claimer } = await worldOf(job);
    const { id } = await claimer.enqueue(job, { n: 1 });
    expect(await invoke(claimer)).toMatchObject({ retried: 1 });
    await miss(world);
    await makeDue(world);
    expect(await invoke(claimer)).toMatchObject({ missed: 1, retried: 0 });
    expect(ran).toEqual([1]);
    expect(await claimer.job(id)).toMatchObject({
      deadReason: "missed",
      failures: 1,
      attempts: [{ n: 1, outcome: "failed" }],
    });
  });

  it("is decided by the database's clock at the claim: what passes while the handler runs does not stop it", async () => {
    const meeting = rendezvous();
    const job = defineJob({ kind: "a", payload, deadline: "1h", run: ({ payload: { n } }) => meeting.meet(n) });
    const { world, claimer } = await worldOf(job);
    await claimer.enqueue(job, { n: 1 });
    const running = invoke(claimer);
    await meeting.arrived(1);
    await miss(world);
    meeting.release(1);
    expect(await running).toMatchObject({ done: 1, missed: 0 });
  });

  it.each(["halt", "skip"] as const)("rules its ordering key as whenDead says: %s", async (whenDead) => {
    const ran: number[] = [];
    const { claimer } = await worldOf(noted(ran, { orderingKey: "{account}", whenDead } as Partial<Spec>));
    const [late] = await claimer.enqueueByKind([{ kind: "a", payload: { n: 1, account: "a" }, deadlineAt: past }]);
    for (const n of [2, 3]) await claimer.enqueueByKind([{ kind: "a", payload: { n, account: "a" } }]);
    await invoke(claimer);
    await invoke(claimer);
    expect(ran).toEqual(whenDead === "halt" ? [] : [2, 3]);
    if (whenDead === "skip") return;
    expect(await claimer.retry(late?.id ?? "")).toEqual({ type: "retried" });
    await invoke(claimer);
    expect(ran).toEqual([1, 2, 3]);
  });

  it("that an operator retries runs, however late it is", async () => {
    const ran: number[] = [];
    const { world, claimer } = await worldOf(noted(ran));
    const [late] = await claimer.enqueueByKind([{ kind: "a", payload: { n: 1 }, deadlineAt: past }]);
    await invoke(claimer);
    expect(await claimer.retry(late?.id ?? "")).toEqual({ type: "retried" });
    expect(await world.value("select deadline_at from pgclaim.job")).toEqual(past);
    expect(await invoke(claimer)).toMatchObject({ done: 1, missed: 0 });
    expect(ran).toEqual([1]);
  });

  it("frees its limit's slot for the next one", async () => {
    const ran: number[] = [];
    const { claimer } = await worldOf(noted(ran, { limits: [{ name: "{account}", max: 1 }] } as Partial<Spec>));
    await claimer.enqueueByKind([{ kind: "a", payload: { n: 1, account: "a" }, deadlineAt: past }]);
    await claimer.enqueueByKind([{ kind: "a", payload: { n: 2, account: "a" } }]);
    await invoke(claimer);
    await invoke(claimer);
    expect(ran).toEqual([2]);
  });

  it("does not take a place in the way of a crash: a tick that misses one and dies misses it again", async () => {
    const { world, claimer } = await worldOf(noted([]));
    await claimer.enqueueByKind([{ kind: "a", payload: { n: 1 }, deadlineAt: past }]);
    const client = await world.connect();
    await client.query("begin isolation level read committed read write");
    const { rows } = await client.query("select job_id, missed from pgclaim.claim_v1($1)", [
      JSON.stringify({
        queues: ["default"],
        kinds: ["a"],
        unfit: [],
        revision: 9,
        batch: 5,
        quarantined: false,
        maxCandidates: 10,
        maxSkips: 5,
      }),
    ]);
    expect(rows).toMatchObject([{ missed: true }]);
    await client.end();
    expect(await wake(world.sql)).toMatchObject({ crashed: 0 });
    expect(await invoke(claimer)).toMatchObject({ missed: 1, crashed: 0 });
  });
});

describe("atRisk", () => {
  it("counts the jobs that start with less time than their timeout, and only these", async () => {
    const { claimer } = await worldOf(noted([], { timeout: "10s" }));
    await claimer.enqueueByKind([
      { kind: "a", payload: { n: 1 }, deadlineAt: inMs(6_000) },
      { kind: "a", payload: { n: 2 }, deadlineAt: inMs(60_000) },
      { kind: "a", payload: { n: 3 } },
    ]);
    const report = await invoke(claimer);
    expect(report).toMatchObject({ done: 3, atRisk: 1, missed: 0 });
    expect(workTick(report)).toMatchObject({ atRisk: 1 });
  });
});

describe("a handler", () => {
  it("gives what it enqueues a deadline and a priority of its own", async () => {
    const next = defineJob({ kind: "next", payload });
    const deadlineAt = new Date(Date.UTC(2098, 0, 1));
    const job = defineJob({
      kind: "a",
      payload,
      async run({ enqueue, tx }) {
        await tx.query("insert into effect (n) values (1)");
        await enqueue(next, { n: 1 }, { deadlineAt, priority: 0 });
      },
    });
    const { world, claimer } = await worldOf(job, next);
    await effectTable(world);
    await claimer.enqueue(job, { n: 1 });
    await invoke(claimer);
    expect(await world.rows("select kind, priority, deadline_at from pgclaim.job")).toEqual([
      { kind: "next", priority: 0, deadline_at: deadlineAt },
    ]);
    expect(await effects(world)).toEqual([1]);
  });
});
