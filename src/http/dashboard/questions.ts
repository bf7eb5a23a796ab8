// Every action as a question: the verb with its object and number, the consequence in a sentence, and what the form carries. Reads
// what it asks about; changes nothing.

import { html } from "hono/html";
import { assertJobId, type Claimer } from "../../claimer.ts";
import type { Count, JobDetail } from "../../inspection.ts";
import { filterOf, narrows } from "./filters.ts";
import { absolute, cut, many, number, visible } from "./format.ts";
import { type Html, type Part, text } from "./parts.ts";
import { filterQuery, type Query } from "./routes.ts";

export interface Question {
  readonly title: string;
  readonly consequence: Part;
  /** The button, a verb with its object. */
  readonly button: string;
  readonly danger: boolean;
  /** What the form carries, unseen. */
  readonly fields: readonly (readonly [string, string])[];
  readonly inputs?: Html;
}

/** What cannot be asked: a sentence. */
export interface NoQuestion {
  readonly sentence: string;
}

export const jobVerbs = ["retry", "discard", "skip", "cancel", "run-now", "reschedule"] as const;
export type JobVerb = (typeof jobVerbs)[number];
export const bulkVerbs = { "retry-all": "retry", "discard-all": "discard", "cancel-all": "cancel" } as const;
export type BulkName = keyof typeof bulkVerbs;

/** Jobs of one page may be selected, no more. */
export const maxSelected = 50;

const calls = "External calls already made are not undone.";

/** Makes the question for a request of the confirm page. */
export async function questionOf(
  query: Query,
  ids: readonly string[],
  claimer: Claimer,
  zone: string,
): Promise<Question | NoQuestion> {
  const verb = query.do ?? "";
  const one = jobVerbs.find((name) => name === verb);
  if (one !== undefined && query.job !== undefined) return aboutJob(one, query, claimer, zone);
  if (one !== undefined && ids.length > 0) return aboutSelected(one, ids);
  if (Object.hasOwn(bulkVerbs, verb)) return aboutAll(verb as BulkName, query, claimer);
  const { name, pid, start } = query;
  if (name !== undefined && Object.hasOwn(named, verb)) return named[verb as keyof typeof named](name);
  if (verb === "terminate" && pid !== undefined && start !== undefined && /^\d{1,10}$/.test(pid)) {
    const jobs = /^\d{1,6}$/.test(query.jobs ?? "")
      ? many(Number(query.jobs), "job becomes", "jobs become")
      : "Its jobs become";
    return {
      title: `End the transaction of pid ${pid}?`,
      consequence: `It is rolled back. ${jobs === "Its jobs become" ? jobs : `Its ${jobs}`} free, and an attempt counts only if it ran alone. ${calls}`,
      button: "Terminate",
      danger: true,
      fields: [
        ["do", verb],
        ["pid", pid],
        ["start", start],
      ],
    };
  }
  return { sentence: ids.length === 0 && one !== undefined ? "Nothing is selected." : "There is no such action." };
}

const jobTexts: Readonly<
  Record<JobVerb, { readonly button: string; readonly done: string; readonly danger: boolean }>
> = {
  retry: {
    button: "Retry",
    done: "It gets a fresh set of attempts and keeps its place in its key, its unique key, limits and locks.",
    danger: false,
  },
  discard: {
    button: "Discard",
    done: `It leaves the queue for good and stays in history as discarded. ${calls}`,
    danger: true,
  },
  skip: { button: "Skip", done: "It stays a dead letter, and its ordering key goes on without it.", danger: false },
  cancel: { button: "Cancel", done: `It leaves the queue and stays in history as cancelled. ${calls}`, danger: true },
  "run-now": {
    button: "Run now",
    done: "It becomes due at once, and the next trigger takes it. Its attempts stay counted.",
    danger: false,
  },
  reschedule: {
    button: "Reschedule",
    done: "It becomes due at the time you choose, not before. Its attempts stay counted.",
    danger: false,
  },
};

async function aboutJob(verb: JobVerb, query: Query, claimer: Claimer, zone: string): Promise<Question | NoQuestion> {
  const id = assertJobId(query.job);
  const job = await claimer.inspect.job(id);
  if (job === null) return { sentence: `There is no job ${id}, or its history has been pruned.` };
  const { button, done, danger } = jobTexts[verb];
  const next = /^\d{1,19}$/.test(query.next ?? "") ? query.next : undefined;
  const running = verb === "cancel" && job.state === "running";
  return {
    title: `${button} job ${id}?`,
    consequence: html`<p>${text(job.kind, 80)}, ${job.state}. ${
      running ? "It runs now: this asks the handler to stop at its next check; its transaction decides." : done
    }${afterwards(verb, job, next)}</p>${verb === "reschedule" ? html`<p class="m">Due now: ${absolute(job.runAt, zone)}.</p>` : ""}`,
    button: `${button} job`,
    danger,
    fields: [
      ["do", verb],
      ["job", id],
    ],
    ...(verb === "reschedule" ? { inputs: whenInputs() } : {}),
  };
}

function afterwards(verb: JobVerb, job: JobDetail, next: string | undefined): string {
  if (job.orderingKey === null) return "";
  const key = `Key "${visible(cut(job.orderingKey, 80))}"`;
  if (verb === "retry") return ` ${key}: this job runs first, then those behind it.`;
  if (verb !== "skip" && verb !== "discard") return "";
  return next === undefined ? ` ${key} goes on.` : ` ${key}: ${next} will run next.`;
}

function whenInputs(): Html {
  const choices = [
    ["10s", "in 10 s"],
    ["1m", "in 1 min"],
    ["10m", "in 10 min"],
    ["1h", "in 1 h"],
    ["6h", "in 6 h"],
    ["1d", "in 1 d"],
  ] as const;
  return html`<div class="field"><label for="ask-in">When</label><select id="ask-in" name="in">${choices.map(([value, label]) => html`<option value="${value}" ${value === "10m" ? html`selected` : ""}>${label}</option>`)}</select></div>
<div class="field"><label for="ask-at">or at, UTC</label><input id="ask-at" name="at" placeholder="2026-11-30T14:00:00Z" autocomplete="off" pattern="\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}(:\\d{2})?Z"></div>`;
}

function aboutSelected(verb: JobVerb, given: readonly string[]): Question | NoQuestion {
  if (given.length > maxSelected)
    return { sentence: `At most ${maxSelected} jobs can be selected; use the filter for more.` };
  const ids = [...new Set(given)].map((id) => assertJobId(id));
  const { button, danger } = jobTexts[verb];
  return {
    title: `${button} ${many(ids.length, "job")}?`,
    consequence: html`<p>${manyTexts[verb]}</p><ul>${ids.map((id) => html`<li class="mono">${id}</li>`)}</ul>`,
    button: `${button} ${many(ids.length, "job")}`,
    danger,
    fields: [["do", verb], ...ids.map((id) => ["id", id] as const)],
  };
}

const manyTexts: Readonly<Record<JobVerb, string>> = {
  retry: "Each gets a fresh set of attempts and keeps its place in its key, its unique key, limits and locks.",
  discard: `They leave the queue for good and stay in history as discarded. ${calls}`,
  skip: "They stay dead letters, and their ordering keys go on without them.",
  cancel: `They leave the queue and stay in history as cancelled; those that run are asked to stop. ${calls}`,
  "run-now": "They become due at once. Their attempts stay counted.",
  reschedule: "They become due at the time you choose.",
};

/** Bulk by filter, frozen here: what matches now, up to the highest id of it. Jobs that come later are not swept in. */
async function aboutAll(name: BulkName, query: Query, claimer: Claimer): Promise<Question | NoQuestion> {
  const verb = bulkVerbs[name];
  const { filter: given, faults } = filterOf(verb === "cancel" ? query : { ...query, state: "dead" });
  if (faults.length > 0) return { sentence: faults.join(" ") };
  if (verb === "cancel" && !narrows(given)) return { sentence: "Set a filter first: a queue, a kind, a key." };
  const filter = given;
  const frozen = /^\d{1,19}$/.test(query.upTo ?? "") ? query.upTo : undefined;
  const counted: Count & { upTo: string | null } =
    frozen === undefined ? await claimer.inspect.count(filter) : { n: 0, capped: true, upTo: frozen };
  if (counted.upTo === null || (frozen === undefined && counted.n === 0))
    return { sentence: "No job matches any more." };
  const noun = (of: Count | number) => (verb === "cancel" ? many(of, "job") : many(of, "dead letter"));
  const { button, danger } = jobTexts[verb];
  const goesOn = frozen !== undefined;
  const done = Number(query.n ?? 0);
  const filterFields = Object.entries(filterQuery(filter)).flatMap(([key, value]) =>
    value === undefined ? [] : [[key, value] as const],
  );
  return {
    title: goesOn ? `${number(done)} done, more remain. Continue?` : `${button} ${noun(counted)}?`,
    consequence: html`<p>${manyTexts[verb]}</p><p class="m">${filterText(filterFields)}Up to job ${counted.upTo}; what comes later is not touched. In slices of 1,000, each with a commit of its own, at most 10,000 at a time.</p>`,
    button: goesOn ? "Continue" : `${button} ${noun(counted)}`,
    danger,
    fields: [
      ["do", name],
      ["upTo", counted.upTo],
      ...(query.next === undefined ? [] : [["next", query.next] as const]),
      ...(goesOn
        ? [["n", String(done)] as const, ["left", query.left ?? "0"] as const, ["spread", query.spread ?? ""] as const]
        : []),
      ...filterFields,
    ],
    ...(verb === "retry" && !goesOn ? { inputs: spreadInput() } : {}),
  };
}

function filterText(fields: readonly (readonly [string, string])[]): Html {
  return html`Those with ${fields.map(([name, value], i) => html`${i === 0 ? "" : ", "}${name} ${text(`"${value}"`, 80)}`)}. `;
}

function spreadInput(): Html {
  return html`<div class="field"><label for="ask-spread">Spread over</label><select id="ask-spread" name="spread"><option value="">at once</option><option value="1m">1 min</option><option value="10m">10 min</option><option value="1h">1 h</option></select></div>`;
}

/** Actions on a queue or a schedule. */
const named = {
  "pause-queue": (name: string) => ({
    title: `Pause queue "${name}"?`,
    consequence: "Nothing more of it is claimed until it is resumed. What runs now runs on; deadlines go on passing.",
    button: "Pause queue",
    danger: false,
    fields: [
      ["do", "pause-queue"],
      ["name", name],
    ],
  }),
  "resume-queue": (name: string) => ({
    title: `Resume queue "${name}"?`,
    consequence: "The next trigger claims from it again.",
    button: "Resume queue",
    danger: false,
    fields: [
      ["do", "resume-queue"],
      ["name", name],
    ],
  }),
  "pause-schedule": (name: string) => ({
    title: `Pause schedule "${name}"?`,
    consequence: "It fires no more until it is resumed; occurrences that pass meanwhile are lost.",
    button: "Pause schedule",
    danger: false,
    fields: [
      ["do", "pause-schedule"],
      ["name", name],
    ],
  }),
  "resume-schedule": (name: string) => ({
    title: `Resume schedule "${name}"?`,
    consequence: "It fires at its next occurrence.",
    button: "Resume schedule",
    danger: false,
    fields: [
      ["do", "resume-schedule"],
      ["name", name],
    ],
  }),
  "run-schedule": (name: string) => ({
    title: `Run schedule "${name}" now?`,
    consequence: "Enqueues one job as the schedule would, due at once. Its own occurrences stay as they are.",
    button: "Run schedule now",
    danger: false,
    fields: [
      ["do", "run-schedule"],
      ["name", name],
    ],
  }),
} as const satisfies Record<string, (name: string) => Question>;

/** The question as a page, or as what the dialog shows. The safe choice has the focus. */
export function askForm(question: Question, back: string): Html {
  return html`<form class="ask" method="post" action="/act">
<h2>${visible(question.title)}</h2>
${typeof question.consequence === "string" ? html`<p>${question.consequence}</p>` : question.consequence}
${question.inputs ?? ""}
${question.fields.map(([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`)}
<input type="hidden" name="back" value="${back}">
<p class="acts"><a class="btn" href="${back}" data-back autofocus>Keep as it is</a> <button class="btn primary${question.danger ? " danger" : ""}">${question.button}</button></p>
</form>`;
}
