// onEvent: each fact is told once, in order, with the ids of what it is about and never with data; and a hook that breaks costs
// a log line and no job.

import { beforeEach, describe, expect, it } from "vitest";
import {
  type ClaimerOptions,
  deadLetter,
  defineJob,
  defineSchedule,
  type PgclaimEvent,
  retryIn,
  snooze,
} from "../../../src/index.ts";
import {
  claimingBackends,
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
} from "../../support/engine.ts";
import { eventually } from "../../support/gate.ts";
import { startRunner } from "../../support/process.ts";
import { setup, transports, type World } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

/** A claimer that keeps its events. */
function listening(world: World, options: Omit<ClaimerOptions, "database">, transport: "pg" | "neon" = "pg") {
  const events: PgclaimEvent[] = [];
  const claimer = world.claimer(transport, { limits: quick, ...options, onEvent: (event) => void events.push(event) });
  return { events, claimer };
}

/** `type`, and of which job. */
const names = (events: readonly PgclaimEvent[]) =>
  events.map((event) => ("jobId" in event ? `${event.type} ${event.jobId}:${event.attempt}` : event.type));

describe.each(transports)("the ends of jobs over %s", (transport) => {
  it("are told when their tick has committed, each with its ids, attempt and length", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "ends",
      payload: numbered,
      retry: { maxAttempts: 2 },
      async run({ payload: { n }, tx }) {
        if (n === 1) await effect(tx, 1);
        if (n === 2) throw new Error("secret of 2");
        if (n === 3) return deadLetter("secret of 3");
        if (n === 4) return snooze("1h");
        if (n === 5) return retryIn("1h");
        return;
      },
    });
    const { events, claimer } = listening(world, { jobs: [job], concurrency: 1 }, transport);
    await claimer.enqueueMany(
      job,
      upTo(5).map((n) => ({ n })),
    );
    await world.sql.query("update pgclaim.job set failures = 1 where id = 5");
    const report = await invoke(claimer);
    const [tickId] = report.ticks.map((tick) => tick.tickId);
    const ids = { invocationId: report.invocationId, tickId, kind: "ends", attempt: 1 };
    expect(names(events)).toEqual([
      "invocation.started",
      ...upTo(5).map((n) => `job.started ${n}:1`),
      "job.done 1:1",
      "job.failed 2:1",
      "job.dead 3:1",
      "job.snoozed 4:1",
      "job.dead 5:1",
      "tick.ended",
      "tick.ended", // an empty one
      "invocation.ended",
    ]);
    const of = (type: string, jobId: string) =>
      events.find((event) => event.type === type && "jobId" in event && event.jobId === jobId);
    const [invocation] = events;
    expect(invocation).toEqual({ type: "invocation.started", invocationId: report.invocationId, trigger: "manual" });
    expect(of("job.started", "1")).toEqual({ type: "job.started", jobId: "1", ...ids, lateMs: expect.any(Number) });
    expect(of("job.done", "1")).toEqual({ type: "job.done", jobId: "1", ...ids, ms: expect.any(Number) });
    expect(of("job.failed", "2")).toEqual({
      type: "job.failed",
      jobId: "2",
      ...ids,
      ms: expect.any(Number),
      code: "PGCLAIM_HANDLER_THREW",
      dueAt: expect.stringMatching(/^20.*Z$/),
    });
    expect(of("job.dead", "3")).toMatchObject({ code: null });
    expect(of("job.snoozed", "4")).toMatchObject({ dueAt: expect.stringMatching(/^20.*Z$/) });
    expect(of("job.dead", "5")).toMatchObject({ code: "PGCLAIM_HANDLER_THREW" });
    expect(events.find(({ type }) => type === "tick.ended")).toMatchObject({
      tickId,
      fate: "committed",
      quarantined: false,
      claimed: 5,
      code: null,
    });
    expect(events.at(-1)).toMatchObject({ ended: "empty", claimed: 5, done: 1, code: null, ms: report.totalMs });
    expect(JSON.stringify(events)).not.toContain("secret");
  });

  it("tell a lost tick as lost, and the same jobs again when they are done", async () => {
    const world = await setup();
    await effectTable(world);
    const meeting = rendezvous();
    const job = defineJob({
      kind: "outside",
      payload: numbered,
      async run({ payload: { n }, tx, job: { attempt } }) {
        if (attempt === 1) await meeting.meet(n);
        await effect(tx, n);
      },
    });
    const { events, claimer } = listening(world, { jobs: [job] }, transport);
    await claimer.enqueueMany(job, [{ n: 1 }, { n: 2 }]);
    const invocation = invoke(claimer);
    await Promise.all([1, 2].map(meeting.arrived));
    for (const pid of await claimingBackends(world)) await world.sql.query("select pg_terminate_backend($1)", [pid]);
    await invocation;
    for (const n of [1, 2]) meeting.release(n);
    expect(names(events)).toEqual([
      "invocation.started",
      "job.started 1:1",
      "job.started 2:1",
      "job.interrupted 1:1",
      "job.interrupted 2:1",
      "tick.ended",
      "invocation.ended",
    ]);
    expect(events.at(-2)).toMatchObject({ fate: "lost", code: "PGCLAIM_TX_LOST" });
    expect(events.at(-1)).toMatchObject({ ended: "error", code: "PGCLAIM_TX_LOST" });
    await invoke(claimer);
    expect(names(events).filter((name) => name.startsWith("job.done"))).toEqual(["job.done 1:2", "job.done 2:2"]);
    await expectWhole(world, { effects: [1, 2] });
  });
});

describe("what is not an ordinary end", () => {
  it("is told: a missed deadline that halts its key, a job handed back behind another", async () => {
    const world = await setup();
    const run = async () => retryIn("1h");
    const missing = defineJob({ kind: "missing", payload: numbered, deadline: "1s", orderingKey: "k:{n}", run });
    const line = defineJob({ kind: "line", payload: numbered, orderingKey: "line", run });
    const loose = defineJob({ kind: "loose", payload: numbered, deadline: "1s", run });
    const { events, claimer } = listening(world, { jobs: [missing, line, loose] });
    const deadlineAt = new Date(Date.now() - 60_000);
    await claimer.enqueue(missing, { n: 1 }, { deadlineAt });
    await claimer.enqueue(loose, { n: 1 }, { deadlineAt });
    await claimer.enqueueMany(line, [{ n: 1 }, { n: 2 }]);
    await invoke(claimer);
    const seen = names(events);
    expect(seen.filter((name) => /^(job\.missed|key)/.test(name))).toEqual([
      "job.missed 1:1",
      "key.halted 1:1",
      "job.missed 2:1",
    ]);
    expect(seen.filter((name) => / [34]:/.test(name))).toEqual([
      "job.started 3:1",
      "job.failed 3:1",
      "job.released 4:1",
    ]);
    expect(events.find(({ type }) => type === "job.released")).toMatchObject({ ms: null });
  });

  it("is told: a cancel of a job that runs", async () => {
    const world = await setup();
    const meeting = rendezvous();
    const job = defineJob({
      kind: "slow",
      payload: numbered,
      run: ({ signal }) =>
        new Promise<void>((_, reject) => {
          signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true });
          void meeting.meet(1);
        }),
    });
    const { events, claimer } = listening(world, { jobs: [job], limits: { ...quick, cancelPoll: "50ms" } });
    const { id } = await claimer.enqueue(job, { n: 1 });
    const invocation = invoke(claimer);
    await meeting.arrived(1);
    expect(await claimer.cancel(id)).toEqual({ type: "requested" });
    await invocation;
    meeting.release(1);
    expect(names(events).filter((name) => name.startsWith("job."))).toEqual(["job.started 1:1", "job.cancelled 1:1"]);
  });

  it("is told: how many attempts a dead process left, and the quarantine of its job", async () => {
    const world = await setup();
    await effectTable(world);
    await startRunner(world, "pg").ended;
    await world.sql.query("select pgclaim.enqueue('stands', jsonb_build_object('n', 1))");
    const runner = startRunner(world, "pg");
    await runner.standing;
    runner.kill();
    await runner.ended;
    await eventually(async () => expect(await world.locks()).toBe(0));
    const job = defineJob({ kind: "stands", payload: numbered, run: ({ tx }) => effect(tx, 1).then(() => {}) });
    const { events, claimer } = listening(world, { jobs: [job] });
    const report = await invoke(claimer);
    expect(events.slice(0, 2)).toEqual([
      { type: "invocation.started", invocationId: report.invocationId, trigger: "manual" },
      { type: "jobs.crashed", invocationId: report.invocationId, count: 1 },
    ]);
    expect(names(events)).toContain("job.done 1:2");
    const work = events.filter((event) => event.type === "tick.ended" && event.claimed === 1);
    expect(work).toMatchObject([{ fate: "committed", quarantined: report.ticks.some((tick) => tick.quarantined) }]);
    expect(await effects(world)).toEqual([1]);
  });

  it("is told: a schedule that fired, with the jobs it enqueued", async () => {
    const world = await setup();
    const job = defineJob({ kind: "close", payload: numbered, run() {} });
    const schedule = defineSchedule({ name: "every", cron: "* * * * *", job, payload: { n: 1 } });
    const { events, claimer } = listening(world, { jobs: [job], schedules: [schedule] });
    await invoke(claimer);
    await world.sql.query(
      "update pgclaim.schedule set next_at = date_trunc('minute', clock_timestamp()), fresh = false",
    );
    const report = await invoke(claimer);
    expect(events.filter(({ type }) => type === "schedule.fired")).toEqual([
      { type: "schedule.fired", invocationId: report.invocationId, ...report.fired[0] },
    ]);
    expect(report.fired[0]?.jobs).toHaveLength(1);
  });
});

describe("a hook that breaks", () => {
  it.each<[string, () => unknown]>([
    [
      "throws",
      () => {
        throw new Error("hook");
      },
    ],
    ["rejects", () => Promise.reject(new Error("hook"))],
    ["never settles", () => new Promise(() => {})],
    [
      "throws what cannot be looked at",
      () => {
        throw new Proxy(
          {},
          {
            get() {
              throw new Error("hands off");
            },
          },
        );
      },
    ],
  ])("(%s) costs a log line of each invocation, and no job", async (how, hook) => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "plain",
      payload: numbered,
      run: ({ payload: { n }, tx }) => effect(tx, n).then(() => {}),
    });
    const claimer = world.claimer("pg", { jobs: [job], onEvent: hook as () => void });
    await claimer.enqueueMany(
      job,
      upTo(5).map((n) => ({ n })),
    );
    expect(await invoke(claimer)).toMatchObject({ ended: "empty", done: 5 });
    await expectWhole(world, { effects: upTo(5) });
    await eventually(() =>
      expect(world.log.filter(({ event }) => event === "pgclaim.observe")).toHaveLength(
        how === "never settles" ? 0 : 1,
      ),
    );
  });
});
