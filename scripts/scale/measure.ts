// One read, timed as it is made: in a read-only transaction of its own, over and over. The time a backend waited for a core is
// taken off where the kernel tells it (Linux), so that a busy machine does not blame the query.

import { readFileSync } from "node:fs";
import pg from "pg";
import type { Question } from "./questions.ts";

export interface Measured extends Question {
  /** Median of five, warm. */
  readonly ms: number;
  /** The first call of a new connection, which reads catalogues and plans: what a one-shot pays. */
  readonly firstMs: number;
  /** Items of the answer, 1 where it is no list. */
  readonly rows: number;
  /** Shared buffers touched by a call. */
  readonly buffers: number;
}

export async function measure(url: string, question: Question): Promise<Measured> {
  // A connection of its own, as a one-shot has one: warm after its first call, and of no plan that another verb left.
  const session = new pg.Client(url);
  await session.connect();
  const { rows: who } = await session.query<{ pid: number }>("select pg_backend_pid() as pid");
  const pid = who[0]?.pid ?? 0;
  const text = `select pgclaim.${question.verb}($1::jsonb) as answer`;
  const argument = [JSON.stringify(question.request)];
  const call = async (statement: string) => {
    await session.query("begin isolation level repeatable read read only; set local statement_timeout = '2s'");
    const waited = waitedMs(pid);
    const start = performance.now();
    const { rows } = await session.query<Record<string, unknown>>(statement, argument);
    const ms = performance.now() - start - (waitedMs(pid) - waited);
    await session.query("commit");
    return { ms, rows };
  };
  const { ms: firstMs } = await call(text);
  const times: number[] = [];
  let answer: unknown;
  for (let i = 0; i < 5; i++) {
    const { ms, rows } = await call(text);
    times.push(ms);
    answer = rows[0]?.answer;
  }
  times.sort((a, b) => a - b);
  const { rows: plan } = await call(`explain (analyze, buffers, format json) ${text}`);
  await session.end();
  return {
    ...question,
    ms: times[2] ?? Number.POSITIVE_INFINITY,
    firstMs,
    rows: rowsOf(answer),
    buffers: buffersOf(plan[0]?.["QUERY PLAN"]),
  };
}

/** Milliseconds that a process has been ready to run and had no core. */
function waitedMs(pid: number): number {
  try {
    return Number(readFileSync(`/proc/${pid}/schedstat`, "utf8").split(" ")[1] ?? 0) / 1e6;
  } catch {
    return 0; // another system, or another machine
  }
}

function rowsOf(answer: unknown): number {
  if (Array.isArray(answer)) return answer.length;
  if (typeof answer !== "object" || answer === null) return 0;
  for (const field of ["items", "groups", "points", "holders", "ticks", "triggers"]) {
    const list = (answer as Record<string, unknown>)[field];
    if (Array.isArray(list)) return list.length;
  }
  return 1;
}

function buffersOf(plan: unknown): number {
  const [top] = plan as readonly { readonly Plan: Readonly<Record<string, number>> }[];
  return (top?.Plan["Shared Hit Blocks"] ?? 0) + (top?.Plan["Shared Read Blocks"] ?? 0);
}
