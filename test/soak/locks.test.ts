// The lock soak, small; locks.ts has the command line for a long one.

import { expect, it } from "vitest";
import { setup } from "../support/world.ts";
import { complaints, soakLocks } from "./locks.ts";

it("64 invocations on overlapping sets of 2 to 5 of 20 names: nobody meets on an exclusive one, all are done, no deadlock", {
  timeout: 120_000,
}, async () => {
  const world = await setup();
  const seed = Number(process.env.PGCLAIM_SEED ?? Math.floor(Math.random() * 1e9));
  const report = await soakLocks({ url: world.url, seconds: 6, seed, processes: 4, invocations: 64 });
  console.info(JSON.stringify(report));
  expect(complaints(report), `node test/soak/locks.ts --seed ${seed}`).toEqual([]);
  expect(report.jobs).toBeGreaterThanOrEqual(60);
  expect(report.skipped.busy ?? 0).toBeGreaterThan(0);
});
