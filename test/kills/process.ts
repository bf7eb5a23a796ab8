// A process that runs one invocation and says what starts in it; started and killed by victim.ts. What its handlers do is in
// the payload, so that one process has a job of every sort.

import * as z from "zod";
import { pgDatabase } from "../../src/adapters/node.ts";
import { createClaimer, defineJob, type JobDefinition } from "../../src/index.ts";
import { neonDatabase } from "../../src/neon.ts";
import { effect } from "../support/kinds.ts";
import type { TransportName } from "../support/world.ts";

/**
 * stand: never ends. fill-heap: allocates until the process dies of it. block: never gives the event loop back.
 * A "harm" is done on every attempt.
 */
export const harms = ["none", "stand", "fill-heap", "block"] as const;
export const victimPayload = z.object({ n: z.number(), harm: z.enum(harms) });
type VictimPayload = z.infer<typeof victimPayload>;

export interface ProcessArguments {
  readonly url: string;
  readonly transport: TransportName;
  /** host:port of the bridge. */
  readonly bridge: string;
  readonly pipeline: boolean;
  readonly budget: `${number}ms` | `${number}s`;
}

export interface Start {
  readonly n: number;
  readonly attempt: number;
}

/** The kind of the victims; `started` is told before anything else happens. */
export function victimKind(started: (start: Start) => void): JobDefinition<typeof victimPayload> {
  return defineJob({
    kind: "victim",
    payload: victimPayload,
    timeout: "1s",
    maxCrashes: 2,
    retry: { backoff: "fixed", minBackoff: "0ms", maxBackoff: "0ms" },
    async run({ payload: { n, harm }, job: { attempt }, tx }) {
      started({ n, attempt });
      // Not before the others of the tick have started too: harm then meets them all in the middle.
      await new Promise((resolve) => setImmediate(resolve));
      await doHarm(harm);
      await effect(tx, n, String(attempt));
    },
  });
}

async function doHarm(harm: VictimPayload["harm"]): Promise<void> {
  switch (harm) {
    case "none":
      return;
    case "stand":
      return new Promise(() => {});
    case "fill-heap": {
      const kept: unknown[] = [];
      for (let i = 0; ; i++) kept.push({ i, text: `${i}`.repeat(20), list: [i, i + 1] });
    }
    case "block":
      for (;;);
    default:
      harm satisfies never;
  }
}

async function main({ url, transport, bridge, pipeline, budget }: ProcessArguments): Promise<void> {
  const claimer = createClaimer({
    jobs: [victimKind((start) => process.stdout.write(`${JSON.stringify({ start })}\n`))],
    concurrency: 10,
    log: () => {},
    limits: { reserve: "300ms", serverGrace: "200ms" },
    database:
      transport === "pg"
        ? pgDatabase(url)
        : neonDatabase(url, { localBridge: bridge, ...(pipeline ? {} : { pipelineConnect: false as const }) }),
  });
  const report = await claimer.invoke({ type: "manual" }, { budget });
  process.stdout.write(`${JSON.stringify({ report })}\n`);
}

if (process.argv[1] === import.meta.filename) await main(JSON.parse(process.argv[2] ?? "") as ProcessArguments);
