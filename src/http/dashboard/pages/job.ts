// One job: where it stands, how it came there, what it needs and who has it, what it carries.

import { html } from "hono/html";
import type { JobDetail, LockView } from "../../../inspection.ts";
import type { PageContext } from "../context.ts";
import { load } from "../faults.ts";
import { bytes, count, cut, duration, many, slack } from "../format.ts";
import { jsonText } from "../json_text.ts";
import { type Badges, keepOf, type Page } from "../layout.ts";
import {
  actionLink,
  alertOf,
  block,
  type Html,
  type Look,
  none,
  type Part,
  slackOf,
  stateMark,
  text,
  time,
  whyText,
} from "../parts.ts";
import { hrefs } from "../routes.ts";
import { table } from "../table.ts";
import { timeline } from "../timeline.ts";

/** Characters of an error that are shown. */
const maxErrorLength = 16_384;

export async function jobPage(id: string, context: PageContext, badges: Promise<Badges>): Promise<Page> {
  const [read, overview] = await Promise.all([load(context.claimer.inspect.job(id)), badges]);
  const now = overview !== null && "value" in overview ? overview.value.now : null;
  const base = { id: "jobs", title: `Job ${id}`, now } as const;
  if ("fault" in read) return { ...base, status: 503, parts: [alertOf(read.fault)] };
  if (read.value === null) {
    return {
      ...base,
      status: 404,
      refresh: null,
      parts: [
        html`<p class="empty">There is no job ${id}, or its history has been pruned. <a href="/jobs">All jobs</a></p>`,
      ],
    };
  }
  const job = read.value;
  const look: Look = { zone: context.zone, now: now ?? job.enqueuedAt, keep: keepOf(context) };
  return {
    ...base,
    aside: text(job.kind, 120),
    parts: [
      { region: "state", content: stateLine(job, context, look) },
      { region: "history", content: history(job, look), label: "What happened" },
      { region: "locks", content: locks(job, look) },
      payload(job, context),
      facts(job, look),
      { region: "actions", content: actions(job, look) },
      asText(job, context),
    ],
  };
}

function stateLine(job: JobDetail, context: PageContext, look: Look): Html {
  const waits =
    job.state === "scheduled" || job.state === "retrying" || job.state === "ready" || job.state === "blocked";
  return html`<div class="card"><p class="head"><strong>${stateMark(job.state)}</strong>
<span>failed ${job.failures}${job.maxAttempts === null ? "" : ` of ${job.maxAttempts}`}</span>
${job.state === "retrying" || job.state === "scheduled" ? html`<span>next try ${time(job.runAt, look)}</span>` : ""}
${job.endedAt === null ? "" : html`<span>ended ${time(job.endedAt, look)}</span>`}
${job.slackMs === null ? "" : html`<span>slack ${slackOf(job, look)}</span>`}
${waits ? html`<span>${whyText(job.why, look)}</span>` : ""}</p>
${explain(job, look)}${job.lastError === null ? "" : errorText(job.lastError, "Last error")}${context.role === "operate" ? buttons(job, context.here) : ""}</div>`;
}

/** The sentence that a state deserves. */
function explain(job: JobDetail, look: Look): Part {
  if (job.suspect && job.endedAt === null) {
    return html`<p class="warn">Its last attempt ended with its invocation, so it runs in a tick of its own: should it do that again, nothing else is lost with it.</p>`;
  }
  if (
    job.state === "dead" &&
    job.orderingKey !== null &&
    job.why.reason !== "ended" &&
    job.behind !== null &&
    job.behind.n > 0
  ) {
    return html`<p class="bad">${many(job.behind, "job stands", "jobs stand")} behind it in key ${text(`"${job.orderingKey}"`, 120)}. If its kind halts on a dead letter, nothing behind it runs until you retry, skip or discard it.</p>`;
  }
  if (job.why.reason === "busy" && job.why.what !== null) {
    return html`<p>Left alone: another invocation holds the lock ${text(`"${job.why.what}"`, 120)}.</p>`;
  }
  if (job.slackMs !== null && job.endedAt === null && job.slackMs < 0)
    return html`<p class="bad">Its deadline was ${time(job.deadlineAt, look)}.</p>`;
  return "";
}

function buttons(job: JobDetail, back: string): Html {
  const of = (verb: string) => ({ do: verb, job: job.id, back });
  switch (job.state) {
    case "dead":
      return html`<p class="acts">${actionLink("Retry now", of("retry"))}${job.orderingKey === null ? "" : actionLink("Skip", of("skip"))}${actionLink("Discard", of("discard"), true)}</p>`;
    case "scheduled":
    case "retrying":
      return html`<p class="acts">${actionLink(job.state === "retrying" ? "Retry now" : "Run now", of("run-now"))}${actionLink("Reschedule", of("reschedule"))}${actionLink("Cancel", of("cancel"), true)}</p>`;
    case "ready":
    case "blocked":
      return html`<p class="acts">${actionLink("Reschedule", of("reschedule"))}${actionLink("Cancel", of("cancel"), true)}</p>`;
    case "running":
      return html`<p class="acts">${actionLink("Cancel", of("cancel"), true)}</p>`;
    case "done":
    case "discarded":
    case "cancelled":
      return html``;
    default:
      return job.state satisfies never;
  }
}

/** The message first, the stack folded. */
function errorText(error: string, label: string, id = "error"): Html {
  const shown = cut(error, maxErrorLength);
  const end = shown.indexOf("\n");
  const message = end === -1 ? shown : shown.slice(0, end);
  const rest = end === -1 ? "" : shown.slice(end + 1);
  return html`<div class="wrap"><strong class="bad">${label}:</strong> ${text(message, 2_000)}${rest === "" ? "" : html`<details id="${id}-stack"><summary>Stack</summary>${block(rest, `${label}, stack`)}</details>`}</div>`;
}

const outcomes: Readonly<Record<string, string>> = {
  crashed:
    "The attempt was opened and never closed, and its lock is free: the transaction that ran it is over. It counts only if it ran alone.",
  interrupted: "Its transaction was rolled back for another reason; the attempt does not count.",
  released: "Handed back untouched: its time was over before it could start.",
};

function history(job: JobDetail, look: Look): Html {
  const rows = job.attempts.map((attempt) => {
    const ran = attempt.endedAt === null ? null : Date.parse(attempt.endedAt) - Date.parse(attempt.startedAt);
    return {
      cells: [
        html`#${attempt.n}`,
        time(attempt.startedAt, look),
        attempt.invocationId === null
          ? html`<span class="m mono">${cut(attempt.tick, 9)}</span>`
          : html`<a class="mono" href="${hrefs.invocation(attempt.invocationId, look.keep)}">${cut(attempt.invocationId, 9)}</a>`,
        ran === null ? none : duration(ran),
        html`<span class="${attempt.outcome === "done" ? "good" : attempt.outcome === null ? "" : "warn"}">${attempt.outcome ?? "open"}</span>${attempt.quarantined ? html` <span class="m">alone</span>` : ""}`,
        html`<span class="mono">${job.id}:${attempt.n}</span>`,
        attempt.error === null
          ? html`<span class="m">${outcomes[attempt.outcome ?? ""] ?? none}</span>`
          : errorText(attempt.error, "Error", `attempt-${attempt.n}`),
      ],
    };
  });
  return html`<h2>What happened</h2>${timeline(job, look)}${table({
    caption: rows.length >= 100 ? "Attempts, the newest 100" : "Attempts",
    columns: [
      { label: "Attempt", lead: true },
      { label: "Started" },
      { label: "Invocation" },
      { label: "Open for", numeric: true },
      { label: "Outcome", lead: true },
      { label: "Fence token", wide: true },
      { label: "Error", grow: true },
    ],
    rows,
    empty: html`<p>It has not been started yet.</p>`,
  })}`;
}

function locks(job: JobDetail, look: Look): Html {
  if (job.locks.length === 0) return html``;
  return table({
    caption: "What it needs, and who has it now",
    columns: [{ label: "Name", lead: true }, { label: "Class" }, { label: "Now" }],
    rows: job.locks.map((lock) => ({
      cells: [text(lock.name, 200), html`<span class="k">${lock.class}</span>`, holderText(lock, look)],
    })),
    empty: "",
  });
}

function holderText({ heldBy, taken, max }: LockView, look: Look): Html {
  const slots = taken === null || max === null ? "" : html`${taken} of ${max} slots taken. `;
  if (heldBy === null) return html`${slots}<span class="good">${slots === "" ? "free" : ""}</span>`;
  return html`${slots}held by <a href="${`/holders${look.keep.tz === undefined ? "" : `?tz=${look.keep.tz}`}`}">pid ${heldBy.pid}</a>${heldBy.sinceMs === null ? "" : `, ${duration(heldBy.sinceMs)}`}${heldBy.mine ? ", by this job's own attempt" : ""}`;
}

function payload(job: JobDetail, { options }: PageContext): Html {
  const { text: shown, redacted } = jsonText(job.payloadText, { redact: options.redact, pretty: true });
  return html`<section aria-labelledby="h-payload"><div class="head"><h2 id="h-payload">Payload</h2><span class="m">${bytes(job.payloadBytes)}</span>
${job.payloadCut ? html`<span class="warn">the first 65,536 characters</span>` : ""}
${redacted.length === 0 ? "" : html`<span class="m">redacted: ${redacted.map((path, i) => html`${i === 0 ? "" : ", "}${text(path, 80)}`)}</span>`}
<button type="button" class="btn script" data-copy="payload-text" hidden>Copy</button> <a class="btn" href="${hrefs.payload(job.id)}" download>Download</a></div>
<div id="payload-text" class="wrap">${block(shown, "Payload as text")}</div></section>`;
}

function facts(job: JobDetail, look: Look): Html {
  const items: readonly (readonly [string, Part])[] = [
    ["Kind", text(job.kind)],
    ["Queue", html`<a href="${hrefs.jobs({ queue: job.queue }, look.keep)}">${text(job.queue)}</a>`],
    ["Enqueued", time(job.enqueuedAt, look)],
    ["Due", time(job.runAt, look)],
    ["Deadline", time(job.deadlineAt, look)],
    ["Slack", job.slackMs === null ? none : slack(job.slackMs)],
    ["Priority", job.priority === null ? none : html`${job.priority} <span class="m">(smaller runs first)</span>`],
    ["Failures that count", job.failures],
    [
      "Ordering key",
      job.orderingKey === null
        ? text(null)
        : html`<a href="${hrefs.jobs({ orderingKey: job.orderingKey }, look.keep)}">${text(job.orderingKey)}</a>`,
    ],
    [
      "Place in its key",
      html`${text(job.place)}${job.behind === null ? "" : html` <span class="m">${count(job.behind)} behind</span>`}`,
    ],
    ["Unique key", text(job.uniqueKey)],
    ["Idempotency key", text(job.idempotencyKey)],
    ["Enqueued by", text(job.source ?? "code or SQL")],
    ["Trace", text(job.trace)],
    ["Revision", job.revision === null ? none : String(job.revision)],
  ];
  return html`<section aria-labelledby="h-facts"><h2 id="h-facts">Facts</h2><dl class="facts">${items.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl></section>`;
}

function actions(job: JobDetail, look: Look): Html {
  if (job.actions.length === 0) return html``;
  return table({
    caption: "By hand",
    columns: [
      { label: "When", lead: true },
      { label: "What", lead: true },
      { label: "Who" },
      { label: "Detail", grow: true },
    ],
    rows: job.actions.map(({ at, verb, actor, detail }) => ({
      cells: [time(at, look), text(verb), text(actor), text(detail)],
    })),
    empty: "",
  });
}

/** The same look at the job for a terminal. An id is digits, so nothing in these texts needs quoting. */
function asText(job: JobDetail, { options }: PageContext): Html {
  const sql = `select pgclaim.job_detail_v1('{"id": "${job.id}"}'::jsonb);`;
  const curl = `curl -H "authorization: Bearer $PGCLAIM_READ_SECRET" "$PGCLAIM_URL/api/jobs/${job.id}"`;
  const warning = options.redact.length === 0 ? "" : html`<p class="m">What this page redacts, these show.</p>`;
  return html`<details id="as-sql"><summary>Copy as SQL</summary>${warning}${block(sql, "SQL")}</details>
<details id="as-curl"><summary>Copy as curl</summary>${warning}${block(curl, "curl")}</details>`;
}
