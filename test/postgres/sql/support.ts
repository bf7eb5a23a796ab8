// The verbs of the schema as a test speaks them: each helper calls one SQL function on the session it is handed, nothing
// of src/ stands in between. install() makes a world with kinds in it and checks the invariants when the test is over.

import { randomUUID } from "node:crypto";
import type pg from "pg";
import { expect, onTestFinished } from "vitest";
import { endsWithin, eventually } from "../../support/gate.ts";
import { setup, type World } from "../../support/world.ts";

/** What a test needs of a connection. */
export type Db = Pick<pg.Client, "query">;

export interface KindSpec {
  readonly name: string;
  readonly queue?: string;
  readonly priority?: number;
  readonly targetLatencyMs?: number;
  readonly timeoutMs?: number;
  readonly maxAttempts?: number;
  readonly maxCrashes?: number;
  readonly backoff?: "exponential" | "fixed" | "custom";
  readonly minBackoffMs?: number;
  readonly maxBackoffMs?: number;
  readonly alone?: boolean;
}

export interface JobRow {
  readonly id: string;
  readonly kind: string;
  readonly state: string;
  readonly attempt: number;
  readonly failures: number;
  readonly crash_base: number;
  readonly suspect: boolean;
  readonly run_at: Date;
  readonly rank: Date;
  readonly dead_reason: string | null;
  readonly last_error: string | null;
}

export interface AttemptRow {
  readonly n: number;
  readonly tick: string;
  readonly quarantined: boolean;
  readonly outcome: string | null;
  readonly error: string | null;
}

/** A number that is, or will be, on record for a job. */
export interface Numbered {
  readonly id: string;
  readonly n: number;
}

export interface Claimed {
  /** Jobs claimed, with the number to fence, in the order in which they were handed out. */
  readonly jobs: readonly Numbered[];
  /** Skips reported by name: job id to reason. */
  readonly skips: Readonly<Record<string, string>>;
  /** Number of skips by reason, reported by name or not. */
  readonly skipped: Readonly<Record<string, number>>;
}

export interface ClaimOptions {
  readonly queues?: readonly string[];
  readonly kinds?: readonly string[];
  readonly unfit?: readonly string[];
  readonly revision?: number;
  readonly batch?: number;
  readonly quarantined?: boolean;
  readonly maxCandidates?: number;
  readonly maxSkips?: number;
  readonly tickSlots?: number | null;
  readonly reserveMs?: number;
  readonly maxBytes?: number;
}

/** A claiming session: its backend, its tick and what it holds. */
export interface Session extends Claimed {
  readonly client: pg.Client;
  readonly pid: number;
  readonly tick: string;
}

export interface Installation extends World {
  readonly revision: number;
}

/** Kinds that come with every installation unless a test brings its own. */
export const KINDS: readonly KindSpec[] = [{ name: "a" }, { name: "b" }];

const SEEN_FOREVER = 1_000_000;

/** A world with kinds. Ends with the invariants of the protocol, whatever the test did. */
export async function install(kinds: readonly KindSpec[] = KINDS): Promise<Installation> {
  const world = await setup();
  const revision = await register(world.sql, kinds);
  onTestFinished(() => checkInvariants(world.sql));
  return { ...world, revision };
}

export function policy(kind: KindSpec): Required<KindSpec> {
  return {
    queue: "default",
    priority: 2,
    targetLatencyMs: 300_000,
    timeoutMs: 60_000,
    maxAttempts: 5,
    maxCrashes: 3,
    backoff: "exponential",
    minBackoffMs: 1_000,
    maxBackoffMs: 3_600_000,
    alone: false,
    ...kind,
  };
}

/** Answers the revision. The digest is that of the kinds unless one is given. */
export async function register(
  db: Db,
  kinds: readonly KindSpec[],
  digest = JSON.stringify(kinds.map(policy)),
): Promise<number> {
  const { rows } = await db.query<{ n: number }>("select pgclaim.register_v1($1) as n", [
    JSON.stringify({ digest, kinds: kinds.map(policy) }),
  ]);
  return the(rows).n;
}

/** Enqueues `count` jobs of one kind that are due now and answers their ids, ascending. */
export async function enqueue(db: Db, count = 1, kind = "a", payload: unknown = {}): Promise<string[]> {
  const { rows } = await db.query<{ type: string; job_id: string }>(
    `select e.type, e.job_id from pgclaim.enqueue_v1((
       select jsonb_build_object('jobs', jsonb_agg(jsonb_build_object('kind', $2::text, 'payload', $3::jsonb)))
       from generate_series(1, $1)
     )) e order by e.i`,
    [count, kind, JSON.stringify(payload)],
  );
  expect(rows.every((row) => row.type === "enqueued")).toBe(true);
  return rows.map((row) => row.job_id);
}

export async function enqueueOne(db: Db, kind = "a", payload: unknown = {}): Promise<string> {
  return the(await enqueue(db, 1, kind, payload));
}

/** Puts a job at an id of the test's choice: collisions and the ends of the range cannot be enqueued. */
export async function insertJob(db: Db, id: string | bigint, kind = "a"): Promise<string> {
  await db.query(
    `insert into pgclaim.job (id, kind, queue, state, priority, rank, run_at, revision, payload)
     overriding system value
     select $1, k.name, k.queue, 'ready', k.priority, clock_timestamp(), clock_timestamp(), k.revision, '{}'
     from pgclaim.kind k where k.name = $2`,
    [String(id), kind],
  );
  return String(id);
}

export const newTick = (): string => randomUUID();

/** Opens the claiming transaction as an invocation does. */
export async function begin(client: Db, tick: string = newTick()): Promise<string> {
  await client.query(`begin isolation level read committed read write; set local pgclaim.tick = '${tick}'`);
  return tick;
}

/**
 * In the simple protocol, as the gateway sends it: in the extended one the portal of the last statement keeps its
 * snapshot until the next message.
 */
export async function claim(client: Db, options: ClaimOptions = {}, fn = "pgclaim.claim_v1"): Promise<Claimed> {
  const request = JSON.stringify({
    queues: ["default"],
    kinds: ["a", "b"],
    unfit: [],
    revision: SEEN_FOREVER,
    batch: 25,
    quarantined: false,
    maxCandidates: 10_000,
    maxSkips: 100,
    tickSlots: null,
    reserveMs: 30_000,
    maxBytes: 1_000_000_000,
    ...options,
  });
  const { rows } = await client.query<{
    job_id: string | null;
    attempt: number | null;
    skip: string | null;
    skipped: number | null;
  }>(`select job_id, attempt, skip, skipped from ${fn}('${request.replaceAll("'", "''")}'::jsonb)`);
  const jobs: Numbered[] = [];
  const skips: Record<string, string> = {};
  const skipped: Record<string, number> = {};
  for (const row of rows) {
    if (row.job_id === null) skipped[String(row.skip)] = Number(row.skipped);
    else if (row.skip !== null) skips[row.job_id] = row.skip;
    else jobs.push({ id: row.job_id, n: Number(row.attempt) });
  }
  return { jobs, skips, skipped };
}

/** A new session that has begun a tick and claimed. */
export async function claimer(world: World, options: ClaimOptions = {}): Promise<Session> {
  const client = await world.connect();
  return claimOn(client, options);
}

/** Begins a tick and claims on a session that is there already. */
export async function claimOn(client: pg.Client, options: ClaimOptions = {}): Promise<Session> {
  const tick = await begin(client);
  const pid = the((await client.query<{ pid: number }>("select pg_backend_pid() as pid")).rows).pid;
  return { client, pid, tick, ...(await claim(client, options)) };
}

export interface Grant {
  readonly id: string;
  readonly n: number;
  readonly payload: string;
  readonly key: string;
}

/** The one-shot: autocommit on `db`. */
export async function fence(
  db: Db,
  request: { readonly tick: string; readonly jobs: readonly Numbered[]; readonly quarantined?: boolean },
): Promise<Grant[]> {
  const { rows } = await db.query<{ job_id: string; attempt: number; payload: string; idempotency_key: string }>(
    "select job_id, attempt, payload, idempotency_key from pgclaim.fence_v1($1)",
    [JSON.stringify({ tick: request.tick, quarantined: request.quarantined ?? false, jobs: request.jobs })],
  );
  return rows.map((row) => ({ id: row.job_id, n: row.attempt, payload: row.payload, key: row.idempotency_key }));
}

export type OutcomeName = "done" | "failed" | "dead" | "snoozed" | "released";

export interface FinishJob extends Numbered {
  readonly outcome: OutcomeName;
  readonly error?: string;
  readonly inMs?: number;
  readonly at?: string;
  readonly enqueue?: readonly unknown[];
}

export interface Finished {
  readonly job_id: string;
  readonly state: string;
  readonly run_at: Date | null;
  readonly error: string | null;
}

/** finish without its COMMIT. */
export async function finishOnly(db: Db, tick: string, jobs: readonly FinishJob[]): Promise<Finished[]> {
  const { rows } = await db.query<Finished>("select job_id, state, run_at, error from pgclaim.finish_v1($1)", [
    JSON.stringify({ tick, invocation: "test", report: { seen: true }, jobs }),
  ]);
  return rows;
}

/** finish and COMMIT; COMMIT of an aborted transaction would answer ROLLBACK. */
export async function finish(db: Db, tick: string, jobs: readonly FinishJob[]): Promise<Finished[]> {
  const rows = await finishOnly(db, tick, jobs);
  expect((await db.query("commit")).command).toBe("COMMIT");
  return rows;
}

/** Every job of a session with one outcome. */
export function all(jobs: readonly Numbered[], outcome: OutcomeName, rest: Partial<FinishJob> = {}): FinishJob[] {
  return jobs.map((job) => ({ id: job.id, n: job.n, outcome, ...rest }));
}

export async function settle(
  db: Db,
  request: {
    readonly tick: string;
    readonly jobs: readonly Numbered[];
    readonly mark?: boolean;
    readonly turn?: string | null;
    readonly quarantined?: boolean;
    readonly interruptedLimit?: number;
  },
): Promise<"committed" | "lost"> {
  const { rows } = await db.query<{ fate: "committed" | "lost" }>("select pgclaim.settle_v1($1) as fate", [
    JSON.stringify({
      invocation: "test",
      report: {},
      mark: true,
      turn: null,
      quarantined: false,
      interruptedLimit: 5,
      ...request,
      jobs: request.jobs.map(({ id, n }) => ({ id, n })),
    }),
  ]);
  return the(rows).fate;
}

export interface Wake {
  readonly revision: number | null;
  readonly supersededBy: number | null;
  readonly ready: boolean;
  readonly suspects: boolean;
  readonly crashed: number;
  readonly promoted: number;
  readonly pruned: number;
  readonly faults: readonly { readonly step: string; readonly sqlstate: string }[];
  /** Due ones, of the definitions the caller has. */
  readonly schedules: readonly {
    readonly name: string;
    readonly definition: string;
    readonly nextAt: string;
    readonly fresh: boolean;
  }[];
  readonly now: string;
}

export async function wake(db: Db, request: Record<string, unknown> = {}): Promise<Wake> {
  const { rows } = await db.query<{ answer: Wake }>("select pgclaim.wake_v1($1) as answer", [
    JSON.stringify({
      digest: "unknown",
      queues: ["default"],
      reapSlice: 200,
      dueSlice: 500,
      gateSlice: 500,
      cancelSlice: 500,
      pruneSlice: 500,
      historyMs: null,
      ...request,
    }),
  ]);
  return the(rows).answer;
}

/** Closes what the dead left open; answers the number of crashes. */
export async function reap(db: Db, slice = 200): Promise<number> {
  return the((await db.query<{ n: number }>("select pgclaim.reap($1) as n", [slice])).rows).n;
}

/** One whole tick on its own session: what a fresh, healthy invocation does with whatever it can claim. */
export async function runTick(
  world: World,
  options: ClaimOptions = {},
  outcome: OutcomeName = "done",
): Promise<Numbered[]> {
  const session = await claimer(world, options);
  const quarantined = options.quarantined ?? false;
  const granted = await fence(world.sql, { tick: session.tick, jobs: session.jobs, quarantined });
  await finish(session.client, session.tick, [
    ...all(granted, outcome, { inMs: 0 }),
    ...all(
      session.jobs.filter((job) => !granted.some((grant) => grant.id === job.id)),
      "released",
    ),
  ]);
  await session.client.end();
  return granted.map(({ id, n }) => ({ id, n }));
}

/** A session that claimed and fenced, and whose process is then gone: nothing but the open attempts is left. */
export async function crash(world: World, options: ClaimOptions = {}): Promise<Session> {
  const session = await claimer(world, options);
  await fence(world.sql, { tick: session.tick, jobs: session.jobs, quarantined: options.quarantined ?? false });
  await kill(world, session.pid);
  return session;
}

/** Ends a backend and returns when it is gone, and its locks with it. */
export async function kill(world: World, pid: number): Promise<void> {
  await world.sql.query("select pg_terminate_backend($1)", [pid]);
  await eventually(async () => {
    expect(await world.rows("select from pg_stat_activity where pid = $1", [pid])).toHaveLength(0);
  });
}

export async function job(db: Db, id: string): Promise<JobRow> {
  return the((await db.query<JobRow>("select * from pgclaim.job where id = $1", [id])).rows);
}

export async function attempts(db: Db, id: string): Promise<AttemptRow[]> {
  const { rows } = await db.query<AttemptRow>(
    "select n, tick, quarantined, outcome, error from pgclaim.attempt where job_id = $1 order by n",
    [id],
  );
  return rows;
}

/** Outcomes of a job's attempts by ascending number; null is open. */
export async function outcomes(db: Db, id: string): Promise<(string | null)[]> {
  return (await attempts(db, id)).map((attempt) => attempt.outcome);
}

export async function history(
  db: Db,
): Promise<{ job_id: string; outcome: string; attempts: number; failures: number; last_error: string | null }[]> {
  const { rows } = await db.query(
    "select job_id, outcome, attempts, failures, last_error from pgclaim.history order by job_id",
  );
  return rows;
}

/** Advisory locks that one backend holds. */
export async function locksOf(world: World, pid: number): Promise<number> {
  return Number(
    await world.value(
      "select count(*) from pg_locks where locktype = 'advisory' and granted and pid = $1 and database = (select oid from pg_database where datname = current_database())",
      [pid],
    ),
  );
}

/** Returns when the backend waits for a lock, so that what comes next comes after the wait began. */
export async function waitsForLock(world: Pick<World, "value">, pid: number): Promise<void> {
  await eventually(async () => {
    expect(
      await world.value("select wait_event_type from pg_stat_activity where pid = $1", [pid]),
      `backend ${pid} should wait for a lock`,
    ).toBe("Lock");
  });
}

export async function pidOf(client: Db): Promise<number> {
  return the((await client.query<{ pid: number }>("select pg_backend_pid() as pid")).rows).pid;
}

/** The SQLSTATE with which something fails; no failure is a failure of the test. */
export async function sqlState(promise: Promise<unknown>): Promise<string> {
  const error = await failure(promise);
  return String(error.code);
}

export async function failure(
  promise: Promise<unknown>,
): Promise<Error & { code?: string; constraint?: string; detail?: string; hint?: string }> {
  try {
    await endsWithin(20_000, promise, "what should fail");
  } catch (error) {
    if (error instanceof Error) return error;
    throw error;
  }
  throw new Error("Expected a failure; it succeeded.");
}

/**
 * Changes a function in this test's own database: the text that stands there once is replaced. With `name`, the copy
 * gets that name and the real one stays.
 */
export async function alter(
  db: Db,
  signature: string,
  changes: readonly (readonly [from: string, to: string])[],
  name?: string,
): Promise<void> {
  const { rows } = await db.query<{ text: string }>("select pg_get_functiondef($1::regprocedure) as text", [signature]);
  let text = the(rows).text;
  for (const [from, to] of changes) {
    if (text.split(from).length !== 2) throw new Error(`Expected once in ${signature}: ${from}`);
    text = text.replace(from, () => to);
  }
  if (name !== undefined) text = text.replace(signature.slice(0, signature.indexOf("(")), name);
  await db.query(text);
}

/** The one element of a list, or its first. */
export function the<T>(list: readonly T[], at = 0): T {
  const element = list[at];
  if (element === undefined) throw new Error(`nothing at ${at} of ${list.length}`);
  return element;
}

export const ids = (jobs: readonly Numbered[]): string[] => jobs.map((entry) => entry.id);

/** Section 4 of the protocol, as far as the tables show it. */
async function checkInvariants(db: Db): Promise<void> {
  await db.query("rollback"); // a test may end inside a transaction
  const broken = await db.query<{ what: string; job_id: string }>(`
    select 'job and history at once' as what, j.id as job_id
    from pgclaim.job j join pgclaim.history h on h.job_id = j.id
    union all
    select 'two open attempts', a.job_id from pgclaim.attempt a where a.outcome is null group by a.job_id having count(*) > 1
    union all
    select 'open attempt below the job''s number', a.job_id
    from pgclaim.attempt a join pgclaim.job j on j.id = a.job_id
    where a.outcome is null and a.n <= j.attempt
    union all
    select 'closed under the job lock, yet above the job''s number', a.job_id
    from pgclaim.attempt a join pgclaim.job j on j.id = a.job_id
    where a.outcome in ('done', 'failed', 'snoozed', 'released', 'crashed') and a.n > j.attempt
    union all
    select 'two attempts done', a.job_id from pgclaim.attempt a where a.outcome = 'done' group by a.job_id having count(*) > 1
    union all
    select 'attempt done, job still there', a.job_id
    from pgclaim.attempt a join pgclaim.job j on j.id = a.job_id where a.outcome = 'done'
    union all
    select 'effects of a lost tick', a.job_id
    from pgclaim.attempt a join pgclaim.tick t on t.id = a.tick
    where t.outcome = 'lost' and a.outcome in ('done', 'failed', 'snoozed', 'released')
  `);
  expect(broken.rows).toEqual([]);
}
