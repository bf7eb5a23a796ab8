// How lengths, instants, counts and text of the database are written on a page. Pure; nothing here is HTML.

import type { Count } from "../../inspection.ts";

/** What stands where there is nothing to say. */
export const nothing = "–";

/**
 * A length with its unit: `450 ms`, `12.3 s`, `4 min 10 s`, `3 h 5 min`, `2 d 4 h`. A negative length is a fault of a clock and
 * says so.
 */
export function duration(ms: number): string {
  if (!Number.isFinite(ms) || ms < 0) return "clock?";
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  // 59,960 ms would be rounded to "60.0 s".
  if (ms < 10_000) return `${trimmed(ms / 1_000)} s`;
  if (ms < 59_950) return `${trimmed(ms / 1_000)} s`;
  const s = Math.round(ms / 1_000);
  if (s < 3_600) return pair(Math.floor(s / 60), "min", s % 60, "s");
  const min = Math.round(ms / 60_000);
  if (min < 1_440) return pair(Math.floor(min / 60), "h", min % 60, "min");
  const h = Math.round(ms / 3_600_000);
  return pair(Math.floor(h / 24), "d", h % 24, "h");
}

/** The same without fractions of a second: for what ticks on the page. */
export function roughly(ms: number): string {
  return duration(ms < 0 ? ms : Math.floor(ms / 1_000) * 1_000).replace(/^0 ms$/, "0 s");
}

function trimmed(n: number): string {
  return n.toFixed(1).replace(/\.0$/, "");
}

function pair(a: number, unitA: string, b: number, unitB: string): string {
  return b === 0 ? `${a} ${unitA}` : `${a} ${unitA} ${b} ${unitB}`;
}

/** `41 s ago`, `in 12 s`; `just now` within a second. `now` is the database's. */
export function relative(at: string, now: string): string {
  const ms = Date.parse(at) - Date.parse(now);
  if (Number.isNaN(ms)) return nothing;
  if (Math.abs(ms) < 1_000) return "just now";
  return ms > 0 ? `in ${roughly(ms)}` : `${roughly(-ms)} ago`;
}

/** Time left until a deadline: `2 min left`, or `missed by 3 s`. */
export function slack(ms: number): string {
  return ms >= 0 ? `${roughly(ms)} left` : `missed by ${roughly(-ms)}`;
}

/** With thousands apart, and one decimal at most. By hand: Intl costs a page of numbers milliseconds. */
export function number(n: number): string {
  const [whole = "", decimal] = (Number.isInteger(n) ? String(n) : trimmed(n)).split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return decimal === undefined ? grouped : `${grouped}.${decimal}`;
}

/** `12,480`; at its cap `100,000+`. */
export function count({ n, capped }: Count): string {
  return capped ? `${number(n)}+` : number(n);
}

/** Rows as the planner knows them: `about 10.2 million`; null is a table that was never analysed. */
export function about(rows: number | null): string {
  if (rows === null || rows < 0) return "not known yet";
  if (rows < 10_000) return `about ${number(rows)}`;
  if (rows < 1_000_000) return `about ${number(Math.round(rows / 1_000))} thousand`;
  return `about ${trimmed(rows / 1_000_000)} million`;
}

/** A singular or plural noun with its number: `1 job`, `37 jobs`, `1,000+ jobs`. */
export function many(of: Count | number, one: string, more = `${one}s`): string {
  const counted = typeof of === "number" ? { n: of, capped: false } : of;
  return `${count(counted)} ${counted.n === 1 && !counted.capped ? one : more}`;
}

export function bytes(n: number): string {
  if (n < 1_000) return `${n} B`;
  if (n < 1_000_000) return `${trimmed(n / 1_000)} KB`;
  return `${trimmed(n / 1_000_000)} MB`;
}

/** An instant as a person reads it, with its zone: `2026-11-30 14:03:07 UTC`. */
export function absolute(at: string, zone: string): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return nothing;
  const { year, month, day, hour, minute, second } = partsOf(date, zone);
  return `${year}-${month}-${day} ${hour}:${minute}:${second} ${zone}`;
}

/** The time of day: `14:03:07`, for what is surely of today. */
export function clock(at: string, zone: string): string {
  const { hour, minute, second } = partsOf(new Date(at), zone);
  return `${hour}:${minute}:${second}`;
}

/** Of a chart's axis: `14:03`, or with its day where the chart is longer than one: `11-30 14:00`. */
export function axisTime(at: number, zone: string, withDay: boolean): string {
  const { month, day, hour, minute } = partsOf(new Date(at), zone);
  return withDay ? `${month}-${day} ${hour}:${minute}` : `${hour}:${minute}`;
}

type Parts = Readonly<Record<"year" | "month" | "day" | "hour" | "minute" | "second", string>>;

function partsOf(date: Date, zone: string): Parts {
  if (zone === "UTC") {
    const [year = "", month = "", day = "", hour = "", minute = "", second = ""] = date.toISOString().split(/[-T:.]/);
    return { year, month, day, hour, minute, second };
  }
  return Object.fromEntries(
    formatOf(zone)
      .formatToParts(date)
      .map(({ type, value }) => [type, value]),
  ) as Parts;
}

/** The last one made: a chart asks for its zone hundreds of times, and each costs a tenth of a millisecond. */
let kept: { readonly zone: string; readonly format: Intl.DateTimeFormat } | null = null;

function formatOf(zone: string): Intl.DateTimeFormat {
  if (kept?.zone === zone) return kept.format;
  const format = new Intl.DateTimeFormat("en-GB", {
    timeZone: zone,
    hourCycle: "h23",
    year: "numeric",
    month: "2-digit",
    day: "2-digit",
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
  });
  kept = { zone, format };
  return format;
}

/** Whether this runtime knows the zone. */
export function isZone(zone: string): boolean {
  try {
    return new Intl.DateTimeFormat("en-GB", { timeZone: zone }).resolvedOptions().timeZone !== "";
  } catch {
    return false;
  }
}

/**
 * Characters that a person would not see, or that would reorder what stands around them: controls, bidi marks and overrides,
 * zero-width ones, separators, tags, lone surrogates. Joiners stay: emoji and Persian need them.
 */
const unseen =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: those are what is looked for
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|\p{Surrogate}/gu;

/** Text with what is unseen spelled out: `\u202e`. In `block` text, line ends and tabs stay. */
export function visible(text: string, block = false): string {
  return text.replace(unseen, (char) => {
    if (block && (char === "\n" || char === "\t")) return char;
    const code = char.codePointAt(0) ?? 0;
    return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** The first `length` characters, and a sign that there was more. Never half of a surrogate pair. */
export function cut(text: string, length: number): string {
  if (text.length <= length) return text;
  return `${text.slice(0, length).replace(/[\ud800-\udbff]$/, "")}…`;
}
