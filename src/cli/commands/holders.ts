// pgclaim holders: who runs what right now, proved by the lock table; and the end of a transaction that hangs.

import type { Command } from "commander";
import type { Holder } from "../../inspection.ts";
import { type Context, type ExitCode, exitCodes, parse, Refusal, type Runner } from "../command.ts";
import { length, lengthOr, plural } from "../format.ts";
import { actor } from "../operate.ts";

export function addHolders(program: Command, runner: Runner): void {
  const holders = program
    .command("holders")
    .description("who holds our locks right now, from the lock table (exit 4: nobody)");
  runner.act(holders, (context) => list(context));
  const terminate = holders
    .command("terminate")
    .description("end the transaction of a holder; its jobs are free at once")
    .argument("<pid>", "its process id, as `holders` prints it", parse.integer(1, 2_147_483_647))
    .option("--yes", "do not ask");
  runner.act(terminate, (context, [pid], options) => end(context, pid as number, (options as { yes?: boolean }).yes));
}

async function list(context: Context): Promise<ExitCode> {
  const { out } = context;
  const { inspect } = await context.connect();
  const { holders, gone, capped } = await inspect.holders();
  if (out.json) {
    for (const holder of holders) out.object({ type: "holder", ...holder });
    for (const attempt of gone) out.object({ type: "gone", ...attempt });
  } else if (holders.length > 0) {
    out.table(["pid", "role", "state", "transaction", "jobs", "holds"], holders.map(cells));
  }
  if (capped) out.note("Not all are shown: there are more locks than are looked at.");
  if (gone.length > 0 && !out.json) {
    out.note(
      `${plural(gone.length, "open attempt")} whose holder is gone; the next wake closes them as crashed: ${gone.map(({ id }) => id).join(", ")}`,
    );
  }
  if (holders.length + gone.length > 0) return exitCodes.fine;
  out.note("Nobody holds a lock of ours.");
  return exitCodes.nothing;
}

function cells(holder: Holder): readonly string[] {
  const jobs = holder.jobs.map(({ id, kind, sinceMs }) => `${id} ${kind} ${length(sinceMs)}`);
  const names = holder.names.filter((name) => name.class !== "job").map((name) => `${name.class} ${name.name}`);
  const unknown =
    holder.unknownKeys.length === 0
      ? []
      : [plural(holder.unknownKeys.length, "key that has no known name", "keys that have no known name")];
  return [
    String(holder.pid),
    holder.user ?? "another role: grant pg_read_all_stats to see more",
    holder.state === null ? "-" : `${holder.state} ${lengthOr(holder.stateMs)}`,
    lengthOr(holder.transactionMs),
    jobs.length > 3 ? `${jobs.slice(0, 3).join(", ")} and ${jobs.length - 3} more` : jobs.join(", ") || "-",
    [...names, ...unknown].join(", ") || "-",
  ];
}

async function end(context: Context, pid: number, yes: boolean | undefined): Promise<ExitCode> {
  const { out } = context;
  const { inspect, operate } = await context.connect();
  const { holders } = await inspect.holders();
  const holder = holders.find((one) => one.pid === pid);
  if (holder === undefined)
    throw new Refusal(exitCodes.nothing, `Process ${pid} holds no lock of ours. See: pgclaim holders`);
  if (holder.transactionStart === null) {
    throw new Refusal(
      exitCodes.failed,
      `This role may not see the session of process ${pid}; grant it pg_read_all_stats and pg_signal_backend.`,
    );
  }
  await context.confirm(
    `End the transaction of process ${pid}? Its ${plural(holder.jobs.length, "job")} become free, their effects are rolled back, and it counts only if a job ran alone.`,
    yes,
  );
  const answer = await operate.terminate({ pid, transactionStart: holder.transactionStart, by: actor });
  out.answer(
    { pid, type: answer },
    answer === "terminated"
      ? `Process ${pid} is ended.`
      : `Process ${pid} had gone, or began another transaction; nothing was ended.`,
  );
  return answer === "terminated" ? exitCodes.fine : exitCodes.nothing;
}
