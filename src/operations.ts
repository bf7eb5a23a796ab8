// What the person on call asks and does, over one-shots: each verb is one function of schema/functions that takes and answers
// one JSON. Needs no job definitions: the database knows all it is asked.

import { caller } from "./call.ts";
import { nextAfter, parseRule } from "./cron.ts";
import type { Database } from "./database.ts";
import { DatabaseError, sqlStateOf, sqlStates, toError, UsageError } from "./errors.ts";
import type {
  BulkAnswer,
  Count,
  DeadGroup,
  Holders,
  Inspector,
  InvocationDetail,
  JobDetail,
  JobRow,
  KeyRow,
  KindRow,
  MetricsView,
  OperateAnswer,
  Operator,
  Overview,
  Page,
  QueueRow,
  Series,
  TickRow,
  TriggerRow,
} from "./inspection.ts";
import type { Limits } from "./limits.ts";
import type { Enqueued, JobId } from "./model.ts";
import { quantile } from "./quantile.ts";
import { json } from "./rows.ts";

export interface OperationsOptions {
  readonly database: Database;
  readonly limits: Limits;
  /** The installation's schema. */
  readonly schema: string;
}

/** Makes the reads. Nothing is opened before a verb is called. */
export function postgresInspector(options: OperationsOptions): Inspector {
  const { call, fn } = caller({ ...options, limits: { oneShotMs: readMs } });

  async function read<T>(name: string, request: object, during: string): Promise<T> {
    const [row] = await refusing(call(`select ${fn(name)}($1::jsonb) as answer`, request, during, true));
    return (row?.answer === null ? null : json(row, "answer")) as T;
  }

  return {
    async overview() {
      const answer = await read<Overview<StoredQueue, StoredTrigger>>("overview_v1", {}, "reading the overview");
      return { ...answer, queues: answer.queues.map(queueRow), triggers: triggerRows(answer.triggers, answer.now) };
    },
    async series(request) {
      const answer = await read<Omit<Series, "points"> & { points: readonly StoredPoint[] }>(
        "series_v1",
        request,
        "reading the charts",
      );
      return {
        ...answer,
        points: answer.points.map(({ late, ...point }) => ({
          ...point,
          p50Ms: quantile(late, 0.5),
          p95Ms: quantile(late, 0.95),
        })),
      };
    },
    jobs: (request) => read<Page<JobRow>>("jobs_v1", request, "listing jobs"),
    job: (id) => read<JobDetail | null>("job_detail_v1", { id }, "reading a job"),
    async payload(id) {
      const answer = await read<{ payload: string } | null>("payload_v1", { id }, "reading a payload");
      return answer === null ? null : answer.payload;
    },
    count: (filter) =>
      read<Count & { upTo: JobId | null; searched: number | null }>("count_jobs_v1", filter, "counting jobs"),
    deadGroups: () =>
      read<{ groups: readonly DeadGroup[]; searched: number; cut: boolean; now: string }>(
        "dead_groups_v1",
        {},
        "grouping dead letters",
      ),
    keys: (request) => read<Page<KeyRow>>("keys_v1", request, "listing ordering keys"),
    queues: async () => (await read<readonly StoredQueue[]>("queues_v1", {}, "listing queues")).map(queueRow),
    kinds: () => read<readonly KindRow[]>("kinds_v1", {}, "listing kinds"),
    async triggers() {
      const { now, triggers } = await read<{ now: string; triggers: readonly StoredTrigger[] }>(
        "triggers_v1",
        {},
        "listing triggers",
      );
      return triggerRows(triggers, now);
    },
    ticks: (request) => read<Page<TickRow>>("ticks_v1", request, "listing ticks"),
    invocation: (id) => read<InvocationDetail | null>("invocation_v1", { id }, "reading an invocation"),
    holders: () => read<Holders>("holders_v1", {}, "asking who holds what"),
    metrics: () => read<MetricsView>("metrics_v1", {}, "reading the metrics"),
  };
}

/** Makes the changes. Nothing is opened before a verb is called. */
export function postgresOperator(options: OperationsOptions): Operator {
  const { call, fn } = caller(options);

  async function act<T>(name: string, request: object, during: string): Promise<T> {
    const [row] = await refusing(call(`select ${fn(name)}($1::jsonb) as answer`, request, during));
    return json(row, "answer") as T;
  }
  const operate = (verb: string, id: JobId, by: string, more: object = {}) =>
    act<OperateAnswer>("operate_v1", { verb, id, by, ...more }, `doing "${verb}" to a job`);

  return {
    retry: (id, by) => operate("retry", id, by),
    discard: (id, by) => operate("discard", id, by),
    skip: (id, by) => operate("skip", id, by),
    cancel: (id, by) => operate("cancel", id, by),
    reschedule: (id, runAt, by) => operate("reschedule", id, by, { runAt }),
    bulk: (request) => act<BulkAnswer>("bulk_v1", request, `doing "${request.verb}" to many jobs`),
    runSchedule: (name, by) =>
      act<{ type: "enqueued"; job: Enqueued } | { type: "not-found" }>(
        "run_schedule_v1",
        { name, by },
        "running a schedule now",
      ),
    terminate: async (request) =>
      (await act<{ type: "terminated" | "gone" }>("terminate_v1", request, "ending a transaction")).type,
  };
}

/** What the functions of reads and verbs refuse is the caller's fault; their messages name a field and quote no value. */
async function refusing<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    if (!(error instanceof DatabaseError) || sqlStateOf(error.cause) !== sqlStates.refusedJob) throw error;
    throw new UsageError("PGCLAIM_INVALID_OPTION", toError(error.cause).message, { cause: error });
  }
}

/** How long a page's query may take before the server cancels it. */
const readMs = 2_000;

/** As the database answers them: with the counts of its histogram, of which the quantiles are made here. */
type StoredQueue = Omit<QueueRow, "lateMs"> & { readonly late: readonly number[] };
type StoredPoint = Omit<Series["points"][number], "p50Ms" | "p95Ms"> & { readonly late: readonly number[] };
/** `medianMs`: of the gaps between its last 21 wakes, null while there are fewer than 6. */
type StoredTrigger = Omit<TriggerRow, "everyMs" | "status"> & { readonly medianMs: number | null };

function queueRow({ late, ...queue }: StoredQueue): QueueRow {
  return { ...queue, lateMs: { p50: quantile(late, 0.5), p95: quantile(late, 0.95) } };
}

const minuteMs = 60_000;
/** A trigger is late after one gap and this. */
const graceMs = 30_000;
/** Silent after three gaps, and not before this. */
const silentMs = 5 * minuteMs;

function triggerRows(triggers: readonly StoredTrigger[], now: string): TriggerRow[] {
  const at = Date.parse(now);
  return triggers.map(({ medianMs, ...trigger }) => {
    const everyMs = gapOf(trigger.name, Date.parse(trigger.lastSeenAt)) ?? medianMs;
    const ageMs = at - Date.parse(trigger.lastSeenAt);
    // Nobody owes us a manual trigger, or another HTTP call.
    const status =
      everyMs === null || trigger.type !== "cron"
        ? "unexpected"
        : ageMs > Math.max(3 * everyMs, silentMs)
          ? "silent"
          : ageMs > everyMs + graceMs
            ? "late"
            : "ok";
    return { ...trigger, everyMs, status };
  });
}

/** The time until the next occurrence of the cron expression in a trigger's name; null where there is none in it. */
function gapOf(name: string, lastSeen: number): number | null {
  if (!name.startsWith("cron ")) return null;
  try {
    const next = nextAfter(parseRule(name.slice("cron ".length), "UTC"), lastSeen + graceMs);
    return next === null ? null : Math.max(minuteMs, next - lastSeen);
  } catch {
    return null; // a name such as /api/cron
  }
}
