// Where the commands write: results to stdout, progress and errors to stderr. It must never let through a control sequence that
// is not its own.

import type { Writable } from "node:stream";
import { PgclaimError, toError, withoutConnectionStrings } from "../errors.ts";
import { type Cell, type Paint, type Style, safe, safeJson, tableLines } from "./format.ts";

/** A stream as Node gives it: a terminal has a width. */
export type Stream = Writable & { readonly isTTY?: boolean; readonly columns?: number };

export interface OutputOptions {
  readonly stdout: Stream;
  readonly stderr: Stream;
  /** One object, and of a list one a line. */
  readonly json: boolean;
  /** NO_COLOR and TERM are read. */
  readonly env: Readonly<Record<string, string | undefined>>;
}

const codes: Readonly<Record<Style, string>> = { good: "32", warn: "33", bad: "31", muted: "2", strong: "1" };

export class Output {
  readonly json: boolean;
  readonly #options: OutputOptions;
  readonly #colour: boolean;

  constructor(options: OutputOptions) {
    this.#options = options;
    this.json = options.json;
    const { NO_COLOR = "", TERM = "" } = options.env;
    this.#colour = options.stdout.isTTY === true && NO_COLOR === "" && TERM !== "dumb" && !options.json;
  }

  /** Whether stdout is a terminal, which can be redrawn. */
  get interactive(): boolean {
    return this.#options.stdout.isTTY === true;
  }

  /** Columns of the terminal, null where the output goes elsewhere: a pipe gets whole lines. */
  get columns(): number | null {
    return this.interactive ? (this.#options.stdout.columns ?? 80) : null;
  }

  /** Colour is never the only sign: what is painted says the same without. */
  readonly paint: Paint = (text, style) => (this.#colour ? `\u001b[${codes[style]}m${text}\u001b[0m` : text);

  /** A line of ours. What came from the database has gone through `safe` before. */
  line(text = ""): void {
    this.#options.stdout.write(`${text}\n`);
  }

  /** One JSON object on one line. */
  object(value: unknown): void {
    this.line(safeJson(JSON.stringify(value)));
  }

  /** JSON text as it is stored, with what a terminal would obey escaped. */
  raw(json: string): void {
    this.line(safeJson(json));
  }

  /** An answer: as JSON, or in words. */
  answer(value: unknown, words: string): void {
    if (this.json) this.object(value);
    else this.line(safe(words));
  }

  /** A list: one JSON object a line, or a table. An empty table prints nothing, the command says what that means. */
  list<T>(items: readonly T[], titles: readonly string[], row: (item: T) => readonly (string | Cell)[]): void {
    if (this.json) for (const item of items) this.object(item);
    else if (items.length > 0) this.table(titles, items.map(row));
  }

  table(titles: readonly string[], rows: readonly (readonly (string | Cell)[])[]): void {
    for (const line of tableLines(titles, rows, { columns: this.columns, paint: this.paint })) this.line(line);
  }

  /** What is being done right now, on one line of a terminal that the next one replaces; null takes it away. */
  status(text: string | null): void {
    const { stderr } = this.#options;
    if (stderr.isTTY === true && !this.json) stderr.write(`\r\u001b[K${text === null ? "" : safe(text)}`);
  }

  /** Progress, and what a person should know beside the result. */
  note(text: string): void {
    this.#options.stderr.write(`${safe(text)}\n`);
  }

  /** An error in the shape of the API, or in words. */
  error(code: string | null, message: string, path?: string): void {
    this.#options.stderr.write(
      this.json
        ? `${safeJson(JSON.stringify({ error: { code, message, ...(path === undefined ? {} : { path }) } }))}\n`
        : `${safe(code === null ? message : `${code}: ${message}`)}\n`,
    );
  }

  thrown(error: unknown): void {
    if (error instanceof PgclaimError) this.error(error.code, error.message, error.path);
    // Drivers quote the address they were given, password and all.
    else this.error(null, withoutConnectionStrings(toError(error).message));
  }
}
