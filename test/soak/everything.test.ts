// The soak of everything, small. everything.ts has the command line for a long one; so has
//   PGCLAIM_SOAK_SECONDS=1800 npm test -- test/soak/everything.test.ts

import { expect, it } from "vitest";
import { kindsOfBlows, replay, soakEverything } from "./everything.ts";

const seconds = Number(process.env.PGCLAIM_SOAK_SECONDS ?? 25);
const seed = Number(process.env.PGCLAIM_SOAK_SEED ?? Math.floor(Math.random() * 2 ** 31));

it(
  `loses, doubles and inverts nothing while everything is taken away: ${seconds} s, seed ${seed}`,
  async () => {
    const { did, faults } = await soakEverything({ seconds, seed });
    console.log(JSON.stringify(did));
    expect(faults, replay({ seconds, seed })).toEqual([]);
    // A load that did nothing proves nothing.
    for (const what of ["jobs done", "ticks committed", "ticks lost", "attempts crashed", "attempts interrupted"])
      expect(did[what], what).toBeGreaterThan(0);
    expect(Object.keys(did).filter((what) => what.startsWith("blow: "))).toHaveLength(kindsOfBlows);
  },
  (seconds + 300) * 1_000,
);
