// The doctor's own connection. Each question is one read-only transaction with a limit, sent as one message, so that nothing is
// left behind in a pooler's session.

import { performance } from "node:perf_hooks";
import type pg from "pg";
import { systemClock, timedOut, within } from "../../clock.ts";
import { destroySocket, literal } from "../../database.ts";
import type { Row } from "../../rows.ts";

/** How long one question may take on the server, and how long we wait for its answer. */
export const askMs = 5_000;
const answerMs = 10_000;

export interface Probe {
  readonly client: pg.Client;
  /** Rows of one statement, which may have one text argument, `$1`. */
  ask(statement: string, argument?: string): Promise<readonly Row[]>;
  /** Milliseconds one empty question takes. */
  ping(): Promise<number>;
  /** Sends as it stands, with a limit on our side. */
  send(message: string, limitMs?: number): Promise<readonly Result[]>;
  close(): Promise<void>;
}

export interface Result {
  readonly command: string;
  readonly rows: readonly Row[];
}

/** Connects. Errors: the driver's. */
export async function openProbe(connectionString: string, connectMs: number): Promise<Probe> {
  const { default: driver } = await import("pg");
  const client = new driver.Client({
    connectionString,
    connectionTimeoutMillis: connectMs,
    application_name: "pgclaim doctor",
  });
  client.on("error", () => {}); // The query in flight rejects with it.
  try {
    await client.connect();
  } catch (error) {
    destroySocket(client);
    throw error;
  }

  async function send(message: string, limitMs = answerMs): Promise<readonly Result[]> {
    const answer = await within(systemClock, limitMs, client.query(message) as unknown as Promise<Result | Result[]>);
    if (answer === timedOut) throw new Error(`no answer within ${limitMs} ms`);
    return Array.isArray(answer) ? answer : [answer];
  }

  return {
    client,
    send,
    async ask(statement, argument) {
      const text = argument === undefined ? statement : statement.replaceAll("$1", () => literal(argument));
      const message = `begin isolation level repeatable read read only; set local statement_timeout = ${askMs}; set local search_path = ''; ${text}; commit`;
      try {
        return (await send(message))[3]?.rows ?? [];
      } catch (error) {
        // The message ended in the middle: the transaction is still open, and failed.
        await send("rollback").catch(() => {});
        throw error;
      }
    },
    async ping() {
      const started = performance.now();
      await send("select 1");
      return performance.now() - started;
    },
    async close() {
      await within(systemClock, 1_000, client.end()).catch(() => {});
      destroySocket(client);
    },
  };
}
