// What a transport must offer: the driver behind the gateway. Two exist, neon.ts (WebSocket and HTTP) and adapters/node.ts
// (pg over TCP). Structural, so that a driver fits without an adapter of its own.

import { UsageError } from "./errors.ts";

/** A pg-compatible client that nobody has connected yet. */
export interface PgClient {
  connect(): Promise<unknown>;
  query(text: string): Promise<unknown>;
  query(query: object): unknown;
  end(): Promise<void>;
  on(event: "error", listener: (error: unknown) => void): unknown;
  on(event: "end", listener: () => void): unknown;
}

/** One statement with exactly one parameter, `$1`. */
export interface OneShotCall {
  readonly text: string;
  readonly argument: string;
  readonly limitMs: number;
  /** Whether it only reads: its transaction is READ ONLY REPEATABLE READ then, so that its figures agree. */
  readonly readOnly?: boolean;
}

export interface Database {
  /** Makes the session's client. `destroy` closes its socket at once, without a word to the server. */
  open(): { readonly client: PgClient; readonly destroy: () => void };
  /**
   * Runs one call in a transaction of its own that names READ COMMITTED READ WRITE, or what `readOnly` says, on a connection
   * that does not come from the session's pool. Rows as objects, column names as keys. Rejects past `limitMs`.
   */
  oneShot(call: OneShotCall): Promise<readonly Record<string, unknown>[]>;
}

/** A value as a literal that means the same whatever standard_conforming_strings says: the one place that escapes. */
export function literal(text: string): string {
  return `E'${text.replaceAll("\\", "\\\\").replaceAll("'", "''")}'`;
}

/** Refuses what is no Postgres address, without repeating it. Errors: PGCLAIM_INVALID_DATABASE_URL. */
export function assertDatabaseUrl(value: unknown): asserts value is string {
  const fault = databaseUrlFault(value);
  if (fault === null) return;
  throw new UsageError(
    "PGCLAIM_INVALID_DATABASE_URL",
    `The connection string ${fault}; expected postgresql://user:password@host/database.`,
  );
}

/** What is wrong with an address, or null. Checked as the drivers do, whose own refusal would quote the password. */
export function databaseUrlFault(value: unknown): string | null {
  if (typeof value !== "string") return "is missing";
  const address = /^postgres(?:ql)?:(\/\/.*)$/.exec(value)?.[1];
  if (address === undefined) return "does not begin with postgresql:// (its value is not shown)";
  // The neon driver reads the rest by the rules of http addresses, which refuse more.
  if (!URL.canParse(value) || !URL.canParse(`http:${address}`)) return "is not an address (its value is not shown)";
  const url = new URL(`http:${address}`);
  const missing = [
    url.username === "" ? "user" : null,
    url.hostname === "" ? "host" : null,
    url.pathname.length < 2 ? "database" : null,
  ].filter((part) => part !== null);
  return missing.length === 0 ? null : `names no ${missing.join(" and no ")}`;
}

/** Closes the socket under a driver's client at once. Not public in either driver, so a test pins it. */
export function destroySocket(client: unknown): void {
  (client as { connection?: { stream?: { destroy?: () => void } } }).connection?.stream?.destroy?.();
}
