// The kinds of the test Worker. What a handler does is decided by the test: a handler asks the test's own HTTP server, and
// does what the answer says.

import * as z from "zod";
import { defineJob, type HandlerContext } from "../../../src/index.ts";

/** Variables of the test Worker. */
export interface KindsEnv {
  /** Address of the test's HTTP server. */
  readonly OUTSIDE: string;
  /** Which workerd process this is. */
  readonly INSTANCE: string;
}

/** What a handler sends to the test's server: one external call. */
export interface OutsideCall {
  readonly instance: string;
  readonly kind: string;
  readonly name: string;
  readonly jobId: string;
  readonly attempt: number;
  readonly idempotencyKey: string;
  /** Made by a handler that is over, or should be. */
  readonly stray: boolean;
}

/** What the server may answer, and so what the handler does next. */
export type Order =
  | "ok"
  | "throw"
  /** Never returns, whatever its signal says, and has nothing under way. */
  | "ignore-abort"
  /** Never returns either, and waits for an answer from outside that does not come. */
  | "ignore-abort-in-fetch"
  /** A query that takes a minute. */
  | "sleep-in-query"
  /** Returns while its query is still under way. */
  | "forget-query"
  /** Returns while a call to the outside is still under way. */
  | "forget-fetch"
  /** Allocates until the process dies of it. */
  | "fill-heap"
  /** Never gives the event loop back. */
  | "block";

const payload = z.object({ name: z.string() });
type Context = HandlerContext<z.output<typeof payload>>;

/** Short limits: what hangs is to be cut off soon. No backoff: the next trigger is to meet what the last one left. */
const policy = {
  payload,
  timeout: "2s",
  retry: { backoff: "fixed", minBackoff: "0ms", maxBackoff: "0ms", maxAttempts: 4 },
  maxCrashes: 3,
} as const;

export function kinds(env: KindsEnv) {
  return [
    // Calls out, then writes.
    defineJob({
      ...policy,
      kind: "call",
      async run(context) {
        await obey(env, context, await callOutside(env, context, context.signal));
      },
    }),
    // Writes, then calls out while it holds its turn.
    defineJob({
      ...policy,
      kind: "write",
      async run(context) {
        await effect(context);
        const order = await callOutside(env, context, context.signal);
        if (order !== "ok") throw new Error(`unexpected order ${order}`);
      },
    }),
    // The same with a timeout that leaves room for a short budget, and fewer crashes.
    defineJob({
      ...policy,
      kind: "brief",
      timeout: "1s",
      maxCrashes: 2,
      async run(context) {
        await obey(env, context, await callOutside(env, context, context.signal));
      },
    }),
    // Writes and nothing else.
    defineJob({ ...policy, kind: "plain", run: effect }),
    // Touches nothing: for ticks without a turn.
    defineJob({ ...policy, kind: "nothing", run() {} }),
  ];
}

async function callOutside(
  env: KindsEnv,
  { job, payload: { name } }: Context,
  signal: AbortSignal | null,
  stray = false,
) {
  const call: OutsideCall = {
    stray,
    instance: env.INSTANCE,
    kind: job.kind,
    name,
    jobId: job.id,
    attempt: job.attempt,
    idempotencyKey: job.idempotencyKey,
  };
  const answer = await fetch(env.OUTSIDE, { method: "POST", body: JSON.stringify(call), signal });
  return (await answer.text()) as Order;
}

async function effect({ tx, job, payload: { name } }: Context) {
  await tx.query("insert into public.effect (name, job_id, attempt) values ($1, $2, $3)", [name, job.id, job.attempt]);
}

async function obey(env: KindsEnv, context: Context, order: Order): Promise<void> {
  switch (order) {
    case "ok":
      return effect(context);
    case "throw":
      throw new Error("as ordered");
    case "ignore-abort":
      return new Promise(() => {});
    case "ignore-abort-in-fetch":
      await callOutside(env, context, null, true);
      return new Promise(() => {});
    case "sleep-in-query":
      await context.tx.query("select pg_sleep(60)");
      return effect(context);
    case "forget-query":
      void effect(context).catch(() => {});
      return;
    case "forget-fetch":
      void callOutside(env, context, null, true).catch(() => {});
      return effect(context);
    case "fill-heap": {
      const kept: unknown[] = [];
      for (let i = 0; ; i++) kept.push({ i, text: `${i}`.repeat(20), list: [i, i + 1] });
    }
    case "block":
      for (;;);
    default:
      order satisfies never;
      throw new Error(`unknown order ${JSON.stringify(order)}`);
  }
}
