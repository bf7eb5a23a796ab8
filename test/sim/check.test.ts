// Whether the check of a history has eyes: a healthy history gets no complaint, and one that is spoilt in one place gets the
// complaint that is for it, and no other. Every sentence of check.ts is produced here; the last test reads them out of its text.

import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { TickFate } from "../../src/model.ts";
import type { Backends } from "./backends.ts";
import type { Cast } from "./casts.ts";
import { check } from "./check.ts";
import type { Lane, Snapshot } from "./lane.ts";
import { Actor, Stage, type Start } from "./stage.ts";
import type { StagedClient } from "./staged_client.ts";

type Attempt = Snapshot["attempts"][number];

/** Committed, in this order; the last one was lost. */
const [t1, t2, lost] = ["tick 1", "tick 2", "tick lost"] as const;

const names = new Map([
  ["1", "a"],
  ["2", "b"],
  ["3", "c"],
]);

const cast: Cast = {
  name: "checked",
  faults: 0,
  ci: null,
  kinds: [],
  jobs: [
    { name: "a", kind: "keyed", needs: ["key:x"], by: "P1" },
    { name: "b", kind: "keyed", needs: ["key:x"], by: "P2" },
    { name: "c", kind: "plain" },
  ],
  invocations: ["A"],
  batch: 1,
};

const attempt = (job_id: string, n: number, tick: string, outcome: string | null): Attempt => ({
  job_id,
  n,
  tick,
  quarantined: false,
  outcome,
});

const row = (job_id: string, attempts: number, place: string | null = null, outcome = "done") => ({
  job_id,
  outcome,
  attempts,
  failures: 0,
  place,
});

const job = (id: string, number: number, state = "ready", dead_reason: string | null = null) => ({
  id,
  state,
  attempt: number,
  suspect: false,
  dead_reason,
  place: null,
});

const start = (name: string, number: number, tick: string): Start => ({
  job: name,
  attempt: number,
  tick,
  actor: "A",
  quarantined: false,
});

/** c has failed once and is there to be run again; places that a comparison of texts would order wrongly. */
const before: Snapshot = {
  jobs: [job("3", 1)],
  attempts: [
    attempt("1", 1, lost, "crashed"),
    attempt("1", 2, t1, "done"),
    attempt("2", 1, t1, "done"),
    attempt("3", 1, t1, "failed"),
  ],
  ticks: [
    { id: t1, outcome: "committed" },
    { id: t2, outcome: "committed" },
    { id: lost, outcome: "lost" },
  ],
  history: [row("1", 2, "9"), row("2", 1, "10")],
  effects: [
    { job: "a", attempt: 2, tick: t1 },
    { job: "b", attempt: 1, tick: t1 },
  ],
  gates: [],
  locks: 0,
};

/** A drain has run c. */
const after: Snapshot = {
  ...before,
  jobs: [],
  attempts: [...before.attempts, attempt("3", 2, t2, "done")],
  history: [...before.history, row("3", 2)],
  effects: [...before.effects, { job: "c", attempt: 2, tick: t2 }],
};

const starts = [start("a", 1, lost), start("a", 2, t1), start("b", 1, t1), start("c", 1, t1), start("c", 2, t2)];

interface History {
  readonly before: Snapshot;
  readonly after: Snapshot;
  readonly starts: readonly Start[];
  readonly commits: readonly string[];
  readonly reported: readonly (readonly [tickId: string, fate: TickFate])[];
  readonly cast: Cast;
  /** What the stage saw by itself: before the check, and while it drains. */
  readonly seen: readonly string[];
  readonly seenInDrain: readonly string[];
  readonly openSessionOf: string | null;
}

const healthy: History = {
  before,
  after,
  starts,
  commits: ["P1", "P2"],
  reported: [
    [t1, "committed"],
    [lost, "lost"],
  ],
  cast,
  seen: [],
  seenInDrain: [],
  openSessionOf: null,
};

async function look(spoilt: Partial<History>): Promise<{ readonly faults: string[]; readonly drains: number }> {
  const history = { ...healthy, ...spoilt };
  // The check reads what they hold; no history is played, so nobody speaks to a database.
  const stage = new Stage({} as Backends, () => null);
  stage.faults.push(...history.seen);
  stage.starts.push(...history.starts);
  stage.commits.push(...history.commits);
  const invocation = new Actor(stage, "A");
  invocation.result = { ticks: history.reported.map(([tickId, fate]) => ({ tickId, fate })) };
  if (history.openSessionOf !== null) {
    const actor = new Actor(stage, history.openSessionOf);
    stage.sessions.add({ actor, abandon: async () => {} } as unknown as StagedClient);
  }
  let drains = 0;
  const lane = {
    names: names as Lane["names"],
    snapshot: async () => (drains === 0 ? history.before : history.after),
    drain: async (): Promise<unknown> => {
      drains++;
      stage.faults.push(...history.seenInDrain);
      return null;
    },
  } as Partial<Lane> as Lane;
  const faults = await check(lane, stage, history.cast, [invocation, new Actor(stage, "W")]);
  return { faults, drains };
}

const attemptsOfC = (snapshot: Snapshot, ...attempts: Attempt[]): Snapshot => ({
  ...snapshot,
  attempts: [...snapshot.attempts.filter(({ job_id }) => job_id !== "3"), ...attempts],
});
const rowOfC = (snapshot: Snapshot, ...rows: Snapshot["history"]): Snapshot => ({
  ...snapshot,
  history: [...snapshot.history.filter(({ job_id }) => job_id !== "3"), ...rows],
});

const [failed, done] = [attempt("3", 1, t1, "failed"), attempt("3", 2, t2, "done")];
const effectOfC = { job: "c", attempt: 2, tick: t2 };
const undrained = attemptsOfC(rowOfC(after, row("3", 3)), failed, done, attempt("3", 3, t2, null));
const dead = {
  ...rowOfC(attemptsOfC(after, failed, attempt("3", 2, t2, "failed"))),
  jobs: [job("3", 2, "dead", "attempts")],
};

const above = (outcome: string, tick: string): [string, Partial<History>, string[]] => [
  `${outcome} above the job's number`,
  { before: attemptsOfC(before, failed, attempt("3", 2, tick, outcome)) },
  ["attempt c:2 is closed above the job's number"],
];
const uncommitted = (outcome: string, tick: string): [string, Partial<History>, string[]] => [
  `${outcome} by ${tick}`,
  { before: attemptsOfC(before, attempt("3", 1, tick, outcome)) },
  [`attempt c:1 is ${outcome} by a tick that did not commit`],
];
const committed = (outcome: string): [string, Partial<History>, string[]] => [
  `${outcome} by a tick that committed`,
  { before: attemptsOfC(before, attempt("3", 1, t1, outcome)) },
  [`attempt c:1 is ${outcome} by a tick that committed`],
];

const cases: [what: string, spoilt: Partial<History>, sentences: string[]][] = [
  ["what the stage saw", { seen: ["c has two open attempts"] }, ["c has two open attempts"]],
  ["what the stage saw in a drain", { seenInDrain: ["drain threw"] }, ["drain threw"]],
  ["a session left open", { openSessionOf: "B" }, ["B left its session open"]],
  ["a gate", { before: { ...before, gates: ["without a place: 3"] } }, ["without a place: 3"]],
  ["locks", { before: { ...before, locks: 2 } }, ["2 advisory locks left"]],
  ["a lock after the drain", { after: { ...after, locks: 1 } }, ["1 advisory locks left"]],
  ["a job in both tables", { before: rowOfC(before, row("3", 1)) }, ["c is finished and is not"]],
  [
    "two open attempts",
    { before: attemptsOfC(before, failed, attempt("3", 2, t2, null), attempt("3", 3, t2, null)) },
    ["attempt c:3 is open beside another one"],
  ],
  [
    "an open attempt that the job's number has reached",
    { before: { ...attemptsOfC(before, failed, attempt("3", 2, t2, null)), jobs: [job("3", 2)] } },
    ["attempt c:2 is open below the job's number"],
  ],
  ["done and still there", { before: attemptsOfC(before, failed, done) }, ["attempt c:2 is done, its job is not"]],
  above("failed", t2),
  above("released", t2),
  above("snoozed", t2),
  above("crashed", lost),
  uncommitted("failed", lost),
  uncommitted("released", lost),
  uncommitted("snoozed", "a tick without a row"),
  [
    "done by a tick that was lost",
    { after: attemptsOfC(after, failed, attempt("3", 2, lost, "done")), starts: starts.slice(0, 4) },
    ["attempt c:2 is done by a tick that did not commit"],
  ],
  committed("crashed"),
  committed("interrupted"),
  [
    "an effect of a tick that was lost",
    { before: { ...before, effects: [...before.effects, { job: "c", attempt: 1, tick: lost }] } },
    ["effect of c:1 by a tick that did not commit"],
  ],
  [
    "an effect of a tick without a row",
    { after: { ...after, effects: [...before.effects, { ...effectOfC, tick: "?" }] } },
    ["effect of c:2 by a tick that did not commit"],
  ],
  [
    "a report that does not know",
    { reported: [[t1, "unknown"]] },
    ["a tick's fate is unknown, and the database could be asked"],
  ],
  ["a report too good", { reported: [[lost, "committed"]] }, ["a tick said committed, the database lost"]],
  ["a report too bad", { reported: [[t1, "lost"]] }, ["a tick said lost, the database committed"]],
  ["a report of nothing", { reported: [["?", "committed"]] }, ["a tick said committed, the database nothing"]],
  ["nothing ends it", { after: undrained }, [`not drained: ${json(undrained)}`]],
  ["no effect", { after: { ...after, effects: before.effects } }, ["0 effects of c"]],
  ["two effects", { after: { ...after, effects: [...after.effects, effectOfC] } }, ["2 effects of c"]],
  ["another end", { after: rowOfC(after, row("3", 2, null, "cancelled")) }, ["c is cancelled, not done"]],
  ["no end", { after: rowOfC(after) }, ["c is lost, not done"]],
  ["a dead letter", { after: dead }, ["c is attempts, not done"]],
  [
    "a number started twice",
    { after: rowOfC(after, row("3", 3)), starts: [...starts, start("c", 2, t2)] },
    ["c:2 started twice"],
  ],
  ["a start without a record", { after: attemptsOfC(after, done) }, ["c:1 started without a record"]],
  [
    "a start by another tick",
    { after: attemptsOfC(after, attempt("3", 1, t2, "failed"), done) },
    ["c:1 started by a tick that does not own it"],
  ],
  [
    "more starts than are counted",
    {
      after: rowOfC(attemptsOfC(after, attempt("3", 1, t1, "done"), attempt("3", 2, lost, "crashed")), row("3", 1)),
      starts: [...starts.slice(0, 4), start("c", 2, lost)],
    },
    ["c was started 2 times and counts 1"],
  ],
  [
    "a number above the last one",
    { after: attemptsOfC(after, failed, done, attempt("3", 3, t2, "released")) },
    ["c has a number above its last"],
  ],
  [
    "effects out of order",
    {
      after: {
        ...after,
        effects: [{ job: "b", attempt: 1, tick: t1 }, { job: "a", attempt: 2, tick: t1 }, effectOfC],
      },
    },
    ["effects of key:x came as b a, enqueues committed as a b"],
  ],
  [
    "places out of order",
    { after: { ...after, history: [row("1", 2, "10"), row("2", 1, "9"), row("3", 2)] } },
    ["places of key:x are b a, enqueues committed as a b"],
  ],
  [
    "commits in another order than all that came of them",
    { commits: ["P2", "P1"] },
    ["effects of key:x came as a b, enqueues committed as b a", "places of key:x are a b, enqueues committed as b a"],
  ],
];

function json({ jobs, attempts }: Snapshot): string {
  return JSON.stringify({ jobs, attempts });
}

describe("a healthy history", () => {
  it.each<[string, Partial<History>]>([
    ["drained once", {}],
    ["ended before anybody drained", { before: after }],
    ["pruned", { after: attemptsOfC(after, done), cast: { ...cast, prunes: true } }],
    ["a crash above the last number", { after: attemptsOfC(after, failed, done, attempt("3", 3, lost, "crashed")) }],
    ["an open attempt above the job's number", { before: attemptsOfC(before, failed, attempt("3", 2, t2, null)) }],
  ])("%s, gets no complaint", async (_, history) => {
    const { faults, drains } = await look(history);
    expect(faults).toEqual([]);
    expect(drains).toBe(history.before === after ? 0 : 1);
  });
});

describe("a history spoilt in one place", () => {
  it.each(cases)("%s: is told so, and nothing else", async (_, spoilt, sentences) => {
    const { faults } = await look(spoilt);
    expect(faults.sort()).toEqual([...sentences].sort());
  });

  it("is drained eight times and not for ever", async () => {
    expect((await look({ after: undrained })).drains).toBe(8);
  });
});

describe("the sentences of check.ts", () => {
  const text = readFileSync(new URL("check.ts", import.meta.url), "utf8");
  const templates = [...text.matchAll(/faults\.push\(\s*(?:`([^`]*)`|"([^"]*)")/g)].map(([, a, b]) => a ?? b ?? "");

  it("are twenty-two, beside those of the stage and of the gates", () => {
    expect(templates).toHaveLength(22);
    // Whoever complains in another way than by a literal has to be counted here.
    expect(text.match(/faults\.push\(/g)).toHaveLength(
      templates.length + ["standing", "after", "ended", "order"].length,
    );
  });

  it("are all heard here", async () => {
    const heard = (await Promise.all(cases.map(([, spoilt]) => look(spoilt)))).flatMap(({ faults }) => faults);
    const silent = templates.filter((template) => !heard.some((sentence) => pattern(template).test(sentence)));
    expect(silent).toEqual([]);
  });
});

/** A template as what matches its sentences: anything where it has a value. */
function pattern(template: string): RegExp {
  const fixed = template
    .split(/\$\{(?:[^{}]|\{[^{}]*\})*\}/)
    .map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${fixed.join(".+")}$`, "s");
}
