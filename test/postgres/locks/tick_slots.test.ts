// At most n ticks at once in an installation: a slot is a lock that the claim takes first, and that ends with its transaction.

import { beforeEach, describe, expect, it } from "vitest";
import * as z from "zod";
import { defineJob } from "../../../src/index.ts";
import { soakLocks } from "../../soak/locks.ts";
import { invoke, rendezvous, watchUnhandled, workTick } from "../../support/engine.ts";
import { setup, transports } from "../../support/world.ts";
import { kill, pidOf, the } from "../sql/support.ts";
import { add, claim, heldKeys, install, keys, type LockSession } from "./support.ts";

beforeEach(() => watchUnhandled());

describe("with n tick slots", () => {
  it("n sessions claim, the next one holds nothing and is told; a slot ends with its transaction, however that ends", async () => {
    const world = await install();
    await add(
      world.sql,
      "plain",
      Array.from({ length: 9 }, () => ({})),
    );
    const sessions: LockSession[] = [];
    for (let i = 0; i < 3; i++) sessions.push(await claim(world, { tickSlots: 3, batch: 1 }));
    expect(sessions.map(({ jobs }) => jobs.length)).toEqual([1, 1, 1]);
    const slots = await keys(
      world,
      [0, 1, 2].map((slot) => ["tick", `#${slot}`] as const),
    );
    expect((await heldKeys(world)).filter((key) => slots.includes(key))).toEqual(slots);
    for (const end of ["commit", "rollback", "death"]) {
      const refused = await claim(world, { tickSlots: 3 });
      expect(refused).toMatchObject({ jobs: [], skips: [], skipped: { "tick-slots": 1 } });
      expect(await heldKeys(world, refused.client)).toEqual([]);
      await refused.client.query("rollback");
      const { client } = the(sessions);
      if (end === "death") await kill(world, await pidOf(client));
      else await client.query(end);
      sessions.shift();
      const next = await claim(world, { tickSlots: 3, batch: 1 });
      expect(next.jobs, end).toHaveLength(1);
      sessions.push(next);
    }
  });

  it("a claim that finds nothing gives its slot back with its rollback, and no limit means no slot", async () => {
    const world = await install();
    for (let i = 0; i < 3; i++) {
      const session = await claim(world, { tickSlots: 1 });
      expect(session).toMatchObject({ jobs: [], skipped: {} });
      expect(await heldKeys(world)).toHaveLength(1);
      await session.client.query("rollback");
    }
    await claim(world);
    expect(await heldKeys(world)).toEqual([]);
  });
});

describe.each(transports)("an invocation over %s that gets no slot", (transport) => {
  const payload = z.object({ n: z.number() });

  it("tries again as for busy jobs, and gets its work done when the other tick ends", async () => {
    const world = await setup();
    const meeting = rendezvous();
    const job = defineJob({ kind: "k", payload, run: ({ payload: { n } }) => meeting.meet(n) });
    const claimer = world.claimer(transport, { jobs: [job], batch: 1, maxTicks: 5, tickSlots: 1 });
    await claimer.enqueueMany(job, [{ n: 1 }, { n: 2 }]);
    const holder = invoke(claimer);
    await meeting.arrived(1);
    meeting.release(2);
    // The first pause of the other one is where the slot becomes free.
    const pauses: number[] = [];
    const other = world.claimer(transport, {
      jobs: [job],
      batch: 1,
      maxTicks: 5,
      tickSlots: 1,
      clock: {
        now: () => performance.now(),
        date: () => new Date(),
        random: () => 0.5,
        timer(ms, callback) {
          // A pause before another try: 100 ms doubled, jitter drawn as one half.
          if ([100, 200, 400, 800].includes(ms)) {
            pauses.push(ms);
            if (pauses.length === 1) meeting.release(1);
          }
          const handle = setTimeout(callback, ms);
          return () => clearTimeout(handle);
        },
      },
    });
    const report = await invoke(other);
    const first = await holder;
    expect(report.error).toBeUndefined();
    expect(report.skipped["tick-slots"]).toBeGreaterThanOrEqual(1);
    expect(report.ticks[0]).toMatchObject({ fate: "empty", claimed: 0, skipped: { "tick-slots": 1 } });
    expect(pauses[0]).toBe(100);
    expect(first.done + report.done).toBe(2);
  });

  it("ends cleanly when it never gets one: a few tries, no error, nothing held", async () => {
    const world = await setup();
    const meeting = rendezvous();
    const job = defineJob({ kind: "k", payload, run: ({ payload: { n } }) => meeting.meet(n) });
    const claimer = world.claimer(transport, { jobs: [job], batch: 1, maxTicks: 1, tickSlots: 1 });
    await claimer.enqueueMany(job, [{ n: 1 }, { n: 2 }]);
    const holder = invoke(claimer);
    await meeting.arrived(1);
    const report = await invoke(world.claimer(transport, { jobs: [job], batch: 1, tickSlots: 1 }));
    expect(report).toMatchObject({ ended: "empty", claimed: 0, done: 0, skipped: { "tick-slots": 5 } });
    expect(report.error).toBeUndefined();
    meeting.release(1);
    expect(workTick(await holder)).toMatchObject({ done: 1 });
    expect(await world.locks()).toBe(0);
  });
});

it("several processes with 16 invocations and 3 slots never run more than 3 ticks at once, and do run 3", {
  timeout: 120_000,
}, async () => {
  const world = await setup();
  const seed = Number(process.env.PGCLAIM_SEED ?? Math.floor(Math.random() * 1e9));
  // One job a tick, so jobs at once are ticks at once.
  const report = await soakLocks({
    url: world.url,
    seconds: 4,
    seed,
    processes: 2,
    invocations: 16,
    batch: 1,
    tickSlots: 3,
  });
  expect(report.errors).toEqual([]);
  expect(report).toMatchObject({ unfinished: 0, violations: 0, deadlocks: 0 });
  expect(report.most).toBe(3);
  expect(report.skipped["tick-slots"] ?? 0).toBeGreaterThan(0);
});
