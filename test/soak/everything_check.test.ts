// The soak's own check of limits must not cry wolf. Two jobs of one tick share a slot; while they run, one after the other,
// another slot becomes free, and somebody else has it by right.

import { expect, it } from "vitest";
import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import { invoke, rendezvous } from "../support/engine.ts";
import { setup } from "../support/world.ts";
import { takeSlot } from "./everything_jobs.ts";

it("two jobs of a tick that share a slot take one of the check's, also when another has become free meanwhile", async () => {
  const world = await setup();
  const meeting = rendezvous();
  const job = defineJob({
    kind: "line",
    payload: z.object({ n: z.number(), tenant: z.string() }),
    orderingKey: "line:{n}",
    limits: [{ name: "tenant:{tenant}", max: 2 }],
    async run(context) {
      await takeSlot(context, context.payload.tenant);
      await meeting.meet(context.payload.n);
    },
  });
  const claimer = world.claimer("pg", { jobs: [job], maxTicks: 1 });
  const of = (n: number) => ({ n, tenant: "t" });
  await claimer.enqueue(job, of(0));
  const before = invoke(claimer);
  await meeting.arrived(0);
  // Both fit into the one slot that is left, one after the other.
  await claimer.enqueueMany(job, [of(1), of(2)]);
  const sharing = invoke(claimer);
  await meeting.arrived(1);
  meeting.release(0);
  expect(await before).toMatchObject({ done: 1 });
  meeting.release(1);
  await meeting.arrived(2);
  await claimer.enqueue(job, of(3));
  const other = invoke(claimer);
  await meeting.arrived(3);
  meeting.release(3);
  expect(await other).toMatchObject({ done: 1 });
  meeting.release(2);
  expect(await sharing).toMatchObject({ done: 2 });
});
