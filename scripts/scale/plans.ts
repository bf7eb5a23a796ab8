// docs/read_plans.md: what was measured, and the plan of each statement inside each read, as auto_explain saw them.

import type pg from "pg";
import type { Volumes } from "./fill.ts";
import type { Measured } from "./measure.ts";

/** A statement takes less than this: its plan is not worth a page. */
const worthMs = 1;
const maxPlanLines = 40;

export async function planReport(
  client: pg.Client,
  measured: readonly Measured[],
  volumes: Volumes,
  machine: string,
): Promise<string> {
  const parts = [
    "# How the reads are planned",
    "",
    "Written by `node scripts/scale.ts`; not to be edited. Each read of the dashboard, the API and the CLI, over",
    `${Object.entries(volumes)
      .map(([name, n]) => `${n.toLocaleString("en")} ${name}`)
      .join(", ")}`,
    `(see scripts/scale/fill.ts), on ${machine}. Milliseconds are the median of five calls on a warm connection, without`,
    "the time in which the backend waited for a core; none may be above 100. The first call of a connection also reads",
    "catalogues and plans.",
    "",
    "| verb | arguments | ms | first | rows | buffers |",
    "| --- | --- | --: | --: | --: | --: |",
    ...measured.map(
      (one) =>
        `| ${one.verb} | ${one.title === "" ? "" : `\`${one.title}\``} | ${one.ms.toFixed(1)} | ${one.firstMs.toFixed(1)} | ${one.rows} | ${one.buffers} |`,
    ),
    "",
    `## Plans`,
    "",
    `Of the statements inside each read that take ${worthMs} ms or more, each shape once, where it was met first.`,
    "",
  ];
  const seen = new Set<string>();
  for (const one of measured) {
    const plans = (await plansOf(client, one)).filter((plan) => {
      const shape = plan.replace(/\d[\d.]*|'[^']*'|\n *Buffers.*/g, "");
      return !seen.has(shape) && seen.add(shape);
    });
    if (plans.length === 0) continue;
    parts.push(`### ${one.verb} ${one.title}`, "");
    for (const plan of plans) parts.push("```", plan, "```", "");
  }
  return `${parts.join("\n").trimEnd()}\n`;
}

/** The plans of the statements inside one call that touch a table of ours. */
async function plansOf(client: pg.Client, one: Measured): Promise<string[]> {
  const plans: string[] = [];
  const hear = (notice: { message?: string | undefined }) => {
    const told = notice.message ?? "";
    if (told.startsWith("duration:")) plans.push(told);
  };
  await client.query(
    `load 'auto_explain'; set auto_explain.log_min_duration = ${worthMs}; set auto_explain.log_analyze = on;
     set auto_explain.log_timing = off; set auto_explain.log_buffers = on; set auto_explain.log_nested_statements = on;
     set client_min_messages = log`,
  );
  client.on("notice", hear);
  await client.query(`select pgclaim.${one.verb}($1::jsonb)`, [JSON.stringify(one.request)]);
  client.off("notice", hear);
  await client.query("reset client_min_messages; set auto_explain.log_min_duration = -1");
  return plans.filter((plan) => /Scan using|Scan on (job|history|attempt|tick|rollup)/.test(plan)).map(shorten);
}

/** Without the query's text, which is in schema/functions, and without its values. */
function shorten(plan: string): string {
  const lines = plan.split("\n");
  const from = lines.findIndex((text) => /\(cost=/.test(text));
  const shown = lines
    .slice(from)
    .filter(
      (text) =>
        !/Index Searches|Storage: Memory|Cache |Disabled: true|Hits: |Sort Method|Batches: |Planning|WAL/.test(text),
    )
    .map((text) => text.trimEnd().slice(0, 180));
  const cut =
    shown.length > maxPlanLines
      ? [...shown.slice(0, maxPlanLines), `(${shown.length - maxPlanLines} more lines)`]
      : shown;
  return [(lines[0] ?? "").replace(" plan:", ""), ...cut].join("\n");
}
