// The step of CI that asks the registry for known holes: what fails it, what passes, and that no answer is not an answer.

import { resolve } from "node:path";
import { expect, it } from "vitest";

type Verdict = { readonly type: string; readonly why?: string; readonly lines?: readonly string[] };
const { verdict } = (await import(resolve(import.meta.dirname, "../../.ci/audit.mjs"))) as {
  verdict: (output: string) => Verdict;
};

const report = (...severities: readonly string[]) =>
  JSON.stringify({
    auditReportVersion: 2,
    vulnerabilities: Object.fromEntries(
      severities.map((severity, i) => [`p${i}`, { name: `p${i}`, severity, range: "<1" }]),
    ),
    metadata: {
      vulnerabilities: {
        ...Object.fromEntries(
          ["info", "low", "moderate", "high", "critical"].map((name) => [
            name,
            severities.filter((severity) => severity === name).length,
          ]),
        ),
        total: severities.length,
      },
    },
  });

/** A report with these counts, and with this list or none. */
const counting = (counts: object, vulnerabilities?: object) =>
  JSON.stringify({ vulnerabilities, metadata: { vulnerabilities: counts } });
const hole = { p0: { name: "p0", severity: "high", range: "<1" } };
const none = { info: 0, low: 0, moderate: 0, high: 0, critical: 0 };

it.each([
  ["nothing", report(), "clean"],
  ["what is below high", report("low", "moderate", "info"), "clean"],
  ["a high one", report("low", "high"), "found"],
  ["a critical one", report("critical"), "found"],
  ["counts without a list", counting({ high: 3, critical: 1, total: 4 }), "found"],
  ["counts beside an empty list", counting({ high: 3, critical: 1, total: 4 }, {}), "found"],
  ["counts above the list", counting({ high: 2, critical: 0, total: 2 }, hole), "found"],
  ["a list above the counts", counting({ ...none, total: 0 }, hole), "found"],
  ["a total that the list does not reach", counting({ ...none, low: 2, total: 2 }, {}), "found"],
  ["counts of nothing without a list", counting({ ...none, total: 0 }), "clean"],
  ["npm 6's form with nothing in it", counting(none), "notRun"],
  ["npm 6's form with a hole", counting({ ...none, high: 1 }), "found"],
  ["no numbers at all", counting({}), "notRun"],
  ["no numbers and an empty list", counting({}, {}), "notRun"],
  ["no numbers and a hole in the list", counting({}, hole), "found"],
  ["a count that is no number", counting({ high: "0", critical: 0, total: 0 }, {}), "notRun"],
  ["no critical count", counting({ high: 0, total: 0 }, {}), "notRun"],
  ["a registry that refuses", JSON.stringify({ message: "405", statusCode: 405, error: {} }), "notRun"],
  ["a registry that cannot be reached", JSON.stringify({ error: { code: "ENOTFOUND" } }), "notRun"],
  ["no output at all", "", "notRun"],
])("%s", (_, output, type) => {
  expect(verdict(output).type).toBe(type);
});

it("names the counts where the list does not bear them out", () => {
  expect(verdict(counting({ high: 3, critical: 1, total: 4 })).lines).toEqual([
    "the report counts 3 high, 1 critical, 4 total, and lists 0, 0 of them high or critical",
  ]);
  expect(verdict(counting({ high: 2, critical: 0, total: 2 }, hole)).lines).toEqual([
    "high: p0 <1",
    "the report counts 2 high, 0 critical, 2 total, and lists 1, 1 of them high or critical",
  ]);
});

it("names what it found, and never the registry's address", () => {
  expect(verdict(report("high")).lines).toEqual(["high: p0 <1"]);
  const refused = JSON.stringify({
    message: "405 - POST https://mirror.example/x",
    uri: "https://mirror.example/x",
    statusCode: 405,
  });
  expect(verdict(refused).why).toBe("the registry answered 405 to the audit request");
});
