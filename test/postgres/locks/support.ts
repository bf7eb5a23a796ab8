// What the tests of lock sets share: kinds with names and limits, claims with all they say, and who holds what.

import type pg from "pg";
import { expect } from "vitest";
import type { World } from "../../support/world.ts";
import {
  begin,
  type ClaimOptions,
  type Db,
  type KindSpec,
  policy,
  install as sqlInstall,
  the,
} from "../sql/support.ts";

export interface LockKind extends KindSpec {
  readonly orderingKey?: string;
  readonly locks?: readonly string[];
  readonly sharedLocks?: readonly string[];
  readonly limitNames?: readonly string[];
  readonly limitMaxes?: readonly number[];
  readonly uniqueKey?: string;
}

/** Kinds of most tests: what a job needs stands in its payload. */
export const KINDS: readonly LockKind[] = [
  { name: "plain" },
  { name: "x1", locks: ["{a}"] },
  { name: "x2", locks: ["{a}", "{b}"] },
  { name: "s1", sharedLocks: ["{a}"] },
  { name: "both", locks: ["{a}"], sharedLocks: ["{b}"] },
  { name: "limit2", limitNames: ["{t}"], limitMaxes: [2] },
];

export async function registerKinds(
  db: Db,
  kinds: readonly LockKind[],
  queueMax: Readonly<Record<string, number>> = {},
): Promise<number> {
  const deployment = { kinds: kinds.map(policy), queueMax, queues: ["default"] };
  const { rows } = await db.query<{ n: number }>("select pgclaim.register_v1($1) as n", [
    JSON.stringify({ digest: JSON.stringify(deployment), ...deployment }),
  ]);
  return the(rows).n;
}

export async function install(
  kinds: readonly LockKind[] = KINDS,
  queueMax: Readonly<Record<string, number>> = {},
): Promise<World> {
  const world = await sqlInstall([]);
  await registerKinds(world.sql, kinds, queueMax);
  return world;
}

/** Enqueues jobs of one kind, one for each payload, and answers their ids. */
export async function add(
  db: Db,
  kind: string,
  payloads: readonly unknown[],
  options: Readonly<Record<string, unknown>> = {},
): Promise<string[]> {
  const { rows } = await db.query<{ type: string; job_id: string; detail: string | null }>(
    "select type, job_id, detail from pgclaim.enqueue_v1($1) order by i",
    [JSON.stringify({ jobs: payloads.map((payload) => ({ kind, payload, ...options })) })],
  );
  expect(rows.filter((row) => row.type !== "enqueued")).toEqual([]);
  return rows.map((row) => row.job_id);
}

export async function addOne(db: Db, kind: string, payload: unknown, options = {}): Promise<string> {
  return the(await add(db, kind, [payload], options));
}

export interface ClaimLine {
  readonly id: string;
  readonly n: number;
  readonly after: readonly string[];
  readonly behind: string | null;
}

export interface SkipLine {
  readonly id: string;
  readonly reason: string;
  readonly lock: string | null;
  readonly starved: boolean;
}

export interface LockClaim {
  readonly jobs: readonly ClaimLine[];
  readonly skips: readonly SkipLine[];
  readonly skipped: Readonly<Record<string, number>>;
}

export interface LockClaimOptions extends ClaimOptions {
  readonly tickSlots?: number;
  readonly reserveMs?: number;
}

export interface LockSession extends LockClaim {
  readonly client: pg.Client;
  readonly tick: string;
}

export function claimText(options: LockClaimOptions = {}): string {
  const request = JSON.stringify({
    queues: ["default"],
    kinds: KINDS.map(({ name }) => name),
    unfit: [],
    revision: 1_000_000,
    batch: 25,
    quarantined: false,
    maxCandidates: 10_000,
    maxSkips: 100,
    reserveMs: 30_000,
    ...options,
  });
  return `select job_id, attempt, skip, skipped, lock_name, after::text[] as after, behind, starved from pgclaim.claim_v1('${request.replaceAll("'", "''")}'::jsonb)`;
}

interface ClaimRow {
  readonly job_id: string | null;
  readonly attempt: number | null;
  readonly skip: string | null;
  readonly skipped: number | null;
  readonly lock_name: string | null;
  readonly after: string[] | null;
  readonly behind: string | null;
  readonly starved: boolean | null;
}

/** In a transaction that has begun. */
export async function claimIn(client: Db, options: LockClaimOptions = {}): Promise<LockClaim> {
  const { rows } = await client.query<ClaimRow>(claimText(options));
  const jobs: ClaimLine[] = [];
  const skips: SkipLine[] = [];
  const skipped: Record<string, number> = {};
  for (const row of rows) {
    if (row.job_id === null) skipped[String(row.skip)] = Number(row.skipped);
    else if (row.skip === null)
      jobs.push({ id: row.job_id, n: Number(row.attempt), after: row.after ?? [], behind: row.behind });
    else skips.push({ id: row.job_id, reason: row.skip, lock: row.lock_name, starved: row.starved === true });
  }
  return { jobs, skips, skipped };
}

/** Begins a tick and claims, on a new session or one that is there. */
export async function claim(world: World, options: LockClaimOptions = {}, on?: pg.Client): Promise<LockSession> {
  const client = on ?? (await world.connect());
  const tick = await begin(client);
  return { client, tick, ...(await claimIn(client, options)) };
}

/** Holds a name as somebody's tick does, until the answer's rollback. */
export async function hold(
  world: World,
  name: string,
  { shared = false, cls = "lock" }: { readonly shared?: boolean; readonly cls?: string } = {},
): Promise<pg.Client> {
  const client = await world.connect();
  await client.query("begin");
  const { rows } = await client.query<{ got: boolean }>(
    `select pg_try_advisory_xact_lock${shared ? "_shared" : ""}(pgclaim.name_key($1, $2, i.seed)) as got from pgclaim.installation i`,
    [cls, name],
  );
  expect(the(rows).got, `the test holds ${cls} ${name}`).toBe(true);
  return client;
}

/** Advisory keys held in this database, as text, sorted; of one backend, or of all. */
export async function heldKeys(world: World, of?: pg.Client): Promise<string[]> {
  const pid =
    of === undefined ? null : the((await of.query<{ pid: number }>("select pg_backend_pid() as pid")).rows).pid;
  const rows = await world.rows<{ key: string }>(
    `select ((l.classid::bigint << 32) | l.objid::bigint)::text || case l.mode when 'ShareLock' then ' shared' else '' end as key
     from pg_locks l
     where l.locktype = 'advisory' and l.granted and l.objsubid = 1 and ($1::integer is null or l.pid = $1)
       and l.database = (select oid from pg_database where datname = current_database())
     order by 1`,
    [pid],
  );
  return rows.map(({ key }) => key);
}

/** Keys of names and jobs as the schema derives them. */
export async function keys(
  world: World,
  wanted: readonly (readonly [cls: string, name: string, mode?: "shared"])[],
  jobs: readonly string[] = [],
): Promise<string[]> {
  const found: string[] = [];
  for (const [cls, name, mode] of wanted) {
    const key = await world.value<string>("select pgclaim.name_key($1, $2, i.seed)::text from pgclaim.installation i", [
      cls,
      name,
    ]);
    found.push(mode === undefined ? key : `${key} shared`);
  }
  for (const id of jobs) {
    found.push(
      await world.value<string>(
        "select pgclaim.job_key(k.namespace, j.id)::text from pgclaim.job j join pgclaim.kind k on k.name = j.kind where j.id = $1",
        [id],
      ),
    );
  }
  return found.sort();
}

export const stateOf = (world: World, id: string): Promise<string> =>
  world.value("select state from pgclaim.job where id = $1", [id]);
