// A soak of ordering keys: 20 keys, 4 enqueuers that hold transactions open at every isolation level, 8 invocations (6 here,
// 2 in processes of their own), failures, killed backends and killed processes, handlers that enqueue crossed keys by SQL
// on tx. Run it with
//   node test/soak/order.ts --seconds 60 --seed 7
// The seed draws who does what; what meets what in time is the machine's, so a fault needs its story and not its seed alone.
// Exit code 1 where anything was inverted, lost, doubled, deadlocked or left behind.

import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import pg from "pg";
import * as z from "zod";
import { draws, pick } from "../../scripts/world/draws.ts";
import { resolveDatabase } from "../../scripts/world/postgres.ts";
import { pgDatabase } from "../../src/adapters/node.ts";
import { migrate } from "../../src/cli/migrate.ts";
import { createClaimer, defineJob, type InvocationReport } from "../../src/index.ts";
import { argument, numberArgument, seedArgument } from "./arguments.ts";

const keys = 20;
const enqueuers = 4;
const invocationsHere = 6;
const processes = 2;
/** One in so many handlers fails, ticks ends in a kill, transactions is rolled back. */
const oneIn = 20;
/** Unfinished jobs above which the enqueuers wait, so that the load is a load and the drain is short. */
const backlog = 400;
const drainLimitMs = 60_000;
/** How much longer than asked a short run may take until each kind of fault has happened. */
const extraMs = 30_000;
const levels = ["read committed", "repeatable read", "serializable"] as const;

export interface SoakOptions {
  /** Connection string of a database that has the schema and nothing else in it. */
  readonly url: string;
  readonly seconds: number;
  readonly seed: number;
}

export interface SoakReport {
  readonly did: Readonly<Record<string, number>>;
  /** What must not have happened, in words; none is what is expected. */
  readonly faults: readonly string[];
}

/** How a process ends itself in the middle of a handler, for the separate ones. */
interface Death {
  /** Of every so many handlers one is the process's last. */
  readonly oneIn: number;
  /** Date.now() after which nobody dies any more. */
  until: number;
}

function soakClaimer(url: string, draw: () => number, death: Death | null = null) {
  const perhapsDie = () => {
    if (death !== null && Date.now() < death.until && pick(draw, 2 * death.oneIn) === 0)
      process.kill(process.pid, "SIGKILL");
  };
  const job = defineJob({
    kind: "soak.ordered",
    payload: z.object({ k: z.string(), generation: z.number() }),
    orderingKey: "k:{k}",
    retry: { minBackoff: "10ms", maxBackoff: "40ms", maxAttempts: 1_000 },
    maxCrashes: 100,
    async run({ payload: { k, generation }, job, tx, signal }) {
      if (pick(draw, 2 * oneIn) === 0) throw new Error("fails before its effect");
      await pause(draw() * 3, undefined, { signal });
      perhapsDie();
      await tx.query("insert into effect (k, job_id, place) select $1, id, place from pgclaim.job where id = $2", [
        k,
        job.id,
      ]);
      if (generation < 2 && pick(draw, 8) === 0) {
        // Two keys in whatever order: other ticks do the same the other way round.
        for (const other of [pick(draw, keys), pick(draw, keys)]) {
          await tx.query(
            "insert into asked (job_id) select job_id from pgclaim.enqueue('soak.ordered', jsonb_build_object('k', $1::text, 'generation', $2::integer))",
            [String(other), generation + 1],
          );
        }
      }
      perhapsDie();
      if (pick(draw, 2 * oneIn) === 0) throw new Error("fails after its effect");
    },
  });
  return createClaimer({ jobs: [job], database: pgDatabase(url), batch: 10, maxTicks: 2, log: () => {} });
}

/** What an enqueuer knows of its transaction, by one clock: when its commit was sent and when it was answered. */
interface Committed {
  readonly sentAt: number;
  /** Infinity where the answer never came. */
  ackedAt: number;
  readonly jobs: readonly string[];
}

/** Runs the load and then waits until all is done. */
export async function soak({ url, seconds, seed }: SoakOptions): Promise<SoakReport> {
  const draw = draws(seed);
  const did: Record<string, number> = {};
  const count = (what: string, by = 1) => {
    did[what] = (did[what] ?? 0) + by;
  };
  const faults: string[] = [];
  const committed: Committed[] = [];

  const admin = await connect(url);
  await admin.query(`
    create table asked (job_id bigint primary key);
    create table effect (serial bigserial, k text not null, job_id bigint not null, place bigint not null)`);
  await soakClaimer(url, draw).register();
  const deadlocksBefore = await deadlocks(admin);

  const until = performance.now() + seconds * 1_000;
  /** A short run on a busy machine goes on until each kind of fault has happened. */
  const complete = () =>
    ["rolled back", "backends killed", "processes killed"].every((what) => did[what] !== undefined);
  const loading = () =>
    performance.now() < until || (!complete() && performance.now() < until + extraMs && faults.length === 0);
  let draining = true;

  async function enqueuer(own: () => number): Promise<void> {
    let client = await connect(url);
    while (loading()) {
      const level = levels[pick(own, levels.length)] ?? "serializable";
      const jobs: string[] = [];
      let attempt: Committed | null = null;
      try {
        await client.query(`begin isolation level ${level}`);
        for (let i = 1 + pick(own, 3); i > 0; i--) {
          const { rows } = await client.query<{ id: string }>(
            "insert into asked (job_id) select job_id from pgclaim.enqueue('soak.ordered', jsonb_build_object('k', $1::text, 'generation', 0)) returning job_id as id",
            [String(pick(own, keys))],
          );
          for (const { id } of rows) jobs.push(id);
        }
        if (pick(own, 3) === 0) await client.query("select pg_sleep($1)", [own() * 0.02]);
        if (pick(own, oneIn) === 0) {
          await client.query("rollback");
          count("rolled back");
          continue;
        }
        attempt = { sentAt: performance.now(), ackedAt: Number.POSITIVE_INFINITY, jobs };
        await client.query("commit");
        attempt.ackedAt = performance.now();
        committed.push(attempt);
        count("transactions committed");
        await audit(client, String(pick(own, keys)));
        while (loading() && Number((await client.query("select count(*) as n from pgclaim.job")).rows[0]?.n) > backlog)
          await client.query("select pg_sleep(0.01)");
      } catch (error) {
        const code = (error as { readonly code?: string }).code;
        if (code === "40001") {
          count("refused at SERIALIZABLE");
          await client.query("rollback");
        } else if (code === undefined || code.startsWith("57") || code.startsWith("08")) {
          // The killer met an enqueuer. Whether its commit went in is known to the table of what was asked for.
          if (attempt !== null) committed.push(attempt);
          count("enqueuers killed");
          await client.end().catch(() => {});
          client = await connect(url);
        } else {
          faults.push(`an enqueuer got ${code}: ${String(error)}`);
          await client.query("rollback").catch(() => {});
        }
      }
    }
    await client.end();
  }

  /** With a gate in hand, its key must be whole, unless a note asks somebody to look. */
  async function audit(client: pg.Client, k: string): Promise<void> {
    const gate = `order:k:${k}`;
    await client.query("begin isolation level read committed");
    await client.query("select pgclaim.lock_gates(array[$1])", [gate]);
    const { rows } = await client.query<{ what: string }>(
      `with line as materialized (
         select state, place, row_number() over (order by place) as nth from pgclaim.job where gate = $1
       )
       select 'blocked beside free width' as what from line
       where nth = 1 and state = 'blocked' and not exists (select from pgclaim.recheck where gate = $1)
       union all select 'active and not the lowest' from line where nth > 1 and state <> 'blocked'
       union all select 'without a place' from line where place is null`,
      [gate],
    );
    await client.query("commit");
    count("audits of a key");
    for (const { what } of rows) faults.push(`key ${k}: ${what}`);
  }

  // So that a short run sees one as well.
  let ticks = oneIn - 5;
  async function seen(report: Told): Promise<void> {
    count("invocations");
    count("jobs claimed", report.claimed);
    if (report.code !== undefined) count(`invocations ended by ${report.code}`);
    for (let i = 0; i < report.tickCount; i++) {
      if (++ticks % oneIn !== 0 || !loading()) continue;
      const { rowCount } = await admin.query(
        `select pg_terminate_backend(pid) from (
           select distinct l.pid from pg_locks l
           where l.locktype = 'advisory' and l.pid <> pg_backend_pid()
             and l.database = (select oid from pg_database where datname = current_database())
         ) holders order by random() limit 1`,
      );
      count("backends killed", rowCount ?? 0);
    }
  }

  async function invocations(own: () => number): Promise<void> {
    const claimer = soakClaimer(url, own);
    while (draining) {
      const report = await claimer.invoke({ type: "manual" }, { budget: "25s" });
      await seen(told(report));
      if (report.claimed === 0) await pause(5 + own() * 20);
    }
  }

  /** A process that dies in the middle of a handler now and then, and is started again. The first ones die young. */
  let lives = 0;
  async function separate(own: () => number): Promise<void> {
    while (draining) {
      const argument: ChildArgument = {
        url,
        seed: pick(own, 2 ** 31),
        death: {
          oneIn: lives++ < processes ? 1 : 4 * oneIn,
          until: Date.now() + (until - performance.now()) + extraMs,
        },
      };
      const child = spawn(process.execPath, [fileURLToPath(import.meta.url), "--child", JSON.stringify(argument)], {
        stdio: ["pipe", "pipe", "inherit"],
      });
      child.stdin.on("error", () => {}); // it may be dead already
      for await (const text of createInterface({ input: child.stdout })) {
        await seen(JSON.parse(text) as Told);
        if (!loading()) child.stdin.write("live\n");
        if (!draining) child.stdin.end();
      }
      await ended(child);
      if (child.signalCode === "SIGKILL") count("processes killed");
      else if (child.exitCode !== 0) faults.push(`a process ended with ${child.exitCode ?? child.signalCode}`);
    }
  }

  const workers = [
    ...Array.from({ length: invocationsHere }, () => invocations(draws(pick(draw, 2 ** 31)))),
    ...Array.from({ length: processes }, () => separate(draws(pick(draw, 2 ** 31)))),
  ];
  await Promise.all(Array.from({ length: enqueuers }, () => enqueuer(draws(pick(draw, 2 ** 31)))));
  const drainUntil = performance.now() + drainLimitMs;
  const left = async () =>
    Number(
      (await admin.query("select (select count(*) from pgclaim.job) + (select count(*) from pgclaim.recheck) as n"))
        .rows[0]?.n,
    );
  while ((await left()) > 0 && performance.now() < drainUntil) await admin.query("select pg_sleep(0.05)");
  draining = false;
  await Promise.all(workers);

  faults.push(...(await verdicts(admin, committed, deadlocksBefore)));
  for (const [what, text] of Object.entries(facts)) count(what, Number((await admin.query(text)).rows[0]?.n));
  await admin.end();
  return { did, faults };
}

/** What is told of an invocation, here and by the separate processes. */
interface Told {
  readonly claimed: number;
  /** Ticks that claimed something. */
  readonly tickCount: number;
  readonly code?: string;
}

const told = ({ claimed, ticks, error }: InvocationReport): Told => ({
  claimed,
  tickCount: ticks.filter((tick) => tick.claimed > 0).length,
  ...(error === undefined ? {} : { code: error.code }),
});

interface ChildArgument {
  readonly url: string;
  readonly seed: number;
  readonly death: Death;
}

const facts: Readonly<Record<string, string>> = {
  "jobs asked for": "select count(*) as n from asked",
  "jobs done": "select count(*) as n from pgclaim.history where outcome = 'done'",
  "attempts failed": "select count(*) as n from pgclaim.attempt where outcome = 'failed'",
  "attempts crashed": "select count(*) as n from pgclaim.attempt where outcome = 'crashed'",
  "attempts interrupted": "select count(*) as n from pgclaim.attempt where outcome = 'interrupted'",
  "attempts handed back": "select count(*) as n from pgclaim.attempt where outcome = 'released'",
};

/** What must be nothing, each as a query that answers a number. */
const nothing: Readonly<Record<string, string>> = {
  "jobs asked for and not done":
    "select count(*) as n from asked a where not exists (select from pgclaim.history h where h.job_id = a.job_id and h.outcome = 'done')",
  "jobs asked for whose effect is missing":
    "select count(*) as n from asked a where not exists (select from effect e where e.job_id = a.job_id)",
  "effects applied twice": "select count(*) - count(distinct job_id) as n from effect",
  "effects of jobs nobody asked for":
    "select count(*) as n from effect e where not exists (select from asked a where a.job_id = e.job_id)",
  "jobs left unfinished": "select count(*) as n from pgclaim.job",
  "inversions by place":
    "select count(*) as n from (select place, lag(place) over (partition by k order by serial) as before from effect) e where before > place",
  "inversions in history":
    "select count(*) as n from (select place, lag(place) over (partition by ordering_key order by finished_at, ctid) as before from pgclaim.history) h where before > place",
  "attempts left open": "select count(*) as n from pgclaim.attempt where outcome is null",
  "notes left": "select count(*) as n from pgclaim.recheck",
  "advisory locks left":
    "select count(*) as n from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())",
};

async function verdicts(admin: pg.Client, committed: readonly Committed[], deadlocksBefore: number): Promise<string[]> {
  const faults: string[] = [];
  for (const [what, text] of Object.entries(nothing)) {
    const n = Number((await admin.query(text)).rows[0]?.n);
    if (n > 0) faults.push(`${what}: ${n}`);
  }
  const deadlocked = (await deadlocks(admin)) - deadlocksBefore;
  if (deadlocked > 0) faults.push(`deadlocks: ${deadlocked}`);
  const { rows } = await admin.query<{ k: string; job_id: string }>("select k, job_id from effect order by serial");
  const inverted = inversions(rows, committed);
  if (inverted > 0) faults.push(`inversions by the enqueuers' clock: ${inverted}`);
  return faults;
}

/**
 * Inversions as an enqueuer sees them, without a look at our places: a job ran before one whose commit had been answered
 * before its own was sent, or before an earlier one of its transaction.
 */
function inversions(
  effects: readonly { readonly k: string; readonly job_id: string }[],
  committed: readonly Committed[],
): number {
  const of = new Map(committed.flatMap((one) => one.jobs.map((id, nth) => [id, { one, nth }] as const)));
  const latestSent = new Map<string, number>();
  const lastNth = new Map<string, Map<Committed, number>>();
  let inverted = 0;
  for (const { k, job_id } of effects) {
    const known = of.get(job_id);
    if (known === undefined) continue; // a handler's, or nobody knows when its commit was answered
    const { one, nth } = known;
    const nths = lastNth.get(k) ?? new Map<Committed, number>();
    if ((latestSent.get(k) ?? 0) > one.ackedAt || (nths.get(one) ?? -1) > nth) inverted++;
    latestSent.set(k, Math.max(latestSent.get(k) ?? 0, one.sentAt));
    lastNth.set(k, nths.set(one, nth));
  }
  return inverted;
}

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client(url);
  client.on("error", () => {}); // the killer's work
  await client.connect();
  return client;
}

async function deadlocks(client: pg.Client): Promise<number> {
  const { rows } = await client.query("select deadlocks from pg_stat_database where datname = current_database()");
  return Number(rows[0]?.deadlocks);
}

function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
  return new Promise((resolve) => child.once("exit", () => resolve()));
}

/** One of the separate processes: invocations until its standard input ends, each told in a line; told to live, it does. */
async function runChild({ url, seed, death }: ChildArgument): Promise<void> {
  const draw = draws(seed);
  const mortal = { ...death };
  const claimer = soakClaimer(url, draw, mortal);
  let over = false;
  process.stdin.on("data", () => {
    mortal.until = 0;
  });
  process.stdin.once("end", () => {
    over = true;
  });
  while (!over) {
    const report = await claimer.invoke({ type: "manual" }, { budget: "25s" });
    process.stdout.write(`${JSON.stringify(told(report))}\n`);
    await pause(5 + draw() * 20);
  }
  process.exit(0);
}

/** A load that did nothing proves nothing. */
export const mustHappen = [
  "jobs done",
  "rolled back",
  "backends killed",
  "processes killed",
  "attempts failed",
  "audits of a key",
] as const;

/** Runs the soak in a database of its own on the development server, or the one DATABASE_URL names. */
async function main(seconds: number, seed: number): Promise<void> {
  console.log(`order soak: ${seconds} s, seed ${seed}`);
  const server = await resolveDatabase();
  const name = `pgclaim_soak_order_${process.pid}`;
  const admin = await connect(server.url());
  await admin.query(`create database ${name}`);
  try {
    const url = server.url(name);
    const client = await connect(url);
    await migrate({ client });
    await client.end();
    const { did, faults: found } = await soak({ url, seconds, seed });
    const missing = mustHappen.filter((what) => !((did[what] ?? 0) > 0)).map((what) => `nothing happened of: ${what}`);
    const faults = [...found, ...missing];
    for (const [what, n] of Object.entries(did)) console.log(`${String(n).padStart(8)}  ${what}`);
    for (const fault of faults) console.log(`FAULT  ${fault}`);
    console.log(faults.length === 0 ? "Nothing inverted, lost, doubled, deadlocked or left behind." : `Seed ${seed}.`);
    process.exitCode = faults.length === 0 ? 0 : 1;
  } finally {
    await admin.query(`drop database ${name} with (force)`);
    await admin.end();
    await server.stop();
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const child = argument("--child");
  if (child !== undefined) await runChild(JSON.parse(child));
  else await main(numberArgument("--seconds", 60, 0), seedArgument());
}
