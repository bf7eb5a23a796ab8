#!/usr/bin/env node
// The command line: `pgclaim`. It puts the commands together, and turns what came of one into an exit code.

import { readFileSync } from "node:fs";
import { Command, CommanderError, Option } from "commander";
import { withoutConnectionStrings } from "../errors.ts";
import { type ExitCode, exitCodes, type Io, Runner } from "./command.ts";
import { addDead } from "./commands/dead.ts";
import { addDoctor } from "./commands/doctor.ts";
import { addHolders } from "./commands/holders.ts";
import { addJobs } from "./commands/jobs.ts";
import { addKeys } from "./commands/keys.ts";
import { addKinds } from "./commands/kinds.ts";
import { addMigrate } from "./commands/migrate.ts";
import { addQueues } from "./commands/queues.ts";
import { addSchedules } from "./commands/schedules.ts";
import { addTicks } from "./commands/ticks.ts";
import { addTrigger } from "./commands/trigger.ts";
import { addTriggers } from "./commands/triggers.ts";
import { addWatch } from "./commands/watch.ts";
import { safe } from "./format.ts";

const epilogue = `
The database is the one of DATABASE_URL; never an argument, since arguments are seen by everybody on the machine.

Exit codes:
  0  fine
  1  a check or an action failed, or was refused
  2  wrong usage
  3  the database cannot be reached, or does not let this role in
  4  nothing matched

Results go to stdout, progress to stderr. Colour only on a terminal, and not with NO_COLOR.`;

async function run(io: Io, args: readonly string[]): Promise<ExitCode> {
  const runner = new Runner(io);
  try {
    await programOf(runner, io).parseAsync(args, { from: "user" });
    return runner.exitCode;
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    // It has said what is wrong already.
    return error.exitCode === 0 ? exitCodes.fine : exitCodes.usage;
  }
}

function programOf(runner: Runner, io: Io): Command {
  const program = new Command("pgclaim")
    .description("Looks after pgclaim's jobs in a Postgres database.")
    .version(versionOf(), "-V, --version")
    .option("--json", "print JSON: one object, and of a list one a line")
    .option("--schema <name>", "the installation's schema (PGCLAIM_SCHEMA; default: pgclaim)")
    .option("--database-url-env <variable>", "the variable that has the database's address (default: DATABASE_URL)")
    .option("--env <path>", "read variables from this file; the environment wins")
    // Known only to be refused with a reason, and not repeated: it has a password in it.
    .addOption(new Option("--database-url <address>").hideHelp())
    .exitOverride()
    .showSuggestionAfterError()
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false })
    .configureOutput({
      writeOut: (text) => io.stdout.write(text),
      writeErr: (text) => io.stderr.write(text),
      outputError: (text, write) => write(`${withoutConnectionStrings(text).split("\n").map(safe).join("\n")}`),
    })
    .addHelpText("after", epilogue);
  for (const add of [
    addMigrate,
    addDoctor,
    addJobs,
    addDead,
    addKeys,
    addKinds,
    addQueues,
    addSchedules,
    addTriggers,
    addHolders,
    addTicks,
    addTrigger,
    addWatch,
  ]) {
    add(program, runner);
  }
  return program;
}

/** src/cli and dist/cli lie equally deep, so one path serves the checkout and the package. */
function versionOf(): string {
  const text = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}

// A reader such as `head` goes away in the middle: that is no error of ours.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code === "EPIPE") process.exit(exitCodes.fine);
  throw error;
});
const { env, stdin, stdout, stderr } = process;
process.exitCode = await run({ env, stdin, stdout, stderr }, process.argv.slice(2));
