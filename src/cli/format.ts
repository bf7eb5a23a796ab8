// What a terminal is shown: text of others made harmless, lengths, instants, tables. Pure.

import type { Count } from "../inspection.ts";

/**
 * What a terminal obeys, or what makes text look like other text: control characters (C0, DEL, C1), marks that turn the
 * direction of writing, characters without width, line separators, tags.
 */
const harmful =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|\p{Cs}/gu;

const short: Readonly<Record<string, string>> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** Text that may have come from anybody, on one line, with all that a terminal would obey written out: `\u001b[2J`. */
export function safe(text: string): string {
  return text.replace(harmful, (character) => short[character] ?? escaped(character));
}

/** The same for JSON text, which stays the same JSON. */
export function safeJson(json: string): string {
  return json.replace(harmful, (character) => (character === "\n" ? character : escaped(character)));
}

function escaped(character: string): string {
  let text = "";
  for (let i = 0; i < character.length; i++) text += `\\u${character.charCodeAt(i).toString(16).padStart(4, "0")}`;
  return text;
}

/** A length as people read it: `450 ms`, `12.3 s`, `4 min 10 s`, `3 h 12 min`, `5 d 2 h`. Below zero the clocks disagree. */
export function length(ms: number): string {
  if (ms < 0) return "clock?";
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const [big, small, bigName, smallName] =
    ms < 3_600_000
      ? ([60_000, 1_000, "min", "s"] as const)
      : ms < 86_400_000
        ? ([3_600_000, 60_000, "h", "min"] as const)
        : ([86_400_000, 3_600_000, "d", "h"] as const);
  const rest = Math.floor((ms % big) / small);
  return `${Math.floor(ms / big)} ${bigName}${rest === 0 ? "" : ` ${rest} ${smallName}`}`;
}

/** A length that may not be known. */
export function lengthOr(ms: number | null, otherwise = "-"): string {
  return ms === null ? otherwise : length(ms);
}

/** An instant as seen from `now`, both ISO 8601: `12.3 s ago`, `in 4 min`. */
export function ago(at: string | null, now: string): string {
  if (at === null) return "-";
  const ms = Date.parse(now) - Date.parse(at);
  if (Number.isNaN(ms)) return "?";
  return ms >= 0 ? `${length(ms)} ago` : `in ${length(-ms)}`;
}

/** An instant as ISO 8601 in UTC, to the millisecond. */
export function utc(instant: string): string {
  return new Date(instant).toISOString();
}

/** Time left until a deadline; a missed one says by how much. */
export function slack(ms: number | null): string {
  if (ms === null) return "-";
  return ms < 0 ? `late ${length(-ms)}` : length(ms);
}

/** `12,480`, and `100,000+` at its cap. */
export function count({ n, capped }: Count): string {
  return `${number(n)}${capped ? "+" : ""}`;
}

export function number(n: number): string {
  return n.toLocaleString("en-US");
}

/** `1 job`, `3 jobs`. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${number(n)} ${n === 1 ? one : many}`;
}

/** Cut to `max` characters, saying so. */
export function cut(text: string, max: number): string {
  const characters = [...text];
  return characters.length <= max ? text : `${characters.slice(0, Math.max(0, max - 1)).join("")}…`;
}

/** Columns of a terminal that a text takes; of a wide script, two for each character. */
export function width(text: string): number {
  let columns = 0;
  for (const character of text) {
    if (/\p{Mn}|\p{Me}/u.test(character)) continue;
    columns += /\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}|\p{Script=Hangul}|\p{Emoji_Presentation}/u.test(
      character,
    )
      ? 2
      : 1;
  }
  return columns;
}

export type Style = "good" | "warn" | "bad" | "muted" | "strong";

export interface Cell {
  readonly text: string;
  readonly style?: Style;
}

/** Paints a text, or leaves it as it is where there is no colour. */
export type Paint = (text: string, style: Style) => string;

/**
 * Lines of a table: columns as wide as their widest cell, the last one cut to `columns` of the terminal (null: not cut).
 * Cells are made safe here.
 */
export function tableLines(
  titles: readonly string[],
  rows: readonly (readonly (string | Cell)[])[],
  { columns, paint }: { readonly columns: number | null; readonly paint: Paint },
): string[] {
  const cells = rows.map((row) =>
    row.map((cell) => (typeof cell === "string" ? { text: safe(cell) } : { ...cell, text: safe(cell.text) })),
  );
  const widths = titles.map((title, i) => Math.max(width(title), ...cells.map((row) => width(row[i]?.text ?? ""))));
  const before = widths.slice(0, -1).reduce((sum, w) => sum + w + 2, 0);
  const room = columns === null ? Number.POSITIVE_INFINITY : Math.max(8, columns - before);
  const line = (row: readonly Cell[]) =>
    row
      .map(({ text, style }, i) => {
        const last = i === row.length - 1;
        const shown = last && room !== Number.POSITIVE_INFINITY ? cut(text, room) : text;
        const padded = last ? shown : shown + " ".repeat(Math.max(0, (widths[i] ?? 0) - width(shown)));
        return style === undefined ? padded : paint(padded, style);
      })
      .join("  ")
      .trimEnd();
  return [line(titles.map((text) => ({ text, style: "muted" as const }))), ...cells.map(line)];
}
