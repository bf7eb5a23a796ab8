// What the tests of unique keys share: jobs sent as SQL callers send them, and what stands in the tables afterwards.

import { expect } from "vitest";
import * as z from "zod";
import type { AnyJobDefinition, Claimer, ClaimerOptions } from "../../../src/index.ts";
import { setup, type World } from "../../support/world.ts";
import type { Db } from "../sql/support.ts";

/** A payload with a key, a value that a replacement changes, and names for keys and locks. */
export const keyed = z.object({
  key: z.string(),
  value: z.number().default(0),
  account: z.string().default("a"),
  lock: z.string().default("l"),
});

export interface Request {
  readonly kind: string;
  readonly payload: Record<string, unknown>;
  readonly runAt?: string;
  readonly delayMs?: number;
  readonly deadlineAt?: string;
  readonly priority?: number;
}

export interface Answer {
  readonly type: string;
  readonly id: string;
}

export interface Row {
  readonly id: string;
  readonly state: string;
  readonly value: number;
  readonly gate: string | null;
  readonly place: string | null;
  readonly attempt: number;
  readonly failures: number;
  readonly priority: number;
  readonly revision: number;
  readonly in_ms: number;
  readonly deadline_at: Date | null;
}

export interface Keyed extends Omit<World, "claimer"> {
  readonly claimer: Claimer;
}

/** What looking at the tables needs. */
type Tables = Pick<World, "rows" | "value" | "sql">;

/** A world whose kinds are registered. */
export async function keyedWorld(
  jobs: readonly AnyJobDefinition[],
  options: Omit<Partial<ClaimerOptions>, "jobs" | "database"> = {},
): Promise<Keyed> {
  const world = await setup();
  const claimer = world.claimer("pg", { jobs, ...options });
  await claimer.register();
  await world.sql.query("create table effect (n integer not null, attempt integer not null default 0, note text)");
  return { ...world, claimer };
}

/** One call of enqueue_v1 on a session of the test's own; a refusal fails the test. */
export async function put(db: Db, ...jobs: readonly Request[]): Promise<Answer[]> {
  const { rows } = await db.query<{ type: string; id: string | null; detail: string | null }>(
    "select type, job_id::text as id, detail from pgclaim.enqueue_v1($1::jsonb) order by i",
    [JSON.stringify({ jobs })],
  );
  return rows.map(({ type, id, detail }) => {
    if (id === null) throw new Error(`refused: ${type} ${detail}`);
    return { type, id };
  });
}

export async function putOne(db: Db, job: Request): Promise<Answer> {
  const [answer] = await put(db, job);
  if (answer === undefined) throw new Error("no answer");
  return answer;
}

/** The unfinished jobs by id. */
export function jobs(world: Tables): Promise<Row[]> {
  return world.rows<Row>(
    `select id::text as id, state, (payload ->> 'value')::integer as value, gate, place::text as place, attempt, failures,
            priority, revision, deadline_at, (extract(epoch from run_at - clock_timestamp()) * 1000)::float8 as in_ms
     from pgclaim.job order by id`,
  );
}

/** The keys that are taken: key, and the id of the job that has it. */
export async function keys(world: Tables): Promise<Record<string, string>> {
  const rows = await world.rows<{ key: string; id: string }>(
    "select key, job_id::text as id from pgclaim.unique_key order by key",
  );
  return Object.fromEntries(rows.map(({ key, id }) => [key, id]));
}

/** Deadlocks that the server has found in this test's database. */
export async function deadlocks(world: Tables): Promise<number> {
  // The statistics of other sessions arrive when these end or idle for a moment; this one's own snapshot is cleared.
  await world.sql.query("select pg_stat_clear_snapshot(), pg_stat_force_next_flush()");
  return Number(await world.value("select deadlocks from pg_stat_database where datname = current_database()"));
}

/** Each key has one job that stands for it, no job of a kind shares a key with another unfinished one, and none is lost. */
export async function expectOneForEachKey(world: Tables, expected: readonly string[]): Promise<void> {
  const rows = await world.rows<{ key: string; n: number }>(
    "select unique_key as key, count(*)::integer as n from pgclaim.job where state <> 'dead' group by 1 order by 1",
  );
  expect(rows).toEqual([...expected].sort().map((key) => ({ key, n: 1 })));
}
