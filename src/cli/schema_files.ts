// The SQL files of this release: numbered migrations and repeatable functions, with the digests by which a database is
// compared to them. Reads files, never a database.

import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { UsageError } from "../errors.ts";

/** The schema's name in the files. */
export const SOURCE_SCHEMA = "pgclaim";
const MIGRATION_FILE = /^(\d{4})_[a-z0-9_]+\.sql$/;

export type SqlFile = { name: string; text: string };
export type Migration = SqlFile & { version: number; digest: string };
export type SchemaFiles = { migrations: Migration[]; functions: SqlFile[]; functionsDigest: string };

/** Reads and numbers them. Errors: PGCLAIM_MIGRATION_FILES. */
export async function readSchemaFiles(directory = shippedDirectory()): Promise<SchemaFiles> {
  const migrations: Migration[] = [];
  for (const file of await readSqlFiles(path.join(directory, "migrations"))) {
    const version = Number(MIGRATION_FILE.exec(file.name)?.[1]);
    if (version !== migrations.length + 1) {
      const expected = String(migrations.length + 1).padStart(4, "0");
      throw new UsageError(
        "PGCLAIM_MIGRATION_FILES",
        `Migration file "${file.name}" is out of place; expected ${expected}_verb_object.sql next. ` +
          "Versions are numbered from 0001 without gap or repetition.",
      );
    }
    migrations.push({ ...file, version, digest: digestOf([file]) });
  }
  const functions = await readSqlFiles(path.join(directory, "functions"));
  return { migrations, functions, functionsDigest: digestOf(functions) };
}

async function readSqlFiles(directory: string): Promise<SqlFile[]> {
  let names: string[];
  try {
    names = await readdir(directory);
  } catch (cause) {
    throw new UsageError("PGCLAIM_MIGRATION_FILES", `The folder "${directory}" cannot be read.`, { cause });
  }
  const sorted = names.filter((name) => name.endsWith(".sql")).sort();
  return Promise.all(
    sorted.map(async (name) => ({ name, text: (await readFile(path.join(directory, name), "utf8")).trim() })),
  );
}

/** Line endings do not count, so that a checkout on Windows has the same digests. */
function digestOf(files: readonly SqlFile[]): string {
  const hash = createHash("sha256");
  for (const { name, text } of files) hash.update(`${name}\0${text.replaceAll("\r\n", "\n")}\0`);
  return hash.digest("hex");
}

/** src/cli and dist/cli lie equally deep, so one path serves the checkout and the package. */
function shippedDirectory(): string {
  return fileURLToPath(new URL("../../schema/", import.meta.url));
}

/** The SQL files are valid as they stand, for the schema "pgclaim"; another name is put in these two places. */
export function rename(text: string, schema: string): string {
  if (schema === SOURCE_SCHEMA) return text;
  return text.replace(/\bpgclaim(?=\.)/g, schema).replace(/(?<=\bschema )pgclaim\b/g, schema);
}
