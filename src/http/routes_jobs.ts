// What the routes of jobs, dead letters and keys do. No decisions about jobs are made here.

import type { Claimer } from "../claimer.ts";
import { parseDuration } from "../duration.ts";
import { UsageError } from "../errors.ts";
import type { BulkVerb, JobDetail, JobFilter, OperateAnswer } from "../inspection.ts";
import type { JobId } from "../model.ts";
import type { Handlers } from "./mount.ts";
import { assertContainable, parseJobs } from "./requests.ts";
import { bulkSlice, defined, maxBulk } from "./schemas.ts";

/** Who acts, as the job's record has it. */
export const by = "api";

type JobRoutes =
  | "listJobs"
  | "enqueue"
  | "getJob"
  | "getPayload"
  | "retryJob"
  | "discardJob"
  | "skipJob"
  | "cancelJob"
  | "rescheduleJob"
  | "cancelJobs"
  | "listDead"
  | "redriveDead"
  | "discardDead"
  | "listKeys";

export const jobHandlers: Pick<Handlers, JobRoutes> = {
  async listJobs({ query, claimer }) {
    const { inspect } = await claimer();
    return { status: 200, body: await ofCursor(query.cursor, "query.cursor", inspect.jobs(defined(query))) };
  },

  async enqueue({ body: sent, claimer }) {
    const { jobs, many } = parseJobs(sent);
    const enqueued = await (await claimer()).enqueueByKind(jobs);
    // 201 says that there is a job which was not there before.
    const isNew = enqueued.some(({ type }) => type === "enqueued" || type === "successor");
    const [first] = enqueued;
    if (first === undefined) throw new Error("the database answered no job");
    const body = many ? enqueued : first;
    return isNew ? { status: 201, body } : { status: 200, body };
  },

  async getJob({ params: { id }, claimer }) {
    const { inspect } = await claimer();
    const job = await inspect.job(id);
    if (job === null) throw jobNotFound(id);
    const payload = job.payloadCut ? await inspect.payload(id) : job.payloadText;
    return { status: 200, body: jobAnswer(job, payload) };
  },

  async getPayload({ params: { id }, claimer }) {
    const payload = await (await claimer()).inspect.payload(id);
    if (payload === null) throw jobNotFound(id);
    // Whatever is in it, no browser shows it: a file, of plain text, with nosniff as on every answer.
    const headers = {
      "content-type": "text/plain; charset=utf-8",
      "content-disposition": `attachment; filename="job-${id}-payload.json.txt"`,
    };
    return new Response(payload, { headers });
  },

  retryJob: operating("retry"),
  discardJob: operating("discard"),
  skipJob: operating("skip"),
  cancelJob: operating("cancel"),

  async rescheduleJob({ params: { id }, body: { runAt }, claimer }) {
    const utc = new Date(runAt).toISOString();
    const answer = await (await claimer()).operate.reschedule(id, utc, by);
    return { status: 200, body: operated(id, "reschedule", answer) };
  },

  async listDead({ claimer }) {
    return { status: 200, body: await (await claimer()).inspect.deadGroups() };
  },

  redriveDead: ({ body: { spread, ...body }, claimer }) =>
    bulk("retry", { ...body, filter: { ...body.filter, state: "dead" } }, claimer, {
      ...(spread === undefined ? {} : { spreadMs: parseDuration(spread, "spread") }),
    }),
  discardDead: ({ body, claimer }) => bulk("discard", { ...body, filter: { ...body.filter, state: "dead" } }, claimer),
  cancelJobs: ({ body, claimer }) => bulk("cancel", body, claimer),

  async listKeys({ query, claimer }) {
    const { inspect } = await claimer();
    return { status: 200, body: await ofCursor(query.cursor, "query.cursor", inspect.keys(defined(query))) };
  },
};

type MakeClaimer = () => Promise<Claimer>;
type Verb = "retry" | "discard" | "skip" | "cancel";

function operating(verb: Verb) {
  return async ({ params: { id }, claimer }: { readonly params: { readonly id: JobId }; claimer: MakeClaimer }) => {
    const { operate } = await claimer();
    return { status: 200 as const, body: operated(id, verb, await operate[verb](id, by)) };
  };
}

function operated(id: JobId, verb: Verb | "reschedule", answer: OperateAnswer) {
  switch (answer.type) {
    case "retried":
    case "discarded":
    case "skipped":
    case "cancelled":
    case "requested":
    case "rescheduled":
      return { id, type: answer.type };
    case "not-found":
      throw jobNotFound(id);
    case "busy":
      throw new UsageError("PGCLAIM_JOB_BUSY", `Job ${id} is locked by another transaction. Try again in a moment.`);
    case "not-dead":
      throw new UsageError(
        "PGCLAIM_JOB_NOT_DEAD",
        verb === "cancel"
          ? `Job ${id} is ${answer.state}; there is nothing left to cancel.`
          : `Job ${id} is ${answer.state}; expected a dead letter for "${verb}".`,
      );
    case "not-waiting":
      throw new UsageError(
        "PGCLAIM_JOB_NOT_WAITING",
        `Job ${id} is ${answer.state}; expected one that waits for "${verb}".`,
      );
    default:
      return answer satisfies never;
  }
}

type BulkBody = { readonly upTo?: JobId | undefined; readonly cursor?: string | undefined; readonly filter: object };

/**
 * Slices of a bulk action, each with a commit of its own, until nothing more matches or the request has had its share. One
 * that fails leaves those before it done; the same request again does the rest.
 */
async function bulk(verb: BulkVerb, body: BulkBody, claimer: MakeClaimer, more: { readonly spreadMs?: number } = {}) {
  const filter: JobFilter = defined(body.filter);
  if (filter.payload !== undefined) assertContainable(filter.payload, "filter.payload");
  const { inspect, operate } = await claimer();
  const upTo = body.upTo ?? (await inspect.count(filter)).upTo;
  const sum = { changed: 0, left: 0, more: upTo !== null, upTo, cursor: body.cursor ?? null };
  while (upTo !== null && sum.more && sum.changed + sum.left < maxBulk) {
    const limit = Math.min(bulkSlice, maxBulk - sum.changed - sum.left);
    const from = sum.cursor === null ? {} : { cursor: sum.cursor };
    const slice = await ofCursor(
      body.cursor,
      "cursor",
      operate.bulk({ verb, filter, upTo, ...from, ...more, limit, by }),
    );
    sum.changed += slice.changed;
    sum.left += slice.left;
    sum.more = slice.more;
    sum.cursor = slice.cursor;
    // A slice that looked at nothing can only be searching: what it found last is for the next request to go on from.
    if (slice.changed + slice.left === 0) break;
  }
  return { status: 200 as const, body: sum };
}

/** Whatever else could be wrong was checked before: what the database refuses without a path is the cursor. */
export async function ofCursor<T>(cursor: string | undefined, path: string, answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    const isIts = error instanceof UsageError && error.code === "PGCLAIM_INVALID_OPTION" && error.path === undefined;
    if (cursor === undefined || !isIts) throw error;
    throw new UsageError("PGCLAIM_INVALID_REQUEST", `${path}: ${error.message}`, { path, cause: error });
  }
}

/** What `GET /api/jobs/{id}` has always answered, and the rest of the detail. */
function jobAnswer({ locks, ...job }: JobDetail, payload: string | null) {
  const isDead = job.state === "dead";
  const endedAt = isDead ? null : job.endedAt;
  const names = locks.filter((lock) => lock.class !== "job" && lock.class !== "key").map(({ name }) => name);
  return {
    ...job,
    finishedAt: endedAt,
    deadAt: isDead ? job.endedAt : null,
    payload: payload === null ? null : (JSON.parse(payload) as unknown),
    locks: endedAt === null ? names : null,
    lockStates: locks,
  };
}

export function jobNotFound(id: JobId): UsageError {
  return new UsageError("PGCLAIM_JOB_NOT_FOUND", `There is no job ${id}, or its history has been pruned.`);
}
