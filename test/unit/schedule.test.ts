// Schedules before the database: which definitions are refused, and what is due of one, by a clock that is passed in.

import { describe, expect, it } from "vitest";
import * as z from "zod";
import { draws } from "../../scripts/world/draws.ts";
import { defineJob, defineSchedule } from "../../src/index.ts";
import {
  type CatchUp,
  firing,
  maxOccurrences,
  nextOccurrence,
  type ScheduleRow,
  scheduleRow,
} from "../../src/schedule.ts";

const job = defineJob({ kind: "report", payload: z.object({ of: z.string() }) });
const usual = { name: "nightly", cron: "30 2 * * *", job, payload: { of: "day" } };

describe("defineSchedule", () => {
  const define = (options: Record<string, unknown>) => () => defineSchedule({ ...usual, ...options } as never);

  it.each([
    [{ name: "" }, 'schedule name is "" (string); expected 1 to 200 letters, digits and . _ : -.'],
    [{ name: "a b" }, "schedule name is"],
    [{ name: "x".repeat(201) }, "schedule name is"],
    [{ name: 7 }, "schedule name is 7"],
    [{ cron: "not a cron" }, 'schedule "nightly": cron is "not a cron" (string); expected five fields'],
    [{ cron: "30 2 * *" }, "expected five fields"],
    [{ cron: "0 30 2 * * *" }, "expected five fields"],
    [{ cron: "@daily" }, "expected five fields"],
    [{ cron: "" }, "expected five fields"],
    [{ cron: 5 }, "cron is 5; expected five fields"],
    [{ cron: "60 2 * * *" }, "it cannot be read"],
    [{ cron: "30 24 * * *" }, "it cannot be read"],
    [{ cron: "30 2 32 * *" }, "it cannot be read"],
    [{ cron: "30 2 * 13 *" }, "it cannot be read"],
    [{ cron: "30 2 * * 8" }, "it cannot be read"],
    [{ cron: "5-1 * * * *" }, "it cannot be read"],
    [{ cron: "*/0 * * * *" }, "it cannot be read"],
    [{ cron: "a * * * *" }, "it cannot be read"],
    [{ cron: "0 0 30 2 *" }, 'cron is "0 0 30 2 *" (string); no date fits it, so it would never fire.'],
    [{ cron: "0 0 31 4,6,9,11 *" }, "no date fits it"],
    [{ timeZone: "Europe/Zuerich" }, 'timeZone is "Europe/Zuerich" (string); expected an IANA name'],
    [{ timeZone: "" }, "timeZone is"],
    [{ timeZone: 2 }, "timeZone is 2"],
    [{ catchUp: "some" }, 'catchUp is "some" (string); expected "all", "last" or "none".'],
    [{ job: undefined }, "job is undefined; expected what defineJob() answers."],
    [{ job: { kind: "report" } }, "expected what defineJob() answers."],
    [{ timezone: "UTC" }, 'unknown option "timezone"; did you mean "timeZone"?'],
  ])("refuses %j", (options, message) => {
    expect(define(options)).toThrow(
      expect.objectContaining({ code: "PGCLAIM_INVALID_OPTION", message: expect.stringContaining(message) }),
    );
  });

  it.each([
    [{ payload: {} }, 'schedule "nightly": payload.of'],
    [{ payload: { of: 7 } }, 'schedule "nightly": payload.of'],
    [{ payload: { of: "a\0" } }, 'schedule "nightly": payload.of'],
    [{ payload: undefined }, 'schedule "nightly": payload'],
  ])("refuses the payload %j by its path", (options, path) => {
    expect(define(options)).toThrow(expect.objectContaining({ code: "PGCLAIM_INVALID_PAYLOAD", path }));
  });

  it("leaves a payload alone whose schema answers later; its row is refused then", async () => {
    const later = defineJob({
      kind: "later",
      payload: z.object({ of: z.string() }).refine(async () => false, "never fits"),
    });
    const schedule = defineSchedule({ ...usual, job: later });
    await expect(scheduleRow(schedule as never)).rejects.toMatchObject({ code: "PGCLAIM_INVALID_PAYLOAD" });
  });

  it.each([
    ["0 0 29 2 *", "2028-02-29T00:00:00.000Z"],
    ["*/7 9-17 * * MON-FRI", "2026-11-30T15:00:00.000Z"],
    ["0 12 13 * 5", "2026-12-04T12:00:00.000Z"],
    ["  0   0  1 1 *  ", "2027-01-01T00:00:00.000Z"],
    ["0 0 * * 7", "2026-12-06T00:00:00.000Z"],
    ["0 0 * * 0", "2026-12-06T00:00:00.000Z"],
  ])("takes %j, which fires next at %s", (cron, at) => {
    expect(define({ cron })).not.toThrow();
    expect(nextOccurrence({ cron, timeZone: "UTC" }, new Date("2026-11-30T14:59:59.999Z")).toISOString()).toBe(at);
  });

  it("is another definition as soon as one of its parts is another", async () => {
    const variants = [
      {},
      { name: "other" },
      { cron: "31 2 * * *" },
      { timeZone: "Europe/Zurich" },
      { payload: { of: "week" } },
      { catchUp: "all" },
      { job: defineJob({ kind: "other", payload: z.object({ of: z.string() }) }) },
    ];
    const rows = await Promise.all(variants.map((variant) => scheduleRow({ ...usual, ...variant } as never)));
    expect(new Set(rows.map(({ definition }) => definition)).size).toBe(variants.length);
    expect((await scheduleRow({ ...usual, timeZone: "UTC", catchUp: "last" } as never)).definition).toBe(
      rows[0]?.definition,
    );
  });
});

describe("where clocks are changed", () => {
  it.each([
    ["Europe/Zurich", "30 2 * * *", "2026-03-28T01:30Z 2026-03-29T01:00Z 2026-03-30T00:30Z"],
    ["Europe/Zurich", "30 2 * * *", "2026-10-24T00:30Z 2026-10-25T00:30Z 2026-10-26T01:30Z"],
    ["Europe/Zurich", "0 2,3 * * *", "2026-03-28T02:00Z 2026-03-29T01:00Z 2026-03-30T00:00Z"],
    ["Europe/Zurich", "*/30 2 * * *", "2026-10-25T00:00Z 2026-10-25T00:30Z 2026-10-26T01:00Z"],
    ["Europe/Zurich", "0 * * * *", "2026-10-25T00:00Z 2026-10-25T01:00Z 2026-10-25T02:00Z"],
    ["Europe/Zurich", "0 */2 * * *", "2026-03-28T23:00Z 2026-03-29T02:00Z 2026-03-29T04:00Z"],
    ["Australia/Lord_Howe", "15 2 * * *", "2026-10-02T15:45Z 2026-10-03T15:30Z 2026-10-04T15:15Z"],
    // The day that Samoa went from one side of the date line to the other: there was no 30th of December.
    ["Pacific/Apia", "0 12 30 12 *", "2010-12-30T22:00Z 2011-12-30T10:00Z 2012-12-29T22:00Z"],
    ["Pacific/Apia", "0 6 * * *", "2011-12-29T16:00Z 2011-12-30T10:00Z 2011-12-30T16:00Z"],
  ])("%s, %s: %s", (timeZone, cron, instants) => {
    const want = instants.split(" ").map((text) => new Date(text));
    const got: Date[] = [];
    let at = new Date((want[0]?.getTime() ?? 0) - 1);
    for (const _ of want) {
      at = nextOccurrence({ cron, timeZone }, at);
      got.push(at);
    }
    expect(got).toEqual(want);
  });
});

describe("firing", () => {
  const at = (text: string) => new Date(`2026-11-30T${text}Z`);
  const row = (catchUp: CatchUp, cron = "*/10 * * * *"): ScheduleRow => ({
    name: "n",
    cron,
    timeZone: "UTC",
    kind: "k",
    payload: {},
    catchUp,
    definition: "d",
  });
  const fire = (catchUp: CatchUp, nextAt: string, now: string, more: { fresh?: boolean; cron?: string } = {}) => {
    const { fresh = false, cron } = more;
    const { occurrences, newNextAt } = firing(row(catchUp, cron), { nextAt: at(nextAt), fresh, now: at(now) });
    return [...occurrences, newNextAt].map((instant) => instant.toISOString().slice(11, 19)).join(" ");
  };

  it.each([
    // Just in time, and at the very instant.
    ["all", "14:10:00", "14:10:00", "14:10:00 14:20:00"],
    ["last", "14:10:00", "14:10:00", "14:10:00 14:20:00"],
    ["none", "14:10:00", "14:10:00", "14:10:00 14:20:00"],
    // Late by three, now between two.
    ["all", "14:10:00", "14:35:00", "14:10:00 14:20:00 14:30:00 14:40:00"],
    ["last", "14:10:00", "14:35:00", "14:30:00 14:40:00"],
    ["none", "14:10:00", "14:35:00", "14:40:00"],
    // Late, and now is itself an occurrence: it is the last one, and on time.
    ["all", "14:10:00", "14:30:00", "14:10:00 14:20:00 14:30:00 14:40:00"],
    ["last", "14:10:00", "14:30:00", "14:30:00 14:40:00"],
    ["none", "14:10:00", "14:30:00", "14:30:00 14:40:00"],
    // The edge of "none".
    ["none", "14:10:00", "14:32:00", "14:30:00 14:40:00"],
    ["none", "14:10:00", "14:32:00.001", "14:40:00"],
  ] as const)("%s, next at %s, now %s: %s", (catchUp, nextAt, now, want) => {
    expect(fire(catchUp, nextAt, now)).toBe(want);
  });

  it("computes the first occurrence of a fresh one from when it was registered, and fires nothing before it", () => {
    expect(fire("all", "14:05:30", "14:06:00", { fresh: true })).toBe("14:10:00");
    expect(fire("last", "14:05:30", "14:25:00", { fresh: true })).toBe("14:20:00 14:30:00");
    expect(fire("all", "14:10:00.000", "14:10:00", { fresh: true })).toBe("14:20:00");
  });

  it("takes an outage of weeks in slices that leave nothing out", () => {
    const start = at("00:00:00");
    const now = new Date(start.getTime() + 1_234 * 60_000);
    let nextAt = start;
    const got: number[] = [];
    const sizes: number[] = [];
    while (nextAt <= now) {
      const { occurrences, newNextAt } = firing(row("all", "* * * * *"), { nextAt, fresh: false, now });
      got.push(...occurrences.map((instant) => instant.getTime()));
      sizes.push(occurrences.length);
      nextAt = newNextAt;
    }
    expect(sizes).toEqual([maxOccurrences, maxOccurrences, 235]);
    expect(got).toEqual(Array.from({ length: 1_235 }, (_, i) => start.getTime() + i * 60_000));
  });

  it("finds the last of a year's missed minutes at once", () => {
    const now = at("14:00:30");
    const nextAt = new Date(now.getTime() - 365 * 86_400_000);
    const began = performance.now();
    const { occurrences } = firing(row("last", "* * * * *"), { nextAt, fresh: false, now });
    expect(occurrences).toEqual([at("14:00:00")]);
    // Half a million steps would take a minute; halving takes a few milliseconds.
    expect(performance.now() - began).toBeLessThan(2_000);
  });

  it("fires each occurrence once over a year of triggers that come late, twice, and not for hours", () => {
    const seed = Number(process.env.PGCLAIM_SEED ?? Math.floor(Math.random() * 2 ** 31));
    const random = draws(seed);
    const rule = { ...row("all", "0 */6 * * *"), timeZone: "Europe/Zurich" };
    const until = Date.UTC(2027, 0, 1);
    let stored = nextOccurrence(rule, new Date(Date.UTC(2026, 0, 1)));
    const first = stored;
    const got: string[] = [];
    for (let now = Date.UTC(2026, 0, 1); now < until; now += Math.floor(random() ** 4 * 30 * 3_600_000) + 1) {
      if (stored.getTime() > now) continue;
      const { occurrences, newNextAt } = firing(rule, { nextAt: stored, fresh: false, now: new Date(now) });
      got.push(...occurrences.map((instant) => instant.toISOString()));
      stored = newNextAt;
    }
    const want: string[] = [];
    for (let each = first; each < stored; each = nextOccurrence(rule, each)) want.push(each.toISOString());
    expect(got, `PGCLAIM_SEED=${seed}`).toEqual(want);
    expect(got.length).toBeGreaterThan(1_440);
  });
});
