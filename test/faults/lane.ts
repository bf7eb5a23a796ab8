// A worker thread that runs cases of the fault sweep one after another, in a database of its own. A thread is what an
// isolate is: pgclaim's latch and the driver's global settings are its own, so lanes do not meet.

import { setTimeout } from "node:timers/promises";
import { parentPort, workerData } from "node:worker_threads";
import pg from "pg";
import { pgDatabase } from "../../src/adapters/node.ts";
import { createClaimer, type InvocationReport } from "../../src/index.ts";
import { type Fault, late, startNetwork, type Transport } from "./network.ts";
import { complaints, count, countLocks, countTransactions, createEffects, reset, workload } from "./workload.ts";

export interface LaneArguments {
  readonly url: string;
  readonly pipeline: boolean;
}

export interface Case extends Fault {
  readonly transport: Transport;
  /** Stretches every limit, for a machine that is slow now. */
  readonly scale: number;
  /** Effects by a connection of the handler's own: the sweep must find that wrong. */
  readonly sabotage: boolean;
}

export interface Verdict {
  readonly of: Case;
  readonly trips: readonly string[];
  readonly struck: readonly string[];
  readonly complaints: readonly string[];
  /** Codes that the broken invocation reported. */
  readonly codes: readonly string[];
  /** Fates of its ticks that claimed something, or had none because of an error. */
  readonly fates: readonly string[];
  /** Jobs that it did; all of them where the engine got over the fault by itself. */
  readonly done: number;
  readonly brokenMs: number;
  /** Invocations after it until everything was done, and those of them that found no lock held. */
  readonly invocations: number;
  readonly unhindered: number;
  readonly repairMs: number;
  readonly roundTrips: { readonly session: number; readonly oneShot: number; readonly handlers: number };
}

/** Milliseconds at scale 1: larger than a healthy loopback needs, smaller than anybody wants to wait a thousand times. */
const base = { connect: 500, oneShot: 400, message: 200, close: 100, reserve: 100, serverGrace: 200, settle: 400 };
const baseBudgetMs = 1000;
const baseTimeoutMs = 150;

function limitsAt(scale: number) {
  const ms = (value: number) => Math.round(value * scale);
  const budgetMs = ms(baseBudgetMs);
  const { connect, oneShot, message, close, settle, serverGrace } = base;
  return {
    limits: Object.fromEntries(Object.entries(base).map(([name, value]) => [name, `${ms(value)}ms`])),
    budgetMs,
    timeoutMs: ms(baseTimeoutMs),
    /**
     * The longest an invocation may take. After the budget: a connect that had begun, its repetition, claim, both fences, a
     * turn's last message, finish, settle with the question that had begun, and close. We wait half a second longer for
     * an answer than the server is given.
     */
    longestMs: budgetMs + 2 * (ms(connect) + 400) + 3 * (ms(message) + 500) + ms(3 * oneShot) + ms(settle) + ms(close),
    /** The server's limit for a transaction that nobody talks about, and what it takes to notice. */
    serverMs: budgetMs + ms(serverGrace) + 3_000,
  };
}

/** What a loaded machine may take on top. */
const slackMs = 1_500;
const pollMs = 20;
const repairLimitMs = 20_000;
/** Invocations that find no lock held until all is done: one that finds the crash, one for suspects, one for their children. */
const maxUnhindered = 4;

async function main({ url, pipeline }: LaneArguments): Promise<void> {
  const port = parentPort;
  if (port === null) throw new Error("lane.ts is a worker thread");
  const sql = new pg.Client(url);
  const outside = new pg.Pool({ connectionString: url, max: 4 });
  await sql.connect();
  await createEffects(sql);
  // The kinds, so that what is seeded is not unknown; the deployment itself is forgotten before each case.
  await createClaimer({
    jobs: workload({ timeoutMs: 1_000, onStart() {} }),
    database: pgDatabase(url),
    log: () => {},
  }).register();
  const unheard: string[] = [];
  for (const event of ["unhandledRejection", "uncaughtException"] as const)
    process.on(event, (error: unknown) => unheard.push(`${event}: ${error instanceof Error ? error.stack : error}`));

  async function run(of: Case): Promise<Verdict> {
    const { limits, budgetMs, timeoutMs, longestMs, serverMs } = limitsAt(of.scale);
    const starts: string[] = [];
    const jobs = workload({
      timeoutMs,
      onStart: ({ id, attempt }) => starts.push(`${id}:${attempt}`),
      ...(of.sabotage ? { effect: (_tx, n) => outside.query("insert into effect (n) values ($1)", [n]) } : {}),
    });
    const network = await startNetwork({ url, transport: of.transport, pipeline });
    const claimer = (options: object) => createClaimer({ jobs, database: network.database, log: () => {}, ...options });
    const healthy = claimer({});
    await reset(sql);
    const found: string[] = [];

    network.arm(of);
    const began = performance.now();
    const report = await claimer({ limits }).invoke({ type: "manual" }, { budget: `${budgetMs}ms` });
    const brokenMs = performance.now() - began;
    const trips = [...network.trips];
    const struck = [...network.struck];
    if (brokenMs > longestMs + slackMs) found.push(`the invocation took ${Math.round(brokenMs)} ms of ${longestMs}`);
    found.push(...(await disagreements(sql, report)));
    network.heal();

    const repairBegan = performance.now();
    let invocations = 0;
    let unhindered = 0;
    while ((await count(sql, "select count(*)::integer as n from pgclaim.job")) > 0) {
      if (performance.now() - repairBegan > repairLimitMs) {
        found.push(`jobs are left after ${repairLimitMs} ms and ${invocations} invocations`);
        break;
      }
      if ((await count(sql, countLocks)) === 0) unhindered++;
      invocations++;
      const next = await healthy.invoke({ type: "manual" }, { budget: `${5_000 + 2 * timeoutMs}ms` });
      if ((await count(sql, countLocks)) > 0) await setTimeout(pollMs); // a dead session holds them, and the server will notice
      if (next.error !== undefined) found.push(`a later invocation ended with ${next.error.code}`);
    }
    const repairMs = performance.now() - repairBegan;
    if (unhindered > maxUnhindered) found.push(`${unhindered} invocations were needed that found no lock`);
    // A half-open session's transaction is ended by the server's own limit; and what is late has to have come.
    const comes = late.includes(of.kind);
    const until = performance.now() + serverMs;
    const isOver = async () =>
      (!comes || network.idle()) && (await count(sql, countLocks)) + (await count(sql, countTransactions)) === 0;
    while (!(await isOver()) && performance.now() < until) await setTimeout(pollMs);
    if (comes && !network.idle()) found.push("what was late has not come");
    found.push(...(await complaints(sql, starts)));
    await network.close();
    await new Promise((resolve) => setImmediate(resolve));
    found.push(...unheard.splice(0));
    return {
      of,
      trips,
      struck,
      complaints: found,
      codes: codesOf(report),
      fates: report.ticks.flatMap(({ fate, error }) => (fate === "empty" && error === undefined ? [] : [fate])),
      done: report.done,
      brokenMs,
      invocations,
      unhindered,
      repairMs,
      roundTrips: { ...report.roundTrips, handlers: report.ticks.reduce((n, tick) => n + tick.handlerQueries, 0) },
    };
  }

  port.on("message", (of: Case) => {
    run(of).then(
      (verdict) => port.postMessage(verdict),
      (error: unknown) => {
        // The parent sees it as this thread's error.
        setImmediate(() => {
          throw error;
        });
      },
    );
  });
  port.postMessage("ready");
}

/** Every code in a report. */
function codesOf(report: InvocationReport): string[] {
  const codes = [
    report.error?.code,
    ...report.faults.map(({ sqlstate }) => sqlstate),
    ...report.ticks.flatMap((tick) => [tick.error?.code, ...tick.jobs.map(({ code }) => code)]),
  ];
  return [...new Set(codes.filter((code) => code !== undefined))];
}

/** Where the report and the database say different things, or the report says nothing although work is left. */
async function disagreements(sql: pg.Client, report: InvocationReport): Promise<string[]> {
  const found: string[] = [];
  const { rows } = await sql.query<{ id: string; outcome: string }>("select id, outcome from pgclaim.tick");
  const outcomes = new Map(rows.map(({ id, outcome }) => [id, outcome]));
  for (const { tickId, fate, error } of report.ticks) {
    const outcome = outcomes.get(tickId) ?? "none";
    if ((fate === "committed" || fate === "lost") && outcome !== fate)
      found.push(`a tick is reported ${fate}, the database says ${outcome}`);
    if ((fate === "empty" || fate === "refused") && outcome !== "none")
      found.push(`a tick is reported ${fate}, the database says ${outcome}`);
    if ((fate === "lost" || fate === "unknown" || fate === "refused") && error === undefined)
      found.push(`a tick is ${fate} and says no code`);
  }
  const left = await count(sql, "select count(*)::integer as n from pgclaim.job");
  if (left > 0 && codesOf(report).length === 0 && report.ended !== "budget")
    found.push(`${left} jobs are left, and the report says no code: ${JSON.stringify(report)}`);
  const done = await count(sql, "select count(*)::integer as n from pgclaim.history");
  if (!report.ticks.some(({ fate }) => fate === "unknown") && done !== report.done)
    found.push(`${report.done} jobs are reported done, the database says ${done}`);
  return found;
}

await main(workerData as LaneArguments);
