// pgclaim jobs: look at them, enqueue one, and change one or many.

import type { Command } from "commander";
import { type JobFilter, type ListState, listStates } from "../../inspection.ts";
import type { JobId } from "../../model.ts";
import { type Context, type ExitCode, exitCodes, parse, Refusal, type Runner } from "../command.ts";
import { addFilter, type FilterOptions, filterOf, requireFilter, sayNothing } from "../filter.ts";
import { plural } from "../format.ts";
import { jobRow, jobTitles, showJob } from "../job_view.ts";
import { actor, operateAll, operateEach } from "../operate.ts";
import { pages } from "../paging.ts";
import { addEnqueue } from "./enqueue.ts";

interface ListOptions extends FilterOptions {
  readonly state?: ListState;
  readonly limit: number;
  readonly cursor?: string;
}

interface ChangeOptions extends FilterOptions {
  readonly yes?: boolean;
  readonly state?: ListState;
  readonly at?: string;
  readonly delay?: number;
}

/** States of what can be cancelled. */
const waiting = ["ready", "running", "scheduled", "retrying", "blocked"] as const;

export function addJobs(program: Command, runner: Runner): void {
  const jobs = program.command("jobs").description("look at jobs, enqueue one, change them");
  const list = addFilter(
    jobs.command("list").description("unfinished ones and dead letters, the newest first (exit 4: none)"),
    { dead: true },
  )
    .option("--state <state>", `only in this state: ${listStates.join(", ")}`, parse.choice(listStates))
    .option("--limit <n>", "at most so many", parse.integer(1, 100_000), 50)
    .option("--cursor <cursor>", "go on where an earlier list ended");
  runner.act(list, (context, _, options) => listJobs(context, options as ListOptions));

  const show = jobs
    .command("show")
    .description("one job with its attempts, locks, errors and payload")
    .argument("<id>", "the job's id", parse.id)
    .option("--payload", "print the whole payload and nothing else");
  runner.act(show, (context, [id], options) =>
    showOne(context, id as JobId, (options as { payload?: boolean }).payload === true),
  );

  addEnqueue(jobs, runner);

  byId("retry", "give dead letters their attempts back; they keep their place in their key");
  byId("discard", "take dead letters out for good; they stay in history as discarded", "Discard");
  byId("skip", "leave dead letters as they are and let the jobs behind them go on", "Skip");

  const cancel = addFilter(
    jobs
      .command("cancel")
      .description("cancel waiting jobs at once, ask running ones to stop: by id, or by a filter")
      .argument("[ids...]", "their ids; or a filter", parse.ids),
    { dead: false },
  )
    .option("--state <state>", `only in this state: ${waiting.join(", ")}`, parse.choice(waiting))
    .option("--yes", "do not ask");
  runner.act(cancel, (context, [ids], options) =>
    cancelJobs(context, ids as JobId[] | undefined, options as ChangeOptions),
  );

  const reschedule = jobs
    .command("reschedule")
    .description("say when a waiting job is due")
    .argument("<id>", "the job's id", parse.id)
    .option("--at <instant>", "the instant, with its zone", parse.instant)
    .option("--delay <duration>", "so long from now, by the database's clock", parse.duration);
  runner.act(reschedule, (context, [id], options) => rescheduleJob(context, id as JobId, options as ChangeOptions));

  function byId(verb: "retry" | "discard" | "skip", description: string, ask?: string): void {
    const command = jobs.command(verb).description(description).argument("<ids...>", "ids of dead letters", parse.ids);
    if (ask !== undefined) command.option("--yes", "do not ask");
    runner.act(command, async (context, [given], options) => {
      const ids = given as JobId[];
      const connection = await context.connect();
      if (ask !== undefined) {
        await context.confirm(`${ask} ${plural(ids.length, "dead letter")}?`, (options as ChangeOptions).yes);
      }
      return operateEach(context, ids, verb, (id) => connection.operate[verb](id, actor));
    });
  }
}

async function listJobs(context: Context, options: ListOptions): Promise<ExitCode> {
  const connection = await context.connect();
  const filter: JobFilter = {
    ...(await filterOf(options, connection)),
    ...(options.state === undefined ? {} : { state: options.state }),
  };
  return listMatching(context, filter, options);
}

/** Prints the jobs that match: `jobs list` and `dead list`. */
export async function listMatching(
  context: Context,
  filter: JobFilter,
  { limit, cursor }: { readonly limit: number; readonly cursor?: string },
): Promise<ExitCode> {
  const { out } = context;
  const connection = await context.connect();
  const listed = await pages(limit, cursor, (page) => connection.inspect.jobs({ ...filter, ...page }));
  out.list(listed.items, jobTitles(filter.state), (job) => jobRow(job, listed.now, filter.state));
  if (listed.items.length === 0) {
    await sayNothing(context, connection, filter, listed.searched);
    return exitCodes.nothing;
  }
  if (listed.next !== null) out.note(`more: --cursor ${listed.next}`);
  return exitCodes.fine;
}

async function showOne(context: Context, id: JobId, payloadOnly: boolean): Promise<ExitCode> {
  const { out } = context;
  const connection = await context.connect();
  const { inspect } = connection;
  if (payloadOnly) {
    const payload = await inspect.payload(id);
    if (payload === null) return notFound(context, id);
    out.raw(payload);
    return exitCodes.fine;
  }
  const job = await inspect.job(id);
  if (job === null) return notFound(context, id);
  if (out.json) out.object(job);
  else showJob(out, job, (await connection.now()).toISOString());
  return exitCodes.fine;
}

function notFound({ out }: Context, id: JobId): ExitCode {
  out.error("PGCLAIM_JOB_NOT_FOUND", `There is no job ${id}, or its history has been pruned.`);
  return exitCodes.nothing;
}

async function cancelJobs(context: Context, ids: readonly JobId[] = [], options: ChangeOptions): Promise<ExitCode> {
  const consequence = "Waiting ones leave the queue and stay in history as cancelled; running ones are asked to stop.";
  if (ids.length > 0) {
    const connection = await context.connect();
    await context.confirm(`Cancel ${plural(ids.length, "job")}? ${consequence}`, options.yes);
    return operateEach(context, ids, "cancel", (id) => connection.operate.cancel(id, actor));
  }
  const { state } = options;
  requireFilter(options, "cancel");
  const connection = await context.connect();
  return operateAll(context, connection, {
    verb: "cancel",
    filter: { ...(await filterOf(options, connection)), ...(state === undefined ? {} : { state }) },
    noun: "job",
    // Without a state the count has the dead letters in it.
    question: (found) =>
      `Cancel ${found}? ${consequence}${state === undefined ? " Dead letters among them stay." : ""}`,
    yes: options.yes,
  });
}

async function rescheduleJob(context: Context, id: JobId, { at, delay }: ChangeOptions): Promise<ExitCode> {
  if ((at === undefined) === (delay === undefined))
    throw new Refusal(exitCodes.usage, "Say --at or --delay, one of them.");
  const connection = await context.connect();
  const runAt = at ?? new Date((await connection.now()).getTime() + (delay ?? 0)).toISOString();
  return operateEach(context, [id], "reschedule", () => connection.operate.reschedule(id, runAt, actor));
}
