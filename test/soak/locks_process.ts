// A process of the lock soak: invocations side by side until it is told to stop. Each handler records, through a connection of
// its own and by the database's clock, from when to when it ran; so who held what is known to somebody who is not pgclaim.

import { createInterface } from "node:readline";
import pg from "pg";
import * as z from "zod";
import { pgDatabase } from "../../src/adapters/node.ts";
import { type AnyJobDefinition, createClaimer, defineJob } from "../../src/index.ts";

export interface SoakArguments {
  readonly url: string;
  readonly invocations: number;
  readonly batch: number;
  readonly tickSlots: number | "none";
  readonly reserveAfter: `${number}ms`;
  /** Handlers stay up to this long. */
  readonly stayMs: number;
}

/** Exclusive and shared names of each kind: sets of two to five. */
export const shapes = [
  [2, 0],
  [1, 1],
  [0, 2],
  [3, 0],
  [2, 1],
  [1, 2],
  [4, 0],
  [2, 2],
  [5, 0],
  [3, 2],
] as const;

const letters = ["a", "b", "c", "d", "e"] as const;
const names = z.object({ a: z.string(), b: z.string(), c: z.string(), d: z.string(), e: z.string() });
export const payload = z.object({ n: z.number(), own: names, shared: names });

export const kindOf = ([own, shared]: readonly [number, number]): string => `locks.${own}.${shared}`;

export function soakJobs(
  run: (n: number, own: readonly string[], shared: readonly string[]) => Promise<void>,
): AnyJobDefinition[] {
  return shapes.map(([own, shared]) => {
    const take = (of: z.infer<typeof names>, count: number) => letters.slice(0, count).map((letter) => of[letter]);
    return defineJob({
      kind: kindOf([own, shared]),
      payload,
      timeout: "10s",
      locks: letters.slice(0, own).map((letter) => `{own.${letter}}` as const),
      sharedLocks: letters.slice(0, shared).map((letter) => `{shared.${letter}}` as const),
      run: ({ payload: { n, own: mine, shared: theirs } }) => run(n, take(mine, own), take(theirs, shared)),
    });
  });
}

async function main(args: SoakArguments): Promise<void> {
  const pool = new pg.Pool({ connectionString: args.url, max: 3 });
  pool.on("error", () => {});
  const jobs = soakJobs(async (n, own, shared) => {
    const { rows } = await pool.query<{ id: string }>(
      "insert into stay (n, own, shared, began_at) values ($1, $2, $3, clock_timestamp()) returning id",
      [n, own, shared],
    );
    // The work: a call somewhere else.
    await new Promise((resolve) => setTimeout(resolve, Math.random() * args.stayMs));
    await pool.query("update stay set ended_at = clock_timestamp() where id = $1", [rows[0]?.id]);
  });
  const claimer = createClaimer({
    jobs,
    database: pgDatabase(args.url),
    batch: args.batch,
    concurrency: args.batch,
    tickSlots: args.tickSlots,
    limits: { reserveAfter: args.reserveAfter },
    log: () => {},
  });
  let over = false;
  createInterface({ input: process.stdin }).on("close", () => {
    over = true;
  });
  const counts = { invocations: 0, ticks: 0, done: 0, skipped: {} as Record<string, number>, errors: [] as string[] };
  process.stdout.write("ready\n");
  await Promise.all(
    Array.from({ length: args.invocations }, async () => {
      while (!over) {
        const report = await claimer.invoke({ type: "manual" }, { budget: "20s" });
        counts.invocations++;
        counts.ticks += report.ticks.length;
        counts.done += report.done;
        for (const [reason, n] of Object.entries(report.skipped))
          counts.skipped[reason] = (counts.skipped[reason] ?? 0) + n;
        if (report.error !== undefined) counts.errors.push(report.error.message);
        for (const { step, sqlstate } of report.faults) counts.errors.push(`wake: ${step} ${sqlstate}`);
      }
    }),
  );
  await pool.end();
  process.stdout.write(`${JSON.stringify(counts)}\n`);
}

if (process.argv[1] === import.meta.filename) await main(JSON.parse(process.argv[2] ?? "") as SoakArguments);
