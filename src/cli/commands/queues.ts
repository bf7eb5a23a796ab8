// pgclaim queues: how deep, how late, paused or not.

import type { Command } from "commander";
import type { QueueRow } from "../../inspection.ts";
import { type Context, type ExitCode, exitCodes, type Runner } from "../command.ts";
import { type Cell, count, lengthOr } from "../format.ts";

export function addQueues(program: Command, runner: Runner): void {
  const queues = program.command("queues").description("queues: depth, lateness, paused or not");
  runner.act(queues.command("list").description("all that have jobs or are paused (exit 4: none)"), (context) =>
    list(context),
  );
  for (const verb of ["pause", "resume"] as const) {
    const command = queues
      .command(verb)
      .description(verb === "pause" ? "claim no more jobs of it; those that run go on" : "claim its jobs again")
      .argument("<name>", "the queue");
    runner.act(command, (context, [name]) => toggle(context, verb, name as string));
  }
}

export const queueTitles = [
  "queue",
  "ready",
  "scheduled",
  "retrying",
  "blocked",
  "dead",
  "running",
  "oldest",
  "done/min",
  "p50",
  "p95",
  "",
];

export function queueCells(queue: QueueRow): readonly (string | Cell)[] {
  const depth = (state: keyof QueueRow["depth"]) => {
    const cell = queue.depth[state];
    return cell === undefined ? "-" : count(cell);
  };
  return [
    queue.name,
    depth("ready"),
    depth("scheduled"),
    depth("retrying"),
    depth("blocked"),
    depth("dead"),
    `${queue.running}${queue.max === null ? "" : ` of ${queue.max}`}`,
    lengthOr(queue.oldestReadyMs),
    String(queue.donePerMinute),
    lengthOr(queue.lateMs.p50),
    lengthOr(queue.lateMs.p95),
    queue.pausedAt === null ? "" : { text: "paused", style: "warn" },
  ];
}

async function list(context: Context): Promise<ExitCode> {
  const { out } = context;
  const { inspect } = await context.connect();
  const queues = await inspect.queues();
  out.list(queues, queueTitles, queueCells);
  if (queues.length > 0) return exitCodes.fine;
  out.note("No queues yet.");
  return exitCodes.nothing;
}

async function toggle(context: Context, verb: "pause" | "resume", name: string): Promise<ExitCode> {
  const { gateway } = await context.connect();
  const changed = await (verb === "pause" ? gateway.pauseQueue(name) : gateway.resumeQueue(name));
  const state = verb === "pause" ? "paused" : "resumed";
  const already = verb === "pause" ? "was paused already" : "was not paused";
  context.out.answer({ queue: name, changed }, `Queue "${name}" ${changed ? `is ${state}` : already}.`);
  return exitCodes.fine;
}
