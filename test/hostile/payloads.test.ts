// What goes in comes out: any JSON value through enqueue, the database and a handler, bit for bit. And keys: equal values
// make equal keys, different values different ones, whatever is in them, in whatever template.

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import { invoke } from "../support/engine.ts";
import { setup } from "../support/world.ts";
import { canary, forget, hostileText, jsonOf, storableText, timeFor, tryOut } from "./support.ts";

/** What JSON makes of a value: -0 is 0 there. */
const asJson = (value: unknown): unknown => JSON.parse(JSON.stringify(value));

/** A value that assertStorable refuses, by its own words: what Postgres cannot store. */
const isStorable = (value: unknown): boolean => {
  const texts: string[] = [];
  JSON.stringify(value, (key, child: unknown) => {
    texts.push(key);
    if (typeof child === "string") texts.push(child);
    return child;
  });
  return texts.every((text) => !text.includes("\0") && text.isWellFormed());
};

describe("a payload", () => {
  it(
    "reaches its handler as it was, or is refused at enqueue with nothing written",
    async () => {
      const world = await setup();
      const { untouched } = await canary(world);
      const got = new Map<string, unknown>();
      const any = defineJob({
        kind: "any",
        payload: z.unknown(),
        async run({ payload, job }) {
          got.set(job.id, payload);
        },
      });
      const claimer = world.claimer("pg", { jobs: [any], batch: 200 });
      await claimer.register();
      let tried = 0;
      let refused = 0;
      await tryOut(
        { usual: 10, counted: () => tried },
        fc.array(jsonOf(hostileText, 5), { minLength: 60, maxLength: 60 }),
        async (payloads) => {
          await forget(world);
          got.clear();
          tried += payloads.length;
          const stored = payloads.filter(isStorable);
          refused += payloads.length - stored.length;
          const bad = payloads.filter((value) => !isStorable(value));
          for (const value of bad) {
            const mixed = [...stored.slice(0, 1), value];
            await expect(claimer.enqueueMany(any, mixed)).rejects.toMatchObject({ code: "PGCLAIM_INVALID_PAYLOAD" });
          }
          expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(0);
          const enqueued = await claimer.enqueueMany(any, stored);
          await invoke(claimer);
          for (const [i, { id }] of enqueued.entries()) {
            // Not toEqual: what differs only in a sign, in undefined or in a prototype must be seen.
            expect(JSON.stringify(got.get(id))).toBe(JSON.stringify(sorted(asJson(stored[i]))));
          }
          expect(got.size).toBe(stored.length);
        },
      );
      console.log(`  of them refused: ${refused}`);
      await untouched();
    },
    timeFor(600),
  );
});

/** As jsonb orders the keys of an object: by length in bytes, then by bytes. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  const size = (text: string) => Buffer.byteLength(text);
  const entries = Object.entries(value).sort(
    ([a], [b]) => size(a) - size(b) || Buffer.compare(Buffer.from(a), Buffer.from(b)),
  );
  const made: Record<string, unknown> = {};
  for (const [key, child] of entries)
    Object.defineProperty(made, key, { value: sorted(child), enumerable: true, configurable: true, writable: true });
  return made;
}

/** A value of a placeholder. Text, number and boolean are told apart by nothing but how they are written. */
const keyValue = fc.oneof(
  { weight: 6, arbitrary: storableText },
  { weight: 1, arbitrary: fc.integer() },
  { weight: 1, arbitrary: fc.boolean() },
);
const written = (value: unknown): string => String(value);

const sign = fc.constantFrom(
  ":",
  "/",
  ".",
  "-",
  "_",
  " ",
  "'",
  '"',
  "\\",
  "@",
  "%:",
  "\u00e9",
  "\u202e",
  "\ud83d\ude00",
  "::",
  "|",
);
const literalText = fc
  .oneof(fc.constantFrom("", "account", "a-b", "limit", "%", "\u00c5", "x'y"), fc.string({ maxLength: 5 }))
  .map((text) => text.replaceAll(/[{}\0]/g, ""));

/** Templates that defineJob takes: signs between the placeholders, no @ in front. */
const template = fc
  .tuple(literalText, sign, literalText, fc.boolean())
  .map(([before, between, after, two]) => `${before}{a}${two ? `${between}{b}` : ""}${after}`)
  .filter((text) => !text.startsWith("@") && text.isWellFormed());

describe("a key", () => {
  it(
    "is the same for equal values and another one for others, in the database",
    async () => {
      const world = await setup();
      const { untouched } = await canary(world);
      const values = fc.record({ a: keyValue, b: keyValue });
      // Values that are near each other: a sign moved over the border, another normalisation, another case, a space.
      const near = fc.constantFrom<(value: { a: unknown; b: unknown }) => { a: unknown; b: unknown }>(
        (v) => v,
        ({ a, b }) => ({ a: b, b: a }),
        ({ a, b }) => ({ a: `${written(a)}:${written(b)}`, b: "" }),
        ({ a, b }) => ({ a: written(a).slice(0, -1), b: written(a).slice(-1) + written(b) }),
        ({ a, b }) => ({ a: written(a).normalize("NFD"), b: written(b).normalize("NFC") }),
        ({ a, b }) => ({ a: written(a).toUpperCase(), b }),
        ({ a, b }) => ({ a: `${written(a)} `, b }),
        ({ a, b }) => ({ a: encodeURIComponent(written(a)), b }),
        ({ a, b }) => ({ a: written(a).replaceAll(":", "%3A"), b: written(b).replaceAll("%", "%25") }),
        ({ a, b }) => ({ a: written(a).replaceAll("\u00e9", "%U0000E9"), b }),
      );
      const input = fc
        .tuple(template, values, near, values, fc.boolean())
        .map(([text, one, change, other, far]) => ({ text, one, other: far ? other : change(one) }))
        .filter(({ one, other }) => [one.a, one.b, other.a, other.b].every((value) => written(value).isWellFormed()));
      await tryOut({ usual: 1_500 }, input, async ({ text, one, other }) => {
        const { rows } = await world.sql.query<{ x: string | null; again: string | null; y: string | null }>(
          "select pgclaim.render_key($1, $2) as x, pgclaim.render_key($1, $2::jsonb || '{\"z\": 1}') as again, pgclaim.render_key($1, $3) as y",
          [text, JSON.stringify(one), JSON.stringify(other)],
        );
        const [row] = rows;
        expect(row?.again).toBe(row?.x);
        if (row?.x == null || row.y == null) {
          // Only for its length: every value here is a text, a number or a boolean.
          const longest = Math.max(
            ...[one, other].map(({ a, b }) => Buffer.byteLength(text + written(a) + written(b))),
          );
          expect(longest).toBeGreaterThan(60);
          return;
        }
        const used = text.includes("{b}") ? (["a", "b"] as const) : (["a"] as const);
        const same = used.every((name) => written(one[name]) === written(other[name]));
        expect(row.x === row.y, `${row.x} and ${row.y}`).toBe(same);
        expect(row.x.startsWith("@")).toBe(false);
        expect(Buffer.byteLength(row.x)).toBeLessThanOrEqual(500);
      });
      await untouched();
    },
    timeFor(1_500),
  );

  it("of a unique kind drops no job for another's likeness", async () => {
    const world = await setup();
    const once = defineJob({
      kind: "once",
      payload: z.object({ a: z.string(), b: z.string() }),
      uniqueKey: "{a}:{b}",
      async run() {},
    });
    const claimer = world.claimer("pg", { jobs: [once] });
    await claimer.register();
    const parts = [
      "",
      ":",
      "a",
      "a:",
      ":a",
      "%3A",
      "%",
      "%25",
      "\u00c5",
      "A\u030a",
      "\u212b",
      "@",
      "\u202ea",
      "A",
      "a ",
      "'",
      "\\",
    ];
    const pairs = parts.flatMap((a) => parts.map((b) => ({ a, b })));
    for (const type of ["enqueued", "duplicate"]) {
      const answers = await claimer.enqueueMany(once, pairs);
      expect(new Set(answers.map((answer) => answer.type))).toEqual(new Set([type]));
    }
    expect(await world.value("select count(*)::integer from pgclaim.unique_key")).toBe(pairs.length);
  });
});
