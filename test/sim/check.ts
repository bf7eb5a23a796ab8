// The invariants of the protocol, section 4, of one history: as it stands when everybody has ended, then after fresh
// invocations have drained it.

import type { InvocationReport } from "../../src/model.ts";
import type { Cast } from "./casts.ts";
import type { Lane, Snapshot } from "./lane.ts";
import type { Actor, Stage } from "./stage.ts";

/** Fresh invocations until nothing is unfinished; a bound, since a job that nobody can run would never end. */
const maxDrains = 8;

/** What is wrong with a history, as sentences; nothing is right. */
export async function check(lane: Lane, stage: Stage, cast: Cast, actors: readonly Actor[]): Promise<string[]> {
  const faults = [...stage.faults];
  for (const session of stage.sessions) faults.push(`${session.actor.name} left its session open`);
  await stage.abandon();
  const before = await lane.snapshot();
  const reports = actors.flatMap(({ result }) => (isReport(result) ? [result] : []));
  faults.push(...standing(before, reports, lane), ...stage.faults.slice(faults.length));
  let after = before;
  for (let drains = 0; isUnfinished(after); drains++) {
    if (drains === maxDrains) {
      faults.push(`not drained: ${JSON.stringify({ jobs: after.jobs, attempts: after.attempts })}`);
      break;
    }
    await lane.drain(stage);
    after = await lane.snapshot();
  }
  if (after !== before) faults.push(...standing(after, reports, lane));
  faults.push(...stage.faults.filter((fault) => !faults.includes(fault)), ...ended(after, stage, cast, lane));
  return [...new Set(faults)];
}

function isReport(result: unknown): result is InvocationReport {
  return typeof result === "object" && result !== null && "ticks" in result;
}

const isUnfinished = ({ jobs, attempts }: Snapshot): boolean =>
  jobs.some(({ state }) => state !== "dead") || attempts.some(({ outcome }) => outcome === null);

/** What must hold whenever nobody is at work. */
function standing(snapshot: Snapshot, reports: readonly InvocationReport[], lane: Lane): string[] {
  const { jobs, attempts, history, ticks, gates, locks, effects } = snapshot;
  const faults: string[] = [...gates];
  const name = (id: string) => lane.names.get(id) ?? id;
  const fates = new Map(ticks.map(({ id, outcome }) => [id, outcome]));
  if (locks > 0) faults.push(`${locks} advisory locks left`);
  for (const { id } of jobs)
    if (history.some((h) => h.job_id === id)) faults.push(`${name(id)} is finished and is not`);
  for (const [i, a] of attempts.entries()) {
    const what = `attempt ${name(a.job_id)}:${a.n}`;
    const job = jobs.find(({ id }) => id === a.job_id);
    if (a.outcome === null && attempts.some((b, k) => k < i && b.job_id === a.job_id && b.outcome === null))
      faults.push(`${what} is open beside another one`);
    if (job !== undefined && a.outcome === null && a.n <= job.attempt)
      faults.push(`${what} is open below the job's number`);
    if (job !== undefined && a.outcome === "done") faults.push(`${what} is done, its job is not`);
    if (
      job !== undefined &&
      a.n > job.attempt &&
      ["failed", "released", "crashed", "snoozed"].includes(a.outcome ?? "")
    )
      faults.push(`${what} is closed above the job's number`);
    const fate = fates.get(a.tick);
    if (fate !== "committed" && ["done", "failed", "released", "snoozed"].includes(a.outcome ?? ""))
      faults.push(`${what} is ${a.outcome} by a tick that did not commit`);
    if (fate === "committed" && ["crashed", "interrupted"].includes(a.outcome ?? ""))
      faults.push(`${what} is ${a.outcome} by a tick that committed`);
  }
  for (const { tick, job, attempt } of effects) {
    if (fates.get(tick) !== "committed") faults.push(`effect of ${job}:${attempt} by a tick that did not commit`);
  }
  for (const tick of reports.flatMap(({ ticks: all }) => all)) {
    const said = tick.fate;
    if (said === "unknown") faults.push("a tick's fate is unknown, and the database could be asked");
    if ((said === "committed" || said === "lost") && fates.get(tick.tickId) !== said)
      faults.push(`a tick said ${said}, the database ${fates.get(tick.tickId) ?? "nothing"}`);
  }
  return faults;
}

/** What must hold when all is done. */
function ended(snapshot: Snapshot, stage: Stage, cast: Cast, lane: Lane): string[] {
  const { jobs, attempts, history, effects } = snapshot;
  const faults: string[] = [];
  const idOf = (name: string) => [...lane.names].find(([, known]) => known === name)?.[0];
  for (const { name } of cast.jobs) {
    const id = idOf(name);
    const seen = effects.filter(({ job }) => job === name).length;
    const row = history.find(({ job_id }) => job_id === id);
    const dead = jobs.find((job) => job.id === id)?.dead_reason;
    if (seen !== 1) faults.push(`${seen} effects of ${name}`);
    if (row?.outcome !== "done") faults.push(`${name} is ${dead ?? row?.outcome ?? "lost"}, not done`);
    const numbers = attempts.filter(({ job_id }) => job_id === id).map(({ n }) => n);
    const starts = stage.starts.filter(({ job }) => job === name);
    for (const [i, start] of starts.entries()) {
      const what = `${name}:${start.attempt}`;
      if (starts.some((other, k) => k < i && other.attempt === start.attempt)) faults.push(`${what} started twice`);
      const record = attempts.find(({ job_id, n }) => job_id === id && n === start.attempt);
      if (record === undefined) {
        // What is a day old may have been pruned.
        if (cast.prunes !== true) faults.push(`${what} started without a record`);
      } else if (record.tick !== start.tick) faults.push(`${what} started by a tick that does not own it`);
    }
    const last = Math.max(0, ...numbers);
    if (row !== undefined && row.attempts < starts.length)
      faults.push(`${name} was started ${starts.length} times and counts ${row.attempts}`);
    if (
      row !== undefined &&
      last > row.attempts &&
      attempts.some(
        (a) => a.job_id === id && a.n > row.attempts && a.outcome !== "crashed" && a.outcome !== "interrupted",
      )
    )
      faults.push(`${name} has a number above its last`);
  }
  faults.push(...orderOf(snapshot, stage, cast, lane));
  return faults;
}

/** Places ascend in the order of the commits, effects in the order of places. */
function orderOf({ history, effects }: Snapshot, stage: Stage, cast: Cast, lane: Lane): string[] {
  const faults: string[] = [];
  const keys = new Set(cast.jobs.flatMap(({ needs }) => (needs ?? []).filter((need) => need.startsWith("key:"))));
  for (const key of keys) {
    const line = cast.jobs.filter(({ needs }) => needs?.includes(key));
    const at = ({ by }: { by?: string }) => (by === undefined ? -1 : stage.commits.indexOf(by));
    const expected = line.map((job, i) => ({ job, i })).sort((a, b) => at(a.job) - at(b.job) || a.i - b.i);
    const wanted = expected.map(({ job }) => job.name).join(" ");
    const done = effects.filter(({ job }) => line.some(({ name }) => name === job)).map(({ job }) => job);
    if (done.join(" ") !== wanted)
      faults.push(`effects of ${key} came as ${done.join(" ")}, enqueues committed as ${wanted}`);
    const placed = history
      .filter(({ job_id }) => line.some(({ name }) => name === lane.names.get(job_id)))
      .sort((a, b) => Number(a.place) - Number(b.place))
      .map(({ job_id }) => lane.names.get(job_id));
    if (placed.join(" ") !== wanted)
      faults.push(`places of ${key} are ${placed.join(" ")}, enqueues committed as ${wanted}`);
  }
  return faults;
}
