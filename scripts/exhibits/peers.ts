// The peers' own packages, as far as the exhibits speak to them. They are no dependencies of pgclaim: they are installed
// into a folder of their own, and a run without a registry goes on without them and says so.

import { execFile } from "node:child_process";
import fs from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import type pg from "pg";

const PACKAGES = ["pg-boss@12", "graphile-worker@0.18"];
const INSTALL_LIMIT_MS = 120_000;

export interface BossJob<T> {
  readonly id: string;
  readonly data: T;
  readonly retryCount?: number;
}

type Options = Readonly<Record<string, unknown>>;
type Sql = { executeSql(text: string, values?: unknown[]): Promise<{ rows: unknown[] }> };

/** What the exhibits use of a pg-boss. */
export interface PgBoss {
  on(event: "error" | "warning", listener: (error: Error) => void): void;
  start(): Promise<unknown>;
  stop(options: { readonly graceful: boolean; readonly close?: boolean }): Promise<unknown>;
  createQueue(name: string, options?: Options): Promise<unknown>;
  send(name: string, data: object, options?: Options): Promise<string | null>;
  fetch<T>(name: string, options?: Options): Promise<readonly BossJob<T>[]>;
  complete(name: string, job: string | readonly BossJob<unknown>[]): Promise<unknown>;
  fail(name: string, id: string, data?: object): Promise<unknown>;
  schedule(name: string, cron: string, data: object, options: Options): Promise<unknown>;
  work<T>(
    name: string,
    options: Options,
    handler: (jobs: readonly BossJob<T>[], tx?: Sql) => Promise<unknown>,
  ): Promise<string>;
}

export interface GraphileRunner {
  stop(): Promise<void>;
}

type GraphileTask = (payload: unknown, helpers: { readonly job: { readonly locked_by: string } }) => Promise<void>;

/** What the exhibits use of a Graphile Worker. */
export interface GraphileWorker {
  runMigrations(options: Options): Promise<void>;
  run(options: Options & { readonly taskList: Readonly<Record<string, GraphileTask>> }): Promise<GraphileRunner>;
  runOnce(options: Options & { readonly taskList: Readonly<Record<string, GraphileTask>> }): Promise<void>;
  makeWorkerUtils(options: Options): Promise<{
    forceUnlockWorkers(workers: readonly string[]): Promise<void>;
    release(): Promise<void>;
  }>;
  parseCronItems(items: readonly Options[]): unknown;
  readonly Logger: new (factory: () => () => void) => unknown;
}

export interface Peers {
  readonly folder: string;
  readonly boss: { readonly name: string; readonly PgBoss: new (options: Options) => PgBoss };
  readonly graphile: { readonly name: string; readonly module: GraphileWorker; readonly logger: unknown };
}

/** Loads the peers from a folder that `npm install --no-save --prefix` filled. */
export async function loadPeers(folder: string): Promise<Peers> {
  const require = createRequire(path.join(path.resolve(folder), "package.json"));
  const load = async (name: string): Promise<unknown> => import(pathToFileURL(require.resolve(name)).href);
  const version = (name: string): string => {
    const file = path.join(folder, "node_modules", name, "package.json");
    return (JSON.parse(fs.readFileSync(file, "utf8")) as { version: string }).version;
  };
  const graphile = (await load("graphile-worker")) as GraphileWorker;
  const { PgBoss } = (await load("pg-boss")) as { PgBoss: Peers["boss"]["PgBoss"] };
  return {
    folder,
    boss: { name: `pg-boss ${version("pg-boss")}`, PgBoss },
    graphile: {
      name: `Graphile Worker ${version("graphile-worker")}`,
      module: graphile,
      logger: new graphile.Logger(() => () => {}),
    },
  };
}

/**
 * The peers, from `folder` or else from a temporary one that is filled when it is empty. Null, and a loud line, where they
 * can be fetched from nowhere.
 */
export async function fetchPeers(folder = process.env.PGCLAIM_PEERS): Promise<Peers | null> {
  const place = folder ?? path.join(fs.realpathSync(os.tmpdir()), `pgclaim-peers-${process.getuid?.() ?? 0}`);
  try {
    return await loadPeers(place);
  } catch {
    // Not there yet, or only in part.
  }
  // Two runs at once must not fill one folder: each fills its own, and the first one wins.
  const fresh = fs.mkdtempSync(path.join(fs.realpathSync(os.tmpdir()), "pgclaim-peers-new-"));
  try {
    const quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"];
    const install = ["install", "--no-save", ...quiet, "--prefix", fresh, ...PACKAGES];
    await promisify(execFile)("npm", install, { cwd: fresh, timeout: INSTALL_LIMIT_MS });
    const peers = await loadPeers(fresh);
    if (fs.existsSync(place)) return peers;
    fs.renameSync(fresh, place);
    return await loadPeers(place);
  } catch (error) {
    const { message, stderr } = error as { message: string; stderr?: string };
    const why = stderr?.split("\n").find((line) => /^npm (error|ERR!)/.test(line)) ?? message.split("\n")[0];
    console.warn(`NOT RUN: the peers' columns. ${PACKAGES.join(" and ")} could not be fetched: ${why}`);
    return null;
  } finally {
    // Where it was moved, there is nothing left; where somebody was faster, what is loaded is loaded.
    process.once("exit", () => fs.rmSync(fresh, { recursive: true, force: true }));
  }
}

/** A pg-boss that speaks on a client of ours, so that what it does can be counted there. */
export function bossDb(client: Pick<pg.Client, "query">): Sql {
  return { executeSql: async (text, values) => client.query(text, values ?? []) };
}
