// The kinds of the soak of everything, for Node and for workerd alike. Each handler tells the soak's own HTTP server that it
// has started, does what the answer says, and proves in its turn, by advisory locks of its own that end with the same
// transaction, that nobody else is where only it may be.

import * as z from "zod";
import { type AnyJobDefinition, deadLetter, defineJob, type HandlerContext, snooze } from "../../src/index.ts";

export interface JobsEnv {
  /** Address of the soak's HTTP server. */
  readonly outside: string;
  /** Which process this is, so that the server can end it. */
  readonly instance: string;
}

/** What a handler tells when it starts. */
export interface Call {
  readonly instance: string;
  readonly kind: string;
  readonly jobId: string;
  readonly attempt: number;
  readonly key: string;
}

/** What it is told to do. `deaf` never ends, whatever its signal says, and `slow` sleeps in a query. */
export type Order = "ok" | "throw" | "throw-late" | "snooze" | "slow" | "deaf";

const payload = z.object({
  /** The ordering key. */
  k: z.string(),
  /** Names: two for itself, one shared. */
  a: z.string(),
  b: z.string(),
  c: z.string(),
  tenant: z.string(),
  /** The unique key. */
  u: z.string(),
  /** The job that enqueued it, or "". */
  parent: z.string(),
});
export type Payload = z.infer<typeof payload>;
type Context = HandlerContext<Payload>;

/** As many at a time of one tenant. */
const tenantMax = 2;
/** Classes of the handlers' own locks, two-part keys, which pgclaim does not use. */
const classes = { name: 7_001, order: 7_002, slot: 7_003 } as const;

/** Nobody's failures or crashes are ever too many, but the poison's. */
const policy = {
  payload,
  timeout: "1500ms",
  retry: { minBackoff: "10ms", maxBackoff: "60ms", maxAttempts: 1_000 },
  maxCrashes: 100,
} as const;

/** An error with this in it is a promise broken. */
export const violation = "VIOLATION";

export function everythingJobs(env: JobsEnv): AnyJobDefinition[] {
  const work = async (context: Context, check?: () => Promise<void>) => {
    const order = await tell(env, context);
    if (order === "throw") throw new Error("fails before its effect");
    if (order === "deaf") return new Promise<never>(() => {});
    if (order === "snooze") return snooze("50ms");
    await check?.();
    await effect(context);
    if (order === "slow") await context.tx.query("select pg_sleep(0.3)");
    if (order === "throw-late") throw new Error("fails after its effect");
    return undefined;
  };
  const child = defineJob({ ...policy, kind: "soak.child", run: (context) => work(context) });
  return [
    child,
    defineJob({ ...policy, kind: "soak.plain", run: (context) => work(context) }),
    defineJob({
      ...policy,
      kind: "soak.ordered",
      orderingKey: "k:{k}",
      run: (context) => work(context, () => take(context, classes.order, context.payload.k)),
    }),
    defineJob({
      ...policy,
      kind: "soak.locked",
      locks: ["name:{a}", "name:{b}"],
      sharedLocks: ["name:{c}"],
      run: (context) =>
        work(context, async () => {
          const { a, b, c } = context.payload;
          await take(context, classes.name, a);
          await take(context, classes.name, b);
          if (c !== a && c !== b) await take(context, classes.name, c, "_shared");
        }),
    }),
    defineJob({
      ...policy,
      kind: "soak.limited",
      limits: [{ name: "tenant:{tenant}", max: tenantMax }],
      run: (context) => work(context, () => takeSlot(context, context.payload.tenant)),
    }),
    // The same limit behind another gate: here only the slots can hold it.
    defineJob({
      ...policy,
      kind: "soak.limited_line",
      orderingKey: "line:{k}",
      limits: [{ name: "tenant:{tenant}", max: tenantMax }],
      run: (context) => work(context, () => takeSlot(context, context.payload.tenant)),
    }),
    defineJob({ ...policy, kind: "soak.unique", uniqueKey: "u:{u}", run: (context) => work(context) }),
    defineJob({ ...policy, kind: "soak.alone", alone: true, run: (context) => work(context) }),
    defineJob({
      ...policy,
      kind: "soak.parent",
      async run(context) {
        const answer = await work(context);
        // A snooze would commit the child as well, and there would be another one next time.
        if (answer === undefined) await context.enqueue(child, { ...context.payload, parent: context.job.id });
        return answer;
      },
    }),
    // Ends as a dead letter, and its effect with it.
    defineJob({
      ...policy,
      kind: "soak.dead",
      async run(context) {
        await tell(env, context);
        await effect(context);
        return deadLetter("as the soak wants it");
      },
    }),
    // Ends its process each time: the server it tells does it.
    defineJob({
      ...policy,
      kind: "soak.poison",
      maxCrashes: 2,
      async run(context) {
        await tell(env, context);
        await new Promise(() => {});
      },
    }),
  ];
}

async function tell({ outside, instance }: JobsEnv, { job, signal }: Context): Promise<Order> {
  const call: Call = { instance, kind: job.kind, jobId: job.id, attempt: job.attempt, key: job.idempotencyKey };
  const answer = await fetch(outside, { method: "POST", body: JSON.stringify(call), signal });
  return (await answer.text()) as Order;
}

async function effect({ tx, job, payload: { k } }: Context): Promise<void> {
  await tx.query(
    `insert into effect (kind, job_id, attempt, k, place)
     select $1, $2, $3, $4, j.place from pgclaim.job j where j.id = $2`,
    [job.kind, job.id, job.attempt, k],
  );
}

async function take({ tx }: Context, kind: number, name: string, how: "" | "_shared" = ""): Promise<void> {
  const text = `select pg_try_advisory_xact_lock${how}($1, hashtext($2)) as mine`;
  // Twice: the one before may be in the midst of its COMMIT, where locks go one after another.
  for (const pause of [0.05, 0]) {
    const { rows } = await tx.query<{ mine: boolean }>(text, [kind, name]);
    if (rows[0]?.mine === true) return;
    await tx.query("select pg_sleep($1)", [pause]);
  }
  throw new Error(`${violation}: "${name}" of class ${kind} is held by somebody else`);
}

export async function takeSlot({ tx }: Pick<Context, "tx">, tenant: string): Promise<void> {
  // A tick whose jobs share one slot of the limit takes one here as well: a second one, which became free meanwhile, would be
  // missing to whoever has its slot by right.
  const { rows: mine } = await tx.query(
    `select from pg_locks l
     where l.pid = pg_backend_pid() and l.locktype = 'advisory' and l.objsubid = 2 and l.classid::bigint = $1
       and l.objid::bigint in (select hashtext($2 || '#' || s) & 4294967295 from generate_series(0, $3 - 1) s)`,
    [classes.slot, tenant, tenantMax],
  );
  if (mine.length > 0) return;
  for (const pause of [0.05, 0]) {
    for (let slot = 0; slot < tenantMax; slot++) {
      const { rows } = await tx.query<{ mine: boolean }>("select pg_try_advisory_xact_lock($1, hashtext($2)) as mine", [
        classes.slot,
        `${tenant}#${slot}`,
      ]);
      if (rows[0]?.mine === true) return;
    }
    await tx.query("select pg_sleep($1)", [pause]);
  }
  throw new Error(`${violation}: more than ${tenantMax} at a time for "${tenant}"`);
}

/** Limits under which every hang is over in seconds, so that a soak meets many. */
export const soakOptions = {
  batch: 6,
  concurrency: 6,
  budget: { http: "8s", cron: "8s" },
  limits: {
    connect: "2s",
    oneShot: "2s",
    message: "2s",
    close: "300ms",
    reserve: "500ms",
    serverGrace: "500ms",
    settle: "3s",
    cancelPoll: "500ms",
    reserveAfter: "1s",
    unsettled: "5s",
  },
} as const;

/** Budget, two connects, a message, a settle, a one-shot and a close to their limits; and what a busy machine adds. */
export const invocationBoundMs = 8_000 + 4_000 + 2_000 + 3_000 + 2_000 + 300 + 15_000;

/** What is told of one invocation. */
export interface Told {
  readonly claimed: number;
  readonly done: number;
  readonly crashed: number;
  readonly ms: number;
  readonly code?: string;
  readonly fates: readonly string[];
}
