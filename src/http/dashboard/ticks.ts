// A tick in words and as a bar: what each skip means, and where the time went. Pure.

import { html } from "hono/html";
import type { TickRow } from "../../inspection.ts";
import type { SkipReason } from "../../model.ts";
import { duration } from "./format.ts";
import { type Html, text } from "./parts.ts";

/** Why a candidate was left alone, as a sentence. */
export function skipSentence({ reason, lock }: { readonly reason: SkipReason; readonly lock?: string }): Html {
  const name = lock === undefined ? html`a lock it needs` : html`the lock ${text(`"${lock}"`, 120)}`;
  switch (reason) {
    case "busy":
      return html`Another invocation holds ${name}.`;
    case "stale":
      return html`It was finished or moved between the scan and the lock.`;
    case "open-attempt":
      return html`Its last holder died; the next wake closes that attempt.`;
    case "unknown-kind":
      return html`This deployment does not define its kind.`;
    case "newer-revision":
      return html`It was enqueued under a newer deployment's policy.`;
    case "unfit":
      return html`Its timeout did not fit the time that was left.`;
    case "alone":
      return html`Its kind runs in a tick of its own.`;
    case "limit-full":
      return html`Every slot of ${lock === undefined ? "its limit" : html`the limit ${text(`"${lock}"`, 120)}`} was taken.`;
    case "behind":
      return html`Another job of its ordering key stands before it.`;
    case "reserved":
      return html`An older job has reserved ${name}.`;
    case "cancelled":
      return html`Its cancel was asked for while it ran; the next wake takes it out.`;
    case "tick-slots":
      return html`As many ticks ran as the installation allows.`;
    default:
      return reason satisfies never;
  }
}

const looks: Readonly<Record<string, string>> = {
  wake: "p0",
  connect: "p1",
  claim: "p2",
  fence: "p3",
  run: "p4",
};

/** Phases of a tick one after another on one bar, with their lengths below. */
export function phases(tick: TickRow): Html {
  const known = (
    [
      // Of the invocation, so before its first tick.
      ["wake", tick.n === 1 ? tick.wakeMs : null],
      ["connect", tick.n === 1 ? tick.connectMs : null],
      ["claim", tick.claimMs],
      ["fence", tick.fenceMs],
      ["run", tick.runMs],
    ] as const
  ).flatMap(([name, ms]) => (ms === null ? [] : [{ name: name as string, ms }]));
  const inTick = known.reduce((sum, { name, ms }) => (name === "wake" || name === "connect" ? sum : sum + ms), 0);
  if (tick.totalMs !== null && tick.totalMs > inTick && known.length > 0) {
    known.push({ name: "turns, finish and the rest", ms: tick.totalMs - inTick });
  }
  const total = known.reduce((sum, { ms }) => sum + ms, 0);
  if (total === 0) return html``;
  let at = 0;
  const bars = known.map(({ name, ms }) => {
    const x = at;
    at += (ms / total) * 1_000;
    return { name, ms, look: looks[name] ?? "p5", x, width: Math.max((ms / total) * 1_000, 1) };
  });
  const sentence = known.map(({ name, ms }) => `${name} ${duration(ms)}`).join(", ");
  return html`<svg class="phases" viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-label="${sentence}"><title>${sentence}</title>${bars.map(
    (bar) =>
      html`<rect class="${bar.look}" x="${bar.x.toFixed(1)}" y="0" width="${bar.width.toFixed(1)}" height="14"/>`,
  )}</svg>
<ul class="legend">${bars.map(
    (bar) =>
      html`<li><svg class="sw" viewBox="0 0 1 1" aria-hidden="true"><rect class="${bar.look}" width="1" height="1"/></svg>${bar.name} ${duration(bar.ms)}</li>`,
  )}</ul>`;
}
