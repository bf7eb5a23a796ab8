// pgclaim migrate: brings the schema up to this release, or says what that would do.

import type { Command } from "commander";
import type pg from "pg";
import { DatabaseError, describeError } from "../../errors.ts";
import { type Context, type ExitCode, exitCodes, parse, Refusal, type Runner } from "../command.ts";
import { plural } from "../format.ts";
import { type MigrateClient, migrate, migrationStatus, renderMigrations } from "../migrate.ts";

const connectLimitMs = 15_000;

interface MigrateOptions {
  readonly sql?: boolean;
  readonly from?: number;
  readonly dryRun?: boolean;
  readonly functions?: boolean;
}

export function addMigrate(program: Command, runner: Runner): void {
  const command = program
    .command("migrate")
    .description("bring the schema up to this release; safe when twenty start at once")
    .option("--dry-run", "do it all and roll it back; takes the same locks for as long")
    .option("--functions", "replace the functions even if they were this release's at the last run")
    .option("--sql", "print it as one SQL script instead, for psql")
    .option(
      "--from <version>",
      "with --sql: the version it starts from (default: the database's; 0 without DATABASE_URL)",
      parse.integer(0, 9_999),
    );
  runner.act(command, (context, _, options) => {
    const { sql, from, dryRun, functions } = options as MigrateOptions;
    if (sql === true && dryRun === true) throw new Refusal(exitCodes.usage, "--sql and --dry-run do not go together.");
    if (from !== undefined && sql !== true) throw new Refusal(exitCodes.usage, "--from goes with --sql.");
    return sql === true ? printSql(context, from) : apply(context, dryRun === true, functions === true);
  });
  runner.act(
    command
      .command("status")
      .description("what the database has and what this release has; changes nothing (exit 1: behind)"),
    (context) => status(context),
  );
}

async function apply(context: Context, dryRun: boolean, replaceFunctions: boolean): Promise<ExitCode> {
  const { out, schema } = context;
  const clients = clientsOf(context);
  try {
    const result = await migrate({
      client: await clients.open(),
      reconnect: clients.open,
      schema,
      dryRun,
      replaceFunctions,
      onProgress: (line) => out.note(line),
    });
    const functions = result.functionsChanged ? "functions replaced" : "functions unchanged";
    const done = result.applied.length > 0 ? `version ${result.from} -> ${result.to}` : `version ${result.to} already`;
    out.answer(
      { ...result, dryRun },
      `${dryRun ? "Would be done, and was rolled back. " : ""}Schema "${schema}": ${done}, ${functions}.`,
    );
    return exitCodes.fine;
  } finally {
    clients.close();
  }
}

async function status(context: Context): Promise<ExitCode> {
  const { out, schema } = context;
  const clients = clientsOf(context);
  try {
    const found = await migrationStatus({ client: await clients.open(), schema });
    const current = found.pending.length === 0 && found.functionsCurrent;
    const behind = [
      found.pending.length > 0
        ? `${plural(found.pending.length, "migration")} missing: ${found.pending.join(", ")}`
        : "",
      found.functionsCurrent ? "" : "the functions are another release's",
    ].filter((part) => part !== "");
    out.answer(
      { ...found, current },
      `Schema "${schema}": version ${found.version} of ${found.newest}. ` +
        (current ? "Nothing to do." : `${behind.join("; ")}. Run: pgclaim migrate`),
    );
    return current ? exitCodes.fine : exitCodes.failed;
  } finally {
    clients.close();
  }
}

async function printSql(context: Context, given: number | undefined): Promise<ExitCode> {
  const { out, schema } = context;
  const from = given ?? ((context.env[context.urlName] ?? "") === "" ? 0 : await versionOf(context));
  const sql = await renderMigrations({ schema, from });
  out.note(`-- from version ${from}; the script refuses to run on any other`);
  if (out.json) out.object({ schema, from, sql });
  else out.line(sql.trimEnd());
  return exitCodes.fine;
}

async function versionOf(context: Context): Promise<number> {
  const clients = clientsOf(context);
  try {
    return (await migrationStatus({ client: await clients.open(), schema: context.schema })).version;
  } finally {
    clients.close();
  }
}

/** Connections of this run; the last one is closed at its end. */
function clientsOf(context: Context): { open: () => Promise<MigrateClient>; close: () => void } {
  const connectionString = context.url();
  let client: pg.Client | undefined;
  return {
    async open() {
      const { default: driver } = await import("pg");
      const fresh = new driver.Client({ connectionString, connectionTimeoutMillis: connectLimitMs });
      fresh.on("error", () => {}); // The query in flight rejects with it.
      try {
        await fresh.connect();
      } catch (cause) {
        throw new DatabaseError("PGCLAIM_CONNECT_FAILED", `The database cannot be reached (${describeError(cause)}).`, {
          cause,
        });
      }
      client = fresh;
      return fresh;
    },
    close: () => void client?.end().catch(() => {}),
  };
}
