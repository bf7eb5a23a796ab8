// Who holds what right now, proved by the database's own table of locks.

import { html } from "hono/html";
import type { Holder, Holders } from "../../../inspection.ts";
import type { PageContext } from "../context.ts";
import { load } from "../faults.ts";
import { unknownNames } from "../filters.ts";
import { cut, duration } from "../format.ts";
import { keepOf, type Page } from "../layout.ts";
import { actionLink, alertOf, type Html, jobLink, type Look, none, type Part, text, unknownNote } from "../parts.ts";
import { hrefs } from "../routes.ts";
import { table } from "../table.ts";

/** Jobs and names of one holder that are listed; a tick may hold hundreds. */
const maxListed = 20;

export async function holdersPage(context: PageContext): Promise<Page> {
  const read = await load(context.claimer.inspect.holders());
  const now = "value" in read ? read.value.now : null;
  const look: Look = { zone: context.zone, now: now ?? "", keep: keepOf(context) };
  return {
    id: "holders",
    title: "Holders",
    now,
    refresh: 5,
    aside: html`<span class="m">who holds which lock at this moment; a lock ends with its transaction</span>`,
    parts: [
      unknownNote(unknownNames(context.query, [])),
      { region: "list", content: "fault" in read ? alertOf(read.fault) : content(read.value, context, look) },
    ],
  };
}

function content({ holders, capped, gone }: Holders, context: PageContext, look: Look): Html {
  const acts = context.role === "operate";
  return html`${capped ? html`<p class="note warn">More than 500 locks are held; the first of them are shown.</p>` : ""}${table(
    {
      caption: "Holders",
      captionHidden: true,
      columns: [
        { label: "Process", lead: true },
        { label: "Holds", grow: true },
        { label: "Session" },
        { label: "Transaction", numeric: true },
        { label: "Invocation" },
        ...(acts ? [{ label: "Actions", quiet: true }] : []),
      ],
      rows: holders.map((holder) => ({
        cells: [
          html`<strong class="k">pid ${holder.pid}</strong>`,
          holds(holder, look),
          session(holder),
          holder.transactionMs === null ? none : duration(holder.transactionMs),
          holder.invocationId === null
            ? none
            : html`<a class="mono" href="${hrefs.invocation(holder.invocationId, look.keep)}">${cut(holder.invocationId, 9)}</a>`,
          ...(acts ? [terminate(holder, context.here)] : []),
        ],
      })),
      empty: html`<p>Nobody holds a lock of this installation right now.</p>`,
    },
  )}${table({
    caption: "Attempts whose holder is gone",
    columns: [
      { label: "Job", lead: true },
      { label: "Kind" },
      { label: "Attempt", numeric: true },
      { label: "Open for", numeric: true },
      { label: "What happens", grow: true },
    ],
    rows: gone.map((one) => ({
      href: hrefs.job(one.id, look.keep),
      cells: [
        jobLink(one.id, look),
        text(one.kind, 80),
        String(one.attempt),
        duration(one.sinceMs),
        "Holder gone: its lock is free, so its transaction is over. The next wake closes it as crashed.",
      ],
    })),
    empty: "No open attempt has lost its holder.",
  })}`;
}

function holds(holder: Holder, look: Look): Part {
  const jobs = holder.jobs.slice(0, maxListed);
  const names = holder.names.slice(0, maxListed);
  const more = holder.jobs.length - jobs.length + (holder.names.length - names.length);
  if (jobs.length + names.length + holder.unknownKeys.length === 0) return none;
  return html`${jobs.map((job, i) => html`${i === 0 ? "" : ", "}${jobLink(job.id, look)} <span class="m">${text(job.kind, 60)}, attempt ${job.attempt}, ${duration(job.sinceMs)}</span>`)}${names.map(
    ({ class: kind, name, shared }) =>
      html`<div><span class="m">${kind}${shared && kind !== "shared" ? " (shared)" : ""}</span> ${text(name, 120)}</div>`,
  )}${holder.unknownKeys.slice(0, maxListed).map((key) => html`<div class="warn"><span class="mono">${text(key, 40)}</span> not a known name</div>`)}${more > 0 ? html`<div class="m">and ${more} more</div>` : ""}`;
}

function session(holder: Holder): Html {
  if (holder.transactionStart === null && holder.state === null) {
    return html`<span class="warn">Another role holds it; grant pg_read_all_stats to see more.</span>`;
  }
  return html`${text(holder.state, 60)}${holder.stateMs === null ? "" : ` ${duration(holder.stateMs)}`}<br><span class="m">${text(holder.user, 60)} ${text(holder.applicationName, 60)}</span>`;
}

function terminate(holder: Holder, back: string): Part {
  if (holder.transactionStart === null) return "";
  return actionLink(
    "Terminate",
    {
      do: "terminate",
      pid: String(holder.pid),
      start: holder.transactionStart,
      jobs: String(holder.jobs.length),
      back,
    },
    true,
  );
}
