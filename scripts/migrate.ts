// npm run migrate: brings the database that DATABASE_URL names up to this release.
// Exit codes: 0 done or nothing to do, 1 refused or failed, 2 called wrongly, 3 database out of reach.

import pg from "pg";
import { migrate } from "../src/cli/migrate.ts";
import { PgclaimError } from "../src/errors.ts";

const CONNECT_LIMIT_MS = 15_000;

const url = process.env.DATABASE_URL;
const schema = process.env.PGCLAIM_SCHEMA || "pgclaim";
process.exitCode = url && URL.canParse(url) ? await run(url) : calledWrongly();

function calledWrongly(): number {
  console.error(
    `DATABASE_URL is ${url ? "not a connection string" : "not set"}. ` +
      "Give the database to migrate, by its direct (not pooled) address if it has both:\n" +
      "  DATABASE_URL='postgresql://user:password@host:5432/database' npm run migrate",
  );
  return 2;
}

async function run(connectionString: string): Promise<number> {
  let client: pg.Client | undefined;
  const connect = async () => {
    const fresh = new pg.Client({ connectionString, connectionTimeoutMillis: CONNECT_LIMIT_MS });
    fresh.on("error", () => {}); // The query in flight rejects with it.
    await fresh.connect();
    client = fresh;
    return fresh;
  };
  try {
    await connect();
  } catch (error) {
    console.error(`The database cannot be reached: ${reasonOf(error)}`);
    return 3;
  }
  if (client === undefined) return 3;
  try {
    const result = await migrate({
      client,
      reconnect: connect,
      schema,
      onProgress: (line) => console.log(line),
    });
    const functions = result.functionsChanged ? "functions replaced" : "functions unchanged";
    console.log(
      result.applied.length > 0
        ? `Schema "${schema}": version ${result.from} -> ${result.to}, ${functions}.`
        : `Schema "${schema}": version ${result.to} already, ${functions}.`,
    );
    return 0;
  } catch (error) {
    if (!(error instanceof PgclaimError)) {
      console.error(`The migration did not go through: ${reasonOf(error)}`);
      return 1;
    }
    console.error(`${error.code}: ${error.message}`);
    return error.code === "PGCLAIM_CONNECT_FAILED" ? 3 : 1;
  } finally {
    client?.end().catch(() => {});
  }
}

/** A refused connection to a name with several addresses is an AggregateError without a message. */
function reasonOf(error: unknown): string {
  if (error instanceof AggregateError) return error.errors.map(reasonOf).join("; ");
  return error instanceof Error ? error.message : String(error);
}
