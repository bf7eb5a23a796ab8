// docs/guarantees.md and SECURITY.md promise by naming commands and files. Each of them is there, and each promise of the
// README has its line.

import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { describe, expect, it } from "vitest";

const root = resolve(import.meta.dirname, "../..");
const read = (file: string) => readFileSync(join(root, file), "utf8");

/** The first cells of the first table that has such a head. */
function firstCells(text: string, head: string): string[] {
  const lines = text.split("\n");
  const rows: string[] = [];
  for (const line of lines.slice(lines.findIndex((one) => one.startsWith(head)) + 2)) {
    if (!line.startsWith("|")) break;
    rows.push(line.split("|")[1]?.trim() ?? "");
  }
  return rows;
}

/** Files and folders that commands in backquotes name. */
const commandsOf = (text: string): string[] =>
  [...text.matchAll(/`([^`\n]*(?:vitest run|node )[^`\n]*)`/g)].map(([, command]) => command ?? "");

const pathsOf = (command: string): string[] => command.match(/\b(?:test|scripts)\/[\w./-]+/g) ?? [];

/** Test files below a path. */
function testsAt(path: string): string[] {
  const whole = join(root, path);
  if (!existsSync(whole)) return [];
  if (!statSync(whole).isDirectory()) return [path];
  return readdirSync(whole, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".test.ts"));
}

describe.each(["docs/guarantees.md", "SECURITY.md", "README.md"])("%s", (file) => {
  it("names no test that is not there, and no folder without a test", () => {
    const commands = commandsOf(read(file));
    expect(commands.length).toBeGreaterThan(0);
    for (const command of commands) {
      expect(pathsOf(command), command).not.toEqual([]);
      for (const path of pathsOf(command)) expect(testsAt(path), path).not.toEqual([]);
    }
  });

  it("links to nothing that is not there", () => {
    const links = [...read(file).matchAll(/\]\((?!https?:)([^)#]+)/g)].map(([, link]) => link ?? "");
    for (const link of links) expect(existsSync(join(root, dirname(file), link)), link).toBe(true);
  });
});

describe("docs/guarantees.md", () => {
  it("has a command for each promise", () => {
    const table = read("docs/guarantees.md")
      .split("\n")
      .filter((line) => line.startsWith("| ") && !/^\| (promise|what is tried|---)/.test(line));
    expect(table.length).toBeGreaterThan(8);
    for (const line of table) expect(commandsOf(line), line).not.toEqual([]);
  });

  it("has a line for each promise of the README", () => {
    const here = firstCells(read("docs/guarantees.md"), "| promise |");
    const promised = firstCells(read("README.md"), "| promise |");
    expect(promised).toHaveLength(8);
    // The first words are enough: the page says some of them at more length.
    const beginning = (text: string) =>
      text
        .split(/[\s,;]+/)
        .slice(0, 5)
        .join(" ");
    for (const promise of promised) expect(here.map(beginning)).toContain(beginning(promise));
  });
});
