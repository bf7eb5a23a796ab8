// Enqueueing with an idempotency key: asked again it is answered the same and stores nothing, with other jobs it is refused, by two
// at a time it happens once. From SQL as any caller sends it, and through the claimer on both transports.

import { describe, expect, it } from "vitest";
import * as z from "zod";
import { defineJob } from "../../../src/index.ts";
import { roleOf } from "../../support/roles.ts";
import { setup, transports, type World } from "../../support/world.ts";
import { type Db, install, pidOf, sqlState, waitsForLock } from "../sql/support.ts";
import { ask } from "./acting.ts";

interface Answer {
  readonly type: string;
  readonly jobs?: readonly { readonly type: string; readonly id: string }[];
  readonly repeated?: boolean;
}

const one = { kind: "a", payload: { n: 1 } };

const once = (db: Db, more: Readonly<Record<string, unknown>> = {}): Promise<Answer> =>
  ask<Answer>(db, "enqueue_once_v1", { key: "k", digest: "d", jobs: [one], ...more });

const stored = (world: Pick<World, "value">): Promise<number> =>
  world.value("select count(*)::integer from pgclaim.job");
const kept = (world: Pick<World, "value">): Promise<number> =>
  world.value("select count(*)::integer from pgclaim.request_key");

describe("enqueue_once_v1", () => {
  it("answers the same again and enqueues nothing, even when the job is long gone", async () => {
    const world = await install();
    const first = await once(world.sql, { jobs: [one, { ...one, kind: "b" }] });
    expect(first).toEqual({
      type: "enqueued",
      jobs: [
        { type: "enqueued", id: expect.any(String) },
        { type: "enqueued", id: expect.any(String) },
      ],
      repeated: false,
    });
    await world.sql.query("delete from pgclaim.job");
    expect(await once(world.sql, { jobs: [one, { ...one, kind: "b" }] })).toEqual({ ...first, repeated: true });
    expect([await stored(world), await kept(world)]).toEqual([0, 1]);
  });

  it("refuses the key with another request, by a value", async () => {
    const world = await install();
    await once(world.sql);
    expect(await once(world.sql, { digest: "e" })).toEqual({ type: "conflict" });
    expect(await once(world.sql, { key: "l", digest: "e" })).toMatchObject({ type: "enqueued", repeated: false });
    expect(await stored(world)).toBe(2);
  });

  it("keeps no key for what is refused, so that the same key may be used when it is put right", async () => {
    const world = await install();
    expect(await once(world.sql, { jobs: [one, { kind: "nobody's", payload: {} }] })).toEqual({
      type: "refused",
      i: 1,
      reason: "unknown-kind",
      detail: "nobody's",
    });
    expect(await sqlState(once(world.sql, { jobs: [{ ...one, runAt: "soon" }] }))).toBe("PC003");
    expect([await stored(world), await kept(world)]).toEqual([0, 0]);
    expect(await once(world.sql)).toMatchObject({ type: "enqueued" });
  });

  it("by two at the same time enqueues once: the other waits and gets the same answer", async () => {
    const world = await install();
    const [first, second] = [await world.connect(), await world.connect()];
    await first.query("begin");
    const mine = await once(first);
    const pid = await pidOf(second);
    const theirs = once(second);
    await waitsForLock(world, pid);
    await first.query("commit");
    expect(await theirs).toEqual({ ...mine, repeated: true });
    expect(await stored(world)).toBe(1);
  });

  it("of which the first rolls back is the second's to do", async () => {
    const world = await install();
    const [first, second] = [await world.connect(), await world.connect()];
    await first.query("begin");
    await once(first);
    const pid = await pidOf(second);
    const theirs = once(second, { digest: "e" });
    await waitsForLock(world, pid);
    await first.query("rollback");
    expect(await theirs).toMatchObject({ type: "enqueued", repeated: false });
    expect(await stored(world)).toBe(1);
  });

  it("waits two seconds and not longer, and leaves the session's lock_timeout as it was", async () => {
    const world = await install();
    const first = await world.connect();
    await first.query("begin");
    await once(first);
    await world.sql.query("begin; set local lock_timeout = '7s'; set local statement_timeout = '10s'");
    expect(await once(world.sql)).toEqual({ type: "busy" });
    expect(await once(world.sql, { key: "another" })).toMatchObject({ type: "enqueued" });
    expect(await world.value("show lock_timeout")).toBe("7s");
    await world.sql.query("commit");
    await first.query("rollback");
  });

  it("by many at the same time enqueues once", async () => {
    const world = await install();
    const clients = await Promise.all(Array.from({ length: 30 }, () => world.connect()));
    const answers = await Promise.all(clients.map((client) => once(client)));
    expect(new Set(answers.map(({ jobs }) => jobs?.[0]?.id)).size).toBe(1);
    expect(answers.filter(({ repeated }) => repeated === false)).toHaveLength(1);
    expect(await stored(world)).toBe(1);
  });

  it("gives source and trace to jobs that have none themselves", async () => {
    const world = await install();
    const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203332-01";
    await once(world.sql, { source: "api", trace, jobs: [one, { ...one, source: "cli", trace: own }] });
    expect(await world.rows("select source, trace from pgclaim.job order by id")).toEqual([
      { source: "api", trace },
      { source: "cli", trace: own },
    ]);
  });

  it.each([
    ["no key", { key: null }],
    ["an empty key", { key: "" }],
    ["a key that is too long", { key: "x".repeat(256) }],
    ["no digest", { digest: null }],
    ["no jobs", { jobs: null }],
    ["jobs that are no list", { jobs: { kind: "a" } }],
  ])("refuses %s", async (_, more) => {
    const world = await install();
    expect(await sqlState(once(world.sql, more))).toBe("PC003");
  });

  it("refuses a snapshot that is older than its wait", async () => {
    const world = await install();
    await world.sql.query("begin isolation level repeatable read");
    expect(await sqlState(once(world.sql))).toBe("PC001");
  });

  it("forgets a key of a day ago, and not the same key of another role", async () => {
    const world = await install();
    await once(world.sql);
    await world.sql.query(
      `insert into pgclaim.request_key (role_name, key, digest, created_at)
       values ('somebody', 'k', 'd', now() - interval '2 days'), ('somebody', 'l', 'd', now() - interval '2 days')`,
    );
    expect(await world.value("select pgclaim.prune_records(100)")).toBe(2);
    expect(await once(world.sql)).toMatchObject({ type: "enqueued", repeated: true });
    expect(await stored(world)).toBe(1);
  });

  it("is for a role that may do nothing but enqueue, whose keys are nobody else's", async () => {
    const world = await install();
    const [mine, theirs] = [(await roleOf(world, "enqueue")).client, (await roleOf(world, "enqueue")).client];
    const first = await once(mine);
    expect(await once(theirs, { digest: "e" })).toMatchObject({ type: "enqueued", repeated: false });
    expect(await once(mine)).toEqual({ ...first, repeated: true });
    expect(await sqlState(mine.query("select from pgclaim.request_key"))).toBe("42501");
    expect(await sqlState((await roleOf(world, "operate")).client.query("select pgclaim.enqueue_once_v1('{}')"))).toBe(
      "42501",
    );
  });
});

describe.each(transports)("enqueueByKind with an idempotency key (%s)", (transport) => {
  const job = defineJob({ kind: "a", payload: z.object({ n: z.number(), m: z.number().optional() }), run() {} });
  const made = async () => {
    const world = await setup();
    return { world, claimer: world.claimer(transport, { jobs: [job] }) };
  };

  it("is once, also for a deployment that the database does not know yet, and whatever the order of the fields", async () => {
    const { world, claimer } = await made();
    const idempotencyKey = "order 42";
    const send = (payload: unknown) =>
      claimer.enqueueByKind([{ kind: "a", payload }], { idempotencyKey, source: "api" });
    const first = await send({ n: 1, m: 2 });
    expect(first).toEqual([{ type: "enqueued", id: expect.any(String) }]);
    expect(await send({ m: 2, n: 1 })).toEqual(first);
    expect(await world.rows("select source from pgclaim.job")).toEqual([{ source: "api" }]);
    await expect(send({ n: 2, m: 1 })).rejects.toMatchObject({
      code: "PGCLAIM_IDEMPOTENCY_CONFLICT",
      family: "usage",
      path: "idempotencyKey",
    });
    expect(await stored(world)).toBe(1);
  });

  it("says that the first call has not ended, and is done when it has", async () => {
    const { world, claimer } = await made();
    await claimer.register();
    const first = await world.connect();
    await first.query("begin");
    await once(first, { key: "slow", digest: "other" });
    const send = () => claimer.enqueueByKind([{ kind: "a", payload: { n: 1 } }], { idempotencyKey: "slow" });
    await expect(send()).rejects.toMatchObject({ code: "PGCLAIM_NO_ANSWER", retryable: true });
    await first.query("rollback");
    expect(await send()).toMatchObject([{ type: "enqueued" }]);
  });

  it.each([[""], ["x".repeat(256)], ["zwölf"], [7]])("refuses %j as a key", async (key) => {
    const { world, claimer } = await made();
    await expect(
      claimer.enqueueByKind([{ kind: "a", payload: { n: 1 } }], { idempotencyKey: key as string }),
    ).rejects.toMatchObject({ code: "PGCLAIM_INVALID_OPTION", path: "idempotencyKey" });
    expect(await stored(world)).toBe(0);
  });

  it("refuses a key beside a caller's own transaction, and options that are none", async () => {
    const { world, claimer } = await made();
    const requests = [{ kind: "a", payload: { n: 1 } }];
    await expect(claimer.enqueueByKind(requests, { idempotencyKey: "k", client: world.sql })).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_OPTION",
    });
    await expect(claimer.enqueueByKind(requests, { key: "k" } as object)).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_OPTION",
    });
    expect(await stored(world)).toBe(0);
  });
});
