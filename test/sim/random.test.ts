// Histories of large casts, each drawn from a seed. CI plays a few; PGCLAIM_SIM_HISTORIES=n plays n, PGCLAIM_SIM_SEED=s begins
// with seed s, and a failure prints the command that plays its one history again.

import { expect, it } from "vitest";
import { Lane } from "./lane.ts";
import { playSeed } from "./random.ts";

const given = process.env.PGCLAIM_SIM_SEED;
const first = Number(given ?? Math.floor(Math.random() * 2 ** 31));
const count = Number(process.env.PGCLAIM_SIM_HISTORIES ?? (given === undefined ? 60 : 1));
// Else the loop plays nothing, or not what was meant, and finds nothing wrong with it.
if (!Number.isSafeInteger(count) || count < 1)
  throw new Error(`PGCLAIM_SIM_HISTORIES is a whole number from 1, not ${process.env.PGCLAIM_SIM_HISTORIES}`);
if (!Number.isSafeInteger(first)) throw new Error(`PGCLAIM_SIM_SEED is a whole number, not ${given}`);

it(
  `${count} drawn histories hold, from seed ${first}`,
  async () => {
    const lane = await Lane.open(1);
    const startedAt = performance.now();
    const sum = { steps: 0, waits: 0, starts: 0, faults: 0 };
    const wrong: string[] = [];
    try {
      for (let seed = first; seed < first + count; seed++) {
        const { stage, faults } = await playSeed(lane, seed).catch((error: unknown) => {
          throw new Error(`PGCLAIM_SIM_SEED=${seed} npx vitest run test/sim/random.test.ts`, { cause: error });
        });
        sum.steps += stage.steps;
        sum.waits += stage.waits;
        sum.starts += stage.starts.length;
        sum.faults += stage.struck;
        if (given !== undefined && count === 1) console.log(stage.trace.join("\n"));
        if (faults.length > 0)
          wrong.push(
            `${faults.join("\n")}\n  history: ${stage.trace.join(", ")}\n  again: PGCLAIM_SIM_SEED=${seed} npx vitest run test/sim/random.test.ts`,
          );
      }
    } finally {
      await lane.close();
    }
    const seconds = (performance.now() - startedAt) / 1_000;
    console.log(`${count} histories in ${seconds.toFixed(1)} s: ${JSON.stringify(sum)}`);
    expect(wrong.length, wrong.slice(0, 3).join("\n\n")).toBe(0);
    expect(sum.starts).toBeGreaterThan(0);
    // One history may have neither; that none of so many has means that nothing was tried. In ten there is a wait, or less.
    if (count >= 60) expect(sum.faults).toBeGreaterThan(0);
    if (count >= 400) expect(sum.waits).toBeGreaterThan(0);
  },
  600_000 + count * 5_000,
);
