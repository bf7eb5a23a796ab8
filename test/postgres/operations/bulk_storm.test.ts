// Bulk verbs beside running ticks, enqueuers of many keys at once, housekeeping and each other, on the same gates: nobody
// deadlocks, no job is lost, and every key keeps its order.

import { expect, it } from "vitest";
import { draws, pick } from "../../../scripts/world/draws.ts";
import { eventually } from "../../support/gate.ts";
import { claimLine, installOrdered, type KeyedKind } from "../order/support.ts";
import {
  alter,
  type Db,
  enqueueOne,
  type FinishJob,
  fence,
  finish,
  type Installation,
  policy,
  wake,
} from "../sql/support.ts";
import { bulk, operate } from "./acting.ts";

const keys = ["k:1", "k:2", "k:3", "k:4", "k:5"];
const kinds: readonly KeyedKind[] = [
  { name: "a", orderingKey: "k:{k}", minBackoffMs: 0, maxBackoffMs: 0, maxAttempts: 2 },
  { name: "b", ...{ orderingKey: "k:{k}", uniqueKey: "{u}", onConflict: "replace" }, maxAttempts: 1 },
  {
    name: "c",
    limitNames: ["t:{k}"],
    limitMaxes: [2],
    locks: ["n:{k}"],
    minBackoffMs: 0,
    maxBackoffMs: 0,
    maxAttempts: 1,
  },
];

interface Storm {
  readonly world: Installation;
  readonly random: () => number;
  readonly until: number;
  readonly enqueued: Set<string>;
}

/** One whole tick with drawn outcomes; whoever stands behind one that did not end done is handed back. */
async function tick({ world, random }: Storm, session: Awaited<ReturnType<Installation["connect"]>>, side: Db) {
  const claim = await claimLine(
    world,
    { kinds: ["a", "b", "c"], tickSlots: null, batch: 8, reserveMs: 30_000, maxBytes: 1e9 },
    session,
  );
  if (claim.jobs.length === 0) {
    await session.query("rollback");
    return;
  }
  const granted = new Set((await fence(side, claim)).map(({ id }) => id));
  const done = new Set<string>();
  const jobs = claim.jobs.map(({ id, n, behind }): FinishJob => {
    const runs = granted.has(id) && (behind === null || done.has(behind));
    const outcome = runs
      ? ((["done", "done", "dead", "failed", "snoozed"] as const)[pick(random, 5)] ?? "done")
      : "released";
    if (outcome === "done") done.add(id);
    return { id, n, outcome, inMs: 0 };
  });
  await finish(session, claim.tick, jobs);
}

/** A transaction of a few jobs in drawn keys, which it locks at its commit in whatever order they come. */
async function enqueueSome({ random, enqueued }: Storm, client: Db) {
  const jobs = Array.from({ length: 1 + pick(random, 4) }, () => ({
    kind: ["a", "a", "b", "c"][pick(random, 4)],
    payload: { k: String(1 + pick(random, keys.length)), u: String(pick(random, 3)) },
  }));
  await client.query("begin");
  const { rows } = await client.query<{ job_id: string }>("select job_id from pgclaim.enqueue_v1($1)", [
    JSON.stringify({ jobs }),
  ]);
  await client.query("commit");
  // A replacement that belongs behind another gate is a new job, and answers its id.
  for (const { job_id } of rows) enqueued.add(job_id);
}

async function bulkSome({ random }: Storm, client: Db) {
  const key = keys[pick(random, keys.length)];
  const requests = [
    { verb: "retry", filter: { state: "dead" } },
    { verb: "retry", filter: { state: "dead" }, spreadMs: 5 },
    { verb: "discard", filter: { state: "dead", orderingKey: key }, limit: 3 },
    { verb: "cancel", filter: { orderingKey: key }, limit: 2 },
    { verb: "cancel", filter: { kind: "c" }, limit: 2 },
  ];
  await bulk(client, requests[pick(random, requests.length)] ?? {});
}

async function operateSome({ world, random }: Storm, client: Db) {
  const { rows } = await client.query<{ id: string }>("select id from pgclaim.job order by random() limit 1");
  const [one] = rows;
  if (one === undefined) return;
  const verb = ["retry", "cancel", "reschedule"][pick(random, 3)] ?? "retry";
  await operate(client, verb, one.id, { runAt: new Date().toISOString() });
  await wake(world.sql, { reapSlice: 50 });
}

/** Runs everybody until the time is over; answers what each of them failed with. */
async function storm(
  world: Installation,
  seed: number,
  seconds: number,
): Promise<{ errors: string[]; enqueued: Set<string> }> {
  const enqueued = new Set<string>();
  const errors: string[] = [];
  const until = Date.now() + seconds * 1_000;
  const loops: ((s: Storm, client: Awaited<ReturnType<Installation["connect"]>>, side: Db) => Promise<void>)[] = [
    tick,
    tick,
    tick,
    enqueueSome,
    enqueueSome,
    bulkSome,
    bulkSome,
    operateSome,
  ];
  await Promise.all(
    loops.map(async (step, i) => {
      const [client, side] = [await world.connect(), await world.connect()];
      const one: Storm = { world, random: draws(seed + i), until, enqueued };
      while (Date.now() < until) {
        try {
          await step(one, client, side);
        } catch (error) {
          errors.push(`${step.name}: ${(error as { code?: string }).code} ${(error as Error).message}`);
          await client.query("rollback");
        }
      }
    }),
  );
  return { errors, enqueued };
}

async function start(): Promise<Installation> {
  const world = await installOrdered([]);
  await world.sql.query("select pgclaim.register_v1($1)", [
    JSON.stringify({
      digest: "storm",
      kinds: kinds.map((kind) => ({ ...policy(kind), ...kind })),
      queues: ["default"],
    }),
  ]);
  await world.sql.query("set deadlock_timeout = '1s'");
  return world;
}

/** Ends what is left: dead letters go, the rest runs. */
async function drain(world: Installation): Promise<void> {
  const session = await world.connect();
  for (let i = 0; i < 400; i++) {
    await wake(world.sql, { reapSlice: 500 });
    await bulk(world.sql, { verb: "discard", filter: { state: "dead" } });
    const claim = await claimLine(
      world,
      { kinds: ["a", "b", "c"], batch: 50, reserveMs: 30_000, maxBytes: 1e9 },
      session,
    );
    const granted = new Set((await fence(world.sql, claim)).map(({ id }) => id));
    const ends = ({ id, n }: { id: string; n: number }): FinishJob => ({
      id,
      n,
      outcome: granted.has(id) ? "done" : "released",
    });
    await finish(session, claim.tick, claim.jobs.map(ends));
    if ((await world.value<number>("select count(*)::integer from pgclaim.job")) === 0) return;
  }
}

it("nobody deadlocks, no job is lost, every key keeps its order", async () => {
  const world = await start();
  const seed = Number(process.env.PGCLAIM_STORM_SEED ?? 7);
  const { errors, enqueued } = await storm(world, seed, Number(process.env.PGCLAIM_STORM_SECONDS ?? 5));
  expect(errors, `seed ${seed}`).toEqual([]);
  await drain(world);
  expect(await world.rows("select id, state, gate from pgclaim.job")).toEqual([]);
  const ended = await world.rows<{ job_id: string }>("select job_id from pgclaim.history");
  expect(ended.map(({ job_id }) => job_id).sort()).toEqual([...enqueued].sort());
  // Dead letters halt their key, so what is done is done in the order of places.
  expect(
    await world.rows(`
      select ordering_key, job_id from (
        select h.ordering_key, h.job_id, h.place,
          max(h.place) over (partition by h.ordering_key order by h.finished_at rows unbounded preceding) as highest
        from pgclaim.history h
        where h.ordering_key is not null and h.outcome = 'done'
      ) o where place < highest`),
  ).toEqual([]);
  // It was a storm: each verb had something to do, and ticks did some of it too.
  const did = await world.rows<{ verb: string }>("select distinct verb from pgclaim.action");
  expect(did.map(({ verb }) => verb).sort()).toEqual(["cancel", "discard", "reschedule", "retry"]);
  expect(
    await world.value<number>("select count(*)::integer from pgclaim.history where outcome = 'done'"),
  ).toBeGreaterThan(50);
}, 60_000);

it("has teeth: two of them that take gates in no order, and without a limit, deadlock", async () => {
  const world = await installOrdered(kinds);
  // Each takes its first gate, and waits at a barrier until the other one has its own.
  await alter(world.sql, "pgclaim.bulk_v1(jsonb)", [
    [
      "left_out := pgclaim.lock_gates(gates, gates);",
      `for g in
         select x from unnest(gates) x order by case when current_setting('application_name') = 'backwards' then x end desc, x
       loop
         perform pgclaim.lock_gates(array[g]);
         perform pg_advisory_lock_shared(4711);
         perform pg_advisory_unlock_shared(4711);
       end loop;`,
    ],
  ]);
  for (const kind of ["a", "b"]) for (const k of ["1", "2"]) await enqueueOne(world.sql, kind, { k, u: `${kind}${k}` });
  const barrier = await world.connect();
  await barrier.query("select pg_advisory_lock(4711)");
  const cancels = await Promise.all(
    ["forwards", "backwards"].map(async (name, i) => {
      const client = await world.connect();
      await client.query(`set application_name = '${name}'`);
      return () => bulk(client, { verb: "cancel", filter: { kind: ["a", "b"][i] } });
    }),
  );
  const ended = Promise.allSettled(cancels.map((cancel) => cancel()));
  await eventually(async () => {
    const waiting = await world.value<number>(
      `select count(*)::integer from pg_locks l join pg_database d on d.oid = l.database
       where l.locktype = 'advisory' and not l.granted and l.objid = 4711 and d.datname = current_database()`,
    );
    expect(waiting).toBe(2);
  });
  await barrier.query("select pg_advisory_unlock(4711)");
  const refused = (await ended).filter((end) => end.status === "rejected");
  expect(refused).toMatchObject([{ reason: { code: "40P01" } }]);
});
