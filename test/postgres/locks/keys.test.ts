// Keys from templates and payloads, as the database renders them. The main thing is that two different sets of values never
// make one key: a unique key would lose a job, a lock would tie strangers together. A seeded property over random templates
// and nasty values says so, with the values themselves as the oracle.

import { describe, expect, it } from "vitest";
import { draws, pick } from "../../../scripts/world/draws.ts";
import { setup, type World } from "../../support/world.ts";
import { install, registerKinds } from "./support.ts";

/** A small seeded generator: the seed in a failure's message replays it. */
function random(seed: number): (below: number) => number {
  const draw = draws(seed);
  return (below) => pick(draw, below);
}

async function render(world: World, template: string, payload: unknown): Promise<string | null> {
  return world.value("select pgclaim.render_key($1, $2::jsonb)", [template, JSON.stringify(payload)]);
}

describe("render_key", () => {
  it("never makes one key of two different sets of values", { timeout: 120_000 }, async () => {
    const world = await setup();
    const seed = Number(process.env.PGCLAIM_SEED ?? Math.floor(Math.random() * 1e9));
    const draw = random(seed);
    const pick = <T>(from: readonly T[]): T => from[draw(from.length)] as T;
    const signs = [
      ":",
      "/",
      "#",
      "→",
      "!",
      "é",
      "💡",
      "%:",
      "a:",
      ":9",
      "-",
      "@",
      "\n",
      "¡",
      "!→",
      "\n¡",
      "€",
      ".",
      "\\",
      "'",
      '"',
      " ",
    ];
    for (let round = 0; round < 40; round++) {
      const between = pick(signs);
      const template = `${pick(["", "k:", "100%", "x"])}{a}${between}{b}${pick(["", "", "!", "0"])}`;
      // Values made of what could be mistaken: the template's own signs, their escapes, and parts of those.
      const parts = [
        ...between,
        "%",
        "%25",
        "%3A",
        "%U",
        "%U002192",
        "%2192",
        "!92",
        "\n1",
        "92",
        "1",
        "A",
        "A1",
        "3A",
        "@",
        "!",
        "21",
        "→",
        "\n",
        "\u00a1",
        "",
        "a",
        "0",
      ];
      const text = () => Array.from({ length: draw(4) }, () => pick(parts)).join("");
      const pairs = Array.from({ length: 300 }, () => ({ a: text(), b: text() }));
      const rows = await world.rows<{ key: string | null; i: number }>(
        "select pgclaim.render_key($1, v) as key, o::integer - 1 as i from jsonb_array_elements($2::jsonb) with ordinality e(v, o)",
        [template, JSON.stringify(pairs)],
      );
      const seen = new Map<string, string>();
      for (const { key, i } of rows) {
        const values = JSON.stringify(pairs[i]);
        expect(key, `seed ${seed}, ${template}, ${values}`).not.toBeNull();
        const other = seen.get(String(key)) ?? values;
        expect(other, `seed ${seed}, ${template}: one key ${key}`).toBe(values);
        seen.set(String(key), values);
      }
      expect(seen.size).toBeGreaterThan(50);
    }
  });

  it.each([
    ["{a}:{b}", { a: "x:y", b: "z" }, "x%3Ay:z"],
    ["{a}:{b}", { a: "x", b: "y:z" }, "x:y%3Az"],
    ["{a}!{b}→{c}", { a: "→", b: "", c: "" }, "%U002192!→"],
    ["{a}!{b}→{c}", { a: "!92", b: "", c: "" }, "%2192!→"],
    ["{a}\n{b}", { a: "\n1", b: "" }, "%0A1\n"],
    ["a:{a}", { a: "50%" }, "a:50%25"],
    ["a:{a}", { a: "plain/value" }, "a:plain/value"],
    ["a:{a}", { a: 42 }, "a:42"],
    ["a:{a}", { a: -0.5 }, "a:-0.5"],
    ["a:{a}", { a: true }, "a:true"],
    ["a:{a}", { a: false }, "a:false"],
    ["a:{a}", { a: "" }, "a:"],
    ["a:{a.b.c}", { a: { b: { c: "deep" } } }, "a:deep"],
    ["constant", {}, "constant"],
    ["@kind/x", {}, "@kind/x"],
    ["{a}@queue/{b}", { a: "", b: "default" }, "%40queue/default"],
    ["{a}", { a: "@kind/x" }, "%40kind/x"],
    ["{a}", { a: "%40kind/x" }, "%2540kind/x"],
    ["{a}", { a: "me@home" }, "me@home"],
    ["a:{a}", {}, null],
    ["a:{a}", { a: null }, null],
    ["a:{a}", { a: {} }, null],
    ["a:{a}", { a: [1] }, null],
    ["a:{a.b}", { a: "text" }, null],
    ["a:{a}", "text", null],
    ["a:{a}", null, null],
    ["a:{a}", [1], null],
  ])("%s of %j is %s", async (template, payload, key) => {
    expect(await render(await setup(), template, payload)).toBe(key);
  });

  it("writes a number as JavaScript would have sent it, however SQL wrote it", async () => {
    const world = await setup();
    for (const number of ["1", "1.0", "1.000", "100e-2", "0.1e1"])
      expect(await world.value("select pgclaim.render_key('{a}', $1::jsonb)", [`{"a": ${number}}`]), number).toBe("1");
    expect(await world.value(`select pgclaim.render_key('{a}', '{"a": 9007199254740993}')`)).toBe("9007199254740993");
    expect(await world.value(`select pgclaim.render_key('{a}', '{"a": 100}')`)).toBe("100");
  });

  it("takes 500 bytes and no more, counted in bytes", async () => {
    const world = await setup();
    expect(await render(world, "a:{a}", { a: "x".repeat(498) })).toHaveLength(500);
    expect(await render(world, "a:{a}", { a: "x".repeat(499) })).toBeNull();
    expect(await render(world, "a:{a}", { a: "é".repeat(249) })).toHaveLength(251);
    expect(await render(world, "a:{a}", { a: "é".repeat(250) })).toBeNull();
  });
});

describe("a payload from which a key cannot be made", () => {
  it.each([
    ["orderingKey", { orderingKey: "a:{a}" }],
    ["locks", { locks: ["n", "a:{a}"] }],
    ["sharedLocks", { sharedLocks: ["a:{a}"] }],
    ["limits", { limitNames: ["a:{a}"], limitMaxes: [1] }],
    ["uniqueKey", { uniqueKey: "a:{a}" }],
  ])("is refused at enqueue for %s, and nothing of its batch goes in", async (_, policy) => {
    const world = await install([]);
    await registerKinds(world.sql, [{ name: "k", ...policy }, { name: "free" }]);
    for (const payload of [{}, { a: null }, { a: ["x"] }, { a: "x".repeat(500) }]) {
      const rows = await world.rows<{ i: number; type: string; detail: string }>(
        "select i, type, detail from pgclaim.enqueue_v1($1)",
        [
          JSON.stringify({
            jobs: [
              { kind: "free", payload: {} },
              { kind: "k", payload },
            ],
          }),
        ],
      );
      expect(rows).toEqual([{ i: 1, type: "invalid-key", detail: expect.stringContaining("a:{a}") }]);
    }
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(0);
    await expect(world.sql.query(`select pgclaim.enqueue('k', '{"a": {}}')`)).rejects.toMatchObject({ code: "PC003" });
  });

  it("cannot take another kind's slots or a queue's by calling itself so", async () => {
    const world = await install([
      { name: "free", limitNames: ["{t}"], limitMaxes: [1] },
      { name: "max", limitNames: ["@kind/max"], limitMaxes: [1] },
    ]);
    await world.sql.query(`select pgclaim.enqueue('free', '{"t": "@kind/max"}')`);
    await world.sql.query(`select pgclaim.enqueue('max', '{}')`);
    const names = await world.rows<{ limit_names: string[] }>("select limit_names from pgclaim.job order by id");
    expect(names.map(({ limit_names }) => limit_names)).toEqual([["%40kind/max"], ["@kind/max"]]);
  });
});
