// pgclaim trigger: wakes a deployment by its HTTP route, and says what it did.

import type { Command } from "commander";
import { toError } from "../../errors.ts";
import type { InvocationReport } from "../../model.ts";
import { type Context, type ExitCode, exitCodes, parse, Refusal, type Runner } from "../command.ts";
import { lengthOr } from "../format.ts";
import { deploymentUrl, errorOf } from "../http.ts";

interface TriggerOptions {
  readonly url?: string;
  readonly queue?: readonly string[];
  readonly budget?: number;
  readonly wait: boolean;
}

/** The longest an invocation may take by HTTP, and some. */
const answerLimitMs = 120_000;

export function addTrigger(program: Command, runner: Runner): void {
  const command = program
    .command("trigger")
    .description("wake a deployment: POST /api/trigger with PGCLAIM_TRIGGER_SECRET")
    .option("--url <address>", "the deployment (PGCLAIM_URL)")
    .option("--queue <names...>", "only these queues")
    .option("--budget <duration>", "at most so long; the deployment cuts it to its own", parse.duration)
    .option("--no-wait", "do not wait for the report, where the runtime can go on after its answer");
  runner.act(command, (context, _, options) => trigger(context, options as TriggerOptions));
}

async function trigger(context: Context, options: TriggerOptions): Promise<ExitCode> {
  const { out, env } = context;
  const base = deploymentUrl(options.url ?? env.PGCLAIM_URL);
  const secret = env.PGCLAIM_TRIGGER_SECRET?.trim() ?? "";
  if (secret === "")
    throw new Refusal(
      exitCodes.usage,
      "PGCLAIM_TRIGGER_SECRET is not set. Set it in the environment, or name a file that has it: --env .dev.vars",
    );
  const response = await post(new URL("/api/trigger", base), secret, {
    ...(options.queue === undefined ? {} : { queues: options.queue }),
    ...(options.budget === undefined ? {} : { budget: `${options.budget}ms` }),
    ...(options.wait ? {} : { wait: false }),
  });
  const body = await response.json().catch(() => null);
  if (!response.ok) {
    const { code, message } = errorOf(response.status, body);
    out.error(code, message);
    return exitCodes.failed;
  }
  if (response.status === 202) {
    out.answer(body, "Accepted: it works on after its answer.");
    return exitCodes.fine;
  }
  const report = body as InvocationReport;
  out.answer(report, sentence(report));
  return report.error === undefined ? exitCodes.fine : exitCodes.failed;
}

async function post(url: URL, secret: string, body: object): Promise<Response> {
  try {
    return await fetch(url, {
      method: "POST",
      headers: { authorization: `Bearer ${secret}`, "content-type": "application/json" },
      body: JSON.stringify(body),
      // The secret is for this address and no other.
      redirect: "error",
      signal: AbortSignal.timeout(answerLimitMs),
    });
  } catch (error) {
    const cause = error instanceof Error && error.cause !== undefined ? toError(error.cause) : toError(error);
    throw new Refusal(exitCodes.failed, `${url.origin} did not answer (${cause.message}).`);
  }
}

function sentence(report: InvocationReport): string {
  const counts = (["done", "retried", "dead", "missed", "snoozed", "released", "cancelled"] as const)
    .filter((name) => report[name] > 0)
    .map((name) => `${name} ${report[name]}`);
  const skipped = Object.entries(report.skipped).map(([reason, n]) => `${n} ${reason}`);
  const { session, oneShot } = report.roundTrips;
  return [
    `${report.ended}: ${report.ticks.length} ticks, claimed ${report.claimed}`,
    ...counts,
    skipped.length === 0 ? "" : `skipped ${skipped.join(", ")}`,
    `${session}+${oneShot} round trips, ${lengthOr(report.totalMs)}`,
    report.error === undefined ? "" : `${report.error.code}: ${report.error.message}`,
  ]
    .filter((part) => part !== "")
    .join(", ");
}
