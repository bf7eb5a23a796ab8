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
    metadata: { vulnerabilities: { total: severities.length } },
  });

it.each([
  ["nothing", report(), "clean"],
  ["what is below high", report("low", "moderate", "info"), "clean"],
  ["a high one", report("low", "high"), "found"],
  ["a critical one", report("critical"), "found"],
  ["a registry that refuses", JSON.stringify({ message: "405", statusCode: 405, error: {} }), "notRun"],
  ["a registry that cannot be reached", JSON.stringify({ error: { code: "ENOTFOUND" } }), "notRun"],
  ["no output at all", "", "notRun"],
])("%s", (_, output, type) => {
  expect(verdict(output).type).toBe(type);
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
