// The doctor on the schema: whether what is in the database is what this release has, and whether the roles may use it.

import { sqlStateOf, sqlStates } from "../../errors.ts";
import type { Row } from "../../rows.ts";
import { plural } from "../format.ts";
import { readSchemaFiles, rename, type SchemaFiles } from "../schema_files.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";
import type { Probe } from "./probe.ts";

/** What the files of this release make: functions with their bodies, indexes, triggers. */
export interface Expected {
  readonly files: SchemaFiles;
  readonly functions: readonly { readonly name: string; readonly body: string }[];
  readonly indexes: readonly string[];
  readonly triggers: readonly string[];
}

export async function expectedSchema(schema: string): Promise<Expected> {
  const files = await readSchemaFiles();
  const functions = files.functions.flatMap(({ text }) =>
    [
      ...rename(text, schema).matchAll(/create or replace function \w+\.(\w+)\s*\([\s\S]*?\bas \$\$([\s\S]*?)\$\$/g),
    ].map(([, name = "", body = ""]) => ({ name, body: lines(body) })),
  );
  const made = (pattern: RegExp) =>
    files.migrations.flatMap(({ text }) => [...text.matchAll(pattern)].map(([, name = ""]) => name));
  const gone = new Set(made(/^drop index (?:if exists )?\w+\.(\w+)/gm));
  return {
    files,
    functions,
    indexes: made(/^create (?:unique )?index (\w+)/gm).filter((name) => !gone.has(name)),
    triggers: made(/^create (?:constraint )?trigger (\w+)/gm),
  };
}

/** Checkouts on Windows have other line ends. */
function lines(body: string): string {
  return body.replaceAll("\r\n", "\n");
}

/** Version, digests, bodies of functions, indexes, triggers. `newest` says whether the rest can be judged. */
export async function schemaDrift(probe: Probe, schema: string, expected: Expected): Promise<Finding> {
  const { files } = expected;
  const newest = files.migrations.length;
  const [there] = await probe.ask("select to_regclass($1 || '.migration') is not null as there", schema);
  if (there?.there !== true)
    return fail("schema", `no schema "${schema}" of pgclaim's here`, "pgclaim migrate", { version: 0, newest });
  const applied = await readable(probe, `select version, digest from ${schema}.migration order by version`);
  // A role that may not read the bookkeeping sees the functions all the same.
  if (applied === null) return drift(probe, schema, expected, { version: null, newest });
  const version = Number(applied.at(-1)?.version ?? 0);
  const facts = { version, newest };
  if (version > newest)
    return fail(
      "schema",
      `version ${version}, newer than this release's ${newest}`,
      "use the newer release's doctor",
      facts,
    );
  const missing = files.migrations.slice(version).map(({ name }) => name);
  if (missing.length > 0)
    return fail(
      "schema",
      `version ${version} of ${newest}: ${plural(missing.length, "migration")} missing (${missing.join(", ")})`,
      "pgclaim migrate",
      { ...facts, missing },
    );
  const changed = files.migrations.filter(({ digest }, i) => applied[i]?.digest !== digest).map(({ name }) => name);
  if (changed.length > 0)
    return fail(
      "schema",
      `version ${version}, but not as released: ${changed.join(", ")}`,
      "restore the files, and put the change into a new migration",
      { ...facts, changed },
    );
  return drift(probe, schema, expected, facts);
}

async function drift(
  probe: Probe,
  schema: string,
  expected: Expected,
  facts: Record<string, unknown>,
): Promise<Finding> {
  const noted = await readable(probe, `select digest from ${schema}.schema_functions`);
  if (noted !== null && noted[0]?.digest !== expected.files.functionsDigest)
    return fail("schema", "the functions are another release's", "pgclaim migrate", facts);
  const found = await probe.ask(
    "select p.proname::text as name, p.prosrc as body from pg_catalog.pg_proc p where p.pronamespace = to_regnamespace($1)",
    schema,
  );
  const functions = compareFunctions(expected.functions, found);
  const things = await lost(probe, schema, expected);
  const all = { ...facts, ...functions, ...things };
  const version = facts.version === null ? "version not readable by this role" : `version ${String(facts.version)}`;
  const wrong = [
    said("missing", functions.missing),
    said("changed by hand", functions.changed),
    said("indexes missing or invalid", things.indexes),
    said("triggers missing or off", things.triggers),
  ].filter((part) => part !== "");
  if (wrong.length > 0) {
    const byFunctions = functions.missing.length + functions.changed.length > 0;
    return fail(
      "schema",
      `${version}, but ${wrong.join("; ")}`,
      byFunctions ? "pgclaim migrate --functions" : "make them again as schema/migrations has them",
      all,
    );
  }
  if (functions.extra.length > 0)
    return warn(
      "schema",
      `${version}; functions that this release does not know: ${functions.extra.join(", ")}`,
      "drop them, or leave them to the release that has them",
      all,
    );
  return ok(
    "schema",
    `${version}, ${expected.functions.length} functions and ${expected.indexes.length} indexes as released`,
    { facts: all },
  );
}

/** Rows, or null where this role may not read them. */
async function readable(probe: Probe, statement: string): Promise<readonly Row[] | null> {
  try {
    return await probe.ask(statement);
  } catch (error) {
    if (sqlStateOf(error) === sqlStates.insufficientPrivilege) return null;
    throw error;
  }
}

function said(what: string, names: readonly string[]): string {
  return names.length === 0
    ? ""
    : `${what}: ${names.slice(0, 5).join(", ")}${names.length > 5 ? ` and ${names.length - 5} more` : ""}`;
}

function compareFunctions(expected: Expected["functions"], found: readonly Row[]) {
  const bodies = new Map<string, string[]>();
  for (const row of found)
    bodies.set(String(row.name), [...(bodies.get(String(row.name)) ?? []), lines(String(row.body))]);
  const names = new Set(expected.map(({ name }) => name));
  return {
    missing: [...new Set(expected.filter(({ name }) => !bodies.has(name)).map(({ name }) => name))],
    changed: [
      ...new Set(
        expected
          .filter(({ name, body }) => bodies.has(name) && bodies.get(name)?.includes(body) !== true)
          .map(({ name }) => name),
      ),
    ],
    extra: [...bodies.keys()].filter((name) => !names.has(name)).sort(),
  };
}

async function lost(probe: Probe, schema: string, { indexes, triggers }: Expected) {
  const valid = await probe.ask(
    `select c.relname::text as name from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indexrelid
     where c.relnamespace = to_regnamespace($1) and i.indisvalid and i.indisready`,
    schema,
  );
  const active = await probe.ask(
    `select t.tgname::text as name from pg_catalog.pg_trigger t join pg_catalog.pg_class c on c.oid = t.tgrelid
     where c.relnamespace = to_regnamespace($1) and t.tgenabled <> 'D'`,
    schema,
  );
  const without = (names: readonly string[], rows: readonly Row[]) => {
    const there = new Set(rows.map((row) => String(row.name)));
    return names.filter((name) => !there.has(name));
  };
  return { indexes: without(indexes, valid), triggers: without(triggers, active) };
}
