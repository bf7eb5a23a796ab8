// What lists of jobs share: the filter's form, the table with its boxes to select, the bar of actions below it.

import { html } from "hono/html";
import { type JobFilter, type JobRow, type Page as ListPage, listStates } from "../../inspection.ts";
import type { PageContext } from "./context.ts";
import type { Loaded } from "./faults.ts";
import { narrows, reasons } from "./filters.ts";
import { bytes, cut, number, visible } from "./format.ts";
import { jsonText } from "./json_text.ts";
import { keepOf } from "./layout.ts";
import {
  actionLink,
  alertOf,
  errorLine,
  type Html,
  jobLink,
  type Look,
  none,
  type Part,
  pager,
  slackOf,
  stateMark,
  text,
  time,
  whyText,
} from "./parts.ts";
import { filterQuery, hrefs, type Query, url } from "./routes.ts";
import { type Column, type Row, table } from "./table.ts";

/** The form above a list. Values stay as they were typed, wrong ones too. */
export function filterForm(options: {
  readonly context: PageContext;
  readonly path: "/jobs" | "/dead";
  readonly kinds: readonly string[];
  readonly queues: readonly string[];
}): Html {
  const { context, path, kinds, queues } = options;
  const { query } = context;
  const fields = filterNamesOf(path).filter((name) => (query[name] ?? "") !== "");
  return html`<details class="fold" id="filters" open ${fields.length > 0 ? html`data-open="1"` : ""}><summary>Filter${fields.length > 0 ? ` (${fields.length})` : ""}</summary>
<form class="filter" method="get" action="${path}" role="search" aria-label="Filter">
${path === "/jobs" ? pick("state", "State", listStates, query.state, "unfinished and dead") : pick("reason", "Died of", reasons, query.reason, "anything")}
${pick("kind", "Kind", withCurrent(kinds, query.kind), query.kind, "all")}
${pick("queue", "Queue", withCurrent(queues, query.queue), query.queue, "all")}
${field("key", "Ordering key", query.key, "account:42")}
${path === "/jobs" ? field("unique", "Unique key", query.unique, "transaction:tx_9") : ""}
${field("payload", "Payload has", query.payload, 'orderId:"42"')}
${path === "/jobs" ? field("q", "Job id", query.q, "918273") : ""}
${query.fingerprint === undefined ? "" : field("fingerprint", "Error fingerprint", query.fingerprint, "")}
${query.since === undefined ? "" : field("since", path === "/dead" ? "Died since" : "Ended since", query.since, "")}
${hidden(keepOf(context))}
<span class="acts"><button class="btn primary">Filter</button> ${fields.length > 0 ? html`<a class="btn" href="${url(path, keepOf(context))}">Clear</a>` : ""}</span>
</form></details>`;
}

function filterNamesOf(path: "/jobs" | "/dead"): readonly string[] {
  const names = ["kind", "queue", "key", "payload", "fingerprint", "since"];
  return path === "/jobs" ? ["state", "unique", "q", ...names] : ["reason", ...names];
}

/** A chosen kind that is registered no more stays chosen. */
function withCurrent(names: readonly string[], current: string | undefined): readonly string[] {
  return current === undefined || current === "" || names.includes(current) ? names : [...names, current];
}

function pick(name: string, label: string, choices: readonly string[], value: string | undefined, all: string): Html {
  return html`<span class="field"><label for="f-${name}">${label}</label><select id="f-${name}" name="${name}"><option value="">${all}</option>${choices.map(
    (choice) =>
      html`<option value="${choice}" ${choice === value ? html`selected` : ""}>${visible(cut(choice, 80))}</option>`,
  )}</select></span>`;
}

function field(name: string, label: string, value: string | undefined, example: string): Html {
  return html`<span class="field"><label for="f-${name}">${label}</label><input id="f-${name}" name="${name}" value="${value ?? ""}" placeholder="${example}" autocomplete="off" spellcheck="false" maxlength="500" ${name === "key" ? html`data-filter` : ""}></span>`;
}

/** Values that go along with a form, unseen. */
export function hidden(query: Query): Html {
  return html`${Object.entries(query).map(([name, value]) =>
    value === undefined ? "" : html`<input type="hidden" name="${name}" value="${value}">`,
  )}`;
}

/** Nothing can be done to what has ended for good. */
function canAct({ role, query: { state } }: PageContext): boolean {
  return role === "operate" && state !== "done" && state !== "discarded" && state !== "cancelled";
}

/** The jobs of a page, with boxes where somebody may act on them. */
export function jobTable(options: {
  readonly page: ListPage<JobRow>;
  readonly context: PageContext;
  readonly look: Look;
  readonly dead: boolean;
  readonly empty: Part;
}): Html {
  const { page, context, look, dead, empty } = options;
  const acts = canAct(context);
  const columns: Column[] = [
    ...(acts ? [{ label: "Select", quiet: true, lead: true }] : []),
    { label: "Job", lead: true },
    ...(dead ? [] : [{ label: "State", lead: true }]),
    { label: "Kind", name: true },
    { label: "Queue", wide: true },
    { label: "Failed", numeric: true },
    ...(dead
      ? [{ label: "Died" }, { label: "Reason" }, { label: "Ordering key" }]
      : [{ label: "Due" }, { label: "Slack", lead: true }, { label: "Why not running" }]),
  ];
  return table({
    caption: dead ? "Dead letters" : "Jobs",
    captionHidden: true,
    columns,
    rows: page.items.map((job) => rowOf(job, { context, look, dead, acts })),
    empty,
  });
}

function rowOf(
  job: JobRow,
  { context, look, dead, acts }: { context: PageContext; look: Look; dead: boolean; acts: boolean },
): Row {
  // Failures, not the number of the last attempt: what was handed back or given anew by a retry uses none up.
  const attempt = html`${job.failures}${job.maxAttempts === null ? "" : html`<span class="m"> of ${job.maxAttempts}</span>`}`;
  const kind = text(job.kind, 80);
  const rest: Part[] = dead
    ? [time(job.endedAt, look), reasonText(job.deadReason), text(job.orderingKey, 60)]
    : [
        job.endedAt === null ? time(job.runAt, look) : html`<span class="m">ended</span> ${time(job.endedAt, look)}`,
        slackOf(job, look),
        whyText(job.why, look),
      ];
  return {
    href: hrefs.job(job.id, look.keep),
    cells: [
      ...(acts
        ? [html`<input type="checkbox" name="id" value="${job.id}" form="bulk" aria-label="Select job ${job.id}">`]
        : []),
      jobLink(job.id, look),
      ...(dead ? [] : [stateMark(job.state)]),
      kind,
      text(job.queue, 60),
      attempt,
      ...rest,
    ],
    below: belowOf(job, context),
  };
}

const reasonTexts: Readonly<Record<string, string>> = {
  attempts: "attempts used up",
  handler: "dead-lettered by its handler",
  crashed: "its invocations crashed",
  missed: "deadline passed",
};

export function reasonText(reason: string | null): Part {
  return reason === null ? none : (reasonTexts[reason] ?? text(reason, 40));
}

function belowOf(job: JobRow, { options }: PageContext): Part {
  const error = job.error === null ? "" : html`${errorLine(job.error, 200)} `;
  const preview = !options.showPayloads
    ? ""
    : job.preview === null
      ? html`<span class="prev">{…} ${bytes(job.payloadBytes)}</span>`
      : html`<span class="prev">${text(jsonText(job.preview, { redact: options.redact, pretty: false }).text, 160)}</span>`;
  return error === "" && preview === "" ? null : html`${error}${preview}`;
}

/** The bar below a list: actions on what is selected, and on all that match. */
export function bulkBar(options: {
  readonly context: PageContext;
  readonly filter: JobFilter;
  readonly dead: boolean;
}): Html {
  const { context, filter, dead } = options;
  if (!canAct(context)) return html``;
  const back = context.here;
  const all: Query = { ...filterQuery(filter), back };
  const button = (verb: string, label: string, danger = false) =>
    html`<button class="btn${danger ? " danger" : ""}" name="do" value="${verb}" data-needs-selection>${label}</button>`;
  return html`<form class="bulk acts" id="bulk" method="get" action="/confirm" data-confirm aria-label="Actions">
<input type="hidden" name="back" value="${back}">
<span id="selected" class="m">Of the selected:</span> <button type="button" class="btn script" id="select-page" hidden>Select all shown</button>
${dead ? html`${button("retry", "Retry")}${button("discard", "Discard", true)}` : html`${button("run-now", "Run now")}${button("cancel", "Cancel", true)}`}
<span class="m">All that match:</span>
${
  dead
    ? html`${actionLink("Retry all", { do: "retry-all", ...all })}${actionLink("Discard all", { do: "discard-all", ...all }, true)}`
    : narrows(filter)
      ? actionLink("Cancel all", { do: "cancel-all", ...all }, true)
      : html`<span class="m">set a filter first</span>`
}
</form>`;
}

/** Why a filtered list is empty, and where it looked. */
function noMatch(page: ListPage<JobRow>, filter: JobFilter, path: string, context: PageContext): Html {
  const where = filter.queue === undefined ? "" : html` of queue ${text(`"${filter.queue}"`, 80)}`;
  return html`<p>No job matches.${page.searched === null ? "" : html` Searched the newest ${number(page.searched)}${where}.`} <a href="${url(path, keepOf(context))}">Clear filters</a></p>`;
}

/** Of a page that is not empty: where the search stopped. */
function searchedNote(page: ListPage<JobRow>): Html {
  return page.searched === null || page.items.length === 0
    ? html``
    : html`<p class="m">Searched the first ${number(page.searched)} that match the rest of the filter.</p>`;
}

/** A list with what was searched above it, its pager below, and why it is empty; or what went wrong with it. Null: nothing was asked. */
export function jobList(options: {
  readonly list: Loaded<ListPage<JobRow>> | null;
  readonly context: PageContext;
  readonly look: Look;
  readonly filter: JobFilter;
  readonly dead: boolean;
  readonly cursor: string | undefined;
  /** What stands where nothing is there, and nothing was filtered out. */
  readonly empty: Html;
}): Html | string {
  const { list, context, look, filter, dead, cursor } = options;
  if (list === null) return "";
  if ("fault" in list) return alertOf(list.fault);
  const page = list.value;
  const [path, href] = dead ? ["/dead", hrefs.dead] : ["/jobs", hrefs.jobs];
  const isNarrowed = narrows(filter) || (!dead && filter.state !== undefined) || cursor !== undefined;
  return html`${searchedNote(page)}${jobTable({
    page,
    context,
    look,
    dead,
    empty: isNarrowed ? noMatch(page, filter, path, context) : options.empty,
  })}${pager({
    shown: page.items.length,
    next: page.next,
    isFirst: cursor === undefined,
    to: (to) => href(filter, { ...look.keep, cursor: to }),
  })}`;
}
