// A process of its own that runs one invocation, for tests in which a process has to die. process.ts starts it: arguments
// as one JSON text, the report as one JSON line on standard output.

import { pgDatabase } from "../../src/adapters/node.ts";
import { createClaimer, defineJob } from "../../src/index.ts";
import { neonDatabase } from "../../src/neon.ts";
import { effect, numbered } from "./kinds.ts";

export interface RunnerArguments {
  readonly url: string;
  readonly transport: "pg" | "neon";
  /** host:port of the bridge. */
  readonly bridge: string;
  readonly batch: number;
  readonly pipeline: boolean;
}

const { url, transport, bridge, batch, pipeline } = JSON.parse(process.argv[2] ?? "") as RunnerArguments;

function die(): void {
  process.kill(process.pid, "SIGKILL");
}

const innocent = defineJob({
  kind: "innocent",
  payload: numbered,
  maxCrashes: 3,
  retry: { minBackoff: "1s" },
  async run({ payload: { n }, tx }) {
    await effect(tx, n);
  },
});
/** Kills its process while it works outside, before anybody's turn. */
const poison = defineJob({ kind: "poison", payload: numbered, maxCrashes: 3, run: die });
/** Kills its process in its own turn, after the effects of others. */
const poisonInTurn = defineJob({
  kind: "poison.in_turn",
  payload: numbered,
  maxCrashes: 3,
  async run({ payload: { n }, tx }) {
    await effect(tx, n);
    die();
  },
});
/** Says that it runs, and then never ends. */
const stands = defineJob({
  kind: "stands",
  payload: numbered,
  async run() {
    process.stdout.write("standing\n");
    await new Promise(() => {});
  },
});

const claimer = createClaimer({
  jobs: [innocent, poison, poisonInTurn, stands],
  batch,
  log: () => {},
  database:
    transport === "pg"
      ? pgDatabase(url)
      : neonDatabase(url, { localBridge: bridge, ...(pipeline ? {} : { pipelineConnect: false as const }) }),
});
process.stdout.write(`${JSON.stringify(await claimer.invoke({ type: "manual" }))}\n`);
