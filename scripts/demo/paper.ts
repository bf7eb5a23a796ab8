// What people read: short lines, aligned, at most 100 columns. Colour only on a terminal, and never the only sign.

import { styleText } from "node:util";

const WIDTH = 96;

/** Respects NO_COLOR, and whether standard output is a terminal. */
const bold = (text: string) => styleText("bold", text);
const dim = (text: string) => styleText("dim", text);

export type Paper = {
  title(text: string): void;
  /** Opens a section. */
  section(text: string): void;
  /** A paragraph, broken where it has to be. */
  note(text: string): void;
  /** Label and value. */
  fact(label: string, value: string): void;
  /** Rows under a head; numbers to the right. The last column may be long. */
  table(head: readonly string[], rows: readonly (readonly (string | number)[])[]): void;
  verdict(promise: string, ok: boolean | null, evidence: string): void;
};

export const paper: Paper = {
  title(text) {
    console.log(bold(text));
  },
  section(text) {
    console.log(`\n${bold(text)}`);
  },
  note(text) {
    for (const line of wrap(text, WIDTH - 2)) console.log(dim(`  ${line}`));
  },
  fact(label, value) {
    const [first = "", ...rest] = wrap(value, WIDTH - 30);
    console.log(`  ${label.padEnd(27)} ${first}`);
    for (const line of rest) console.log(`${" ".repeat(30)}${line}`);
  },
  table(head, rows) {
    const widths = head.map((title, i) => Math.max(title.length, ...rows.map((row) => String(row[i] ?? "").length)));
    const isNumber = head.map((_, i) => rows.every((row) => typeof row[i] === "number" || row[i] === "-"));
    const line = (cells: readonly (string | number)[]) =>
      cells
        .map((cell, i) => (isNumber[i] ? String(cell).padStart(widths[i] ?? 0) : String(cell).padEnd(widths[i] ?? 0)))
        .join("  ")
        .trimEnd();
    console.log(dim(`  ${line(head)}`));
    for (const row of rows) console.log(`  ${line(row)}`);
  },
  verdict(promise, ok, evidence) {
    const word = ok === null ? "NOT RUN" : ok ? "ok" : "FAILED";
    const shown = styleText(ok ? "green" : "red", word.padEnd(8));
    const [first = "", ...rest] = wrap(promise, 50);
    const [proof = "", ...more] = wrap(evidence, WIDTH - 64);
    console.log(`  ${shown} ${first.padEnd(51)} ${dim(proof)}`.trimEnd());
    for (let i = 0; i < Math.max(rest.length, more.length); i++) {
      console.log(`${" ".repeat(11)}${(rest[i] ?? "").padEnd(51)} ${dim(more[i] ?? "")}`.trimEnd());
    }
  },
};

function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = "";
  for (const word of text.split(" ")) {
    if (line !== "" && line.length + 1 + word.length > width) {
      lines.push(line);
      line = word;
    } else {
      line = line === "" ? word : `${line} ${word}`;
    }
  }
  return [...lines, line];
}

/** "12 ms" or "3.4 s". */
export function duration(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${n} ${n === 1 ? one : many}`;
}
