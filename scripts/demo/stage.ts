// The real parts: a Postgres, the bridge in front of it, the schema, an authority, and the reference Worker in workerd
// processes of its own.

import { randomBytes } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import pg from "pg";
import { migrate } from "../../src/cli/migrate.ts";
import { startBridge } from "../world/bridge.ts";
import { type Database, resolveDatabase } from "../world/postgres.ts";
import { bundleWorker, type WorkerBundle } from "../world/worker_bundle.ts";
import { startWorkerd, type Workerd } from "../world/workerd.ts";
import { type Authority, type Call, startAuthority } from "./authority.ts";
import type { Lifetime } from "./lifetime.ts";
import { isVisible } from "./watch.ts";

const SCHEMA_FILE = path.resolve(import.meta.dirname, "..", "..", "worker", "schema.sql");

/** Calls that the authority refuses with 503. */
const REFUSALS = 4;

/** A workerd process with its name, which the database and the authority know it by as well. */
export type Process = Workerd & { readonly name: string };

/** The log line of an invocation, as far as the demo reads it. */
export type InvocationLine = {
  readonly process: string;
  readonly invocationId: string;
  readonly trigger: string;
  readonly ended: string;
  readonly claimed: number;
  readonly done: number;
  readonly retried: number;
  readonly dead: number;
  readonly skipped: Readonly<Record<string, number>>;
  readonly totalMs: number;
  readonly ticks: readonly {
    readonly tickId: string;
    readonly fate: string;
    readonly quarantined: boolean;
    readonly claimed: number;
    readonly done: number;
    readonly runMs: number;
    readonly roundTrips: { readonly session: number; readonly oneShot: number };
  }[];
  readonly error?: { readonly code: string; readonly message: string };
};

export type Stage = {
  readonly databaseName: string;
  readonly serverVersion: string;
  readonly external: boolean;
  readonly bundle: WorkerBundle;
  readonly authority: Authority;
  /** A connection of the demo's own, to look at what the database says. */
  readonly sql: pg.Client;
  readonly secrets: { readonly trigger: string; readonly enqueue: string; readonly github: string };
  /** What invocations have logged so far. */
  readonly lines: readonly InvocationLine[];
  /** Whether the transaction behind a call had an xid or a snapshot when the call came, by fencing token. */
  readonly visibleAtCall: ReadonlyMap<string, boolean>;
  /** Other log lines of level warn and error. */
  readonly complaints: readonly string[];
  start(name: string): Promise<Process>;
};

export async function setStage(life: Lifetime): Promise<Stage> {
  // At the same time: initdb waits for the disk, the bundle for the processor.
  const [database, bundle] = await Promise.all([life.open(resolveDatabase(), (it) => it.stop()), bundleWorker()]);
  const url = await ownDatabase(life, database);
  const bridged = !database.host.endsWith(".neon.tech");
  const bridge = bridged ? await life.open(startBridge({ target: database }), (it) => it.close()) : null;
  const sql = await life.open(connect(url), (it) => it.end());
  await migrate({ client: sql });
  await sql.query(fs.readFileSync(SCHEMA_FILE, "utf8"));
  // A connection apart, so that one look is never behind the demo's other questions.
  const eye = await life.open(connect(url), (it) => it.end());
  const visibleAtCall = new Map<string, boolean>();
  let lastLook: Promise<void> = Promise.resolve();
  const look = async ({ fencingToken }: Call) => {
    const visible = await isVisible(eye, fencingToken.split("/")[0] ?? "");
    if (visible !== null) visibleAtCall.set(fencingToken, visible);
  };
  const onCall = (call: Call) => {
    lastLook = lastLook.then(() => look(call)).catch(() => {}); // what was not seen counts as not checked
    return lastLook;
  };
  const authority = await life.open(startAuthority({ refusals: REFUSALS, onCall }), (it) => it.close());

  const secrets = { trigger: draw(), enqueue: draw(), github: draw() };
  const lines: InvocationLine[] = [];
  const complaints: string[] = [];
  const version = await sql.query<{ v: string }>("select current_setting('server_version') as v");

  return {
    databaseName: new URL(url).pathname.slice(1),
    serverVersion: version.rows[0]?.v.split(" ")[0] ?? "",
    external: database.external,
    bundle,
    authority,
    sql,
    secrets,
    lines,
    visibleAtCall,
    complaints,
    async start(name) {
      const named = new URL(url);
      named.searchParams.set("application_name", name);
      const bindings: Record<string, string> = {
        DATABASE_URL: named.href,
        AUTHORITY_URL: authority.urlFor(name),
        PGCLAIM_TRIGGER_SECRET: secrets.trigger,
        PGCLAIM_ENQUEUE_SECRET: secrets.enqueue,
        GITHUB_WEBHOOK_SECRET: secrets.github,
      };
      if (bridge !== null) bindings.PGCLAIM_LOCAL_BRIDGE = `127.0.0.1:${bridge.port}`;
      // A foreign server most likely wants SCRAM, which cannot be answered before it has asked.
      if (bridged && database.external) bindings.PGCLAIM_PIPELINE_CONNECT = "false";
      const workerd = await life.open(
        startWorkerd({
          code: bundle.code,
          bindings,
          onLog: ({ level, message }) => {
            const line = invocationLine(name, message);
            if (line !== null) lines.push(line);
            else if (level === "error" || level === "warn") complaints.push(`${name}: ${message}`);
          },
        }),
        (it) => it.stop(),
      );
      return { ...workerd, name };
    },
  };
}

/** A database nobody else uses: of a server of ours any, of a foreign one a new one that is dropped at the end. */
async function ownDatabase(life: Lifetime, database: Database): Promise<string> {
  if (!database.external) return database.url();
  const name = `pgclaim_demo_${randomBytes(4).toString("hex")}`;
  const create = async () => {
    const admin = await connect(database.url());
    await admin.query(`create database ${name}`);
    return admin;
  };
  await life.open(create(), async (admin) => {
    await admin.query(`drop database if exists ${name} with (force)`);
    await admin.end();
  });
  return database.url(name);
}

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client(url);
  client.on("error", () => {}); // The query in flight rejects with it.
  await client.connect();
  return client;
}

function invocationLine(process: string, message: string): InvocationLine | null {
  if (!message.startsWith("{")) return null;
  const entry: unknown = JSON.parse(message);
  const isInvocation =
    typeof entry === "object" && entry !== null && "event" in entry && entry.event === "pgclaim.invocation";
  return isInvocation ? { ...(entry as unknown as Omit<InvocationLine, "process">), process } : null;
}

function draw(): string {
  return randomBytes(24).toString("base64url");
}
