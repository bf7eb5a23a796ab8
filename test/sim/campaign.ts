// Many explorations over several lanes, and what came of them.

import type { Cast } from "./casts.ts";
import { type Explored, explore } from "./explore.ts";
import { Lane } from "./lane.ts";
import { planName, plansOf, replayName } from "./plans.ts";
import type { Plan } from "./stage.ts";

export interface Tally {
  histories: number;
  seen: number;
  steps: number;
  waits: number;
  plans: number;
  killed: number;
  ms: number;
}

export interface Campaign {
  readonly tallies: ReadonlyMap<string, Tally>;
  readonly total: Tally;
  /** Each with its history and the command that plays it again. */
  readonly failures: readonly string[];
}

export interface Item {
  readonly cast: Cast;
  /** No fault, one, or a second one after each first one. */
  readonly faults: 0 | 1 | 2;
}

const none = (): Tally => ({ histories: 0, seen: 0, steps: 0, waits: 0, plans: 0, killed: 0, ms: 0 });

/** Second faults are worth their time where the first one left something under way. */
const leavesMore = ({ label, fault }: Plan): boolean =>
  fault !== "crash" && /^(fence|effect|finish|commit)/.test(label);

export async function campaign(items: readonly Item[], laneCount: number): Promise<Campaign> {
  const lanes = await Promise.all(Array.from({ length: laneCount }, () => Lane.open()));
  const tallies = new Map<string, Tally>();
  const total = none();
  const failures: string[] = [];
  const startedAt = performance.now();
  const queue: { readonly cast: Cast; readonly plans: readonly Plan[]; readonly left: number }[] = items.map(
    ({ cast, faults }) => ({ cast, plans: [], left: faults }),
  );
  let busy = 0;
  let idle: (() => void)[] = [];
  const work = async (lane: Lane): Promise<void> => {
    for (;;) {
      const item = queue.shift();
      if (item === undefined) {
        if (busy === 0) break;
        await new Promise<void>((resolve) => idle.push(resolve)); // whoever is busy may yet find more to do
        continue;
      }
      busy++;
      const { cast, plans, left } = item;
      const killed = lane.backends.killed;
      const itemStartedAt = performance.now();
      let found: Explored;
      try {
        found = await explore(lane, cast, plans, { until: Number.POSITIVE_INFINITY });
      } catch (error) {
        throw new Error(
          `${cast.name} | ${planName(plans)}: ${error instanceof Error ? error.message : String(error)}`,
          {
            cause: error,
          },
        );
      }
      if (process.env.PGCLAIM_SIM_VERBOSE !== undefined)
        process.stderr.write(
          `${cast.name} | ${planName(plans)}: ${found.histories} + ${found.seen}, ${found.failures.length} fail\n`,
        );
      for (const { faults, trace, choices } of found.failures) {
        failures.push(
          `${cast.name}, ${planName(plans)}:\n  ${faults.join("\n  ")}\n  history: ${trace.join(", ")}\n  again: PGCLAIM_SIM_REPLAY='${replayName(cast, plans, choices)}' npx vitest run test/sim/exhaustive.test.ts`,
        );
      }
      const tally = tallies.get(cast.name) ?? none();
      tallies.set(cast.name, tally);
      for (const sum of [tally, total]) {
        sum.histories += found.histories;
        sum.seen += found.seen;
        sum.steps += found.steps;
        sum.waits += found.waits;
        sum.plans++;
        sum.killed += lane.backends.killed - killed;
        sum.ms += performance.now() - itemStartedAt;
      }
      if (left > 0 && (plans[0] === undefined || leavesMore(plans[0]))) {
        const known = known0.get(cast.name) ?? new Set<string>();
        if (plans.length === 0) known0.set(cast.name, found.labels);
        // A second fault only where the first one has led: at steps that no history without it has.
        const labels =
          plans.length === 0 ? found.labels : new Set([...found.labels].filter((label) => !known.has(label)));
        for (const plan of plansOf(labels, "A")) queue.push({ cast, plans: [...plans, plan], left: left - 1 });
      }
      busy--;
      for (const wake of idle.splice(0)) wake();
    }
    for (const wake of idle.splice(0)) wake();
  };
  const known0 = new Map<string, Set<string>>();
  try {
    await Promise.all(lanes.map(work));
  } finally {
    idle = [];
    await Promise.all(lanes.map((lane) => lane.close()));
  }
  total.ms = performance.now() - startedAt;
  return { tallies, total, failures };
}

export function tallyLines({ tallies, total }: Campaign): string {
  const line = (name: string, t: Tally) =>
    `${name.padEnd(46)} ${String(t.plans).padStart(6)} ${String(t.histories).padStart(10)} ${String(t.seen).padStart(8)} ${String(t.steps).padStart(9)} ${String(t.waits).padStart(6)} ${String(t.killed).padStart(6)} ${(t.ms / 1_000).toFixed(1).padStart(7)}`;
  return [
    `${"cast".padEnd(46)}  plans  histories repeated     steps  waits  kills seconds`,
    ...[...tallies].map(([name, tally]) => line(name, tally)),
    line("all", total),
    `${(total.histories / (total.ms / 1_000)).toFixed(0)} histories a second`,
  ].join("\n");
}
