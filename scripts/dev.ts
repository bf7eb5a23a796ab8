// npm run dev: everything on one machine and offline. A private Postgres (or DATABASE_URL's), the bridge, the schema,
// the Worker in wrangler dev, and a clock that plays the cron trigger. It must leave no process and no port behind.

import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import { createInterface } from "node:readline";
import { parseArgs, parseEnv } from "node:util";
import pg from "pg";
import { migrate } from "../src/cli/migrate.ts";
import type { InvocationReport } from "../src/model.ts";
import { startAuthority } from "./demo/authority.ts";
import { startBridge } from "./world/bridge.ts";
import { deathwatch } from "./world/deathwatch.ts";
import { freePort, resolveDatabase } from "./world/postgres.ts";

const HELP = `npm run dev -- [options]
  --port N         where the Worker listens (default 8787)
  --tick LENGTH    time between two cron ticks: 10s, 1m, or "none" (default 1m)
  --config FILE    wrangler configuration (default wrangler.toml)
  --database-only  Postgres, bridge and schema only, for your own \`npx wrangler dev\`
  --print-vars     print the lines .dev.vars takes for that, and stop
  --reset          delete the embedded database first`;

const ROOT = path.resolve(import.meta.dirname, "..");
const STATE_DIR = path.join(ROOT, ".pgclaim");
const POSTGRES_DIR = path.join(STATE_DIR, "pg");
const PORTS_FILE = path.join(STATE_DIR, "dev-ports.json");
/** What the Worker was last given; also the lines .dev.vars takes. */
const VARS_FILE = path.join(STATE_DIR, "dev-vars.env");
const HOST = "127.0.0.1";
const DEFAULT_PORT = 8787;

/** How long wrangler and workerd may take to end before they are killed. */
const STOP_LIMIT_MS = 5_000;

const SECRETS = [
  "PGCLAIM_TRIGGER_SECRET",
  "PGCLAIM_ENQUEUE_SECRET",
  "PGCLAIM_READ_SECRET",
  "PGCLAIM_OPERATE_SECRET",
  "CRON_SECRET",
  "GITHUB_WEBHOOK_SECRET",
] as const;

/** Keeps wrangler quiet and offline: no telemetry, no look-ups, nothing in the home folder. */
const WRANGLER_ENV = {
  CLOUDFLARE_CF_FETCH_ENABLED: "false",
  WRANGLER_HIDE_BANNER: "true",
  WRANGLER_REGISTRY_PATH: path.join(ROOT, ".wrangler", "registry"),
  WRANGLER_SEND_ERROR_REPORTS: "false",
  WRANGLER_SEND_METRICS: "false",
  WRANGLER_WRITE_LOGS: "false",
};

/** Something the person at the terminal can put right; shown without a stack. */
class DevError extends Error {}

type Options = {
  port: number;
  tickMs: number | "none";
  config: string;
  databaseOnly: boolean;
  printVars: boolean;
  reset: boolean;
};
type Vars = Record<string, string>;

const closers: (() => unknown)[] = [];
const stopping = new AbortController();
let starting: Promise<void> = Promise.resolve();

async function main(): Promise<void> {
  const options = readOptions();
  if (options === undefined) return;
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => void stop(0));
  watchParent();
  starting = start(options);
  try {
    await starting;
  } catch (error) {
    if (stopping.signal.aborted) return;
    console.error(
      error instanceof DevError || !(error instanceof Error) ? String(error).replace(/^Error: /, "") : explain(error),
    );
    await stop(1);
  }
}

async function start(options: Options): Promise<void> {
  const { signal } = stopping;
  const external = Boolean(process.env.DATABASE_URL);
  if (options.printVars) return printVars();
  if (!options.databaseOnly) {
    if (!fs.existsSync(options.config))
      throw new DevError(`"${options.config}" does not exist; name another by --config.`);
    await assertFree(options.port);
  }
  fs.mkdirSync(STATE_DIR, { recursive: true });
  if (options.reset && !external) resetDatabase();

  const ports = await chosenPorts();
  const database = await resolveDatabase({ dir: POSTGRES_DIR, port: ports.postgres });
  closers.push(() => database.stop());
  signal.throwIfAborted();

  // Neon has a proxy of its own; everything else is reached through ours.
  const bridged = !database.host.endsWith(".neon.tech");
  if (bridged) {
    const bridge = await startBridge({ port: ports.bridge, target: database });
    closers.push(() => bridge.close());
    signal.throwIfAborted();
  }
  // As with the database: the one of the environment, else one of our own. What .dev.vars says was copied from us.
  let authorityUrl = process.env.AUTHORITY_URL;
  if (!authorityUrl) {
    const authority = await startAuthority({ port: ports.authority });
    closers.push(() => authority.close());
    signal.throwIfAborted();
    authorityUrl = authority.urlFor("dev");
  }
  if (!external) fs.writeFileSync(PORTS_FILE, `${JSON.stringify(ports)}\n`);
  const vars: Vars = {
    ...devVars(),
    DATABASE_URL: database.url(),
    PGCLAIM_LOCAL_BRIDGE: bridged ? `${HOST}:${ports.bridge}` : "",
    AUTHORITY_URL: authorityUrl,
    ...secrets(),
  };
  // A foreign server most likely wants SCRAM, which cannot be answered before it has asked.
  if (external && bridged) vars.PGCLAIM_PIPELINE_CONNECT = "false";
  // A file, not --var: a command line can be read by everybody on the machine.
  writePrivate(VARS_FILE, asEnvFile(vars));
  await applySchema(database.url());
  signal.throwIfAborted();
  console.log(
    `database  ${describe(database.url())} ${external ? "(DATABASE_URL)" : `(embedded, in ${path.relative(ROOT, POSTGRES_DIR)}; its password: cat ${path.relative(ROOT, POSTGRES_DIR)}/password)`}`,
  );
  if (bridged) console.log(`bridge    ${HOST}:${ports.bridge}`);
  console.log(
    `authority ${authorityUrl}${process.env.AUTHORITY_URL ? " (AUTHORITY_URL)" : " (a stand-in that takes every report)"}`,
  );
  if (options.databaseOnly) {
    console.log("For `npx wrangler dev` in another terminal: npm run --silent dev -- --print-vars > .dev.vars");
    console.log("Ctrl-C stops the database.");
    listenToKeys({ q: () => void stop(0) });
    return;
  }

  await startWorker(options, vars);
  signal.throwIfAborted();
  const base = `http://${HOST}:${options.port}`;
  console.log(`Worker    ${base}`);
  console.log(`dashboard ${base}/  (log in with ${vars.PGCLAIM_OPERATE_SECRET})`);
  console.log(`
enqueue:  curl -X POST ${base}/api/jobs -H 'authorization: Bearer ${vars.PGCLAIM_ENQUEUE_SECRET}' \\
            -H 'content-type: application/json' \\
            -d '{"kind":"report.transaction","payload":{"transactionId":"t-1","account":"a-1","amount":"9.95"}}'
trigger:  curl -X POST ${base}/api/trigger -H 'authorization: Bearer ${vars.PGCLAIM_TRIGGER_SECRET}'
look:     npx pgclaim --env ${path.relative(process.cwd(), VARS_FILE)} jobs list      (after npm run build; also doctor, watch, ...)
`);
  startTicking(options, base);
}

function printVars(): Promise<never> {
  const text = fs.existsSync(VARS_FILE) ? fs.readFileSync(VARS_FILE, "utf8") : undefined;
  if (text === undefined) {
    console.error("There is nothing to print before the first start: npm run dev -- --database-only");
    return stop(1, true);
  }
  process.stdout.write(text);
  return stop(0, true);
}

/** The database part of a start: migrations, then what the reference deployment adds for its own jobs. */
async function applySchema(connectionString: string): Promise<void> {
  const client = new pg.Client({ connectionString });
  client.on("error", () => {}); // The query in flight rejects with it.
  try {
    await client.connect();
  } catch (cause) {
    throw new DevError(`The database ${describe(connectionString)} cannot be reached: ${explain(cause)}`);
  }
  try {
    const result = await migrate({ client, onProgress: (line) => console.log(`schema    ${line}`) });
    console.log(`schema    pgclaim, version ${result.to}`);
    const own = path.join(ROOT, "worker", "schema.sql");
    if (fs.existsSync(own)) await client.query(fs.readFileSync(own, "utf8"));
  } catch (error) {
    const changed = error instanceof Error && "code" in error && error.code === "PGCLAIM_MIGRATION_CHANGED";
    const remedy =
      changed && !process.env.DATABASE_URL ? "\nTo begin anew with an empty database: npm run dev -- --reset" : "";
    throw new DevError(`${explain(error)}${remedy}`);
  } finally {
    await client.end().catch(() => {});
  }
}

/** Runs wrangler dev in a process group of its own and resolves when it serves. */
async function startWorker(options: Options, vars: Vars): Promise<void> {
  const wrangler = path.join(ROOT, "node_modules", "wrangler", "bin", "wrangler.js");
  const args = [wrangler, "dev", "--config", options.config, "--env-file", VARS_FILE, "--ip", HOST];
  args.push("--port", String(options.port), "--inspector-port", "0");
  args.push("--test-scheduled", "--show-interactive-dev-session=false");
  const child = spawn(process.execPath, args, {
    cwd: ROOT,
    detached: true,
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, ...vars, ...WRANGLER_ENV },
  });
  const { pid } = child;
  if (pid === undefined) throw new DevError("wrangler could not be started. Run npm ci.");
  const callOff = deathwatch({ pid, group: true, signal: "TERM" });
  const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  closers.push(async () => {
    await endGroup(pid, exited);
    callOff();
  });

  let ready = false;
  const early: string[] = [];
  const served = new Promise<void>((resolve) => {
    const onLine = (line: string) => {
      if (!ready) early.push(line);
      else show(line);
      if (/Ready on /.test(line)) {
        ready = true;
        resolve();
      }
    };
    createInterface({ input: child.stdout }).on("line", onLine);
    createInterface({ input: child.stderr }).on("line", onLine);
  });
  const aborted = new Promise<void>((resolve) => {
    stopping.signal.addEventListener("abort", () => resolve(), { once: true });
  });
  await Promise.race([served, exited, aborted]);
  if (stopping.signal.aborted) return;
  if (!ready) {
    // When the build fails, wrangler adds hundreds of lines about its own objects to what the compiler says.
    const said = early.filter((line) => /\[custom build\]|ERROR/.test(line));
    throw new DevError(`wrangler dev ended before it served:\n${(said.length > 0 ? said : early).join("\n")}`);
  }
  for (const line of early) if (/warning|error/i.test(line)) console.log(line);
  void exited.then(() => {
    if (stopping.signal.aborted) return;
    console.error("wrangler dev has ended by itself.");
    void stop(1);
  });
}

/** Passes on what the Worker logs; an invocation's own line, which is long, in short unless something went wrong. */
function show(line: string): void {
  // wrangler's own notes on the calls we make ourselves would be half the output.
  if (line.trim() === "" || /\[wrangler:info\] GET \/cdn-cgi\/local\/scheduled/.test(line)) return;
  if (!line.startsWith('{"level":"info","event":"pgclaim.invocation"')) {
    console.log(line);
    return;
  }
  const report: InvocationReport = JSON.parse(line);
  const { claimed, done, retried, roundTrips, totalMs } = report;
  const counts = `claimed ${claimed}, done ${done}${retried > 0 ? `, retried ${retried}` : ""}`;
  const trips = `${roundTrips.session}+${roundTrips.oneShot} round trips`;
  console.log(
    `${clockTime(Date.parse(report.startedAt))} ${report.trigger}: ${report.ended}, ${counts}, ${trips}, ${totalMs} ms`,
  );
}

function startTicking(options: Options, base: string): void {
  const cron = cronOf(options.config);
  const tick = async (due: number) => {
    const query = new URLSearchParams({ cron, time: String(due), format: "json" });
    // A tick that went well has logged its own line.
    const say = (text: string) => console.error(`${clockTime(due)} tick ${text}`);
    try {
      const response = await fetch(`${base}/cdn-cgi/local/scheduled?${query}`, { signal: stopping.signal });
      const text = await response.text();
      if (!response.ok || !text.includes('"ok"')) say(`failed: HTTP ${response.status} ${text.slice(0, 200)}`);
    } catch (error) {
      if (!stopping.signal.aborted) say(`failed: ${explain(error)}`);
    }
  };

  let timer: NodeJS.Timeout | undefined;
  let due = 0;
  const { tickMs } = options;
  const plan = () => {
    if (tickMs === "none") return;
    // On the whole minute (or multiple of the tick length), as the platform does it.
    due = (Math.floor(Date.now() / tickMs) + 1) * tickMs;
    timer = setTimeout(() => {
      void tick(due);
      plan();
    }, due - Date.now());
  };
  plan();
  closers.push(() => clearTimeout(timer));
  const keys = listenToKeys({ t: () => void tick(Date.now()), q: () => void stop(0) });
  const now = keys ? "press t to tick now, q to stop" : "Ctrl-C stops";
  const next = tickMs === "none" ? "only when asked" : `next tick in ${Math.ceil((due - Date.now()) / 1000)} s`;
  console.log(`cron is simulated here: ${next}, ${now}`);
}

/** Reacts to single keys on a terminal; false where there is none. */
function listenToKeys(keys: Record<string, () => void>): boolean {
  const { stdin } = process;
  if (!stdin.isTTY) return false;
  stdin.setRawMode(true);
  stdin.resume();
  stdin.on("data", (data) => {
    const key = data.toString();
    // In raw mode the terminal sends Ctrl-C as a character, not as a signal.
    if (key === "\u0003") void stop(0);
    else keys[key]?.();
  });
  closers.push(() => {
    stdin.setRawMode(false);
    stdin.pause();
  });
  return true;
}

let stopped: Promise<never> | undefined;

/** Ends everything that was started, newest first, and this process. `now`: called by the start itself. */
function stop(exitCode: number, now = false): Promise<never> {
  stopped ??= (async () => {
    stopping.abort();
    if (!now) await starting.catch(() => {}); // What is just starting must be in the list before it is walked.
    for (const close of closers.reverse()) {
      try {
        await close();
      } catch (error) {
        console.error(`while stopping: ${explain(error)}`);
      }
    }
    process.exit(exitCode);
  })();
  return stopped;
}

async function endGroup(pid: number, exited: Promise<void>): Promise<void> {
  const signalGroup = (signal: NodeJS.Signals) => {
    try {
      process.kill(-pid, signal);
    } catch {
      // The group is empty, which is what is wanted.
    }
  };
  signalGroup("SIGTERM");
  const timer = setTimeout(signalGroup, STOP_LIMIT_MS, "SIGKILL");
  await exited;
  clearTimeout(timer);
  // wrangler may end before workerd, whose end nobody tells us; it keeps nothing that an abrupt end could spoil.
  signalGroup("SIGKILL");
}

/** npm does not pass signals on: when it is killed we are an orphan, and nobody else would stop us. */
function watchParent(): void {
  const parent = process.ppid;
  setInterval(() => {
    if (process.ppid !== parent) void stop(0);
  }, 500).unref();
}

function readOptions(): Options | undefined {
  try {
    const { values } = parseArgs({
      options: {
        port: { type: "string" },
        tick: { type: "string", default: "1m" },
        config: { type: "string", default: "wrangler.toml" },
        "database-only": { type: "boolean", default: false },
        "print-vars": { type: "boolean", default: false },
        reset: { type: "boolean", default: false },
        help: { type: "boolean", short: "h", default: false },
      },
    });
    if (values.help) {
      console.log(HELP);
      return undefined;
    }
    const port = Number(values.port ?? DEFAULT_PORT);
    if (!Number.isInteger(port) || port < 1 || port > 65_535) {
      throw new Error(`--port takes a number from 1 to 65535, not "${values.port}".`);
    }
    return {
      port,
      tickMs: parseTick(values.tick),
      config: path.resolve(ROOT, values.config),
      databaseOnly: values["database-only"],
      printVars: values["print-vars"],
      reset: values.reset,
    };
  } catch (error) {
    console.error(`${explain(error)}\n\n${HELP}`);
    process.exitCode = 2;
    return undefined;
  }
}

function parseTick(text: string): number | "none" {
  if (text === "none") return text;
  const [, count, unit] = /^([1-9]\d{0,4})(s|m)$/.exec(text) ?? [];
  if (count === undefined) throw new Error(`--tick takes a length like 10s or 1m, or "none", not "${text}".`);
  return Number(count) * (unit === "m" ? 60_000 : 1_000);
}

/** The cron expression the Worker is told woke it: the first one configured. */
function cronOf(config: string): string {
  return /^\s*crons\s*=\s*\[\s*["']([^"']+)["']/m.exec(fs.readFileSync(config, "utf8"))?.[1] ?? "* * * * *";
}

async function assertFree(port: number): Promise<void> {
  if (await isFree(port)) return;
  throw new DevError(`Port ${port} on ${HOST} is busy. Choose another: npm run dev -- --port ${port + 1}`);
}

async function isFree(port: number): Promise<boolean> {
  const probe = net.createServer();
  return new Promise((resolve) => {
    probe.once("error", () => resolve(false));
    probe.listen(port, HOST, () => probe.close(() => resolve(true)));
  });
}

/** The ports of Postgres, bridge and authority stay the same from run to run, so that .dev.vars keeps its worth. */
async function chosenPorts(): Promise<{ postgres: number; bridge: number; authority: number }> {
  const known = readJson(PORTS_FILE);
  const keepOrDraw = async (port: string | undefined) =>
    port !== undefined && (await isFree(Number(port))) ? Number(port) : freePort();
  return {
    postgres: await keepOrDraw(known.postgres),
    bridge: await keepOrDraw(known.bridge),
    authority: await keepOrDraw(known.authority),
  };
}

/** Given ones win; the others are drawn once and kept, so that a pasted curl works tomorrow as well. */
function secrets(): Vars {
  const file = path.join(STATE_DIR, "dev-secrets.json");
  const kept = readJson(file);
  const given = devVars();
  const all: Vars = {};
  for (const name of SECRETS) {
    kept[name] ??= randomBytes(24).toString("base64url");
    all[name] = process.env[name] || given[name] || kept[name];
  }
  writePrivate(file, `${JSON.stringify(kept, null, 2)}\n`);
  return all;
}

function devVars(): Vars {
  const file = path.join(ROOT, ".dev.vars");
  const vars: Vars = {};
  if (!fs.existsSync(file)) return vars;
  for (const [name, value] of Object.entries(parseEnv(fs.readFileSync(file, "utf8")))) {
    if (value !== undefined) vars[name] = value;
  }
  return vars;
}

function readJson(file: string): Vars {
  if (!fs.existsSync(file)) return {};
  const content: unknown = JSON.parse(fs.readFileSync(file, "utf8"));
  if (typeof content !== "object" || content === null) return {};
  return Object.fromEntries(Object.entries(content).map(([name, value]) => [name, String(value)]));
}

function asEnvFile(vars: Vars): string {
  // Single quotes are taken literally; a value with one of its own needs the other sort.
  const quoted = (value: string) => (value.includes("'") ? JSON.stringify(value) : `'${value}'`);
  return Object.entries(vars)
    .map(([name, value]) => `${name}=${quoted(value)}\n`)
    .join("");
}

function writePrivate(file: string, text: string): void {
  fs.writeFileSync(file, text, { mode: 0o600 });
}

function resetDatabase(): void {
  const link = fs.lstatSync(POSTGRES_DIR, { throwIfNoEntry: false });
  if (link === undefined) return;
  const pid = Number(readFirstLine(path.join(POSTGRES_DIR, "data", "postmaster.pid")) ?? 0);
  if (pid > 0 && isAlive(pid)) {
    throw new DevError(`The embedded Postgres still runs as process ${pid}. End the command that started it first.`);
  }
  fs.rmSync(fs.realpathSync(POSTGRES_DIR), { recursive: true, force: true });
  fs.rmSync(POSTGRES_DIR, { force: true, recursive: true });
}

function readFirstLine(file: string): string | undefined {
  return fs.existsSync(file) ? fs.readFileSync(file, "utf8").split("\n", 1)[0] : undefined;
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** The connection string without its password. */
function describe(connectionString: string): string {
  const url = new URL(connectionString);
  return `${decodeURIComponent(url.username)}@${url.host}${url.pathname}`;
}

function clockTime(instant: number): string {
  return new Date(instant).toTimeString().slice(0, 8);
}

/** A refused connection to a name with several addresses is an AggregateError without a message. */
function explain(error: unknown): string {
  if (error instanceof AggregateError) return error.errors.map(explain).join("; ");
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error && error.message === "fetch failed" ? explain(error.cause) : error.message;
}

await main();
