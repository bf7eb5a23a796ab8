// Which fault can meet which step, and how a history is named so that one command plays it again.

import type { Cast } from "./casts.ts";
import type { Fault, Plan } from "./stage.ts";

/** By verb. What the session loses before a step of its own it loses before the next one of its handlers just as well. */
export const faultsOf: Readonly<Record<string, readonly Fault[]>> = {
  wake: ["crash", "lost"],
  claim: ["crash", "lose", "lost"],
  fence: ["crash", "crash-sent", "lose", "silent", "half-open", "lost", "late", "lost-twice", "late-twice"],
  call: ["crash", "lose", "silent", "half-open"],
  turn: ["crash", "lose"],
  effect: ["crash", "lose", "half-open"],
  "end-turn": ["crash", "lose"],
  undo: ["crash", "lose"],
  finish: ["crash", "crash-sent", "lose", "half-open", "late"],
  commit: ["crash", "crash-sent", "lose", "half-open", "late", "lost"],
  rollback: ["crash", "lose"],
  settle: ["crash", "crash-sent", "lost", "late"],
};

/** Every single fault of an actor at every step it was seen to take. */
export function plansOf(labels: ReadonlySet<string>, actor: string): Plan[] {
  return [...labels].flatMap((id) => {
    const [name = "", label = ""] = id.split(/\.(.*)/s);
    const [, verb = ""] = /^([a-z-]+)/.exec(label) ?? [];
    return name === actor ? (faultsOf[verb] ?? []).map((fault) => ({ actor, label, fault })) : [];
  });
}

export const planName = (plans: readonly Plan[]): string =>
  plans.length === 0 ? "no fault" : plans.map(({ actor, label, fault }) => `${actor}.${label} ${fault}`).join(" + ");

export function replayName(cast: Cast, plans: readonly Plan[], choices: readonly number[]): string {
  return [cast.name, planName(plans), choices.join(",")].join(" | ");
}

/** Reads what replayName wrote. */
export function readReplay(name: string): {
  readonly cast: string;
  readonly plans: Plan[];
  readonly choices: number[];
} {
  const [cast = "", plans = "", choices = ""] = name.split(" | ");
  return {
    cast,
    plans:
      plans === "no fault"
        ? []
        : plans.split(" + ").map((text) => {
            const [, actor = "", label = "", fault = ""] = /^([^.]+)\.(\S+) (\S+)$/.exec(text) ?? [];
            return { actor, label, fault: fault as Fault };
          }),
    choices: choices === "" ? [] : choices.split(",").map(Number),
  };
}
