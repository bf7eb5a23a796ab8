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
  const bad = Object.values(report.vulnerabilities ?? {}).filter(({ severity }) => /^(high|critical)$/.test(severity));
  const other = counts.total - bad.length;
  if (bad.length === 0) return { type: "clean", other };
  return { type: "found", lines: bad.map(({ name, severity, range }) => `${severity}: ${name} ${range}`) };
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
