// pgclaim triggers: what wakes us, and whether it still does.

import type { Command } from "commander";
import type { TriggerRow } from "../../inspection.ts";
import { type Context, type ExitCode, exitCodes, type Runner } from "../command.ts";
import { ago, type Cell, lengthOr, type Style } from "../format.ts";

export function addTriggers(program: Command, runner: Runner): void {
  const triggers = program.command("triggers").description("what wakes invocations, and whether it still does");
  runner.act(triggers.command("list").description("all that were ever seen (exit 4: none)"), (context) =>
    list(context),
  );
}

const styles: Readonly<Record<TriggerRow["status"], Style | null>> = {
  ok: "good",
  late: "warn",
  silent: "bad",
  unexpected: null,
};

export const triggerTitles = ["trigger", "status", "last seen", "expected", "last work", "woken in the last hour"];

export function triggerCells(trigger: TriggerRow, now: string): readonly (string | Cell)[] {
  const style = styles[trigger.status];
  // Nothing is owed by a trigger that nobody has promised: that is no fault.
  const status = trigger.status === "unexpected" ? "-" : trigger.status;
  const woken = trigger.minutes.reduce((sum, minute) => sum + minute.woken, 0);
  const worked = trigger.minutes.reduce((sum, minute) => sum + minute.worked, 0);
  return [
    trigger.name,
    style === null ? status : { text: status, style },
    ago(trigger.lastSeenAt, now),
    trigger.everyMs === null ? "-" : `every ${lengthOr(trigger.everyMs)}`,
    ago(trigger.lastWorkAt, now),
    `${woken}, ${worked} with work`,
  ];
}

async function list(context: Context): Promise<ExitCode> {
  const { out } = context;
  const connection = await context.connect();
  const triggers = await connection.inspect.triggers();
  const now = triggers.length === 0 || out.json ? "" : (await connection.now()).toISOString();
  out.list(triggers, triggerTitles, (trigger) => triggerCells(trigger, now));
  if (triggers.length > 0) return exitCodes.fine;
  out.note("No trigger was seen yet. A new Cloudflare cron can take up to 15 minutes to start.");
  return exitCodes.nothing;
}
