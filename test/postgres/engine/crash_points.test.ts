// A process is killed at every point of a tick, while the wire holds it exactly there. Afterwards nothing is lost, nothing
// is applied twice, no lock stays, and what was held arrives late and changes nothing.

import { beforeEach, describe, expect, it } from "vitest";
import { defineJob } from "../../../src/index.ts";
import {
  attempts,
  drain,
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  upTo,
  watchUnhandled,
  wire,
} from "../../support/engine.ts";
import { eventually, gate } from "../../support/gate.ts";
import { startRunner } from "../../support/process.ts";
import { setup, transports } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

const terminate = "X\u0000\u0000\u0000\u0004";

const points = [
  { name: "before claim", on: "session", contains: "claim_v1", at: "before", left: "nothing" },
  { name: "after claim, before its answer", on: "session", contains: "claim_v1", at: "after", left: "nothing" },
  {
    name: "after claim, before the fence is written",
    on: "one-shot",
    contains: "fence_v1",
    at: "before",
    left: "a late fence",
  },
  {
    name: "after the fence is written, before anything has started",
    on: "one-shot",
    contains: "fence_v1",
    at: "after",
    left: "open",
  },
  { name: "before the first turn", on: "session", contains: "savepoint pgclaim_turn", at: "before", left: "open" },
  { name: "before a write", on: "session", contains: "insert into effect", at: "before", left: "open" },
  { name: "after a write", on: "session", contains: "insert into effect", at: "after", left: "open" },
  { name: "between two turns", on: "session", contains: "end_turn_v1", at: "after", left: "open" },
  { name: "after finish is sent, before it arrives", on: "session", contains: "finish_v1", at: "before", left: "open" },
  { name: "after COMMIT, before its answer", on: "session", contains: "finish_v1", at: "after", left: "committed" },
  { name: "after COMMIT, before close", on: "session", contains: terminate, at: "before", left: "committed" },
] as const;

describe.each(transports)("a process over %s", (transport) => {
  // Over pg the end of a one-shot says the same as the end of the session, so only the bridge can tell them apart.
  it.each(points.filter(({ contains }) => transport === "neon" || contains !== terminate))(
    "killed $name: the jobs are done once, by whoever comes next",
    async ({ on, contains, at, left }) => {
      const world = await setup();
      await effectTable(world);
      const job = defineJob({
        kind: "innocent",
        payload: numbered,
        async run({ payload: { n }, tx }) {
          await effect(tx, n);
        },
      });
      const net = await wire(world, transport);
      const healthy = world.claimer("pg", { jobs: [job] });
      await startRunner(world, transport, { url: net.url }).ended; // registers the kinds
      await healthy.enqueueMany(
        job,
        upTo(3).map((n) => ({ n })),
      );
      const letGo = gate();
      const arm = on === "session" ? net.breakSession : net.breakOneShot;
      const fault = arm({ contains, at, how: { hold: letGo.promise } });
      const runner = startRunner(world, transport, { url: net.url });
      await fault.fired;
      // The bridge strikes when the message has gone out, which is a moment before Postgres has done it.
      if (left === "committed") await eventually(async () => expect(await effects(world)).toEqual([1, 2, 3]));
      runner.kill();
      expect(await runner.ended).toBeNull();
      if (left !== "committed") {
        // A proxy tells the server of the death, and the locks go with the transaction: no lease, no waiting.
        letGo.open();
        await eventually(async () => expect(await world.locks()).toBe(0), 5_000);
        await drain(world, healthy, [1, 2, 3]);
        const numbers = (await attempts(world)).map((line) => line.replace(/^\d+:/, ""));
        if (left === "nothing") expect(new Set(numbers)).toEqual(new Set(["1 done"]));
        // The bridge drops what a dead client had sent; plain TCP delivers it, and then the finish commits.
        const arrived = transport === "pg" && contains === "finish_v1";
        if (left === "open") expect(new Set(numbers)).toEqual(new Set(arrived ? ["1 done"] : ["1 crashed", "2 done"]));
      } else {
        letGo.open();
        expect(await invoke(healthy)).toMatchObject({ claimed: 0, crashed: 0 });
        expect(await attempts(world)).toEqual(["1:1 done", "2:1 done", "3:1 done"]);
      }
      await eventually(async () => expect(await world.locks()).toBe(0));
      await expectWhole(world, { effects: [1, 2, 3] });
    },
  );
});
