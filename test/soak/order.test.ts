// The soak of ordering keys, small: long enough that every kind of fault of it happens. order.ts is the long one.

import { expect, it } from "vitest";
import { setup } from "../support/world.ts";
import { mustHappen, soak } from "./order.ts";

const seconds = Number(process.env.PGCLAIM_SOAK_SECONDS ?? 6);
const seed = Number(process.env.PGCLAIM_SOAK_SEED ?? Math.floor(Math.random() * 2 ** 31));

it(
  `keeps every key in order under load, failures and kills: ${seconds} s, seed ${seed}`,
  async () => {
    const world = await setup();
    const { did, faults } = await soak({ url: world.url, seconds, seed });
    console.log(JSON.stringify(did));
    expect(faults, `PGCLAIM_SOAK_SEED=${seed}`).toEqual([]);
    // A load that did nothing proves nothing.
    for (const what of mustHappen) expect(did[what], what).toBeGreaterThan(0);
  },
  (seconds + 90) * 1_000,
);
