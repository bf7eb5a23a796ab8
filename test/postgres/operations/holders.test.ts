// Holders, by the lock table and nothing else: whoever holds a lock of ours is there with what it holds, whoever does not is not.

import { describe, expect, it } from "vitest";
import type { Holders } from "../../../src/inspection.ts";
import { all, claimer, crash, enqueue, enqueueOne, fence, finish, install, pidOf, reap } from "../sql/support.ts";
import { inspectorOf, KINDS, read } from "./support.ts";

describe("holders", () => {
  it("tells the jobs a backend runs and the names it holds, and forgets it when its transaction ends", async () => {
    const world = await install(KINDS);
    const [a] = await enqueue(world.sql, 2, "a");
    const ordered = await enqueueOne(world.sql, "ordered", { k: "7" });
    const named = await enqueueOne(world.sql, "named", { k: "7" });
    const session = await claimer(world, { kinds: ["ordered", "named"], tickSlots: 5 });
    await fence(world.sql, session);
    const early = await claimer(world, { kinds: ["a"], batch: 1 });
    const { holders, gone, capped } = await read<Holders>(world, "holders_v1", {});
    expect([capped, gone]).toEqual([false, []]);
    expect(holders.map((holder) => holder.pid)).toEqual([session.pid, early.pid]);
    const [first, second] = holders;
    expect(first).toMatchObject({
      tickId: session.tick,
      invocationId: null,
      state: "idle in transaction",
      unknownKeys: [],
    });
    expect(first?.jobs.map((job) => [job.id, job.kind, job.attempt])).toEqual([
      [ordered, "ordered", 1],
      [named, "named", 1],
    ]);
    expect(first?.names).toEqual([
      { class: "lock", name: "session:7", shared: false },
      { class: "order", name: "account:7", shared: false },
      { class: "tick", name: "a tick's slot", shared: false },
    ]);
    // Between claim and fence there is a lock, and no attempt yet.
    expect(second).toMatchObject({ jobs: [], tickId: null, names: [{ class: "job", name: `a ${a}`, shared: false }] });
    await finish(session.client, session.tick, all(session.jobs, "done"));
    await early.client.query("rollback");
    expect((await read<Holders>(world, "holders_v1", {})).holders).toEqual([]);
  });

  it("gives the exact start of a transaction, for who may see it, and hides a session of another role", async () => {
    const world = await install(KINDS);
    await enqueueOne(world.sql);
    const session = await claimer(world, { kinds: ["a"] });
    await fence(world.sql, session);
    const start = await world.value<string>(
      "select to_jsonb(xact_start at time zone 'UTC') #>> '{}' from pg_stat_activity where pid = $1",
      [session.pid],
    );
    const [seen] = (await read<Holders>(world, "holders_v1", {})).holders;
    expect(seen?.transactionStart).toBe(`${start}+00:00`);
    expect(seen?.transactionMs).toBeGreaterThanOrEqual(0);
    expect(seen?.user).toBe(await world.value("select current_user"));
    const [hidden] = (await (await inspectorOf(world)).holders()).holders;
    expect(hidden).toMatchObject({
      pid: session.pid,
      user: null,
      applicationName: null,
      state: null,
      stateMs: null,
      transactionMs: null,
      transactionStart: null,
      jobs: [{ kind: "a" }],
    });
    await finish(session.client, session.tick, all(session.jobs, "done"));
  });

  it("takes no interest in locks of others, and shows as unknown what a holder of ours holds beside them", async () => {
    const world = await install(KINDS);
    const stranger = await world.connect();
    await stranger.query("begin; select pg_advisory_xact_lock(42); select pg_advisory_xact_lock(1, 2)");
    expect((await read<Holders>(world, "holders_v1", {})).holders).toEqual([]);
    await enqueueOne(world.sql);
    const session = await claimer(world, { kinds: ["a"] });
    await fence(world.sql, session);
    await session.client.query(
      "select pg_advisory_xact_lock(171), pg_advisory_xact_lock(3, 4), pg_advisory_xact_lock_shared(-1)",
    );
    const { holders } = await read<Holders>(world, "holders_v1", {});
    expect(holders.map((holder) => [holder.pid, holder.unknownKeys])).toEqual([
      [session.pid, ["0xffffffffffffffff", "0xab"]],
    ]);
    expect(await pidOf(stranger)).not.toBe(session.pid);
    await finish(session.client, session.tick, all(session.jobs, "done"));
  });

  it("lists open attempts that nobody holds as gone, until the reaper has been", async () => {
    const world = await install(KINDS);
    const id = await enqueueOne(world.sql);
    await crash(world, { kinds: ["a"] });
    const inspector = await inspectorOf(world);
    expect(await inspector.holders()).toMatchObject({ holders: [], gone: [{ id, kind: "a", attempt: 1 }] });
    await reap(world.sql);
    expect((await inspector.holders()).gone).toEqual([]);
  });

  it("stops at a cap, the oldest transactions first", async () => {
    const world = await install(KINDS);
    await enqueue(world.sql, 3);
    const sessions = [];
    for (let i = 0; i < 3; i++) {
      const session = await claimer(world, { kinds: ["a"], batch: 1 });
      await fence(world.sql, session);
      sessions.push(session);
    }
    const { holders, capped } = await read<Holders>(world, "holders_v1", { cap: 2 });
    expect([holders.map((holder) => holder.pid), capped]).toEqual([sessions.slice(0, 2).map(({ pid }) => pid), true]);
    for (const session of sessions) await finish(session.client, session.tick, all(session.jobs, "done"));
  });
});
