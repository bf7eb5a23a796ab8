// Ordering keys: the halted ones first, what halts them, what waits behind, and what would run next.

import { html } from "hono/html";
import type { KeyRow } from "../../../inspection.ts";
import type { PageContext } from "../context.ts";
import { load } from "../faults.ts";
import { unknownNames } from "../filters.ts";
import { count, slack } from "../format.ts";
import { keepOf, type Page } from "../layout.ts";
import {
  actionLink,
  alertOf,
  errorLine,
  faultsNote,
  type Html,
  jobLink,
  type Look,
  none,
  type Part,
  pager,
  stateMark,
  text,
  time,
  unknownNote,
} from "../parts.ts";
import { hrefs } from "../routes.ts";
import { table } from "../table.ts";

const pageSize = 50;

export async function keysPage(context: PageContext): Promise<Page> {
  const { claimer, query } = context;
  const { halted: chosen = "", cursor } = query;
  const wrong = chosen !== "" && chosen !== "yes";
  const request = { ...(chosen === "yes" ? { halted: true } : {}), ...(cursor ? { cursor } : {}), limit: pageSize };
  const list = wrong ? null : await load(claimer.inspect.keys(request));
  const now = list !== null && "value" in list ? list.value.now : null;
  const look: Look = { zone: context.zone, now: now ?? "", keep: keepOf(context) };
  const content =
    list === null
      ? ""
      : "fault" in list
        ? alertOf(list.fault)
        : html`${keysTable(list.value.items, context, look)}${pager({
            shown: list.value.items.length,
            next: list.value.next,
            isFirst: !cursor,
            to: (to) => hrefs.keys({ ...look.keep, halted: chosen, cursor: to }),
          })}`;
  return {
    id: "keys",
    title: "Ordering keys",
    now,
    status: wrong ? 400 : 200,
    aside: html`<span class="switch" role="group" aria-label="Which keys">
<a href="${hrefs.keys(look.keep)}" ${chosen === "" ? html`aria-current="true"` : ""}>all with waiting jobs</a>
<a href="${hrefs.keys({ ...look.keep, halted: "yes" })}" ${chosen === "yes" ? html`aria-current="true"` : ""}>halted</a></span>`,
    parts: [
      unknownNote(unknownNames(query, ["halted", "cursor"])),
      wrong ? faultsNote([`halted is "${chosen}"; expected "yes" or nothing.`]) : html``,
      { region: "list", content },
    ],
  };
}

function keysTable(keys: readonly KeyRow[], context: PageContext, look: Look): Html {
  const acts = context.role === "operate";
  return table({
    caption: "Ordering keys",
    captionHidden: true,
    columns: [
      { label: "Key", lead: true },
      { label: "Kind", name: true },
      { label: "Head" },
      { label: "Halted since" },
      { label: "Behind", numeric: true },
      { label: "Oldest waiting" },
      { label: "Worst slack" },
      ...(acts ? [{ label: "Actions", quiet: true }] : []),
    ],
    rows: keys.map((key) => ({
      tone: key.halted ? "bad" : "",
      href: hrefs.jobs({ orderingKey: key.orderingKey, kind: key.kind }, look.keep),
      cells: [
        html`<a href="${hrefs.jobs({ orderingKey: key.orderingKey }, look.keep)}">${text(key.orderingKey, 120)}</a>`,
        text(key.kind, 80),
        html`${jobLink(key.head, look)} ${stateMark(key.headState)}`,
        key.haltedAt === null ? none : html`<span class="bad">${time(key.haltedAt, look)}</span>`,
        count(key.behind),
        time(key.oldestEnqueuedAt, look),
        key.worstSlackMs === null
          ? none
          : html`<span class="${key.worstSlackMs < 0 ? "bad" : ""}">${slack(key.worstSlackMs)}</span>`,
        ...(acts ? [key.halted ? headActions(key, context.here) : ""] : []),
      ],
      below: key.halted ? haltedSentence(key, look) : null,
    })),
    empty: html`<p>${context.query.halted === "yes" ? "No ordering key is halted." : "No job with an ordering key waits."}</p>`,
  });
}

function haltedSentence(key: KeyRow, look: Look): Html {
  return html`<p>Key ${text(`"${key.orderingKey}"`, 120)} is halted: its head ${jobLink(key.head, look)} is a dead letter. Nothing behind it runs until you retry, skip or discard it.
${key.headError === null ? "" : html`<br>${errorLine(key.headError, 200)}`}</p>`;
}

function headActions(key: KeyRow, back: string): Part {
  const query = { job: key.head, next: key.next ?? undefined, back };
  return html`<span class="acts">${actionLink("Retry head", { do: "retry", ...query })}${actionLink("Skip head", { do: "skip", ...query })}${actionLink("Discard head", { do: "discard", ...query }, true)}</span>`;
}
