// A job's lock set: all of it or nothing, in one order, never waited for. Exclusion is shown with sessions that hold, try and
// let go, and with the lock table as another session sees it.

import { describe, expect, it } from "vitest";
import * as z from "zod";
import { createApp } from "../../../src/http/app.ts";
import { defineJob } from "../../../src/index.ts";
import { setup, type World } from "../../support/world.ts";
import { all, begin, finish, the } from "../sql/support.ts";
import { add, addOne, claim, claimIn, heldKeys, hold, install, keys } from "./support.ts";

describe("a lock set", () => {
  it("whose second name is busy gives the first one back at once, while its transaction goes on", async () => {
    const world = await install();
    const id = await addOne(world.sql, "x2", { a: "a", b: "b" });
    const holder = await hold(world, "b");
    const before = await heldKeys(world);
    const session = await claim(world);
    expect(session.jobs).toEqual([]);
    expect(session.skips).toEqual([{ id, reason: "busy", lock: "b", starved: false }]);
    expect(await heldKeys(world)).toEqual(before);
    expect(await heldKeys(world, session.client)).toEqual([]);
    // Another session gets it, although the transaction that tried is still open.
    await hold(world, "a");
    await holder.query("rollback");
  });

  it("is given back as well when the job's own lock is busy, or the row no longer qualifies", async () => {
    const world = await install();
    const id = await addOne(world.sql, "x2", { a: "a", b: "b" });
    const other = await world.connect();
    await other.query("begin");
    await other.query("select pgclaim.try_job_lock('x2', $1)", [id]);
    const session = await claim(world);
    expect(session.skips).toEqual([{ id, reason: "busy", lock: null, starved: false }]);
    expect(await heldKeys(world, session.client)).toEqual([]);
    await other.query("rollback");
    await world.sql.query(
      "insert into pgclaim.attempt (job_id, n, tick, quarantined) values ($1, 1, gen_random_uuid(), false)",
      [id],
    );
    const again = await claim(world);
    expect(again.skipped).toEqual({ "open-attempt": 1 });
    expect(await heldKeys(world, again.client)).toEqual([]);
  });

  it("is exactly what the session holds after claim: names in their modes, slots and the job", async () => {
    const world = await install();
    const [two] = await add(world.sql, "x2", [{ a: "n1", b: "n2" }]);
    const [both] = await add(world.sql, "both", [{ a: "n3", b: "n4" }]);
    const [plain] = await add(world.sql, "plain", [{}]);
    await addOne(world.sql, "x2", { a: "n9", b: "busy" });
    await hold(world, "busy");
    const session = await claim(world);
    expect(session.jobs.map(({ id }) => id)).toEqual([two, both, plain]);
    expect(await heldKeys(world, session.client)).toEqual(
      await keys(
        world,
        [
          ["lock", "n1"],
          ["lock", "n2"],
          ["lock", "n3"],
          ["lock", "n4", "shared"],
        ],
        [two, both, plain].map(String),
      ),
    );
    await session.client.query("rollback");
    expect(await heldKeys(world, session.client)).toEqual([]);
  });

  it("that overlaps another one wins or loses: of two sessions at a barrier one always has it, in 60 draws", async () => {
    const world = await install();
    const sessions = [await world.connect(), await world.connect()];
    const wins = [0, 0];
    for (let draw = 0; draw < 60; draw++) {
      // Declared the other way round, so an order that followed the declaration would cross.
      const ids = [
        await addOne(world.sql, "x2", { a: `p${draw}`, b: `q${draw}` }),
        await addOne(world.sql, "x2", { a: `q${draw}`, b: `p${draw}` }),
      ];
      for (const session of sessions) await begin(session);
      const claims = await Promise.all(sessions.map((session) => claimIn(session, { batch: 1 })));
      const winners = claims.flatMap(({ jobs }, i) => (jobs.length > 0 ? [i] : []));
      expect(winners, `draw ${draw}`).toHaveLength(1);
      wins[the(winners)] = (wins[the(winners)] ?? 0) + 1;
      for (const session of sessions) await session.query("rollback");
      await world.sql.query("delete from pgclaim.job where id = any ($1)", [ids]);
    }
    expect(wins[0]).toBeGreaterThan(0);
    expect(wins[1]).toBeGreaterThan(0);
  });

  it("is skipped by name once and without another try in the same claim", async () => {
    const world = await install([...Array.from({ length: 5 }, (_, i) => ({ name: `k${i}`, sharedLocks: ["{a}"] }))]);
    const ids = [];
    for (let i = 0; i < 5; i++) ids.push(await addOne(world.sql, `k${i}`, { a: "busy" }));
    await hold(world, "busy");
    const session = await claim(world, { kinds: ["k0", "k1", "k2", "k3", "k4"] });
    expect(session.skips).toEqual(ids.map((id) => ({ id, reason: "busy", lock: "busy", starved: false })));
  });
});

describe("modes", () => {
  it.each([
    ["s1", "s1", true],
    ["s1", "x1", false],
    ["x1", "s1", false],
    ["x1", "x1", false],
    ["both", "s1", true],
    ["both", "x1", false],
  ])("%s held, %s wanted: %s", async (first, second, together) => {
    const world = await install();
    // `both` shares b: give it the name there.
    const held = await addOne(world.sql, first, first === "both" ? { a: "own", b: "n" } : { a: "n" });
    const one = await claim(world);
    expect(one.jobs.map(({ id }) => id)).toEqual([held]);
    const wanted = await addOne(world.sql, second, { a: "n" });
    const two = await claim(world);
    if (together) expect(two.jobs.map(({ id }) => id)).toEqual([wanted]);
    else expect(two.skips).toContainEqual({ id: wanted, reason: "busy", lock: "n", starved: false });
    await one.client.query("rollback");
    await two.client.query("rollback");
    const three = await claim(world);
    expect(three.jobs.map(({ id }) => id).sort()).toEqual([held, wanted].sort());
  });

  it("a name wanted both ways is wanted exclusively", async () => {
    const world = await install();
    const id = await addOne(world.sql, "both", { a: "n", b: "n" });
    const sharer = await hold(world, "n", { shared: true });
    expect((await claim(world)).skips).toEqual([{ id, reason: "busy", lock: "n", starved: false }]);
    await sharer.query("rollback");
    const session = await claim(world);
    expect(await heldKeys(world, session.client)).toEqual(await keys(world, [["lock", "n"]], [id]));
  });

  it("an exclusive waiter that was refused is not overtaken by sharers behind it in that claim", async () => {
    const world = await install();
    await hold(world, "n", { shared: true });
    const ids = [await addOne(world.sql, "x1", { a: "n" }), await addOne(world.sql, "s1", { a: "n" })];
    expect((await claim(world)).skips.map(({ id }) => id)).toEqual(ids);
  });
});

describe("two jobs of one tick that share a name", () => {
  const lines = async (world: World) => {
    const session = await claim(world);
    return session.jobs.map((line) => [line.id, [...line.after].sort()] as const);
  };

  it("are both claimed, the later one after the earlier", async () => {
    const world = await install();
    const [a, b] = await add(world.sql, "x1", [{ a: "n" }, { a: "n" }]);
    expect(await lines(world)).toEqual([
      [a, []],
      [b, [a]],
    ]);
  });

  it("share it at once when both share, and wait for sharers or for an exclusive one otherwise", async () => {
    const world = await install();
    const [s1, s2] = await add(world.sql, "s1", [{ a: "n" }, { a: "n" }]);
    const x = await addOne(world.sql, "x1", { a: "n" });
    const s3 = await addOne(world.sql, "s1", { a: "n" });
    const s4 = await addOne(world.sql, "s1", { a: "n" });
    expect(await lines(world)).toEqual([
      [s1, []],
      [s2, []],
      [x, [s1, s2]],
      [s3, [x]],
      [s4, [x]],
    ]);
    // The session holds it both ways, so neither a sharer nor an exclusive one gets in from outside.
    expect((await claim(world)).jobs).toEqual([]);
  });

  it("stay apart from a third one whose other name is busy, and from those behind it", async () => {
    const world = await install();
    await hold(world, "z");
    const [a] = await add(world.sql, "x1", [{ a: "n" }]);
    const c = await addOne(world.sql, "x2", { a: "n", b: "z" });
    const b = await addOne(world.sql, "x1", { a: "n" });
    const session = await claim(world);
    expect(session.jobs.map(({ id }) => id)).toEqual([a]); // b waits behind the gate, whose width is 2
    expect(session.skips).toEqual([{ id: c, reason: "busy", lock: "z", starved: false }]);
    await finish(session.client, session.tick, all(await fenced(world, session.tick, session.jobs), "done"));
    const next = await claim(world);
    expect(next.jobs.map(({ id }) => id)).toEqual([b]);
  });
});

async function fenced(world: World, tick: string, jobs: readonly { readonly id: string; readonly n: number }[]) {
  await world.sql.query("select from pgclaim.fence_v1($1)", [JSON.stringify({ tick, quarantined: false, jobs })]);
  return jobs;
}

describe("names", () => {
  it("of locks, limits, ordering keys, gates, slots and jobs never meet, though they read the same", async () => {
    const world = await install([
      { name: "lock", locks: ["{a}"] },
      { name: "limit", limitNames: ["{a}"], limitMaxes: [1] },
      { name: "order", orderingKey: "{a}" },
    ]);
    const ids = [];
    for (const kind of ["lock", "limit", "order"]) ids.push(await addOne(world.sql, kind, { a: "same" }));
    // Each in a session of its own: nobody finds another's name taken.
    for (const [i, kind] of ["lock", "limit", "order"].entries()) {
      const session = await claim(world, { kinds: [kind] });
      expect(session.jobs.map(({ id }) => id)).toEqual([ids[i]]);
    }
    const classes = ["lock", "limit", "order", "gate", "tick", "internal"];
    const all = await keys(
      world,
      classes.map((cls) => [cls, "same"] as const),
    );
    expect(new Set(all).size).toBe(classes.length);
  });

  it("found busy in one class do not hold up another that reads the same", async () => {
    const world = await install([
      { name: "lock", locks: ["{a}"] },
      { name: "order", orderingKey: "{a}" },
      { name: "limit", limitNames: ["{a}"], limitMaxes: [1] },
    ]);
    const kinds = ["order", "lock", "limit"];
    const holders = [await hold(world, "n", { cls: "order" })];
    const order = await addOne(world.sql, "order", { a: "n" });
    const lock = await addOne(world.sql, "lock", { a: "n" });
    const first = await claim(world, { kinds });
    expect(first.skips).toEqual([{ id: order, reason: "busy", lock: "n", starved: false }]);
    expect(first.jobs.map(({ id }) => id)).toEqual([lock]);
    await first.client.query("rollback");
    holders.push(await hold(world, "n"));
    const limit = await addOne(world.sql, "limit", { a: "n" });
    const second = await claim(world, { kinds });
    expect(second.jobs.map(({ id }) => id)).toEqual([limit]);
    for (const holder of holders) await holder.query("rollback");
  });

  it("of two installations in one database are different keys", async () => {
    const world = await install();
    const seeds = [1n, 2n, -1n];
    const found = new Set<string>();
    for (const seed of seeds)
      for (const cls of ["lock", "order", "limit", "gate"])
        found.add(await world.value("select pgclaim.name_key($1, 'n', $2)::text", [cls, String(seed)]));
    expect(found.size).toBe(12);
  });

  it("that collide cost one needless skip, or one needless wait inside a tick, and nothing else", async () => {
    const world = await install();
    // Every name is one key.
    await world.sql.query(`create or replace function pgclaim.name_key(class text, name text, seed bigint) returns bigint
      language sql immutable parallel safe as $$ select 7::bigint $$`);
    const [a] = await add(world.sql, "x1", [{ a: "one" }]);
    const b = await addOne(world.sql, "x2", { a: "two", b: "three" });
    const inside = await claim(world);
    expect(inside.jobs.map(({ id }) => id)).toEqual([a, b]);
    expect(inside.jobs[1]?.after).toContain(a);
    const outside = await claim(world);
    expect(outside.jobs).toEqual([]);
    await finish(inside.client, inside.tick, all(await fenced(world, inside.tick, inside.jobs), "done"));
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(0);
  });
});

describe("a job from anywhere", () => {
  it("gets the same locks, limits, gate and order: TypeScript, plain SQL and HTTP", async () => {
    const world = await setup();
    const job = defineJob({
      kind: "report",
      payload: z.object({ account: z.string(), region: z.object({ id: z.number() }), urgent: z.boolean() }),
      orderingKey: "account:{account}",
      locks: ["session:{account}", "a:{region.id}"],
      sharedLocks: ["urgent:{urgent}"],
      limits: [{ name: "region:{region.id}", max: 3 }],
      max: 7,
      run() {},
    });
    const claimer = world.claimer("pg", { jobs: [job], queueMax: { default: 9 } });
    const payload = { account: "a:1", region: { id: 5 }, urgent: true };
    await claimer.register();
    await claimer.enqueue(job, payload);
    // 5.0 is the number that JavaScript writes as 5.
    await world.sql.query(
      `select pgclaim.enqueue('report', '{"account": "a:1", "region": {"id": 5.0}, "urgent": true}'::jsonb)`,
    );
    const app = createApp({ claimer: () => claimer, secrets: { enqueue: "a-secret-of-32-characters-or-more!" } });
    const response = await app.request("/api/jobs", {
      method: "POST",
      headers: { "content-type": "application/json", authorization: "Bearer a-secret-of-32-characters-or-more!" },
      body: JSON.stringify({ kind: "report", payload }),
    });
    expect(response.status).toBeLessThan(300);
    const rows = await world.rows(
      `select ordering_key, locks, shared_locks, limit_names, limit_maxes, gate, gate_width from pgclaim.job order by id`,
    );
    expect(rows).toHaveLength(3);
    for (const row of rows) {
      expect(row).toEqual({
        ordering_key: "account:a%3A1",
        locks: ["a:5", "session:a%3A1"],
        shared_locks: ["urgent:true"],
        limit_names: ["region:5", "@kind/report", "@queue/default"],
        limit_maxes: [3, 7, 9],
        gate: "order:account:a%3A1",
        gate_width: 1,
      });
    }
  });
});
