// Adds up what the test runs reported, and says it in one line. A run that left no report, or one that failed without a failed
// test (a file that does not load), counts as a failure.
// Arguments: the folder of the reports; how many steps without a report have failed; the names of the runs.

import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

const [folder, otherSteps, ...names] = process.argv.slice(2);
let [passed, skipped, failed] = [0, 0, Number(otherSteps)];
for (const name of names) {
  const file = join(folder, `${name}.json`);
  if (!existsSync(file)) {
    console.log(`${name}: no report`);
    failed++;
    continue;
  }
  const report = JSON.parse(readFileSync(file, "utf8"));
  passed += report.numPassedTests;
  skipped += report.numPendingTests + report.numTodoTests;
  failed += Math.max(report.numFailedTests, report.success && report.numPassedTests > 0 ? 0 : 1);
}
if (skipped > 0) console.log(`${skipped} skipped`);
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed > 0 ? 1 : 0;
