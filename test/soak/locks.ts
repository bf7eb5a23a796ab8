// The soak of lock sets: 64 invocations in several processes, sets of 2 to 5 locks from 20 names, some of them shared. Checked
// afterwards from intervals that the handlers recorded: no name held by two of whom one holds it alone, no deadlock in
// pg_stat_database, every job done, nobody refused for ever.
//   node test/soak/locks.ts --seconds 60 --seed 7 [--processes 4] [--invocations 64]

import { spawn } from "node:child_process";
import { setTimeout } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import pg from "pg";
import { draws, pick } from "../../scripts/world/draws.ts";
import { resolveDatabase } from "../../scripts/world/postgres.ts";
import { pgDatabase } from "../../src/adapters/node.ts";
import { migrate } from "../../src/cli/migrate.ts";
import { createClaimer } from "../../src/index.ts";
import { numberArgument, seedArgument } from "./arguments.ts";
import { kindOf, type SoakArguments, shapes, soakJobs } from "./locks_process.ts";

export interface SoakOptions {
  readonly url: string;
  readonly seconds: number;
  readonly seed: number;
  readonly processes: number;
  readonly invocations: number;
  readonly batch?: number;
  readonly tickSlots?: number | "none";
}

export interface SoakReport {
  readonly seed: number;
  readonly jobs: number;
  readonly done: number;
  readonly unfinished: number;
  readonly deadlocks: number;
  /** Pairs of stays that overlap in time on a name that one of them holds alone. */
  readonly violations: number;
  /** Pairs of stays that overlap in time at all: without them the check would mean nothing. */
  readonly overlaps: number;
  /** Pairs that share a name and overlap: sharers run beside each other. */
  readonly sharing: number;
  /** Most stays at any instant. */
  readonly most: number;
  readonly longestWaitMs: number;
  readonly invocations: number;
  readonly skipped: Readonly<Record<string, number>>;
  readonly errors: readonly string[];
}

interface ProcessCounts {
  readonly invocations: number;
  readonly skipped: Readonly<Record<string, number>>;
  readonly errors: readonly string[];
}

/** How long the jobs that are left may take to end once no more come. */
const drainLimitMs = 60_000;
/** Jobs that wait at any time: enough that every invocation finds some, few enough that waits are those of the locks. */
const backlog = 60;
/** Between two looks at the backlog; a busy loop would take a core from those it watches. */
const pauseMs = 50;

export async function soakLocks(options: SoakOptions): Promise<SoakReport> {
  const { url, seconds, seed } = options;
  const sql = new pg.Client(url);
  await sql.connect();
  const value = async (text: string): Promise<number> =>
    Number(Object.values((await sql.query(text)).rows[0] ?? {})[0]);
  const deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
  await sql.query(`drop table if exists stay;
    create table stay (id bigint generated always as identity primary key, n integer not null, own text[] not null,
      shared text[] not null, began_at timestamptz not null, ended_at timestamptz)`);
  const deadlocksBefore = await value(deadlocks);
  const claimer = createClaimer({ jobs: soakJobs(async () => {}), database: pgDatabase(url), log: () => {} });
  await claimer.register();
  const children = Array.from({ length: options.processes }, () =>
    start({
      url,
      invocations: Math.ceil(options.invocations / options.processes),
      batch: options.batch ?? 3,
      tickSlots: options.tickSlots ?? "none",
      reserveAfter: "1000ms",
      stayMs: 20,
    }),
  );
  try {
    await Promise.all(children.map(({ ready }) => ready));
    const chance = draws(seed);
    const draw = (below: number) => pick(chance, below);
    let jobs = 0;
    const until = performance.now() + seconds * 1_000;
    while (performance.now() < until) {
      const missing = backlog - (await value("select count(*) from pgclaim.job"));
      if (missing <= 0) {
        await setTimeout(pauseMs);
        continue;
      }
      await claimer.enqueueByKind(Array.from({ length: missing }, () => job(++jobs, draw)));
    }
    const drainUntil = performance.now() + drainLimitMs;
    while ((await value("select count(*) from pgclaim.job")) > 0 && performance.now() < drainUntil)
      await setTimeout(pauseMs);
    for (const child of children) child.stop();
    const counts = await Promise.all(children.map(({ ended }) => ended));
    const skipped: Record<string, number> = {};
    for (const one of counts)
      for (const [reason, n] of Object.entries(one.skipped)) skipped[reason] = (skipped[reason] ?? 0) + n;
    // Names of a job that wants one both ways are held alone, so the overlap of own and anything is what may not be.
    const pairs = (what: string) =>
      value(`select count(*) from stay a join stay b on a.id < b.id and a.n <> b.n
        and tstzrange(a.began_at, a.ended_at) && tstzrange(b.began_at, b.ended_at) where ${what}`);
    // The statistics of a backend reach the view when it ends.
    await sql.query("select pg_stat_clear_snapshot()");
    return {
      seed,
      jobs,
      done: await value("select count(*) from pgclaim.history where outcome = 'done'"),
      unfinished: await value("select count(*) from pgclaim.job"),
      deadlocks: (await value(deadlocks)) - deadlocksBefore,
      violations: await pairs("a.own && (b.own || b.shared) or b.own && (a.own || a.shared)"),
      overlaps: await pairs("true"),
      sharing: await pairs("a.shared && b.shared"),
      most: await value(
        "select max(together) from (select count(*) as together from stay a join stay b on b.began_at <= a.began_at and b.ended_at > a.began_at group by a.id) t",
      ),
      longestWaitMs: Math.round(
        await value("select max(extract(epoch from finished_at - enqueued_at)) * 1000 from pgclaim.history"),
      ),
      invocations: counts.reduce((sum, one) => sum + one.invocations, 0),
      skipped,
      errors: counts.flatMap(({ errors }) => errors),
    };
  } finally {
    for (const child of children) child.kill();
    await sql.end();
  }
}

/** A job of a drawn kind with drawn names, all of them different. */
function job(n: number, draw: (below: number) => number) {
  const shape = shapes[draw(shapes.length)] ?? shapes[0];
  const left = Array.from({ length: 20 }, (_, i) => `name${i}`);
  const five = () => {
    const [a = "", b = "", c = "", d = "", e = ""] = Array.from(
      { length: 5 },
      () => left.splice(draw(left.length), 1)[0],
    );
    return { a, b, c, d, e };
  };
  return { kind: kindOf(shape), payload: { n, own: five(), shared: five() } };
}

function start(args: SoakArguments) {
  const file = fileURLToPath(new URL("./locks_process.ts", import.meta.url));
  const child = spawn(process.execPath, [file, JSON.stringify(args)], { stdio: ["pipe", "pipe", "pipe"] });
  let out = "";
  let err = "";
  let isReady: () => void = () => {};
  const ready = new Promise<void>((resolve) => {
    isReady = resolve;
  });
  child.stdout.on("data", (bytes: Buffer) => {
    out += bytes.toString();
    if (out.includes("ready\n")) isReady();
  });
  child.stderr.on("data", (bytes: Buffer) => {
    err += bytes.toString();
  });
  const ended = new Promise<ProcessCounts>((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) => {
      isReady();
      const line = out.split("\n").find((text) => text.startsWith("{"));
      if (code === 0 && line !== undefined) resolve(JSON.parse(line) as ProcessCounts);
      else reject(new Error(`a soak process ended with ${code}: ${err}${out}`));
    });
  });
  ended.catch(() => {});
  return { ready, ended, stop: () => void child.stdin.end(), kill: () => void child.kill("SIGKILL") };
}

/** What must hold after any soak; an empty list is success. */
export function complaints(report: SoakReport): string[] {
  const wrong: string[] = [];
  if (report.done !== report.jobs || report.unfinished > 0) wrong.push(`${report.done} of ${report.jobs} jobs done`);
  if (report.deadlocks > 0) wrong.push(`${report.deadlocks} deadlocks`);
  if (report.violations > 0) wrong.push(`${report.violations} times two holders of one exclusive lock`);
  if (report.overlaps === 0) wrong.push("nothing ever ran beside anything else");
  if (report.errors.length > 0) wrong.push(`${report.errors.length} errors, the first: ${report.errors[0]}`);
  return wrong;
}

if (process.argv[1] === import.meta.filename) {
  const server = await resolveDatabase({});
  const admin = new pg.Client(server.url());
  await admin.connect();
  const name = `pgclaim_soak_${process.pid}`;
  await admin.query(`create database ${name}`);
  try {
    const client = new pg.Client(server.url(name));
    await client.connect();
    await migrate({ client });
    await client.end();
    const report = await soakLocks({
      url: server.url(name),
      seconds: numberArgument("--seconds", 60, 0),
      seed: seedArgument(),
      processes: numberArgument("--processes", 4, 0),
      invocations: numberArgument("--invocations", 64, 0),
    });
    console.log(JSON.stringify(report, null, 2));
    const wrong = complaints(report);
    for (const line of wrong) console.error(line);
    process.exitCode = wrong.length === 0 ? 0 : 1;
  } finally {
    await admin.query(`drop database ${name} with (force)`);
    await admin.end();
    await server.stop();
  }
}
