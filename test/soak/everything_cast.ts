// Who works in the soak of everything, and is killed in it: Node processes over pg and over the serverless driver, a workerd
// with several isolates, and the HTTP server all handlers call. Whoever dies is started again until the soak is over.

import { spawn } from "node:child_process";
import http from "node:http";
import type { AddressInfo } from "node:net";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { bundleWorker } from "../../scripts/world/worker_bundle.ts";
import { startWorkerd, type Workerd } from "../../scripts/world/workerd.ts";
import { type Call, invocationBoundMs, type Order, type Told } from "./everything_jobs.ts";
import type { ProcessArguments } from "./everything_process.ts";

/** Counts what happened, and collects what must not. */
export interface Tally {
  count(what: string, by?: number): void;
  fault(what: string): void;
}

/** Somebody who works, dies and is replaced. */
export interface Actor {
  readonly instance: string;
  /** SIGKILL to the process of now. */
  kill(): void;
  /** Lets what is under way end and starts nothing any more. */
  stop(): Promise<void>;
}

export function hear(told: Told, tally: Tally): void {
  tally.count("invocations");
  tally.count("jobs claimed", told.claimed);
  tally.count("crashes found", told.crashed);
  for (const fate of told.fates) if (fate !== "empty") tally.count(`ticks ${fate}`);
  if (told.ms > invocationBoundMs) tally.fault(`an invocation took ${told.ms} ms`);
  if (told.code === undefined) return;
  tally.count(`invocations ended by ${told.code}`);
  if (!/^PGCLAIM_/.test(told.code) || told.code === "PGCLAIM_INTERNAL")
    tally.fault(`an invocation ended by ${told.code}`);
}

/** A Node process that is started again whenever it was killed. */
export function startActor(args: ProcessArguments, tally: Tally): Actor {
  const file = fileURLToPath(new URL("./everything_process.ts", import.meta.url));
  let child = spawnOne();
  let stopping = false;
  const over = (async () => {
    for (;;) {
      const { code, signal, said } = await child.ended;
      if (signal === "SIGKILL") tally.count("Node processes killed");
      else if (code !== 0 || !stopping) tally.fault(`a process ended with ${code ?? signal}: ${said}`);
      if (stopping) return;
      child = spawnOne();
    }
  })();
  function spawnOne() {
    const one = spawn(process.execPath, [file, JSON.stringify(args)], { stdio: ["pipe", "pipe", "pipe"] });
    let said = "";
    one.stdin.on("error", () => {}); // it may be dead already
    one.stderr.on("data", (bytes: Buffer) => {
      said += bytes.toString();
    });
    createInterface({ input: one.stdout }).on("line", (line) => hear(JSON.parse(line) as Told, tally));
    const ended = new Promise<{ code: number | null; signal: string | null; said: string }>((resolve) => {
      one.once("error", (error) => resolve({ code: -1, signal: null, said: String(error) }));
      one.once("close", (code, signal) => resolve({ code, signal, said }));
    });
    return { one, ended };
  }
  return {
    instance: args.instance,
    kill: () => void child.one.kill("SIGKILL"),
    async stop() {
      stopping = true;
      child.one.stdin.end();
      const hung = setTimeout(() => {
        tally.fault(`process ${args.instance} does not end`);
        child.one.kill("SIGKILL");
      }, invocationBoundMs);
      await over;
      clearTimeout(hung);
    },
  };
}

/** A workerd process whose isolates are triggered one invocation after another. */
export async function startWorkerActor(
  options: { readonly url: string; readonly bridge: string; readonly outside: string; readonly instance: string },
  isolates: number,
  tally: Tally,
): Promise<Actor> {
  const { code } = await bundleWorker({
    entry: path.join(import.meta.dirname, "everything_worker.ts"),
    buildLibrary: false,
  });
  const bindings = {
    DATABASE_URL: options.url,
    PGCLAIM_LOCAL_BRIDGE: options.bridge,
    OUTSIDE: options.outside,
    INSTANCE: options.instance,
  };
  let stopping = false;
  let current: Workerd | null = null;
  const over = (async () => {
    while (!stopping) {
      const workerd = await startWorkerd({
        code,
        bindings,
        workers: isolates,
        onLog: ({ message }) => logged(message),
      });
      current = workerd;
      await Promise.all(Array.from({ length: isolates }, (_, i) => trigger(workerd, i)));
      if (!stopping) tally.count("workerd killed");
      await workerd.stop();
    }
  })();
  function logged(message: string): void {
    if (message.includes("unhandled")) tally.fault(`workerd: ${message}`);
    if (!message.includes('"pgclaim.invocation"')) return;
    const line = JSON.parse(message);
    hear(
      {
        claimed: line.claimed,
        done: line.done,
        crashed: line.crashed,
        ms: line.totalMs,
        fates: line.ticks.map(({ fate }: { fate: string }) => fate),
        ...(line.error === undefined ? {} : { code: line.error.code }),
      },
      tally,
    );
  }
  async function trigger(workerd: Workerd, isolate: number): Promise<void> {
    let gone = false;
    void workerd.exited.then(() => {
      gone = true;
    });
    while (!stopping && !gone) {
      const startedAt = performance.now();
      await workerd.scheduled({}, isolate).catch(() => {}); // what was wrong is in its log
      const ms = performance.now() - startedAt;
      if (ms > invocationBoundMs) tally.fault(`a scheduled() took ${Math.round(ms)} ms`);
      await new Promise((resolve) => setTimeout(resolve, 30 + Math.random() * 60));
    }
  }
  return {
    instance: options.instance,
    kill: () => void current?.kill().catch(() => {}),
    async stop() {
      stopping = true;
      await over;
    },
  };
}

export interface Authority {
  readonly url: string;
  /** Handlers that have started. */
  readonly starts: { readonly count: number };
  close(): Promise<void>;
}

/** Hears of every start, and says what a handler does. A number granted twice shows here, whatever the database says. */
export async function startAuthority(
  draw: () => number,
  onPoison: (instance: string) => void,
  tally: Tally,
): Promise<Authority> {
  const tokens = new Set<string>();
  const keys = new Map<string, string>();
  let calm = false;
  const server = http.createServer(async (request, response) => {
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of request) chunks.push(chunk as Buffer);
    } catch {
      return; // its sender was killed
    }
    const { instance, kind, jobId, attempt, key } = JSON.parse(Buffer.concat(chunks).toString("utf8")) as Call;
    const token = `${jobId} ${attempt}`;
    if (tokens.has(token)) tally.fault(`attempt ${attempt} of job ${jobId} (${kind}) was started twice`);
    tokens.add(token);
    if ((keys.get(jobId) ?? key) !== key) tally.fault(`job ${jobId} (${kind}) came with two idempotency keys`);
    keys.set(jobId, key);
    if (kind === "soak.poison") {
      tally.count("processes ended by poison");
      return onPoison(instance);
    }
    const order = calm ? "ok" : orderOf(draw());
    if (order !== "ok") tally.count(`handlers told: ${order}`);
    setTimeout(() => response.end(order), draw() * 15);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    get starts() {
      return { count: tokens.size };
    },
    close: () =>
      new Promise((resolve) => {
        calm = true;
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

function orderOf(drawn: number): Order {
  if (drawn < 0.03) return "throw";
  if (drawn < 0.06) return "throw-late";
  if (drawn < 0.09) return "snooze";
  if (drawn < 0.1) return "slow";
  if (drawn < 0.103) return "deaf";
  return "ok";
}
