// The public surface of the core. Re-exports only; adapters are entry points of their own.

export { type Answer, deadLetter, done, retryIn, snooze } from "./answers.ts";
export {
  type Claimer,
  createClaimer,
  type EnqueueByKindOptions,
  type EnqueueOptions,
  type EnqueueRequest,
  type InvokeOptions,
} from "./claimer.ts";
export type { ClaimerOptions } from "./claimer_options.ts";
export type { Clock } from "./clock.ts";
export type { Database, OneShotCall, PgClient } from "./database.ts";
export {
  type AnyJobDefinition,
  defineJob,
  type Handler,
  type HandlerContext,
  type JobDefinition,
  type JobFacts,
  type JobSpec,
  type QueryResult,
  type RetryOptions,
  type Tx,
} from "./define.ts";
export type { Duration } from "./duration.ts";
export {
  DatabaseError,
  type ErrorCode,
  type ErrorFamily,
  errorCodes,
  JobError,
  PgclaimError,
  UsageError,
} from "./errors.ts";
export type { OnEvent, PgclaimEvent } from "./events.ts";
export type { CallerClient } from "./gateway.ts";
export type {
  ActionView,
  Actor,
  BulkAnswer,
  BulkVerb,
  Count,
  DeadGroup,
  Holder,
  Holders,
  Inspector,
  InvocationDetail,
  JobDetail,
  JobFilter,
  JobRow,
  JobsRequest,
  KeyRow,
  KindRow,
  ListState,
  LockView,
  MetricsView,
  OperateAnswer,
  Operator,
  Overview,
  Page,
  Point,
  QueueRow,
  Series,
  TickRow,
  TicksRequest,
  TriggerRow,
  Why,
} from "./inspection.ts";
export type { KickOptions } from "./kick.ts";
export type { LimitOptions } from "./limits.ts";
export type {
  AttemptView,
  Enqueued,
  InvocationReport,
  JobId,
  JobResult,
  JobState,
  JobView,
  OperatorAnswer,
  ScheduleView,
  Skip,
  SkipReason,
  TickFate,
  TickReport,
  Trigger,
} from "./model.ts";
export type { Log, LogEntry, LogLevel } from "./report.ts";
export { type AnySchedule, type CatchUp, defineSchedule, type Schedule } from "./schedule.ts";
export type { StandardSchema } from "./standard_schema.ts";
export type { Telemetry, TelemetryMeter, TelemetrySpan, TelemetryTracer } from "./telemetry.ts";
