// The gateway over a transport: the one place that talks SQL to the database. It calls schema/functions and parses every
// row on the way in. Statements are schema-qualified and leave no session state behind.

import { caller } from "./call.ts";
import { type Clock, timedOut, within } from "./clock.ts";
import { type Database, literal, type PgClient } from "./database.ts";
import type { QueryResult } from "./define.ts";
import { DatabaseError, databaseError, describeError, sqlStateOf, UsageError } from "./errors.ts";
import type {
  CallerClient,
  ClaimAnswer,
  ClaimRequest,
  EnqueueAnswer,
  EnqueueOnceAnswer,
  FinishRequest,
  FinishRow,
  FireAnswer,
  Gateway,
  Numbered,
  Session,
  WakeAnswer,
} from "./gateway.ts";
import { counts, type Limits } from "./limits.ts";
import type {
  Claim,
  Enqueued,
  Grant,
  JobId,
  JobRequest,
  JobView,
  OperatorAnswer,
  ScheduleView,
  Skip,
  SkipReason,
} from "./model.ts";
import { instant, integer, json, type Row, text } from "./rows.ts";
import { nextOccurrence } from "./schedule.ts";

export interface PostgresOptions {
  readonly database: Database;
  readonly clock: Clock;
  readonly limits: Limits;
  /** The installation's schema. */
  readonly schema: string;
}

/** Makes the gateway. Nothing is opened before a verb is called. */
export function postgresGateway(options: PostgresOptions): Gateway {
  const { limits } = options;
  const { call, fn } = caller(options);

  async function operate(name: string, id: JobId, during: string): Promise<OperatorAnswer> {
    const [row] = await call(`select ${fn(name)}($1::bigint) as answer`, id, during);
    return json(row, "answer") as OperatorAnswer;
  }

  async function toggle(name: string, argument: string, during: string): Promise<boolean> {
    const [row] = await call(`select ${fn(name)}($1::text) as changed`, argument, during);
    return row?.changed === true;
  }

  return {
    async wake(request): Promise<WakeAnswer> {
      const [row] = await call(
        `select ${fn("wake_v1")}($1::jsonb) as answer`,
        {
          ...request,
          reapSlice: counts.reapSlice,
          dueSlice: counts.dueSlice,
          pruneSlice: counts.pruneSlice,
          gateSlice: counts.gateSlice,
          cancelSlice: counts.cancelSlice,
          rollSlice: counts.rollSlice,
          depthCap: counts.depthCap,
          depthMs: counts.depthMs,
        },
        "asking for work",
      );
      return json(row, "answer") as WakeAnswer;
    },

    async register(request): Promise<number> {
      const [row] = await call(`select ${fn("register_v1")}($1::jsonb) as n`, request, "registering kinds");
      return integer(row, "n");
    },

    async fire(request): Promise<FireAnswer> {
      const [row] = await call(`select ${fn("fire_v1")}($1::jsonb) as answer`, request, "firing schedules");
      return json(row, "answer") as FireAnswer;
    },

    session: () => new PostgresSession(options, fn),

    async fence(request): Promise<readonly Grant[]> {
      const rows = await call(
        `select job_id::text as job_id, attempt, kind, payload, idempotency_key, to_json(run_at) #>> '{}' as run_at, to_json(enqueued_at) #>> '{}' as enqueued_at, failures, to_json(deadline_at) #>> '{}' as deadline_at, trace from ${fn("fence_v1")}($1::jsonb)`,
        {
          tick: request.tickId,
          quarantined: request.quarantined,
          jobs: numbered(request.jobs),
          // It tidies up on the way: the next tick of this invocation has no wake of its own.
          reapSlice: counts.reapSlice,
          dueSlice: counts.dueSlice,
          gateSlice: counts.gateSlice,
        },
        "recording attempts",
      );
      return rows.map((row) => ({
        jobId: text(row, "job_id"),
        attempt: integer(row, "attempt"),
        kind: text(row, "kind"),
        payload: text(row, "payload"),
        idempotencyKey: text(row, "idempotency_key"),
        runAt: instant(row, "run_at"),
        enqueuedAt: instant(row, "enqueued_at"),
        failures: integer(row, "failures"),
        trace: row.trace === null ? null : text(row, "trace"),
        deadlineAt: row.deadline_at === null ? null : instant(row, "deadline_at"),
      }));
    },

    async settle(request) {
      const [row] = await call(
        `select ${fn("settle_v1")}($1::jsonb) as fate`,
        {
          tick: request.tickId,
          invocation: request.invocationId,
          report: request.report,
          mark: request.mark,
          turn: request.turn,
          quarantined: request.quarantined,
          interruptedLimit: counts.interruptedLimit,
          jobs: numbered(request.jobs),
        },
        "settling a tick",
      );
      return text(row, "fate") as "committed" | "lost";
    },

    async cancelQuery(request): Promise<boolean> {
      const [row] = await call(`select ${fn("cancel_query_v1")}($1::jsonb) as sent`, request, "cancelling a query");
      return row?.sent === true;
    },

    async enqueue(requests, client): Promise<EnqueueAnswer> {
      const statement = `select i, type, job_id::text as job_id, detail from ${fn("enqueue_v1")}($1::jsonb)`;
      const argument = { jobs: requests };
      const rows =
        client === undefined
          ? await call(statement, argument, "enqueueing")
          : await enqueueOn(client, statement, JSON.stringify(argument));
      const refused = rows.find((row) => row.job_id === null);
      if (refused !== undefined) {
        return {
          type: "refused",
          i: integer(refused, "i"),
          reason: text(refused, "type"),
          detail: String(refused.detail ?? ""),
        };
      }
      return {
        type: "enqueued",
        jobs: rows.map((row) => ({ type: text(row, "type") as Enqueued["type"], id: text(row, "job_id") })),
      };
    },

    async enqueueOnce(request) {
      const [row] = await call(`select ${fn("enqueue_once_v1")}($1::jsonb) as answer`, request, "enqueueing");
      return json(row, "answer") as EnqueueOnceAnswer;
    },

    async reserve(jobs): Promise<void> {
      await call(
        `select ${fn("reserve_v1")}($1::jsonb) as reserved`,
        { jobs, reserveMs: limits.reserveAfterMs },
        "reserving names",
      );
    },

    async cancelled(jobs): Promise<readonly JobId[]> {
      const rows = await call(
        `select job_id::text as job_id from ${fn("cancelled_v1")}($1::jsonb)`,
        { jobs },
        "asking for cancels",
      );
      return rows.map((row) => text(row, "job_id"));
    },

    async job(id: JobId): Promise<JobView | null> {
      const [row] = await call(`select ${fn("job_v1")}($1::bigint) as job`, id, "reading a job");
      return row?.job == null ? null : (json(row, "job") as JobView);
    },

    retry: (id) => operate("retry_v1", id, "retrying a dead letter"),
    discard: (id) => operate("discard_v1", id, "discarding a dead letter"),
    skip: (id) => operate("skip_v1", id, "skipping a dead letter"),
    cancel: (id) => operate("cancel_v1", id, "cancelling a job"),
    pauseQueue: (name) => toggle("pause_queue_v1", name, "pausing a queue"),
    resumeQueue: (name) => toggle("resume_queue_v1", name, "resuming a queue"),

    async schedules(): Promise<readonly ScheduleView[]> {
      const rows = await call(
        `select name, cron, time_zone, kind, catch_up, next_at, fresh, last_at, paused_at, fault from ${fn("schedules_v1")}() where $1 = 'all'`,
        "all",
        "reading schedules",
      );
      return rows.map((row) => ({
        name: text(row, "name"),
        cron: text(row, "cron"),
        timeZone: text(row, "time_zone"),
        kind: text(row, "kind"),
        catchUp: text(row, "catch_up") as ScheduleView["catchUp"],
        nextAt: nextAt(row),
        lastAt: row.last_at === null ? null : instant(row, "last_at"),
        pausedAt: row.paused_at === null ? null : instant(row, "paused_at"),
        fault: row.fault === null ? null : text(row, "fault"),
      }));
    },

    pauseSchedule: (name) => toggle("pause_schedule_v1", name, "pausing a schedule"),
    resumeSchedule: (name) => toggle("resume_schedule_v1", name, "resuming a schedule"),
  };
}

/** Of a fresh schedule the row has when it was registered or resumed. */
function nextAt(row: Row): Date {
  const at = instant(row, "next_at");
  return row.fresh === true ? nextOccurrence({ cron: text(row, "cron"), timeZone: text(row, "time_zone") }, at) : at;
}

async function enqueueOn(client: CallerClient, statement: string, argument: string): Promise<readonly Row[]> {
  try {
    return (await client.query(statement, [argument])).rows as Row[];
  } catch (error) {
    throw databaseError(error, "enqueueing on the caller's client");
  }
}

/** What a handler may have left in the session, which a pooler hands to others: no savepoint undoes it. */
const leftovers = ["unlisten *", "deallocate all", "discard temp", "select pg_advisory_unlock_all()"];

/** Where the session stands, so that a late event of a closed client is no news. */
type Phase = "new" | "open" | "closing" | "closed";

interface TickSettings {
  readonly tickId: string;
  /** Clock reading past which this tick's transaction has no business any more. */
  readonly hardAt: number;
}

class PostgresSession implements Session {
  readonly #options: PostgresOptions;
  readonly #fn: (name: string) => string;
  readonly #client: PgClient;
  readonly #destroy: () => void;
  readonly #lost = new AbortController();
  #phase: Phase = "new";
  #firstAnswerBy = 0;
  #answered = false;
  #settings: TickSettings | null = null;
  /** Settles when everything sent so far has been answered. */
  #sent: Promise<unknown> = Promise.resolve();
  roundTrips = 0;
  handlerQueries = 0;

  constructor(options: PostgresOptions, fn: (name: string) => string) {
    this.#options = options;
    this.#fn = fn;
    const { client, destroy } = options.database.open();
    this.#client = client;
    this.#destroy = destroy;
    // Before connect: without a listener an error event ends a Node process. Events after our own close are no news.
    client.on("error", (error) => this.#lose(error));
    client.on("end", () => this.#lose(new Error("the connection ended")));
  }

  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  async connect(): Promise<void> {
    const { clock, limits } = this.#options;
    this.#phase = "open";
    // One deadline for connect and first answer: connect() may resolve before authentication.
    this.#firstAnswerBy = clock.now() + limits.connectMs;
    try {
      if ((await this.#race(this.#client.connect(), limits.connectMs)) === timedOut) {
        throw new DatabaseError("PGCLAIM_CONNECT_FAILED", `No connection within ${limits.connectMs} ms.`);
      }
    } catch (error) {
      this.#hardClose();
      if (error instanceof DatabaseError && error.code === "PGCLAIM_CONNECT_FAILED") throw error;
      throw sqlStateOf(error) === null
        ? new DatabaseError(
            "PGCLAIM_CONNECT_FAILED",
            `Cannot reach the database (${describeError(error)}). Is DATABASE_URL right, and the database up?`,
            { cause: error },
          )
        : databaseError(error, "connecting");
    }
  }

  async claim(request: ClaimRequest): Promise<ClaimAnswer> {
    const { clock, limits } = this.#options;
    this.#settings = { tickId: request.tickId, hardAt: clock.now() + request.hardMs };
    const argument = literal(
      JSON.stringify({
        queues: request.queues,
        kinds: request.kinds,
        unfit: request.unfit,
        revision: request.revision,
        batch: request.batch,
        quarantined: request.quarantined,
        tickSlots: request.tickSlots,
        maxCandidates: counts.maxCandidates,
        maxBytes: counts.tickBytes,
        maxSkips: counts.maxSkips,
        reserveMs: limits.reserveAfterMs,
      }),
    );
    const results = await this.#send(
      [
        "begin isolation level read committed read write",
        ...this.#setLocal(limits.messageMs),
        "select pg_backend_pid() as pid",
        `select job_id::text as job_id, attempt, kind, skip, skipped, lock_name, after::text[] as after, behind::text as behind, missed, at_risk, starved from ${this.#fn("claim_v1")}(${argument}::jsonb)`,
      ],
      "claiming",
    ).catch((error: unknown) => {
      throw databaseError(error, "claiming");
    });
    const [pid] = results.at(-2)?.rows ?? [];
    return { ...readClaim(results.at(-1)?.rows ?? []), backendPid: integer(pid, "pid") };
  }

  async rollback(): Promise<void> {
    if (this.lost.aborted) return;
    await this.#send(["rollback"], "rolling back").catch((error: unknown) => this.#lose(error));
  }

  async beginTurn(timeLeftMs: number): Promise<void> {
    await this.#send(this.#openTurn(timeLeftMs), "opening a turn");
  }

  async query<R>(statement: string, values: readonly unknown[]): Promise<QueryResult<R>> {
    this.handlerQueries++;
    const config = { text: statement, values: values.map(sendable) };
    const Query = extendedQuery(this.#client);
    const send = () =>
      new Promise<QueryResult<R>>((resolve, reject) => {
        const query = new Query(config, undefined, (error: unknown, result: unknown) =>
          error == null ? resolve(result as QueryResult<R>) : reject(error),
        );
        this.#client.query(query);
      });
    return this.#watch(this.#inOrder(send), isFatal);
  }

  async endTurn(turn: { readonly enqueue: readonly JobRequest[]; readonly next: number | null }): Promise<void> {
    const request = turn.enqueue.length === 0 ? {} : { enqueue: turn.enqueue };
    await this.#send(
      [
        // What the handler set is not the next handler's business: role, settings, and settings made without LOCAL, which
        // would outlive the transaction behind a pooler.
        "reset session authorization",
        "reset role",
        "reset all",
        ...leftovers,
        ...this.#setLocal(this.#options.limits.messageMs),
        // A transaction made read only cannot be made writable again; undone with its turn, it harms nobody else.
        `select ${this.#fn("require_read_committed")}()`,
        `select ${this.#fn("end_turn_v1")}(${literal(JSON.stringify(request))}::jsonb)`,
        "release savepoint pgclaim_turn",
        ...(turn.next === null ? [] : this.#openTurn(turn.next)),
      ],
      "ending a turn",
    );
  }

  async failTurn(turn: { readonly next: number | null }): Promise<void> {
    await this.#send(
      [
        "rollback to savepoint pgclaim_turn",
        ...leftovers,
        "release savepoint pgclaim_turn",
        ...(turn.next === null ? [] : this.#openTurn(turn.next)),
      ],
      "undoing a turn",
    );
  }

  async finish(request: FinishRequest): Promise<readonly FinishRow[]> {
    const argument = literal(
      JSON.stringify({
        tick: request.tickId,
        invocation: request.invocationId,
        report: request.report,
        jobs: request.jobs.map(({ jobId, attempt, ...job }) => ({ id: jobId, n: attempt, ...job })),
      }),
    );
    const results = await this.#send(
      [
        `set local statement_timeout = ${this.#options.limits.messageMs}`,
        `select job_id::text as job_id, state, to_json(run_at) #>> '{}' as run_at, error from ${this.#fn("finish_v1")}(${argument}::jsonb)`,
        "commit",
      ],
      "finishing",
    );
    // COMMIT of an aborted transaction succeeds, with this tag.
    if (results.at(-1)?.command !== "COMMIT") throw new Error("COMMIT answered ROLLBACK");
    return (results.at(-2)?.rows ?? []).map((row) => ({
      jobId: text(row, "job_id"),
      state: text(row, "state") as FinishRow["state"],
      dueAt: instant(row, "run_at"),
      error: row.error === null ? null : text(row, "error"),
    }));
  }

  async close(): Promise<void> {
    if (this.#phase === "closed") return;
    const { clock, limits } = this.#options;
    const polite = this.#phase === "open" && !this.lost.aborted;
    this.#phase = "closing";
    // end() may never settle after a failure, so it is only waited for on a healthy session, and not for long.
    if (polite) await within(clock, limits.closeMs, this.#client.end()).catch(() => timedOut);
    this.#hardClose();
  }

  #hardClose(): void {
    this.#phase = "closed";
    this.#destroyQuietly();
  }

  #lose(error: unknown): void {
    if (this.#phase !== "open" || this.lost.aborted) return;
    const during = this.#settings === null ? "connecting" : `tick ${this.#settings.tickId} ran`;
    this.#lost.abort(databaseError(error, during));
    // Half-open or dead: nothing more is said on it, and the server should learn of it now.
    this.#destroyQuietly();
  }

  #destroyQuietly(): void {
    try {
      this.#destroy();
    } catch {
      // A socket that was never opened, or is gone, has nothing to close.
    }
  }

  /** Settings of the transaction: all LOCAL, all longer than our own limits, so that we stop first. */
  #setLocal(statementMs: number): string[] {
    const { clock, limits } = this.#options;
    if (this.#settings === null) throw new Error("no transaction is open");
    const left = Math.max(1, Math.ceil(this.#settings.hardAt - clock.now())) + limits.serverGraceMs;
    return [
      `set local idle_in_transaction_session_timeout = ${left}`,
      `set local statement_timeout = ${statementMs}`,
      `set local lock_timeout = ${statementMs}`,
      // Postgres 17 and later. This is what ends a transaction whose client keeps it busy for ever.
      `select pg_catalog.set_config('transaction_timeout', '${left}', true) where pg_catalog.current_setting('server_version_num')::integer >= 170000`,
      // A backend that is busy looks at its socket only if told to: without, a dead client's locks last as long as its query.
      "select pg_catalog.set_config('client_connection_check_interval', '1000', true) where pg_catalog.version() !~* 'windows|mingw|visual'",
      `set local ${this.#options.schema}.tick = ${literal(this.#settings.tickId)}`,
    ];
  }

  #openTurn(timeLeftMs: number): string[] {
    const ms = Math.max(1, Math.ceil(timeLeftMs)) + 1_000;
    return [`set local statement_timeout = ${ms}`, `set local lock_timeout = ${ms}`, "savepoint pgclaim_turn"];
  }

  /** One message, one round trip: statements of ours in the simple protocol. */
  async #send(statements: readonly string[], during: string): Promise<readonly Result[]> {
    const { clock, limits } = this.#options;
    const limitMs = this.#answered ? limits.messageMs + 500 : Math.max(1, this.#firstAnswerBy - clock.now());
    if (this.lost.aborted) throw this.lost.reason;
    this.roundTrips++;
    const answer = await this.#watch(
      this.#race(
        this.#inOrder(() => this.#client.query(statements.join(";\n"))),
        limitMs,
      ),
    );
    if (answer === timedOut) {
      const error = new DatabaseError(
        "PGCLAIM_NO_ANSWER",
        `The database did not answer within ${Math.round(limitMs)} ms while ${during}.`,
      );
      this.#lose(error);
      throw error;
    }
    this.#answered = true;
    return (Array.isArray(answer) ? answer : [answer]) as Result[];
  }

  /**
   * Passes a query's answer on, and notices when its failure means that the session is over. A handler's query may fail
   * with any SQLSTATE the session survives (08P01 for a missing parameter, 08006 of a foreign server), and in the driver
   * before anything was sent; when the connection broke, its own events say so.
   */
  async #watch<T>(
    answer: Promise<T>,
    isOver = (error: unknown) => sqlStateOf(error) === null || isFatal(error),
  ): Promise<T> {
    try {
      return await this.#orLost(answer);
    } catch (error) {
      if (isOver(error)) this.#lose(error);
      throw this.lost.aborted ? this.lost.reason : error;
    }
  }

  /** Drivers want one query at a time: each is sent when the one before it has been answered. */
  #inOrder<T>(send: () => Promise<T>): Promise<T> {
    const answer = this.#sent.then(send);
    this.#sent = answer.catch(() => {});
    return answer;
  }

  #race<T>(promise: Promise<T>, ms: number): Promise<T | typeof timedOut> {
    return within(this.#options.clock, ms, promise);
  }

  /** A query on a black-holed connection never settles, so losing the session settles it. */
  #orLost<T>(answer: Promise<T>): Promise<T> {
    const { signal } = this.#lost;
    return new Promise((resolve, reject) => {
      const onLost = () => reject(signal.reason);
      if (signal.aborted) onLost();
      signal.addEventListener("abort", onLost, { once: true });
      answer.then(resolve, reject).finally(() => signal.removeEventListener("abort", onLost));
    });
  }
}

interface Result {
  readonly command: string;
  readonly rows: Row[];
}

interface QueryClass {
  new (config: object, values: undefined, callback: (error: unknown, result: unknown) => void): object;
}

/**
 * The driver's own Query, made to use the extended protocol even without parameters. The simple protocol would take
 * several statements in one text, and `x; commit` would end everybody's transaction.
 */
function extendedQuery(client: PgClient): QueryClass {
  const Base = (client.constructor as unknown as { Query?: QueryClass }).Query;
  if (Base === undefined)
    throw new UsageError(
      "PGCLAIM_INVALID_OPTION",
      "database.open() answered a client without a Query class; expected a Client of pg or @neondatabase/serverless.",
    );
  return class extends Base {
    requiresPreparation(): boolean {
      return true;
    }
  };
}

/** Whether the server said that it ends the session. Where it says so in another language, the connection's end follows. */
function isFatal(error: unknown): boolean {
  const severity = (error as { severity?: unknown } | null)?.severity;
  return sqlStateOf(error) !== null && (severity === "FATAL" || severity === "PANIC");
}

/**
 * A handler's parameter, its objects already written as JSON, as both drivers write them. Written by the driver, one that
 * cannot be (a cycle, a bigint inside) would break its stream in the middle of a message.
 */
function sendable(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(sendable);
  if (value instanceof Date || ArrayBuffer.isView(value) || "toPostgres" in value) return value;
  return JSON.stringify(value);
}

function readClaim(rows: readonly Row[]): Omit<ClaimAnswer, "backendPid"> {
  const claims: Claim[] = [];
  const skips: Skip[] = [];
  const skipped: Partial<Record<SkipReason, number>> = {};
  const starved: JobId[] = [];
  for (const row of rows) {
    if (row.starved === true) starved.push(text(row, "job_id"));
    if (row.skip === null) {
      claims.push({
        jobId: text(row, "job_id"),
        attempt: integer(row, "attempt"),
        kind: text(row, "kind"),
        after: Array.isArray(row.after) ? row.after.map(String) : [],
        behind: row.behind === null ? null : text(row, "behind"),
        missed: row.missed === true,
        atRisk: row.at_risk === true,
      });
    } else if (row.job_id === null) {
      skipped[text(row, "skip") as SkipReason] = integer(row, "skipped");
    } else {
      skips.push({
        jobId: text(row, "job_id"),
        kind: text(row, "kind"),
        reason: text(row, "skip") as SkipReason,
        ...(row.lock_name === null ? {} : { lock: text(row, "lock_name") }),
      });
    }
  }
  return { claims, skips, skipped, starved };
}

function numbered(jobs: readonly Numbered[]): { readonly id: JobId; readonly n: number }[] {
  return jobs.map(({ jobId, attempt }) => ({ id: jobId, n: attempt }));
}
