// pgclaim watch: depth, what runs, triggers and the last ticks, redrawn. Without a terminal one line each time.

import type { Command } from "commander";
import { systemClock, wait } from "../../clock.ts";
import type { Overview, TickRow } from "../../inspection.ts";
import { type Context, type ExitCode, exitCodes, parse, type Runner } from "../command.ts";
import type { Connection } from "../connect.ts";
import { ago, count, cut, lengthOr, number, safe, tableLines, utc } from "../format.ts";
import { queueCells, queueTitles } from "./queues.ts";
import { tickCells, tickTitles } from "./ticks.ts";
import { triggerCells, triggerTitles } from "./triggers.ts";

interface WatchOptions {
  readonly every: number;
  readonly times?: number;
}

interface Seen {
  readonly overview: Overview;
  readonly ticks: readonly TickRow[];
}

/** An open terminal must not keep a database awake all night that could sleep. */
const idleMs = 10 * 60_000;

export function addWatch(program: Command, runner: Runner): void {
  const command = program
    .command("watch")
    .description("a live view: depth, what runs, triggers, the last ticks; q quits")
    .option("--every <duration>", "how often it asks", parse.duration, 5_000)
    .option("--times <n>", "stop after asking so often", parse.integer(1, 1_000_000));
  runner.act(command, async (context, _, options) => {
    const given = options as WatchOptions;
    const connection = await context.connect();
    return context.out.interactive && !context.out.json
      ? redraw(context, connection, given)
      : lines(context, connection, given);
  });
}

async function look(connection: Connection): Promise<Seen> {
  const [overview, ticks] = await Promise.all([connection.inspect.overview(), connection.inspect.ticks({ limit: 10 })]);
  return { overview, ticks: ticks.items };
}

async function lines(context: Context, connection: Connection, { every, times }: WatchOptions): Promise<ExitCode> {
  const { out } = context;
  for (let n = 1; ; n++) {
    const seen = await look(connection);
    if (out.json) out.object({ ...seen.overview, ticks: seen.ticks });
    else out.line(safe(`${utc(seen.overview.now)} ${summary(seen.overview)}`));
    if (times !== undefined && n >= times) return exitCodes.fine;
    await wait(systemClock, every);
  }
}

function summary(overview: Overview): string {
  const { depth } = overview;
  const silent = overview.triggers.filter(({ status }) => status === "silent").length;
  return [
    `ready ${count(depth.ready)} (oldest ${lengthOr(overview.oldestReadyMs)})`,
    `running ${number(overview.running)}`,
    `retrying ${count(depth.retrying)}`,
    `scheduled ${count(depth.scheduled)}`,
    `blocked ${count(depth.blocked)}`,
    `dead ${count(overview.dead)}`,
    `halted keys ${count(overview.haltedKeys)}`,
    `silent triggers ${silent}`,
  ].join(", ");
}

/** Lines of one screen, cut to its size. */
function screen(context: Context, { overview, ticks }: Seen, paused: boolean, rows: number): string[] {
  const { out } = context;
  const columns = out.columns ?? 80;
  const table = (titles: readonly string[], cells: Parameters<typeof tableLines>[1]) =>
    cells.length === 0 ? [] : ["", ...tableLines(titles, cells, { columns, paint: out.paint })];
  const all = [
    cut(
      safe(
        `pgclaim @ ${overview.database}, schema ${overview.schema}, version ${overview.migration}   ${utc(overview.now)}`,
      ),
      columns,
    ),
    cut(safe(summary(overview)), columns),
    ...table(queueTitles, overview.queues.map(queueCells)),
    ...table(
      triggerTitles,
      overview.triggers.map((trigger) => triggerCells(trigger, overview.now)),
    ),
    ...table(
      tickTitles,
      ticks.map((tick) => tickCells(tick, ago(tick.decidedAt, overview.now))),
    ),
  ];
  const foot = paused
    ? "Stopped after 10 minutes without a key, so that the database can sleep. Any key goes on, q quits."
    : "q quits, any other key asks now";
  return [...all.slice(0, Math.max(1, rows - 2)), "", out.paint(cut(foot, columns), "muted")];
}

async function redraw(context: Context, connection: Connection, { every, times }: WatchOptions): Promise<ExitCode> {
  const { stdout } = context.io;
  const keys = listen(context);
  stdout.write("\u001b[?1049h\u001b[?25l"); // the terminal's other screen, no cursor
  try {
    for (let n = 1; !keys.quit.aborted; n++) {
      const seen = await look(connection);
      const paused = keys.idleMs() > idleMs;
      const rows = (stdout as { rows?: number }).rows ?? 24;
      stdout.write(
        `\u001b[H${screen(context, seen, paused, rows)
          .map((line) => `${line}\u001b[K`)
          .join("\n")}\u001b[J`,
      );
      if (times !== undefined && n >= times) break;
      await keys.pause(paused ? null : every);
    }
    return exitCodes.fine;
  } finally {
    stdout.write("\u001b[?25h\u001b[?1049l");
    keys.close();
  }
}

interface Keys {
  readonly quit: AbortSignal;
  idleMs(): number;
  /** Waits so long, or without end, or until a key. */
  pause(ms: number | null): Promise<void>;
  close(): void;
}

function listen({ io }: Context): Keys {
  const quit = new AbortController();
  let last = systemClock.now();
  let wake = new AbortController();
  const onKey = (data: Buffer) => {
    last = systemClock.now();
    // In raw mode the terminal sends Ctrl-C as a character, not as a signal.
    // biome-ignore lint/suspicious/noControlCharactersInRegex: Ctrl-C and Ctrl-D
    if (/[qQ\u0003\u0004]/.test(data.toString())) quit.abort();
    wake.abort();
  };
  const onEnd = () => {
    quit.abort();
    wake.abort();
  };
  const raw = io.stdin.isTTY === true;
  if (raw) {
    io.stdin.setRawMode(true);
    io.stdin.on("data", onKey).resume();
  }
  process.once("SIGTERM", onEnd).once("SIGINT", onEnd);
  return {
    quit: quit.signal,
    idleMs: () => (raw ? systemClock.now() - last : 0),
    async pause(ms) {
      await wait(systemClock, ms ?? 2 ** 31 - 1, wake.signal);
      wake = new AbortController();
      if (quit.signal.aborted) wake.abort();
    },
    close() {
      process.removeListener("SIGTERM", onEnd).removeListener("SIGINT", onEnd);
      if (!raw) return;
      io.stdin.removeListener("data", onKey).pause();
      io.stdin.setRawMode(false);
    },
  };
}
