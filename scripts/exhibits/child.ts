// A process of its own for what may end its process: it takes the job of kind or queue "exhibit" and stands on it, or fails
// with a message that cannot be stored. It says "standing" once its handler runs, and ends when it is killed.

import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import { pgDatabase } from "../../src/adapters/node.ts";
import { createClaimer, defineJob } from "../../src/index.ts";
import { loadPeers } from "./peers.ts";
import { ownPool } from "./systems.ts";

export const UNSTORABLE = "bad byte: \0";

export interface ChildArguments {
  readonly system: "pgclaim" | "pg-boss" | "graphile";
  readonly url: string;
  /** Where one-shots of pgclaim go, if not there. */
  readonly oneShotUrl?: string;
  readonly folder?: string | undefined;
  /** `stand`: never ends. `fail`: fails where the payload says `bad`. */
  readonly act: "stand" | "fail";
}

export interface Child {
  /** Resolves when its handler runs. */
  readonly standing: Promise<void>;
  /** How it ended: a code or a signal. */
  readonly ended: Promise<string>;
  kill(): void;
}

export function startChild(argument: ChildArguments): Child {
  const child = spawn(process.execPath, [fileURLToPath(import.meta.url), JSON.stringify(argument)], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  const kill = () => void child.kill("SIGKILL");
  process.once("exit", kill);
  let said = "";
  const ended = new Promise<string>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code, signal) => {
      process.removeListener("exit", kill);
      resolve(signal ?? `exit code ${code}`);
    });
  });
  const standing = new Promise<void>((resolve, reject) => {
    child.stderr.on("data", (bytes: Buffer) => {
      said += bytes.toString();
    });
    child.stdout.on("data", (bytes: Buffer) => {
      if (bytes.toString().includes("standing")) resolve();
    });
    ended.then((how) => reject(new Error(`the child ended with ${how}: ${said}`)), reject);
  });
  standing.catch(() => {}); // told to whoever waits for it
  return { standing, ended, kill };
}

async function handle(payload: unknown, how: ChildArguments["act"]): Promise<void> {
  process.stdout.write("standing\n");
  if (how === "stand") await new Promise(() => {});
  if ((payload as { bad?: boolean }).bad === true) throw new Error(UNSTORABLE);
}

async function work({ system, url, oneShotUrl, folder, act }: ChildArguments): Promise<void> {
  // What keeps the process, however quiet its sockets are.
  setInterval(() => {}, 60_000);
  if (system === "pgclaim") {
    const job = defineJob({ kind: "exhibit", payload: z.any(), run: ({ payload }) => handle(payload, act) });
    const database = pgDatabase(url, oneShotUrl === undefined ? {} : { oneShotConnectionString: oneShotUrl });
    await createClaimer({ jobs: [job], database, log: () => {} }).invoke({ type: "manual" });
    return;
  }
  const { boss, graphile } = await loadPeers(folder ?? "");
  if (system === "pg-boss") {
    const one = new boss.PgBoss({ connectionString: url, schedule: false });
    one.on("error", () => {});
    await one.start();
    await one.work("exhibit", { pollingIntervalSeconds: 0.5 }, ([job]) => handle(job?.data, act));
    return;
  }
  await graphile.module.run({
    pgPool: ownPool(url),
    logger: graphile.logger,
    concurrency: 1,
    pollInterval: 100,
    taskList: { exhibit: (payload) => handle(payload, act) },
  });
}

if (import.meta.main) await work(JSON.parse(process.argv[2] ?? "") as ChildArguments);
