// docs/faults.md names tests. A name that is gone would leave a promise without its proof, so each is looked up.

import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { describe, expect, it } from "vitest";
import { exhibits } from "../scripts/exhibits/all.ts";

const root = resolve(import.meta.dirname, "..");
const faults = readFileSync(join(root, "docs/faults.md"), "utf8");

/** Every `file`: "name", "name" of a page. */
function named(page: string): { file: string; title: string }[] {
  return [...page.matchAll(/`(test\/[^`]+\.ts)`: ((?:"[^"]+"(?:, )?)+)/g)].flatMap(([, file = "", titles = ""]) =>
    [...titles.matchAll(/"([^"]+)"/g)].map(([, title = ""]) => ({ file, title })),
  );
}

/** Is it the title of a test or of a group there, on the line of its parenthesis or the next one, or the first word of a row? */
function has(file: string, title: string): boolean {
  const escaped = title.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const place = new RegExp(`[([]\\s*(["'\`])${escaped}\\1`);
  return existsSync(join(root, file)) && place.test(readFileSync(join(root, file), "utf8"));
}

describe("docs/faults.md", () => {
  const tests = named(faults);

  it("names tests that exist, by file and title", () => {
    expect(tests.length).toBeGreaterThan(100);
    // Every mention of a test file is in the form that is looked up here.
    expect(tests.length).toBeGreaterThanOrEqual([...faults.matchAll(/`test\//g)].length);
    expect(tests.filter(({ file, title }) => !has(file, title))).toEqual([]);
  });

  it("gives each fault a public source, and an answer", () => {
    const rows = faults
      .split("\n## ")
      .filter((section) => section.includes("| source |"))
      .flatMap((section) => section.split("\n").filter((line) => line.startsWith("| ") && !line.startsWith("| ---")))
      .filter((line) => !line.includes("| source |"));
    expect(rows.length).toBeGreaterThan(60);
    expect(rows.filter((row) => !/\]\(https:\/\//.test(row) || (row.split(" | ")[2] ?? "").length < 10)).toEqual([]);
  });

  it("would notice a test that is gone", () => {
    expect(has("test/docs.test.ts", "would notice a test that is gone")).toBe(true);
    expect(has("test/docs.test.ts", "a test that is gone")).toBe(false);
    expect(has("test/docs.test.ts", "utf8")).toBe(false);
    expect(has("test/gone.test.ts", "would notice a test that is gone")).toBe(false);
  });
});

describe("docs/exhibits.md", () => {
  it("has every exhibit, in the order in which they run", () => {
    const page = readFileSync(join(root, "docs/exhibits.md"), "utf8");
    const titles = [...page.matchAll(/^## (.+)$/gm)].map(([, title]) => title);
    expect(titles).toEqual(exhibits.map(({ title }) => title));
  });
});
