// What the engine's tests share: a table of effects, an authority to call, faults on either transport by one name, and
// the invariants every history must end in.

import http from "node:http";
import { expect, onTestFinished } from "vitest";
import { pgDatabase } from "../../src/adapters/node.ts";
import { type Claimer, createClaimer } from "../../src/claimer.ts";
import type { ClaimerOptions } from "../../src/claimer_options.ts";
import type { Database } from "../../src/database.ts";
import type { InvocationReport, TickReport } from "../../src/index.ts";
import { endsWithin, eventually, type Gate, gate } from "./gate.ts";
import { startTcpProxy, type TcpFault } from "./tcp_faults.ts";
import { pooled, type TransportName, type World } from "./world.ts";

export { effect, numbered, plain } from "./kinds.ts";

/** Limits that end a test of a broken network in seconds. All longer than what a healthy loopback needs. */
export const quick = {
  connect: "2s",
  oneShot: "1500ms",
  message: "1500ms",
  close: "300ms",
  reserve: "1s",
  serverGrace: "1s",
  settle: "4s",
} as const;

/** The table in which handlers leave what they did. */
export async function effectTable(world: World): Promise<void> {
  await world.sql.query("create table effect (n integer not null, attempt integer not null default 0, note text)");
}

/** The committed effects, sorted. */
export async function effects(world: Pick<World, "rows">): Promise<number[]> {
  return (await world.rows<{ n: number }>("select n from effect order by n")).map(({ n }) => n);
}

/** Numbers from 1. */
export function upTo(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i + 1);
}

/** Runs an invocation that must end. */
export function invoke(
  claimer: Claimer,
  { budget, within = 20_000 }: { readonly budget?: `${number}s` | `${number}ms`; readonly within?: number } = {},
): Promise<InvocationReport> {
  const invocation = claimer.invoke({ type: "manual" }, budget === undefined ? {} : { budget });
  return endsWithin(within, invocation, "the invocation");
}

/** The one tick of an invocation that claimed something. */
export function workTick(report: InvocationReport): TickReport {
  const ticks = report.ticks.filter(({ claimed }) => claimed > 0);
  const [tick] = ticks;
  if (tick === undefined || ticks.length > 1)
    throw new Error(`${ticks.length} ticks claimed something: ${JSON.stringify(report)}`);
  return tick;
}

/** What became of each job of a tick, as `result` or `result:code`, by job id. */
export function results(tick: TickReport): string[] {
  return tick.jobs.map(({ result, code }) => (code === undefined ? result : `${result}:${code}`));
}

/** Makes a handler's failure due again at once. */
export async function makeDue(world: Pick<World, "sql">): Promise<void> {
  await world.sql.query("update pgclaim.job set run_at = clock_timestamp() where state = 'scheduled'");
}

/** Asserts at the test's end that nothing was rejected or thrown without anybody listening. */
export function watchUnhandled(): void {
  const seen: unknown[] = [];
  const see = (error: unknown) => seen.push(error);
  process.on("unhandledRejection", see);
  process.on("uncaughtException", see);
  onTestFinished(async () => {
    // Rejections are told after the microtasks of the turn in which they happen.
    await new Promise((resolve) => setImmediate(resolve));
    process.off("unhandledRejection", see);
    process.off("uncaughtException", see);
    expect(seen).toEqual([]);
  });
}

export interface Authority {
  readonly url: string;
  /** Bodies of the calls, in the order of their arrival. */
  readonly calls: string[];
  /** Calls waiting for an answer now, and the most there ever were. */
  readonly waiting: { now: number; most: number };
  /** Lets the oldest `count` waiting calls return, and as many to come when fewer wait. */
  answer(count: number): void;
}

/** A real HTTP server that answers nobody before it is told to. */
export async function startAuthority(): Promise<Authority> {
  const calls: string[] = [];
  const waiting = { now: 0, most: 0 };
  const queue: (() => void)[] = [];
  let tickets = 0;
  const serve = () => {
    while (tickets > 0 && queue.length > 0) {
      tickets--;
      waiting.now--;
      queue.shift()?.();
    }
  };
  const server = http.createServer((request, response) => {
    let body = "";
    request.on("data", (bytes: Buffer) => {
      body += bytes.toString();
    });
    request.on("end", () => {
      calls.push(body);
      waiting.now++;
      waiting.most = Math.max(waiting.most, waiting.now);
      queue.push(() => response.end("ok"));
      serve();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const address = server.address();
  return {
    url: `http://127.0.0.1:${typeof address === "object" && address !== null ? address.port : 0}/`,
    calls,
    waiting,
    answer(count) {
      tickets += count;
      serve();
    },
  };
}

export interface WireFault {
  readonly contains: string | RegExp;
  readonly at: "before" | "after";
  readonly how: "reset" | "black-hole" | { readonly hold: Promise<unknown> };
  readonly times?: number;
}

/** A transport whose every message can be broken. */
export interface Wire {
  readonly transport: TransportName;
  /** Connection string whose traffic can be broken; over neon the bridge is what breaks it. */
  readonly url: string;
  readonly database: Database;
  /** Breaks the session at the message with this text. */
  breakSession(fault: WireFault): { readonly fired: Promise<void> };
  /** Breaks the one-shot with this text; black-hole: no answer ever. */
  breakOneShot(fault: WireFault): { readonly fired: Promise<void> };
  claimer(options: Omit<ClaimerOptions, "database">): Claimer;
}

export async function wire(world: World, transport: TransportName): Promise<Wire> {
  const common = (url: string, database: Database): Pick<Wire, "transport" | "url" | "database" | "claimer"> => ({
    transport,
    url,
    database,
    claimer: (options) => createClaimer({ log: (entry) => world.log.push(entry), limits: quick, ...options, database }),
  });
  if (transport === "neon") {
    return {
      ...common(world.url, world.database("neon")),
      breakSession: ({ how, ...fault }) =>
        world.bridge.breakSession({ ...fault, how: how === "reset" ? "tcp-reset" : how }),
      breakOneShot: ({ how, ...fault }) =>
        world.bridge.breakSql({ ...fault, how: how === "black-hole" ? "hang" : how }),
    };
  }
  const { hostname, port } = new URL(pooled(world.url, "session"));
  const proxy = await startTcpProxy({ host: hostname, port: Number(port || 5432) });
  onTestFinished(() => proxy.close());
  const url = new URL(world.url);
  url.hostname = "127.0.0.1";
  url.port = String(proxy.port);
  const arm = (fault: TcpFault) => proxy.break(fault);
  return { ...common(url.toString(), pgDatabase(url.toString())), breakSession: arm, breakOneShot: arm };
}

/** The pid of each backend of this database that is inside a claiming transaction. */
export async function claimingBackends(world: World): Promise<number[]> {
  const rows = await world.rows<{ pid: number }>(
    `select distinct l.pid from pg_locks l
     where l.locktype = 'advisory' and l.database = (select oid from pg_database where datname = current_database())`,
  );
  return rows.map(({ pid }) => pid);
}

/** Rendezvous: handlers arrive with their number, and wait until the test lets them go. */
export function rendezvous() {
  const arrivals = new Map<number, Gate>();
  const departures = new Map<number, Gate>();
  const at = (map: Map<number, Gate>, n: number) => {
    const known: Gate = map.get(n) ?? gate();
    map.set(n, known);
    return known;
  };
  return {
    /** In the handler. */
    async meet(n: number): Promise<void> {
      at(arrivals, n).open();
      await at(departures, n).promise;
    },
    /** In the test. */
    arrived: (n: number): Promise<void> => at(arrivals, n).promise,
    release: (n: number): void => at(departures, n).open(),
  };
}

/**
 * The invariants of every history (protocol page, section 4): no job lost, no effect twice, no lock left, no attempt of
 * a finished job open.
 */
export async function expectWhole(
  world: World,
  expected: { readonly effects: readonly number[]; readonly dead?: number },
): Promise<void> {
  expect(await effects(world)).toEqual([...expected.effects].sort((a, b) => a - b));
  expect(await world.locks()).toBe(0);
  const [row] = await world.rows<{ unfinished: number; dead: number; open: number }>(
    `select
       (select count(*)::integer from pgclaim.job where state <> 'dead') as unfinished,
       (select count(*)::integer from pgclaim.job where state = 'dead') as dead,
       (select count(*)::integer from pgclaim.attempt where outcome is null) as open`,
  );
  expect(row).toEqual({ unfinished: 0, dead: expected.dead ?? 0, open: 0 });
}

/** Fresh invocations one after another until every job of these has its effect, as after any history they must. */
export async function drain(
  world: World,
  claimer: Claimer,
  expected: readonly number[],
  boundMs = 20_000,
): Promise<void> {
  await eventually(async () => {
    await invoke(claimer);
    await makeDue(world);
    expect(await effects(world)).toEqual([...expected].sort((a, b) => a - b));
    expect(await world.value("select count(*)::integer from pgclaim.job where state <> 'dead'")).toBe(0);
  }, boundMs);
}

/** The attempts in order: `job:n outcome`, open ones as `open`. */
export async function attempts(world: World): Promise<string[]> {
  const rows = await world.rows<{ line: string }>(
    "select job_id || ':' || n || ' ' || coalesce(outcome, 'open') as line from pgclaim.attempt order by job_id, n",
  );
  return rows.map(({ line }) => line);
}
