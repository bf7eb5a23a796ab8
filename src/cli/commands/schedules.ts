// pgclaim schedules: what fires when, paused or not, and once now.

import type { Command } from "commander";
import { type Context, type ExitCode, exitCodes, Refusal, type Runner, suggestion } from "../command.ts";
import type { Connection } from "../connect.ts";
import { ago } from "../format.ts";
import { actor } from "../operate.ts";

export function addSchedules(program: Command, runner: Runner): void {
  const schedules = program.command("schedules").description("schedules: last and next occurrence, pause, run once");
  runner.act(schedules.command("list").description("all of them (exit 4: none)"), (context) => list(context));
  for (const [verb, description] of [
    ["pause", "fire no more; occurrences that pass meanwhile are lost"],
    ["resume", "fire again, from the first occurrence after now"],
  ] as const) {
    const command = schedules.command(verb).description(description).argument("<name>", "the schedule");
    runner.act(command, (context, [name]) => toggle(context, verb, name as string));
  }
  const run = schedules
    .command("run")
    .description("enqueue what it would, now; its own occurrences stay")
    .argument("<name>", "the schedule");
  runner.act(run, (context, [name]) => runNow(context, name as string));
}

async function list(context: Context): Promise<ExitCode> {
  const { out } = context;
  const connection = await context.connect();
  const schedules = await connection.gateway.schedules();
  const now = schedules.length === 0 || out.json ? "" : (await connection.now()).toISOString();
  out.list(
    schedules,
    ["schedule", "cron", "zone", "kind", "catch up", "last", "next", ""],
    ({ name, cron, timeZone, kind, catchUp, lastAt, nextAt, pausedAt, fault }) => [
      name,
      cron,
      timeZone,
      kind,
      catchUp,
      ago(lastAt?.toISOString() ?? null, now),
      pausedAt === null ? ago(nextAt.toISOString(), now) : "-",
      pausedAt !== null
        ? { text: "paused", style: "warn" }
        : fault !== null
          ? { text: `fails: ${fault}`, style: "bad" }
          : "",
    ],
  );
  if (schedules.length > 0) return exitCodes.fine;
  out.note("No schedules: none is registered by a deployment.");
  return exitCodes.nothing;
}

async function toggle(context: Context, verb: "pause" | "resume", name: string): Promise<ExitCode> {
  const connection = await context.connect();
  const { gateway } = connection;
  const changed = await (verb === "pause" ? gateway.pauseSchedule(name) : gateway.resumeSchedule(name));
  if (!changed) await assertKnown(connection, name);
  const now = verb === "pause" ? "is paused" : "goes on";
  const already = verb === "pause" ? "was paused already" : "was not paused";
  context.out.answer({ schedule: name, changed }, `Schedule "${name}" ${changed ? now : already}.`);
  return exitCodes.fine;
}

async function runNow(context: Context, name: string): Promise<ExitCode> {
  const connection = await context.connect();
  const answer = await connection.operate.runSchedule(name, actor);
  if (answer.type === "not-found") {
    await assertKnown(connection, name);
    throw new Refusal(exitCodes.nothing, `Schedule "${name}" is gone.`);
  }
  const { job } = answer;
  context.out.answer(
    { schedule: name, ...job },
    job.type === "enqueued" ? `Enqueued job ${job.id}.` : `${job.type}: job ${job.id} has its unique key.`,
  );
  return exitCodes.fine;
}

async function assertKnown(connection: Connection, name: string): Promise<void> {
  const known = (await connection.gateway.schedules()).map((schedule) => schedule.name);
  if (known.includes(name)) return;
  throw new Refusal(exitCodes.nothing, `No schedule "${name}". ${suggestion(name, known)}See: pgclaim schedules list`);
}
