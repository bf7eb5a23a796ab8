// Where the jobs of one busy name wait: outside the claim index, but for as many as may run. What waits there costs the
// others nothing; cost is counted in buffers, because time depends on who else uses the machine.

import { describe, expect, it } from "vitest";
import type { World } from "../../support/world.ts";
import { all, begin, finish, the, wake } from "../sql/support.ts";
import { add, addOne, claim, claimText, hold, install, type LockKind, type LockSession, stateOf } from "./support.ts";

const KINDS: readonly LockKind[] = [
  { name: "x", locks: ["tenant:{t}"], minBackoffMs: 3_600_000 },
  { name: "l", limitNames: ["tenant:{t}"], limitMaxes: [3] },
];
const options = { kinds: ["x", "l"] };

async function many(world: World, kind: string, count: number, payload: unknown): Promise<void> {
  await world.sql.query(
    `select count(*) from pgclaim.enqueue_v1((
       select jsonb_build_object('jobs', jsonb_agg(jsonb_build_object('kind', $1::text, 'payload', $2::jsonb)))
       from generate_series(1, $3)))`,
    [kind, JSON.stringify(payload), count],
  );
}

const ready = (world: World): Promise<number> =>
  world.value("select count(*)::integer from pgclaim.job where state = 'ready'");

async function end(
  world: World,
  session: LockSession,
  outcome: "done" | "failed" | "snoozed",
  rest: { readonly inMs?: number } = {},
): Promise<void> {
  const jobs = session.jobs.map(({ id, n }) => ({ id, n }));
  await world.sql.query("select from pgclaim.fence_v1($1)", [
    JSON.stringify({ tick: session.tick, quarantined: false, jobs }),
  ]);
  await finish(session.client, session.tick, all(jobs, outcome, rest));
}

/** Buffers a claim touches, planning left out: the second run in a session whose plans are made. */
async function claimBuffers(world: World): Promise<number> {
  const client = await world.connect();
  let buffers = Number.NaN;
  for (let i = 0; i < 3; i++) {
    await begin(client);
    const { rows } = await client.query<{ "QUERY PLAN": readonly [{ readonly Plan: Record<string, number> }] }>(
      `explain (analyze, buffers, format json) ${claimText(options)}`,
    );
    const plan = the(the(rows)["QUERY PLAN"]).Plan;
    buffers = Number(plan["Shared Hit Blocks"]) + Number(plan["Shared Read Blocks"]);
    await client.query("rollback");
  }
  await client.end();
  return buffers;
}

describe("jobs that wait for one busy tenant", () => {
  it("20,000 of them ahead of free ones: the free ones are claimed, at no more than twice the cost of 1,000", {
    timeout: 180_000,
  }, async () => {
    const cost: number[] = [];
    for (const waiting of [1_000, 20_000]) {
      const world = await install(KINDS);
      await hold(world, "tenant:busy");
      await many(world, "x", waiting, { t: "busy" });
      const free = await add(
        world.sql,
        "x",
        Array.from({ length: 10 }, (_, i) => ({ t: `free${i}` })),
      );
      await world.sql.query("vacuum analyze pgclaim.job");
      const session = await claim(world, options);
      expect(session.jobs.map(({ id }) => id)).toEqual(free);
      expect(session.skipped).toEqual({ busy: 2 });
      await session.client.query("rollback");
      cost.push(await claimBuffers(world));
    }
    const [few = Number.NaN, lots = Number.NaN] = cost;
    console.info(`claim of 10 free jobs: ${few} buffers behind 1,000 that wait, ${lots} behind 20,000`);
    expect(few).toBeGreaterThan(10);
    expect(lots).toBeLessThanOrEqual(2 * few);
  });

  it.each([
    ["l", 3],
    ["x", 2],
  ])(
    "of kind %s stand in the index %i at a time, and each that ends lets one more in, by rank",
    async (kind, width) => {
      const world = await install(KINDS);
      const ids = await add(
        world.sql,
        kind,
        Array.from({ length: 9 }, () => ({ t: "a" })),
      );
      expect(await ready(world)).toBe(width);
      // The last of them has a deadline before all the others, so it is the next one to be let in.
      const urgent = await addOne(
        world.sql,
        kind,
        { t: "a" },
        { deadlineAt: new Date(Date.now() + 60_000).toISOString() },
      );
      for (let left = 10; left > 0; left--) {
        expect(await ready(world)).toBe(Math.min(width, left));
        const session = await claim(world, { ...options, batch: 1 });
        expect(session.jobs).toHaveLength(1);
        if (left === 9) expect(the(session.jobs).id).toBe(urgent);
        await end(world, session, "done");
      }
      expect(ids).toHaveLength(9);
      expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(0);
    },
  );

  it("by many enqueuers at once are let in up to the width and no further", async () => {
    const world = await install(KINDS);
    await Promise.all(
      Array.from({ length: 8 }, async () => {
        const client = await world.connect();
        for (let i = 0; i < 5; i++) await add(client, "l", [{ t: "a" }, { t: "b" }]);
      }),
    );
    expect(
      await world.rows(
        "select gate, count(*)::integer as n from pgclaim.job where state = 'ready' group by 1 order by 1",
      ),
    ).toEqual([
      { gate: "limit:default:tenant:a", n: 3 },
      { gate: "limit:default:tenant:b", n: 3 },
    ]);
  });
});

describe("a name that jobs of several queues share", () => {
  it.each(["a paused one", "one that nobody serves"])("lets those of the others pass those of %s", async (which) => {
    const world = await install([
      { name: "off", queue: "off", limitNames: ["tenant:{t}"], limitMaxes: [2] },
      { name: "on", limitNames: ["tenant:{t}"], limitMaxes: [2] },
      { name: "offx", queue: "off", locks: ["name:{t}"] },
      { name: "onx", locks: ["name:{t}"] },
    ]);
    if (which === "a paused one") await world.sql.query("select pgclaim.pause_queue_v1('off')");
    for (const kind of ["off", "offx"]) {
      await add(
        world.sql,
        kind,
        Array.from({ length: 9 }, () => ({ t: "a" })),
      );
    }
    const wanted = [await addOne(world.sql, "on", { t: "a" }), await addOne(world.sql, "onx", { t: "a" })];
    const session = await claim(world, {
      kinds: ["on", "onx"],
      queues: which === "a paused one" ? ["off", "default"] : ["default"],
    });
    expect(session.jobs.map(({ id }) => id).sort()).toEqual(wanted.sort());
    await end(world, session, "done");
  });

  it("is not mistaken for another one where the queue's name has a colon", async () => {
    const world = await install([
      { name: "off", queue: "q:x", locks: ["y"] },
      { name: "on", queue: "q", locks: ["x:y"] },
      { name: "offl", queue: "q:x", limitNames: ["y"], limitMaxes: [2] },
      { name: "onl", queue: "q", limitNames: ["x:y"], limitMaxes: [2] },
    ]);
    await world.sql.query("select pgclaim.pause_queue_v1('q:x')");
    for (const kind of ["off", "offl"]) await add(world.sql, kind, [{}, {}, {}]);
    const wanted = [await addOne(world.sql, "on", {}), await addOne(world.sql, "onl", {})];
    const session = await claim(world, { kinds: ["on", "onl"], queues: ["q", "q:x"] });
    expect(session.jobs.map(({ id }) => id).sort()).toEqual(wanted.sort());
    // Of a queue with a colon as many stand in the index as the limit allows.
    expect(await ready(world)).toBe(2 + 2 + 1 + 1);
    await end(world, session, "done");
  });

  it("is one limit for all of them all the same", async () => {
    const world = await install([
      { name: "one", queue: "one", limitNames: ["tenant:{t}"], limitMaxes: [2] },
      { name: "two", queue: "two", limitNames: ["tenant:{t}"], limitMaxes: [2] },
    ]);
    for (const kind of ["one", "two"]) {
      await add(
        world.sql,
        kind,
        Array.from({ length: 4 }, () => ({ t: "a" })),
      );
    }
    const sessions = await Promise.all(
      ["one", "two"].map((queue) => claim(world, { kinds: ["one", "two"], queues: [queue], batch: 1 })),
    );
    expect(sessions.map(({ jobs }) => jobs.length)).toEqual([1, 1]);
    const more = await claim(world, { kinds: ["one", "two"], queues: ["one", "two"] });
    expect(more.jobs).toEqual([]);
    expect(Object.keys(more.skipped)).toEqual(["limit-full"]);
  });
});

describe("jobs that waited at a gate before there was one in each queue", () => {
  it("stand in the claim index in no larger a number than their limit allows", async () => {
    const world = await install(KINDS);
    await many(world, "l", 20, { t: "a" });
    await many(world, "x", 20, { t: "a" });
    // As the migrations before 0003 and their functions left them.
    await world.sql.query("update pgclaim.job set gate = regexp_replace(gate, ':default:', ':')");
    for (const gate of ["limit:tenant:a", "lock:tenant:a"]) await world.sql.query("select pgclaim.refill($1)", [gate]);
    expect(await ready(world)).toBe(3 + 2);
  });
});

describe("a job of a gate that is due later", () => {
  it("goes behind its gate when its time comes, not straight into the index", async () => {
    const world = await install(KINDS);
    const runAt = new Date(Date.now() + 3_600_000).toISOString();
    await add(
      world.sql,
      "x",
      Array.from({ length: 6 }, () => ({ t: "a" })),
      { runAt },
    );
    await add(world.sql, "x", [{ t: "a" }, { t: "a" }, { t: "a" }]);
    expect(await ready(world)).toBe(2);
    await world.sql.query("update pgclaim.job set run_at = clock_timestamp() where state = 'scheduled'");
    expect(await wake(world.sql, { gateSlice: 200, cancelSlice: 200 })).toMatchObject({ faults: [] });
    expect(await world.rows("select state, count(*)::integer as n from pgclaim.job group by 1 order by 1")).toEqual([
      { state: "blocked", n: 7 },
      { state: "ready", n: 2 },
    ]);
  });

  it("is let in at once when its gate is empty", async () => {
    const world = await install(KINDS);
    const runAt = new Date(Date.now() + 3_600_000).toISOString();
    const [id] = await add(world.sql, "x", [{ t: "a" }], { runAt });
    await world.sql.query("update pgclaim.job set run_at = clock_timestamp()");
    await wake(world.sql, { gateSlice: 200, cancelSlice: 200 });
    expect(await stateOf(world, String(id))).toBe("ready");
  });

  it.each(["failed", "snoozed"] as const)("and %s gives its place to the next one meanwhile", async (outcome) => {
    const world = await install(KINDS);
    const ids = await add(world.sql, "x", [{ t: "a" }, { t: "a" }, { t: "a" }, { t: "a" }]);
    const states = async () => Promise.all(ids.map((id) => stateOf(world, id)));
    expect(await states()).toEqual(["ready", "ready", "blocked", "blocked"]);
    await end(world, await claim(world, { ...options, batch: 1 }), outcome, { inMs: 3_600_000 });
    expect(await states()).toEqual(["scheduled", "ready", "ready", "blocked"]);
    await world.sql.query("update pgclaim.job set run_at = clock_timestamp() where state = 'scheduled'");
    await wake(world.sql, { gateSlice: 200, cancelSlice: 200 });
    expect(await ready(world)).toBe(2);
    expect((await states())[0]).toBe("blocked");
  });

  it("and is due again at once stands behind its gate too", async () => {
    const world = await install(KINDS);
    await add(
      world.sql,
      "x",
      Array.from({ length: 5 }, () => ({ t: "a" })),
    );
    for (let i = 0; i < 6; i++) {
      await end(world, await claim(world, { ...options, batch: 2 }), "snoozed", { inMs: 0 });
      expect(await ready(world)).toBe(2);
    }
  });
});
