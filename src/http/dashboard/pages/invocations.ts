// What each wake-up did, tick by tick; and one of them with its candidates, its skips and the cost of its phases.

import { html } from "hono/html";
import type { InvocationDetail, Series, TickRow, TicksRequest, TriggerRow } from "../../../inspection.ts";
import { type ChartSeries, chart } from "../chart.ts";
import type { PageContext } from "../context.ts";
import { load } from "../faults.ts";
import { unknownNames } from "../filters.ts";
import { absolute, cut, duration, number, visible } from "../format.ts";
import { type Badges, keepOf, type Page } from "../layout.ts";
import { hidden } from "../lists.ts";
import {
  alertOf,
  block,
  errorLine,
  faultsNote,
  type Html,
  jobLink,
  type Look,
  none,
  type Part,
  pager,
  text,
  time,
  unknownNote,
} from "../parts.ts";
import { hrefs, type Query, url } from "../routes.ts";
import { type Row, table } from "../table.ts";
import { phases, skipSentence } from "../ticks.ts";

const pageSize = 50;
const chartMs = 10_800_000;

export async function invocationsPage(context: PageContext, badges: Promise<Badges>): Promise<Page> {
  const { claimer, query } = context;
  const { trigger, outcome, cursor } = query;
  const wrong = outcome !== undefined && outcome !== "" && outcome !== "committed" && outcome !== "lost";
  const request: TicksRequest = {
    ...(trigger ? { trigger } : {}),
    ...(outcome === "committed" || outcome === "lost" ? { outcome } : {}),
    ...(cursor ? { cursor } : {}),
    limit: pageSize,
  };
  const [list, series, overview] = await Promise.all([
    wrong ? null : load(claimer.inspect.ticks(request)),
    load(claimer.inspect.series({ windowMs: chartMs })),
    badges,
  ]);
  const core = overview !== null && "value" in overview ? overview.value : null;
  const now = list !== null && "value" in list ? list.value.now : (core?.now ?? null);
  const look: Look = { zone: context.zone, now: now ?? "", keep: keepOf(context) };
  const hides = query.work === "yes";
  const content =
    list === null
      ? ""
      : "fault" in list
        ? alertOf(list.fault)
        : html`${ticksTable(hides ? list.value.items.filter(({ claimed }) => claimed > 0) : list.value.items, look)}${pager(
            {
              shown: list.value.items.length,
              next: list.value.next,
              isFirst: !cursor,
              to: (to) => hrefs.invocations({ ...look.keep, trigger, outcome, work: query.work, cursor: to }),
            },
          )}`;
  return {
    id: "invocations",
    title: "Invocations",
    now,
    refresh: 5,
    status: wrong ? 400 : 200,
    parts: [
      unknownNote(unknownNames(query, ["trigger", "outcome", "cursor", "work"])),
      wrong ? faultsNote([`outcome is "${outcome}"; expected "committed" or "lost".`]) : html``,
      {
        region: "chart",
        content: "fault" in series ? alertOf(series.fault) : claimedChart(series.value, context.zone),
      },
      filterForm(query, core?.triggers ?? [], keepOf(context)),
      { region: "list", content },
      html`<p class="m">A wake that finds nothing due leaves its mark at its trigger (see the overview) and no line here. Lost: the transaction did not commit, and what it had claimed runs again. RT: round trips on the session + one-shots beside it.</p>`,
    ],
  };
}

function filterForm(query: Query, triggers: readonly TriggerRow[], keep: Query): Html {
  const option = (value: string, label: string, chosen: string | undefined) =>
    html`<option value="${value}" ${value === (chosen ?? "") ? html`selected` : ""}>${label}</option>`;
  return html`<form class="filter" method="get" action="/invocations" role="search" aria-label="Filter">
<span class="field"><label for="f-trigger">Trigger</label><select id="f-trigger" name="trigger" data-filter>${option("", "all", query.trigger)}${triggers.map(({ name }) => option(name, visible(cut(name, 80)), query.trigger))}</select></span>
<span class="field"><label for="f-outcome">Outcome</label><select id="f-outcome" name="outcome">${option("", "any", query.outcome)}${option("committed", "committed", query.outcome)}${option("lost", "lost", query.outcome)}</select></span>
<label><input type="checkbox" name="work" value="yes" ${query.work === "yes" ? html`checked` : ""}> Hide those that claimed nothing</label>
${hidden(keep)}<button class="btn primary">Filter</button> <a class="btn" href="${url("/invocations", keep)}">Clear</a></form>`;
}

function claimedChart(series: Series, zone: string): Html {
  const perMinute = 60_000 / series.stepMs;
  const pick = (value: (point: Series["points"][number]) => number) =>
    new Map(series.points.map((point) => [Date.parse(point.at), value(point) * perMinute] as const));
  const bars: ChartSeries[] = [
    { label: "claimed", look: "c1", shape: "bar", values: pick(({ claimed }) => claimed) },
    { label: "skipped", look: "c4", shape: "bar", values: pick(({ skipped }) => skipped) },
  ];
  return chart({
    id: "c-claimed",
    title: "Claimed and skipped, last 3 h",
    unit: "per-minute",
    series: bars,
    from: Date.parse(series.from),
    to: Date.parse(series.to),
    stepMs: series.stepMs,
    zone,
  });
}

function ticksTable(ticks: readonly TickRow[], look: Look): Html {
  return table({
    caption: "Ticks",
    captionHidden: true,
    columns: [
      { label: "Started", lead: true },
      { label: "Invocation", lead: true },
      { label: "Trigger" },
      { label: "Tick", numeric: true },
      { label: "Claimed", numeric: true },
      { label: "Done", numeric: true },
      { label: "Failed", numeric: true },
      { label: "Back", numeric: true },
      { label: "Skipped" },
      { label: "RT", numeric: true, wide: true },
      { label: "Total", numeric: true },
      { label: "End", lead: true },
    ],
    rows: ticks.map((tick) => tickRow(tick, look)),
    empty: html`<p>No tick yet. A trigger that finds a due job makes the first one.</p>`,
  });
}

function tickRow(tick: TickRow, look: Look): Row {
  const { outcomes } = tick;
  const failed = (outcomes.retried ?? 0) + (outcomes.dead ?? 0) + (outcomes.missed ?? 0) + (outcomes.failed ?? 0);
  const back = (outcomes.released ?? 0) + (outcomes.interrupted ?? 0) + (outcomes.snoozed ?? 0);
  return {
    href: hrefs.invocation(tick.invocationId, look.keep),
    tone: tick.outcome === "lost" ? "bad" : "",
    cells: [
      time(tick.startedAt ?? tick.decidedAt, look),
      html`<a class="mono" href="${hrefs.invocation(tick.invocationId, look.keep)}">${visible(cut(tick.invocationId, 9))}</a>`,
      text(tick.trigger, 60),
      html`${tick.n ?? none}${tick.quarantined ? html` <span class="m">alone</span>` : ""}`,
      number(tick.claimed),
      number(outcomes.done ?? 0),
      failed === 0 ? html`<span class="m">0</span>` : html`<span class="bad">${number(failed)}</span>`,
      number(back),
      skippedText(tick.skipped),
      tick.roundTrips === null ? none : `${tick.roundTrips.session}+${tick.roundTrips.oneShot}`,
      tick.totalMs === null ? none : duration(tick.totalMs),
      endText(tick),
    ],
  };
}

function skippedText(skipped: TickRow["skipped"]): Part {
  const entries = Object.entries(skipped).filter(([, n]) => (n ?? 0) > 0);
  if (entries.length === 0) return html`<span class="m">0</span>`;
  const total = entries.reduce((sum, [, n]) => sum + (n ?? 0), 0);
  return `${number(total)} (${entries.map(([reason, n]) => `${number(n ?? 0)} ${reason}`).join(", ")})`;
}

function endText(tick: TickRow): Html {
  return tick.outcome === "committed"
    ? html`<span class="good k">✔ committed</span>`
    : html`<span class="bad k" title="Its transaction did not commit. What it had claimed runs again.">✖ lost</span>`;
}

export async function invocationPage(id: string, context: PageContext): Promise<Page> {
  const read = await load(context.claimer.inspect.invocation(id));
  const base = { id: "invocations", title: `Invocation ${cut(id, 40)}` } as const;
  if ("fault" in read) return { ...base, now: null, status: 503, parts: [alertOf(read.fault)] };
  if (read.value === null) {
    return {
      ...base,
      now: null,
      status: 404,
      refresh: null,
      parts: [
        html`<p class="empty">There is no record of this invocation: it found nothing due, or its record has been pruned. <a href="/invocations">All invocations</a></p>`,
      ],
    };
  }
  const detail = read.value;
  const look: Look = { zone: context.zone, now: detail.now, keep: keepOf(context) };
  return {
    ...base,
    now: detail.now,
    refresh: null,
    aside: text(detail.ticks[0]?.trigger ?? null, 100),
    parts: [...detail.ticks.map((tick) => tickSection(tick, look)), asJson(detail)],
  };
}

type TickDetail = InvocationDetail["ticks"][number];

function tickSection(tick: TickDetail, look: Look): Html {
  const heading = `Tick ${tick.n ?? ""}`.trim();
  return html`<section aria-label="${heading}"><div class="head"><h2>${heading}</h2>${endText(tick)}
<span>${tick.startedAt === null ? "" : absolute(tick.startedAt, look.zone)}</span><span class="m mono">${visible(tick.tickId)}</span>
${tick.quarantined ? html`<span class="warn">alone: one job that may have killed its invocation</span>` : ""}</div>
${tick.outcome === "lost" ? html`<p class="bad">The connection was lost before its COMMIT was seen to succeed, and the record says that it did not. Its jobs run again.</p>` : ""}
${phases(tick)}
${table({
  caption: "Claimed",
  columns: [
    { label: "Job", lead: true },
    { label: "Kind", name: true },
    { label: "Attempt", numeric: true },
    { label: "Outcome", lead: true },
    { label: "Open for", numeric: true },
    { label: "Error", grow: true },
  ],
  rows: tick.jobs.map((job) => ({
    href: hrefs.job(job.jobId, look.keep),
    cells: [
      jobLink(job.jobId, look),
      text(job.kind, 80),
      number(job.attempt),
      html`<span class="${job.outcome === "done" ? "good" : "warn"}">${job.outcome ?? "open"}</span>`,
      job.endedAt === null ? none : duration(Date.parse(job.endedAt) - Date.parse(job.startedAt)),
      job.error === null ? none : errorLine(job.error, 200),
    ],
  })),
  empty: html`<p>It claimed nothing.</p>`,
})}
${
  tick.skips.length === 0
    ? html`<p class="m">${Object.keys(tick.skipped).length === 0 ? "It left nothing alone." : html`Left alone: ${skippedText(tick.skipped)}.`}</p>`
    : table({
        caption: "Left alone",
        columns: [
          { label: "Job", lead: true },
          { label: "Kind", name: true },
          { label: "Why", grow: true },
        ],
        rows: tick.skips.map((skip) => ({
          href: hrefs.job(skip.jobId, look.keep),
          cells: [jobLink(skip.jobId, look), text(skip.kind, 80), skipSentence(skip)],
        })),
        empty: "",
      })
}</section>`;
}

function asJson(detail: InvocationDetail): Html {
  return html`<details id="as-json"><summary>As JSON</summary>${block(JSON.stringify(detail, null, 2), "The invocation as JSON")}</details>`;
}
