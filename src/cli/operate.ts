// The changes: one job after another by id, or all that match a filter in slices. Nothing is changed before it was asked.

import type { BulkVerb, JobFilter, OperateAnswer } from "../inspection.ts";
import type { JobId } from "../model.ts";
import { type Context, type ExitCode, exitCodes } from "./command.ts";
import type { Connection } from "./connect.ts";
import { sayNothing } from "./filter.ts";
import { count, number, plural } from "./format.ts";

/** Who acts, as it is written into the job's record. */
export const actor = "cli";

/** Does one verb to each id; the worst answer decides the exit code. */
export async function operateEach(
  context: Context,
  ids: readonly JobId[],
  verb: string,
  operate: (id: JobId) => Promise<OperateAnswer>,
): Promise<ExitCode> {
  const codes: ExitCode[] = [];
  for (const id of ids) {
    const answer = await operate(id);
    const { code, words } = sentence(id, verb, answer);
    context.out.answer({ id, ...answer }, words);
    codes.push(code);
  }
  if (codes.includes(exitCodes.failed)) return exitCodes.failed;
  return codes.includes(exitCodes.nothing) ? exitCodes.nothing : exitCodes.fine;
}

function sentence(id: JobId, verb: string, answer: OperateAnswer): { code: ExitCode; words: string } {
  switch (answer.type) {
    case "retried":
    case "discarded":
    case "skipped":
    case "cancelled":
    case "rescheduled":
      return { code: exitCodes.fine, words: `${id} ${answer.type}` };
    case "requested":
      return {
        code: exitCodes.fine,
        words: `${id} runs: it is asked to stop at its next check, its transaction decides`,
      };
    case "not-found":
      return {
        code: exitCodes.nothing,
        words: `${id} not found: there is no such job, or its history has been pruned`,
      };
    case "busy":
      return { code: exitCodes.failed, words: `${id} busy: locked by another transaction. Try again in a moment` };
    case "not-dead":
      return {
        code: exitCodes.failed,
        words:
          verb === "cancel"
            ? `${id} is ${answer.state}: nothing to cancel`
            : `${id} is ${answer.state}: no dead letter to ${verb}`,
      };
    case "not-waiting":
      return { code: exitCodes.failed, words: `${id} is ${answer.state}: it does not wait, so nothing can be moved` };
    default:
      return answer satisfies never;
  }
}

export interface BulkRequest {
  readonly verb: BulkVerb;
  readonly filter: JobFilter;
  /** Given the count, `37 dead letters`. */
  readonly question: (jobs: string) => string;
  /** What the jobs are called: `dead letter`. */
  readonly noun: string;
  readonly yes: boolean | undefined;
  readonly spreadMs?: number;
}

/** Counts, asks, and works through what matched at that instant: what dies later is not swept in. */
export async function operateAll(context: Context, connection: Connection, request: BulkRequest): Promise<ExitCode> {
  const { out } = context;
  const { verb, filter, spreadMs } = request;
  const found = await connection.inspect.count(filter);
  if (found.upTo === null || found.n === 0) {
    await sayNothing(context, connection, filter, found.searched);
    if (out.json) out.object({ verb, changed: 0, left: 0, more: false });
    return exitCodes.nothing;
  }
  await context.confirm(
    request.question(`${count(found)} ${request.noun}${found.n === 1 && !found.capped ? "" : "s"}`),
    request.yes,
  );
  let cursor: string | null = null;
  let more = true;
  const total = { changed: 0, left: 0 };
  while (more) {
    const slice = await connection.operate.bulk({
      verb,
      filter,
      upTo: found.upTo,
      by: actor,
      ...(cursor === null ? {} : { cursor }),
      ...(spreadMs === undefined ? {} : { spreadMs }),
    });
    total.changed += slice.changed;
    total.left += slice.left;
    more = slice.more;
    cursor = slice.cursor;
    if (more) out.note(`${number(total.changed)} of ${count(found)} so far`);
  }
  const left = total.left === 0 ? "" : ` ${plural(total.left, "job")} had changed meanwhile or were locked.`;
  const past = { retry: "Retried", discard: "Discarded", cancel: "Cancelled" }[verb];
  out.answer({ verb, ...total, more }, `${past} ${number(total.changed)}.${left}`);
  if (total.changed > 0) return exitCodes.fine;
  return total.left > 0 ? exitCodes.failed : exitCodes.nothing;
}
