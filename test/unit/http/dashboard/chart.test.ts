import { describe, expect, it } from "vitest";
import { type ChartOptions, chart, linearScale, logScale, runs } from "../../../../src/http/dashboard/chart.ts";

const minute = 60_000;
const from = Date.parse("2026-11-30T11:00:00Z");
const span = { from, to: from + 10 * minute, stepMs: minute };

function options(values: ReadonlyMap<number, number | null>, shape: "line" | "area" | "bar" = "line"): ChartOptions {
  return {
    id: "c",
    title: "Finished",
    unit: "per-minute",
    zone: "UTC",
    ...span,
    series: [{ label: "done", look: "c1", shape, values }],
  };
}

const at = (...minutes: number[]) => new Map(minutes.map((i) => [from + i * minute, 10 + i] as const));

describe("runs", () => {
  it("breaks at a minute that nobody recorded", () => {
    const found = runs({ values: at(0, 1, 2, 5, 6) }, span);
    expect(found.map((run) => [run[0]?.x, run.at(-1)?.x])).toEqual([
      [0, 300],
      [500, 700],
    ]);
  });

  it("makes a lone minute as wide as a minute", () => {
    expect(runs({ values: at(4) }, span).map((run) => [run[0]?.x, run.at(-1)?.x])).toEqual([[400, 500]]);
  });

  it("leaves out null and what lies outside the window", () => {
    const values = new Map<number, number | null>([...at(1, 2), [from + 3 * minute, null], [from - minute, 5]]);
    expect(runs({ values }, span)).toHaveLength(1);
  });
});

describe("scales", () => {
  it("begin at zero and end at a round number", () => {
    expect(linearScale([0, 173]).labels).toEqual([0, 100, 200]);
    expect(linearScale([0.2]).labels).toEqual([0, 0.5, 1]);
    expect(linearScale([100]).y(0)).toBe(200);
    expect(linearScale([100]).y(100)).toBe(0);
  });

  it("of lengths count in decades from 10 ms", () => {
    expect(logScale([9_400]).labels).toEqual([10, 100, 1_000, 10_000]);
    expect(logScale([3]).labels).toEqual([10, 100, 1_000]);
    expect(logScale([9_400]).y(10)).toBe(200);
    expect(Math.round(logScale([9_400]).y(10_000))).toBe(0);
  });
});

describe("chart", () => {
  it("tells who cannot see it: unit, first, last, minimum, maximum, and every value", () => {
    const text = String(chart(options(at(0, 1, 5))));
    expect(text).toContain('role="img" aria-labelledby="c-t c-d"');
    expect(text).toContain('<title id="c-t">Finished (jobs per minute)</title>');
    expect(text).toContain("done: first 10, last 15, minimum 10, maximum 15.");
    expect(text.match(/<th scope="row">/g)).toHaveLength(3);
    expect(text).not.toMatch(/ style=|NaN|Infinity|undefined/);
  });

  it("stands bars upon each other", () => {
    const two = options(at(0), "bar");
    const text = String(
      chart({ ...two, series: [...two.series, { label: "skipped", look: "c2", shape: "bar", values: at(0) }] }),
    );
    // 10 upon 10, of a top at 20.
    expect([...text.matchAll(/class="c\d bar" d="M0 (\d+)h85V(\d+)/g)].map(([, top, base]) => [top, base])).toEqual([
      ["100", "200"],
      ["0", "100"],
    ]);
  });

  it("says so where nothing was recorded", () => {
    expect(String(chart(options(new Map())))).toContain("Nothing was recorded");
    expect(String(chart(options(new Map([[from, null]]))))).toContain("Nothing was recorded");
  });

  it("of 240 points stays small", () => {
    const values = new Map(Array.from({ length: 240 }, (_, i) => [from + i * minute, (i * 37) % 101] as const));
    const svg = /<svg viewBox="0 0 1000[\s\S]*?<\/svg>/.exec(
      String(chart({ ...options(values), to: from + 240 * minute })),
    )?.[0];
    expect(svg?.length).toBeLessThan(5_000);
  });
});
