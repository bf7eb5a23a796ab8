// Starts runner.ts as a process, and knows how it ended.

import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { onTestFinished } from "vitest";
import type { InvocationReport } from "../../src/index.ts";
import { type Gate, gate } from "./gate.ts";
import type { RunnerArguments } from "./runner.ts";
import type { TransportName, World } from "./world.ts";

export interface Runner {
  /** Its report, or null when it died without one. */
  readonly ended: Promise<InvocationReport | null>;
  /** Resolves when a handler of kind `stands` runs in it. */
  readonly standing: Promise<void>;
  kill(): void;
}

export function startRunner(world: World, transport: TransportName, { batch = 25, url = world.url } = {}): Runner {
  const argument: RunnerArguments = {
    url,
    transport,
    bridge: `127.0.0.1:${world.bridge.port}`,
    batch,
    pipeline: process.env.DATABASE_URL === undefined,
  };
  const child = spawn(
    process.execPath,
    [fileURLToPath(new URL("./runner.ts", import.meta.url)), JSON.stringify(argument)],
    {
      stdio: ["ignore", "pipe", "pipe"],
    },
  );
  const standing: Gate = gate();
  let out = "";
  let err = "";
  child.stdout.on("data", (bytes: Buffer) => {
    out += bytes.toString();
    if (out.includes("standing\n")) standing.open();
  });
  child.stderr.on("data", (bytes: Buffer) => {
    err += bytes.toString();
  });
  const ended = new Promise<InvocationReport | null>((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => {
      if (signal === "SIGKILL") return resolve(null);
      const line = out.split("\n").find((text) => text.startsWith("{"));
      if (code === 0 && line !== undefined) resolve(JSON.parse(line) as InvocationReport);
      else reject(new Error(`the runner ended with ${code ?? signal}: ${err}${out}`));
    });
  });
  ended.catch(() => {});
  const kill = () => void child.kill("SIGKILL");
  onTestFinished(kill);
  return { ended, standing: standing.promise, kill };
}
