// The database a command talks to: the address comes from the environment only, since arguments are read by everybody on
// the machine and kept in a shell's history.

import { readFileSync } from "node:fs";
import { parseEnv } from "node:util";
import { type Caller, caller } from "../call.ts";
import { systemClock } from "../clock.ts";
import { type Database, databaseUrlFault } from "../database.ts";
import { UsageError } from "../errors.ts";
import type { Gateway } from "../gateway.ts";
import type { Inspector, Operator } from "../inspection.ts";
import { readLimits } from "../limits.ts";
import { postgresInspector, postgresOperator } from "../operations.ts";
import { postgresGateway } from "../postgres.ts";
import { instant } from "../rows.ts";

export type Env = Readonly<Record<string, string | undefined>>;

export interface Connection {
  readonly schema: string;
  readonly inspect: Inspector;
  readonly operate: Operator;
  readonly gateway: Gateway;
  readonly call: Caller["call"];
  readonly fn: Caller["fn"];
  /** The database's clock, which decides what "two hours ago" is. */
  now(): Promise<Date>;
}

/** The environment, and under it the variables of a file: what the environment says wins. Errors: PGCLAIM_INVALID_OPTION. */
export function withEnvFile(env: Env, file: string | undefined): Env {
  if (file === undefined) return env;
  try {
    return { ...parseEnv(readFileSync(file, "utf8")), ...env };
  } catch (cause) {
    throw new UsageError("PGCLAIM_INVALID_OPTION", `--env: the file "${file}" cannot be read.`, {
      cause,
      path: "env",
    });
  }
}

/** The address in the variable `name`. Errors: PGCLAIM_INVALID_DATABASE_URL, without the value. */
export function databaseUrl(env: Env, name: string): string {
  const value = env[name]?.trim() ?? "";
  const fault = value === "" ? "is not set" : databaseUrlFault(value);
  if (fault === null) return value;
  throw new UsageError(
    "PGCLAIM_INVALID_DATABASE_URL",
    `${name} ${fault}; expected postgresql://user:password@host:5432/database. Set it in the environment, or name a file that has it: --env .env`,
  );
}

/** Opens nothing yet: each verb is a connection of its own. Errors: PGCLAIM_INVALID_DATABASE_URL, PGCLAIM_INVALID_OPTION. */
export async function connectTo(url: string, schema: string): Promise<Connection> {
  const { pgDatabase } = await nodeAdapter();
  const limits = readLimits();
  const database = patient(pgDatabase(url), limits.oneShotMs);
  const { call, fn } = caller({ database, limits, schema });
  const options = { database, limits, schema };
  return {
    schema,
    call,
    fn,
    inspect: postgresInspector(options),
    operate: postgresOperator(options),
    gateway: postgresGateway({ ...options, clock: systemClock }),
    async now() {
      const [row] = await call(
        "select to_json(clock_timestamp()) #>> '{}' as now where $1 = ''",
        "",
        "asking the time",
        true,
      );
      return instant(row, "now");
    },
  };
}

/**
 * A page gives up after two seconds, connecting included. A person at a terminal waits longer, and a database that sleeps needs
 * seconds to wake.
 */
function patient(database: Database, leastMs: number): Database {
  return {
    open: () => database.open(),
    oneShot: (call) => database.oneShot({ ...call, limitMs: Math.max(call.limitMs, leastMs) }),
  };
}

/** `pg` is a peer: a Worker that uses neon's driver never installs it. */
async function nodeAdapter(): Promise<typeof import("../adapters/node.ts")> {
  try {
    return await import("../adapters/node.ts");
  } catch (cause) {
    if ((cause as { code?: unknown }).code !== "ERR_MODULE_NOT_FOUND") throw cause;
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      "The command line needs the package pg. Install it: npm install pg",
      {
        cause,
      },
    );
  }
}
