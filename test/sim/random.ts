// Large casts, drawn: more invocations, keys, names, limits, enqueuers, failures, and several faults in one history. The seed
// decides everything, so a seed is a history.

import { draws } from "../../scripts/world/draws.ts";
import type { Cast, JobSpec, KindSpec } from "./casts.ts";
import { playOne } from "./explore.ts";
import type { Lane } from "./lane.ts";
import { faultsOf } from "./plans.ts";
import type { Fault, Stage, Step } from "./stage.ts";

const kinds: readonly KindSpec[] = [
  { name: "plain", maxCrashes: 100 },
  { name: "keyed", orderingKey: true, maxCrashes: 100 },
  { name: "locked", lock: true, maxCrashes: 100 },
  { name: "limited", limit: 2, maxCrashes: 100 },
  { name: "alone", alone: true, maxCrashes: 100 },
];

const levels = ["read committed", "repeatable read", "serializable"] as const;

/** A cast from a seed. */
export function draw(seed: number): Cast {
  const random = draws(seed);
  const below = (n: number) => Math.floor(random() * n);
  const invocations = ["A", "B", "C", "D", "E"].slice(0, 2 + below(4));
  const enqueuers = ["P1", "P2", "P3"].slice(0, below(4));
  const isolation = Object.fromEntries(enqueuers.map((name) => [name, levels[below(3)] ?? "read committed"]));
  const jobs = Array.from({ length: 3 + below(8) }, (_, i): JobSpec => {
    const kind = kinds[below(kinds.length)]?.name ?? "plain";
    const k = ["x", "y"][below(2)] ?? "x";
    const by = enqueuers[below(2 * enqueuers.length)];
    const needs = { keyed: [`key:${k}`], locked: [`lock:${k}`], limited: [`limit:${k}:2`] }[kind] ?? [];
    return {
      name: `j${i + 1}`,
      kind,
      k,
      fails: below(6) === 0 ? 1 + below(2) : 0,
      needs,
      ...(by === undefined ? {} : { by }),
    };
  });
  return {
    name: `seed ${seed}`,
    faults: 0,
    ci: 0,
    kinds,
    jobs,
    invocations,
    batch: 1 + below(4),
    maxTicks: 1 + below(3),
    oneIsolate: below(3) === 0,
    wakes: below(2) === 0,
    isolation,
  };
}

/** Plays the one history of a seed. */
export async function playSeed(
  lane: Lane,
  seed: number,
): Promise<{ readonly stage: Stage; readonly faults: string[] }> {
  const cast = draw(seed);
  const random = draws(seed ^ 0x5eed);
  await lane.prepare(cast);
  let left = Math.floor(random() * 5);
  // Asked about one step more than once, and it must answer the same.
  const decided = new Map<Step, Fault | null>();
  const fault = (step: Step): Fault | null => {
    const known = decided.get(step);
    if (known !== undefined) return known;
    const may = /^[A-E]$/.test(step.actor.name) ? (faultsOf[step.verb] ?? []) : [];
    const strikes = left > 0 && may.length > 0 && random() < 0.06;
    const chosen = strikes ? (may[Math.floor(random() * may.length)] ?? null) : null;
    if (chosen !== null) left--;
    decided.set(step, chosen);
    return chosen;
  };
  const { stage, faults } = await playOne(lane, cast, {
    fault,
    pointless: () => false,
    choose: (steps) => steps[Math.floor(random() * steps.length)] ?? null,
    ran: () => {},
  });
  // It was left before its end, so nobody has looked at it.
  if (faults === null) throw new Error(`the history of seed ${seed} was not checked: ${stage.trace.join(", ")}`);
  return { stage, faults };
}
