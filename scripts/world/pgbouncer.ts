// A PgBouncer in transaction mode in front of a Postgres server, for tests. It comes from the system's packages.

import { execFileSync, spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { freePort } from "./postgres.ts";

const START_LIMIT_MS = 15_000;

export type PgBouncerOptions = {
  /** The server behind it, by a URL with user and password. */
  target: string;
  /** Server connections of each pool. There is one pool for each database name a client asks for. */
  poolSize: number;
  /**
   * target: pools named session and oneshot, both onto the target's database. server: a pool for every database of the
   * target's server, by its own name. Default: target.
   */
  databases?: "target" | "server";
};

export type PgBouncer = {
  /** TCP port on 127.0.0.1. */
  readonly port: number;
  /** A URL for clients. Each `pool` name is a pool of its own. */
  url(pool: string): string;
  stop(): Promise<void>;
};

/** Where PgBouncer is installed, or null. */
export function findPgBouncer(): string | null {
  return ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"].find(fs.existsSync) ?? null;
}

/** Starts PgBouncer and resolves once it listens. Errors: where it is not installed. */
export async function startPgBouncer(options: PgBouncerOptions): Promise<PgBouncer> {
  const program = findPgBouncer();
  if (program === null) throw new Error("PgBouncer is not installed; on Debian: apt-get install pgbouncer.");
  const target = new URL(options.target);
  const user = decodeURIComponent(target.username);
  const password = decodeURIComponent(target.password);
  const port = await freePort();
  const home = fs.mkdtempSync(path.join(fs.realpathSync(os.tmpdir()), "pgclaim-pgbouncer-"));
  const server = `host=${target.hostname} port=${target.port || 5432}`;
  const pool = (name: string) => `${name} = ${server} dbname=${target.pathname.slice(1)}`;
  fs.writeFileSync(path.join(home, "users.txt"), `"${user}" "${password}"\n`);
  fs.writeFileSync(
    path.join(home, "pgbouncer.ini"),
    [
      "[databases]",
      ...(options.databases === "server" ? [`* = ${server}`] : [pool("session"), pool("oneshot")]),
      "[pgbouncer]",
      "listen_addr = 127.0.0.1",
      `listen_port = ${port}`,
      "unix_socket_dir =",
      "auth_type = plain",
      `auth_file = ${path.join(home, "users.txt")}`,
      "pool_mode = transaction",
      `default_pool_size = ${options.poolSize}`,
      "max_client_conn = 500",
      "query_wait_timeout = 30",
    ].join("\n"),
  );
  const ids = unprivileged();
  for (const file of ["", "users.txt", "pgbouncer.ini"]) {
    if (ids.uid !== undefined && ids.gid !== undefined) fs.chownSync(path.join(home, file), ids.uid, ids.gid);
  }
  const child = spawn(program, [path.join(home, "pgbouncer.ini")], {
    ...ids,
    cwd: "/",
    stdio: ["ignore", "ignore", "pipe"],
  });
  const onExit = () => child.kill("SIGKILL");
  process.once("exit", onExit);
  const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  await new Promise<void>((resolve, reject) => {
    const said: string[] = [];
    const limit = setTimeout(() => reject(new Error(`PgBouncer did not start:\n${said.join("\n")}`)), START_LIMIT_MS);
    child.once("error", reject);
    child.once("exit", () => reject(new Error(`PgBouncer ended at once:\n${said.join("\n")}`)));
    createInterface({ input: child.stderr }).on("line", (line) => {
      said.push(line);
      if (!/process up/.test(line)) return;
      clearTimeout(limit);
      resolve();
    });
  });
  return {
    port,
    url: (name) => `postgresql://${encodeURIComponent(user)}:${encodeURIComponent(password)}@127.0.0.1:${port}/${name}`,
    async stop() {
      process.removeListener("exit", onExit);
      child.kill("SIGINT");
      await exited;
      fs.rmSync(home, { recursive: true, force: true });
    },
  };
}

/** PgBouncer refuses to run as root. */
function unprivileged(): { uid?: number; gid?: number } {
  if (process.getuid?.() !== 0) return {};
  const id = (flag: string) => Number(execFileSync("id", [flag, "nobody"], { encoding: "utf8" }).trim());
  return { uid: id("-u"), gid: id("-g") };
}
