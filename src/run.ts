// run: grants in, outcomes out. External work overlaps; then handlers take turns on the claiming transaction, each under
// its own savepoint. It never commits and never decides what becomes of a job.
//
// A runner moves one way:
//
//   pending --start--> external --first tx.query--> waiting --its turn--> turn --> ended
//      |                  +-----------------------------------------------------> ended
//      +--budget over, or behind a job of its key that did not end done--> ended (released)
//
// A job that shares a name with an earlier one of its tick, or follows it in an ordering key, starts when that one has
// ended, its turn included. Turns begin only when nobody is external and nobody pending can start, so every external call
// precedes the tick's first write, and the transaction has no xid until then; the calls of followers come after it.

import { type Answer, isAnswer } from "./answers.ts";
import { type Clock, wait, within } from "./clock.ts";
import type { AnyJobDefinition, HandlerContext, QueryResult } from "./define.ts";
import { parseDuration, show } from "./duration.ts";
import { isStorableInstant, jobRequest, type When } from "./enqueue.ts";
import { describeError, JobError, PgclaimError, toError, UsageError } from "./errors.ts";
import type { Session } from "./gateway.ts";
import { cancelGraceMs, type Limits } from "./limits.ts";
import type { Claim, Grant, JobId, JobRequest, Outcome } from "./model.ts";
import type { JobObserver } from "./observe.ts";
import { validate } from "./standard_schema.ts";
import { storableText } from "./storable.ts";
import { isCopyIn, transactionControl } from "./tx_control.ts";

export interface RunRequest {
  readonly grants: readonly Grant[];
  /** What each granted job has to wait for inside this tick. */
  readonly claims: ReadonlyMap<JobId, Pick<Claim, "after" | "behind">>;
  readonly definitions: ReadonlyMap<string, AnyJobDefinition>;
  readonly session: Session;
  readonly concurrency: number;
  readonly clock: Clock;
  /** Clock reading at which handlers have to be over. */
  readonly hardAt: number;
  /** Cancels the query the session is stuck in, through the one-shot. Never rejects. */
  readonly cancelQuery: (job: Grant) => Promise<void>;
  readonly limits: Limits;
  /** Tells of jobs somebody wants cancelled, until the answer is called. */
  readonly watchCancels: (cancel: (job: JobId) => void) => () => void;
  readonly log: (job: Grant, message: string, facts: Record<string, unknown>) => void;
  /** Told of each handler that starts. */
  readonly observe: (job: Grant) => JobObserver;
}

export interface RunResult {
  readonly outcomes: ReadonlyMap<JobId, Outcome>;
  readonly runMs: ReadonlyMap<JobId, number>;
  /** Whose turn it was when the session was lost. */
  readonly turn: JobId | null;
  /** Handlers that ignored their abort and still run. */
  readonly unsettled: readonly Promise<unknown>[];
  /** A message of ours that failed although the session lives: nothing of this tick can be kept. */
  readonly failure: unknown;
}

/** Runs every grant to an outcome. When the session is lost it returns at once, with what is known. */
export function run(request: RunRequest): Promise<RunResult> {
  return new TickRun(request).result;
}

type StopReason = "timeout" | "budget" | "lost" | "cancelled";

class TickRun {
  readonly result: Promise<RunResult>;
  readonly #request: RunRequest;
  #pending: Runner[];
  readonly #external = new Set<Runner>();
  readonly #waiting: Runner[] = [];
  readonly #all: Runner[];
  readonly #byId: ReadonlyMap<JobId, Runner>;
  #turn: Runner | null = null;
  /** A turn is being opened or ended: nobody else may start one. */
  #changingTurn = false;
  #resolve: (result: RunResult) => void = () => {};
  #stopping = false;
  #over = false;
  #failure: unknown = null;
  readonly #cancelHardStop: () => void;
  #endWatch: () => void = () => {};
  readonly #onLost = () => this.#stopAll("lost");

  constructor(request: RunRequest) {
    this.#request = request;
    this.result = new Promise((resolve) => {
      this.#resolve = resolve;
    });
    this.#all = request.grants.map((grant) => new Runner(grant, this, request));
    this.#byId = new Map(this.#all.map((runner) => [runner.grant.jobId, runner]));
    this.#pending = [...this.#all];
    this.#cancelHardStop = request.clock.timer(Math.max(0, request.hardAt - request.clock.now()), () =>
      this.#stopAll("budget"),
    );
    request.session.lost.addEventListener("abort", this.#onLost, { once: true });
    if (request.session.lost.aborted) {
      this.#stopAll("lost");
      return;
    }
    this.#endWatch = request.watchCancels((job) => this.#cancel(job));
    this.#advance();
  }

  #cancel(job: JobId): void {
    const runner = this.#byId.get(job);
    if (runner === undefined || this.#over) return;
    if (!this.#pending.includes(runner)) {
      runner.stop("cancelled");
      return;
    }
    this.#pending = this.#pending.filter((other) => other !== runner);
    runner.release({ type: "cancelled" });
    this.#advance();
  }

  /** Starts what may start, gives the turn when it is time, ends when all have ended. */
  #advance(): void {
    if (this.#over || this.#stopping) return;
    const { clock, concurrency, hardAt } = this.#request;
    this.#releaseBehind();
    while (this.#external.size < concurrency) {
      const runner = this.#pending.find((candidate) => this.#mayStart(candidate));
      if (runner === undefined) break;
      this.#pending = this.#pending.filter((other) => other !== runner);
      if (clock.now() + runner.timeoutMs > hardAt) {
        runner.release({ type: "released", why: "budget" });
        this.#releaseBehind();
        continue;
      }
      this.#external.add(runner);
      runner.start();
    }
    if (this.#external.size > 0 || this.#changingTurn || this.#turn !== null) return;
    const next = this.#waiting[0];
    if (next !== undefined) void this.#openTurn(next);
    else if (this.#pending.length === 0) this.#finish();
  }

  /** Whether everything it has to wait for in this tick has ended. What was claimed and not granted counts as ended. */
  #mayStart(runner: Runner, ending?: Runner): boolean {
    const { after, behind } = this.#waitsFor(runner);
    const hasEnded = (id: JobId) => {
      const other = this.#byId.get(id);
      return other === undefined || other === ending || (other.ended && this.#turn !== other);
    };
    return after.every(hasEnded) && (behind === null || hasEnded(behind));
  }

  /** Hands back who stands behind a job of its key that was not granted, or did not end done; one after the other. */
  #releaseBehind(): void {
    for (const runner of this.#pending) {
      const { behind } = this.#waitsFor(runner);
      if (behind === null) continue;
      const before = this.#byId.get(behind);
      if (before !== undefined && (!before.ended || this.#turn === before || before.outcome?.type === "done")) continue;
      this.#pending = this.#pending.filter((other) => other !== runner);
      runner.release({ type: "released", why: "behind" });
    }
  }

  #waitsFor(runner: Runner): Pick<Claim, "after" | "behind"> {
    return this.#request.claims.get(runner.grant.jobId) ?? { after: [], behind: null };
  }

  async #openTurn(runner: Runner): Promise<void> {
    this.#changingTurn = true;
    this.#turn = runner;
    try {
      await this.#request.session.beginTurn(runner.timeLeftMs);
    } catch (error) {
      this.#sessionFailed(error);
      return;
    } finally {
      this.#changingTurn = false;
    }
    this.#handTurnTo(runner);
  }

  #handTurnTo(runner: Runner): void {
    this.#leaveQueue(runner);
    this.#turn = runner;
    // It may have been stopped while the turn was on its way to it.
    if (runner.ended) void this.#closeTurn(runner, null);
    else runner.takeTurn();
  }

  /** Whether somebody of this tick starts only when this one has ended done. */
  isFollowed(runner: Runner): boolean {
    return this.#pending.some((other) => this.#waitsFor(other).behind === runner.grant.jobId);
  }

  /** The runner wants to use the transaction; its concurrency slot goes to the next. */
  wantsTurn(runner: Runner): void {
    this.#external.delete(runner);
    this.#waiting.push(runner);
    this.#advance();
  }

  /** The runner's handler has ended, or was stopped. */
  hasEnded(runner: Runner): void {
    this.#external.delete(runner);
    if (this.#turn === runner && !this.#changingTurn) {
      void this.#closeTurn(runner, runner.outcome);
      return;
    }
    if (this.#turn !== runner) this.#leaveQueue(runner);
    this.#advance();
  }

  #leaveQueue(runner: Runner): void {
    const at = this.#waiting.indexOf(runner);
    if (at !== -1) this.#waiting.splice(at, 1);
  }

  /** Keeps or undoes what the turn did, and opens the next turn in the same message. */
  async #closeTurn(runner: Runner, outcome: Outcome | null): Promise<void> {
    if (this.#over) return;
    const { session } = this.#request;
    this.#changingTurn = true;
    await runner.cancelled;
    // The wait may have cost the session, and others their time.
    if (this.#over) return;
    // Whoever may start once this one has ended does its external work first; only then comes the next turn.
    const unlocks = this.#pending.some((pending) => this.#mayStart(pending, runner));
    const next = unlocks ? null : (this.#waiting.find((waiting) => !waiting.ended) ?? null);
    const nextMs = next?.timeLeftMs ?? null;
    try {
      if (outcome !== null && (outcome.type === "done" || outcome.type === "snoozed")) {
        try {
          await session.endTurn({ enqueue: outcome.enqueue, next: nextMs });
          // They went in with the turn; finish has nothing more to enqueue.
          runner.outcome = { ...outcome, enqueue: [] };
        } catch (error) {
          if (session.lost.aborted) throw error;
          runner.outcome = runner.failed(
            new JobError("PGCLAIM_TURN_FAILED", `The turn could not end: ${describeError(error)}`, { cause: error }),
          );
          await session.failTurn({ next: nextMs });
        }
      } else {
        await session.failTurn({ next: nextMs });
      }
    } catch (error) {
      this.#sessionFailed(error);
      return;
    } finally {
      this.#changingTurn = false;
    }
    this.#turn = null;
    if (next !== null) this.#handTurnTo(next);
    else this.#advance();
  }

  /** A message of ours failed although no handler is to blame: nothing on this session can be kept. */
  #sessionFailed(error: unknown): void {
    if (!this.#over) {
      this.#failure = error;
      this.#stopAll("lost");
    }
  }

  #stopAll(reason: StopReason): void {
    if (this.#over) return;
    const turn = this.#turn;
    this.#stopping = true;
    for (const runner of this.#pending.splice(0)) runner.release({ type: "released", why: "budget" });
    for (const runner of this.#all) runner.stop(reason);
    this.#stopping = false;
    if (reason === "lost") this.#finish(turn);
    else this.#advance();
  }

  #finish(turn: Runner | null = null): void {
    this.#over = true;
    this.#endWatch();
    this.#cancelHardStop();
    this.#request.session.lost.removeEventListener("abort", this.#onLost);
    const outcomes = new Map<JobId, Outcome>();
    const runMs = new Map<JobId, number>();
    for (const runner of this.#all) {
      if (runner.outcome !== null) outcomes.set(runner.grant.jobId, runner.outcome);
      runMs.set(runner.grant.jobId, Math.round(runner.ranMs));
    }
    const unsettled = this.#all.flatMap((runner) => (runner.unsettled === null ? [] : [runner.unsettled]));
    this.#resolve({ outcomes, runMs, turn: turn?.grant.jobId ?? null, unsettled, failure: this.#failure });
  }
}

/** One handler of the tick. */
class Runner {
  readonly grant: Grant;
  readonly timeoutMs: number;
  outcome: Outcome | null = null;
  /** The handler's promise while it has not settled. */
  unsettled: Promise<unknown> | null = null;
  ranMs = 0;
  /** Settles when a cancel of this handler's query can strike nobody else's any more. */
  cancelled: Promise<unknown> | null = null;
  readonly #run: TickRun;
  readonly #request: RunRequest;
  readonly #definition: AnyJobDefinition;
  readonly #abort = new AbortController();
  readonly #enqueued: JobRequest[] = [];
  /** Enqueues whose payload is still being checked. */
  readonly #enqueueing = new Set<Promise<unknown>>();
  #turn: {
    readonly promise: Promise<void>;
    readonly resolve: () => void;
    readonly reject: (error: unknown) => void;
  } | null = null;
  #usedTx = false;
  #closed: Error | null = null;
  readonly #inFlight = new Set<Promise<unknown>>();
  #awaitingTurn = 0;
  #leftMs: number;
  #runningSince: number | null = null;
  #cancelTimer: () => void = () => {};
  #observer: JobObserver | null = null;

  constructor(grant: Grant, tickRun: TickRun, request: RunRequest) {
    this.grant = grant;
    this.#run = tickRun;
    this.#request = request;
    const definition = request.definitions.get(grant.kind);
    if (definition === undefined) throw new Error(`claimed a kind without a definition: ${grant.kind}`);
    this.#definition = definition;
    this.timeoutMs = definition.policy.timeoutMs;
    this.#leftMs = this.timeoutMs;
  }

  get ended(): boolean {
    return this.#closed !== null;
  }

  /** What is left of the timeout; it stands still while the runner waits for its turn. */
  get timeLeftMs(): number {
    const running = this.#runningSince === null ? 0 : this.#request.clock.now() - this.#runningSince;
    return Math.max(0, this.#leftMs - running);
  }

  start(): void {
    this.#resumeTimer();
    const observer = this.#request.observe(this.grant);
    this.#observer = observer;
    const handler = observer.around(() => this.#handle(observer.trace));
    this.unsettled = handler;
    handler.then(
      (outcome) => this.#end(outcome),
      (error: unknown) => this.#end(this.failed(error)),
    );
  }

  /** The turn has come: queries may go out. */
  takeTurn(): void {
    this.#usedTx = true;
    this.#resumeTimer();
    this.#turn?.resolve();
  }

  /** Ends the job untouched: it has not started. */
  release(outcome: Outcome): void {
    this.#closed = stopError("budget", this.timeoutMs, this.#request.session);
    this.outcome = outcome;
  }

  /** Stops the handler from outside. Its transaction is dead from now on, whatever it still does. */
  stop(reason: StopReason): void {
    if (this.ended) return;
    const error = stopError(reason, this.timeoutMs, this.#request.session);
    this.#close(error);
    this.#abort.abort(error);
    if (reason === "lost") return;
    // The session is stuck in this handler's query until the server lets go of it.
    if (this.#inFlight.size > 0) this.cancelled = this.#cancelQuery();
    this.outcome = this.#stopped(reason, error);
    this.#run.hasEnded(this);
  }

  #stopped(reason: Exclude<StopReason, "lost">, error: Error): Outcome {
    switch (reason) {
      case "budget":
        return { type: "released", why: "budget" };
      case "cancelled":
        return { type: "cancelled" };
      case "timeout":
        return this.failed(error);
      default:
        return reason satisfies never;
    }
  }

  /** The handler has settled; what it says counts unless it was stopped before. */
  #end(outcome: Outcome): void {
    this.unsettled = null;
    if (this.ended) return;
    const keeps = outcome.type === "done" || outcome.type === "snoozed";
    if (this.#inFlight.size > 0) {
      // A query it has not waited for is part of its turn, within its timeout; one whose turn is undone is not worth waiting.
      if (keeps) {
        void Promise.allSettled([...this.#inFlight]).then(() => this.#end(outcome));
        return;
      }
      this.cancelled = this.#cancelQuery();
    }
    this.outcome =
      keeps && this.#awaitingTurn > 0
        ? this.failed(
            new JobError(
              "PGCLAIM_TX_CLOSED",
              `job "${this.grant.kind}": the handler ended while a tx.query() still waited for its turn; await it.`,
            ),
          )
        : outcome;
    this.#close(
      new JobError("PGCLAIM_TX_CLOSED", `job "${this.grant.kind}": the handler has ended, and its tx with it.`),
    );
    this.#run.hasEnded(this);
  }

  #close(error: Error): void {
    this.#pauseTimer();
    this.#observer?.ended();
    this.#closed = error;
    this.#turn?.reject(error);
  }

  /** The outcome of a failed attempt. */
  failed(thrown: unknown, inMs: number | null = null): Outcome {
    const { code, said } = describeThrown(thrown);
    return { type: "failed", code, error: storableText(`${code}: ${said}`), inMs: inMs ?? this.#customBackoffMs() };
  }

  #customBackoffMs(): number | null {
    if (this.#definition.backoff === null) return null;
    try {
      return parseDuration(
        this.#definition.backoff(this.grant.failures + 1),
        `job "${this.grant.kind}": retry.backoff()`,
      );
    } catch (error) {
      // Recording a failure can never fail: the database doubles from minBackoff instead.
      this.#request.log(this.grant, "retry.backoff() threw, minBackoff is used", { error: describeError(error) });
      return null;
    }
  }

  async #handle(trace: string | null): Promise<Outcome> {
    const { grant } = this;
    const handler = this.#definition.run;
    if (handler === null) throw new JobError("PGCLAIM_INTERNAL", `Job kind "${grant.kind}" has no handler here.`);
    const payload = await this.#parsePayload();
    const context: HandlerContext<unknown> = {
      payload,
      job: {
        id: grant.jobId,
        kind: grant.kind,
        attempt: grant.attempt,
        maxAttempts: this.#definition.policy.maxAttempts,
        idempotencyKey: grant.idempotencyKey,
        enqueuedAt: grant.enqueuedAt,
        runAt: grant.runAt,
        failures: grant.failures,
        deadlineAt: grant.deadlineAt,
      },
      tx: { query: (text, values) => quiet(this.#query(text, values)) },
      signal: this.#abort.signal,
      enqueue: (job, value, when) => quiet(this.#enqueue(job as unknown as AnyJobDefinition, value, when)),
      trace,
      log: (message, facts) => this.#request.log(grant, message, facts ?? {}),
    };
    // The map has lost the payload's type; the schema above has just proved it.
    const answer: unknown = await (handler as (context: HandlerContext<unknown>) => unknown)(context);
    // What the handler enqueued and did not wait for is meant all the same, and so is its refusal.
    await Promise.all(this.#enqueueing);
    const outcome = this.#outcomeOf(isAnswer(answer) ? answer : null);
    // Whoever follows in its ordering key starts when this one is done, so what it enqueued goes in now, in a turn of its
    // own: with finish it could still be refused, after those behind have run, and it would stand behind what they enqueue.
    const now = outcome.type === "done" && outcome.enqueue.length > 0 && this.#run.isFollowed(this);
    if (now && !this.#usedTx && !this.ended) await this.#awaitTurn();
    return outcome;
  }

  #enqueue(job: AnyJobDefinition, payload: unknown, when: When | undefined): Promise<{ readonly type: "deferred" }> {
    const check = async (): Promise<{ readonly type: "deferred" }> => {
      this.#assertOpen();
      const trace = this.#observer?.trace ?? null;
      const request = await jobRequest(job, payload, trace === null ? when : { trace, ...when });
      this.#assertOpen();
      this.#enqueued.push({ ...request, source: `job ${this.grant.jobId}` });
      return { type: "deferred" };
    };
    const checked = check();
    this.#enqueueing.add(checked);
    const settled = () => this.#enqueueing.delete(checked);
    checked.then(settled, settled);
    return checked;
  }

  async #parsePayload(): Promise<unknown> {
    const { grant } = this;
    const result = await validate(this.#definition.payload, JSON.parse(grant.payload), "payload");
    if (result.ok) return result.value;
    throw new JobError(
      "PGCLAIM_STORED_PAYLOAD_INVALID",
      `job "${grant.kind}": ${result.issue.path}: ${result.issue.message}`,
      { path: result.issue.path },
    );
  }

  #outcomeOf(answer: Answer | null): Outcome {
    const enqueue = this.#enqueued;
    if (answer === null) return { type: "done", enqueue };
    switch (answer.type) {
      case "done":
        return { type: "done", enqueue };
      case "snooze":
        // Found by finish, it would fail the whole tick.
        if (answer.at !== null && !isStorableInstant(new Date(answer.at))) {
          throw new UsageError("PGCLAIM_INVALID_OPTION", "snooze() got an instant outside the years 1 to 9999.");
        }
        return { type: "snoozed", inMs: answer.ms, at: answer.at, enqueue };
      case "retryIn":
        return {
          type: "failed",
          code: "PGCLAIM_HANDLER_THREW",
          error: "The handler answered retryIn().",
          inMs: answer.ms,
        };
      case "deadLetter":
        return { type: "dead", error: storableText(answer.reason) };
      default:
        return answer satisfies never;
    }
  }

  async #query<Row>(text: string, values: readonly unknown[] = []): Promise<QueryResult<Row>> {
    this.#assertOpen();
    if (typeof text !== "string") {
      throw new JobError(
        "PGCLAIM_TX_CONTROL",
        `job "${this.grant.kind}": tx.query() got ${show(text)}; expected one statement as text, and its values beside it.`,
      );
    }
    if (isCopyIn(text)) {
      throw new JobError(
        "PGCLAIM_TX_CONTROL",
        `job "${this.grant.kind}": tx.query() got COPY ... FROM STDIN, for which it has no way to send the rows; use insert ... select from unnest($1).`,
      );
    }
    const command = transactionControl(text);
    if (command !== null) {
      throw new JobError(
        "PGCLAIM_TX_CONTROL",
        `job "${this.grant.kind}": tx.query() got ${command}; the transaction belongs to the tick and commits when its handlers have ended. To undo this handler's effects, throw.`,
      );
    }
    if (!this.#usedTx) {
      this.#awaitingTurn++;
      await this.#awaitTurn().finally(() => {
        this.#awaitingTurn--;
      });
    }
    this.#assertOpen();
    const answer = this.#request.session.query<Row>(text, values);
    this.#inFlight.add(answer);
    try {
      return await answer;
    } finally {
      this.#inFlight.delete(answer);
    }
  }

  /**
   * Postgres cancels whatever the backend is doing when the cancel arrives. So the next message waits until the cancel has
   * been answered, or the query is over and a cancel that is still on its way has had its time.
   */
  #cancelQuery(): Promise<unknown> {
    const { cancelQuery, clock, limits } = this.#request;
    const over = Promise.allSettled([...this.#inFlight]).then(() => wait(clock, cancelGraceMs));
    // No longer than finish has: what is waited for here is taken from it.
    const limitMs = Math.min(limits.messageMs, limits.reserveMs);
    return within(clock, limitMs, Promise.race([cancelQuery(this.grant), over]));
  }

  #awaitTurn(): Promise<void> {
    if (this.#turn === null) {
      let resolve: () => void = () => {};
      let reject: (error: unknown) => void = () => {};
      const promise = new Promise<void>((yes, no) => {
        resolve = yes;
        reject = no;
      });
      // Several queries may wait for it, or none any more: a rejection nobody waits for is no news.
      promise.catch(() => {});
      this.#turn = { promise, resolve, reject };
      this.#pauseTimer();
      this.#run.wantsTurn(this);
    }
    return this.#turn.promise;
  }

  #assertOpen(): void {
    if (this.#closed !== null) throw this.#closed;
  }

  #resumeTimer(): void {
    this.#runningSince = this.#request.clock.now();
    this.#cancelTimer = this.#request.clock.timer(this.#leftMs, () => this.stop("timeout"));
  }

  #pauseTimer(): void {
    this.#cancelTimer();
    if (this.#runningSince === null) return;
    const ran = this.#request.clock.now() - this.#runningSince;
    this.#leftMs = Math.max(0, this.#leftMs - ran);
    this.ranMs += ran;
    this.#runningSince = null;
  }
}

/** Passes a promise on. A handler that does not wait for it must not end the process with an unhandled rejection. */
function quiet<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => {});
  return promise;
}

/** A failed attempt's code and story. A handler may throw anything, even what breaks when it is looked at. */
function describeThrown(thrown: unknown): { readonly code: string; readonly said: string } {
  try {
    const error = toError(thrown);
    // Where ours was thrown is no news to anybody; where the handler's was, is what people look for.
    if (error instanceof PgclaimError) return { code: error.code, said: error.message };
    return { code: "PGCLAIM_HANDLER_THREW", said: `${error.stack ?? error.message}` };
  } catch {
    return { code: "PGCLAIM_HANDLER_THREW", said: "The handler threw a value that cannot be read." };
  }
}

function stopError(reason: StopReason, timeoutMs: number, session: Session): Error {
  switch (reason) {
    case "timeout":
      return new JobError("PGCLAIM_HANDLER_TIMEOUT", `The handler ran longer than its timeout, ${timeoutMs} ms.`);
    case "budget":
      return new JobError("PGCLAIM_HANDLER_ABORTED", "The invocation's budget ended; the job is handed back.");
    case "cancelled":
      return new JobError("PGCLAIM_HANDLER_ABORTED", "Somebody has cancelled the job.");
    case "lost":
      return new JobError(
        "PGCLAIM_HANDLER_ABORTED",
        "The session is gone; this tick's effects are rolled back and the job will run again.",
        { cause: session.lost.reason },
      );
    default:
      return reason satisfies never;
  }
}
