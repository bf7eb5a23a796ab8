// pgclaim keys: ordering keys, and what to do with the dead letter that halts one.

import type { Command } from "commander";
import type { KeyRow } from "../../inspection.ts";
import { type Context, type ExitCode, exitCodes, parse, Refusal, type Runner } from "../command.ts";
import type { Connection } from "../connect.ts";
import { ago, count, slack } from "../format.ts";
import { actor, operateEach } from "../operate.ts";
import { pages } from "../paging.ts";

interface ListOptions {
  readonly halted?: boolean;
  readonly limit: number;
  readonly cursor?: string;
}

/** Halted keys among which a name is looked for. */
const searchLimit = 10_000;

export function addKeys(program: Command, runner: Runner): void {
  const keys = program.command("keys").description("ordering keys, the halted ones first");
  const list = keys
    .command("list")
    .description("keys with the job at their head (exit 4: none)")
    .option("--halted", "only those that a dead letter halts")
    .option("--limit <n>", "at most so many", parse.integer(1, 100_000), 50)
    .option("--cursor <cursor>", "go on where an earlier list ended");
  runner.act(list, (context, _, options) => listKeys(context, options as ListOptions));
  head("retry", "give the head its attempts back", null);
  head("skip", "leave the head a dead letter and let the key go on", "Skip");
  head("discard", "take the head out for good and let the key go on", "Discard");

  function head(verb: "retry" | "skip" | "discard", description: string, ask: string | null): void {
    const command = keys
      .command(verb)
      .description(description)
      .argument("<key>", "the halted ordering key")
      .option("--kind <name>", "the kind of its head, where two keys have one name");
    if (ask !== null) command.option("--yes", "do not ask");
    runner.act(command, async (context, [key], options) => {
      const { kind, yes } = options as { kind?: string; yes?: boolean };
      const connection = await context.connect();
      const row = await halted(connection, key as string, kind);
      const next = row.next === null ? "Nothing waits behind it." : `${row.next} will run next.`;
      if (ask !== null) await context.confirm(`${ask} job ${row.head}, the head of "${row.orderingKey}"? ${next}`, yes);
      return operateEach(context, [row.head], verb, (id) => connection.operate[verb](id, actor));
    });
  }
}

async function listKeys(context: Context, { halted: only, limit, cursor }: ListOptions): Promise<ExitCode> {
  const { out } = context;
  const { inspect } = await context.connect();
  const listed = await pages(limit, cursor, (page) =>
    inspect.keys({ ...page, ...(only === true ? { halted: true } : {}) }),
  );
  out.list(listed.items, ["key", "kind", "state", "head", "since", "behind", "oldest", "slack", "error"], (row) => [
    row.orderingKey,
    row.kind,
    row.halted ? { text: "halted", style: "bad" } : row.headState,
    row.head,
    ago(row.haltedAt, listed.now),
    count(row.behind),
    ago(row.oldestEnqueuedAt, listed.now),
    slack(row.worstSlackMs),
    row.headError?.split("\n", 1)[0] ?? "-",
  ]);
  if (listed.next !== null) out.note(`more: --cursor ${listed.next}`);
  if (listed.items.length > 0) return exitCodes.fine;
  out.note(only === true ? "No key is halted." : "No key has jobs.");
  return exitCodes.nothing;
}

/** The halted key of that name. Errors: a refusal, with 4 where there is none. */
async function halted(connection: Connection, key: string, kind: string | undefined): Promise<KeyRow> {
  const { items } = await pages(searchLimit, undefined, (page) => connection.inspect.keys({ ...page, halted: true }));
  const found = items.filter((row) => row.orderingKey === key && (kind === undefined || row.kind === kind));
  const [row] = found;
  if (row === undefined)
    throw new Refusal(exitCodes.nothing, `No key "${key}" is halted. See: pgclaim keys list --halted`);
  if (found.length > 1) {
    const kinds = [...new Set(found.map((one) => one.kind))].join(", ");
    throw new Refusal(
      exitCodes.usage,
      `${found.length} keys "${key}" are halted, with heads of ${kinds}. Say --kind, or the job's id: pgclaim jobs`,
    );
  }
  return row;
}
