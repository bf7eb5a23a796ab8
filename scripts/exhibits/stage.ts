// What every exhibit stands on: a server of its own, a fresh database for each system, the peers, and one form of table.
//   node scripts/exhibits/<name>.ts [--peers FOLDER] [--wait SECONDS]     one of them
//   npm run exhibits                                                      all of them

import { parseArgs } from "node:util";
import pg from "pg";
import { pgDatabase } from "../../src/adapters/node.ts";
import { migrate } from "../../src/cli/migrate.ts";
import { type AnyJobDefinition, type Claimer, type ClaimerOptions, createClaimer } from "../../src/index.ts";
import { startPostgres } from "../world/postgres.ts";
import { fetchPeers, type Peers } from "./peers.ts";

/** One line of a table. What is not there was not measured, and the remark says why. */
export interface Row {
  readonly system: string;
  readonly figures: Readonly<Record<string, string | number>>;
  readonly remark?: string;
}

export interface Exhibit {
  readonly name: string;
  readonly title: string;
  /** What is done, in a sentence or two. */
  readonly says: string;
  run(stage: Stage): Promise<readonly Row[]>;
}

export interface Stage {
  readonly peers: Peers | null;
  /** A small version, for tests. */
  readonly quick: boolean;
  /** How long something that may take minutes is waited for. */
  readonly waitMs: number;
  /** The URL of a fresh database; with pgclaim's schema in it unless it is for somebody else. */
  database(options?: { readonly bare?: boolean }): Promise<string>;
  /** A connection that is closed with the stage, and may be lost before. */
  connect(url: string): Promise<pg.Client>;
  /** Called in reverse order when the stage is taken down. */
  later(close: () => Promise<unknown> | unknown): void;
}

export async function openStage(
  options: Pick<Stage, "peers" | "quick" | "waitMs"> & { readonly adminUrl: string },
): Promise<Stage & { close(): Promise<void> }> {
  const closers: (() => Promise<unknown> | unknown)[] = [];
  const admin = new pg.Client(options.adminUrl);
  admin.on("error", () => {});
  await admin.connect();
  // Exhibits may set their worlds up side by side.
  let asked: Promise<unknown> = Promise.resolve();
  const ask = (text: string) => {
    asked = asked.then(() => admin.query(text));
    return asked;
  };
  const connect = async (url: string) => {
    const client = new pg.Client(url);
    client.on("error", () => {});
    await client.connect();
    closers.push(() => client.end().catch(() => {}));
    return client;
  };
  return {
    peers: options.peers,
    quick: options.quick,
    waitMs: options.waitMs,
    async database({ bare = false } = {}) {
      const name = `exhibit_${process.pid}_${++databases}`;
      await ask(`create database ${name}`);
      closers.push(async () => {
        // A peer's stop may not wait for its pool, and nobody listens to a connection that is ended in there.
        const left = "select count(*) from pg_stat_activity where datname = $1";
        await until(GONE_LIMIT_MS, async () => ((await value<string>(admin, left, [name])) === "0" ? true : null));
        await ask(`drop database ${name} with (force)`);
      });
      const url = new URL(options.adminUrl);
      url.pathname = `/${name}`;
      if (!bare) {
        const client = new pg.Client(url.href);
        await client.connect();
        await migrate({ client });
        await client.end();
      }
      return url.href;
    },
    connect,
    later: (close) => closers.push(close),
    async close() {
      for (const close of closers.reverse()) await close();
      await admin.end();
    },
  };
}

/** Databases made so far: stages may stand side by side. */
let databases = 0;

/** How long a database's last connections may take to close. */
const GONE_LIMIT_MS = 3_000;

/** A claimer that says nothing. */
export function claimerOf(
  url: string,
  jobs: readonly AnyJobDefinition[],
  options: Partial<ClaimerOptions> = {},
): Claimer {
  return createClaimer({ jobs, database: pgDatabase(url), log: () => {}, ...options });
}

/** A promise with its handle outside. */
export interface Gate {
  readonly promise: Promise<void>;
  open(): void;
}

export function gate(): Gate {
  let open: () => void = () => {};
  const promise = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { promise, open };
}

const STAND_LIMIT_MS = 60_000;

/** Waits for what must happen, and says what it was when it does not. */
export async function reached(promise: Promise<unknown>, what: string): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const limit = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not within ${STAND_LIMIT_MS} ms`)), STAND_LIMIT_MS);
  });
  await Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

/** Asks until the answer is there, at most so long; null then. */
export async function until<T>(limitMs: number, ask: () => Promise<T | null> | T | null): Promise<T | null> {
  const end = performance.now() + limitMs;
  for (;;) {
    const answer = await ask();
    if (answer !== null || performance.now() >= end) return answer;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

export async function value<T>(client: Pick<pg.Client, "query">, text: string, values: unknown[] = []): Promise<T> {
  const { rows } = await client.query<Record<string, T>>(text, values);
  return Object.values(rows[0] ?? {})[0] as T;
}

/** A Markdown table; a column nobody has a figure for is a hyphen. */
export function table(rows: readonly Row[]): string {
  const columns = [...new Set(rows.flatMap(({ figures }) => Object.keys(figures)))];
  const remarks = rows.some(({ remark }) => remark !== undefined);
  const line = (cells: readonly (string | number)[]) => `| ${cells.join(" | ")} |`;
  return [
    line(["system", ...columns, ...(remarks ? ["remark"] : [])]),
    line(["---", ...columns.map(() => "---"), ...(remarks ? ["---"] : [])]),
    ...rows.map(({ system, figures, remark }) =>
      line([system, ...columns.map((column) => figures[column] ?? "-"), ...(remarks ? [remark ?? ""] : [])]),
    ),
  ].join("\n");
}

const DEFAULT_WAIT_SECONDS = 20;

/** Runs exhibits from the command line, each with its table. */
export async function main(exhibits: readonly Exhibit[]): Promise<void> {
  const { values: flags } = parseArgs({
    options: { peers: { type: "string" }, wait: { type: "string", default: String(DEFAULT_WAIT_SECONDS) } },
  });
  const waitMs = Number(flags.wait) * 1_000;
  if (!(waitMs > 0)) throw new Error(`--wait is "${flags.wait}"; expected a number of seconds.`);
  const peers = await fetchPeers(flags.peers);
  const server = await startPostgres({ settings: { autovacuum: "off" } });
  let failed = 0;
  try {
    console.log(
      `pgclaim${peers === null ? "" : `, ${peers.boss.name}, ${peers.graphile.name}`}; Postgres ${server.major}, Node ${process.version}; what may take minutes is waited for at most ${flags.wait} s (--wait)`,
    );
    for (const exhibit of exhibits) {
      const startedAt = performance.now();
      const stage = await openStage({ adminUrl: server.url(), peers, quick: false, waitMs });
      console.log(`\n## ${exhibit.title}\n\n${exhibit.says}\n`);
      try {
        console.log(table(await exhibit.run(stage)));
      } catch (error) {
        failed++;
        console.log(`FAILED: ${error instanceof Error ? error.stack : String(error)}`);
      } finally {
        await stage.close();
      }
      console.log(`\n(${((performance.now() - startedAt) / 1_000).toFixed(1)} s)`);
    }
  } finally {
    await server.stop();
  }
  process.exit(failed === 0 ? 0 : 1);
}
