// A process of the soak of everything: invocations side by side until its standard input ends, each told in a line.

import { setTimeout as pause } from "node:timers/promises";
import { pgDatabase } from "../../src/adapters/node.ts";
import { createClaimer } from "../../src/index.ts";
import { neonDatabase } from "../../src/neon.ts";
import { everythingJobs, type JobsEnv, soakOptions, type Told } from "./everything_jobs.ts";

export interface ProcessArguments extends JobsEnv {
  readonly url: string;
  /** host:port of the bridge, or null for pg. */
  readonly bridge: string | null;
  readonly invocations: number;
}

const { url, bridge, invocations, ...env } = JSON.parse(process.argv[2] ?? "") as ProcessArguments;
const claimer = createClaimer({
  ...soakOptions,
  jobs: everythingJobs(env),
  log: () => {},
  database: bridge === null ? pgDatabase(url) : neonDatabase(url, { localBridge: bridge }),
});
let over = false;
process.stdin.resume();
process.stdin.once("end", () => {
  over = true;
});
await Promise.all(
  Array.from({ length: invocations }, async () => {
    while (!over) {
      const { claimed, done, crashed, totalMs, ticks, error } = await claimer.invoke(
        { type: "manual" },
        { budget: "8s" },
      );
      const told: Told = {
        claimed,
        done,
        crashed,
        ms: totalMs,
        fates: ticks.map(({ fate }) => fate),
        ...(error === undefined ? {} : { code: error.code }),
      };
      process.stdout.write(`${JSON.stringify(told)}\n`);
      if (claimed === 0) await pause(20 + Math.random() * 60);
    }
  }),
);
process.exit(0);
