// The doctor's round: one check after another, none of which stops the others. It changes nothing.

import { databaseError, describeError, PgclaimError, sqlStateOf } from "../../errors.ts";
import type { Overview } from "../../inspection.ts";
import type { Row } from "../../rows.ts";
import { type Connection, connectTo, type Env } from "../connect.ts";
import { connect, driver, pooling } from "./connection.ts";
import { type Finding, warn } from "./finding.ts";
import { type GrantScope, grantedRights, privileges } from "./privileges.ts";
import type { Probe } from "./probe.ts";
import { expectedSchema, schemaDrift } from "./schema.ts";
import { deployment, secrets } from "./secrets.ts";
import { clock, connections, isolation, type Load, lockCapacity, serverFacts, timeouts } from "./server.ts";
import { bloat, retention } from "./storage.ts";
import { haltedKeys, interruptions, kinds, triggers } from "./work.ts";

export interface Examination {
  readonly findings: readonly Finding[];
  /** False: the database could not be reached, and most was not looked at. */
  readonly reached: boolean;
  /** Version, role and database, as the server says them; null where it was not reached. */
  readonly server: Row | null;
}

export interface Patient {
  readonly url: string;
  readonly schema: string;
  readonly env: Env;
  readonly load: Load;
  readonly scopes: readonly GrantScope[];
  /** The deployment to ask, null for none. */
  readonly deployment: URL | null;
  /** Told what is being looked at. */
  readonly onProgress: (name: string) => void;
}

type Check = () => Finding | Promise<Finding>;

export async function examine(patient: Patient): Promise<Examination> {
  const outside: [string, Check][] = [["secrets", () => secrets(patient.env)]];
  const { deployment: base } = patient;
  if (base !== null) outside.push(["deployment", () => deployment(base)]);
  const { probe, finding } = await connect(patient.url);
  if (probe === null) {
    return { findings: [finding, ...(await round(outside, patient))], reached: false, server: null };
  }
  try {
    const server = await serverFacts(probe);
    const connection = await connectTo(patient.url, patient.schema);
    const findings = await inside(patient, probe, server, connection);
    return { findings: [finding, ...findings, ...(await round(outside, patient))], reached: true, server };
  } finally {
    await probe.close();
  }
}

async function inside(patient: Patient, probe: Probe, server: Row, connection: Connection): Promise<Finding[]> {
  const { url, schema, load } = patient;
  const expected = await expectedSchema(schema);
  const [pool, ...first] = await round(
    [
      ["pooling", () => pooling(url, probe)],
      ["driver", () => driver(url, probe, server)],
      ["isolation default", () => isolation(server)],
      ["clock", () => clock(probe)],
      ["schema", () => schemaDrift(probe, schema, expected)],
    ],
    patient,
  );
  const pooled = pool?.facts.mode === "transaction";
  // Without the schema the rest would only say so again.
  const installed = first.at(-1)?.facts.version !== 0;
  const checks: [string, Check][] = [["connection budget", () => connections(server, load, pooled)]];
  if (installed) {
    const rights = grantedRights(expected.files, schema);
    let asked: Promise<Overview> | undefined;
    const overview = () => {
      asked ??= connection.inspect.overview();
      return asked;
    };
    checks.push(
      ["lock capacity", () => lockCapacity(probe, server, schema, load)],
      ["timeouts", () => timeouts(probe, server, schema)],
      ["privileges", () => privileges(probe, { schema, rights, wanted: patient.scopes })],
      ["kinds", () => kinds(connection)],
      ["halted keys", async () => haltedKeys(await overview())],
      ["triggers", async () => triggers(await overview())],
      ["interruptions", () => interruptions(probe, schema)],
      ["bloat", () => bloat(probe, server, schema)],
      ["retention", () => retention(probe, schema)],
    );
  }
  return [...(pool === undefined ? [] : [pool]), ...first, ...(await round(checks, patient))];
}

async function round(checks: readonly [string, Check][], { onProgress }: Patient): Promise<Finding[]> {
  const findings: Finding[] = [];
  for (const [name, check] of checks) {
    onProgress(name);
    try {
      findings.push(await check());
    } catch (error) {
      findings.push(unchecked(name, error));
    }
  }
  return findings;
}

/** What could not be looked at is said, and is not called fine. */
function unchecked(name: string, thrown: unknown): Finding {
  const error =
    thrown instanceof PgclaimError || sqlStateOf(thrown) === null ? thrown : databaseError(thrown, "checking");
  const code = error instanceof PgclaimError ? error.code : null;
  const todo =
    code === "PGCLAIM_PERMISSION_DENIED"
      ? "run the doctor as a role with the scope operate, or as the schema's owner"
      : code === "PGCLAIM_SCHEMA_MISSING"
        ? "pgclaim migrate"
        : "run it again; if it stays, look at the server's log";
  return warn(name, `could not be checked: ${describeError(thrown)}`, todo, { code });
}
