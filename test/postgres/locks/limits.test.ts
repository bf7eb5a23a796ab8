// At most n of a name: n slots, each of them a lock, so that a crash can never leak one.

import { describe, expect, it } from "vitest";
import type { World } from "../../support/world.ts";
import { all, finish, kill, pidOf, the } from "../sql/support.ts";
import {
  add,
  addOne,
  claim,
  heldKeys,
  hold,
  install,
  keys,
  type LockKind,
  type LockSession,
  registerKinds,
  stateOf,
} from "./support.ts";

const kindsOf = (max: number): LockKind[] => [
  { name: "limit", limitNames: ["tenant:{t}"], limitMaxes: [max] },
  { name: "plain" },
];
const options = { kinds: ["limit", "plain"] };

async function end(world: World, session: LockSession): Promise<void> {
  const jobs = session.jobs.map(({ id, n }) => ({ id, n }));
  await world.sql.query("select from pgclaim.fence_v1($1)", [
    JSON.stringify({ tick: session.tick, quarantined: false, jobs }),
  ]);
  await finish(session.client, session.tick, all(jobs, "done"));
}

describe("a limit of n", () => {
  it("has n slots: n sessions get one each, the next is told the name, and each slot given back lets one in", async () => {
    const world = await install(kindsOf(3));
    await add(
      world.sql,
      "limit",
      Array.from({ length: 8 }, () => ({ t: "a" })),
    );
    const sessions: LockSession[] = [];
    for (let i = 0; i < 3; i++) sessions.push(await claim(world, { ...options, batch: 1 }));
    expect(sessions.map(({ jobs }) => jobs.length)).toEqual([1, 1, 1]);
    const slots = await keys(
      world,
      [0, 1, 2].map((slot) => ["limit", `tenant:a#${slot}`] as const),
    );
    expect((await heldKeys(world)).filter((key) => slots.includes(key))).toEqual(slots);
    const refused = await claim(world, options);
    expect(refused.jobs).toEqual([]);
    // Its own width in the index: the three that run are busy, nobody else stands there.
    expect(refused.skipped).toEqual({ "limit-full": 3 });
    expect(new Set(refused.skips.map(({ lock }) => lock))).toEqual(new Set(["tenant:a"]));
    expect(await heldKeys(world, refused.client)).toEqual([]);
    await refused.client.query("rollback");
    await end(world, the(sessions));
    const next = await claim(world, options);
    expect(next.jobs).toHaveLength(1);
    expect(next.jobs[0]?.after).toEqual([]);
  });

  it("is never exceeded by 12 sessions that claim and let go at will, and its slots are all used", async () => {
    const world = await install(kindsOf(3));
    await add(
      world.sql,
      "limit",
      Array.from({ length: 60 }, () => ({ t: "a" })),
    );
    const slots = await keys(
      world,
      [0, 1, 2].map((slot) => ["limit", `tenant:a#${slot}`] as const),
    );
    const used = new Set<string>();
    let most = 0;
    let running = 0;
    let done = 0;
    await Promise.all(
      Array.from({ length: 12 }, async () => {
        const client = await world.connect();
        while (done < 60) {
          const session = await claim(world, { ...options, batch: 1 }, client);
          if (session.jobs.length === 0) {
            await client.query("rollback");
            continue;
          }
          running++;
          most = Math.max(most, running);
          for (const key of await heldKeys(world, client)) if (slots.includes(key)) used.add(key);
          running--;
          done++;
          await end(world, session);
        }
      }),
    );
    expect(done).toBe(60);
    expect(most).toBeLessThanOrEqual(3);
    expect(most).toBeGreaterThan(1);
    expect([...used].sort()).toEqual(slots);
  });

  it("starts at a slot drawn: a single session uses each of four in 60 draws", async () => {
    const world = await install(kindsOf(4));
    await addOne(world.sql, "limit", { t: "a" });
    const drawn = new Set<string>();
    const client = await world.connect();
    for (let i = 0; i < 60; i++) {
      const session = await claim(world, options, client);
      expect(session.jobs).toHaveLength(1);
      for (const key of await heldKeys(world, client)) drawn.add(key);
      await client.query("rollback");
    }
    expect(drawn.size).toBe(5); // four slots and the job
  });

  it("loses no slot to a holder that is killed", async () => {
    const world = await install(kindsOf(1));
    await add(world.sql, "limit", [{ t: "a" }, { t: "a" }]);
    for (let i = 0; i < 3; i++) {
      const session = await claim(world, { ...options, batch: 1 });
      expect(session.jobs).toHaveLength(1);
      expect((await claim(world, options)).skipped).toEqual({ "limit-full": 1 });
      await kill(world, await pidOf(session.client));
      expect(await world.locks()).toBe(0);
    }
  });

  it("holds inside a tick as well: 7 jobs on 3 slots form three lines of which nobody is longer than three", async () => {
    const world = await install(kindsOf(3));
    await add(
      world.sql,
      "limit",
      Array.from({ length: 7 }, () => ({ t: "a" })),
    );
    // As when several gates' widths add up: all seven stand in the index.
    await world.sql.query("update pgclaim.job set state = 'ready'");
    const session = await claim(world, options);
    expect(session.jobs).toHaveLength(7);
    const place = new Map<string, number>();
    const lines: number[] = [];
    for (const { id, after } of session.jobs) {
      const depth = Math.max(0, ...after.map((before) => place.get(before) ?? Number.NaN)) + 1;
      place.set(id, depth);
      lines.push(depth);
    }
    // First row of three, second row of three, one more: slots are reused evenly.
    expect(lines).toEqual([1, 1, 1, 2, 2, 2, 3]);
    expect((await claim(world, options)).jobs).toEqual([]);
    expect((await heldKeys(world, session.client)).length).toBe(7 + 3);
  });

  it("counts other ticks inside a tick: with one slot taken elsewhere, two lines remain", async () => {
    const world = await install(kindsOf(3));
    await add(
      world.sql,
      "limit",
      Array.from({ length: 6 }, () => ({ t: "a" })),
    );
    await world.sql.query("update pgclaim.job set state = 'ready'");
    await hold(world, "tenant:a#1", { cls: "limit" });
    const session = await claim(world, options);
    expect(session.jobs.filter(({ after }) => after.length === 0)).toHaveLength(2);
    expect(session.jobs).toHaveLength(6);
  });

  it("that comes out as one name twice counts once, with the smaller number", async () => {
    const world = await install([{ name: "limit", limitNames: ["{a}", "{b}"], limitMaxes: [5, 2] }]);
    await add(
      world.sql,
      "limit",
      Array.from({ length: 5 }, () => ({ a: "n", b: "n" })),
    );
    const held = [];
    for (let i = 0; i < 4; i++) held.push((await claim(world, { kinds: ["limit"], batch: 1 })).jobs.length);
    expect(held).toEqual([1, 1, 0, 0]);
  });
});

describe("max", () => {
  it("of a kind and of a queue are limits beside the others, and each of them holds", async () => {
    const world = await install(
      [
        { name: "a", queue: "q", limitNames: ["@kind/a"], limitMaxes: [2] },
        { name: "b", queue: "q" },
      ],
      { q: 3 },
    );
    await add(
      world.sql,
      "a",
      Array.from({ length: 4 }, () => ({})),
    );
    await add(
      world.sql,
      "b",
      Array.from({ length: 4 }, () => ({})),
    );
    const order: string[] = [];
    for (;;) {
      const session = await claim(world, { queues: ["q"], kinds: ["a", "b"], batch: 1 });
      if (session.jobs.length === 0) {
        expect(Object.keys(session.skipped)).toEqual(["limit-full"]);
        break;
      }
      order.push(await world.value("select kind from pgclaim.job where id = $1", [the(session.jobs).id]));
    }
    expect(order.sort()).toEqual(["a", "a", "b"]);
  });

  it("of a kind does not make all of it wait where one busy name waits", async () => {
    const world = await install([{ name: "m", locks: ["tenant:{t}"], limitNames: ["@kind/m"], limitMaxes: [3] }]);
    await hold(world, "tenant:busy");
    await add(
      world.sql,
      "m",
      Array.from({ length: 50 }, () => ({ t: "busy" })),
    );
    const free = await addOne(world.sql, "m", { t: "free" });
    const session = await claim(world, { kinds: ["m"] });
    expect(session.jobs.map(({ id }) => id)).toEqual([free]);
    expect(session.skipped).toEqual({ busy: 2 });
  });

  it("of a constant name neither", async () => {
    const world = await install([
      { name: "m", locks: ["box:{t}"], limitNames: ["smtp", "tenant:{t}"], limitMaxes: [3, 2] },
    ]);
    await addOne(world.sql, "m", { t: "x" });
    expect(await world.rows("select gate, gate_width from pgclaim.job")).toEqual([
      { gate: "limit:default:tenant:x", gate_width: 2 },
    ]);
  });
});

describe("a redeploy", () => {
  const running = async (world: World): Promise<number> => {
    const sessions: LockSession[] = [];
    for (;;) {
      const session = await claim(world, { ...options, queues: ["default"], batch: 1 });
      if (session.jobs.length === 0) {
        await session.client.end();
        break;
      }
      sessions.push(session);
    }
    for (const session of sessions) await session.client.query("rollback");
    return sessions.length;
  };

  it("that lowers a max holds for those that wait already", async () => {
    const world = await install(kindsOf(5));
    await add(
      world.sql,
      "limit",
      Array.from({ length: 10 }, () => ({ t: "a" })),
    );
    expect(await running(world)).toBe(5);
    await registerKinds(world.sql, kindsOf(2));
    expect(await running(world)).toBe(2);
  });

  it("that raises a max lets those in that wait already, with the next refill of their gate", async () => {
    const world = await install(kindsOf(1));
    await add(
      world.sql,
      "limit",
      Array.from({ length: 10 }, () => ({ t: "a" })),
    );
    await registerKinds(world.sql, kindsOf(4));
    expect(await running(world)).toBe(1);
    await end(world, await claim(world, { ...options, batch: 1 }));
    expect(await running(world)).toBe(4);
  });

  it("that rewords a template keeps the max of the names that were rendered from the old one", async () => {
    const world = await install(kindsOf(2));
    await add(
      world.sql,
      "limit",
      Array.from({ length: 6 }, () => ({ t: "a", region: "r" })),
    );
    await registerKinds(world.sql, [
      { name: "limit", limitNames: ["region:{region}"], limitMaxes: [5] },
      { name: "plain" },
    ]);
    expect(await running(world)).toBe(2);
  });

  it("changes or takes away the max of a queue", async () => {
    const kinds: LockKind[] = [{ name: "plain" }];
    const world = await install(kinds, { default: 3 });
    const ids = await add(
      world.sql,
      "plain",
      Array.from({ length: 9 }, () => ({})),
    );
    expect(await running(world)).toBe(3);
    await registerKinds(world.sql, kinds, { default: 1 });
    expect(await running(world)).toBe(1);
    await registerKinds(world.sql, kinds, {});
    expect(await running(world)).toBe(3); // those in the index
    await end(world, await claim(world, { ...options, batch: 1 }));
    // The gate has no width any more.
    expect(await running(world)).toBe(8);
    expect(await stateOf(world, String(ids[8]))).toBe("ready");
  });
});
