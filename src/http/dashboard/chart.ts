// Charts as inline SVG: data in, markup out. A minute nobody recorded is a gap, not a zero. The plot is stretched to its place,
// so its labels stand beside it as text and stay readable on a phone. Pure.

import { html } from "hono/html";
import { absolute, axisTime, duration, number } from "./format.ts";
import type { Html } from "./parts.ts";

export interface ChartSeries {
  readonly label: string;
  /** One of the CSS classes c1 to c4: colour and dash. */
  readonly look: "c1" | "c2" | "c3" | "c4";
  readonly shape: "line" | "area" | "bar";
  /** By instant in milliseconds since 1970; what is absent or null is a gap. */
  readonly values: ReadonlyMap<number, number | null>;
}

export interface ChartOptions {
  readonly id: string;
  readonly title: string;
  /** How a value is written: `ms` as a length, `per-minute` as a number. */
  readonly unit: "ms" | "per-minute";
  readonly from: number;
  readonly to: number;
  readonly stepMs: number;
  readonly zone: string;
  /** Bars stand upon each other in this order. */
  readonly series: readonly ChartSeries[];
}

const width = 1_000;
const height = 200;

/** Draws a chart with its heading, legend and the table of its values. */
export function chart(options: ChartOptions): Html {
  const { id, title, series, unit, from, to, zone } = options;
  const values = series.flatMap((one) => [...one.values.values()].filter((value) => value !== null));
  const heading = `${title} (${unit === "ms" ? "log scale" : "jobs per minute"})`;
  if (values.length === 0) {
    return html`<figure class="chart"><figcaption>${heading}</figcaption><p class="empty">Nothing was recorded in this window.</p></figure>`;
  }
  const stacked = series.every(({ shape }) => shape === "bar");
  const scale = unit === "ms" ? logScale(values) : linearScale(stacked ? stackedMax(series) : values);
  const withDay = to - from > 86_400_000;
  return html`<figure class="chart">
<figcaption>${heading}</figcaption>
<div class="plot">
<div class="y" aria-hidden="true">${[...scale.labels].reverse().map((label) => html`<span>${write(label, unit)}</span>`)}</div>
<svg viewBox="0 0 ${width} ${height}" preserveAspectRatio="none" role="img" aria-labelledby="${id}-t ${id}-d">
<title id="${id}-t">${heading}</title>
<desc id="${id}-d">${describe(options)}</desc>
${scale.labels.map((label) => {
  const y = round(scale.y(label));
  return html`<path class="grid" d="M0 ${y}H${width}"/>`;
})}
${stacked ? bars(options, scale.y) : series.map((one) => line(one, options, scale.y))}
</svg>
<div class="x" aria-hidden="true">${[0, 1, 2, 3].map((i) => html`<span>${axisTime(from + ((to - from) * i) / 3, zone, withDay)}</span>`)}</div>
</div>
<ul class="legend">${series.map(({ label, look }) => html`<li><svg viewBox="0 0 24 8" aria-hidden="true"><path class="${look} line" d="M0 4H24"/></svg>${label}</li>`)}<li class="m">${zone}</li></ul>
${valuesTable(options, heading)}
</figure>`;
}

interface Scale {
  /** From the lowest to the highest, evenly spaced on the plot. */
  readonly labels: readonly number[];
  y(value: number): number;
}

/** From 0 to the next 1, 2, 4, 5 or 10 of a power of ten. */
export function linearScale(values: readonly number[]): Scale {
  const max = Math.max(...values, 0);
  const power = 10 ** Math.floor(Math.log10(max || 1));
  // Of less than one a minute: an axis that ends at one.
  const top = Math.max([1, 2, 4, 5, 10].map((step) => step * power).find((step) => step >= max) ?? max, 1);
  return { labels: [0, top / 2, top], y: (value) => height - (height * value) / top };
}

/** Decades of milliseconds from 10 ms to the one above the maximum, one second at least. */
export function logScale(values: readonly number[]): Scale {
  const decades = Math.max(3, Math.ceil(Math.log10(Math.max(...values, 1))));
  const labels: number[] = [];
  for (let decade = 1; decade <= decades; decade++) labels.push(10 ** decade);
  const span = decades - 1;
  return { labels, y: (value) => height - (height * (Math.log10(Math.max(value, 10)) - 1)) / span };
}

function stackedMax(series: readonly ChartSeries[]): number[] {
  const sums = new Map<number, number>();
  for (const { values } of series) {
    for (const [at, value] of values) sums.set(at, (sums.get(at) ?? 0) + (value ?? 0));
  }
  return [...sums.values()];
}

/** Runs of neighbouring values; a run of one is as wide as its step, so that it can be seen. */
export function runs(
  { values }: Pick<ChartSeries, "values">,
  { from, to, stepMs }: Pick<ChartOptions, "from" | "to" | "stepMs">,
): readonly (readonly { readonly x: number; readonly value: number }[])[] {
  const step = (width * stepMs) / (to - from);
  const found: { x: number; value: number }[][] = [];
  let last = Number.NaN;
  const sorted = [...values].filter(([at]) => at >= from && at < to).sort(([a], [b]) => a - b);
  for (const [at, value] of sorted) {
    if (value === null) continue;
    const x = ((at - from) / (to - from)) * width;
    let run = found.at(-1);
    if (run === undefined || at - last > stepMs * 1.5) {
      run = [{ x, value }];
      found.push(run);
    }
    run.push({ x: Math.min(x + step / 2, width), value });
    last = at;
  }
  for (const run of found) {
    const end = run.at(-1);
    if (end !== undefined) run.push({ x: Math.min(end.x + step / 2, width), value: end.value });
  }
  return found;
}

function line(series: ChartSeries, options: ChartOptions, y: (value: number) => number): Html {
  let stroke = "";
  let area = "";
  for (const run of runs(series, options)) {
    const points = run.map(({ x, value }) => `${round(x)} ${round(y(value))}`);
    stroke += `M${points.join("L")}`;
    area += `M${round(run[0]?.x ?? 0)} ${height}L${points.join("L")}L${round(run.at(-1)?.x ?? 0)} ${height}Z`;
  }
  return html`${series.shape === "area" ? html`<path class="${series.look} area" d="${area}"/>` : ""}<path class="${series.look} line" d="${stroke}"/>`;
}

function bars({ series, from, to, stepMs }: ChartOptions, y: (value: number) => number): Html[] {
  const step = (width * stepMs) / (to - from);
  const below = new Map<number, number>();
  return series.map(({ values, look }) => {
    let path = "";
    for (const [at, value] of values) {
      if (value === null || value === 0 || at < from || at >= to) continue;
      const base = below.get(at) ?? 0;
      below.set(at, base + value);
      const x = ((at - from) / (to - from)) * width;
      const top = y(base + value);
      path += `M${round(x)} ${round(top)}h${round(step * 0.85)}V${round(y(base))}h-${round(step * 0.85)}z`;
    }
    return html`<path class="${look} bar" d="${path}"/>`;
  });
}

/** For who cannot see it: first, last, minimum and maximum of each series. */
function describe({ series, unit, zone, from, to }: ChartOptions): string {
  const spans = `From ${absolute(new Date(from).toISOString(), zone)} to ${absolute(new Date(to).toISOString(), zone)}.`;
  const facts = series.map(({ label, values }) => {
    const known = [...values].sort(([a], [b]) => a - b).flatMap(([, value]) => (value === null ? [] : [value]));
    const [first] = known;
    const last = known.at(-1);
    if (first === undefined || last === undefined) return `${label}: not recorded.`;
    const [low, high] = [Math.min(...known), Math.max(...known)];
    return `${label}: first ${write(first, unit)}, last ${write(last, unit)}, minimum ${write(low, unit)}, maximum ${write(high, unit)}.`;
  });
  return [spans, ...facts].join(" ");
}

function valuesTable({ id, series, unit, zone }: ChartOptions, heading: string): Html {
  const times = [...new Set(series.flatMap(({ values }) => [...values.keys()]))].sort((a, b) => b - a);
  return html`<details id="${id}-v"><summary>Values</summary><div class="scroll" tabindex="0" role="region" aria-label="Values: ${heading}"><table>
<caption class="vh">${heading}</caption>
<thead><tr><th scope="col">Time, ${zone}</th>${series.map(({ label }) => html`<th scope="col" class="num">${label}</th>`)}</tr></thead>
<tbody>${times.map(
    (at) =>
      html`<tr><th scope="row">${axisTime(at, zone, true)}</th>${series.map(({ values }) => {
        const value = values.get(at) ?? null;
        return html`<td class="num">${value === null ? "–" : write(value, unit)}</td>`;
      })}</tr>`,
  )}</tbody></table></div></details>`;
}

function write(value: number, unit: ChartOptions["unit"]): string {
  return unit === "ms" ? duration(value) : number(value);
}

function round(n: number): number {
  return Math.round(n * 10) / 10;
}
