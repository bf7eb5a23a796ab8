// What the tests of the operator's verbs share: each verb as one call on whatever session, and the record it leaves behind.

import type { BulkAnswer, OperateAnswer } from "../../../src/inspection.ts";
import type { World } from "../../support/world.ts";
import { type Db, the } from "../sql/support.ts";

/** One function of ours that takes and answers one JSON. */
export async function ask<T>(db: Db, name: string, request: Readonly<Record<string, unknown>>): Promise<T> {
  const { rows } = await db.query<{ answer: T }>(`select pgclaim.${name}($1) as answer`, [JSON.stringify(request)]);
  return the(rows).answer;
}

export const operate = (db: Db, verb: string, id: string, more: Readonly<Record<string, unknown>> = {}) =>
  ask<OperateAnswer>(db, "operate_v1", { verb, id, by: "test", ...more });

export const bulk = (db: Db, request: Readonly<Record<string, unknown>>) =>
  ask<BulkAnswer>(db, "bulk_v1", { upTo: "9223372036854775807", by: "test", ...request });

/** Repeats a bulk verb while there is more, as its callers do; answers the sums. */
export async function bulkAll(
  db: Db,
  request: Readonly<Record<string, unknown>>,
): Promise<{ changed: number; left: number; calls: number }> {
  const sums = { changed: 0, left: 0, calls: 0 };
  let cursor: string | null = null;
  do {
    const answer: BulkAnswer = await bulk(db, { ...request, ...(cursor === null ? {} : { cursor }) });
    sums.changed += answer.changed;
    sums.left += answer.left;
    sums.calls++;
    cursor = answer.more ? answer.cursor : null;
  } while (cursor !== null);
  return sums;
}

/** The record of what people did: `verb actor detail`, in order; of one job or of all. */
export async function actions(world: World, id: string | null = null): Promise<string[]> {
  const rows = await world.rows<{ line: string }>(
    "select concat_ws(' ', verb, actor, detail) as line from pgclaim.action where $1::bigint is null or job_id = $1 order by id",
    [id],
  );
  return rows.map(({ line }) => line);
}
