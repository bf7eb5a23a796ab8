// Which jobs a command means: the options of a filter, and the filter as the database takes it.

import type { Command } from "commander";
import type { JobFilter } from "../inspection.ts";
import { type Context, exitCodes, parse, Refusal, suggestion } from "./command.ts";
import type { Connection } from "./connect.ts";

export interface FilterOptions {
  readonly queue?: string;
  readonly kind?: string;
  readonly key?: string;
  readonly uniqueKey?: string;
  readonly payload?: Readonly<Record<string, unknown>>;
  readonly reason?: NonNullable<JobFilter["reason"]>;
  readonly fingerprint?: string;
  readonly since?: string;
}

export const deadReasons = ["attempts", "handler", "crashed", "missed"] as const;

/** Adds the options; `dead` those which only dead letters have. */
export function addFilter(command: Command, { dead }: { readonly dead: boolean }): Command {
  command
    .option("--kind <name>", "only of this kind")
    .option("--queue <name>", "only of this queue")
    .option("--key <ordering key>", "only behind this ordering key")
    .option("--unique-key <key>", "only with this unique key")
    .option("--payload <object>", "only where the payload contains this JSON object, among 10,000", parse.json);
  if (dead) {
    command
      .option("--reason <reason>", `only dead for this reason: ${deadReasons.join(", ")}`, parse.choice(deadReasons))
      .option("--fingerprint <digest>", "only with this error, as `dead groups` prints it");
  }
  return command.option("--since <when>", 'only ended since: "2h" or an instant with its zone', sinceOf);
}

/** An instant, or a length before now: which instant that is, the database's clock says later. */
function sinceOf(text: string): string {
  if (/^\d+(\.\d+)?(ms|s|m|h|d)$/.test(text)) return `-${parse.duration(text)}`;
  return parse.instant(text);
}

/** The filter, with `since` as an instant. */
export async function filterOf(options: FilterOptions, connection: Connection): Promise<JobFilter> {
  const { queue, kind, key, uniqueKey, payload, reason, fingerprint, since } = options;
  return {
    ...(queue === undefined ? {} : { queue }),
    ...(kind === undefined ? {} : { kind }),
    ...(key === undefined ? {} : { orderingKey: key }),
    ...(uniqueKey === undefined ? {} : { uniqueKey }),
    ...(payload === undefined ? {} : { payload }),
    ...(reason === undefined ? {} : { reason }),
    ...(fingerprint === undefined ? {} : { fingerprint }),
    ...(since === undefined ? {} : { since: await instantOf(since, connection) }),
  };
}

async function instantOf(since: string, connection: Connection): Promise<string> {
  if (!since.startsWith("-")) return since;
  return new Date((await connection.now()).getTime() + Number(since)).toISOString();
}

/** Refuses to act on everything because somebody forgot a filter. */
export function requireFilter(options: FilterOptions & { readonly all?: boolean }, verb: string): void {
  const given = Object.keys(options).filter((name) => filterNames.has(name));
  if (given.length > 0 && options.all === true)
    throw new Refusal(exitCodes.usage, "--all and a filter do not go together.");
  if (given.length > 0 || options.all === true) return;
  const all = verb === "cancel" ? "" : ", or --all";
  throw new Refusal(exitCodes.usage, `Say which ones to ${verb}: ids, a filter such as --kind${all}.`);
}

const filterNames = new Set([
  "state",
  "queue",
  "kind",
  "key",
  "uniqueKey",
  "payload",
  "reason",
  "fingerprint",
  "since",
]);

/** Says that nothing matched, and which known kind was perhaps meant. Errors: none; without the right to ask it says less. */
export async function sayNothing(
  { out }: Context,
  connection: Connection,
  filter: JobFilter,
  searched: number | null = null,
): Promise<void> {
  const where = searched === null ? "" : ` Searched ${searched.toLocaleString("en-US")} that match the rest.`;
  const kinds = filter.kind === undefined ? [] : await knownKinds(connection);
  const hint =
    filter.kind === undefined || kinds.includes(filter.kind)
      ? ""
      : ` No kind "${filter.kind}" in the database. ${suggestion(filter.kind, kinds)}`;
  out.note(`No job matches.${where}${hint}`.trimEnd());
}

/** Names of all kinds; none where this role may not read them. */
export async function knownKinds(connection: Connection): Promise<readonly string[]> {
  try {
    return (await connection.inspect.kinds()).map(({ name }) => name);
  } catch {
    return [];
  }
}
