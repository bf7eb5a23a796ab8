// Cron rules: when a rule fires, as instants. croner reads the expression and finds the times of day that fit, on a clock
// without summer time; what a zone makes of these times is decided here. Pure: no clock is read.

import { Cron } from "croner";

/** A rule that was parsed; only `parseRule` makes one. */
export interface CronRule {
  /** The next time of day that fits, as if it were UTC, strictly after another; null if none ever does. */
  readonly nextWall: (wall: number) => number | null;
  /** The zone's distance from UTC at an instant. Milliseconds, east is positive. */
  readonly offset: (at: number) => number;
  /** Follows real time: its hour is `*` or `*` with a step. */
  readonly realTime: boolean;
}

const minuteMs = 60_000;
const hourMs = 60 * minuteMs;

/**
 * The span in which a change of offset is looked for, longer than any change is wide: a zone that crosses the date line
 * skips a day or has one twice. Two changes in one span would be taken for one; zones have them weeks apart.
 */
const spanMs = 26 * hourMs;

/** Reads an expression and a zone. Throws what croner or Intl says of one that cannot be read. */
export function parseRule(cron: string, timeZone: string): CronRule {
  // Paused: croner's own timers have no business here.
  const times = new Cron(cron, { timezone: "UTC", paused: true, mode: "5-part" });
  return {
    nextWall: (wall) => times.nextRun(new Date(wall))?.getTime() ?? null,
    offset: offsetOf(timeZone),
    realTime: /^[*?]/.test(cron.trim().split(/\s+/)[1] ?? ""),
  };
}

/** The first occurrence after an instant, strictly; null if there is none. Milliseconds since 1970. */
export function nextAfter(rule: CronRule, after: number): number | null {
  return rule.realTime ? nextRealTime(rule, after) : nextTimeOfDay(rule, after);
}

/** The last occurrence up to and including `until`, where `first` is one. Found by halving: a minute's rule may have missed a year. */
export function lastUntil(rule: CronRule, first: number, until: number): number {
  const isBefore = (at: number) => (nextAfter(rule, at) ?? Number.POSITIVE_INFINITY) <= until;
  let low = first - 1;
  let high = until;
  if (!isBefore(low)) return first;
  while (high - low > minuteMs) {
    const middle = Math.floor((low + high) / 2);
    if (isBefore(middle)) low = middle;
    else high = middle;
  }
  return nextAfter(rule, low) ?? first;
}

/** Each instant at which the zone's clocks show a time that fits: in a gap none, in an overlap both. */
function nextRealTime({ nextWall, offset }: CronRule, after: number): number | null {
  let from = after;
  let east = offset(from);
  for (;;) {
    const wall = nextWall(from + east);
    if (wall === null) return null;
    const at = wall - east;
    const end = from + spanMs;
    if (offset(end) === east) {
      if (at <= end) return at;
      // Nothing fits for a while; go on a span before it, since another offset may bring it forward.
      from = Math.max(end, at - spanMs);
      east = offset(from);
      continue;
    }
    const change = firstWithOther(offset, from, end);
    if (at < change) return at;
    from = change - 1;
    east = offset(change);
  }
}

/** Each time that fits, once: one that a zone skips at the first instant after the gap, one that comes twice the first time. */
function nextTimeOfDay({ nextWall, offset }: CronRule, after: number): number | null {
  // Times up to the one the clocks show have had their first time already, so the search begins there.
  let wall = nextWall(after + offset(after));
  while (wall !== null) {
    const at = firstInstant(offset, wall);
    if (at > after) return at;
    wall = nextWall(wall);
  }
  return null;
}

/** When the zone's clocks show a time first; for one that they skip, the first instant after the gap. */
function firstInstant(offset: CronRule["offset"], wall: number): number {
  const before = wall - spanMs;
  const earlier = wall - offset(before);
  const later = wall - offset(wall + spanMs);
  if (offset(earlier) === wall - earlier) return earlier;
  if (offset(later) === wall - later) return later;
  return firstWithOther(offset, before, wall + spanMs);
}

/** The first instant whose offset differs from that of `from`; `until` has another. By halving, to the millisecond. */
function firstWithOther(offset: CronRule["offset"], from: number, until: number): number {
  const east = offset(from);
  let low = from;
  let high = until;
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (offset(middle) === east) low = middle;
    else high = middle;
  }
  return high;
}

/** A zone's offset as Intl has it: the runtime's own time zone data, no copy of ours. */
function offsetOf(timeZone: string): CronRule["offset"] {
  const format = new Intl.DateTimeFormat("en-US", {
    timeZone,
    calendar: "gregory",
    numberingSystem: "latn",
    hourCycle: "h23",
    year: "numeric",
    month: "numeric",
    day: "numeric",
    hour: "numeric",
    minute: "numeric",
    second: "numeric",
  });
  if (format.resolvedOptions().timeZone === "UTC") return () => 0;
  return (at) => {
    // American order: 3/29/2026, 02:30:00. In parts it would be the same and take three times as long.
    const [month = 0, day = 0, year = 0, hour = 0, minute = 0, second = 0] = (
      format.format(at).match(/\d+/g) ?? []
    ).map(Number);
    return Date.UTC(year, month - 1, day, hour, minute, second) - Math.floor(at / 1_000) * 1_000;
  };
}
