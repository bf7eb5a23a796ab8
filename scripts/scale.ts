// Reads at scale: fills a Postgres of its own, runs every read with usual and worst arguments, says how long each took, and writes
// the plans to docs/read_plans.md. Ends with 1 if one of them took more than 100 ms.
//
//   node scripts/scale.ts [--divisor 100] [--no-docs]     the volumes divided, for a look at the script itself

import { writeFileSync } from "node:fs";
import os from "node:os";
import { parseArgs } from "node:util";
import pg from "pg";
import { migrate } from "../src/cli/migrate.ts";
import { fill, volumes } from "./scale/fill.ts";
import { holdLocks } from "./scale/hold.ts";
import { type Measured, measure } from "./scale/measure.ts";
import { planReport } from "./scale/plans.ts";
import { questions } from "./scale/questions.ts";
import { startPostgres } from "./world/postgres.ts";

const limitMs = 100;
const { values: flags } = parseArgs({
  options: { divisor: { type: "string", default: "1" }, "no-docs": { type: "boolean", default: false } },
});

// As much memory as a small managed database has; what is written meanwhile is thrown away, so its log is kept small.
const server = await startPostgres({
  settings: {
    shared_buffers: "1GB",
    max_wal_size: "4GB",
    wal_level: "minimal",
    max_wal_senders: "0",
    maintenance_work_mem: "256MB",
    autovacuum: "off",
  },
});
try {
  const client = new pg.Client(server.url());
  await client.connect();
  await migrate({ client });
  const size = volumes(Number(flags.divisor));
  const started = performance.now();
  await fill(client, size, (what) => console.log(`${seconds(started)} filling: ${what}`));
  const holders = await holdLocks(server.url(), 40);
  const measured: Measured[] = [];
  console.log(line("verb", "arguments", "ms", "first", "rows", "buffers"));
  for (const question of await questions(client)) {
    const one = await measure(server.url(), question);
    measured.push(one);
    console.log(
      line(one.verb, one.title, one.ms.toFixed(1), one.firstMs.toFixed(1), String(one.rows), String(one.buffers)),
    );
  }
  if (!flags["no-docs"]) writeFileSync("docs/read_plans.md", await planReport(client, measured, size, machine()));
  await Promise.all(holders.map((holder) => holder.end()));
  await client.end();
  const slow = measured.filter((one) => one.ms > limitMs);
  for (const one of slow)
    console.log(`TOO SLOW: ${one.verb} ${one.title}: ${one.ms.toFixed(1)} ms, at most ${limitMs}`);
  console.log(`${seconds(started)} done: ${measured.length} reads, ${slow.length} above ${limitMs} ms.`);
  if (slow.length > 0) process.exitCode = 1;
} finally {
  await server.stop();
}

function seconds(since: number): string {
  return `${((performance.now() - since) / 1000).toFixed(0).padStart(4)} s`;
}

function line(verb: string, title: string, ...numbers: readonly string[]): string {
  return `${verb.padEnd(15)} ${title.padEnd(64)} ${numbers.map((text) => text.padStart(8)).join("")}`;
}

function machine(): string {
  return `${os.cpus().length} cores, ${Math.round(os.totalmem() / 2 ** 30)} GB of memory, PostgreSQL ${server.major}, shared_buffers 1 GB`;
}
