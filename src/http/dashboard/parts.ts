// The small pieces that pages are made of. Everything that comes from the database goes through `text`, `block` or `time`: it is
// escaped by the template, and what nobody could see in it is spelled out.

import { html } from "hono/html";
import type { Count, JobRow, ListState, Why } from "../../inspection.ts";
import type { JobId } from "../../model.ts";
import type { Fault } from "./faults.ts";
import { absolute, count, cut, many, nothing, relative, slack, visible } from "./format.ts";
import { hrefs, type Query } from "./routes.ts";

export type Html = ReturnType<typeof html>;

/** What may stand in a template. */
export type Part = Html | string | number | null | false | readonly Part[];

/** What a list is made with, wherever it stands. */
export interface Look {
  readonly zone: string;
  /** The database's clock. */
  readonly now: string;
  /** Kept on links between pages: the zone, if it is not UTC. */
  readonly keep: Query;
}

/** What stands where there is nothing to say; a narrow screen leaves its cell out. */
export const none = html`<span class="m none">${nothing}</span>`;

/** Text of the database within a line. */
export function text(value: string | null, length = 300): Html {
  return value === null ? none : html`<bdi>${visible(cut(value, length))}</bdi>`;
}

/** The first line of an error. */
export function errorLine(value: string, length: number): Html {
  return html`<span class="bad">${text(value.split("\n", 1)[0] ?? "", length)}</span>`;
}

/** Text of the database with its own lines. It scrolls by itself, so it can have the focus. */
export function block(value: string, label: string): Html {
  return html`<pre tabindex="0" role="region" aria-label="${label}"><bdi>${visible(value, true)}</bdi></pre>`;
}

/** An instant: relative in the cell, absolute on asking. The script keeps it true. */
export function time(at: string | null, look: Look): Html {
  if (at === null) return none;
  return html`<time datetime="${at}" title="${absolute(at, look.zone)}" data-t="rel">${relative(at, look.now)}</time>`;
}

/** Time left until a deadline, or how late it was. */
export function slackOf(job: Pick<JobRow, "slackMs" | "deadlineAt" | "endedAt">, look: Look): Html {
  if (job.slackMs === null || job.deadlineAt === null) return none;
  const tone = job.slackMs < 0 ? "bad" : job.slackMs < 60_000 ? "warn" : "";
  const title = `deadline ${absolute(job.deadlineAt, look.zone)}`;
  return job.endedAt === null
    ? html`<time class="${tone}" datetime="${job.deadlineAt}" title="${title}" data-t="slack">${slack(job.slackMs)}</time>`
    : html`<span class="${tone}" title="${title}">${slack(job.slackMs).replace(" left", " early")}</span>`;
}

/** A sign beside the word, so that nothing is said by colour alone. */
const marks: Readonly<Record<ListState, string>> = {
  ready: "●",
  running: "▶",
  scheduled: "◷",
  retrying: "↻",
  blocked: "◌",
  dead: "✖",
  done: "✔",
  discarded: "⌫",
  cancelled: "⊘",
};

export function stateMark(state: ListState): Html {
  return html`<span class="state s-${state}"><span aria-hidden="true">${marks[state]}</span> ${state}</span>`;
}

export function jobLink(id: JobId, look: Look): Html {
  return html`<a class="id" href="${hrefs.job(id, look.keep)}">${id}</a>`;
}

/** Why a job is not running, as a phrase. */
export function whyText(why: Why, look: Look): Html {
  const what = why.what ?? "?";
  switch (why.reason) {
    case "behind":
      return html`behind ${jobLink(what, look)}`;
    case "halted":
      return html`<span class="bad">key halted</span> by ${jobLink(what, look)}`;
    case "busy":
      return html`busy: ${text(what, 80)}`;
    case "limit":
      return html`limit full: ${text(what, 80)}`;
    case "paused":
      return html`queue ${text(what, 80)} is paused`;
    case "suspect":
      return html`waits for a tick of its own: it may have killed its invocation`;
    case "due":
      return html`nothing is in its way; the next trigger takes it`;
    case "scheduled":
      return html`scheduled`;
    case "backoff":
      return html`backoff`;
    case "running":
      return html`runs now`;
    case "ended":
    case "dead":
      return none;
    default:
      return why.reason satisfies never;
  }
}

/** A number that is a link to the list it counts. */
export function countLink(of: Count | number, href: string, tone = ""): Html {
  const counted = typeof of === "number" ? { n: of, capped: false } : of;
  return html`<a class="n ${counted.n > 0 ? tone : ""}" href="${href}">${count(counted)}</a>`;
}

export function alertOf(fault: Fault): Html {
  return html`<p class="note bad" role="alert">${visible(fault.sentence)}</p>`;
}

/** A part of the page that is refreshed by itself. */
export function region(id: string, content: Part, label?: string): Html {
  return label === undefined
    ? html`<div data-region="${id}" id="r-${id}">${content}</div>`
    : html`<section data-region="${id}" id="r-${id}" aria-label="${label}">${content}</section>`;
}

/** A button's look on a link to the confirm page of an action. */
export function actionLink(label: string, query: Query, danger = false): Html {
  return html`<a class="btn${danger ? " danger" : ""}" data-confirm href="${hrefs.confirm(query)}">${label}</a>`;
}

/** The list's place in its pages: `1–50, more`. The first page has no way back but "first": keyset paging goes forward. */
export function pager(options: {
  readonly shown: number;
  readonly next: string | null;
  readonly isFirst: boolean;
  readonly to: (cursor: string | undefined) => string;
}): Html {
  const { shown, next, isFirst, to } = options;
  return html`<nav class="pager" aria-label="Pages of this list">
    <span>${isFirst ? (shown === 0 ? "none" : `1–${shown}`) : many(shown, "more row", "more rows")}${next === null ? "" : ", more"}</span>
    ${isFirst ? "" : html`<a class="btn" href="${to(undefined)}">⇤ First page</a>`}
    ${next === null ? "" : html`<a class="btn" rel="next" href="${to(next)}">Older →</a>`}
  </nav>`;
}

/** Says which parameters were ignored. */
export function unknownNote(names: readonly string[]): Html {
  if (names.length === 0) return html``;
  return html`<p class="note warn">Ignored in the address, since this page does not know ${names.length === 1 ? "it" : "them"}: ${names.map((name, i) => html`${i === 0 ? "" : ", "}${text(name, 60)}`)}.</p>`;
}

/** What was wrong with the form. */
export function faultsNote(faults: readonly string[]): Html {
  return html`${faults.map((fault) => html`<p class="note bad" role="alert">${visible(cut(fault, 700))}</p>`)}`;
}
