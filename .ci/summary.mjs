// Adds up what the test runs reported, and says it in one line. A run that left no report counts as a failure.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const folder = process.argv[2];
const reports = readdirSync(folder).map((name) => JSON.parse(readFileSync(join(folder, name), "utf8")));
const sum = (of) => reports.reduce((total, report) => total + of(report), 0);
const passed = sum((report) => report.numPassedTests);
const skipped = sum((report) => report.numPendingTests + report.numTodoTests);
const failed = sum((report) => report.numFailedTests) + (reports.length === 0 ? 1 : 0);
console.log(`${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ""}`);
