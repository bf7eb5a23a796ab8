// The schemas of the API's answers and the types they stand for are the same, in both directions. `tsc` is the test.

import { expect, it } from "vitest";
import type * as z from "zod";
import type * as job from "../../src/http/schemas_jobs.ts";
import type * as state from "../../src/http/schemas_state.ts";
import type * as views from "../../src/inspection.ts";
import type * as model from "../../src/model.ts";

/** Fails to compile unless either could stand for the other; `readonly` is looked at in lists only. */
type Same<A, B extends A> = [A, B] extends [B, A] ? true : never;
type Of<S extends z.ZodType> = z.output<S>;

const proofs = [
  true satisfies Same<views.Count, Of<typeof job.count>>,
  true satisfies Same<views.JobRow, Of<typeof job.jobRow>>,
  true satisfies Same<views.JobDetail, Of<typeof job.jobDetail>>,
  true satisfies Same<views.Page<views.JobRow>, Of<typeof job.jobPage>>,
  true satisfies Same<views.LockView, Of<typeof job.lockView>>,
  true satisfies Same<views.ActionView, Of<typeof job.actionView>>,
  true satisfies Same<Awaited<ReturnType<views.Inspector["deadGroups"]>>, Of<typeof job.deadGroups>>,
  true satisfies Same<views.Page<views.KeyRow>, Of<typeof job.keyPage>>,
  true satisfies Same<model.Enqueued, Of<typeof job.enqueued>>,
  true satisfies Same<views.QueueRow, Of<typeof state.queueRow>>,
  true satisfies Same<views.KindRow, Of<typeof state.kindRow>>,
  true satisfies Same<views.TriggerRow, Of<typeof state.triggerRow>>,
  true satisfies Same<views.Series, Of<typeof state.series>>,
  true satisfies Same<views.Overview, Of<typeof state.overview>>,
  true satisfies Same<views.Page<views.TickRow>, Of<typeof state.tickPage>>,
  true satisfies Same<views.InvocationDetail, Of<typeof state.invocation>>,
  true satisfies Same<views.Holders, Of<typeof state.holders>>,
  true satisfies Same<model.InvocationReport, Of<typeof state.report>>,
  true satisfies Same<AsJson<model.ScheduleView>, Of<typeof state.schedule>>,
  // What the route has always answered is still all there.
  true satisfies Of<typeof job.jobAnswer> extends Omit<model.JobView, "state"> ? true : never,
  true satisfies model.JobState extends views.ListState ? true : never,
];

type AsJson<T> = { [K in keyof T]: T[K] extends Date ? string : T[K] extends Date | null ? string | null : T[K] };

it("compiles, which is the test", () => {
  expect(proofs.every(Boolean)).toBe(true);
});
