// pgclaim ticks: what each invocation did, and what it does next with --follow.

import type { Command } from "commander";
import { systemClock, wait } from "../../clock.ts";
import type { TickRow } from "../../inspection.ts";
import { type Context, type ExitCode, exitCodes, parse, type Runner } from "../command.ts";
import { ago, type Cell, lengthOr, tableLines } from "../format.ts";
import { pages } from "../paging.ts";

interface TicksOptions {
  readonly follow?: boolean;
  readonly every: number;
  readonly times?: number;
  readonly trigger?: string;
  readonly outcome?: "committed" | "lost";
  readonly limit: number;
  readonly cursor?: string;
}

const outcomes = ["committed", "lost"] as const;

export function addTicks(program: Command, runner: Runner): void {
  const command = program
    .command("ticks")
    .description("what each tick claimed, skipped and took, the newest first (exit 4: none)")
    .option("--follow", "go on with new ones as they come, the newest last, until Ctrl-C")
    .option("--every <duration>", "how often --follow asks", parse.duration, 2_000)
    .option("--times <n>", "stop after asking so often", parse.integer(1, 1_000_000))
    .option("--trigger <name>", "only of this trigger")
    .option("--outcome <outcome>", `only ${outcomes.join(" or ")}`, parse.choice(outcomes))
    .option("--limit <n>", "at most so many", parse.integer(1, 100_000), 50)
    .option("--cursor <cursor>", "go on where an earlier list ended");
  runner.act(command, (context, _, options) => {
    const given = options as TicksOptions;
    return given.follow === true ? follow(context, given) : list(context, given);
  });
}

export const tickTitles = [
  "decided",
  "trigger",
  "tick",
  "claimed",
  "done",
  "failed",
  "skipped",
  "trips",
  "ms",
  "outcome",
];

export function tickCells(tick: TickRow, when: string): readonly (string | Cell)[] {
  const skipped = Object.entries(tick.skipped).map(([reason, n]) => `${n} ${reason}`);
  const { done = 0, ...others } = tick.outcomes;
  const failed = Object.entries(others).map(([outcome, n]) => `${n} ${outcome}`);
  const trips = tick.roundTrips;
  return [
    when,
    tick.trigger ?? "-",
    `${tick.invocationId.slice(0, 8)}.${tick.n ?? "?"}${tick.quarantined ? " alone" : ""}`,
    String(tick.claimed),
    String(done),
    failed.join(", ") || "0",
    skipped.join(", ") || "0",
    trips === null ? "-" : `${trips.session}+${trips.oneShot}`,
    lengthOr(tick.totalMs),
    { text: tick.outcome, style: tick.outcome === "lost" ? "bad" : "good" },
  ];
}

function requestOf({ trigger, outcome }: TicksOptions) {
  return { ...(trigger === undefined ? {} : { trigger }), ...(outcome === undefined ? {} : { outcome }) };
}

async function list(context: Context, options: TicksOptions): Promise<ExitCode> {
  const { out } = context;
  const { inspect } = await context.connect();
  const listed = await pages(options.limit, options.cursor, (page) =>
    inspect.ticks({ ...requestOf(options), ...page }),
  );
  out.list(listed.items, tickTitles, (tick) => tickCells(tick, ago(tick.decidedAt, listed.now)));
  if (listed.next !== null) out.note(`more: --cursor ${listed.next}`);
  if (listed.items.length > 0) return exitCodes.fine;
  out.note("No ticks: nothing had work in the last week, or nothing matches.");
  return exitCodes.nothing;
}

/** Widths that fit most: a stream of lines cannot wait for its widest one. */
async function follow(context: Context, options: TicksOptions): Promise<ExitCode> {
  const { out } = context;
  const { inspect } = await context.connect();
  let seen: ReadonlySet<string> = new Set();
  for (let n = 1; ; n++) {
    const { items } = await inspect.ticks({ ...requestOf(options), limit: n === 1 ? 10 : 200 });
    const fresh = items.filter(({ tickId }) => !seen.has(tickId)).reverse();
    for (const tick of fresh) {
      if (out.json) out.object(tick);
      else out.line(lineOf(tick, out.paint));
    }
    // The newest page is what is asked for again; what has left it does not come back.
    seen = new Set([...seen, ...items.map(({ tickId }) => tickId)].slice(-1_000));
    if (options.times !== undefined && n >= options.times) return exitCodes.fine;
    await wait(systemClock, options.every);
  }
}

function lineOf(tick: TickRow, paint: Parameters<typeof tableLines>[2]["paint"]): string {
  const [, line = ""] = tableLines(
    tickTitles.map(() => ""),
    [tickCells(tick, tick.decidedAt)],
    { columns: null, paint },
  );
  return line;
}
