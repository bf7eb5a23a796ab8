// Who may run what: claim holds exactly the locks it reports, hands out nothing that is finished or running, and leaves
// no trace in the database. Exclusion is shown with two sessions, never by luck.

import pg from "pg";
import { describe, expect, it, onTestFinished } from "vitest";
import { startPostgres } from "../../../scripts/world/postgres.ts";
import { migrate } from "../../../src/cli/migrate.ts";
import {
  all,
  alter,
  begin,
  type ClaimOptions,
  claim,
  claimer,
  claimOn,
  crash,
  enqueue,
  enqueueOne,
  failure,
  fence,
  finish,
  type Installation,
  ids,
  install,
  job,
  kill,
  locksOf,
  pidOf,
  reap,
  register,
  runTick,
  sqlState,
  the,
  waitsForLock,
} from "./support.ts";

const CLAIM = "pgclaim.claim_v1(jsonb)";
const HOOK = "select pg_advisory_lock(4711)";

describe("what claim holds", () => {
  it("is one lock for each job it reports, at a batch smaller than, equal to and larger than what is ready", async () => {
    const world = await install();
    await enqueue(world.sql, 10);
    for (const batch of [1, 9, 10, 11]) {
      const session = await claimer(world, { batch });
      expect(session.jobs).toHaveLength(Math.min(batch, 10));
      expect(await locksOf(world, session.pid)).toBe(session.jobs.length);
      await session.client.end();
    }
  });

  it("is one lock for one job among 10,000 ready ones", async () => {
    const world = await install();
    await enqueue(world.sql, 10_000);
    const session = await claimer(world, { batch: 1 });
    expect(session.jobs).toHaveLength(1);
    expect(await locksOf(world, session.pid)).toBe(1);
  });

  it("is no more with 1,000 locked jobs in front of it", async () => {
    const world = await install();
    const enqueued = await enqueue(world.sql, 1_010);
    const front = await claimer(world, { batch: 1_000 });
    expect(front.jobs).toHaveLength(1_000);
    const session = await claimer(world, { batch: 7 });
    expect(ids(session.jobs)).toEqual(enqueued.slice(1_000, 1_007));
    expect(session.skipped).toEqual({ busy: 1_000 });
    expect(await locksOf(world, session.pid)).toBe(7);
  });

  it("is no more under the worst plan a role can be given", async () => {
    const world = await install();
    await enqueue(world.sql, 500);
    const session = await world.connect();
    await session.query(
      `set enable_indexscan = off; set enable_indexonlyscan = off; set enable_bitmapscan = off; set enable_nestloop = off;
       set enable_seqscan = on; set enable_sort = on; set plan_cache_mode = force_custom_plan; set cursor_tuple_fraction = 1`,
    );
    const pid = await pidOf(session);
    const { jobs } = await claimOn(session, { batch: 5 });
    expect(jobs).toHaveLength(5);
    expect(await locksOf(world, pid)).toBe(5);
  });

  it("is nothing once its transaction is over, whether by commit, rollback or death", async () => {
    const world = await install();
    await enqueue(world.sql, 3);
    for (const end of ["commit", "rollback", "death"]) {
      const session = await claimer(world);
      expect(await world.locks()).toBe(3);
      if (end === "death") await kill(world, session.pid);
      else await session.client.query(end);
      expect(await world.locks(), end).toBe(0);
    }
  });

  it("does not include the lock of a candidate that turned out not to qualify", async () => {
    const world = await install();
    await enqueue(world.sql, 4);
    await crash(world, { batch: 3 });
    const session = await claimer(world);
    expect(session.skipped).toEqual({ "open-attempt": 3 });
    expect(session.jobs).toHaveLength(1);
    expect(await locksOf(world, session.pid)).toBe(1);
    // Given back at once: the reaper gets all three while the claiming transaction is still open.
    expect(await reap(world.sql)).toBe(3);
  });

  it("is nothing for a job whose kind has lost its row: without a namespace there is no key", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    await world.sql.query("delete from pgclaim.kind where name = 'a'");
    const session = await claimer(world);
    expect(session.jobs).toEqual([]);
    expect(session.skips).toEqual({ [id]: "unknown-kind" });
  });
});

describe("two sessions", () => {
  it("never hold one job: the second skips it, and gets it when the first has let go", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const one = await claimer(world);
    expect(ids(one.jobs)).toEqual([id]);
    const two = await claimer(world);
    expect(two.jobs).toEqual([]);
    expect(two.skips).toEqual({ [id]: "busy" });
    await one.client.query("rollback");
    expect(ids((await claim(two.client)).jobs)).toEqual([id]);
  });

  it("share the work, each job with one of them, when they claim at the same instant", async () => {
    const world = await install();
    const enqueued = await enqueue(world.sql, 200);
    const sessions = await Promise.all(Array.from({ length: 6 }, () => claimer(world, { batch: 25 })));
    const claimed = sessions.flatMap((session) => ids(session.jobs));
    expect(new Set(claimed).size).toBe(claimed.length);
    expect(claimed).toHaveLength(150);
    expect(enqueued).toEqual(expect.arrayContaining(claimed));
    for (const session of sessions) expect(await locksOf(world, session.pid)).toBe(25);
  });
});

describe("skips", () => {
  it("name each reason, and count it", async () => {
    const world = await install([{ name: "a" }, { name: "b" }, { name: "slow" }, { name: "solo", alone: true }]);
    const busy = await enqueueOne(world.sql, "a");
    const holder = await claimer(world);
    const open = await enqueueOne(world.sql, "b");
    const dead = await claimer(world, { kinds: ["b"] });
    await fence(world.sql, dead);
    await dead.client.query("rollback");
    const unfit = await enqueueOne(world.sql, "slow");
    const newer = await enqueueOne(world.sql, "a");
    await world.sql.query("update pgclaim.job set revision = 8 where id = $1", [newer]);
    const first = await enqueueOne(world.sql, "a");
    const alone = await enqueueOne(world.sql, "solo");
    await register(world.sql, [{ name: "foreign" }]);
    const unknown = await enqueueOne(world.sql, "foreign");
    const session = await claimer(world, { kinds: ["a", "b", "solo"], unfit: ["slow"], revision: 7 });
    expect(ids(holder.jobs)).toEqual([busy]);
    expect(ids(session.jobs)).toEqual([first]);
    expect(session.skips).toEqual({
      [busy]: "busy",
      [open]: "open-attempt",
      [unfit]: "unfit",
      [newer]: "newer-revision",
      [alone]: "alone",
      [unknown]: "unknown-kind",
    });
    expect(session.skipped).toEqual({
      busy: 1,
      "open-attempt": 1,
      unfit: 1,
      "newer-revision": 1,
      alone: 1,
      "unknown-kind": 1,
    });
    expect(await locksOf(world, session.pid)).toBe(1);
  });

  it("do not begin at a job of the claim's own revision", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    expect((await claimer(world, { revision: world.revision - 1 })).skips).toEqual({ [id]: "newer-revision" });
    expect(ids((await claimer(world, { revision: world.revision })).jobs)).toEqual([id]);
  });

  it("are reported by name up to maxSkips, and counted beyond it", async () => {
    const world = await install();
    await enqueue(world.sql, 10);
    await claimer(world);
    for (const [maxSkips, named] of [
      [0, 0],
      [1, 1],
      [9, 9],
      [10, 10],
      [11, 10],
    ] as const) {
      const session = await claimer(world, { maxSkips });
      expect(Object.keys(session.skips)).toHaveLength(named);
      expect(session.skipped).toEqual({ busy: 10 });
    }
  });

  it("end at maxCandidates, which counts claims and skips alike", async () => {
    const world = await install();
    const enqueued = await enqueue(world.sql, 6);
    await claimer(world, { batch: 3 });
    const look = async (maxCandidates: number) => {
      const session = await claimer(world, { maxCandidates });
      await session.client.query("rollback");
      return [ids(session.jobs), session.skipped.busy ?? 0];
    };
    expect(await look(0)).toEqual([[], 0]);
    expect(await look(3)).toEqual([[], 3]);
    expect(await look(4)).toEqual([[the(enqueued, 3)], 3]);
    expect(await look(6)).toEqual([enqueued.slice(3), 3]);
    expect(await look(7)).toEqual([enqueued.slice(3), 3]);
  });

  it("over two queues share one maxCandidates and one batch", async () => {
    const world = await install([
      { name: "a", queue: "one" },
      { name: "b", queue: "two" },
    ]);
    const one = await enqueue(world.sql, 2, "a");
    const two = await enqueue(world.sql, 2, "b");
    const look = async (options: ClaimOptions) => {
      const session = await claimer(world, { queues: ["two", "one"], ...options });
      await session.client.query("rollback");
      return ids(session.jobs);
    };
    expect(await look({})).toEqual([...two, ...one]);
    expect(await look({ batch: 2 })).toEqual(two);
    expect(await look({ batch: 3 })).toEqual([...two, the(one)]);
    expect(await look({ maxCandidates: 3 })).toEqual([...two, the(one)]);
    expect(await look({ queues: ["one"] })).toEqual(one);
    expect(await look({ queues: ["two", "two"] })).toEqual(two);
    expect(await look({ queues: [] })).toEqual([]);
  });
});

describe("order", () => {
  it("is by priority, then rank, then id", async () => {
    const world = await install([
      { name: "low", priority: 3 },
      { name: "lazy", targetLatencyMs: 600_000 },
      { name: "eager", targetLatencyMs: 1_000 },
      { name: "urgent", priority: 0, targetLatencyMs: 3_600_000 },
    ]);
    const low = await enqueueOne(world.sql, "low");
    const lazy = await enqueue(world.sql, 2, "lazy");
    const eager = await enqueue(world.sql, 2, "eager");
    const urgent = await enqueueOne(world.sql, "urgent");
    await world.sql.query("update pgclaim.job set rank = '2030-01-01' where id = any ($1)", [lazy]);
    const kinds = ["low", "lazy", "eager", "urgent"];
    const session = await claimer(world, { kinds });
    expect(ids(session.jobs)).toEqual([urgent, ...eager, ...lazy, low]);
  });
});

describe("order of suspects", () => {
  it("is by rank as well, so that one that keeps crashing does not stand before the others", async () => {
    const world = await install();
    const [first, second] = await enqueue(world.sql, 2);
    await crash(world);
    await reap(world.sql);
    await world.sql.query("update pgclaim.job set rank = rank + interval '1 second' where id = $1", [first]);
    expect(ids(await runTick(world, { quarantined: true }))).toEqual([second]);
    expect(ids(await runTick(world, { quarantined: true }))).toEqual([first]);
  });
});

describe("an alone kind", () => {
  it("gets a tick of its own: it ends the batch it begins, and is skipped in a batch begun by another", async () => {
    const world = await install([{ name: "a" }, { name: "solo", alone: true }]);
    const kinds = ["a", "solo"];
    const first = await enqueueOne(world.sql, "solo");
    const others = await enqueue(world.sql, 2, "a");
    const last = await enqueueOne(world.sql, "solo");
    const one = await claimer(world, { kinds });
    expect(ids(one.jobs)).toEqual([first]);
    const two = await claimer(world, { kinds });
    expect(ids(two.jobs)).toEqual(others);
    expect(two.skips).toEqual({ [first]: "busy", [last]: "alone" });
    const three = await claimer(world, { kinds });
    expect(ids(three.jobs)).toEqual([last]);
  });
});

/** A copy of claim that stops at a lock of the test's between reading a candidate and trying its locks. */
async function hookedClaim(world: Installation, name: string, changes: [string, string][] = []): Promise<void> {
  await alter(
    world.sql,
    CLAIM,
    [
      [
        "took := pgclaim.take_locks(",
        "perform pg_advisory_lock(4711); perform pg_advisory_unlock(4711); took := pgclaim.take_locks(",
      ],
      ...changes,
    ],
    name,
  );
}

/** Another session runs `meanwhile` after the candidate was read and before its lock is tried. */
async function claimWith(
  world: Installation,
  fn: string,
  meanwhile: () => Promise<unknown>,
  options: ClaimOptions = {},
) {
  const barrier = await world.connect();
  await barrier.query(HOOK);
  const client = await world.connect();
  const pid = await pidOf(client);
  await begin(client);
  const claiming = claim(client, options, fn);
  await waitsForLock(world, pid);
  await meanwhile();
  await barrier.query("select pg_advisory_unlock(4711)");
  return { pid, ...(await claiming) };
}

describe("a candidate that changed between the scan and the lock", () => {
  const finishIt = (world: Installation) => () => runTick(world);

  it("is skipped as stale when another session has finished it, and its lock is given back", async () => {
    const world = await install();
    await hookedClaim(world, "pgclaim.claim_hooked");
    const id = await enqueueOne(world.sql);
    const late = await claimWith(world, "pgclaim.claim_hooked", finishIt(world));
    expect(late.jobs).toEqual([]);
    expect(late.skips).toEqual({ [id]: "stale" });
    expect(await locksOf(world, late.pid)).toBe(0);
  });

  it("would be handed out again without the re-read", async () => {
    const world = await install();
    await hookedClaim(world, "pgclaim.claim_naive", [
      [
        "if skip is null then\n              select\n",
        "attempt := f.attempt + 1;\n            if false then\n              select\n",
      ],
    ]);
    const id = await enqueueOne(world.sql);
    const late = await claimWith(world, "pgclaim.claim_naive", finishIt(world));
    expect(await world.value("select outcome from pgclaim.history where job_id = $1", [id])).toBe("done");
    expect(ids(late.jobs)).toEqual([id]);
  });

  it("would be handed out again at REPEATABLE READ, where the re-read is as old as the scan", async () => {
    const world = await install();
    await hookedClaim(world, "pgclaim.claim_anywhere", [["perform pgclaim.require_read_committed();", ""]]);
    const id = await enqueueOne(world.sql);
    const barrier = await world.connect();
    await barrier.query(HOOK);
    const client = await world.connect();
    const pid = await pidOf(client);
    await client.query("begin isolation level repeatable read");
    const claiming = claim(client, {}, "pgclaim.claim_anywhere");
    await waitsForLock(world, pid);
    await runTick(world);
    await barrier.query("select pg_advisory_unlock(4711)");
    expect(ids((await claiming).jobs)).toEqual([id]);
  });

  it("is skipped as stale when it failed meanwhile and waits for its retry", async () => {
    const world = await install();
    await hookedClaim(world, "pgclaim.claim_hooked");
    const id = await enqueueOne(world.sql);
    const late = await claimWith(world, "pgclaim.claim_hooked", async () => {
      const other = await claimer(world);
      await fence(world.sql, other);
      await finish(other.client, other.tick, all(other.jobs, "failed", { inMs: 60_000 }));
    });
    expect(late.skips).toEqual({ [id]: "stale" });
  });

  it("is skipped as stale when it became a suspect meanwhile, and as open-attempt when its holder died", async () => {
    const world = await install();
    await hookedClaim(world, "pgclaim.claim_hooked");
    const id = await enqueueOne(world.sql);
    const died = await claimWith(world, "pgclaim.claim_hooked", () => crash(world));
    expect(died.skips).toEqual({ [id]: "open-attempt" });
    const reaped = await claimWith(world, "pgclaim.claim_hooked", () => reap(world.sql));
    expect(reaped.skips).toEqual({ [id]: "stale" });
  });

  it("is claimed under its next number when it failed meanwhile and is due at once", async () => {
    const world = await install();
    await hookedClaim(world, "pgclaim.claim_hooked");
    const id = await enqueueOne(world.sql);
    const late = await claimWith(world, "pgclaim.claim_hooked", () => runTick(world, {}, "failed"));
    expect(late.jobs).toEqual([{ id, n: 2 }]);
  });
});

describe("the number that claim hands out", () => {
  it("is one more than every number the job ever had, whoever wrote it", async () => {
    const world = await install();
    const id = await enqueueOne(world.sql);
    const session = await world.connect();
    expect((await claimOn(session)).jobs).toEqual([{ id, n: 1 }]);
    await session.query("rollback");
    await world.sql.query(
      `insert into pgclaim.attempt (job_id, n, tick, quarantined, ended_at, outcome)
       select $1, n, gen_random_uuid(), false, now(), 'interrupted' from generate_series(1, 4) n`,
      [id],
    );
    expect((await claimOn(session)).jobs).toEqual([{ id, n: 5 }]);
    await session.query("rollback");
    await world.sql.query("update pgclaim.job set attempt = 9 where id = $1", [id]);
    expect((await claimOn(session)).jobs).toEqual([{ id, n: 10 }]);
  });
});

describe("while handlers work, the claiming transaction", () => {
  const holdsNothing = async (world: Installation, pid: number) =>
    expect(
      await world.rows("select state, backend_xid, backend_xmin from pg_stat_activity where pid = $1", [pid]),
    ).toEqual([{ state: "idle in transaction", backend_xid: null, backend_xmin: null }]);

  // Each way out of the scan: ran dry, batch full, candidates used up, an alone job, quarantine.
  it.each([
    ["that found less than its batch", { batch: 50 }],
    ["that filled its batch", { batch: 5 }],
    ["that used up its candidates", { maxCandidates: 5 }],
    ["that ended with an alone job", { kinds: ["solo"] }],
    ["that found nothing", { queues: ["empty"] }],
  ] as const)("%s holds neither xid nor snapshot", async (_, options) => {
    const world = await install([{ name: "a" }, { name: "b" }, { name: "solo", alone: true }]);
    await enqueue(world.sql, 20);
    await enqueue(world.sql, 2, "solo");
    const session = await claimer(world, options);
    await holdsNothing(world, session.pid);
    expect((await session.client.query("select pg_current_xact_id_if_assigned() as xid")).rows).toEqual([
      { xid: null },
    ]);
  });

  it("that claimed a suspect holds neither xid nor snapshot", async () => {
    const world = await install();
    await enqueue(world.sql, 3);
    await crash(world);
    await reap(world.sql);
    const session = await claimer(world, { quarantined: true });
    expect(session.jobs).toHaveLength(1);
    await holdsNothing(world, session.pid);
  });

  it("lets VACUUM remove what died after it began", async () => {
    const world = await install();
    await world.sql.query("create table bulk with (autovacuum_enabled = off) as select generate_series(1, 10000) as i");
    await enqueue(world.sql, 20);
    const pages = async () => {
      await world.sql.query("vacuum (truncate) bulk");
      return Number(await world.value("select pg_relation_size('bulk')"));
    };
    const session = await claimer(world, { batch: 5 });
    await fence(world.sql, session);
    // The control: a transaction that does hold a snapshot keeps the pages.
    const reader = await world.connect();
    await reader.query("begin isolation level repeatable read; select 1");
    await world.sql.query("delete from bulk");
    expect(await pages()).toBeGreaterThan(0);
    await reader.query("commit");
    expect(await pages()).toBe(0);
  });
});

describe("claim refuses", () => {
  it.each([
    ["begin isolation level repeatable read", "repeatable read"],
    ["begin isolation level serializable", "serializable"],
    ["begin isolation level read committed read only", "read only"],
    ["begin isolation level read uncommitted", "read uncommitted"],
  ])("%s, as PC001 and says why", async (start, word) => {
    const world = await install();
    await enqueueOne(world.sql);
    const client = await world.connect();
    await client.query(start);
    const error = await failure(claim(client));
    expect(error.code).toBe("PC001");
    expect(error.message).toContain(word);
    expect(error.hint).toContain("begin isolation level read committed read write");
    expect(await world.locks()).toBe(0);
  });

  it("the default level of a role or database that was changed, unless the transaction names its own", async () => {
    const world = await install();
    await enqueueOne(world.sql);
    const name = await world.value("select current_database()");
    await world.sql.query(`alter database ${name} set default_transaction_isolation = 'serializable'`);
    await world.sql.query(`alter database ${name} set default_transaction_read_only = on`);
    const client = await world.connect();
    await client.query("begin");
    expect(await sqlState(claim(client))).toBe("PC001");
    await client.query("rollback");
    expect((await claimOn(client)).jobs).toHaveLength(1);
  });
});

describe("a full lock table", () => {
  it("comes out as 53200, and the locks of other sessions survive it", { timeout: 60_000 }, async () => {
    const server = await startPostgres({
      settings: { max_connections: "10", max_locks_per_transaction: "10", autovacuum: "off", max_wal_senders: "0" },
    });
    onTestFinished(() => server.stop());
    const connect = async () => {
      const client = new pg.Client(server.url());
      client.on("error", () => {});
      await client.connect();
      onTestFinished(() => client.end().catch(() => {}));
      return client;
    };
    const sql = await connect();
    await migrate({ client: sql });
    await register(sql, [{ name: "a" }]);
    await enqueue(sql, 30_000);
    const one = await connect();
    const held = (await claimOn(one, { batch: 20 })).jobs;
    const two = await connect();
    await begin(two);
    expect(await sqlState(claim(two, { batch: 30_000, maxCandidates: 30_000 }))).toBe("53200");
    expect((await two.query("commit")).command).toBe("ROLLBACK");
    const locks = await sql.query("select count(*)::int as n from pg_locks where locktype = 'advisory'");
    expect(locks.rows).toEqual([{ n: held.length }]);
    // And the one who held them goes on as if nothing had been.
    const tick = (await one.query<{ tick: string }>("select current_setting('pgclaim.tick') as tick")).rows;
    await fence(sql, { tick: the(tick).tick, jobs: held });
    await finish(one, the(tick).tick, all(held, "done"));
    expect((await claimOn(two, { batch: 20 })).jobs).toHaveLength(20);
  });
});

describe("candidates", () => {
  it("are no scheduled and no dead jobs, neither for a normal claim nor for a quarantined one", async () => {
    const world = await install();
    const [later, dead] = await enqueue(world.sql, 2);
    await world.sql.query("update pgclaim.job set state = 'scheduled' where id = $1", [later]);
    await world.sql.query(
      "update pgclaim.job set state = 'dead', dead_at = now(), dead_reason = 'handler' where id = $1",
      [dead],
    );
    for (const quarantined of [false, true]) {
      const session = await claimer(world, { quarantined });
      expect(session).toMatchObject({ jobs: [], skips: {}, skipped: {} });
      await session.client.query("rollback");
    }
    expect((await job(world.sql, String(later))).state).toBe("scheduled");
  });
});
