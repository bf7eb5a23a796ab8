// The reads as whoever is on call makes them: through the inspector, as a role that may operate and nothing else, read only.

import type { Inspector, JobRow, JobsRequest, Page } from "../../../src/inspection.ts";
import { readLimits } from "../../../src/limits.ts";
import { postgresInspector } from "../../../src/operations.ts";
import { roleOf } from "../../support/roles.ts";
import type { Installation, KindSpec } from "../sql/support.ts";

/** Kinds with what makes a job wait. All are of the queue "default" but the last. */
export const KINDS: readonly (KindSpec & Readonly<Record<string, unknown>>)[] = [
  { name: "a", maxAttempts: 2 },
  { name: "ordered", orderingKey: "account:{k}", deadlineMs: 3_600_000, minBackoffMs: 0, maxBackoffMs: 0 },
  { name: "named", locks: ["session:{k}"] },
  { name: "limited", limitNames: ["tenant:{k}"], limitMaxes: [1] },
  { name: "unique", uniqueKey: "tx:{k}" },
  { name: "other", queue: "other" },
];

export const kindNames = KINDS.map(({ name }) => name);

export async function inspectorOf(world: Installation): Promise<Inspector> {
  const role = await roleOf(world, "operate");
  return postgresInspector({ database: world.as(role.url).database("pg"), limits: readLimits(), schema: "pgclaim" });
}

/** A read with fields that the inspector does not offer: caps so small that a test can reach them. */
export async function read<T>(world: Installation, name: string, request: object): Promise<T> {
  return await world.value<T>(`select pgclaim.${name}($1::jsonb)`, [JSON.stringify(request)]);
}

/** All pages of a list, one after the other. */
export async function walk<T>(page: (cursor: string | undefined) => Promise<Page<T>>): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | undefined;
  do {
    const { items: more, next } = await page(cursor);
    items.push(...more);
    cursor = next ?? undefined;
    if (items.length > 10_000) throw new Error("The pages have no end.");
  } while (cursor !== undefined);
  return items;
}

export const idsOf = (rows: readonly Pick<JobRow, "id">[]): string[] => rows.map(({ id }) => id);

export const list = async (inspector: Inspector, request: JobsRequest): Promise<string[]> =>
  idsOf((await inspector.jobs(request)).items);
