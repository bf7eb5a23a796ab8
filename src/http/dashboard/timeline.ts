// The life of a job on one axis of time: waiting, running, backoff. Bars share the axis; the facts stand in the table below them.
// Pure.

import { html } from "hono/html";
import type { JobDetail } from "../../inspection.ts";
import { clock, duration } from "./format.ts";
import type { Html, Look } from "./parts.ts";

interface Span {
  readonly what: "wait" | "run" | "backoff";
  readonly from: number;
  readonly to: number;
  readonly label: string;
}

/** Attempts that are drawn; the oldest ones are left out. */
const maxAttempts = 12;

/** Waits, runs and backoffs in their order, from the job's row and its attempts. */
export function spansOf(job: Pick<JobDetail, "enqueuedAt" | "attempts" | "endedAt" | "runAt">, now: string): Span[] {
  const attempts = [...job.attempts].sort((a, b) => a.n - b.n).slice(-maxAttempts);
  const spans: Span[] = [];
  let at = Date.parse(job.enqueuedAt);
  const [first] = attempts;
  if (first !== undefined && first.n > 1) at = Date.parse(first.startedAt);
  for (const { n, startedAt, endedAt, outcome } of attempts) {
    const from = Date.parse(startedAt);
    const to = endedAt === null ? Math.max(Date.parse(now), from) : Date.parse(endedAt);
    if (from > at) {
      const what = n === 1 ? "wait" : "backoff";
      spans.push({ what, from: at, to: from, label: what === "wait" ? "waited" : "backoff and wait" });
    }
    spans.push({ what: "run", from, to, label: `attempt ${n}, ${outcome ?? "open"}` });
    at = Math.max(at, to);
  }
  if (job.endedAt === null) {
    const end = Math.max(Date.parse(now), at);
    if (end > at && attempts.at(-1)?.endedAt !== null) {
      spans.push({
        what: attempts.length === 0 ? "wait" : "backoff",
        from: at,
        to: end,
        label: attempts.length === 0 ? "waits" : "backoff and wait, so far",
      });
    }
  }
  return spans;
}

const looks = { wait: "p0", run: "p2", backoff: "p1" } as const;

export function timeline(job: JobDetail, look: Look): Html {
  const spans = spansOf(job, look.now);
  const from = Math.min(...spans.map((span) => span.from));
  const to = Math.max(...spans.map((span) => span.to));
  if (spans.length === 0 || to <= from) return html``;
  const x = (at: number) => Math.round(((at - from) / (to - from)) * 1_000 * 10) / 10;
  const sentence = spans.map((span) => `${span.label} ${duration(span.to - span.from)}`).join(" | ");
  return html`<svg class="phases" viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-labelledby="life-t"><title id="life-t">From ${clock(new Date(from).toISOString(), look.zone)} to ${clock(new Date(to).toISOString(), look.zone)} ${look.zone}: ${sentence}</title>${spans.map(
    (span) =>
      html`<rect class="${looks[span.what]}" x="${x(span.from)}" y="${span.what === "run" ? 0 : 5}" width="${Math.max(x(span.to) - x(span.from), 2)}" height="${span.what === "run" ? 14 : 4}"/>`,
  )}</svg><p class="m">${sentence}</p>`;
}
