// Brings an installation's schema up to this release: numbered migrations, then the repeatable functions.
// One transaction per run, so a run either happened or did not; it must never leave a session lock or setting behind.

import { systemClock, wait as waitOn } from "../clock.ts";
import { DatabaseError, isSessionOver, PgclaimError, sqlStateOf, sqlStates, UsageError } from "../errors.ts";
import {
  type Migration,
  readSchemaFiles,
  rename,
  type SchemaFiles,
  SOURCE_SCHEMA,
  type SqlFile,
} from "./schema_files.ts";

const SCHEMA_NAME = /^[a-z_][a-z0-9_]{0,39}$/;

/**
 * How long one statement waits for a lock before the whole run steps back. While DDL waits for a table, every later
 * reader of that table queues behind it: longer would stall the work, shorter would lose against any busy tick.
 */
const LOCK_TIMEOUT = "2s";

/** Bound on all tries together; the longest idle tick (its transaction holds a read lock) should fit in it. */
const DEFAULT_PATIENCE_MS = 60_000;
const FIRST_WAIT_MS = 200;
const LONGEST_WAIT_MS = 5_000;

/** One connection of `pg`, or anything with its `query`. Never a pool: the transaction must stay on one connection. */
export type MigrateClient = {
  query(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[]; command?: string | null }>;
};

export type MigrateOptions = {
  /** The connection, idle and outside any transaction. It may come through a transaction-mode pooler. */
  client: MigrateClient;
  /** Gives a new connection after one was lost, so that the run is retried. Default: a lost connection is an error. */
  reconnect?: () => Promise<MigrateClient>;
  /** Name of the installation's schema. Lower case, digits and _, at most 40. Default "pgclaim". */
  schema?: string;
  /** Folder with migrations/ and functions/. Default: the one shipped with this release. */
  directory?: string;
  /** Bound on all tries together, in ms. Default 60000. */
  patienceMs?: number;
  /** Replaces the functions also where the last run wrote down that they are this release's: somebody changed one. */
  replaceFunctions?: boolean;
  /** Does everything and rolls it back: that it would work, with the locks it takes meanwhile. Default false. */
  dryRun?: boolean;
  /** Told in one line each what is being done or waited for. */
  onProgress?: (line: string) => void;
  /** Milliseconds on a clock that never goes back, and a wait; for tests. */
  now?: () => number;
  sleep?: (ms: number) => Promise<void>;
};

export type MigrateResult = {
  schema: string;
  /** Version before and after; 0 is none. */
  from: number;
  to: number;
  /** File names of the migrations this run applied, in order. */
  applied: string[];
  /** True if this run replaced the functions. */
  functionsChanged: boolean;
};

/**
 * Applies what this release has and the database has not, and answers what that was. Safe to call from any number of
 * processes at once: they queue on one advisory lock, and all but the first find nothing to do.
 *
 * Errors: PGCLAIM_INVALID_SCHEMA_NAME, PGCLAIM_SCHEMA_OCCUPIED, PGCLAIM_SCHEMA_TOO_NEW, PGCLAIM_MIGRATION_FILES,
 *         PGCLAIM_MIGRATION_CHANGED, PGCLAIM_MIGRATION_FAILED, PGCLAIM_MIGRATION_LOCKED, PGCLAIM_CONNECT_FAILED,
 *         PGCLAIM_TX_LOST. After each of them the database is as it was (of PGCLAIM_CONNECT_FAILED during COMMIT
 *         nobody can know; the next run finds out).
 */
export async function migrate(options: MigrateOptions): Promise<MigrateResult> {
  const { schema = SOURCE_SCHEMA, patienceMs = DEFAULT_PATIENCE_MS, reconnect } = options;
  const { now = systemClock.now, sleep = (ms) => waitOn(systemClock, ms), onProgress = () => {} } = options;
  checkSchemaName(schema);
  const files = await readSchemaFiles(options.directory);
  const started = now();
  let { client } = options;
  let lost = false;
  for (let wait = FIRST_WAIT_MS; ; wait = Math.min(wait * 2, LONGEST_WAIT_MS)) {
    let failure: unknown;
    try {
      if (lost && reconnect) client = await reconnect();
      lost = false;
      return await runOnce(client, schema, files, options);
    } catch (error) {
      failure = error;
    }
    const trouble = troubleOf(failure);
    if (trouble === "lost" && reconnect === undefined) {
      throw new DatabaseError("PGCLAIM_CONNECT_FAILED", "The connection was lost during the migration. Run it again.", {
        cause: failure,
      });
    }
    if (trouble === "final") throw failure;
    // Jitter, so that many that were refused together do not come back together.
    const waitMs = Math.round(wait * (0.5 + systemClock.random()));
    if (now() - started + waitMs > patienceMs) {
      throw trouble === "lost"
        ? new DatabaseError("PGCLAIM_CONNECT_FAILED", `No lasting connection within ${patienceMs} ms.`, {
            cause: failure,
          })
        : new DatabaseError(
            "PGCLAIM_MIGRATION_LOCKED",
            `The schema "${schema}" stayed locked for ${patienceMs} ms, by another migration or a long transaction. ` +
              "Nothing was changed. Look for it in pg_stat_activity and run this again.",
            { cause: failure },
          );
    }
    lost = trouble === "lost";
    onProgress(`${lost ? "connection lost" : "a lock is held by another transaction"}; trying again in ${waitMs} ms`);
    await sleep(waitMs);
  }
}

export type MigrationStatus = {
  schema: string;
  /** What the database has; 0 is none. */
  version: number;
  /** What this release has. */
  newest: number;
  /** Names of the migrations that are missing, in order. */
  pending: string[];
  /** Whether the functions are this release's, by the digest that the last migrate wrote down. */
  functionsCurrent: boolean;
};

/**
 * What migrate would do, without doing it: two or three reads, no lock, no transaction left open.
 *
 * Errors: those of migrate() that come before its first change.
 */
export async function migrationStatus(
  options: Pick<MigrateOptions, "client" | "schema" | "directory">,
): Promise<MigrationStatus> {
  const { client, schema = SOURCE_SCHEMA } = options;
  checkSchemaName(schema);
  const files = await readSchemaFiles(options.directory);
  const found = await inspect(client, schema);
  return {
    schema,
    version: found.version,
    newest: files.migrations.length,
    pending: pendingMigrations(files, found, schema).map(({ name }) => name),
    functionsCurrent: found.functionsDigest === files.functionsDigest,
  };
}

async function runOnce(
  client: MigrateClient,
  schema: string,
  files: SchemaFiles,
  { onProgress = () => {}, dryRun = false, replaceFunctions = false }: MigrateOptions,
): Promise<MigrateResult> {
  await client.query(openingSql());
  try {
    await client.query("select pg_advisory_xact_lock(hashtextextended('pgclaim:migrate:' || $1, 0))", [schema]);
    const found = await inspect(client, schema);
    const pending = pendingMigrations(files, found, schema);
    const result: MigrateResult = {
      schema,
      from: found.version,
      to: files.migrations.length,
      applied: pending.map((migration) => migration.name),
      functionsChanged: replaceFunctions || found.functionsDigest !== files.functionsDigest,
    };
    if (!found.exists) await client.query(`create schema ${schema}`);
    if (!found.bookkeeping) await client.query(bookkeepingSql(schema));
    for (const migration of pending) {
      onProgress(`applying ${migration.name}`);
      await runFile(client, schema, migration);
      await client.query(`insert into ${schema}.migration (version, name, digest) values ($1, $2, $3)`, [
        migration.version,
        migration.name,
        migration.digest,
      ]);
    }
    if (result.functionsChanged) {
      onProgress(`replacing the functions (${files.functions.length} files)`);
      for (const file of files.functions) await runFile(client, schema, file);
      await client.query(recordFunctionsSql(schema, "$1"), [files.functionsDigest]);
    }
    if (dryRun) {
      await client.query("rollback");
      return result;
    }
    const { command } = await client.query("commit");
    // COMMIT of an aborted transaction does not fail: it answers ROLLBACK.
    if (command !== undefined && command !== null && command !== "COMMIT") {
      throw new DatabaseError("PGCLAIM_TX_LOST", `COMMIT of the migration was answered by ${command}.`);
    }
    return result;
  } catch (error) {
    // On a lost connection this rejects as well, and the server has rolled back by itself.
    if (troubleOf(error) !== "lost") await client.query("rollback").catch(() => {});
    throw error;
  }
}

type Found = {
  exists: boolean;
  bookkeeping: boolean;
  version: number;
  digests: Map<number, string>;
  functionsDigest: string | undefined;
};

/** What is installed. Reads only, so a run that finds nothing to do needs no right to create anything. */
async function inspect(client: MigrateClient, schema: string): Promise<Found> {
  const { rows } = await client.query(
    `select quote_ident($1) = $1                      as plain,
            n.oid is not null                          as exists,
            to_regclass($1 || '.migration') is not null
              and to_regclass($1 || '.schema_functions') is not null as bookkeeping,
            exists (select from pg_class c where c.relnamespace = n.oid)
              or exists (select from pg_proc p where p.pronamespace = n.oid) as occupied
       from (select to_regnamespace(quote_ident($1)) as oid) n`,
    [schema],
  );
  const row = rows[0] ?? {};
  if (row.plain !== true) throw invalidName(schema, "it is a reserved word");
  const found: Found = {
    exists: row.exists === true,
    bookkeeping: row.bookkeeping === true,
    version: 0,
    digests: new Map(),
    functionsDigest: undefined,
  };
  if (!found.bookkeeping) {
    if (row.occupied !== true) return found;
    throw new UsageError(
      "PGCLAIM_SCHEMA_OCCUPIED",
      `The schema "${schema}" exists and holds something that is not pgclaim's. Choose another name, or empty it.`,
    );
  }
  const applied = await client.query(`select version, digest from ${schema}.migration order by version`);
  for (const { version, digest } of applied.rows) {
    found.version = Number(version);
    found.digests.set(Number(version), String(digest));
  }
  const functions = await client.query(`select digest from ${schema}.schema_functions`);
  const digest = functions.rows[0]?.digest;
  if (typeof digest === "string") found.functionsDigest = digest;
  return found;
}

function pendingMigrations(files: SchemaFiles, found: Found, schema: string): Migration[] {
  const newest = files.migrations.length;
  if (found.version > newest) {
    throw new UsageError(
      "PGCLAIM_SCHEMA_TOO_NEW",
      `The schema "${schema}" is at version ${found.version}, but this release knows ${newest} at most. ` +
        "Nothing was changed. Deploy the newer release, or use its migrate.",
    );
  }
  for (const { version, name, digest } of files.migrations) {
    if (version > found.version) break;
    if (found.digests.get(version) === digest) continue;
    throw new UsageError(
      "PGCLAIM_MIGRATION_CHANGED",
      `Migration ${version}, file "${name}", is not what was applied to the schema "${schema}". Restore the file as it ` +
        "was released and put the change into a new migration; on a database that may be lost, drop the schema instead.",
    );
  }
  return files.migrations.slice(found.version);
}

async function runFile(client: MigrateClient, schema: string, file: SqlFile): Promise<void> {
  try {
    await client.query(rename(file.text, schema));
  } catch (cause) {
    if (troubleOf(cause) !== "final") throw cause;
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new DatabaseError(
      "PGCLAIM_MIGRATION_FAILED",
      `"${file.name}" was refused by the database: ${reason}. Nothing was changed.`,
      { cause },
    );
  }
}

/**
 * The same as one SQL script, for those who let nobody but a person change a schema. It starts from `from` (default 0,
 * an empty database), refuses to run on any other version, and leaves the same bookkeeping.
 */
export async function renderMigrations(
  options: { schema?: string; directory?: string; from?: number } = {},
): Promise<string> {
  const { schema = SOURCE_SCHEMA, from = 0 } = options;
  checkSchemaName(schema);
  const files = await readSchemaFiles(options.directory);
  const parts = [
    `-- pgclaim: schema "${schema}", version ${from} to ${files.migrations.length}.`,
    `${openingSql()};`,
    `select pg_advisory_xact_lock(hashtextextended('pgclaim:migrate:' || '${schema}', 0));`,
    from === 0 ? `create schema if not exists ${schema};\n${bookkeepingSql(schema)};` : "",
    `do $$
declare
  found integer := (select coalesce(max(version), 0) from ${schema}.migration);
begin
  if found <> ${from} then
    raise exception 'This script starts from version ${from}, but the schema "${schema}" is at %.', found;
  end if;
end
$$;`,
  ];
  for (const migration of files.migrations.slice(from)) {
    parts.push(
      `-- migrations/${migration.name}\n${rename(migration.text, schema)}`,
      `insert into ${schema}.migration (version, name, digest)\nvalues (${migration.version}, '${migration.name}', '${migration.digest}');`,
    );
  }
  for (const file of files.functions) parts.push(`-- functions/${file.name}\n${rename(file.text, schema)}`);
  parts.push(`${recordFunctionsSql(schema, `'${files.functionsDigest}'`)};`, "commit;");
  return `${parts.filter((part) => part !== "").join("\n\n")}\n`;
}

function openingSql(): string {
  // An empty search_path: nothing in a migration may depend on what the role happens to have there.
  return `begin isolation level read committed read write; set local lock_timeout = '${LOCK_TIMEOUT}'; set local search_path = ''`;
}

function bookkeepingSql(schema: string): string {
  return `create table if not exists ${schema}.migration (
  version    integer     not null,
  name       text        not null,
  digest     text        not null,
  applied_at timestamptz not null default clock_timestamp(),
  constraint migration_pkey primary key (version)
);
create table if not exists ${schema}.schema_functions (
  singleton  boolean     not null default true,
  digest     text        not null,
  applied_at timestamptz not null default clock_timestamp(),
  constraint schema_functions_pkey primary key (singleton),
  constraint schema_functions_singleton check (singleton)
)`;
}

function recordFunctionsSql(schema: string, digest: string): string {
  return `insert into ${schema}.schema_functions (digest) values (${digest})
on conflict (singleton) do update set digest = excluded.digest, applied_at = clock_timestamp()`;
}

function checkSchemaName(schema: string): void {
  if (!SCHEMA_NAME.test(schema))
    throw invalidName(schema, "use a-z, 0-9 and _, at most 40, not beginning with a digit");
  if (schema.startsWith("pg_")) throw invalidName(schema, "Postgres keeps names beginning with pg_ for itself");
  // The functions' last step takes rights away from PUBLIC in the whole schema.
  if (schema === "public") throw invalidName(schema, "pgclaim needs a schema of its own");
}

function invalidName(schema: string, reason: string): UsageError {
  return new UsageError("PGCLAIM_INVALID_SCHEMA_NAME", `"${schema}" cannot be the schema's name: ${reason}.`);
}

const DEADLOCK_DETECTED = "40P01";

/**
 * locked: another transaction is in the way (55P03 lock timeout, 40P01 deadlock), waiting helps.
 * lost: the connection is gone. final: everything else.
 */
function troubleOf(error: unknown): "locked" | "lost" | "final" {
  if (error instanceof PgclaimError) return "final";
  if (isSessionOver(error)) return "lost";
  const state = sqlStateOf(error);
  return state === sqlStates.lockNotAvailable || state === DEADLOCK_DETECTED ? "locked" : "final";
}
