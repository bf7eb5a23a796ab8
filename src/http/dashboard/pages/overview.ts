// The first page: is it running, what is stuck, will we make it, how fast. In this order.

import { html } from "hono/html";
import { nextAfter, parseRule } from "../../../cron.ts";
import type { Count, Overview, QueueRow, Series, TriggerRow } from "../../../inspection.ts";
import { type ChartSeries, chart } from "../chart.ts";
import type { PageContext } from "../context.ts";
import { load } from "../faults.ts";
import { unknownNames } from "../filters.ts";
import { about, clock, count, duration, many, number, visible } from "../format.ts";
import { type Badges, keepOf, type Page } from "../layout.ts";
import {
  actionLink,
  alertOf,
  countLink,
  type Html,
  jobLink,
  type Look,
  none,
  type Part,
  text,
  time,
  unknownNote,
} from "../parts.ts";
import { type filterQuery, hrefs, url } from "../routes.ts";
import { table } from "../table.ts";

/** Windows of the charts, in milliseconds. */
export const windows = { "1h": 3_600_000, "3h": 10_800_000, "24h": 86_400_000, "7d": 604_800_000 } as const;
type Window = keyof typeof windows;

export function windowOf(value: string | undefined): Window | null {
  if (value === undefined || value === "") return "3h";
  return Object.hasOwn(windows, value) ? (value as Window) : null;
}

export async function overviewPage(context: PageContext, badges: Promise<Badges>): Promise<Page> {
  const { query, claimer } = context;
  const window = windowOf(query.window);
  const [read, series] = await Promise.all([
    badges,
    load(claimer.inspect.series({ windowMs: windows[window ?? "3h"] })),
  ]);
  const core = read !== null && "value" in read ? read.value : null;
  const look: Look = { zone: context.zone, now: core?.now ?? "", keep: keepOf(context) };
  const wrongWindow =
    window === null
      ? html`<p class="note bad" role="alert">window is "${visible(query.window ?? "")}"; expected one of ${Object.keys(windows).join(", ")}.</p>`
      : "";
  const charts = html`${wrongWindow}${chartHead(context, window)}${
    "value" in series ? html`<div class="two">${charts2(series.value, context.zone)}</div>` : alertOf(series.fault)
  }`;
  return {
    id: "overview",
    title: "Overview",
    now: core?.now ?? null,
    refresh: 5,
    status: window === null ? 400 : 200,
    parts: [
      unknownNote(unknownNames(query, ["window"])),
      ...(core === null
        ? []
        : [
            { region: "alerts", content: alerts(core, look, context) },
            { region: "depth", content: depth(core, look), label: "Jobs by state" },
            {
              region: "time",
              content: html`<div class="two">${slackCard(core, look)}${triggersCard(core.triggers, look)}</div>`,
            },
          ]),
      { region: "charts", content: charts, label: "Charts" },
      ...(core === null ? [] : [{ region: "queues", content: queues(core, context, look) }]),
    ],
  };
}

function alerts(core: Overview, look: Look, context: PageContext): Html {
  const said: Html[] = [];
  for (const trigger of core.triggers) {
    if (trigger.status !== "silent") continue;
    said.push(html`<div class="note bad" role="alert">✖ Trigger ${text(`"${trigger.name}"`, 120)} is silent: last seen ${time(trigger.lastSeenAt, look)}${everyText(trigger, ", expected every ")}.
      <details id="what-${trigger.type}"><summary>What to do</summary>
      <p>Nothing runs until a trigger wakes this deployment. Look whether the deployment is there (<code>wrangler deployments list</code>) and its cron is set; a new Cloudflare cron can take up to 15 minutes to start. To run what is due now: <code>pgclaim trigger --url https://…</code></p></details></div>`);
  }
  if (core.haltedKeys.n > 0) {
    said.push(
      html`<p class="note bad" role="alert">✖ ${many(core.haltedKeys, "ordering key is", "ordering keys are")} halted; ${many(core.behindHalted, "job waits", "jobs wait")} behind ${core.haltedKeys.n === 1 ? "it" : "them"}. <a href="${hrefs.keys({ halted: "yes", ...look.keep })}">Show keys</a></p>`,
    );
  }
  if (core.unregistered.length > 0) {
    said.push(
      html`<p class="note warn" role="alert">Jobs wait for ${many(core.unregistered.length, "kind")} that no deployment in force defines: ${core.unregistered.map(
        (kind, i) =>
          html`${i === 0 ? "" : ", "}<a href="${hrefs.jobs({ kind }, look.keep)}">${text(`"${kind}"`, 80)}</a>`,
      )}. Deploy code that exports them, or discard the jobs.</p>`,
    );
  }
  if (core.triggers.length === 0) {
    said.push(
      html`<p class="note warn">No trigger was seen yet. A new Cloudflare cron can take up to 15 minutes to start; <code>pgclaim trigger --url https://…</code> runs what is due now.</p>`,
    );
  }
  if (isNew(core)) said.push(firstJob(context));
  return html`${said}`;
}

/** How often a trigger is expected: by its rule, two occurrences apart; else as it came so far. */
function everyText({ name, everyMs, lastSeenAt }: TriggerRow, before: string): string {
  if (everyMs === null) return "";
  try {
    const rule = parseRule(name.replace(/^cron /, ""), "UTC");
    const first = nextAfter(rule, Date.parse(lastSeenAt));
    const second = first === null ? null : nextAfter(rule, first);
    if (first !== null && second !== null) return `${before}${duration(second - first)}`;
  } catch {
    // No rule in its name.
  }
  return `${before}${duration(everyMs)}`;
}

function isNew(core: Overview): boolean {
  const { ready, scheduled, retrying, blocked } = core.depth;
  const waiting = ready.n + scheduled.n + retrying.n + blocked.n + core.dead.n + core.running;
  return waiting === 0 && core.nextDueAt === null && (core.historyRows ?? 0) <= 0;
}

/** What stands where no job has ever been. */
export function firstJob({ claimer }: Pick<PageContext, "claimer">): Html {
  const [kind = "receipt.send"] = claimer.kinds;
  return html`<div class="empty"><p>No jobs yet. Enqueue one: <code>pgclaim jobs enqueue ${visible(kind)} '{"orderId":"42"}'</code>, or in your code:</p>
<pre tabindex="0" role="region" aria-label="Code that enqueues a job">await claimer.enqueue(sendReceipt, { orderId: "42" });</pre></div>`;
}

function tile(name: string, value: Html, below: Part): Html {
  return html`<li><span class="m">${name}</span>${value}<span class="m">${below}</span></li>`;
}

function depth(core: Overview, look: Look): Html {
  const big = (shown: string, href: string, tone: string) =>
    html`<a class="big ${shown === "0" || shown === "–" ? "" : tone}" href="${href}">${shown}</a>`;
  const { ready, scheduled, retrying, blocked } = core.depth;
  // What was never counted is not none.
  const sampled = (n: Count) => (core.sampledAt === null ? "–" : count(n));
  const to = (state: Parameters<typeof filterQuery>[0]["state"]) =>
    hrefs.jobs({ ...(state ? { state } : {}) }, look.keep);
  return html`<ul class="tiles">
${tile("Ready", big(sampled(ready), to("ready"), "s-ready"), core.oldestReadyMs === null ? "none waits now" : `oldest ${duration(core.oldestReadyMs)}`)}
${tile("Running", big(count({ n: core.running, capped: false }), to("running"), "s-running"), core.longestRunMs === null ? "none now" : `longest ${duration(core.longestRunMs)}`)}
${tile("Retrying", big(sampled(retrying), to("retrying"), "s-retrying"), "after a failure")}
${tile("Scheduled", big(sampled(scheduled), to("scheduled"), ""), core.nextDueAt === null ? "none to come" : html`next due ${time(core.nextDueAt, look)}`)}
${tile("Blocked", big(sampled(blocked), to("blocked"), ""), "behind their key")}
${tile("Dead", big(count(core.dead), hrefs.dead({}, look.keep), "s-dead"), core.newestDeadAt === null ? "no dead letters" : html`newest ${time(core.newestDeadAt, look)}`)}
</ul>
<p class="m">${
    core.sampledAt === null
      ? "Ready, retrying, scheduled and blocked were not counted yet: triggers count them, once a minute."
      : html`Ready, retrying, scheduled and blocked as of ${clock(core.sampledAt, look.zone)}; the rest is live.`
  } Rows of history: ${about(core.historyRows)}.</p>`;
}

function slackCard(core: Overview, look: Look): Html {
  const { slack } = core;
  const cells = [
    ["late", slack.late, "s-dead"],
    ["under 1 min", slack.under1m, "s-retrying"],
    ["1–5 min", slack.under5m, ""],
    ["5–15 min", slack.under15m, ""],
    ["over 15 min", slack.over15m, ""],
  ] as const;
  return html`<section class="card" aria-labelledby="h-slack"><h2 id="h-slack">Slack to deadline, unfinished jobs</h2>
<dl class="facts tight">${cells.map(([name, of, tone]) => html`<div><dt>${name}</dt><dd class="${of.n > 0 ? tone : ""}"><strong>${count(of)}</strong></dd></div>`)}
<div><dt>missed, dead</dt><dd>${countLink(core.missed, hrefs.dead({ reason: "missed" }, look.keep), "bad")}</dd></div></dl>
<p>${
    slack.tightestMs === null
      ? html`<span class="m">No unfinished job has a deadline.</span>`
      : html`Tightest: ${slack.tightestMs < 0 ? html`<strong class="bad">missed by ${duration(-slack.tightestMs)}</strong>` : html`<strong>${duration(slack.tightestMs)} left</strong>`}${slack.tightest === null ? "" : html` (job ${jobLink(slack.tightest, look)})`}. ${
          slack.atRisk.n > 0
            ? html`<strong class="warn">${many(slack.atRisk, "job")} at risk</strong>: less time left than such jobs take (p95), or a retry due after the deadline.`
            : "None at risk."
        }`
  }</p></section>`;
}

const statuses: Readonly<Record<TriggerRow["status"], Html>> = {
  ok: html`<span class="good">✔ ok</span>`,
  late: html`<span class="warn">! late</span>`,
  silent: html`<span class="bad">✖ silent</span>`,
  unexpected: html`<span class="m">on demand</span>`,
};

function triggersCard(triggers: readonly TriggerRow[], look: Look): Html {
  return html`<section class="card" aria-labelledby="h-triggers"><h2 id="h-triggers">Triggers, last 60 minutes</h2>
${
  triggers.length === 0
    ? html`<p class="m">Not seen yet; a new Cloudflare cron can take up to 15 minutes to start.</p>`
    : triggers.map(
        (trigger) => html`<div class="head"><strong>${text(trigger.name, 100)}</strong> ${statuses[trigger.status]}
<span class="m">seen ${time(trigger.lastSeenAt, look)}${everyText(trigger, ", every ")}</span></div>${strip(trigger)}`,
      )
}
<p class="m">Each cell is a minute: <svg class="sw strip k2" viewBox="0 0 1 1" aria-hidden="true"><path class="k2" d="M0 0h1v1h-1z"/></svg>worked
<svg class="sw strip" viewBox="0 0 1 1" aria-hidden="true"><path class="k1" d="M0 .3h1v.4h-1z"/></svg>woke, no work
<svg class="sw strip" viewBox="0 0 1 1" aria-hidden="true"><path class="k0" d="M0 .8h1v.2h-1z"/></svg>not woken</p></section>`;
}

/** Cells of different heights, so that they are told apart without colour. */
function strip({ minutes, name }: TriggerRow): Html {
  const paths = ["", "", ""];
  for (const [at, { woken, worked }] of minutes.entries()) {
    const kind = worked > 0 ? 2 : woken > 0 ? 1 : 0;
    const h = [3, 9, 18][kind] ?? 0;
    paths[kind] += `M${at} ${18 - h}h.85v${h}h-.85z`;
  }
  const woken = minutes.filter((minute) => minute.woken > 0).length;
  const worked = minutes.filter((minute) => minute.worked > 0).length;
  const label = `Woken in ${woken} of the last ${minutes.length} minutes, with work in ${worked}`;
  return html`<svg class="strip" viewBox="0 0 ${Math.max(minutes.length, 1)} 18" preserveAspectRatio="none" role="img" aria-label="${visible(name)}: ${label}"><title>${label}</title>${paths.map((d, k) => html`<path class="k${k}" d="${d}"/>`)}</svg>`;
}

function chartHead(context: PageContext, window: Window | null): Html {
  return html`<div class="head"><h2>Over time</h2><span class="switch" role="group" aria-label="Window of the charts">${Object.keys(
    windows,
  ).map(
    (one) =>
      html`<a href="${url("/", { ...keepOf(context), window: one })}" ${one === window ? html`aria-current="true"` : ""}>${one}</a>`,
  )}</span></div>`;
}

function charts2(series: Series, zone: string): Html[] {
  const perMinute = 60_000 / series.stepMs;
  const pick = (value: (point: Series["points"][number]) => number | null) =>
    new Map(series.points.map((point) => [Date.parse(point.at), value(point)] as const));
  const base = { from: Date.parse(series.from), to: Date.parse(series.to), stepMs: series.stepMs, zone };
  const finished: ChartSeries[] = [
    { label: "done", look: "c1", shape: "area", values: pick(({ done }) => done * perMinute) },
    {
      label: "failed or dead",
      look: "c2",
      shape: "line",
      values: pick(({ failed }) => failed * perMinute),
    },
  ];
  const latency: ChartSeries[] = [
    { label: "p95", look: "c3", shape: "line", values: pick(({ p95Ms }) => p95Ms) },
    { label: "p50", look: "c4", shape: "line", values: pick(({ p50Ms }) => p50Ms) },
  ];
  return [
    chart({ id: "c-done", title: "Finished", unit: "per-minute", series: finished, ...base }),
    chart({ id: "c-late", title: "From due to done", unit: "ms", series: latency, ...base }),
  ];
}

function queues(core: Overview, context: PageContext, look: Look): Html {
  const back = context.here;
  return table({
    caption: "Queues",
    columns: [
      { label: "Queue", lead: true },
      { label: "Ready", numeric: true },
      { label: "Oldest ready", numeric: true },
      { label: "Running", numeric: true },
      { label: "Retrying", numeric: true },
      { label: "Dead", numeric: true },
      { label: "Done/min", numeric: true },
      { label: "p95", numeric: true },
      ...(context.role === "operate" ? [{ label: "Actions", quiet: true }] : []),
    ],
    rows: core.queues.map((queue) => ({
      tone: queue.pausedAt === null ? "" : "warn",
      cells: [
        html`<a href="${hrefs.jobs({ queue: queue.name }, look.keep)}">${text(queue.name, 80)}</a>${
          queue.pausedAt === null ? "" : html` <span class="warn">■ paused ${time(queue.pausedAt, look)}</span>`
        }`,
        core.sampledAt === null ? none : cell(queue, "ready", look),
        queue.oldestReadyMs === null ? none : duration(queue.oldestReadyMs),
        html`${queue.running}${queue.max === null ? "" : html`<span class="m"> of ${queue.max}</span>`}`,
        core.sampledAt === null ? none : cell(queue, "retrying", look),
        core.sampledAt === null ? none : cell(queue, "dead", look),
        number(queue.donePerMinute),
        queue.lateMs.p95 === null ? none : duration(queue.lateMs.p95),
        ...(context.role === "operate"
          ? [
              queue.pausedAt === null
                ? actionLink("Pause", { do: "pause-queue", name: queue.name, back })
                : actionLink("Resume", { do: "resume-queue", name: queue.name, back }),
            ]
          : []),
      ],
    })),
    empty: html`<p>No queue yet. A queue is there once a deployment that uses it first ran, or a job was put into it.</p>`,
  });
}

function cell({ name, depth: of }: QueueRow, state: "ready" | "retrying" | "dead", look: Look): Html {
  const counted = of[state] ?? { n: 0, capped: false };
  const href =
    state === "dead" ? hrefs.dead({ queue: name }, look.keep) : hrefs.jobs({ queue: name, state }, look.keep);
  return countLink(counted, href, state === "dead" ? "bad" : "");
}
