// The world of a test in real workerd: a database behind the bridge, an HTTP server that plays the outside, and workerd
// processes of the test's own, each of which can be killed.

import http from "node:http";
import net, { type AddressInfo } from "node:net";
import path from "node:path";
import { Miniflare } from "miniflare";
import { expect, onTestFinished } from "vitest";
import { bundleWorker } from "../../scripts/world/worker_bundle.ts";
import { startWorkerd, usualCompatibilityDate, type Workerd } from "../../scripts/world/workerd.ts";
import type { ClaimerOptions, Enqueued, InvocationReport, LogEntry } from "../../src/index.ts";
import { endsWithin, eventually } from "../support/gate.ts";
import { setup, type TestServer, type World } from "../support/world.ts";
import { kinds, type Order, type OutsideCall } from "./workers/kinds.ts";

/** Bound for a thing that takes milliseconds; a machine under load has room. */
export const soonMs = 10_000;

export const secrets = {
  PGCLAIM_TRIGGER_SECRET: "trigger-secret",
  PGCLAIM_ENQUEUE_SECRET: "enqueue-secret",
  PGCLAIM_READ_SECRET: "read-secret",
  CRON_SECRET: "cron-secret",
} as const;

/** Options of the Worker that a test may set; all of them are JSON. */
export type WorkerSettings = Pick<ClaimerOptions, "batch" | "concurrency" | "maxTicks" | "budget" | "limits">;

/** Limits under which every hang is cut off within a few seconds. */
export const shortLimits = {
  budget: { cron: "8s", http: "8s" },
  limits: {
    connect: "1500ms",
    oneShot: "1500ms",
    message: "1500ms",
    close: "500ms",
    reserve: "1s",
    serverGrace: "500ms",
    settle: "1500ms",
  },
} as const satisfies WorkerSettings;

export interface StartOptions {
  readonly settings?: WorkerSettings;
  /** Isolates in the one process. Default 1. */
  readonly isolates?: number;
  /** Wins over the usual variables; undefined takes one away. */
  readonly bindings?: Readonly<Record<string, string | undefined>>;
}

/** One workerd process and what it has logged. */
export interface Instance extends Workerd {
  readonly name: string;
  readonly log: readonly LogEntry[];
  /** Runs scheduled() and answers its outcome with the report it logged. */
  cron(worker?: number): Promise<{ readonly outcome: string; readonly report: LoggedReport }>;
  /** The first log line that fits, logged already or yet to come. */
  logged(fits: (entry: LogEntry) => boolean): Promise<LogEntry>;
  /** POST /api/trigger with the right secret. */
  trigger(worker?: number): Promise<InvocationReport>;
}

export type LoggedReport = LogEntry & Omit<InvocationReport, "faults">;

/** The test's HTTP server. */
export interface Outside {
  readonly url: string;
  /** Every call, in the order in which they came. */
  readonly calls: readonly OutsideCall[];
  /** Decides what calls are answered from now on; a promise holds the answer back. Default: "ok". */
  answer(how: (call: OutsideCall) => Order | Promise<Order>): void;
  /** Resolves when that many calls have come, all told. */
  reached(count: number): Promise<void>;
}

export interface Lab extends World {
  readonly outside: Outside;
  start(options?: StartOptions): Promise<Instance>;
  /** Enqueues one job for each name and answers their ids. The kinds get registered by it. */
  enqueue(kind: string, names: readonly string[]): Promise<string[]>;
  /** Names of the effects that are committed, sorted. */
  effects(): Promise<string[]>;
  /** Waits until no advisory lock is held in this database. */
  locksFree(boundMs?: number): Promise<void>;
  /** Every attempt on record as "name n outcome", by job and number; with " alone" where it was quarantined. */
  attempts(): Promise<string[]>;
}

let bundle: Promise<string> | undefined;

/** The test Worker as one module, made once per test file. */
function testWorker(): Promise<string> {
  bundle ??= bundleWorker({
    entry: path.join(import.meta.dirname, "workers", "jobs.ts"),
    buildLibrary: false,
  }).then(({ code }) => code);
  return bundle;
}

let instances = 0;

export async function setupLab(server?: TestServer): Promise<Lab> {
  const world = await setup(server);
  await world.sql.query(
    "create table public.effect (name text not null, job_id bigint not null, attempt int not null)",
  );
  const outside = await startOutside();
  const enqueuer = world.claimer("pg", { jobs: kinds({ OUTSIDE: outside.url, INSTANCE: "none" }) });

  return {
    ...world,
    outside,
    async start(options = {}) {
      const name = `workerd-${++instances}`;
      const bindings = {
        ...workerVars(world),
        ...secrets,
        OUTSIDE: outside.url,
        INSTANCE: name,
        OPTIONS: JSON.stringify({ ...shortLimits, ...options.settings }),
        ...options.bindings,
      };
      return startInstance(name, await testWorker(), bindings, options.isolates ?? 1);
    },
    async enqueue(kind, names) {
      const enqueued: readonly Enqueued[] = await enqueuer.enqueueByKind(
        names.map((name) => ({ kind, payload: { name } })),
      );
      return enqueued.map(({ id }) => id);
    },
    effects: async () =>
      (await world.rows<{ name: string }>("select name from public.effect order by name")).map(({ name }) => name),
    async locksFree(boundMs = soonMs) {
      // Watched by the server, so that neither it nor we are kept busy with asking.
      const watch = `do $$ begin
        while exists (
          select from pg_locks l join pg_database d on d.oid = l.database
          where l.locktype = 'advisory' and d.datname = current_database()
        ) loop
          perform pg_sleep(0.005);
        end loop;
      end $$`;
      const client = await world.connect();
      await client.query(`set statement_timeout = ${Math.max(1, Math.ceil(boundMs))}`);
      await client.query(watch).catch(() => {}); // the bound is over; what is still held is said below
      expect(await world.locks(), `locks held after ${Math.round(boundMs)} ms`).toBe(0);
    },
    attempts: async () =>
      (
        await world.rows<{ line: string }>(
          `select concat_ws(' ', coalesce(j.payload, h.payload) ->> 'name', a.n, coalesce(a.outcome, 'open'),
                  case when a.quarantined then 'alone' end) as line
           from pgclaim.attempt a
           left join pgclaim.job j on j.id = a.job_id
           left join pgclaim.history h on h.job_id = a.job_id
           order by a.job_id, a.n`,
        )
      ).map(({ line }) => line),
  };
}

/** Variables by which a Worker finds the test's database behind its bridge. */
export function workerVars(world: World): Record<string, string> {
  return {
    DATABASE_URL: world.url,
    PGCLAIM_LOCAL_BRIDGE: `127.0.0.1:${world.bridge.port}`,
    // The embedded server takes cleartext, as Neon's proxy does; another one may want SCRAM.
    ...(process.env.DATABASE_URL === undefined ? {} : { PGCLAIM_PIPELINE_CONNECT: "false" }),
  };
}

/** Starts a workerd process that ends with the test. */
export async function startInstance(
  name: string,
  code: string,
  bindings: Readonly<Record<string, string | undefined>>,
  isolates = 1,
): Promise<Instance> {
  const log: LogEntry[] = [];
  const listeners = new Set<() => void>();
  const workerd = await startWorkerd({
    code,
    bindings: Object.fromEntries(
      Object.entries(bindings).filter((entry): entry is [string, string] => entry[1] !== undefined),
    ),
    workers: isolates,
    onLog({ level, message }) {
      log.push(parseLine(level, message));
      for (const listener of listeners) listener();
    },
  });
  onTestFinished(() => workerd.stop());

  const logged = async (fits: (entry: LogEntry) => boolean): Promise<LogEntry> => {
    let look: () => void = () => {};
    const found = new Promise<LogEntry>((resolve) => {
      look = () => {
        const entry = log.find(fits);
        if (entry !== undefined) resolve(entry);
      };
      listeners.add(look);
      look();
    });
    try {
      return await endsWithin(soonMs, found, "the log line");
    } finally {
      listeners.delete(look);
    }
  };

  const cron = async (worker = 0) => {
    // The trigger's name finds the line of this very invocation.
    const trigger = crypto.randomUUID();
    const { outcome } = await workerd.scheduled({ cron: trigger }, worker);
    const line = await logged((entry) => entry.event === "pgclaim.invocation" && entry.trigger === `cron ${trigger}`);
    return { outcome, report: line as LoggedReport };
  };
  const trigger = async (worker = 0) => {
    const headers = { authorization: `Bearer ${secrets.PGCLAIM_TRIGGER_SECRET}` };
    const answer = await workerd.fetch("/api/trigger", { method: "POST", headers }, worker);
    expect(answer.status, answer.text).toBe(200);
    return answer.json<InvocationReport>();
  };
  return {
    ...workerd,
    name,
    log,
    logged,
    cron: (worker) => heard(cron(worker)),
    trigger: (worker) => heard(trigger(worker)),
  };
}

/** Serves one of the test Workers at an address, for a caller with a socket of its own. */
export async function startListening(lab: Lab, entry: string): Promise<{ readonly url: URL; readonly log: string[] }> {
  const { code } = await bundleWorker({
    entry: path.join(import.meta.dirname, "workers", entry),
    buildLibrary: false,
  });
  const variables = {
    ...workerVars(lab),
    ...secrets,
    OUTSIDE: lab.outside.url,
    INSTANCE: "listening",
    OPTIONS: JSON.stringify(shortLimits),
  };
  const log: string[] = [];
  const miniflare = new Miniflare({
    cf: false,
    telemetry: { enabled: false },
    handleStructuredLogs: ({ message }) => log.push(message),
    workers: [
      {
        config: {
          name: "listening",
          compatibilityDate: usualCompatibilityDate,
          // So that the handler can say when its caller has gone.
          compatibilityFlags: ["enable_request_signal"],
          manifest: { mainModule: "index.js", modules: { "index.js": { type: "esm", contents: code } } },
          env: Object.fromEntries(Object.entries(variables).map(([name, value]) => [name, { type: "text", value }])),
        },
      },
    ],
  });
  onTestFinished(() => miniflare.dispose());
  return { url: await miniflare.ready, log };
}

/** Sends a POST and waits for nothing. Hanging up resets the connection: a mere end could be a caller that still reads. */
export async function callAndHold(url: URL, secret: string): Promise<{ hangUp(): void }> {
  const socket = net.connect(Number(url.port), url.hostname);
  socket.on("error", () => {});
  onTestFinished(() => {
    socket.destroy();
  });
  const head = [`POST ${url.pathname} HTTP/1.1`, `host: ${url.host}`, `authorization: Bearer ${secret}`];
  await new Promise<void>((resolve) => {
    socket.write(`${[...head, "content-length: 0"].join("\r\n")}\r\n\r\n`, () => resolve());
  });
  return { hangUp: () => void socket.resetAndDestroy() };
}

/** A test that fails elsewhere leaves this promise behind; its own failure is then no second one. */
function heard<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => {});
  return promise;
}

function parseLine(level: string, message: string): LogEntry {
  try {
    return JSON.parse(message) as LogEntry;
  } catch {
    return { level: level === "error" ? "error" : "info", event: "text", message };
  }
}

async function startOutside(): Promise<Outside> {
  const calls: OutsideCall[] = [];
  const waiting = new Set<() => void>();
  let decide: (call: OutsideCall) => Order | Promise<Order> = () => "ok";
  const server = http.createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    const call = JSON.parse(Buffer.concat(chunks).toString("utf8")) as OutsideCall;
    calls.push(call);
    for (const look of waiting) look();
    const order = await decide(call);
    if (!response.destroyed) response.end(order);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(async () => {
    const closed = new Promise((resolve) => server.close(resolve));
    server.closeAllConnections();
    await closed;
  });
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    calls,
    answer(how) {
      decide = how;
    },
    async reached(count) {
      let look: () => void = () => {};
      const reached = new Promise<void>((resolve) => {
        look = () => {
          if (calls.length >= count) resolve();
        };
        waiting.add(look);
        look();
      });
      await endsWithin(soonMs, reached, `reaching ${count} calls`);
      waiting.delete(look);
    },
  };
}

/** An answer that never comes. */
export function never<T>(): Promise<T> {
  return new Promise(() => {});
}

export function namesOf(count: number, prefix = "job"): string[] {
  return Array.from({ length: count }, (_, i) => `${prefix}-${String(i + 1).padStart(2, "0")}`);
}

/**
 * The promises, after everything has run: each name's effect is there exactly once, nothing is left over, stuck or open,
 * and external calls were repeated only with the same key and never twice by one attempt.
 */
export async function expectAllDone(lab: Lab, names: readonly string[], swallowed = 0): Promise<void> {
  expect(await lab.effects()).toEqual([...names].sort());
  expect(await lab.rows("select id, state from pgclaim.job")).toEqual([]);
  expect(await lab.value<string>("select count(*) from pgclaim.history where outcome = 'done'")).toBe(
    String(names.length),
  );
  await expectClean(lab, swallowed);
}

/**
 * Nothing is open or held, and the calls outside kept to their keys. `swallowed` sessions went into a black hole, which
 * the bridge shows as open for ever.
 */
export async function expectClean(lab: Lab, swallowed = 0): Promise<void> {
  expect(await lab.rows("select job_id, n from pgclaim.attempt where outcome is null")).toEqual([]);
  await lab.locksFree();
  await eventually(() => expect(lab.bridge.stats.wsOpen).toBe(swallowed), soonMs);
  const keysOf = new Map<string, Set<string>>();
  for (const { jobId, idempotencyKey } of lab.outside.calls) {
    keysOf.set(jobId, (keysOf.get(jobId) ?? new Set()).add(idempotencyKey));
  }
  const keys = [...keysOf.values()].map((set) => [...set]);
  expect(keys.filter((of) => of.length !== 1)).toEqual([]);
  expect(new Set(keys.flat()).size).toBe(keysOf.size);
  const tokens = lab.outside.calls.filter(({ stray }) => !stray).map(({ jobId, attempt }) => `${jobId} ${attempt}`);
  expect(new Set(tokens).size).toBe(tokens.length);
}
