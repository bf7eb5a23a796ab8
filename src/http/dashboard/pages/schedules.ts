// Schedules: when each fires next and fired last, and whether it may.

import { html } from "hono/html";
import { nextAfter, parseRule } from "../../../cron.ts";
import type { ScheduleView } from "../../../model.ts";
import type { PageContext } from "../context.ts";
import { load } from "../faults.ts";
import { unknownNames } from "../filters.ts";
import { type Badges, keepOf, type Page } from "../layout.ts";
import { actionLink, alertOf, type Html, type Look, none, text, time, unknownNote } from "../parts.ts";
import { hrefs } from "../routes.ts";
import { table } from "../table.ts";

export async function schedulesPage(context: PageContext, badges: Promise<Badges>): Promise<Page> {
  const [list, overview] = await Promise.all([load(context.claimer.schedules()), badges]);
  const now = overview !== null && "value" in overview ? overview.value.now : null;
  const look: Look = { zone: context.zone, now: now ?? "", keep: keepOf(context) };
  return {
    id: "schedules",
    title: "Schedules",
    now,
    parts: [
      unknownNote(unknownNames(context.query, [])),
      { region: "list", content: "fault" in list ? alertOf(list.fault) : schedulesTable(list.value, context, look) },
    ],
  };
}

const catchUps = { all: "every missed one", last: "the last missed one", none: "none" } as const;

function schedulesTable(schedules: readonly ScheduleView[], context: PageContext, look: Look): Html {
  const acts = context.role === "operate";
  return table({
    caption: "Schedules",
    captionHidden: true,
    columns: [
      { label: "Schedule", lead: true },
      { label: "Rule" },
      { label: "Kind", name: true },
      { label: "Next fires" },
      { label: "Last fire" },
      { label: "Catches up" },
      ...(acts ? [{ label: "Actions", quiet: true }] : []),
    ],
    rows: schedules.map((schedule) => ({
      tone: schedule.fault !== null ? "bad" : "",
      cells: [
        text(schedule.name, 100),
        html`<code>${schedule.cron}</code> <span class="m">${schedule.timeZone}</span>`,
        html`<a href="${hrefs.jobs({ kind: schedule.kind }, look.keep)}">${text(schedule.kind, 80)}</a>`,
        schedule.pausedAt === null
          ? html`${nextFires(schedule).map((at, i) => html`${i === 0 ? "" : html`<br>`}${time(at, look)}`)}`
          : html`<span class="warn">■ paused ${time(schedule.pausedAt.toISOString(), look)}</span>`,
        schedule.lastAt === null ? none : time(schedule.lastAt.toISOString(), look),
        catchUps[schedule.catchUp],
        ...(acts ? [actionsOf(schedule, context.here)] : []),
      ],
      below:
        schedule.fault === null
          ? null
          : html`<span class="bad">Its last firing was refused by the database (${text(schedule.fault, 20)}); it is tried again at its next occurrence.</span>`,
    })),
    empty: html`<p>No schedules. They are defined in code: <code>createClaimer({ schedules: […] })</code>, and are there after the first trigger of the deployment.</p>`,
  });
}

/** The next three. The first is the database's; the others follow from the rule. */
function nextFires({ cron, timeZone, nextAt }: ScheduleView): string[] {
  const fires = [nextAt.getTime()];
  try {
    const rule = parseRule(cron, timeZone);
    for (let i = 0; i < 2; i++) {
      const next = nextAfter(rule, fires.at(-1) ?? 0);
      if (next === null) break;
      fires.push(next);
    }
  } catch {
    // A rule that another release wrote; the database's own answer is enough.
  }
  return fires.map((at) => new Date(at).toISOString());
}

function actionsOf({ name, pausedAt }: ScheduleView, back: string): Html {
  return html`<span class="acts">${actionLink("Run now", { do: "run-schedule", name, back })}${
    pausedAt === null
      ? actionLink("Pause", { do: "pause-schedule", name, back })
      : actionLink("Resume", { do: "resume-schedule", name, back })
  }</span>`;
}
