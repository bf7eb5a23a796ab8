// Rows on the way in. Instants travel as JSON writes them, whatever the database's DateStyle. A driver may be told to parse
// bigint into a number, which cannot hold an id: ids travel as text.

import { DatabaseError, toError } from "./errors.ts";

export type Row = Record<string, unknown>;

export function text(row: Row | undefined, column: string): string {
  const value = row?.[column];
  if (typeof value === "string") return value;
  if (typeof value === "bigint" || typeof value === "number") return String(value);
  throw unexpected(column, "text", value);
}

export function integer(row: Row | undefined, column: string): number {
  const value = Number(row?.[column] ?? Number.NaN);
  if (Number.isSafeInteger(value)) return value;
  throw unexpected(column, "an integer", row?.[column]);
}

export function instant(row: Row | undefined, column: string): Date {
  const value = row?.[column];
  const date = value instanceof Date ? value : new Date(String(value));
  if (!Number.isNaN(date.getTime())) return date;
  throw unexpected(column, "an instant", value);
}

export function json(row: Row | undefined, column: string): unknown {
  const value = row?.[column];
  if (typeof value === "string") return JSON.parse(value);
  if (typeof value === "object" && value !== null) return value;
  throw unexpected(column, "JSON", value);
}

function unexpected(column: string, expected: string, value: unknown): DatabaseError {
  return new DatabaseError(
    "PGCLAIM_QUERY_FAILED",
    `The database answered ${value === undefined ? "no" : `a ${typeof value} as`} ${column}; expected ${expected}. Run: npm run migrate.`,
    { cause: toError(value) },
  );
}
