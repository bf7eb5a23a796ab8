// When a rule fires, in every IANA zone, around every change of its clocks in a year: compared with an oracle that looks at
// the zone's clocks minute by minute through Intl.DateTimeFormat and has a matcher of its own. It shares nothing with
// src/cron.ts but the rule, which is this:
//
// - The hour is `*` or `*` with a step: the rule fires at each minute in which the clocks show a time that fits.
// - Any other hour: each time of day that fits happens once. One that comes twice fires the first time; all that are skipped
//   fire together, once, at the first minute after the gap.
//
// Zones whose clocks change alike are looked at once.

import { describe, expect, it } from "vitest";
import { draws } from "../../scripts/world/draws.ts";
import { lastUntil, nextAfter, parseRule } from "../../src/cron.ts";

const minute = 60_000;
const hour = 60 * minute;
const day = 24 * hour;
const from = Date.UTC(2026, 0, 1);
const until = Date.UTC(2027, 0, 1);

const zones = [...new Set([...Intl.supportedValuesOf("timeZone"), "UTC"])];

const expressions = [
  "30 2 * * *",
  "0 3 * * *",
  "0 0 * * *",
  "59 23 * * *",
  "*/20 2 * * *",
  "0,30 1-3 * * *",
  "*/7 0-4/2 * * *",
  "45 1,2,14 * * 1-5",
  "0 2 * * 0",
  "5 0 1 * *",
  "0 0 29 * 7",
  "15 * * * *",
  "*/30 * * * *",
  "0 */2 * * *",
  "10 */3 * * 6,7",
];

/** What a zone's clocks show in a minute, as if it were UTC. */
type Clocks = (at: number) => number;

function clocksOf(timeZone: string): Clocks {
  // Sweden writes 2026-03-29 02:30.
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone, dateStyle: "short", timeStyle: "short" });
  return (at) => {
    const text = format.format(at);
    return Date.UTC(
      Number(text.slice(0, 4)),
      Number(text.slice(5, 7)) - 1,
      Number(text.slice(8, 10)),
      Number(text.slice(11, 13)),
      Number(text.slice(14, 16)),
    );
  };
}

/** The minutes at which the clocks are changed: day by day, then hour by hour, then minute by minute. */
function changesOf(clocks: Clocks): number[] {
  const changes: number[] = [];
  const look = (start: number, end: number, steps: readonly number[]) => {
    const [step, ...finer] = steps;
    if (step === undefined) return void changes.push(end);
    for (let at = start; at < end; at += step) {
      if (clocks(at + step) - clocks(at) !== step) look(at, at + step, finer);
    }
  };
  look(from, until, [day, hour, minute]);
  return changes;
}

/** Which values of a field fit. Written for this test: numbers, ranges, lists, steps. */
function fieldOf(text: string, low: number, high: number): ReadonlySet<number> {
  const fits = new Set<number>();
  for (const part of text.split(",")) {
    const [range = "", step = "1"] = part.split("/");
    const [first = "", last = first] = range === "*" ? [String(low), String(high)] : range.split("-");
    for (let value = Number(first); value <= Number(last); value += Number(step)) fits.add(value);
  }
  return fits;
}

interface Matcher {
  readonly realTime: boolean;
  readonly fits: (wall: number) => boolean;
}

function matcherOf(expression: string): Matcher {
  const [minutes = "", hours = "", days = "", months = "", weekdays = ""] = expression.split(" ");
  const inMinute = fieldOf(minutes, 0, 59);
  const inHour = fieldOf(hours, 0, 23);
  const inDay = fieldOf(days, 1, 31);
  const inMonth = fieldOf(months, 1, 12);
  const inWeek = fieldOf(weekdays, 0, 7);
  return {
    realTime: hours.startsWith("*"),
    fits(wall) {
      const shown = new Date(wall);
      if (!inMinute.has(shown.getUTCMinutes()) || !inHour.has(shown.getUTCHours())) return false;
      if (!inMonth.has(shown.getUTCMonth() + 1)) return false;
      const fitsDay = inDay.has(shown.getUTCDate());
      const weekday = shown.getUTCDay();
      const fitsWeek = inWeek.has(weekday) || (weekday === 0 && inWeek.has(7));
      if (days === "*") return fitsWeek;
      return weekdays === "*" ? fitsDay : fitsDay || fitsWeek;
    },
  };
}

interface Window {
  readonly start: number;
  readonly end: number;
  /** What the clocks show in each minute, from the day before `start`. */
  readonly walls: readonly number[];
}

function windowOf(clocks: Clocks, start: number, end: number): Window {
  return {
    start,
    end,
    walls: Array.from({ length: (end - start + day) / minute }, (_, i) => clocks(start - day + i * minute)),
  };
}

/** The oracle: every firing from `start` to before `end`. */
function expected({ fits, realTime }: Matcher, { start, walls }: Window): number[] {
  const fired: number[] = [];
  const seen = new Set<number>();
  for (const [i, wall] of walls.entries()) {
    const at = start - day + i * minute;
    let fires = fits(wall) && (realTime || !seen.has(wall));
    if (!realTime) {
      const before = walls[i - 1] ?? wall - minute;
      for (let skipped = before + minute; skipped < wall; skipped += minute)
        fires ||= fits(skipped) && !seen.has(skipped);
      seen.add(wall);
    }
    if (fires && at >= start) fired.push(at);
  }
  return fired;
}

function actual(expression: string, zone: string, { start, end }: Window): number[] {
  const rule = parseRule(expression, zone);
  const fired: number[] = [];
  for (let at = nextAfter(rule, start - 1); at !== null && at < end; at = nextAfter(rule, at)) fired.push(at);
  return fired;
}

const shown = (instants: readonly number[]) => instants.map((at) => new Date(at).toISOString());

function compare(expression: string, zone: string, window: Window, note = ""): number {
  const want = expected(matcherOf(expression), window);
  const got = actual(expression, zone, window);
  // Compared as they are, since a message for each of a million instants would cost more than the test.
  if (want.length !== got.length || want.some((at, i) => at !== got[i])) {
    expect(shown(got), `${note}"${expression}" in ${zone}`).toEqual(shown(want));
  }
  return want.length;
}

/** One zone of each sort, with the minutes of its changes. */
function sorts(): { readonly zone: string; readonly changes: readonly number[]; readonly alike: readonly string[] }[] {
  const groups = new Map<string, { zone: string; changes: number[]; alike: string[] }>();
  for (const zone of zones) {
    const clocks = clocksOf(zone);
    const changes = changesOf(clocks);
    const key = [clocks(from) - from, ...changes.map((at) => `${at}:${clocks(at) - at}`)].join();
    const group = groups.get(key);
    if (group === undefined) groups.set(key, { zone, changes, alike: [zone] });
    else group.alike.push(zone);
  }
  return [...groups.values()];
}

const groups = sorts();

describe("in every zone", () => {
  it("knows the zones whose offsets and changes are odd", () => {
    const shifts = new Map<string, number[]>();
    for (const { zone, changes, alike } of groups) {
      const clocks = clocksOf(zone);
      const widths = changes.map((at) => (clocks(at) - clocks(at - minute) - minute) / minute);
      for (const name of alike) shifts.set(name, widths);
    }
    expect(shifts.size).toBe(zones.length);
    expect(shifts.get("Australia/Lord_Howe")?.map(Math.abs)).toEqual([30, 30]);
    expect(shifts.get("Pacific/Chatham")).toEqual([-60, 60]);
    expect(shifts.get("Europe/Zurich")).toEqual([60, -60]);
    const offset = (zone: string) => (clocksOf(zone)(from) - from) / minute;
    expect([offset("Asia/Kolkata"), offset("Asia/Kathmandu") % 60, offset("Pacific/Chatham") % 60]).toEqual([
      330, 45, 45,
    ]);
    expect(groups.length).toBeGreaterThan(50);
  });

  const windows = groups.flatMap(({ zone, changes }) => {
    const clocks = clocksOf(zone);
    // Where clocks never change, the end of February is as good as any.
    const around = changes.length > 0 ? changes : [Date.UTC(2026, 1, 28, 12)];
    return around.map((at) => ({ zone, window: windowOf(clocks, at - 26 * hour, at + 26 * hour) }));
  });

  it.each(expressions)("fires as the clocks say around each of their changes: %s", (expression) => {
    let fired = 0;
    for (const { zone, window } of windows) fired += compare(expression, zone, window);
    expect(fired).toBeGreaterThan(0);
  });

  it("fires in each minute there is, in the hour before each change and the hour after it", () => {
    for (const { zone, window } of windows) {
      const start = window.start + 25 * hour;
      const end = start + 2 * hour;
      const walls = window.walls.slice((25 * hour) / minute, (51 * hour) / minute);
      expect(compare("* * * * *", zone, { start, end, walls })).toBe(120);
    }
  });

  it("fires as the clocks say for expressions that were drawn", () => {
    const seed = Number(process.env.PGCLAIM_SEED ?? Math.floor(Math.random() * 2 ** 31));
    const random = draws(seed);
    const pick = <T>(list: readonly T[]): T => list[Math.floor(random() * list.length)] as T;
    const number = (low: number, high: number) => low + Math.floor(random() * (high - low + 1));
    const field = (low: number, high: number): string => {
      const a = number(low, high);
      const b = number(a, high);
      return pick([
        `${a}`,
        `${a}-${b}`,
        `${a}-${b}/${number(1, 5)}`,
        `${a},${b}`,
        `*/${number(2, Math.max(2, high >> 1))}`,
        "*",
      ]);
    };
    const changing = groups.filter(({ changes }) => changes.length > 0);
    for (let n = 0; n < 100; n++) {
      const { zone, changes } = pick(changing);
      const at = pick(changes) + number(-20, 20) * hour;
      const window = windowOf(clocksOf(zone), at - day, at + day);
      const expression = [
        pick([`${number(0, 59)}`, "*/15", "0,1,59", `${number(0, 20)}-${number(30, 59)}/7`]),
        pick([field(0, 23), `${number(0, 4)}`]),
        pick(["*", "*", field(1, 28)]),
        pick(["*", "*", field(1, 12)]),
        pick(["*", "*", field(0, 6)]),
      ].join(" ");
      compare(expression, zone, window, `PGCLAIM_SEED=${seed}: `);
    }
  });
});

describe("over the whole year, minute by minute", () => {
  it.each(["Europe/Zurich", "Australia/Lord_Howe"])("%s", (zone) => {
    const window = windowOf(clocksOf(zone), from, until);
    for (const expression of ["30 2 * * *", "0 */6 * 3-10 0"]) {
      expect(compare(expression, zone, window)).toBeGreaterThan(10);
    }
  });
});

describe("the last occurrence", () => {
  it("up to an instant is the one the oracle has last, at it and on both sides of it", () => {
    for (const zone of ["Europe/Zurich", "Australia/Lord_Howe"]) {
      const clocks = clocksOf(zone);
      for (const change of changesOf(clocks)) {
        const window = windowOf(clocks, change - day, change + day);
        for (const expression of ["30 2 * * *", "*/20 1,2 * * *", "15 * * * *"]) {
          const rule = parseRule(expression, zone);
          const fired = expected(matcherOf(expression), window);
          const [first = 0] = fired;
          for (const [i, at] of fired.entries()) {
            expect(lastUntil(rule, first, at)).toBe(at);
            expect(lastUntil(rule, first, at + minute - 1)).toBe(at);
            if (i > 0) expect(lastUntil(rule, first, at - 1)).toBe(fired[i - 1]);
          }
        }
      }
    }
  });
});
