// What a deployment's environment says: the database, the secrets, the local bridge. Shared by the adapters. A value
// must never enter a message, since most of them are secret.

import { type Claimer, createClaimer } from "../claimer.ts";
import type { ClaimerOptions } from "../claimer_options.ts";
import { type Database, databaseUrlFault } from "../database.ts";
import { UsageError } from "../errors.ts";
import { type Scope, type Secrets, secretNames } from "../http/auth.ts";
import { type NeonOptions, neonDatabase } from "../neon.ts";

/** The claimer's options where the database comes from the environment, unless it is given. */
export type DeploymentOptions = Omit<ClaimerOptions, "database"> & { readonly database?: Database };

/** Reads the secret of each scope. */
export function secretsOf(env: object): Secrets {
  const scopes = Object.keys(secretNames) as Scope[];
  return Object.fromEntries(scopes.map((scope) => [scope, textOf(env, secretNames[scope])]));
}

/**
 * The database of DATABASE_URL. PGCLAIM_PIPELINE_CONNECT=false and PGCLAIM_LOCAL_BRIDGE=host:port are read as well.
 *
 * Errors: PGCLAIM_INVALID_DATABASE_URL, PGCLAIM_INVALID_OPTION.
 */
export function databaseOf(env: object, secretCommand: string): Database {
  const localBridge = textOf(env, "PGCLAIM_LOCAL_BRIDGE");
  return neonDatabase(databaseUrlOf(env, secretCommand), {
    ...pipelineConnectOf(env),
    ...(localBridge === undefined ? {} : { localBridge }),
  });
}

/** A claimer that is made at its first use, and once: a request that is refused before needs none. */
export function lazyClaimer(options: DeploymentOptions, env: object, secretCommand: string): () => Claimer {
  let claimer: Claimer | undefined;
  return () => {
    claimer ??= createClaimer({ ...options, database: options.database ?? databaseOf(env, secretCommand) });
    return claimer;
  };
}

/** Reads DATABASE_URL. Errors: PGCLAIM_INVALID_DATABASE_URL, without the value. */
function databaseUrlOf(env: object, secretCommand: string): string {
  const value = textOf(env, "DATABASE_URL");
  const fault = value === undefined ? "is not set in this deployment" : databaseUrlFault(value);
  if (value !== undefined && fault === null) return value;
  throw new UsageError(
    "PGCLAIM_INVALID_DATABASE_URL",
    `DATABASE_URL ${fault}; expected postgresql://user:password@host/database. Set it: ${secretCommand} DATABASE_URL`,
  );
}

function pipelineConnectOf(env: object): NeonOptions {
  const value = textOf(env, "PGCLAIM_PIPELINE_CONNECT");
  if (value === undefined) return {};
  if (value === "false") return { pipelineConnect: false };
  if (value === "password") return { pipelineConnect: value };
  throw new UsageError(
    "PGCLAIM_INVALID_OPTION",
    'PGCLAIM_PIPELINE_CONNECT has a value of its own; expected "false" or "password".',
    { path: "PGCLAIM_PIPELINE_CONNECT" },
  );
}

/** A variable's text without the white space around it, which `echo ... |` leaves behind; undefined if nothing is left. */
function textOf(env: object, name: string): string | undefined {
  const value: unknown = (env as Readonly<Record<string, unknown>>)[name];
  const text = typeof value === "string" ? value.trim() : "";
  return text === "" ? undefined : text;
}
