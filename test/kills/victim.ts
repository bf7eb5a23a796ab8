// Starts process.ts, hears what starts in it, and kills it.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { onTestFinished } from "vitest";
import { deathwatch } from "../../scripts/world/deathwatch.ts";
import type { InvocationReport } from "../../src/index.ts";
import { endsWithin } from "../support/gate.ts";
import type { TransportName, World } from "../support/world.ts";
import type { ProcessArguments, Start } from "./process.ts";

export interface Victim {
  readonly pid: number;
  readonly starts: readonly Start[];
  /** Resolves when its starts are what is waited for. Rejects when the process ends before. */
  until(enough: (starts: readonly Start[]) => boolean): Promise<void>;
  /** Its report, or how it died: the signal, or "exit <code>". */
  readonly ended: Promise<InvocationReport | string>;
  /** SIGKILL, and waits for its end. */
  kill(): Promise<void>;
}

export interface VictimOptions {
  readonly budget?: `${number}ms` | `${number}s`;
  /** Megabytes of V8's heap. Default: what Node takes. */
  readonly heapMb?: number;
}

export function startVictim(world: World, transport: TransportName, options: VictimOptions = {}): Victim {
  const argument: ProcessArguments = {
    url: world.url,
    transport,
    bridge: `127.0.0.1:${world.bridge.port}`,
    pipeline: process.env.DATABASE_URL === undefined,
    budget: options.budget ?? "60000ms",
  };
  const child = spawn(
    process.execPath,
    [
      ...(options.heapMb === undefined ? [] : [`--max-old-space-size=${options.heapMb}`]),
      fileURLToPath(new URL("./process.ts", import.meta.url)),
      JSON.stringify(argument),
    ],
    { stdio: ["ignore", "pipe", "pipe"] },
  );
  onTestFinished(() => void child.kill("SIGKILL"));
  // One that blocks its loop would not notice that the test is gone.
  if (child.pid !== undefined) child.once("exit", deathwatch({ pid: child.pid, signal: "TERM" }));
  const starts: Start[] = [];
  const looks = new Set<() => void>();
  let report: InvocationReport | null = null;
  let said = "";
  child.stderr.on("data", (bytes: Buffer) => {
    said += bytes.toString();
  });
  createInterface({ input: child.stdout }).on("line", (line) => {
    const told = JSON.parse(line) as { readonly start?: Start; readonly report?: InvocationReport };
    if (told.start !== undefined) starts.push(told.start);
    if (told.report !== undefined) report = told.report;
    for (const look of looks) look();
  });
  const ended = new Promise<InvocationReport | string>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code, signal) => {
      if (code === 0 && report !== null) resolve(report);
      else if (signal !== null) resolve(signal);
      // An uncaught error is a fault of the test, not a death that was ordered; V8 out of memory aborts by signal.
      else if (code === 1) reject(new Error(`the process ended with 1: ${said}`));
      else resolve(`exit ${code}`);
    });
  });
  ended.catch(() => {});
  return {
    pid: child.pid ?? 0,
    starts,
    ended,
    async until(enough) {
      let look: () => void = () => {};
      const reached = new Promise<void>((resolve) => {
        look = () => {
          if (enough(starts)) resolve();
        };
        looks.add(look);
        look();
      });
      const died = ended.then((end) => {
        throw new Error(`the process ended before its handlers had started: ${JSON.stringify(end)} ${said}`);
      });
      died.catch(() => {});
      await endsWithin(20_000, Promise.race([reached, died]), "the start of handlers");
      looks.delete(look);
    },
    async kill() {
      child.kill("SIGKILL");
      await ended.catch(() => {});
    },
  };
}
