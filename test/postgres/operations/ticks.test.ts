// Ticks and invocations: what a tick's row says, also where old code wrote less of it, and which attempts were its own.

import { describe, expect, it } from "vitest";
import type { Page, TickRow } from "../../../src/inspection.ts";
import { all, claimer, enqueue, fence, finish, type Installation, install } from "../sql/support.ts";
import { inspectorOf, KINDS, read, walk } from "./support.ts";

async function ticks(world: Installation, n: number): Promise<void> {
  await world.sql.query(
    `insert into pgclaim.tick (id, outcome, invocation, decided_at, report)
     select md5(i::text)::uuid, case when i % 3 = 0 then 'lost' else 'committed' end, 'inv ' || i / 2, '2026-01-01T00:00:00.123456Z',
       case when i % 2 = 0 then jsonb_build_object('trigger', 'manual') end
     from generate_series(1, $1) i`,
    [n],
  );
}

describe("ticks", () => {
  it("tells a tick as its report does, and null or nothing where an old report is silent", async () => {
    const world = await install(KINDS);
    const report = {
      trigger: "cron * * * * *",
      n: 2,
      startedAt: "2026-01-01T00:00:00.000Z",
      quarantined: true,
      claimed: 3,
      skipped: { busy: 4 },
      outcomes: { done: 3 },
      roundTrips: { session: 2, oneShot: 1 },
      wakeMs: 1,
      connectMs: 2,
      claimMs: 3,
      fenceMs: 4,
      runMs: 5,
      totalMs: 6,
    };
    await world.sql.query(
      `insert into pgclaim.tick (id, outcome, invocation, decided_at, report) values
         ('00000000-0000-0000-0000-000000000001', 'committed', 'i1', '2026-01-02', $1),
         ('00000000-0000-0000-0000-000000000002', 'lost', 'i2', '2026-01-01', null)`,
      [JSON.stringify(report)],
    );
    const { items } = await (await inspectorOf(world)).ticks({});
    expect(items).toMatchObject([
      { tickId: "00000000-0000-0000-0000-000000000001", invocationId: "i1", outcome: "committed", ...report },
      {
        invocationId: "i2",
        outcome: "lost",
        trigger: null,
        n: null,
        startedAt: null,
        quarantined: false,
        claimed: 0,
        outcomes: {},
        skipped: {},
        roundTrips: null,
        totalMs: null,
      },
    ]);
  });

  it("gives every tick once over its pages, where all were decided at one instant, and narrows by trigger and outcome", async () => {
    const world = await install(KINDS);
    await ticks(world, 20);
    const inspector = await inspectorOf(world);
    for (const filter of [{}, { outcome: "lost" as const }, { trigger: "manual" }, { trigger: "'" }]) {
      const whole = (await inspector.ticks({ ...filter, limit: 200 })).items.map((tick) => tick.tickId);
      expect(whole).toHaveLength(
        "outcome" in filter ? 6 : "trigger" in filter ? (filter.trigger === "'" ? 0 : 10) : 20,
      );
      for (const limit of [1, 7, 20]) {
        const paged = await walk((cursor) => inspector.ticks({ ...filter, limit, ...(cursor ? { cursor } : {}) }));
        expect(paged.map((tick) => tick.tickId)).toEqual(whole);
      }
    }
    const first = await read<Page<TickRow>>(world, "ticks_v1", { trigger: "none", look: 5 });
    expect([first.items, first.searched]).toEqual([[], 5]);
    expect(first.next).not.toBeNull();
    await expect(inspector.ticks({ cursor: "SECRET" })).rejects.toMatchObject({ code: "PGCLAIM_INVALID_REQUEST" });
    await expect(inspector.ticks({ outcome: "SECRET" as "lost" })).rejects.not.toThrow(/SECRET/);
  });
});

describe("invocation", () => {
  it("lists its ticks in order, each with what it ran, finished or not, and whom it left alone", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const ids = await enqueue(world.sql, 3);
    const session = await claimer(world, { kinds: ["a"], batch: 2 });
    await fence(world.sql, session);
    // Another tick that ran at the same time, of another invocation.
    const other = await claimer(world, { kinds: ["a"] });
    await fence(world.sql, other);
    const [one, two] = session.jobs;
    if (one === undefined || two === undefined) throw new Error("two were due");
    await finish(session.client, session.tick, [
      { ...one, outcome: "done" },
      { ...two, outcome: "dead", error: "boom" },
    ]);
    await finish(other.client, other.tick, all(other.jobs, "done"));
    const skips = [{ jobId: "9", kind: "a", reason: "busy", lock: "x" }];
    await world.sql.query("update pgclaim.tick set invocation = 'mine', report = report || $2 where id = $1", [
      session.tick,
      JSON.stringify({ skips, totalMs: 10 }),
    ]);
    const invocation = await inspector.invocation("mine");
    expect(invocation).toMatchObject({ invocationId: "mine", ticks: [{ tickId: session.tick, skips }] });
    const jobs = [...(invocation?.ticks[0]?.jobs ?? [])].sort((a, b) => Number(a.jobId) - Number(b.jobId));
    expect(jobs).toMatchObject([
      { jobId: ids[0], kind: "a", attempt: 1, outcome: "done", error: null },
      { jobId: ids[1], kind: "a", attempt: 1, outcome: "failed", error: "boom" },
    ]);
    expect(await inspector.invocation("nobody's")).toBeNull();
  });
});
