// Every history of a cast under a plan, once: depth first, from the beginning each time, with sleep sets (independence.ts).

import type { Cast } from "./casts.ts";
import { check } from "./check.ts";
import { type Footprint, independent } from "./independence.ts";
import type { Lane } from "./lane.ts";
import { type Director, type Fault, idOf, type Plan, type Stage, type Step } from "./stage.ts";

export interface Failure {
  readonly faults: readonly string[];
  readonly trace: readonly string[];
  /** Which branch was taken at each choice; with cast and plans it names the history. */
  readonly choices: readonly number[];
}

export interface Explored {
  /** Histories played to their end and checked. */
  histories: number;
  /** Prefixes left because what follows has been seen in another order. */
  seen: number;
  steps: number;
  /** Steps that had to wait for a lock. */
  waits: number;
  readonly labels: Set<string>;
  readonly failures: Failure[];
  /** Whether all histories were played. */
  complete: boolean;
}

interface Node {
  readonly options: readonly string[];
  readonly sleep: ReadonlyMap<string, Footprint>;
  readonly done: Map<string, Footprint>;
  chosen: string;
  footprint: Footprint | null;
}

/** One history under a director. Null where it was left as seen. */
export async function playOne(
  lane: Lane,
  cast: Cast,
  director: Director,
): Promise<{ readonly stage: Stage; readonly faults: string[] | null }> {
  const stage = await lane.reset(cast);
  const actors = lane.enter(stage, cast);
  const end = await stage.play(director);
  if (end === "seen") {
    await stage.abandon();
    return { stage, faults: null };
  }
  if (end === "deadlock") {
    const stuck = stage.stuck();
    await stage.abandon();
    return { stage, faults: [`deadlock of ${stuck.join(" and ")}`] };
  }
  return { stage, faults: await check(lane, stage, cast, actors) };
}

/** The plans' faults, each met at most once. */
export function planner(plans: readonly Plan[]): {
  fault(step: Step): Fault | null;
  /** Whether every one was met. */
  met(): boolean;
} {
  const met = new Set<Plan>();
  return {
    fault(step) {
      const plan = plans.find(({ actor, label }) => actor === step.actor.name && label === step.label);
      if (plan === undefined) return null;
      met.add(plan);
      return plan.fault;
    },
    met: () => met.size === plans.length,
  };
}

export async function explore(
  lane: Lane,
  cast: Cast,
  plans: readonly Plan[],
  bounds: { readonly until: number; readonly failures?: number },
): Promise<Explored> {
  await lane.prepare(cast);
  const total: Explored = {
    histories: 0,
    seen: 0,
    steps: 0,
    waits: 0,
    labels: new Set(),
    failures: [],
    complete: false,
  };
  const stack: Node[] = [];
  do {
    if (performance.now() > bounds.until) return total;
    const choices: number[] = [];
    let depth = 0;
    let sleep: ReadonlyMap<string, Footprint> = new Map();
    const faults = planner(plans);
    const director: Director = {
      fault: faults.fault,
      // Without its fault it is a history of the cast without this plan, which has been played.
      pointless: (stage) => !faults.met() && plans.some(({ actor }) => stage.isOver(actor)),
      choose(steps) {
        const options = steps.map(idOf);
        let node = stack[depth];
        if (node === undefined) {
          const chosen = options.find((option) => !sleep.has(option));
          if (chosen === undefined) return null;
          node = { options, sleep, done: new Map(), chosen, footprint: null };
          stack.push(node);
        } else if (node.options.join() !== options.join()) {
          throw new Error(`The same choices led elsewhere: ${node.options.join()} became ${options.join()}`);
        }
        const at = options.indexOf(node.chosen);
        choices.push(at);
        return steps[at] ?? null;
      },
      ran(footprint) {
        const node = stack[depth];
        if (node === undefined) throw new Error("a step nobody chose");
        node.footprint = footprint;
        sleep = new Map([...node.sleep, ...node.done].filter(([, other]) => independent(other, footprint)));
        depth++;
      },
    };
    const { stage, faults: found } = await playOne(lane, cast, director);
    total.steps += stage.steps;
    total.waits += stage.waits;
    for (const label of stage.labels) total.labels.add(label);
    if (found === null) total.seen++;
    else {
      total.histories++;
      if (found.length > 0) {
        total.failures.push({ faults: found, trace: [...stage.trace], choices });
        if (total.failures.length === bounds.failures) return total;
      }
    }
  } while (advance(stack));
  total.complete = true;
  return total;
}

/** Turns to the next branch. False when there is none. */
function advance(stack: Node[]): boolean {
  for (;;) {
    const node = stack.at(-1);
    if (node === undefined) return false;
    node.done.set(node.chosen, node.footprint ?? "global");
    const next = node.options.find((option) => !node.sleep.has(option) && !node.done.has(option));
    if (next !== undefined) {
      node.chosen = next;
      node.footprint = null;
      return true;
    }
    stack.pop();
  }
}
