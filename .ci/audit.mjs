// `npm audit --omit=dev`, told apart: findings of high or critical severity fail, and a registry that does not answer the
// question is said loudly. npm's own exit code is 1 for both.

import { spawnSync } from "node:child_process";
import { pathToFileURL } from "node:url";

/** What an answer of `npm audit --json` means: clean, found, or notRun with the reason. */
export function verdict(output) {
  let report;
  try {
    report = JSON.parse(output);
  } catch {
    return { type: "notRun", why: "npm gave no report" };
  }
  const counts = report?.metadata?.vulnerabilities;
  if (counts === undefined || counts === null) {
    // Without the address: a mirror's name is nobody's business.
    const status = Number(report?.statusCode);
    const why = Number.isInteger(status)
      ? `the registry answered ${status} to the audit request`
      : "the registry gave no report";
    return { type: "notRun", why };
  }
  const list = Object.values(report.vulnerabilities ?? {});
  const bad = list.filter((entry) => /^(high|critical)$/.test(entry?.severity));
  const lines = bad.map(({ name, severity, range }) => `${severity}: ${name} ${range}`);
  const { high, critical, total } = counts;
  const isCount = (value) => Number.isInteger(value) && value >= 0;
  const counted = [high, critical].filter(isCount).reduce((sum, count) => sum + count, 0);
  const whole = [high, critical, total].every(isCount);
  // A report of another form than the one we read, npm 6's for one, is no answer; what it does name of holes still counts.
  if (!whole && bad.length + counted === 0) return { type: "notRun", why: "the report lacks the counts" };
  // The list and the counts are told by one and the same report: where they differ, neither is believed to be the whole.
  if (!whole || counted !== bad.length || total !== list.length) {
    const said = Object.entries({ high, critical, total }).map(([name, count]) => `${count ?? "no"} ${name}`);
    lines.push(
      `the report counts ${said.join(", ")}, and lists ${list.length}, ${bad.length} of them high or critical`,
    );
  }
  return lines.length === 0 ? { type: "clean", other: total } : { type: "found", lines };
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const { stdout } = spawnSync("npm", ["audit", "--omit=dev", "--json"], { encoding: "utf8", timeout: 60_000 });
  const answer = verdict(stdout ?? "");
  if (answer.type === "notRun") console.log(`NOT RUN: npm audit. ${answer.why}.`);
  else if (answer.type === "clean") console.log(`nothing of high severity or above (${answer.other} below it)`);
  else {
    console.log(`npm audit found:\n${answer.lines.join("\n")}`);
    process.exitCode = 1;
  }
}
