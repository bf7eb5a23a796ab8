// Places are drawn at COMMIT, so the order of a key is the order of commits, whatever the callers' isolation levels and
// whatever else stands in their transactions. Two sessions, each step played by hand.

import { describe, expect, it } from "vitest";
import { endsWithin } from "../../support/gate.ts";
import { claimer, enqueue, failure, fence, finish, kill, pidOf, sqlState, the, waitsForLock } from "../sql/support.ts";
import { at, installOrdered, keyed, levels, line, notes, put, recheck } from "./support.ts";

describe("two enqueuers of one key", () => {
  it("whose commits are the other way round get their places in the order of the commits", async () => {
    const world = await installOrdered();
    const [first, second] = [await world.connect(), await world.connect()];
    await at(first, "read committed");
    await put(first, "x", 1);
    await at(second, "read committed");
    await put(second, "x", 2);
    await second.query("commit");
    expect(await line(world.sql, "x")).toEqual(["2 ready"]);
    await first.query("commit");
    expect(await line(world.sql, "x")).toEqual(["2 ready", "1 blocked"]);
  });

  it.each(levels.flatMap((one) => levels.map((other) => [one, other] as const)))(
    "at %s and %s are in the order of the commits as well, and both are seen",
    async (one, other) => {
      const world = await installOrdered();
      const [first, second] = [await world.connect(), await world.connect()];
      await at(first, one);
      await put(first, "x", 1);
      await at(second, other);
      await put(second, "x", 2);
      await second.query("commit");
      // Two at SERIALIZABLE may be refused at the commit, as ever there: then it is done again.
      await first.query("commit").catch(async (error: { readonly code?: string }) => {
        expect([one, other, error.code]).toEqual(["serializable", "serializable", "40001"]);
        await at(first, one);
        await put(first, "x", 1);
        await first.query("commit");
      });
      // Who could not see has left a note, and who sees follows it.
      expect((await notes(world.sql)).length).toBe([one, other].filter((level) => level !== "read committed").length);
      await recheck(world.sql);
      expect(await line(world.sql, "x")).toEqual(["2 ready", "1 blocked"]);
      expect(await notes(world.sql)).toEqual([]);
    },
  );

  it("do not wait for each other before they commit", async () => {
    const world = await installOrdered();
    const [open, quick] = [await world.connect(), await world.connect()];
    await at(open, "read committed");
    await put(open, "x", 1);
    await quick.query("set lock_timeout = '1ms'");
    await put(quick, "x", 2);
    await open.query("commit");
    expect(await line(world.sql, "x")).toEqual(["2 ready", "1 blocked"]);
  });

  it("wait for each other during a commit, and the one that began it first stands first", async () => {
    const world = await installOrdered();
    // A deferred trigger of the caller's own, behind ours, makes its commit long.
    await world.sql.query(`
      create table slow (n integer);
      create function stand_still() returns trigger language plpgsql as
        $$ begin perform pg_advisory_xact_lock_shared(4711); return null; end $$;
      create constraint trigger slow_commit after insert on slow deferrable initially deferred
        for each row execute function stand_still()`);
    const barrier = await world.connect();
    await barrier.query("select pg_advisory_lock(4711)");
    const [first, second] = [await world.connect(), await world.connect()];
    await at(first, "read committed");
    await put(first, "x", 1);
    await first.query("insert into slow values (1)");
    const committing = first.query("commit");
    await waitsForLock(world, await pidOfIdle(world, "commit"));
    const behind = put(second, "x", 2);
    // Another key is none of its business.
    await put(world.sql, "y", 3);
    expect(await line(world.sql, "y")).toEqual(["3 ready"]);
    expect(await line(world.sql, "x")).toEqual([]);
    await barrier.query("select pg_advisory_unlock(4711)");
    await Promise.all([committing, behind]);
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked"]);
    await barrier.end();
  });
});

describe("one transaction", () => {
  it("keeps the order of its enqueues, around other statements and other commits", async () => {
    const world = await installOrdered();
    const client = await world.connect();
    await client.query("create table note (n integer)");
    await at(client, "read committed");
    await put(client, "x", 1);
    await client.query("insert into note select generate_series(1, 100)");
    await put(world.sql, "x", 2);
    await client.query("update note set n = n + 1");
    await put(client, "x", 3);
    await put(client, "y", 4);
    await put(client, "x", 5);
    await client.query("commit");
    expect(await line(world.sql, "x")).toEqual(["2 ready", "1 blocked", "3 blocked", "5 blocked"]);
    expect(await line(world.sql, "y")).toEqual(["4 ready"]);
  });

  it("keeps the order of a batch, whichever keys stand in it", async () => {
    const world = await installOrdered();
    const jobs = Array.from({ length: 60 }, (_, i) => ({ kind: "a", payload: { k: `k${i % 3}`, n: i } }));
    await world.sql.query("select from pgclaim.enqueue_v1($1)", [JSON.stringify({ jobs })]);
    for (const at of [0, 1, 2]) {
      const expected = jobs.filter((_, i) => i % 3 === at).map(({ payload }) => payload.n);
      expect((await line(world.sql, `k${at}`)).map((one) => Number.parseInt(one, 10))).toEqual(expected);
    }
  });

  it("that is rolled back leaves no job, no place, no lock, and nobody behind it", async () => {
    const world = await installOrdered();
    const client = await world.connect();
    await at(client, "read committed");
    await put(client, "x", 1);
    await client.query("rollback");
    expect(await world.locks()).toBe(0);
    await put(world.sql, "x", 2);
    expect(await line(world.sql, "x")).toEqual(["2 ready"]);
    await at(client, "read committed");
    await put(client, "x", 3);
    await kill(world, await pidOf(client));
    expect(await line(world.sql, "x")).toEqual(["2 ready"]);
  });

  it("loses the jobs of a savepoint it rolled back, and keeps the order of the rest", async () => {
    const world = await installOrdered();
    const client = await world.connect();
    await at(client, "read committed");
    await put(client, "x", 1);
    await client.query("savepoint s");
    await put(client, "x", 2);
    await put(client, "y", 3);
    await client.query("rollback to s");
    await put(client, "x", 4);
    await client.query("release s");
    await client.query("commit");
    expect(await line(world.sql, "x")).toEqual(["1 ready", "4 blocked"]);
    expect(await line(world.sql, "y")).toEqual([]);
  });

  it("may enqueue behind 2,000 keys and not behind 2,001: the server's lock table is everybody's", async () => {
    const world = await installOrdered();
    const many = (count: number) =>
      world.sql.query(
        `select count(*) from pgclaim.enqueue_v1((
           select jsonb_build_object('jobs', jsonb_agg(
             jsonb_build_object('kind', 'a', 'payload', jsonb_build_object('k', k::text, 'n', k))))
           from generate_series(1, $1) k))`,
        [count],
      );
    const { code, message } = await failure(many(2_001));
    expect(code).toBe("PC006");
    expect(message).toContain("2001 ordering keys, names and limits; at most 2000 fit");
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(0);
    await many(2_000);
    expect(await world.value("select count(*)::integer from pgclaim.job where state = 'ready'")).toBe(2_000);
  });

  it("that is a tick costs the handler an attempt that takes it beyond, and the others of the tick nothing", async () => {
    const world = await installOrdered([keyed, { name: "b" }]);
    const many = (k: string, count: number) =>
      Array.from({ length: count }, (_, n) => ({ kind: "a", payload: { k: `${k}${n}`, n } }));
    await enqueue(world.sql, 3, "b");
    const { client, tick, jobs } = await claimer(world);
    expect(jobs).toHaveLength(3);
    await fence(world.sql, { tick, jobs });
    // Two with finish, the second of which is beyond; one in its turn, which is beyond by itself.
    const turn = JSON.stringify({ enqueue: many("turn", 2_100) });
    await client.query("savepoint turn");
    const { code } = await failure(client.query("select pgclaim.end_turn_v1($1)", [turn]));
    expect(code).toBe("PC006");
    await client.query("rollback to turn");
    const ended = await finish(client, tick, [
      { ...the(jobs), outcome: "done", enqueue: many("first", 1_100) },
      { ...the(jobs, 1), outcome: "done", enqueue: many("second", 1_100) },
      { ...the(jobs, 2), outcome: "failed", error: "PC006" },
    ]);
    expect(ended.map(({ job_id }) => job_id).sort()).toEqual([the(jobs, 1).id, the(jobs, 2).id]);
    expect(ended.find(({ job_id }) => job_id === the(jobs, 1).id)?.error).toMatch(/^PC006: /);
    expect(await world.value("select count(*)::integer from pgclaim.job where kind = 'a' and state = 'ready'")).toBe(
      1_100,
    );
  });

  it("may set all constraints immediate: its places are drawn at once, and the gate is held until its commit", async () => {
    const world = await installOrdered();
    const [client, other] = [await world.connect(), await world.connect()];
    await at(client, "read committed");
    await put(client, "x", 1);
    await client.query("set constraints all immediate");
    await put(client, "x", 2);
    const waiting = put(other, "x", 3);
    await waitsForLock(world, await pidOfIdle(world, "enqueue_v1"));
    await put(client, "x", 4);
    await client.query("commit");
    await waiting;
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "4 blocked", "3 blocked"]);
  });

  it("may roll back a savepoint in which it set all constraints immediate", async () => {
    const world = await installOrdered();
    const client = await world.connect();
    await at(client, "read committed");
    await put(client, "x", 1);
    await client.query("savepoint s");
    await client.query("set constraints all immediate");
    await put(client, "x", 2);
    await client.query("rollback to s");
    await put(client, "x", 3);
    await client.query("commit");
    expect(await line(world.sql, "x")).toEqual(["1 ready", "3 blocked"]);
  });

  it("reads and rolls back its own job without a place before it commits, and so does nobody else", async () => {
    const world = await installOrdered();
    const client = await world.connect();
    await at(client, "repeatable read");
    const id = await put(client, "x", 1);
    const place = async (db: typeof client) =>
      (await db.query<{ place: string | null }>("select place from pgclaim.job where id = $1", [id])).rows;
    expect(await place(client)).toEqual([{ place: null }]);
    expect(await place(world.sql)).toEqual([]);
    await client.query("commit");
    expect(the(await place(world.sql)).place).not.toBeNull();
  });
});

describe("a caller's own deferred constraint", () => {
  it("that fails at the commit takes the job with it", async () => {
    const world = await installOrdered();
    await world.sql.query(`
      create table parent (id integer primary key);
      create table child (parent integer references parent deferrable initially deferred)`);
    const client = await world.connect();
    await at(client, "read committed");
    await put(client, "x", 1);
    await client.query("insert into child values (1)");
    expect(await sqlState(client.query("commit"))).toBe("23503");
    await put(world.sql, "x", 2);
    expect(await line(world.sql, "x")).toEqual(["2 ready"]);
    await at(client, "read committed");
    await client.query("insert into child values (1)");
    await put(client, "x", 3);
    await client.query("insert into parent values (1)");
    await client.query("commit");
    expect(await line(world.sql, "x")).toEqual(["2 ready", "3 blocked"]);
  });

  it("may enqueue at the commit, before and after jobs of the transaction got their places", async () => {
    const world = await installOrdered();
    await world.sql.query(`
      create table sale (n integer);
      create function tell() returns trigger language plpgsql as $$
        begin
          perform pgclaim.enqueue('a', jsonb_build_object('k', 'x', 'n', new.n));
          return null;
        end $$;
      create constraint trigger tell after insert on sale deferrable initially deferred
        for each row execute function tell()`);
    for (const level of levels) {
      const client = await world.connect();
      await at(client, level);
      await client.query("insert into sale values (1)");
      await put(client, "x", 2);
      await client.query("insert into sale values (3)");
      await client.query("commit");
      await recheck(world.sql);
      expect(await line(world.sql, "x")).toEqual(["2 ready", "1 blocked", "3 blocked"]);
      await world.sql.query("delete from pgclaim.job");
    }
  });
});

describe("a key of many", () => {
  it("is one gate for all kinds that render it alike, and they stand in one line", async () => {
    const world = await installOrdered([keyed, { ...keyed, name: "b", priority: 0 }]);
    await put(world.sql, "x", 1);
    await enqueue(world.sql, 1, "b", { k: "x", n: 2 });
    await put(world.sql, "x", 3);
    expect(await line(world.sql, "x")).toEqual(["1 ready", "2 blocked", "3 blocked"]);
  });

  it("gets 40 crossed enqueuers at every level through without a deadlock, each in its own order", async () => {
    const world = await installOrdered();
    await endsWithin(
      20_000,
      Promise.all(
        Array.from({ length: 8 }, async (_, who) => {
          const client = await world.connect();
          for (let round = 0; round < 5; round++) {
            const n = (who * 5 + round) * 10;
            const keys = who % 2 === 0 ? ["x", "y", "z"] : ["z", "y", "x"];
            for (;;) {
              await at(client, levels[(who + round) % 3] ?? "serializable");
              try {
                for (const [i, k] of [...keys, ...keys].entries()) await put(client, k, n + i);
                await client.query("commit");
                break;
              } catch (error) {
                await client.query("rollback");
                // What a caller at SERIALIZABLE must expect; a deadlock is what nobody must.
                expect((error as { code?: string }).code).toBe("40001");
              }
            }
          }
        }),
      ),
      "the enqueuers",
    );
    await recheck(world.sql);
    for (const k of ["x", "y", "z"]) {
      const rows = await line(world.sql, k);
      expect(rows).toHaveLength(80);
      expect(rows.filter((row) => row.endsWith("ready"))).toHaveLength(1);
      const ns = rows.map((row) => Number.parseInt(row, 10));
      // The two of one transaction stand together and in order.
      for (let i = 0; i < ns.length; i += 2) expect(ns[i + 1]).toBe((ns[i] ?? 0) + 3);
    }
  });
});

/** The backend that is busy with a statement of this text. */
async function pidOfIdle(world: Awaited<ReturnType<typeof installOrdered>>, text: string): Promise<number> {
  for (;;) {
    const rows = await world.rows<{ pid: number }>(
      `select pid from pg_stat_activity
       where datname = current_database() and state = 'active' and pid <> pg_backend_pid() and query ilike '%' || $1 || '%'`,
      [text],
    );
    if (rows[0] !== undefined) return rows[0].pid;
  }
}
