// pgclaim doctor: checks a real deployment, a line for each check and one thing to do where something is wrong.

import type { Command } from "commander";
import { databaseUrlFault } from "../../database.ts";
import { withoutConnectionStrings } from "../../errors.ts";
import { counts } from "../../limits.ts";
import { type Context, type ExitCode, exitCodes, parse, type Runner } from "../command.ts";
import { examine } from "../doctor/examine.ts";
import type { Finding, Status } from "../doctor/finding.ts";
import { type GrantScope, scopes } from "../doctor/privileges.ts";
import { type Style, safe } from "../format.ts";
import { deploymentUrl } from "../http.ts";

interface DoctorOptions {
  readonly url?: string;
  readonly strict?: boolean;
  readonly batch: number;
  readonly invocations: number;
  readonly scope?: readonly GrantScope[];
}

const styles: Readonly<Record<Status, Style>> = { ok: "good", warn: "warn", FAIL: "bad" };

export function addDoctor(program: Command, runner: Runner): void {
  const scope = parse.choice(scopes);
  const command = program
    .command("doctor")
    .description(
      "check a deployment: connection, pooler, settings, schema, rights, work; reads only (exit 1: a check failed)",
    )
    .option("--url <address>", "also ask the deployment's routes, without a secret (PGCLAIM_URL)")
    .option("--strict", "a warning fails as well")
    .option(
      "--batch <n>",
      "jobs of a tick, to hold against the lock table",
      parse.integer(1, counts.maxBatch),
      counts.batch,
    )
    .option(
      "--invocations <n>",
      "invocations at once, to hold against locks and connections",
      parse.integer(1, 100_000),
      16,
    )
    .option(
      "--scope <scope>",
      `what this role must be able to do: ${scopes.join(", ")}; may be repeated`,
      (text: string, before: readonly GrantScope[] | undefined) => [...(before ?? []), scope(text)],
    );
  runner.act(command, (context, _, options) => doctor(context, options as DoctorOptions));
}

async function doctor(context: Context, options: DoctorOptions): Promise<ExitCode> {
  const { out, env, schema } = context;
  const address = options.url ?? env.PGCLAIM_URL;
  const url = context.url();
  const examination = await examine({
    url,
    schema,
    env,
    load: { batch: options.batch, invocations: options.invocations },
    scopes: options.scope ?? [],
    deployment: address === undefined || address === "" ? null : deploymentUrl(address),
    onProgress: (name) => out.status(`looking at: ${name}`),
  });
  out.status(null);
  const { findings, server } = examination;
  const number = (status: Status) => findings.filter((finding) => finding.status === status).length;
  const [failed, warnings, fine] = [number("FAIL"), number("warn"), number("ok")];
  const bad = failed > 0 || (options.strict === true && warnings > 0);
  const code = !examination.reached ? exitCodes.unreachable : bad ? exitCodes.failed : exitCodes.fine;
  const head = {
    address: addressOf(url),
    // Distributions put their own name behind it.
    postgres: server === null ? null : (String(server.version).split(" ", 1)[0] ?? null),
    role: server === null ? null : String(server.role),
    schema,
  };
  if (out.json) {
    out.object({ ...head, checks: findings, failed, warnings, ok: fine, exitCode: code });
    return code;
  }
  out.line(safe(`postgres ${head.postgres ?? "?"}   ${head.address}   schema ${schema}`));
  for (const finding of findings) print(context, finding);
  out.line(`${failed} failed, ${warnings} ${warnings === 1 ? "warning" : "warnings"}, ${fine} ok   exit ${code}`);
  return code;
}

function print({ out }: Context, { name, status, measured, todo }: Finding): void {
  const text = (part: string) => safe(withoutConnectionStrings(part));
  out.line(`${out.paint(` ${status.padEnd(5)}`, styles[status])} ${name.padEnd(19)}${text(measured)}`);
  if (todo !== null) out.line(`       -> ${text(todo)}`);
}

/** The address as it may be shown: without password and parameters. */
function addressOf(url: string): string {
  if (databaseUrlFault(url) !== null) return "?";
  const { username, host, pathname } = new URL(url);
  return `${decodeURIComponent(username)}@${host}${pathname}`;
}
