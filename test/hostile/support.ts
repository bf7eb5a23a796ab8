// Properties against hostile input: how often, from which seed, and the one command that repeats a failure; and the strings
// and JSON texts that have broken others before.

import fc from "fast-check";
import pg from "pg";
import { expect } from "vitest";
import type { World } from "../support/world.ts";

const environment = process.env;

/** Runs of each property; small in CI, PGCLAIM_FUZZ_RUNS=10000 by hand. */
export function runsOf(usual: number): number {
  const runs = Number(environment.PGCLAIM_FUZZ_RUNS ?? usual);
  if (Number.isInteger(runs) && runs >= 1) return runs;
  throw new Error(`PGCLAIM_FUZZ_RUNS is "${environment.PGCLAIM_FUZZ_RUNS}"; expected a whole number from 1.`);
}

/** A test's time: a thousand inputs a second and more is normal, ten a second is a loaded machine. */
export const timeFor = (usual: number): number => 30_000 + 100 * runsOf(usual);

/**
 * Tries a property and prints how many inputs it had. A failure says the smallest input that shows it, the seed, and the
 * command that replays it.
 */
export async function tryOut<T>(
  what: { readonly usual: number; readonly counted?: () => number },
  inputs: fc.Arbitrary<T>,
  holds: (input: T) => Promise<void>,
): Promise<void> {
  const path = environment.PGCLAIM_FUZZ_PATH;
  const outcome = await fc.check(fc.asyncProperty(inputs, holds), {
    numRuns: runsOf(what.usual),
    seed: Number(environment.PGCLAIM_FUZZ_SEED ?? Math.floor(Math.random() * 2 ** 31)),
    ...(path === undefined ? {} : { path }),
  });
  const { testPath, currentTestName } = expect.getState();
  const file = (testPath ?? "").replace(/^.*\/test\//, "test/");
  const title = (currentTestName ?? "").split(" > ").at(-1) ?? "";
  console.log(`hostile inputs: ${what.counted?.() ?? outcome.numRuns} (seed ${outcome.seed}): ${title}`);
  if (!outcome.failed) return;
  const replay = `PGCLAIM_FUZZ_SEED=${outcome.seed} PGCLAIM_FUZZ_PATH=${outcome.counterexamplePath ?? "0"}`;
  throw new Error(`${fc.defaultReportMessage(outcome)}\n\nReplay: ${replay} npx vitest run ${file} -t '${title}'\n`, {
    cause: outcome.errorInstance,
  });
}

/** Texts with a history. None is longer than a key may be, so that they reach further than a check of lengths. */
const classics = [
  "",
  " ",
  "'",
  '"',
  "\\",
  "\\'; drop table public.canary; --",
  "'; drop table public.canary; --",
  '"; drop table public.canary; --',
  "$$; drop table public.canary; $$",
  "$1",
  "') or ('1'='1",
  "x'); delete from public.canary; select ('",
  "E'\\047; drop table public.canary; --",
  "\u02bc; drop table public.canary; --",
  "\uff07; drop table public.canary; --",
  "%s%n%I%L",
  "%27",
  "{k}",
  "}{",
  "{{}}",
  "@queue/default",
  "@",
  "%",
  "%40",
  "%U00E9",
  "account:1",
  "a:b",
  "__proto__",
  "constructor",
  "toString",
  "null",
  "undefined",
  "NaN",
  "Infinity",
  "-infinity",
  "now",
  "true",
  "0",
  "-0",
  "1e400",
  "9223372036854775808",
  "\ufeff",
  "\u202e\u0661\u0662",
  "\u2066abc\u2069",
  "\u00c5",
  "A\u030a",
  "\u212b",
  "\u00df",
  "ss",
  "\u0130",
  "i\u0307",
  "\ud83d\udc69\u200d\ud83d\udcbb",
  "\ufffd",
  "\uffff",
  "\udbff\udfff",
  "\n",
  "\r\nx-injected: 1",
  "\t",
  "\u0007",
  "\u001b[2J",
  "\u2028",
  "../../etc/passwd",
  // biome-ignore lint/suspicious/noTemplateCurlyInString: what a template engine would fall for
  "${7*7}",
  "<script>",
  "postgres://user:word@host/db",
] as const;

/** What Postgres cannot store: NUL, and halves of a surrogate pair. */
const unstorable = ["\0", "a\0b", "\ud800", "\udc00", "x\ud83d", "\udc69y", "\ud800\ud800"] as const;

const anyChar = fc.oneof(
  { weight: 6, arbitrary: fc.constantFrom(..."'\"\\{}%:@$-;() aZ09.\n/".split("")) },
  { weight: 2, arbitrary: fc.string({ unit: "grapheme", minLength: 1, maxLength: 1 }) },
  { weight: 1, arbitrary: fc.string({ unit: "binary", minLength: 1, maxLength: 1 }) },
);

/** Any text that Postgres can store. */
export const storableText: fc.Arbitrary<string> = fc
  .oneof(
    { weight: 4, arbitrary: fc.constantFrom(...classics) },
    { weight: 4, arbitrary: fc.string({ unit: anyChar, maxLength: 40 }) },
    {
      weight: 1,
      arbitrary: fc.tuple(fc.constantFrom(...classics), fc.constantFrom(...classics)).map((two) => two.join("")),
    },
    {
      weight: 1,
      arbitrary: fc
        .tuple(fc.constantFrom("x", "\u00e9", "'", "{", "\\", "%"), fc.nat(2_000))
        .map(([c, n]) => c.repeat(n)),
    },
  )
  .map((text) => text.replaceAll("\0", ""));

/** Any text at all, also what cannot be stored. */
export const hostileText: fc.Arbitrary<string> = fc.oneof(
  { weight: 5, arbitrary: storableText },
  { weight: 1, arbitrary: fc.constantFrom(...unstorable) },
  {
    weight: 1,
    arbitrary: fc.string({ unit: fc.nat(0xffff).map((unit) => String.fromCharCode(unit)), maxLength: 20 }),
  },
);

/** Numbers at the edges of what JSON, JavaScript and Postgres agree on. */
export const edgeNumber: fc.Arbitrary<number> = fc.oneof(
  fc.constantFrom(
    0,
    -0,
    1,
    -1,
    0.1,
    1e21,
    1e-7,
    2 ** 53,
    2 ** 53 - 1,
    -(2 ** 53),
    5e-324,
    1.7976931348623157e308,
    1e100,
  ),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.integer(),
);

/** A JSON value of storable texts, and how deep it may go. */
export function jsonOf(text: fc.Arbitrary<string>, depth = 4, key = text): fc.Arbitrary<unknown> {
  return fc.letrec<{ value: unknown }>((tie) => ({
    value: fc.oneof(
      { maxDepth: depth, withCrossShrink: true },
      fc.constantFrom(null, true, false),
      edgeNumber,
      text,
      fc.array(tie("value"), { maxLength: 4 }),
      fc.array(fc.tuple(key, tie("value")), { maxLength: 4 }).map((entries) => Object.fromEntries(entries)),
    ),
  })).value;
}

/** Forgets every job, so that one input does not meet what another has left, and a failure shrinks and replays. */
export async function forget(world: World): Promise<void> {
  await world.sql.query(`
    delete from pgclaim.job; delete from pgclaim.unique_key; delete from pgclaim.recheck; delete from pgclaim.attempt;
    delete from pgclaim.history; delete from pgclaim.cancel_request; delete from pgclaim.reservation`);
}

/** A table that nobody has any business with. `untouched` fails if it, or the list of tables, is not what it was. */
export async function canary(world: World): Promise<{ readonly untouched: () => Promise<void> }> {
  await world.sql.query("create table public.canary (sang text); insert into public.canary values ('still here')");
  const look = async () => ({
    song: await world.rows("select sang, xmin::text as written from public.canary"),
    relations: await world.value<number>(
      "select count(*)::integer from pg_class where relnamespace not in ('pg_toast'::regnamespace, 'pg_catalog'::regnamespace)",
    ),
    functions: await world.value<number>(
      "select count(*)::integer from pg_proc where pronamespace <> 'pg_catalog'::regnamespace",
    ),
    roles: await world.value<number>("select count(*)::integer from pg_roles where rolsuper"),
  });
  const before = await look();
  return { untouched: async () => expect(await look()).toEqual(before) };
}

/** What a driver says of a failed statement. */
export interface SqlFault {
  readonly code: string;
  readonly message: string;
  /** The functions it happened in. */
  readonly where: string;
}

/** The rows of a statement, or its fault. Anything but an answer of the server is thrown on. */
export async function ask<Row = Record<string, unknown>>(
  client: Pick<pg.Client, "query">,
  text: string,
  values: readonly unknown[],
): Promise<{ readonly rows: readonly Row[] } | { readonly fault: SqlFault }> {
  try {
    return { rows: (await client.query(text, [...values])).rows as Row[] };
  } catch (error) {
    if (!(error instanceof pg.DatabaseError) || error.code === undefined) throw error;
    return { fault: { code: error.code, message: error.message, where: error.where ?? "" } };
  }
}
