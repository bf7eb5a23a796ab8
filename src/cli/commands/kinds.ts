// pgclaim kinds: what deployments have registered, and which deployment is in force.

import type { Command } from "commander";
import { DatabaseError } from "../../errors.ts";
import { instant, integer, json, text } from "../../rows.ts";
import { type Context, type ExitCode, exitCodes, parse, type Runner } from "../command.ts";
import { ago, count, length, lengthOr } from "../format.ts";

export function addKinds(program: Command, runner: Runner): void {
  const kinds = program.command("kinds").description("kinds of jobs and the deployments that define them");
  runner.act(kinds.command("list").description("kinds with their policy (exit 4: none)"), (context) =>
    listKinds(context),
  );
  runner.act(
    kinds.command("revisions").description("deployments that have registered, the newest first (exit 4: none)"),
    (context) => revisions(context),
  );
  const use = kinds
    .command("use")
    .description("after a rollback: put an older deployment in force again, with its kinds, schedules and queue limits")
    .argument("<revision>", "its number, as `kinds revisions` prints it", parse.integer(1, 2_147_483_647))
    .option("--yes", "do not ask");
  runner.act(use, (context, [n], options) => useRevision(context, n as number, (options as { yes?: boolean }).yes));
}

async function listKinds(context: Context): Promise<ExitCode> {
  const { out } = context;
  const { inspect } = await context.connect();
  const kinds = await inspect.kinds();
  out.list(
    kinds,
    ["kind", "queue", "registered", "waiting", "revision", "timeout", "attempts", "deadline", "when dead", "key"],
    (kind) => [
      kind.name,
      kind.queue,
      kind.registered ? "yes" : { text: "no", style: kind.waiting.n > 0 ? "bad" : "muted" },
      count(kind.waiting),
      String(kind.revision),
      length(kind.timeoutMs),
      String(kind.maxAttempts),
      lengthOr(kind.deadlineMs),
      kind.whenDead,
      kind.orderingKey ?? "-",
    ],
  );
  if (kinds.length > 0) return exitCodes.fine;
  out.note("No kinds yet: they are registered when a deployment that defines them first runs.");
  return exitCodes.nothing;
}

async function revisions(context: Context): Promise<ExitCode> {
  const { out } = context;
  const connection = await context.connect();
  const rows = await connection.call(
    `select n, digest, to_json(registered_at) #>> '{}' as registered_at, to_json(kinds) as kinds from ${connection.fn("revisions_v1")}() where $1 = ''`,
    "",
    "listing deployments",
    true,
  );
  const now = rows.length === 0 || out.json ? "" : (await connection.now()).toISOString();
  const found = rows.map((row) => ({
    n: integer(row, "n"),
    digest: text(row, "digest"),
    registeredAt: instant(row, "registered_at").toISOString(),
    kinds: json(row, "kinds") as string[],
  }));
  out.list(found, ["revision", "registered", "digest", "kinds"], (one) => [
    String(one.n),
    ago(one.registeredAt, now),
    one.digest.slice(0, 12),
    one.kinds.join(", "),
  ]);
  if (found.length > 0) return exitCodes.fine;
  out.note("No deployment has registered yet.");
  return exitCodes.nothing;
}

async function useRevision(context: Context, n: number, yes: boolean | undefined): Promise<ExitCode> {
  const { out } = context;
  const connection = await context.connect();
  await context.confirm(
    `Put deployment ${n} in force? Its kinds, schedules and queue limits replace the newer ones, and it must be able to read what those have enqueued.`,
    yes,
  );
  const [row] = await connection.call(
    `select ${connection.fn("use_revision_v1")}($1::integer) as answer`,
    String(n),
    "putting a deployment in force",
  );
  const answer = json(row, "answer") as { readonly type: string; readonly revision?: number };
  switch (answer.type) {
    case "used":
      out.answer(answer, `Deployment ${n} is in force, as revision ${answer.revision}.`);
      return exitCodes.fine;
    case "current":
      out.answer(answer, `Deployment ${n} is in force already.`);
      return exitCodes.fine;
    case "not-found":
      out.answer(answer, `There is no deployment ${n}. See: pgclaim kinds revisions`);
      return exitCodes.nothing;
    case "unknown":
      out.answer(
        answer,
        `Deployment ${n} was registered by a release that did not remember it. Deploy it once more with any change.`,
      );
      return exitCodes.failed;
    default:
      throw new DatabaseError("PGCLAIM_QUERY_FAILED", `The database answered ${JSON.stringify(answer.type)}.`);
  }
}
