// pgclaim jobs enqueue: one job by its kind's name, through the same function as everybody else.

import type { Command } from "commander";
import { DatabaseError, UsageError } from "../../errors.ts";
import type { JobId } from "../../model.ts";
import { text } from "../../rows.ts";
import { assertStorable } from "../../storable.ts";
import {
  type Context,
  type ExitCode,
  exitCodes,
  parse,
  Refusal,
  type Runner,
  readAll,
  suggestion,
} from "../command.ts";
import type { Connection } from "../connect.ts";
import { knownKinds } from "../filter.ts";
import { actor } from "../operate.ts";

interface EnqueueOptions {
  readonly runAt?: string;
  readonly delay?: number;
  readonly priority?: number;
  readonly deadline?: string;
}

export function addEnqueue(jobs: Command, runner: Runner): void {
  const command = jobs
    .command("enqueue")
    .description("enqueue one job of a kind that a deployment has registered")
    .argument("<kind>", "the kind's name")
    .argument("<payload>", "JSON; - reads it from stdin")
    .option("--run-at <instant>", "not before this instant, with its zone", parse.instant)
    .option("--delay <duration>", "not before so long from now", parse.duration)
    .option("--deadline <when>", 'to be finished by: an instant with its zone, or "15m" after it is due', deadlineOf)
    .option("--priority <n>", "0 to 3, smaller first; needs the right to run jobs", parse.integer(0, 3))
    .addHelpText("after", `\nExample:\n  pgclaim jobs enqueue receipt.send '{"orderId": "42"}' --delay 10m`);
  runner.act(command, (context, [kind, payload], options) =>
    enqueue(context, kind as string, payload as string, options as EnqueueOptions),
  );
}

function deadlineOf(given: string): string {
  return /^\d+(\.\d+)?(ms|s|m|h|d)$/.test(given) ? `+${parse.duration(given)}` : parse.instant(given);
}

async function enqueue(context: Context, kind: string, given: string, options: EnqueueOptions): Promise<ExitCode> {
  const { runAt, delay, priority, deadline } = options;
  if (runAt !== undefined && delay !== undefined)
    throw new Refusal(exitCodes.usage, "--run-at and --delay do not go together.");
  const payload = await payloadOf(context, kind, given);
  const connection = await context.connect();
  const facts = JSON.stringify({
    kind,
    source: actor,
    ...(priority === undefined ? {} : { priority }),
    ...(deadline?.startsWith("+") === true
      ? await untilAfterDue(connection, Number(deadline.slice(1)), options)
      : {
          ...(runAt === undefined ? {} : { runAt }),
          ...(delay === undefined ? {} : { delayMs: delay }),
          ...(deadline === undefined ? {} : { deadlineAt: deadline }),
        }),
  });
  // The payload goes as its own text: parsed and written again, a 64-bit number in it would be rounded.
  const argument = `{"jobs":[${facts.slice(0, -1)},"payload":${payload}}]}`;
  const [row] = await connection.call(
    `select i, type, job_id::text as job_id, detail from ${connection.fn("enqueue_v1")}($1::jsonb)`,
    argument,
    "enqueueing",
  );
  const type = text(row, "type");
  if (row?.job_id == null) throw await refused(connection, kind, type, String(row?.detail ?? ""));
  const id: JobId = text(row, "job_id");
  context.out.answer(
    { type, id },
    type === "enqueued" ? `Enqueued job ${id}.` : `${type}: job ${id} has its unique key.`,
  );
  return exitCodes.fine;
}

async function payloadOf(context: Context, kind: string, given: string): Promise<string> {
  const json = given === "-" ? await readAll(context.io.stdin) : given;
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch {
    // The parser's own message quotes the payload.
    throw new UsageError("PGCLAIM_INVALID_PAYLOAD", `job "${kind}": the payload is not JSON.`, { path: "payload" });
  }
  assertStorable(value, "payload", kind);
  return json;
}

/** Both instants from one reading of the database's clock, so that the length between them is what was said. */
async function untilAfterDue(
  connection: Connection,
  leftMs: number,
  { runAt, delay }: EnqueueOptions,
): Promise<{ readonly runAt?: string; readonly deadlineAt: string }> {
  const due = runAt === undefined ? (await connection.now()).getTime() + (delay ?? 0) : Date.parse(runAt);
  return {
    ...(runAt === undefined && delay === undefined ? {} : { runAt: new Date(due).toISOString() }),
    deadlineAt: new Date(due + leftMs).toISOString(),
  };
}

async function refused(connection: Connection, kind: string, reason: string, detail: string): Promise<Error> {
  switch (reason) {
    case "unknown-kind": {
      const near = suggestion(kind, await knownKinds(connection));
      return new UsageError(
        "PGCLAIM_UNKNOWN_KIND",
        `No kind "${kind}" in the database. ${near}A kind is registered when a deployment that defines it first runs.`,
        { path: "kind" },
      );
    }
    case "payload-too-large":
      return new UsageError("PGCLAIM_PAYLOAD_TOO_LARGE", `job "${kind}": the payload is over 1 MiB.`, {
        path: "payload",
      });
    case "invalid-payload":
      return new UsageError("PGCLAIM_INVALID_PAYLOAD", `job "${kind}": the database takes no such payload.`, {
        path: "payload",
      });
    case "priority-denied":
      return new UsageError(
        "PGCLAIM_PERMISSION_DENIED",
        `job "${kind}": only a role that may run jobs may choose --priority.`,
      );
    case "invalid-key":
      return new UsageError(
        "PGCLAIM_INVALID_PAYLOAD",
        `job "${kind}": a key or name cannot be made of the payload: ${detail}`,
        {
          path: "payload",
        },
      );
    case "invalid-run-at":
    case "invalid-priority":
      return new UsageError("PGCLAIM_INVALID_OPTION", `job "${kind}": the database refused it as ${reason}.`);
    default:
      return new DatabaseError("PGCLAIM_QUERY_FAILED", `The database refused the job as ${reason}.`);
  }
}
