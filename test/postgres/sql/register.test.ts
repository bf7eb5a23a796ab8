// Kinds are registered by the digest of a deployment's definitions. Two deployments overlap at every rollout, so who
// comes second, comes back or comes at the same instant must never set a newer policy back.

import { describe, expect, it } from "vitest";
import { setup, type World } from "../../support/world.ts";
import {
  claimer,
  enqueueOne,
  type Installation,
  ids,
  job,
  type KindSpec,
  policy,
  register,
  sqlState,
  wake,
} from "./support.ts";

const kinds = async (world: Pick<Installation, "rows">) =>
  Object.fromEntries(
    (
      await world.rows<{ name: string; revision: number; max_attempts: number }>(
        "select name, revision, max_attempts from pgclaim.kind",
      )
    ).map((row) => [row.name, [row.revision, row.max_attempts]]),
  );

describe("register", () => {
  it("numbers deployments from 1, and answers the same number for the same digest", async () => {
    const world = await setup();
    expect(await register(world.sql, [{ name: "a" }], "one")).toBe(1);
    expect(await register(world.sql, [{ name: "a" }], "two")).toBe(2);
    expect(await register(world.sql, [{ name: "a" }], "one")).toBe(1);
    expect(await register(world.sql, [{ name: "a" }], "three")).toBe(3);
  });

  it("stores the whole policy", async () => {
    const world = await setup();
    const spec: Required<KindSpec> = {
      name: "all.of-it",
      queue: "q",
      priority: 0,
      targetLatencyMs: 1,
      timeoutMs: 2,
      maxAttempts: 3,
      maxCrashes: 4,
      backoff: "fixed",
      minBackoffMs: 5,
      maxBackoffMs: 6,
      alone: true,
    };
    await register(world.sql, [spec]);
    const [row] = await world.rows(`
      select name, queue, priority, target_latency_ms::int as "targetLatencyMs", timeout_ms::int as "timeoutMs",
        max_attempts as "maxAttempts", max_crashes as "maxCrashes", backoff, min_backoff_ms::int as "minBackoffMs",
        max_backoff_ms::int as "maxBackoffMs", alone
      from pgclaim.kind`);
    expect(row).toEqual(policy(spec));
  });

  it("never lets a digest seen before displace a newer one", async () => {
    const world = await setup();
    await register(world.sql, [{ name: "a", maxAttempts: 1 }], "old");
    await register(world.sql, [{ name: "a", maxAttempts: 2 }], "new");
    expect(await register(world.sql, [{ name: "a", maxAttempts: 1 }], "old")).toBe(1);
    expect(await kinds(world)).toEqual({ a: [2, 2] });
  });

  it("keeps the revision of a kind that did not change, so that both deployments claim it during a rollout", async () => {
    const world = await setup();
    await register(world.sql, [{ name: "same" }, { name: "changes", maxAttempts: 1 }, { name: "leaves" }], "one");
    await register(world.sql, [{ name: "same" }, { name: "changes", maxAttempts: 2 }, { name: "comes" }], "two");
    expect(await kinds(world)).toEqual({ same: [1, 5], changes: [2, 2], leaves: [1, 5], comes: [2, 5] });
  });

  it.each([
    ["queue", { queue: "other" }],
    ["priority", { priority: 1 }],
    ["targetLatencyMs", { targetLatencyMs: 1 }],
    ["timeoutMs", { timeoutMs: 1 }],
    ["maxAttempts", { maxAttempts: 1 }],
    ["maxCrashes", { maxCrashes: 1 }],
    ["backoff", { backoff: "fixed" as const }],
    ["minBackoffMs", { minBackoffMs: 1 }],
    ["maxBackoffMs", { maxBackoffMs: 9_999_999 }],
    ["alone", { alone: true }],
  ])("gives a kind a new revision when its %s changes", async (_, change) => {
    const world = await setup();
    await register(world.sql, [{ name: "a" }]);
    expect(await register(world.sql, [{ name: "a", ...change }])).toBe(2);
    expect((await kinds(world)).a?.[0]).toBe(2);
  });

  it("gives a job the revision of its kind at enqueue, and leaves jobs that are waiting alone", async () => {
    const world = await setup();
    await register(world.sql, [{ name: "a", priority: 2 }], "one");
    const before = await enqueueOne(world.sql);
    await register(world.sql, [{ name: "a", priority: 1, queue: "other" }], "two");
    const after = await enqueueOne(world.sql);
    expect(await job(world.sql, before)).toMatchObject({ revision: 1, priority: 2, queue: "default" });
    expect(await job(world.sql, after)).toMatchObject({ revision: 2, priority: 1, queue: "other" });
  });

  it("of no kinds is a deployment all the same", async () => {
    const world = await setup();
    expect(await register(world.sql, [], "empty")).toBe(1);
  });

  it.each([
    ["an unknown backoff", { backoff: "linear" }],
    ["a priority out of range", { priority: 4 }],
    ["no attempts", { maxAttempts: 0 }],
    ["a negative wait", { minBackoffMs: -1 }],
    ["a cap below the first wait", { minBackoffMs: 10, maxBackoffMs: 9 }],
    ["an empty name", { name: "" }],
    ["a name of 201 characters", { name: "x".repeat(201) }],
  ])("refuses %s, and then has registered nothing", async (_, change) => {
    const world = await setup();
    const request = { digest: "bad", kinds: [policy({ name: "good" }), { ...policy({ name: "bad" }), ...change }] };
    expect(await sqlState(world.sql.query("select pgclaim.register_v1($1)", [JSON.stringify(request)]))).toBe("23514");
    expect(await kinds(world)).toEqual({});
    expect(await world.value("select count(*)::int from pgclaim.revision")).toBe(0);
  });

  it("refuses any level but READ COMMITTED", async () => {
    const world = await setup();
    await world.sql.query("begin isolation level serializable");
    expect(await sqlState(register(world.sql, [{ name: "a" }]))).toBe("PC001");
  });

  it("waits for nobody but another registration", async () => {
    const world = await setup();
    await register(world.sql, [{ name: "a" }]);
    const enqueuer = await world.connect();
    await enqueuer.query("begin");
    await enqueueOne(enqueuer);
    await world.sql.query("set lock_timeout = '100ms'");
    expect(await register(world.sql, [{ name: "a", maxAttempts: 7 }])).toBe(2);
  });
});

describe("a rollback", () => {
  const use = async (world: Pick<World, "value">, n: number) =>
    world.value<Record<string, unknown>>("select pgclaim.use_revision_v1($1)", [n]);
  const old = {
    digest: "old",
    queues: ["default"],
    kinds: [policy({ name: "a", maxAttempts: 3 })],
    queueMax: { default: 3 },
  };
  const newer = { digest: "newer", queues: ["default"], kinds: [policy({ name: "a", maxAttempts: 9 })], queueMax: {} };
  const deploy = (world: Pick<World, "value">, request: object) =>
    world.value<number>("select pgclaim.register_v1($1)", [JSON.stringify(request)]);
  const rule = { name: "s", cron: "* * * * *", timeZone: "UTC", kind: "a", payload: {}, catchUp: "last" };

  it("is seen by the deployment that is back, and put right by use_revision_v1", async () => {
    const world = await setup();
    expect(await deploy(world, { ...old, schedules: [{ ...rule, definition: "1" }] })).toBe(1);
    expect(await wake(world.sql, { digest: "old" })).toMatchObject({ revision: 1, supersededBy: null });
    expect(await deploy(world, { ...newer, schedules: [] })).toBe(2);
    const id = await enqueueOne(world.sql);
    // The old one is back, under its digest: nothing changes by itself, but its wake says so.
    expect(await deploy(world, { ...old, schedules: [{ ...rule, definition: "1" }] })).toBe(1);
    expect(await wake(world.sql, { digest: "old" })).toMatchObject({ revision: 1, supersededBy: 2 });
    expect(await wake(world.sql, { digest: "newer" })).toMatchObject({ revision: 2, supersededBy: null });
    expect((await claimer(world, { revision: 1 })).jobs).toEqual([]);

    expect(await use(world, 1)).toEqual({ type: "used", revision: 3 });
    expect(await kinds(world)).toEqual({ a: [3, 3] });
    expect(await world.rows("select name, max from pgclaim.queue")).toEqual([{ name: "default", max: 3 }]);
    expect(await world.rows("select name, definition, revision from pgclaim.schedule")).toEqual([
      { name: "s", definition: "1", revision: 3 },
    ]);
    expect(await wake(world.sql, { digest: "old" })).toMatchObject({ revision: 3, supersededBy: null });
    expect(await wake(world.sql, { digest: "newer" })).toMatchObject({ revision: 2, supersededBy: 3 });
    const session = await claimer(world, { revision: 3 });
    expect(ids(session.jobs)).toEqual([id]);
    await session.client.query("rollback");
    expect(await world.rows("select n, digest, kinds from pgclaim.revisions_v1()")).toEqual([
      { n: 3, digest: "old", kinds: ["a"] },
      { n: 2, digest: "newer", kinds: ["a"] },
    ]);
    // And forward again.
    expect(await use(world, 2)).toEqual({ type: "used", revision: 4 });
    expect(await kinds(world)).toEqual({ a: [4, 9] });
    expect(await world.rows("select from pgclaim.schedule")).toEqual([]);
  });

  it("sees a schedule that the newer deployment changed or dropped, and no change of others", async () => {
    const world = await setup();
    await deploy(world, { ...old, schedules: [{ ...rule, definition: "1" }] });
    await deploy(world, { ...old, digest: "changed", schedules: [{ ...rule, definition: "2" }] });
    expect(await wake(world.sql, { digest: "old" })).toMatchObject({ supersededBy: 2 });
    await deploy(world, { digest: "elsewhere", queues: ["other"], kinds: [policy({ name: "b", queue: "other" })] });
    expect(await wake(world.sql, { digest: "changed" })).toMatchObject({ revision: 2, supersededBy: null });
    await deploy(world, { ...old, digest: "dropped", schedules: [] });
    expect(await wake(world.sql, { digest: "changed" })).toMatchObject({ revision: 2, supersededBy: 4 });
  });

  it("to what is in force, was never there, or was registered by an older release changes nothing", async () => {
    const world = await setup();
    await deploy(world, old);
    await deploy(world, newer);
    await world.sql.query("update pgclaim.revision set deployment = null where n = 1");
    expect(await use(world, 2)).toEqual({ type: "current" });
    expect(await use(world, 7)).toEqual({ type: "not-found" });
    expect(await use(world, 1)).toEqual({ type: "unknown" });
    expect(await wake(world.sql, { digest: "old" })).toMatchObject({ revision: 1, supersededBy: null });
    expect(await kinds(world)).toEqual({ a: [2, 9] });
  });
});

describe("the limits of queues", () => {
  it("that another deployment serves are left alone", async () => {
    const world = await setup();
    const deploy = (digest: string, queues: string[], queueMax: object) =>
      world.value("select pgclaim.register_v1($1)", [JSON.stringify({ digest, kinds: [], queues, queueMax })]);
    await deploy("one", ["one"], { one: 1 });
    await deploy("two", ["two"], { two: 2 });
    expect(await world.rows("select name, max from pgclaim.queue order by name")).toEqual([
      { name: "one", max: 1 },
      { name: "two", max: 2 },
    ]);
    await deploy("one without", ["one"], {});
    expect(await world.rows("select name, max from pgclaim.queue order by name")).toEqual([
      { name: "one", max: null },
      { name: "two", max: 2 },
    ]);
  });
});

describe("twenty at once", () => {
  it("with one digest get one revision", async () => {
    const world = await setup();
    const clients = await Promise.all(Array.from({ length: 20 }, () => world.connect()));
    const revisions = await Promise.all(clients.map((client) => register(client, [{ name: "a" }, { name: "b" }])));
    expect(new Set(revisions)).toEqual(new Set([1]));
    expect(await kinds(world)).toEqual({ a: [1, 5], b: [1, 5] });
  });

  it("with twenty digests get twenty revisions without a gap, and the newest policy stands", async () => {
    const world = await setup();
    const clients = await Promise.all(Array.from({ length: 20 }, () => world.connect()));
    const revisions = await Promise.all(
      clients.map((client, i) =>
        register(client, [{ name: "shared", maxAttempts: i + 1 }, { name: `own-${i}` }], `digest-${i}`),
      ),
    );
    expect([...revisions].sort((x, y) => x - y)).toEqual(Array.from({ length: 20 }, (_, i) => i + 1));
    const winner = revisions.indexOf(20);
    expect((await kinds(world)).shared).toEqual([20, winner + 1]);
    expect(await world.value("select count(distinct namespace)::int from pgclaim.kind")).toBe(21);
  });
});
