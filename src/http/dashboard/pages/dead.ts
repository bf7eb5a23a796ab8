// Dead letters: what died of what, how many of each and since when; then the jobs themselves.

import { html } from "hono/html";
import type { DeadGroup } from "../../../inspection.ts";
import type { PageContext } from "../context.ts";
import { load } from "../faults.ts";
import { filterOf } from "../filters.ts";
import { number } from "../format.ts";
import { type Badges, keepOf, type Page } from "../layout.ts";
import { bulkBar, filterForm, jobList, reasonText } from "../lists.ts";
import { alertOf, errorLine, faultsNote, type Html, type Look, text, unknownNote } from "../parts.ts";
import { hrefs } from "../routes.ts";
import { table } from "../table.ts";

const pageSize = 50;

/** The columns of the table of groups: their name, their count, how far back they reach in hours; null is ever. */
const spans = [
  ["1 h", "h1", 1],
  ["3 h", "h3", 3],
  ["24 h", "h24", 24],
  ["3 d", "d3", 72],
  ["7 d", "d7", 168],
  ["All", "all", null],
] as const;

export async function deadPage(context: PageContext, badges: Promise<Badges>): Promise<Page> {
  const { claimer, query } = context;
  const { filter: given, cursor, faults, unknown } = filterOf({ ...query, state: "dead" });
  const filter = { ...given, state: "dead" } as const;
  const wrong = faults.length > 0;
  const [list, groups, kinds, overview] = await Promise.all([
    wrong
      ? null
      : load(claimer.inspect.jobs({ ...filter, ...(cursor === undefined ? {} : { cursor }), limit: pageSize })),
    load(claimer.inspect.deadGroups()),
    load(claimer.inspect.kinds()),
    badges,
  ]);
  const core = overview !== null && "value" in overview ? overview.value : null;
  const now = list !== null && "value" in list ? list.value.now : (core?.now ?? null);
  const look: Look = { zone: context.zone, now: now ?? "", keep: keepOf(context) };
  const content = jobList({ list, context, look, filter, dead: true, cursor, empty: html`<p>No dead letters.</p>` });
  return {
    id: "dead",
    title: "Dead letters",
    now,
    status: wrong ? 400 : 200,
    parts: [
      unknownNote(unknown),
      faultsNote(faults),
      { region: "groups", content: "fault" in groups ? alertOf(groups.fault) : groupsTable(groups.value, look) },
      filterForm({
        context,
        path: "/dead",
        kinds: "value" in kinds ? kinds.value.map(({ name }) => name) : [],
        queues: core?.queues.map(({ name }) => name) ?? [],
      }),
      { region: "list", content },
      list !== null && "value" in list && list.value.items.length > 0
        ? bulkBar({ context, filter, dead: true })
        : html``,
    ],
  };
}

function groupsTable(
  { groups, searched, cut, now }: { groups: readonly DeadGroup[]; searched: number; cut: boolean; now: string },
  look: Look,
): Html {
  if (groups.length === 0) return html``;
  return table({
    caption: cut ? `By kind and error, of the newest ${number(searched)}` : "By kind and error",
    columns: [
      { label: "Kind", lead: true, name: true },
      { label: "Reason" },
      { label: "Error", grow: true },
      ...spans.map(([label]) => ({ label, numeric: true })),
    ],
    rows: groups.map((group) => ({
      cells: [
        text(group.kind, 80),
        reasonText(group.reason),
        group.example === null ? text(null) : errorLine(group.example, 160),
        ...spans.map(([, key, hours]) => {
          const n = group.counts[key];
          if (n === 0) return html`<span class="m">0</span>`;
          const since = hours === null ? {} : { since: before(now, hours) };
          const filter = { kind: group.kind, fingerprint: group.fingerprint, ...since };
          return html`<a href="${hrefs.dead(filter, look.keep)}">${number(n)}</a>`;
        }),
      ],
    })),
    empty: "",
  });
}

/** So many hours before, to the minute: the same address for a minute. */
function before(now: string, hours: number): string {
  return new Date(Math.floor(Date.parse(now) / 60_000) * 60_000 - hours * 3_600_000).toISOString();
}
