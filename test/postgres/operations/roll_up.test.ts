// What charts and metrics read: each tick is in the sums once, whatever slices, ties and many wakes at once make of it; and what
// is old goes, a slice at a time.

import { randomUUID } from "node:crypto";
import { describe, expect, it } from "vitest";
import { draws, pick } from "../../../scripts/world/draws.ts";
import { lateBoundsMs } from "../../../src/inspection.ts";
import {
  claimer,
  type Db,
  enqueue,
  fence,
  finish,
  type Installation,
  install,
  type OutcomeName,
  settle,
  the,
} from "../sql/support.ts";
import { recordingWake } from "./support.ts";

interface Sums {
  readonly width: number;
  readonly at: Date;
  readonly kind: string;
  readonly done: number;
  readonly retried: number;
  readonly dead: number;
  readonly snoozed: number;
  readonly released: number;
  readonly cancelled: number;
  readonly missed: number;
  readonly late: readonly number[];
  readonly late_ms: number;
}

const NOTHING = { done: 0, retried: 0, dead: 0, snoozed: 0, released: 0, cancelled: 0, missed: 0 };

const sums = (world: Installation, width: number) =>
  world.rows<Sums>(
    `select width, at, kind, done::integer, retried::integer, dead::integer, snoozed::integer, released::integer,
       cancelled::integer, missed::integer, late::integer[], late_ms::integer
     from pgclaim.rollup where width = $1 order by at, kind`,
    [width],
  );

const tickSums = (world: Installation, width: number) =>
  world.rows<{ at: Date; committed: number; lost: number; claimed: number; skipped: Record<string, number> }>(
    `select at, committed::integer, lost::integer, claimed::integer, skipped from pgclaim.tick_rollup
     where width = $1 order by at`,
    [width],
  );

/** Makes all ticks old enough to be added up. */
const age = (world: Installation, interval = "16 seconds") =>
  world.sql.query("update pgclaim.tick set decided_at = decided_at - $1::interval", [interval]);

/** Lets the next wake add up at once. */
const due = (world: Installation) =>
  world.sql.query(
    "update pgclaim.housekeeping set ran_at = ran_at - interval '20 seconds', upto = upto - interval '20 seconds'",
  );

/** A tick that is over, with what its report says. */
const insertTick = (db: Db, report: object | null, at = "now() - interval '1 minute'", outcome = "committed") =>
  db.query(`insert into pgclaim.tick (id, outcome, invocation, decided_at, report) values ($1, $2, 'x', ${at}, $3)`, [
    randomUUID(),
    outcome,
    report === null ? null : JSON.stringify(report),
  ]);

/** Claims all there is and ends each job as `of` says. */
async function tickOf(world: Installation, of: (i: number) => OutcomeName | "cancelled" | "missed") {
  const session = await claimer(world, { batch: 100 });
  await fence(world.sql, session);
  const jobs = session.jobs.map((job, i) => ({ ...job, outcome: of(i) as OutcomeName, inMs: 3_600_000 }));
  await finish(session.client, session.tick, jobs);
  await session.client.end();
  return jobs;
}

describe("the bounds of the histogram", () => {
  it("are those of src/inspection.ts, and a length counts in the first bucket whose bound it does not exceed", async () => {
    const world = await install();
    expect((await world.value<string[]>("select pgclaim.late_bounds_ms()")).map(Number)).toEqual([...lateBoundsMs]);
    for (const [i, bound] of lateBoundsMs.entries()) {
      const counts = (await world.value<string[]>("select pgclaim.late_counts($1)", [[bound, bound + 1]])).map(Number);
      expect(counts).toEqual(
        Array.from({ length: lateBoundsMs.length + 1 }, (_, at) => (at === i || at === i + 1 ? 1 : 0)),
      );
    }
    expect((await world.value<string[]>("select pgclaim.late_counts('{0}')")).map(Number).indexOf(1)).toBe(0);
    expect(await world.value("select pgclaim.late_counts(null)")).toBeNull();
  });
});

describe("what finish tells of each kind", () => {
  it("is every way a job can end, and how late the done ones were", async () => {
    const world = await install([{ name: "a", maxAttempts: 2 }, { name: "b" }]);
    await enqueue(world.sql, 8, "a");
    await enqueue(world.sql, 2, "b");
    await world.sql.query("update pgclaim.job set run_at = clock_timestamp() - interval '7 seconds'");
    await world.sql.query("update pgclaim.job set failures = 1 where id = 3");
    const ends = [
      "done",
      "failed",
      "failed",
      "dead",
      "snoozed",
      "released",
      "cancelled",
      "done",
      "done",
      "missed",
    ] as const;
    await world.sql.query("delete from pgclaim.attempt");
    await tickOf(world, (i) => ends[i] ?? "done");
    const { kinds } = await world.value<{ kinds: Record<string, { lateMs: number }> }>(
      "select report from pgclaim.tick",
    );
    const late = (n: number) => Array.from({ length: 14 }, (_, i) => (lateBoundsMs[i] === 10_000 ? n : 0));
    expect(kinds).toEqual({
      a: {
        done: 2,
        retried: 1,
        dead: 2,
        snoozed: 1,
        released: 1,
        cancelled: 1,
        late: late(2),
        lateMs: expect.any(Number),
      },
      b: { done: 1, missed: 1, late: late(1), lateMs: expect.any(Number) },
    });
    expect(kinds.a?.lateMs).toBeGreaterThanOrEqual(14_000);
    expect(kinds.a?.lateMs).toBeLessThan(20_000);
  });
});

describe("roll up", () => {
  it("adds up what was done, by minute, hour and since ever, lost ticks too", async () => {
    const world = await install();
    await enqueue(world.sql, 5, "a");
    await tickOf(world, (i) => (i < 3 ? "done" : "failed"));
    await enqueue(world.sql, 2, "b");
    await tickOf(world, () => "done");
    const lost = await claimer(world);
    await lost.client.query("rollback");
    expect(await settle(world.sql, { ...lost })).toBe("lost");
    await insertTick(world.sql, { claimed: 7, skipped: { busy: 2, stale: 1 } }, "now()", "lost");
    await insertTick(world.sql, { claimed: 1, skipped: { busy: 3 } }, "now()");
    await insertTick(world.sql, null, "now()");
    await age(world);
    expect((await recordingWake(world.sql)).faults).toEqual([]);
    for (const width of [0, 1, 60]) {
      const by = (kind: string) => sums(world, width).then((rows) => rows.filter((row) => row.kind === kind));
      const total = (rows: readonly Sums[], what: "done" | "retried") => rows.reduce((sum, row) => sum + row[what], 0);
      expect(total(await by("a"), "done")).toBe(3);
      expect(total(await by("a"), "retried")).toBe(2);
      expect(total(await by("b"), "done")).toBe(2);
      const ticks = await tickSums(world, width);
      const all = (what: "committed" | "lost" | "claimed") => ticks.reduce((sum, row) => sum + row[what], 0);
      expect([all("committed"), all("lost"), all("claimed")]).toEqual([4, 2, 8]);
      expect(ticks.reduce((sum, { skipped }) => sum + (skipped.busy ?? 0), 0)).toBe(5);
      expect(ticks.reduce((sum, { skipped }) => sum + (skipped.stale ?? 0), 0)).toBe(1);
    }
    expect((await tickSums(world, 0)).map(({ at }) => at.getTime())).toEqual([0]);
  });

  it("puts each tick into its own minute and hour, and adds to what is there", async () => {
    const world = await install();
    const late = [1, ...Array.from({ length: 13 }, () => 0)];
    const report = (done: number) => ({
      claimed: done,
      kinds: { a: { done, late: late.map((n) => n * done), lateMs: done * 9 } },
    });
    const at = (text: string) =>
      `date_trunc('day', now() at time zone 'UTC') at time zone 'UTC' - interval '1 day' + interval '${text}'`;
    await insertTick(world.sql, report(1), at("10:00:00"));
    await insertTick(world.sql, report(2), at("10:00:59.999"));
    await insertTick(world.sql, report(4), at("10:59:00"));
    await recordingWake(world.sql, { rollSlice: 2 });
    await recordingWake(world.sql, { rollSlice: 2 });
    await insertTick(world.sql, report(8), "now() - interval '17 seconds'");
    await due(world);
    await world.sql.query(
      "update pgclaim.housekeeping set upto = now() - interval '18 seconds', ran_at = now() - interval '30 seconds'",
    );
    await recordingWake(world.sql);
    const minutes = await sums(world, 1);
    expect(minutes.map(({ done, late_ms }) => [done, late_ms])).toEqual([
      [3, 27],
      [4, 36],
      [8, 72],
    ]);
    expect(minutes.map(({ late: [first] }) => first)).toEqual([3, 4, 8]);
    for (const { at: minute } of minutes) expect(minute.getTime() % 60_000).toBe(0);
    const hours = await sums(world, 60);
    expect(hours.map(({ done }) => done)).toEqual([7, 8]);
    for (const { at: hour } of hours) expect(hour.getTime() % 3_600_000).toBe(0);
    expect(await sums(world, 0)).toMatchObject([
      { ...NOTHING, kind: "a", done: 15, late_ms: 135, late: late.map((n) => n * 15) },
    ]);
  });

  it("leaves what may not have been seen by all, and takes it when it is 15 seconds old", async () => {
    const world = await install();
    await insertTick(world.sql, { claimed: 1 }, "now() - interval '10 seconds'");
    await recordingWake(world.sql);
    expect(await tickSums(world, 0)).toEqual([]);
    await age(world, "6 seconds");
    await due(world);
    await recordingWake(world.sql);
    expect(await tickSums(world, 0)).toMatchObject([{ committed: 1 }]);
  });

  it("happens once in 20 seconds, unless there was more than a slice", async () => {
    const world = await install();
    for (let i = 0; i < 5; i++) await insertTick(world.sql, { claimed: 1 }, `now() - interval '${60 - i} seconds'`);
    const seen = [];
    for (let i = 0; i < 4; i++) {
      await recordingWake(world.sql, { rollSlice: 2 });
      seen.push(the(await tickSums(world, 0)).committed);
    }
    expect(seen).toEqual([2, 4, 5, 5]);
    await insertTick(world.sql, { claimed: 1 }, "now() - interval '15.001 seconds'");
    await recordingWake(world.sql);
    expect(the(await tickSums(world, 0)).committed).toBe(5);
  });

  it("counts ticks of one instant once, however they lie to the slices", async () => {
    const world = await install();
    for (const at of [30, 30, 30, 29, 29, 28])
      await insertTick(world.sql, { claimed: 1 }, `date_trunc('minute', now()) - interval '${at} seconds'`);
    await world.sql.query("update pgclaim.tick set decided_at = decided_at - interval '1 minute'");
    for (let i = 0; i < 6; i++) await recordingWake(world.sql, { rollSlice: 1 });
    expect(await tickSums(world, 0)).toMatchObject([{ committed: 6, claimed: 6 }]);
  });

  it("by many wakes at once, over drawn ticks, is what counting them all one by one gives", async () => {
    const world = await install();
    const draw = draws(20_261_201);
    await world.sql.query("begin");
    for (let i = 0; i < 300; i++) {
      const n = () => pick(draw, 4);
      const kinds = Object.fromEntries(
        ["a", "b", "c"].slice(pick(draw, 3)).map((kind) => {
          const late = lateBoundsMs.map(n).concat(n());
          return [
            kind,
            { done: late.reduce((sum, one) => sum + one, 0), retried: n(), dead: n(), late, lateMs: n() * 100 },
          ];
        }),
      );
      await insertTick(
        world.sql,
        { claimed: n(), skipped: { busy: n(), stale: n() }, kinds },
        `now() - interval '${16 + pick(draw, 10_000)} seconds'`,
        pick(draw, 5) === 0 ? "lost" : "committed",
      );
    }
    await world.sql.query("commit");
    const clients = await Promise.all(Array.from({ length: 4 }, () => world.connect()));
    const faults = clients.map(async (client) => {
      const met = [];
      for (let i = 0; i < 15; i++) met.push(...(await recordingWake(client, { rollSlice: 20 })).faults);
      return met;
    });
    expect((await Promise.all(faults)).flat()).toEqual([]);
    for (let i = 0; i < 16; i++) await recordingWake(world.sql, { rollSlice: 20 });
    const truth = await world.rows(`
      select k.kind, sum((k.f ->> 'done')::integer)::integer as done, sum((k.f ->> 'retried')::integer)::integer as retried,
        sum((k.f ->> 'dead')::integer)::integer as dead, sum((k.f ->> 'lateMs')::integer)::integer as late_ms
      from pgclaim.tick t cross join lateral jsonb_each(t.report -> 'kinds') k(kind, f) group by 1 order by 1`);
    const lates = await world.rows<{ kind: string; i: number; n: number }>(`
      select k.kind, l.i::integer as i, sum(l.n::integer)::integer as n
      from pgclaim.tick t cross join lateral jsonb_each(t.report -> 'kinds') k(kind, f)
        cross join lateral jsonb_array_elements_text(k.f -> 'late') with ordinality l(n, i)
      group by 1, 2 order by 1, 2`);
    const ticks = await world.rows(`
      select count(*) filter (where outcome = 'committed')::integer as committed, count(*) filter (where outcome = 'lost')::integer as lost,
        sum((report ->> 'claimed')::integer)::integer as claimed,
        jsonb_build_object('busy', sum((report #>> '{skipped,busy}')::integer), 'stale', sum((report #>> '{skipped,stale}')::integer)) as skipped
      from pgclaim.tick`);
    expect(await tickSums(world, 0)).toMatchObject(ticks);
    const ever = await sums(world, 0);
    expect(ever).toMatchObject(truth);
    for (const { kind, late } of ever) expect(late).toEqual(lates.filter((one) => one.kind === kind).map(({ n }) => n));
    for (const width of [1, 60]) {
      const parts = await sums(world, width);
      for (const { kind, done, late, late_ms } of ever) {
        const mine = parts.filter((one) => one.kind === kind);
        expect(mine.length).toBeGreaterThan(1);
        expect(mine.reduce((sum, one) => sum + one.done, 0)).toBe(done);
        expect(mine.reduce((sum, one) => sum + one.late_ms, 0)).toBe(late_ms);
        expect(late.map((_, i) => mine.reduce((sum, one) => sum + (one.late[i] ?? 0), 0))).toEqual(late);
      }
    }
  });
});
