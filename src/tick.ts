// One pass of the engine in one transaction: claim, fence, run, finish, report.

import type { Clock } from "./clock.ts";
import type { AnyJobDefinition } from "./define.ts";
import { DatabaseError, databaseError, isTransient, PgclaimError } from "./errors.ts";
import { fence } from "./fence.ts";
import { finish, finishJobs, settle } from "./finish.ts";
import type { Gateway, Session, TickFacts } from "./gateway.ts";
import { trackUnsettled } from "./latch.ts";
import type { Limits } from "./limits.ts";
import type { Grant, JobId, Outcome, TickFate, TickReport } from "./model.ts";
import type { TickObserver } from "./observe.ts";
import { type Log, type TickNotes, tickFacts, tickReport } from "./report.ts";
import { run } from "./run.ts";

export interface TickContext {
  readonly gateway: Gateway;
  readonly session: Session;
  readonly clock: Clock;
  readonly limits: Limits;
  readonly log: Log;
  readonly definitions: ReadonlyMap<string, AnyJobDefinition>;
  readonly queues: readonly string[];
  readonly concurrency: number;
  readonly revision: number;
  readonly tickSlots: number | null;
  readonly invocationId: string;
  readonly observe: Pick<TickObserver, "job">;
  /** What woke the invocation, and how long it took to wake and to connect. */
  readonly trigger: string;
  readonly wakeMs: number;
  readonly connectMs: number;
}

export interface TickPlan {
  readonly tickId: string;
  /** Ordinal in its invocation, from 1. */
  readonly n: number;
  readonly quarantined: boolean;
  readonly kinds: readonly string[];
  readonly unfit: readonly string[];
  readonly batch: number;
  /** Clock reading at which handlers have to be over. */
  readonly hardAt: number;
}

/**
 * Runs one tick. Never rejects for what the world does: the report carries the error and the tick's fate.
 *
 * Before the fence is sent the tick may end by a plain rollback; after it, by finish, by settle, or by death, and by
 * nothing else: a number that a late fence could still write must be closed by somebody.
 */
export async function tick(context: TickContext, plan: TickPlan): Promise<TickReport> {
  const { gateway, session, clock } = context;
  const startedAt = clock.now();
  const startedDate = clock.date().toISOString();
  const before = { roundTrips: session.roundTrips, handlerQueries: session.handlerQueries };
  const notes = emptyNotes(plan);
  // The message that stores them is one more round trip.
  const facts = (message: { readonly session: number; readonly oneShot: number }): TickFacts =>
    tickFacts(notes, {
      trigger: context.trigger,
      n: plan.n,
      startedAt: startedDate,
      wakeMs: context.wakeMs,
      connectMs: context.connectMs,
      roundTrips: {
        session: session.roundTrips - before.roundTrips + message.session,
        oneShot: notes.oneShots + message.oneShot,
      },
      totalMs: Math.round(clock.now() - startedAt),
    });
  const report = (fate: TickFate, error: PgclaimError | null = null): TickReport =>
    tickReport(notes, {
      fate,
      sessionRoundTrips: session.roundTrips - before.roundTrips,
      handlerQueries: session.handlerQueries - before.handlerQueries,
      totalMs: Math.round(clock.now() - startedAt),
      error,
    });

  // claim
  try {
    notes.claim = await session.claim({
      tickId: plan.tickId,
      queues: context.queues,
      kinds: plan.kinds,
      unfit: plan.unfit,
      revision: context.revision,
      batch: plan.batch,
      quarantined: plan.quarantined,
      tickSlots: context.tickSlots,
      hardMs: plan.hardAt - startedAt + context.limits.reserveMs,
    });
  } catch (error) {
    await session.rollback();
    return report("refused", asPgclaimError(error, "claiming"));
  } finally {
    notes.claimMs = Math.round(clock.now() - startedAt);
  }
  const { claims, starved } = notes.claim;
  const reserve = async (): Promise<void> => {
    if (starved.length === 0) return;
    notes.oneShots++;
    await gateway.reserve(starved).catch(() => {}); // the next claim that is refused asks again
  };
  if (claims.length === 0) {
    await session.rollback();
    await reserve();
    return report("empty");
  }

  // A deadline that has passed is not started, so it needs no fence: finish makes a dead letter of it.
  const missed = claims.filter((claim) => claim.missed);
  const startable = claims.filter((claim) => !claim.missed);
  const ends = new Map<JobId, Outcome>(missed.map((claim) => [claim.jobId, { type: "missed" }]));

  // fence
  const fencedAt = clock.now();
  const fenced = await fence(gateway, {
    tickId: plan.tickId,
    quarantined: plan.quarantined,
    claims: startable,
  });
  notes.oneShots += fenced.asked;
  notes.fenceMs = Math.round(clock.now() - fencedAt);

  // run; names are reserved beside it, for those who wait had better not keep these locks longer
  const reserving = reserve();
  const ranAt = clock.now();
  let failure: unknown = null;
  if (fenced.type === "answered") {
    const result = await runGranted(context, plan, notes, fenced.grants);
    for (const [jobId, outcome] of result.outcomes) ends.set(jobId, outcome);
    notes.runMs = result.runMs;
    notes.turn = result.turn;
    failure = result.failure;
    for (const handler of result.unsettled) trackUnsettled(handler, clock.now() + context.limits.unsettledMs);
  } else {
    // Nobody knows which numbers are on record, so all of them are burned.
    for (const { jobId } of startable) ends.set(jobId, { type: "released", why: "burned" });
  }
  notes.outcomes = ends;
  notes.handlersMs = Math.round(clock.now() - ranAt);

  // finish
  const finishedAt = clock.now();
  const end = await finishOrSettle(context, plan, notes, failure, facts);
  notes.finishMs = Math.round(clock.now() - finishedAt);
  await reserving;
  return report(end.fate, end.error ?? (fenced.type === "lost" ? fenced.error : null));
}

async function finishOrSettle(
  { gateway, session, clock, limits, invocationId }: TickContext,
  plan: TickPlan,
  notes: TickNotes,
  failure: unknown,
  facts: (message: { readonly session: number; readonly oneShot: number }) => TickFacts,
): Promise<{ readonly fate: TickFate; readonly error: PgclaimError | null }> {
  const claims = notes.claim?.claims ?? [];
  let error: PgclaimError;
  let mark: boolean;
  if (session.lost.aborted) {
    error = asPgclaimError(session.lost.reason, "running a tick");
    mark = true;
  } else if (failure !== null) {
    error = asPgclaimError(failure, "changing turns");
    mark = isTransient(failure);
  } else {
    const answer = await finish(session, {
      tickId: plan.tickId,
      invocationId,
      report: facts({ session: 1, oneShot: 0 }),
      jobs: finishJobs(claims, notes.outcomes),
    });
    if (answer.type === "committed") {
      notes.rows = answer.rows;
      return { fate: "committed", error: null };
    }
    ({ error, mark } = answer);
  }
  // Frees the locks if the session still lives; settle does not need them, the next invocation does.
  await session.rollback();
  notes.marked = mark;
  const settled = await settle(
    gateway,
    {
      tickId: plan.tickId,
      invocationId,
      report: facts({ session: 0, oneShot: 1 }),
      jobs: claims.filter((claim) => !claim.missed).map(({ jobId, attempt }) => ({ jobId, attempt })),
      mark,
      turn: notes.turn,
      quarantined: plan.quarantined,
    },
    { clock, limits },
  );
  notes.oneShots += settled.asked;
  switch (settled.fate) {
    case "committed":
      return { fate: "committed", error: null };
    case "lost":
      return { fate: "lost", error };
    case "unknown":
      return {
        fate: "unknown",
        error: new DatabaseError(
          "PGCLAIM_OUTCOME_UNKNOWN",
          `The session is gone (${error.code}), and the database could not be asked for ${limits.settleMs} ms whether tick ${plan.tickId} committed. The next invocation finds out; nothing is lost or applied twice.`,
          { cause: settled.error },
        ),
      };
    default:
      return settled.fate satisfies never;
  }
}

function runGranted(context: TickContext, plan: TickPlan, notes: TickNotes, grants: readonly Grant[]) {
  const { gateway, session, clock, limits, log, definitions, concurrency, invocationId } = context;
  const pid = notes.claim?.backendPid ?? 0;
  return run({
    grants,
    claims: new Map(notes.claim?.claims.map((claim) => [claim.jobId, claim])),
    definitions,
    session,
    concurrency,
    clock,
    hardAt: plan.hardAt,
    limits,
    // Only handlers that run longer than a moment are worth a question.
    watchCancels: (cancel) => {
      const jobs = grants.map(({ jobId }) => jobId);
      let stop = clock.timer(limits.cancelPollMs, ask);
      let over = false;
      function ask(): void {
        notes.oneShots++;
        gateway
          .cancelled(jobs)
          .then(
            (wanted) => wanted.forEach(cancel),
            () => {}, // no answer, no cancel; the next question may get one
          )
          .finally(() => {
            if (!over) stop = clock.timer(limits.cancelPollMs, ask);
          });
      }
      return () => {
        over = true;
        stop();
      };
    },
    // The second means beside statement_timeout; if it fails, that one still ends the query.
    cancelQuery: (job) =>
      gateway.cancelQuery({ pid, kind: job.kind, jobId: job.jobId }).then(
        () => {},
        () => {},
      ),
    observe: (job) => context.observe.job(job),
    log: (job, message, facts) =>
      log({
        level: "info",
        event: "pgclaim.job",
        message,
        jobId: job.jobId,
        kind: job.kind,
        attempt: job.attempt,
        invocationId,
        ...facts,
      }),
  });
}

function asPgclaimError(thrown: unknown, during: string): PgclaimError {
  return thrown instanceof PgclaimError ? thrown : databaseError(thrown, during);
}

function emptyNotes(plan: TickPlan): TickNotes {
  return {
    tickId: plan.tickId,
    quarantined: plan.quarantined,
    claim: null,
    outcomes: new Map(),
    runMs: new Map(),
    rows: [],
    turn: null,
    marked: false,
    oneShots: 0,
    claimMs: 0,
    fenceMs: 0,
    handlersMs: 0,
    finishMs: 0,
  };
}
