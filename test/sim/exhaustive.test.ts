// Every order of a few actors' steps, with each fault at each step: the real engine on the real SQL, only the order is ours.
// CI plays a stated part; PGCLAIM_SIM=all plays everything and PGCLAIM_SIM_CAST=words some casts of it. A failure prints its
// history and the command that plays it again.

import { expect, it } from "vitest";
import { campaign, type Item, tallyLines } from "./campaign.ts";
import { casts } from "./casts.ts";
import { planner, playOne } from "./explore.ts";
import { Lane } from "./lane.ts";
import { readReplay } from "./plans.ts";

const mode = process.env.PGCLAIM_SIM;
if (mode !== undefined && mode !== "all") throw new Error(`PGCLAIM_SIM is unset or all, not ${mode}`);
const all = mode === "all";
const words = process.env.PGCLAIM_SIM_CAST;
const replay = process.env.PGCLAIM_SIM_REPLAY;
const lanes = Number(process.env.PGCLAIM_SIM_LANES ?? 2);

const items: Item[] = casts
  .filter(({ name }) => words === undefined || name.includes(words))
  .flatMap((cast) => {
    const faults = all || words !== undefined ? cast.faults : cast.ci;
    return faults === null ? [] : [{ cast, faults }];
  });

it.skipIf(replay !== undefined)(
  `every order of ${items.length} casts holds: ${all || words !== undefined ? "with all their faults" : "the part for CI"}`,
  async () => {
    const result = await campaign(items, lanes);
    console.log(tallyLines(result));
    expect(result.failures.length, result.failures.slice(0, 3).join("\n\n")).toBe(0);
    expect(result.total.histories).toBeGreaterThan(0);
    if (all || words !== undefined) return;
    // Floors under the part for CI, so that it cannot shrink unseen.
    expect(result.total.plans).toBe(81);
    expect(result.total.histories).toBeGreaterThanOrEqual(1_100);
    expect(result.total.waits).toBeGreaterThan(0);
    expect(result.total.killed).toBeGreaterThan(0);
  },
  all || words !== undefined ? 7_200_000 : 600_000,
);

it.skipIf(replay === undefined)("plays one history again", async () => {
  const { cast: name, plans, choices } = readReplay(replay ?? "");
  const cast = casts.find((one) => one.name === name);
  if (cast === undefined) throw new Error(`no cast is called ${name}`);
  const lane = await Lane.open();
  try {
    await lane.prepare(cast);
    const planned = planner(plans);
    const { stage, faults } = await playOne(lane, cast, {
      fault: planned.fault,
      pointless: () => false,
      choose: (steps) => steps[choices.shift() ?? 0] ?? null,
      ran: () => {},
    });
    console.log(stage.trace.join("\n"));
    expect(faults).toEqual([]);
    // A history without its faults is another one, and says nothing about this one.
    expect(planned.met(), "every fault of the plan was met").toBe(true);
    if (plans.length > 0) expect(stage.struck).toBeGreaterThan(0);
  } finally {
    await lane.close();
  }
});
