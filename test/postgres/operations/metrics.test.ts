// Charts and counters, from the rollups: sums by step, gaps as gaps, and the histogram as wide as its bounds.

import { describe, expect, it } from "vitest";
import { lateBoundsMs } from "../../../src/inspection.ts";
import { install } from "../sql/support.ts";
import { inspectorOf, KINDS } from "./support.ts";

const minute = 60_000;
const buckets = (counts: Readonly<Record<number, number>>) =>
  `{${Array.from({ length: lateBoundsMs.length + 1 }, (_, i) => counts[i] ?? 0).join(",")}}`;

describe("series", () => {
  it("adds up kinds by minute, keeps a gap a gap, and narrows by kind and queue", async () => {
    const world = await install(KINDS);
    await world.sql.query(
      `insert into pgclaim.rollup (width, at, kind, done, retried, dead, late) values
         (1, date_trunc('minute', now()) - interval '5 minutes', 'a', 10, 2, 1, $1),
         (1, date_trunc('minute', now()) - interval '5 minutes', 'other', 5, 0, 0, $2),
         (1, date_trunc('minute', now()) - interval '3 hours', 'a', 99, 0, 0, '{}')`,
      [buckets({ 3: 10 }), buckets({ 13: 5 })],
    );
    await world.sql.query(
      `insert into pgclaim.tick_rollup (width, at, committed, claimed, skipped) values
         (1, date_trunc('minute', now()) - interval '5 minutes', 1, 16, '{"busy": 3, "behind": 1}'),
         (1, date_trunc('minute', now()) - interval '9 minutes', 1, 2, '{}')`,
    );
    const inspector = await inspectorOf(world);
    const hour = await inspector.series({ windowMs: 60 * minute });
    expect(hour.stepMs).toBe(minute);
    expect(Date.parse(hour.to) - Date.parse(hour.from)).toBe(60 * minute);
    expect(hour.points).toMatchObject([
      { done: 0, failed: 0, dead: 0, p50Ms: null, claimed: 2, skipped: 0 },
      { done: 15, failed: 3, dead: 1, claimed: 16, skipped: 4 },
    ]);
    expect(hour.points[1]?.p50Ms).toBeLessThanOrEqual(500);
    expect(hour.points[1]?.p95Ms).toBe(lateBoundsMs.at(-1));
    const ofKind = await inspector.series({ windowMs: 60 * minute, kind: "other" });
    expect(ofKind.points.map(({ done, claimed }) => [done, claimed])).toEqual([
      [0, 0],
      [5, 0],
    ]);
    expect((await inspector.series({ windowMs: 60 * minute, queue: "default" })).points[1]?.done).toBe(10);
    const day = await inspector.series({ windowMs: 1_440 * minute });
    expect(day.points.reduce((sum, point) => sum + point.done, 0)).toBe(114);
  });

  it.each([minute, 60 * minute, 241 * minute, 1_440 * minute, 1_441 * minute, 10_080 * minute])(
    "has at most 240 steps in %d ms, of whole minutes, or hours above a day",
    async (windowMs) => {
      const world = await install(KINDS);
      await world.sql.query(
        `insert into pgclaim.rollup (width, at, kind, done) 
         select 1, date_trunc('minute', now()) - i * interval '1 minute', 'a', 1 from generate_series(0, 1441) i
         union all select 60, date_trunc('hour', now()) - i * interval '1 hour', 'a', 60 from generate_series(0, 169) i`,
      );
      const series = await (await inspectorOf(world)).series({ windowMs });
      const steps = (Date.parse(series.to) - Date.parse(series.from)) / series.stepMs;
      expect(steps).toBeLessThanOrEqual(240);
      expect(series.stepMs % (windowMs <= 1_440 * minute ? minute : 60 * minute)).toBe(0);
      expect(steps * series.stepMs).toBeGreaterThanOrEqual(windowMs);
      expect(series.points).toHaveLength(steps);
      expect(new Set(series.points.map((point) => point.at)).size).toBe(steps);
    },
  );

  it("refuses a window beyond seven days", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    for (const windowMs of [0, 604_800_001, 1.5]) {
      await expect(inspector.series({ windowMs })).rejects.toMatchObject({ code: "PGCLAIM_INVALID_REQUEST" });
    }
  });
});

describe("metrics", () => {
  it("counts since ever, by kind and of all ticks, zeros where nothing was", async () => {
    const world = await install(KINDS);
    await world.sql.query(
      `insert into pgclaim.rollup (width, at, kind, done, retried, dead, snoozed, released, cancelled, missed, late, late_ms)
       values (0, 'epoch', 'a', 1, 2, 3, 4, 5, 6, 7, $1, 8), (1, date_trunc('minute', now()), 'a', 100, 0, 0, 0, 0, 0, 0, '{}', 0)`,
      [buckets({ 0: 1 })],
    );
    const inspector = await inspectorOf(world);
    const before = await inspector.metrics();
    expect(before.ticks).toEqual({ committed: 0, lost: 0, claimed: 0, skipped: {} });
    await world.sql.query(
      `insert into pgclaim.tick_rollup (width, at, committed, lost, claimed, skipped) values (0, 'epoch', 1, 2, 3, '{"busy": 4}')`,
    );
    const { kinds, ticks } = await inspector.metrics();
    expect(ticks).toEqual({ committed: 1, lost: 2, claimed: 3, skipped: { busy: 4 } });
    expect(kinds.map((kind) => kind.kind)).toEqual([...KINDS.map((kind) => kind.name)].sort());
    const [a, limited] = kinds;
    expect(a).toMatchObject({
      done: 1,
      retried: 2,
      dead: 3,
      snoozed: 4,
      released: 5,
      cancelled: 6,
      missed: 7,
      lateMs: 8,
      queue: "default",
    });
    expect(a?.late).toHaveLength(lateBoundsMs.length + 1);
    expect(limited?.late).toEqual(Array(lateBoundsMs.length + 1).fill(0));
  });
});
