// What a confirmed question does, and how its outcome is told: in the address of the view it came from, by words of ours and
// numbers only, so that nobody can put a sentence of his own there.

import { html } from "hono/html";
import { assertJobId, type Claimer } from "../../claimer.ts";
import { type Duration, parseDuration } from "../../duration.ts";
import { UsageError } from "../../errors.ts";
import type { OperateAnswer } from "../../inspection.ts";
import type { JobId } from "../../model.ts";
import { filterOf } from "./filters.ts";
import { number } from "./format.ts";
import type { Html } from "./parts.ts";
import { type BulkName, bulkVerbs, type JobVerb, jobVerbs, maxSelected } from "./questions.ts";
import { filterQuery, hrefs, localPath, type Query, said } from "./routes.ts";

/** Who acted, in a job's record. Never the secret. */
const by = "dashboard";

/** Jobs of one slice, and slices of one request. */
const sliceSize = 1_000;
const slices = 10;

/** Single acts at once, each a one-shot of its own. */
const atOnce = 5;

/**
 * Does what a form asks, and answers where to go. Errors: PGCLAIM_INVALID_REQUEST, PGCLAIM_INVALID_OPTION; the database's.
 */
export async function act(form: Query, ids: readonly string[], claimer: Claimer): Promise<string> {
  const back = localPath(form.back);
  const verb = form.do ?? "";
  const job = jobVerbs.find((name) => name === verb);
  if (job !== undefined && form.job !== undefined) {
    const id = assertJobId(form.job);
    const runAt = await dueOf(job, form, claimer);
    const answer = await one(claimer, job, id, runAt);
    return told(back, { did: answer.type, of: id, ...("state" in answer ? { was: answer.state } : {}) });
  }
  if (job !== undefined && ids.length > 0) return told(back, await selected(claimer, job, ids, form));
  if (Object.hasOwn(bulkVerbs, verb)) return all(verb as BulkName, form, claimer, back);
  const name = form.name ?? "";
  switch (verb) {
    case "pause-queue":
      return told(back, { did: (await claimer.pauseQueue(name)) ? "paused" : "unchanged" });
    case "resume-queue":
      return told(back, { did: (await claimer.resumeQueue(name)) ? "resumed" : "unchanged" });
    case "pause-schedule":
      return told(back, { did: (await claimer.pauseSchedule(name)) ? "paused" : "unchanged" });
    case "resume-schedule":
      return told(back, { did: (await claimer.resumeSchedule(name)) ? "resumed" : "unchanged" });
    case "run-schedule": {
      const answer = await claimer.operate.runSchedule(name, by);
      return told(back, answer.type === "enqueued" ? { did: "enqueued", of: answer.job.id } : { did: "not-found" });
    }
    case "terminate": {
      const pid = Number(form.pid);
      if (!Number.isInteger(pid) || pid <= 0) throw noSuch();
      const answer = await claimer.operate.terminate({ pid, transactionStart: form.start ?? "", by });
      return told(back, { did: answer, n: String(pid) });
    }
    default:
      throw noSuch();
  }
}

function noSuch(): UsageError {
  return new UsageError("PGCLAIM_INVALID_REQUEST", "There is no such action; open the page anew and ask again.");
}

function one(claimer: Claimer, verb: JobVerb, id: JobId, runAt: string | null): Promise<OperateAnswer> {
  switch (verb) {
    case "run-now":
    case "reschedule":
      return claimer.operate.reschedule(id, runAt ?? "", by);
    case "retry":
    case "discard":
    case "skip":
    case "cancel":
      return claimer.operate[verb](id, by);
    default:
      return verb satisfies never;
  }
}

/** When a job is to be due, by the database's clock; null for the verbs that have no time. */
async function dueOf(verb: JobVerb, form: Query, claimer: Claimer): Promise<string | null> {
  if (verb !== "run-now" && verb !== "reschedule") return null;
  if (verb === "reschedule" && form.at !== undefined && form.at !== "") {
    if (/^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?Z$/.test(form.at) && !Number.isNaN(Date.parse(form.at))) {
      return new Date(form.at).toISOString();
    }
    throw new UsageError("PGCLAIM_INVALID_REQUEST", "at: expected an instant in UTC, as 2026-11-30T14:00:00Z.", {
      path: "at",
    });
  }
  const { now } = await claimer.inspect.jobs({ limit: 1 });
  const inMs = verb === "run-now" ? 0 : parseDuration(form.in, "in");
  return new Date(Date.parse(now) + inMs).toISOString();
}

async function selected(claimer: Claimer, verb: JobVerb, given: readonly string[], form: Query): Promise<Query> {
  const ids = [...new Set(given)].slice(0, maxSelected).map((id) => assertJobId(id));
  const runAt = await dueOf(verb, form, claimer);
  let changed = 0;
  for (let i = 0; i < ids.length; i += atOnce) {
    const answers = await Promise.all(ids.slice(i, i + atOnce).map((id) => one(claimer, verb, id, runAt)));
    changed += answers.filter(({ type }) => isChange(type)).length;
  }
  return { did: `many-${verb}`, n: String(changed), left: String(ids.length - changed) };
}

function isChange(type: OperateAnswer["type"]): boolean {
  return type !== "busy" && type !== "not-found" && type !== "not-dead" && type !== "not-waiting";
}

/** At most 10,000, in slices. More goes back to the confirm page, which carries where it stands. */
async function all(name: BulkName, form: Query, claimer: Claimer, back: string): Promise<string> {
  const verb = bulkVerbs[name];
  const { filter, faults } = filterOf(verb === "cancel" ? form : { ...form, state: "dead" });
  const upTo = assertJobId(form.upTo);
  if (faults.length > 0) throw new UsageError("PGCLAIM_INVALID_REQUEST", faults.join(" "));
  const spreadMs =
    form.spread === undefined || form.spread === "" ? undefined : parseDuration(form.spread as Duration, "spread");
  let [changed, left] = [whole(form.n), whole(form.left)];
  let cursor = form.next === undefined || form.next === "" ? null : form.next;
  for (let slice = 0; slice < slices; slice++) {
    const answer = await claimer.operate.bulk({
      verb,
      filter,
      upTo,
      by,
      limit: sliceSize,
      ...(cursor === null ? {} : { cursor }),
      ...(spreadMs === undefined ? {} : { spreadMs }),
    });
    changed += answer.changed;
    left += answer.left;
    cursor = answer.cursor;
    if (!answer.more) return told(back, { did: `many-${verb}`, n: String(changed), left: String(left) });
  }
  const goesOn = {
    do: name,
    upTo,
    n: String(changed),
    left: String(left),
    spread: form.spread,
    next: cursor ?? undefined,
    back,
  };
  return hrefs.confirm({ ...filterQuery(filter), ...goesOn });
}

function whole(text: string | undefined): number {
  return text !== undefined && /^\d{1,9}$/.test(text) ? Number(text) : 0;
}

function told(back: string, outcome: Query): string {
  const address = new URL(back, "http://local.invalid");
  for (const name of said) {
    const value = outcome[name];
    if (value !== undefined) address.searchParams.set(name, value);
  }
  return `${address.pathname}${address.search}`;
}

const pastOf = {
  retry: "Retried",
  discard: "Discarded",
  skip: "Skipped",
  cancel: "Cancelled",
  "run-now": "Made due now",
  reschedule: "Rescheduled",
} as const satisfies Record<JobVerb, string>;

/** What the last action did, out of the address it led to; null where there was none, or no sentence of ours. */
export function outcomeOf(query: Query): Html | null {
  const sentence = sentenceOf(query);
  return sentence === null
    ? null
    : html`<p class="note ${sentence.bad ? "warn" : "good"}" role="status">${sentence.text}</p>`;
}

function sentenceOf({ did, n, left, of, was }: Query): { readonly text: string; readonly bad: boolean } | null {
  if (did === undefined) return null;
  const job = /^\d{1,19}$/.test(of ?? "") ? `Job ${of}` : "The job";
  const state = /^[a-z]{1,20}$/.test(was ?? "") ? was : "in another state";
  const good = (text: string) => ({ text, bad: false });
  const bad = (text: string) => ({ text, bad: true });
  const verb = did.startsWith("many-") ? did.slice("many-".length) : "";
  if (Object.hasOwn(pastOf, verb)) {
    const [changed, others] = [whole(n), whole(left)];
    const text = `${pastOf[verb as JobVerb]} ${number(changed)} of ${number(changed + others)}.`;
    return others === 0 ? good(text) : bad(`${text} ${number(others)} had changed meanwhile, or were locked.`);
  }
  switch (did) {
    case "retried":
      return good(`${job} was retried; the next trigger takes it.`);
    case "discarded":
    case "skipped":
    case "cancelled":
    case "rescheduled":
      return good(`${job} was ${did}.`);
    case "requested":
      return good(`${job} runs; its handler is asked to stop, and its transaction decides.`);
    case "busy":
      return bad(`${job} is locked by another transaction. Try again in a moment.`);
    case "not-found":
      return bad("There is no such job or schedule any more.");
    case "not-dead":
      return bad(`${job} is ${state} now, so nothing was done.`);
    case "not-waiting":
      return bad(`${job} does not wait any more (${state}), so nothing was done.`);
    case "paused":
    case "resumed":
      return good(did === "paused" ? "Paused." : "Resumed.");
    case "unchanged":
      return good("It was so already; nothing changed.");
    case "enqueued":
      return good(`${job} was enqueued; the next trigger takes it.`);
    case "terminated":
      return good(`The transaction of pid ${whole(n)} was ended.`);
    case "gone":
      return bad(`Pid ${whole(n)} holds no lock of ours in that transaction any more, so nothing was ended.`);
    default:
      return null;
  }
}
