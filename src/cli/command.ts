// What all commands share: exit codes, the context of a run, questions, options' values. No command decides about jobs: that is
// what the database's functions do.

import { createInterface } from "node:readline/promises";
import { type Command, InvalidArgumentError } from "commander";
import { parseDuration } from "../duration.ts";
import { isStorableInstant } from "../enqueue.ts";
import { type ErrorCode, PgclaimError, sqlStateOf, toError } from "../errors.ts";
import { nearest } from "../nearest.ts";
import { type Connection, connectTo, databaseUrl, type Env, withEnvFile } from "./connect.ts";
import { safe } from "./format.ts";
import { Output, type Stream } from "./output.ts";

/** What a shell and a CI are told. */
export const exitCodes = { fine: 0, failed: 1, usage: 2, unreachable: 3, nothing: 4 } as const;
export type ExitCode = (typeof exitCodes)[keyof typeof exitCodes];

/** Refuses with a code of its own; the message goes to stderr as it stands. */
export class Refusal extends Error {
  readonly exitCode: ExitCode;
  constructor(exitCode: ExitCode, message: string) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** The process as the commands see it. */
export interface Io {
  readonly env: Env;
  readonly stdin: NodeJS.ReadStream;
  readonly stdout: Stream;
  readonly stderr: Stream;
}

interface GlobalOptions {
  readonly json?: boolean;
  readonly schema?: string;
  readonly databaseUrlEnv?: string;
  readonly env?: string;
  readonly databaseUrl?: string;
}

export interface Context {
  readonly io: Io;
  readonly env: Env;
  readonly out: Output;
  /** The installation's schema: --schema, else PGCLAIM_SCHEMA, else pgclaim. */
  readonly schema: string;
  /** The variable that has the database's address. */
  readonly urlName: string;
  /** The address. Errors: PGCLAIM_INVALID_DATABASE_URL. */
  url(): string;
  connect(): Promise<Connection>;
  /** Asks on a terminal. Without one it refuses and names --yes: a script must not wait for ever. Refusing is an error. */
  confirm(question: string, yes: boolean | undefined): Promise<void>;
}

export type Action = (context: Context, args: readonly unknown[], options: unknown) => Promise<ExitCode>;

/** Runs actions and keeps the exit code of the one that ran. */
export class Runner {
  readonly #io: Io;
  exitCode: ExitCode = exitCodes.fine;

  constructor(io: Io) {
    this.#io = io;
  }

  /** Gives a command its action. */
  act(command: Command, action: Action): Command {
    return command.action(async () => {
      const options = command.optsWithGlobals<GlobalOptions>();
      const out = new Output({ ...this.#io, json: options.json === true });
      try {
        if (options.databaseUrl !== undefined) throw addressAsArgument();
        this.exitCode = await action(this.#context(options, out), command.processedArgs, options);
      } catch (error) {
        this.exitCode = exitCodeOf(error);
        out.thrown(error);
      }
    });
  }

  #context(options: GlobalOptions, out: Output): Context {
    const env = withEnvFile(this.#io.env, options.env);
    const schema = options.schema ?? (env.PGCLAIM_SCHEMA || "pgclaim");
    const urlName = options.databaseUrlEnv ?? "DATABASE_URL";
    const url = () => databaseUrl(env, urlName);
    return {
      io: this.#io,
      env,
      out,
      schema,
      urlName,
      url,
      connect: () => connectTo(url(), schema),
      confirm: (question, yes) => confirm(this.#io, question, yes),
    };
  }
}

function addressAsArgument(): Refusal {
  return new Refusal(
    exitCodes.usage,
    "The database's address has a password in it, and arguments are seen by everybody on this machine and kept in the shell's " +
      "history. Set DATABASE_URL, or name the variable that has it: --database-url-env STAGING_URL.",
  );
}

async function confirm(io: Io, question: string, yes: boolean | undefined): Promise<void> {
  if (yes === true) return;
  if (io.stdin.isTTY !== true || io.stderr.isTTY !== true) {
    throw new Refusal(exitCodes.usage, `${question} Nobody can be asked here: say --yes. Nothing was changed.`);
  }
  const lines = createInterface({ input: io.stdin, output: io.stderr });
  try {
    const answer = await lines.question(`${safe(question)} [y/N] `);
    if (/^\s*y(es)?\s*$/i.test(answer)) return;
  } finally {
    lines.close();
  }
  throw new Refusal(exitCodes.failed, "Nothing was changed.");
}

/** Codes under which nobody heard us, or nobody let us in. */
const unreachable: ReadonlySet<ErrorCode> = new Set<ErrorCode>([
  "PGCLAIM_CONNECT_FAILED",
  "PGCLAIM_AUTHENTICATION_FAILED",
  "PGCLAIM_NO_ANSWER",
]);
const misused: ReadonlySet<ErrorCode> = new Set<ErrorCode>([
  "PGCLAIM_INVALID_OPTION",
  "PGCLAIM_INVALID_DATABASE_URL",
  "PGCLAIM_INVALID_SCHEMA_NAME",
]);
/** No such database, no connection left, starting up or shutting down. */
const closed = new Set(["3D000", "53300", "57P03"]);

export function exitCodeOf(error: unknown): ExitCode {
  if (error instanceof Refusal) return error.exitCode;
  if (!(error instanceof PgclaimError)) return exitCodes.failed;
  if (unreachable.has(error.code) || closed.has(sqlStateOf(error.cause) ?? "")) return exitCodes.unreachable;
  return misused.has(error.code) ? exitCodes.usage : exitCodes.failed;
}

/** What an option takes, as commander wants it: the answer, or a refusal that names what was expected. */
export const parse = {
  integer:
    (least: number, most: number) =>
    (text: string): number => {
      const n = /^-?\d+$/.test(text) ? Number(text) : Number.NaN;
      if (n >= least && n <= most) return n;
      throw new InvalidArgumentError(`Expected an integer from ${least} to ${most}.`);
    },
  /** A 64-bit id, as text. */
  id: (text: string): string => {
    if (/^[1-9]\d{0,18}$/.test(text)) return text;
    throw new InvalidArgumentError("Expected a job's id, a positive integer.");
  },
  ids: (text: string, before: readonly string[] | undefined): readonly string[] => [...(before ?? []), parse.id(text)],
  /** Integer milliseconds of "20s", "15m", "2h", "7d". */
  duration: (text: string): number => {
    try {
      return parseDuration(text, "it");
    } catch {
      throw new InvalidArgumentError('Expected a number with its unit, ms, s, m, h or d: "90s", "2h".');
    }
  },
  /** ISO 8601 in UTC. An instant without a zone would mean another one on another machine. */
  instant: (text: string): string => {
    const date = new Date(text);
    if (/^\d{4}-\d{2}-\d{2}T.*(Z|[+-]\d{2}:?\d{2})$/i.test(text) && isStorableInstant(date)) return date.toISOString();
    throw new InvalidArgumentError('Expected an instant with its zone: "2026-11-30T14:05:00Z".');
  },
  choice:
    <T extends string>(known: readonly T[]) =>
    (text: string): T => {
      const found = known.find((name) => name === text);
      if (found !== undefined) return found;
      throw new InvalidArgumentError(`${suggestion(text, known)}Expected one of: ${known.join(", ")}.`);
    },
  json: (text: string): Readonly<Record<string, unknown>> => {
    try {
      const value: unknown = JSON.parse(text);
      if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
    } catch {
      // Said below; the parser's message would quote the text.
    }
    throw new InvalidArgumentError("Expected a JSON object.");
  },
};

/** `Did you mean "x"? `, or nothing. */
export function suggestion(name: string, known: readonly string[]): string {
  const near = nearest(name, known);
  return near === null ? "" : `Did you mean "${near}"? `;
}

/** All of stdin. */
export async function readAll(stream: NodeJS.ReadStream): Promise<string> {
  const parts: Buffer[] = [];
  for await (const part of stream) parts.push(part as Buffer);
  return Buffer.concat(parts).toString("utf8");
}

/** What an error says on one line, for a message of ours. */
export function reasonOf(error: unknown): string {
  return toError(error).message;
}
