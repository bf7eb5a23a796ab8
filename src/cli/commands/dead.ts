// pgclaim dead: the dead letters, grouped by their error, given another go or taken out.

import type { Command } from "commander";
import type { JobId } from "../../model.ts";
import { type Context, type ExitCode, exitCodes, parse, type Runner } from "../command.ts";
import { addFilter, type FilterOptions, filterOf, requireFilter } from "../filter.ts";
import { number, plural } from "../format.ts";
import { actor, operateAll, operateEach } from "../operate.ts";
import { listMatching } from "./jobs.ts";

interface ListOptions extends FilterOptions {
  readonly limit: number;
  readonly cursor?: string;
}

interface BulkOptions extends FilterOptions {
  readonly all?: boolean;
  readonly yes?: boolean;
  readonly spread?: number;
}

export function addDead(program: Command, runner: Runner): void {
  const dead = program.command("dead").description("dead letters: what nothing will retry without a person");
  const list = addFilter(dead.command("list").description("the newest first (exit 4: none)"), { dead: true })
    .option("--limit <n>", "at most so many", parse.integer(1, 100_000), 50)
    .option("--cursor <cursor>", "go on where an earlier list ended");
  runner.act(list, async (context, _, options) => {
    const given = options as ListOptions;
    const filter = await filterOf(given, await context.connect());
    return listMatching(context, { ...filter, state: "dead" }, given);
  });
  runner.act(
    dead.command("groups").description("by kind, reason and error, over the newest 10,000 (exit 4: none)"),
    (context) => groups(context),
  );
  runner.act(
    bulk("redrive", "give them their attempts back: by id, by a filter, or all").option(
      "--spread <duration>",
      "spread them over so long",
      parse.duration,
    ),
    (context, [ids], options) => change(context, "retry", ids as JobId[] | undefined, options as BulkOptions),
  );
  runner.act(bulk("discard", "take them out for good; they stay in history"), (context, [ids], options) =>
    change(context, "discard", ids as JobId[] | undefined, options as BulkOptions),
  );

  function bulk(name: string, description: string): Command {
    const command = dead.command(name).description(description).argument("[ids...]", "their ids", parse.ids);
    return addFilter(command, { dead: true }).option("--all", "all dead letters").option("--yes", "do not ask");
  }
}

async function groups(context: Context): Promise<ExitCode> {
  const { out } = context;
  const { inspect } = await context.connect();
  const found = await inspect.deadGroups();
  out.list(
    found.groups,
    ["kind", "reason", "1 h", "3 h", "24 h", "3 d", "7 d", "ever", "fingerprint", "error"],
    ({ kind, reason, counts, fingerprint, example }) => [
      kind,
      reason,
      number(counts.h1),
      number(counts.h3),
      number(counts.h24),
      number(counts.d3),
      number(counts.d7),
      number(counts.all),
      fingerprint,
      example ?? "-",
    ],
  );
  if (found.cut) out.note(`Of the newest ${number(found.searched)}.`);
  if (found.groups.length > 0) return exitCodes.fine;
  out.note("No dead letters.");
  return exitCodes.nothing;
}

async function change(
  context: Context,
  verb: "retry" | "discard",
  ids: readonly JobId[] = [],
  options: BulkOptions,
): Promise<ExitCode> {
  const question = (jobs: string) =>
    verb === "retry"
      ? `Redrive ${jobs}? They get all their attempts again, and call out again.`
      : `Discard ${jobs}? They leave the queue for good and stay in history as discarded. External calls already made are not undone.`;
  if (ids.length > 0) {
    const connection = await context.connect();
    await context.confirm(question(plural(ids.length, "dead letter")), options.yes);
    return operateEach(context, ids, verb, (id) => connection.operate[verb](id, actor));
  }
  requireFilter(options, verb === "retry" ? "redrive" : "discard");
  const connection = await context.connect();
  return operateAll(context, connection, {
    verb,
    filter: { ...(await filterOf(options, connection)), state: "dead" },
    noun: "dead letter",
    question,
    yes: options.yes,
    ...(options.spread === undefined ? {} : { spreadMs: options.spread }),
  });
}
