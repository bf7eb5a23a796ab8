// Runs a bundled Worker in a workerd process of its own, by Miniflare's API. It can kill exactly that process, and what
// was under way in it fails at once instead of hanging. It must never leave a process behind.

import type { ChildProcess } from "node:child_process";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { Miniflare } from "miniflare";
import { deathwatch } from "./deathwatch.ts";

/**
 * As in wrangler.toml, unless PGCLAIM_COMPATIBILITY_DATE says otherwise: before 2026-03-17 a binary WebSocket message arrives as
 * an ArrayBuffer, since then as a Blob, and the driver's connection depends on it.
 */
export const usualCompatibilityDate = process.env.PGCLAIM_COMPATIBILITY_DATE ?? "2026-11-01";

export type WorkerdOptions = {
  /** The Worker as one ES module: `(await bundleWorker()).code`. */
  code: string;
  /** Variables and secrets. */
  bindings: Readonly<Record<string, string>>;
  /** Independent Workers (isolates) with the same code in this one process. Default 1. */
  workers?: number;
  /** Default: {@link usualCompatibilityDate}. */
  compatibilityDate?: string;
  /** Gets each line the Workers log and what workerd itself says. Default: dropped. */
  onLog?: (line: WorkerdLog) => void;
};

export type WorkerdLog = { readonly level: string; readonly message: string };

export type FetchInit = {
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array;
  /** Default: followed, as fetch does. */
  readonly redirect?: "follow" | "manual";
};

/** A whole answer: the body has been read. */
export type FetchAnswer = {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  /** Parses `text`. */
  json<T = unknown>(): T;
};

export type ScheduledOptions = {
  readonly cron?: string;
  readonly scheduledTime?: Date;
};

/** One workerd process. */
export type Workerd = {
  readonly pid: number;
  /** Where its first Worker listens, for clients that speak HTTP by hand. */
  readonly url: URL;
  /** Calls a Worker's fetch handler. `worker` counts from 0. Rejects if the process ends before the answer. */
  fetch(path: string, init?: FetchInit, worker?: number): Promise<FetchAnswer>;
  /** Calls a Worker's scheduled handler as a cron trigger does. Rejects if the process ends before it. */
  scheduled(options?: ScheduledOptions, worker?: number): Promise<{ outcome: string }>;
  /** SIGKILL to this process and to no other. Resolves when it is gone. */
  kill(): Promise<void>;
  /** Ends the process. May be called twice, and after `kill`. */
  stop(): Promise<void>;
  /** Resolves when the process has ended, in whatever way. */
  readonly exited: Promise<void>;
};

/** One start after another: a start knows its child by being the only one that makes one. */
let lastStart: Promise<unknown> = Promise.resolve();

/** Starts a workerd process and resolves once its Workers serve. */
export function startWorkerd(options: WorkerdOptions): Promise<Workerd> {
  const started = lastStart.then(() => start(options));
  lastStart = started.catch(() => {});
  return started;
}

async function start(options: WorkerdOptions): Promise<Workerd> {
  const { code, bindings, workers = 1, compatibilityDate = usualCompatibilityDate, onLog } = options;
  const env = Object.fromEntries(
    Object.entries(bindings).map(([name, value]) => [name, { type: "text" as const, value }]),
  );
  const children: ChildProcess[] = [];
  const onChild = (message: unknown) => {
    children.push((message as { process: ChildProcess }).process);
  };
  // Miniflare does not tell the process it starts, and looking for one by name could find somebody else's.
  subscribe("child_process", onChild);
  const handled = signals.map((signal) => process.listeners(signal));
  let miniflare: Miniflare | undefined;
  let child: ChildProcess | undefined;
  let url: URL;
  try {
    miniflare = new Miniflare({
      cf: false,
      telemetry: { enabled: false },
      handleStructuredLogs: ({ level, message }) => onLog?.({ level, message }),
      workers: Array.from({ length: workers }, (_, i) => ({
        config: {
          name: workerName(i),
          compatibilityDate,
          manifest: { mainModule: "index.js", modules: { "index.js": { type: "esm" as const, contents: code } } },
          env,
        },
      })),
    });
    letOthersHandle(handled);
    url = await miniflare.ready;
    child = children.find(({ spawnfile }) => /workerd/.test(spawnfile ?? ""));
  } catch (error) {
    await miniflare?.dispose().catch(() => {});
    throw error;
  } finally {
    unsubscribe("child_process", onChild);
  }
  if (child?.pid === undefined) {
    await miniflare.dispose();
    throw new Error("Miniflare started no workerd process that could be found.");
  }
  return control(miniflare, child, { pid: child.pid, url });
}

const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

/**
 * Miniflare ends this process at a signal, at once and in the midst of whatever others still have to clean up. Where a
 * script handles a signal itself, Miniflare's listener is taken off; its cleaning up at exit stays.
 */
function letOthersHandle(handled: readonly (readonly NodeJS.SignalsListener[])[]): void {
  for (const [i, signal] of signals.entries()) {
    const others = handled[i] ?? [];
    if (others.length === 0) continue;
    for (const listener of process.listeners(signal)) if (!others.includes(listener)) process.off(signal, listener);
  }
}

function control(
  miniflare: Miniflare,
  child: ChildProcess,
  { pid, url }: { readonly pid: number; readonly url: URL },
): Workerd {
  const callOff = deathwatch({ pid, signal: "TERM" });
  const isAlive = () => child.exitCode === null && child.signalCode === null;
  const exited = new Promise<void>((resolve) => {
    if (isAlive()) child.once("exit", () => resolve());
    else resolve();
  });
  void exited.then(callOff);

  let disposed: Promise<void> | undefined;
  const dispose = () => {
    disposed ??= miniflare.dispose();
    return disposed;
  };

  /** What is under way when the process ends fails then and says so; Miniflare's own errors differ by the moment. */
  const whileAlive = async <T>(work: Promise<T>): Promise<T> => {
    const ended = (cause?: unknown) => {
      throw new Error(`The workerd process ${pid} ended before it answered.`, { cause });
    };
    const failed = work.catch((error: unknown) =>
      disposed === undefined && isAlive() ? Promise.reject(error) : ended(error),
    );
    const first = exited.then(() => ended());
    failed.catch(() => {}); // of the two, the later one is heard by nobody
    first.catch(() => {});
    return Promise.race([failed, first]);
  };

  return {
    pid,
    url,
    exited,
    fetch: (path, init = {}, worker = 0) =>
      whileAlive(
        (async () => {
          const url = new URL(path, "http://worker.test");
          const response =
            worker === 0
              ? await miniflare.dispatchFetch(url.href, { ...init })
              : await (await miniflare.getWorker(workerName(worker))).fetch(url.href, { ...init });
          const text = await response.text();
          const headers = new Headers([...response.headers] as [string, string][]);
          return { status: response.status, headers, text, json: <T>() => JSON.parse(text) as T };
        })(),
      ),
    scheduled: ({ cron = "* * * * *", scheduledTime = new Date() } = {}, worker = 0) =>
      whileAlive(
        (async () => {
          const target = await miniflare.getWorker(workerName(worker));
          const { outcome } = await target.scheduled({ cron, scheduledTime });
          return { outcome };
        })(),
      ),
    async kill() {
      child.kill("SIGKILL");
      // At once, before Miniflare learns of the end: it would start the Worker again in a new process.
      const cleaned = dispose();
      await exited;
      await cleaned;
    },
    async stop() {
      await dispose();
      await exited;
    },
  };
}

function workerName(i: number): string {
  return `worker-${i}`;
}
