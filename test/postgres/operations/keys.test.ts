// Ordering keys and dead letters: what is halted, by whom, what waits behind, and what the errors have in common.

import { describe, expect, it } from "vitest";
import type { KeyRow, Page } from "../../../src/inspection.ts";
import { all, claimer, enqueue, enqueueOne, fence, finish, type Installation, install } from "../sql/support.ts";
import { inspectorOf, KINDS, list, read, walk } from "./support.ts";

async function die(world: Installation, error = "boom", kinds: readonly string[] = ["ordered"]): Promise<string[]> {
  const session = await claimer(world, { kinds });
  await fence(world.sql, session);
  await finish(session.client, session.tick, all(session.jobs, "dead", { error }));
  return session.jobs.map(({ id }) => id);
}

describe("keys", () => {
  it("lists the halted ones first, with the head that halts them and what would run next", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const head = await enqueueOne(world.sql, "ordered", { k: "z" });
    await die(world, "503 from upstream");
    const behind = await enqueue(world.sql, 3, "ordered", { k: "z" });
    const waiting = await enqueue(world.sql, 2, "ordered", { k: "a" });
    await enqueueOne(world.sql, "ordered", { k: "alone" });
    await world.sql.query("update pgclaim.job set deadline_at = now() - interval '1 minute' where id = $1", [
      behind[1],
    ]);
    const { items } = await inspector.keys({});
    expect(items).toMatchObject([
      {
        orderingKey: "account:z",
        gate: "order:account:z",
        kind: "ordered",
        halted: true,
        head,
        headState: "dead",
        headError: "503 from upstream",
        next: behind[0],
        behind: { n: 3, capped: false },
      },
      {
        orderingKey: "account:a",
        halted: false,
        haltedAt: null,
        head: waiting[0],
        headState: "ready",
        next: waiting[1],
        behind: { n: 1 },
      },
    ]);
    expect(items[0]?.haltedAt).not.toBeNull();
    expect(items[0]?.worstSlackMs).toBeLessThanOrEqual(-60_000);
    expect((await inspector.keys({ halted: true })).items.map((k) => k.orderingKey)).toEqual(["account:z"]);
    expect((await inspector.keys({ halted: false })).items.map((k) => k.orderingKey)).toEqual(["account:a"]);
    // What is said to run next does.
    await world.sql.query("select pgclaim.skip_v1($1)", [head]);
    const session = await claimer(world, { kinds: ["ordered"], batch: 9 });
    expect(session.jobs.map(({ id }) => id)).toContain(behind[0]);
    await session.client.query("rollback");
  });

  it("gives each key once over its pages, halted and waiting", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const names = Array.from({ length: 12 }, (_, i) => `k${i}`);
    for (const k of names.slice(0, 6)) await enqueueOne(world.sql, "ordered", { k });
    await die(world);
    for (const k of names) await enqueue(world.sql, 2, "ordered", { k });
    const whole = (await inspector.keys({ limit: 200 })).items.map((key) => key.orderingKey);
    const sorted = (keys: string[]) => keys.map((k) => `account:${k}`).sort();
    expect(whole).toEqual([...sorted(names.slice(0, 6)), ...sorted(names.slice(6))]);
    for (const limit of [1, 5, 6, 12]) {
      const paged = await walk((cursor) => inspector.keys({ limit, ...(cursor ? { cursor } : {}) }));
      expect(
        paged.map((key) => key.orderingKey),
        String(limit),
      ).toEqual(whole);
    }
    const halted = await walk((cursor) => inspector.keys({ limit: 4, halted: true, ...(cursor ? { cursor } : {}) }));
    expect(halted.map((key) => key.orderingKey)).toEqual(whole.slice(0, 6));
    await expect(inspector.keys({ cursor: "x" })).rejects.toMatchObject({ code: "PGCLAIM_INVALID_REQUEST" });
  });

  it("shows a head that runs as running", async () => {
    const world = await install(KINDS);
    const [head] = await enqueue(world.sql, 2, "ordered", { k: "1" });
    const session = await claimer(world, { kinds: ["ordered"], batch: 1 });
    await fence(world.sql, session);
    expect((await read<Page<KeyRow>>(world, "keys_v1", {})).items).toMatchObject([{ head, headState: "running" }]);
  });
});

describe("deadGroups", () => {
  it("groups by kind, reason and what errors have in common, and each group's fingerprint finds its jobs", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const ids: string[] = [];
    for (const [i, error] of [
      "503 after 12 ms",
      "503 after 9 ms\nstack 1",
      "no account 0b9d6c1e-1111-4222-8333-444455556666",
    ].entries()) {
      await enqueueOne(world.sql, "a", { i });
      ids.push(...(await die(world, error, ["a"])));
    }
    await world.sql.query("update pgclaim.job set dead_at = dead_at - interval '2 hours' where id = $1", [ids[0]]);
    const { groups, searched, cut } = await inspector.deadGroups();
    expect([searched, cut]).toEqual([3, false]);
    expect(groups).toMatchObject([
      {
        kind: "a",
        reason: "handler",
        example: "503 after 9 ms\nstack 1",
        counts: { h1: 1, h3: 2, h24: 2, d3: 2, d7: 2, all: 2 },
      },
      { kind: "a", reason: "handler", counts: { h1: 1, all: 1 } },
    ]);
    expect(groups[0]?.fingerprint).toMatch(/^[0-9a-f]{12}$/);
    const found = await list(inspector, { state: "dead", fingerprint: groups[0]?.fingerprint ?? "" });
    expect(found).toEqual([ids[1], ids[0]]);
  });

  it("says where it looked at the newest only", async () => {
    const world = await install(KINDS);
    await enqueue(world.sql, 3, "a");
    await die(world, "boom", ["a"]);
    expect(await read(world, "dead_groups_v1", { look: 2 })).toMatchObject({
      searched: 2,
      cut: true,
      groups: [{ counts: { all: 2 } }],
    });
  });
});
