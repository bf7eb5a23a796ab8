// Every route of the API: address, scopes, what it takes and answers. The app, the OpenAPI document and the client's types are
// made of this table; what a route does is in the files beside it.

import * as z from "zod";
import { type AppOf, route } from "./route.ts";
import * as ask from "./schemas.ts";
import * as job from "./schemas_jobs.ts";
import * as state from "./schemas_state.ts";

const readers = ["read", "operate"] as const;
const operators = ["operate"] as const;

const id = z.object({ id: ask.jobId });
const queue = z.object({ name: ask.queueName });
const schedule = z.object({ name: ask.scheduleName });
const noJob = "PGCLAIM_JOB_NOT_FOUND";

/** A verb of one dead letter. */
const verb = <const V extends string>(name: V, summary: string) =>
  route({
    method: "post",
    path: `/api/jobs/{id}/${name}`,
    scopes: operators,
    tag: "Jobs",
    summary,
    params: id,
    body: ask.nothing,
    bodyOptional: true,
    answers: { 200: job.operated },
    errors: { 404: noJob, 409: "PGCLAIM_JOB_BUSY, PGCLAIM_JOB_NOT_DEAD" },
  });

const queueVerb = <const V extends string>(name: V, summary: string) =>
  route({
    method: "post",
    path: `/api/queues/{name}/${name}`,
    scopes: operators,
    tag: "Queues",
    summary,
    params: queue,
    body: ask.nothing,
    bodyOptional: true,
    answers: { 200: state.queueChanged },
  });

const scheduleVerb = <const V extends string>(name: V, summary: string) =>
  route({
    method: "post",
    path: `/api/schedules/{name}/${name}`,
    scopes: operators,
    tag: "Schedules",
    summary,
    params: schedule,
    body: ask.nothing,
    bodyOptional: true,
    answers: { 200: state.scheduleChanged },
  });

/** A list or a view: nothing in its address, only in its query. */
const view = <const P extends string, const T extends string, Q extends z.ZodObject, A extends z.ZodType>(
  path: P,
  tag: T,
  summary: string,
  query: Q,
  answer: A,
) => route({ method: "get", path, scopes: readers, tag, summary, query, answers: { 200: answer } });

const bulk = <const P extends string, B extends z.ZodType>(path: P, summary: string, body: B) =>
  route({
    method: "post",
    path,
    scopes: operators,
    tag: "Bulk",
    summary,
    query: ask.noQuery,
    body,
    answers: { 200: job.bulkAnswer },
  });

/** By operation id. Addresses without a parameter come first: Hono takes the first that fits. */
export const contract = {
  health: route({
    method: "get",
    path: "/healthz",
    scopes: [],
    tag: "Running",
    summary: "Whether this deployment answers. Asks no database.",
    answers: { 200: state.health },
  }),
  metrics: route({
    method: "get",
    path: "/metrics",
    scopes: readers,
    tag: "Running",
    summary: "Every metric, as Prometheus reads them; docs/metrics.md has their meaning.",
    answers: { 200: z.string() },
  }),
  trigger: route({
    method: "post",
    path: "/api/trigger",
    scopes: ["trigger"],
    tag: "Running",
    summary: "Runs one invocation and answers its report.",
    body: ask.triggerRequest,
    bodyOptional: true,
    answers: { 200: state.report, 202: state.accepted, 503: z.union([state.failedReport, state.refused]) },
  }),
  cron: route({
    method: "get",
    path: "/api/cron",
    scopes: ["cron"],
    tag: "Running",
    summary: "The same, as Vercel's scheduler calls it.",
    noHead: true,
    answers: { 200: state.report, 503: z.union([state.failedReport, state.refused]) },
  }),
  listJobs: route({
    method: "get",
    path: "/api/jobs",
    scopes: readers,
    tag: "Jobs",
    summary: "Jobs that match every filter, a page of them.",
    query: ask.jobsQuery,
    payload: true,
    answers: { 200: job.jobPage },
  }),
  enqueue: route({
    method: "post",
    path: "/api/jobs",
    scopes: ["enqueue"],
    tag: "Jobs",
    summary: "Enqueues one job, or up to 1,000, all of them or none. 201: at least one is new.",
    body: ask.newJobs,
    raw: true,
    answers: { 200: job.enqueuedJobs, 201: job.enqueuedJobs },
    errors: { 404: "PGCLAIM_UNKNOWN_KIND" },
  }),
  cancelJobs: bulk("/api/jobs/cancel", "Cancels the waiting jobs that match, up to 10,000.", ask.cancelRequest),
  listDead: view(
    "/api/dead",
    "Dead letters",
    "The newest dead letters by kind and error.",
    ask.noQuery,
    job.deadGroups,
  ),
  redriveDead: bulk(
    "/api/dead/redrive",
    "Gives the dead letters that match new attempts, up to 10,000.",
    ask.redriveRequest,
  ),
  discardDead: bulk(
    "/api/dead/discard",
    "Discards the dead letters that match for good, up to 10,000.",
    ask.discardRequest,
  ),
  listQueues: view("/api/queues", "Queues", "Every queue, with what waits in it.", ask.noQuery, state.queueList),
  listKinds: view("/api/kinds", "Queues", "Every kind, with its policy.", ask.noQuery, state.kindList),
  listKeys: view("/api/keys", "Ordering keys", "Ordering keys, halted ones first.", ask.keysQuery, job.keyPage),
  listSchedules: route({
    method: "get",
    path: "/api/schedules",
    scopes: readers,
    tag: "Schedules",
    summary: "Every schedule, with its last and next occurrence.",
    answers: { 200: state.scheduleList },
  }),
  listTriggers: view(
    "/api/triggers",
    "Running",
    "What wakes this installation, and when it last did.",
    ask.noQuery,
    state.triggerList,
  ),
  listTicks: view("/api/ticks", "Running", "Ticks, the newest first.", ask.ticksQuery, state.tickPage),
  listHolders: view(
    "/api/holders",
    "Running",
    "Who runs what right now, proved by the lock table.",
    ask.noQuery,
    state.holders,
  ),
  stats: view("/api/stats", "Running", "The whole installation at a glance.", ask.noQuery, state.overview),
  series: view("/api/stats/series", "Running", "What finished and how fast, over time.", ask.seriesQuery, state.series),
  getJob: route({
    method: "get",
    path: "/api/jobs/{id}",
    scopes: readers,
    tag: "Jobs",
    summary: "One job with its attempts, finished ones too.",
    params: id,
    answers: { 200: job.jobAnswer },
    errors: { 404: noJob },
  }),
  getPayload: route({
    method: "get",
    path: "/api/jobs/{id}/payload",
    scopes: readers,
    tag: "Jobs",
    summary: "Its whole payload, as stored, as a text file.",
    params: id,
    query: ask.noQuery,
    answers: { 200: z.string() },
    errors: { 404: noJob },
  }),
  retryJob: verb("retry", "Gives a dead letter a fresh set of attempts."),
  discardJob: verb("discard", "Takes a dead letter out for good; a key it has halted goes on."),
  skipJob: verb("skip", "Lets the jobs of its ordering key pass a dead letter; it stays one."),
  cancelJob: verb("cancel", "Cancels a job: one that waits at once, one that runs by its signal (`requested`)."),
  rescheduleJob: route({
    method: "post",
    path: "/api/jobs/{id}/reschedule",
    scopes: operators,
    tag: "Jobs",
    summary: "Changes when a waiting job is due.",
    params: id,
    query: ask.noQuery,
    body: ask.rescheduleRequest,
    answers: { 200: job.operated },
    errors: { 404: noJob, 409: "PGCLAIM_JOB_BUSY, PGCLAIM_JOB_NOT_WAITING" },
  }),
  pauseQueue: queueVerb("pause", "Claims nothing more of it; what runs runs on."),
  resumeQueue: queueVerb("resume", "Claims of it again."),
  pauseSchedule: scheduleVerb("pause", "Fires no more; occurrences that pass meanwhile are lost."),
  resumeSchedule: scheduleVerb("resume", "Fires again."),
  runSchedule: route({
    method: "post",
    path: "/api/schedules/{name}/run",
    scopes: operators,
    tag: "Schedules",
    summary: "Enqueues what it would, now; its own occurrences stay.",
    params: schedule,
    query: ask.noQuery,
    body: ask.nothing,
    bodyOptional: true,
    answers: { 200: state.scheduleRun, 201: state.scheduleRun },
    errors: { 404: "PGCLAIM_NOT_FOUND" },
  }),
  getInvocation: route({
    method: "get",
    path: "/api/invocations/{id}",
    scopes: readers,
    tag: "Running",
    summary: "One invocation: its ticks, what each claimed and why it left the rest alone.",
    params: z.object({ id: ask.invocationId }),
    query: ask.noQuery,
    answers: { 200: state.invocation },
    errors: { 404: "PGCLAIM_NOT_FOUND" },
  }),
  terminateHolder: route({
    method: "post",
    path: "/api/holders/{pid}/terminate",
    scopes: operators,
    tag: "Running",
    summary:
      "Ends the transaction of a backend that still holds one of our locks and still has this transaction start.",
    params: z.object({ pid: ask.processId }),
    query: ask.noQuery,
    body: ask.terminateRequest,
    answers: { 200: state.terminated },
  }),
};

export type Contract = typeof contract;

/** The API as Hono's client sees it: `hc<AppType>(url)`, or `createClient` of `pgclaim/client`. */
export type AppType = AppOf<Contract>;
