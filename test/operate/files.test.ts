// docs/operate: the alert rules and the Grafana dashboard can be parsed, and ask for nothing that /metrics does not print.
// PromQL is read by Prometheus' own grammar (as its editor uses it); where there is a promtool, it checks and plays the rules.

import { execFileSync, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { parser } from "@prometheus-io/lezer-promql";
import { describe, expect, it } from "vitest";
import { parse } from "yaml";
import * as z from "zod";
import { metrics } from "../../src/http/metrics.ts";

const root = resolve(import.meta.dirname, "../..");
const read = (file: string) => readFileSync(join(root, file), "utf8");

/** Every series /metrics prints, with its labels. */
const series = new Map(
  metrics.flatMap(({ name, type, labels }): [string, readonly string[]][] =>
    type === "histogram"
      ? [
          [`${name}_bucket`, [...labels, "le"]],
          [`${name}_sum`, labels],
          [`${name}_count`, labels],
        ]
      : [[name, labels]],
  ),
);
/** Put there by the scrape. */
const scrapeLabels = ["job", "instance"];

/** What is wrong with an expression; and the series it names. */
function look(expr: string): { readonly wrong: string[]; readonly names: string[] } {
  const text = expr.replaceAll("$__rate_interval", "5m");
  const wrong: string[] = [];
  const names: string[] = [];
  const labels: string[] = [];
  parser.parse(text).iterate({
    enter(node) {
      const said = text.slice(node.from, node.to);
      if (node.type.isError) wrong.push(`no PromQL at ${node.from}`);
      if (node.name === "Identifier" && node.node.parent?.name === "VectorSelector") names.push(said);
      if (node.name === "LabelName") labels.push(said);
    },
  });
  const known = names.flatMap((name) => series.get(name) ?? []).concat(scrapeLabels);
  for (const name of names) if (!series.has(name)) wrong.push(`no metric ${name}`);
  for (const label of labels) if (!known.includes(label)) wrong.push(`no label ${label}`);
  return { wrong, names };
}

const rules = z.strictObject({
  groups: z.array(
    z.strictObject({
      name: z.string(),
      rules: z.array(
        z.strictObject({
          alert: z.string().regex(/^Pgclaim[A-Za-z]+$/),
          expr: z.string(),
          for: z
            .string()
            .regex(/^\d+[smh]$/)
            .optional(),
          labels: z.strictObject({ severity: z.enum(["critical", "warning"]) }),
          annotations: z.strictObject({ summary: z.string().min(10), description: z.string().min(20).optional() }),
        }),
      ),
    }),
  ),
});

const panel = z.object({
  id: z.int(),
  type: z.enum(["row", "stat", "timeseries"]),
  title: z.string().min(1),
  gridPos: z.strictObject({ x: z.int(), y: z.int(), w: z.int().min(1), h: z.int().min(1) }),
  targets: z.array(z.object({ refId: z.string(), expr: z.string() })).optional(),
  fieldConfig: z.object({ defaults: z.object({ unit: z.string() }) }).optional(),
});
const dashboard = z.object({
  title: z.string(),
  uid: z.string(),
  schemaVersion: z.int().min(36),
  time: z.object({ from: z.string(), to: z.string() }),
  templating: z.object({
    list: z.array(z.object({ name: z.string(), type: z.string(), definition: z.string().optional() })),
  }),
  panels: z.array(panel),
});

describe("docs/operate/alerts.yml", () => {
  const alerts = rules.parse(parse(read("docs/operate/alerts.yml"))).groups.flatMap((group) => group.rules);

  it("asks for metrics and labels that there are", () => {
    expect(alerts.map(({ alert, expr }) => [alert, look(expr).wrong])).toEqual(alerts.map(({ alert }) => [alert, []]));
  });

  it("has a rule for each thing that must not go unseen", () => {
    const asked = new Set(alerts.flatMap(({ expr }) => look(expr).names));
    for (const name of [
      "pgclaim_oldest_ready_age_seconds",
      "pgclaim_dead_letters",
      "pgclaim_late_jobs",
      "pgclaim_halted_keys",
      "pgclaim_trigger_silent",
      "pgclaim_sample_age_seconds",
      "pgclaim_info",
    ])
      expect([name, asked.has(name)]).toEqual([name, true]);
    expect(new Set(alerts.map(({ alert }) => alert)).size).toBe(alerts.length);
  });

  const promtool = process.env.PGCLAIM_PROMTOOL ?? "promtool";
  const found = spawnSync(promtool, ["--version"]).status === 0;
  if (!found)
    console.warn(
      "NOT RUN: the alert rules played by promtool. There is none; PGCLAIM_PROMTOOL names one that is elsewhere.",
    );

  it.runIf(found)("fires when it should and not otherwise, by promtool", () => {
    const run = (...words: string[]) => execFileSync(promtool, words, { cwd: root, encoding: "utf8", stdio: "pipe" });
    expect(run("check", "rules", "docs/operate/alerts.yml")).toContain("SUCCESS");
    expect(run("test", "rules", "test/operate/alerts.promtool.yml")).toContain("SUCCESS");
  });
});

describe("docs/operate/grafana.json", () => {
  const board = dashboard.parse(JSON.parse(read("docs/operate/grafana.json")));
  const targets = board.panels.flatMap(({ title, targets = [] }) => targets.map(({ expr }) => ({ title, expr })));

  it("asks for metrics and labels that there are", () => {
    expect(targets.length).toBeGreaterThan(25);
    expect(targets.map(({ title, expr }) => [title, look(expr).wrong])).toEqual(
      targets.map(({ title }) => [title, []]),
    );
  });

  it("shows every metric that a person looks at", () => {
    const shown = new Set(targets.flatMap(({ expr }) => look(expr).names));
    const hidden = [...series.keys()].filter((name) => !shown.has(name));
    // What the installation is, how much it keeps, and what quantiles do not need.
    expect(hidden).toEqual([
      "pgclaim_info",
      "pgclaim_triggers",
      "pgclaim_history_rows",
      "pgclaim_job_latency_seconds_sum",
      "pgclaim_job_latency_seconds_count",
    ]);
  });

  it("uses its variables, and no other", () => {
    const variables = board.templating.list.map(({ name }) => name);
    const used = new Set([...JSON.stringify(board.panels).matchAll(/\$\{?(\w+)/g)].map(([, name]) => name));
    used.add("datasource"); // of each panel, outside what is parsed here
    used.delete("__rate_interval");
    expect([...used].sort()).toEqual([...variables].sort());
    const asked = board.templating.list.flatMap(
      ({ definition }) => definition?.match(/label_values\((\w+), (\w+)\)/)?.slice(1) ?? [],
    );
    for (let i = 0; i < asked.length; i += 2)
      expect([...(series.get(asked[i] ?? "") ?? []), ...scrapeLabels]).toContain(asked[i + 1]);
  });

  it("lays its panels out without overlap, each with its own id", () => {
    const cells = new Map<string, number>();
    for (const { id, gridPos } of board.panels) {
      expect(gridPos.x + gridPos.w).toBeLessThanOrEqual(24);
      for (let x = gridPos.x; x < gridPos.x + gridPos.w; x++)
        for (let y = gridPos.y; y < gridPos.y + gridPos.h; y++) {
          expect([id, cells.get(`${x}/${y}`)]).toEqual([id, undefined]);
          cells.set(`${x}/${y}`, id);
        }
    }
    expect(new Set(board.panels.map(({ id }) => id)).size).toBe(board.panels.length);
  });
});

describe("the look at an expression", () => {
  it.each([
    ["sum by (", "no PromQL"],
    ["pgclaim_gone > 0", "no metric pgclaim_gone"],
    ['pgclaim_jobs{kind="x"}', "no label kind"],
    ["sum by (kind) (pgclaim_jobs)", "no label kind"],
    ["pgclaim_job_latency_seconds > 1", "no metric pgclaim_job_latency_seconds"],
  ])("finds what is wrong with %s", (expr, wrong) => {
    expect(look(expr).wrong.join()).toContain(wrong);
  });
});
