// What the tests of ordering keys share, on top of the SQL verbs: kinds with a key, jobs with a number in it, and the line
// of a key as a picture. installOrdered() checks the invariants of gates when the test is over.

import type pg from "pg";
import { expect, onTestFinished } from "vitest";
import { eventually } from "../../support/gate.ts";
import type { World } from "../../support/world.ts";
import { begin, type Db, type Installation, install, type KindSpec, the } from "../sql/support.ts";

export interface KeyedKind extends KindSpec {
  readonly orderingKey?: string;
  readonly whenDead?: "halt" | "skip";
  readonly whenMissed?: "dead" | "run";
  readonly deadlineMs?: number;
  readonly locks?: readonly string[];
  readonly limitNames?: readonly string[];
  readonly limitMaxes?: readonly number[];
}

/** A kind whose key is `k:` and the payload's k. Failures are due again at once. */
export const keyed = { name: "a", orderingKey: "k:{k}", minBackoffMs: 0, maxBackoffMs: 0 } as const satisfies KeyedKind;

/** A world with kinds that have keys. Ends with the invariants of gates, unless the test leaves them broken by hand. */
export async function installOrdered(kinds: readonly KeyedKind[] = [keyed]): Promise<Installation> {
  const world = await install(kinds);
  onTestFinished(() => expectGatesWhole(world));
  return world;
}

/** Enqueues job `n` of a key, as any language would: by SQL on whatever connection. Answers its id. */
export async function put(db: Db, k: string, n: number, more: Readonly<Record<string, unknown>> = {}): Promise<string> {
  const { rows } = await db.query<{ type: string; job_id: string }>("select type, job_id from pgclaim.enqueue_v1($1)", [
    JSON.stringify({ jobs: [{ kind: "a", payload: { k, n }, ...more }] }),
  ]);
  expect(the(rows).type).toBe("enqueued");
  return the(rows).job_id;
}

/** The unfinished jobs of a key in the order of their places: `2 ready`. */
export async function line(db: Db, k: string): Promise<string[]> {
  const { rows } = await db.query<{ line: string }>(
    `select (payload ->> 'n') || ' ' || state || case when suspect then ' suspect' else '' end as line
     from pgclaim.job where ordering_key = 'k:' || $1 order by place`,
    [k],
  );
  return rows.map(({ line }) => line);
}

/** Numbers of the finished jobs, in the order in which history got them. */
export async function finished(db: Db, outcome = "done"): Promise<number[]> {
  const { rows } = await db.query<{ n: number }>(
    "select (payload ->> 'n')::integer as n from pgclaim.history where outcome = $1 order by finished_at, ctid",
    [outcome],
  );
  return rows.map(({ n }) => n);
}

/** Outcomes of every attempt of job `n`, open ones as null. */
export async function attemptsOf(db: Db, n: number): Promise<(string | null)[]> {
  const { rows } = await db.query<{ outcome: string | null }>(
    `select a.outcome from pgclaim.attempt a
     where a.job_id in (
       select id from pgclaim.job where (payload ->> 'n')::integer = $1
       union all select job_id from pgclaim.history where (payload ->> 'n')::integer = $1
     ) order by a.n`,
    [n],
  );
  return rows.map(({ outcome }) => outcome);
}

export interface KeyedClaim {
  readonly client: pg.Client;
  readonly pid: number;
  readonly tick: string;
  /** In the order in which they were handed out. */
  readonly jobs: readonly {
    readonly id: string;
    readonly n: number;
    readonly behind: string | null;
    readonly missed: boolean;
  }[];
  readonly skips: readonly string[];
}

/** A new session that has begun a tick and claimed; each claim says behind which job it stands. */
export async function claimLine(
  world: World,
  request: Readonly<Record<string, unknown>> = {},
  client?: pg.Client,
): Promise<KeyedClaim> {
  const session = client ?? (await world.connect());
  const tick = await begin(session);
  const pid = the((await session.query<{ pid: number }>("select pg_backend_pid() as pid")).rows).pid;
  const argument = JSON.stringify({
    queues: ["default"],
    kinds: ["a", "b"],
    unfit: [],
    revision: 1_000_000,
    batch: 25,
    quarantined: false,
    maxCandidates: 10_000,
    maxSkips: 100,
    ...request,
  });
  const { rows } = await session.query<{
    job_id: string | null;
    attempt: number;
    skip: string | null;
    behind: string | null;
    missed: boolean;
  }>(
    `select job_id, attempt, skip, behind, missed from pgclaim.claim_v1('${argument.replaceAll("'", "''")}'::jsonb) where job_id is not null`,
  );
  return {
    client: session,
    pid,
    tick,
    jobs: rows
      .filter(({ skip }) => skip === null)
      .map(({ job_id, attempt, behind, missed }) => ({ id: String(job_id), n: attempt, behind, missed })),
    skips: rows.filter(({ skip }) => skip !== null).map(({ job_id, skip }) => `${job_id} ${skip}`),
  };
}

/** Notes that ask somebody to look at a gate again. */
export async function notes(db: Db): Promise<string[]> {
  return (await db.query<{ gate: string }>("select gate from pgclaim.recheck order by id")).rows.map(
    ({ gate }) => gate,
  );
}

/** Looks again at every gate that has a note, as wake does. */
export const recheck = async (db: Db): Promise<number> =>
  the((await db.query<{ n: number }>("select pgclaim.recheck_gates(null) as n")).rows).n;

/** Begins at an isolation level. */
export const at = (client: pg.Client, level: string) => client.query(`begin isolation level ${level}`);

export const levels = ["read committed", "repeatable read", "serializable"] as const;

/** Section 4 of the protocol, 8: what the gates of ordering keys must look like whenever nobody is at work. */
async function expectGatesWhole(world: World): Promise<void> {
  await world.sql.query("rollback"); // a test may end inside a transaction
  await eventually(async () => {
    // A session that the test left behind ends with it.
    await world.sql.query(
      "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()",
    );
    expect(await world.locks()).toBe(0);
  });
  await recheck(world.sql);
  const broken = await world.rows(`
    select 'without a place' as what, j.gate from pgclaim.job j where j.gate is not null and j.place is null
    union all
    select 'two in the claim index', j.gate from pgclaim.job j
    where j.ordering_key is not null and j.state in ('ready', 'scheduled') group by j.gate having count(*) > 1
    union all
    select 'active and not the lowest', j.gate from pgclaim.job j
    where j.ordering_key is not null and j.state in ('ready', 'scheduled') and exists (
      select from pgclaim.job o
      where o.gate = j.gate and o.place < j.place and not (o.state = 'dead' and o.when_dead = 'skip')
    )
    union all
    select 'blocked beside free width', j.gate from pgclaim.job j
    where j.ordering_key is not null and j.state = 'blocked' and not exists (
      select from pgclaim.job o
      where o.gate = j.gate and o.place < j.place and (
        o.state in ('ready', 'scheduled', 'blocked') or (o.state = 'dead' and o.when_dead = 'halt')
      )
    )
    union all
    select 'note left', gate from pgclaim.recheck
  `);
  expect(broken).toEqual([]);
}
