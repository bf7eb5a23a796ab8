// The built command as a process, and a database with some of everything in it.

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { onTestFinished } from "vitest";
import * as z from "zod";
import { deadLetter, defineJob, defineSchedule } from "../../../src/index.ts";
import { endsWithin } from "../../support/gate.ts";
import type { World } from "../../support/world.ts";

const main = fileURLToPath(new URL("../../../dist/cli/main.js", import.meta.url));

export interface Ran {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
  /** Lines of stdout as JSON. */
  json<T = Record<string, unknown>>(): T[];
}

export interface RunOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly stdin?: string;
}

/** Runs `pgclaim` with an environment of its own: none of the caller's PGCLAIM_ or DATABASE_URL reaches it. */
export function pgclaim(
  url: string | null,
  args: readonly string[],
  { env = {}, stdin = "" }: RunOptions = {},
): Promise<Ran> {
  return run(process.execPath, [main, ...args], environment(url, env), stdin);
}

/** The same in a terminal of 120 columns and 40 rows, what it prints being one stream. `stdin` is what is typed. */
export function inTerminal(
  url: string,
  args: readonly string[],
  { env = {}, stdin = "" }: RunOptions = {},
): Promise<Ran> {
  const quoted = [process.execPath, main, ...args].map((arg) => `'${arg.replaceAll("'", "'\\''")}'`).join(" ");
  return run(
    "script",
    ["--quiet", "--return", "--echo", "never", "--command", `stty cols 120 rows 40; ${quoted}`, "/dev/null"],
    environment(url, { TERM: "xterm", ...env }),
    stdin,
  );
}

/** `script` of util-linux gives a terminal. */
export const hasTerminal = ["/usr/bin/script", "/bin/script"].some(existsSync);
if (!hasTerminal)
  console.warn("NOT RUN: what the command line does on a terminal. There is no `script` (util-linux) here.");

function environment(url: string | null, env: Readonly<Record<string, string>>): Record<string, string> {
  return { PATH: process.env.PATH ?? "", ...(url === null ? {} : { DATABASE_URL: url }), ...env };
}

function run(program: string, args: readonly string[], env: Record<string, string>, stdin: string): Promise<Ran> {
  const child = spawn(program, args, { env, stdio: ["pipe", "pipe", "pipe"] });
  let [out, err] = ["", ""];
  child.stdout.setEncoding("utf8").on("data", (text: string) => {
    out += text;
  });
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    err += text;
  });
  child.stdin.on("error", () => {}); // it may end without having read
  child.stdin.end(stdin);
  const ended = new Promise<Ran>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) =>
      resolve({
        code,
        out,
        err,
        json: <T>() =>
          out
            .split("\n")
            .filter((line) => line !== "")
            .map((line) => JSON.parse(line) as T),
      }),
    );
  });
  return endsWithin(25_000, ended, `pgclaim ${args.slice(1).join(" ")}`);
}

/** Clears a screen, colours by a C1 control, turns the direction of writing, ends a line. */
export const hostile = 'no \u001b[2J\u009b31m\u202eevil\r\nline "two" <b>';

const account = z.object({ account: z.string() });

/** What is done at once, what dies with a hostile error, what waits behind a dead one. */
export const kinds = {
  receipt: defineJob({ kind: "receipt.send", payload: z.object({ orderId: z.string() }), async run() {} }),
  doomed: defineJob({
    kind: "doomed",
    payload: z.object({ text: z.string() }),
    async run() {
      return deadLetter(hostile);
    },
  }),
  transfer: defineJob({
    kind: "transfer",
    payload: account,
    orderingKey: "account:{account}",
    async run() {
      return deadLetter("the bank said no");
    },
  }),
};

export const nightly = defineSchedule({
  name: "nightly",
  cron: "30 2 * * *",
  job: kinds.receipt,
  payload: { orderId: "nightly" },
});

export interface Stocked {
  /** Ids: done, dead with a hostile error, dead head of a halted key, waiting behind it, due later. */
  readonly done: string;
  readonly doomed: string;
  readonly head: string;
  readonly behind: string;
  readonly later: string;
}

/** Some of everything, by real invocations. */
export async function stock(world: World): Promise<Stocked> {
  const claimer = world.claimer("pg", { jobs: Object.values(kinds), schedules: [nightly] });
  const done = await claimer.enqueue(kinds.receipt, { orderId: "1" });
  const doomed = await claimer.enqueue(kinds.doomed, { text: hostile });
  const head = await claimer.enqueue(kinds.transfer, { account: "42" });
  const behind = await claimer.enqueue(kinds.transfer, { account: "42" });
  const later = await claimer.enqueue(kinds.receipt, { orderId: "2" }, { delay: "2h" });
  await claimer.invoke({ type: "cron", cron: "* * * * *", scheduledAt: null });
  return { done: done.id, doomed: doomed.id, head: head.id, behind: behind.id, later: later.id };
}

/** A fetch handler on a socket of this machine. */
export async function serve(app: { fetch(request: Request): Response | Promise<Response> }): Promise<string> {
  const server = http.createServer(async (request, response) => {
    const answer = await app.fetch(
      new Request(`http://localhost${request.url}`, {
        method: request.method ?? "GET",
        headers: request.headers as Record<string, string>,
      }),
    );
    response.writeHead(answer.status, Object.fromEntries(answer.headers));
    response.end(await answer.text());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => void server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}
