// What must and must not compile. `tsc` is the test; each line below a ts-expect-error must be an error.

import { expect, expectTypeOf, it } from "vitest";
import * as z from "zod";
import { type Claimer, type Duration, defineJob, defineSchedule } from "../../src/index.ts";

const job = defineJob({
  kind: "order.ship",
  payload: z.object({ orderId: z.string(), weight: z.number().default(1) }),
  run({ payload, job, tx, signal }) {
    expectTypeOf(payload).toEqualTypeOf<{ orderId: string; weight: number }>();
    expectTypeOf(job.attempt).toEqualTypeOf<number>();
    expectTypeOf(job.id).toEqualTypeOf<string>();
    expectTypeOf(signal).toEqualTypeOf<AbortSignal>();
    expectTypeOf(tx.query).toBeFunction();
  },
});

function mustAndMustNotCompile(claimer: Claimer): void {
  claimer.enqueue(job, { orderId: "7" });
  claimer.enqueue(job, { orderId: "7" }, { delay: "5m" });
  // @ts-expect-error the payload's shape is the definition's
  claimer.enqueue(job, { orderId: 7 });
  // @ts-expect-error a missing property
  claimer.enqueue(job, {});
  // @ts-expect-error a bare number has no unit
  claimer.enqueue(job, { orderId: "7" }, { delay: 5 });
  // @ts-expect-error a bare number has no unit
  defineJob({ kind: "a", payload: z.object({}), timeout: 20 });
  // @ts-expect-error no such unit
  const week: Duration = "1w";
  // @ts-expect-error priorities are few and fixed
  defineJob({ kind: "a", payload: z.object({}), priority: 7 });
  // @ts-expect-error an unknown option
  defineJob({ kind: "a", payload: z.object({}), timout: "20s" });
  // @ts-expect-error a handler answers nothing or an answer
  defineJob({ kind: "a", payload: z.object({}), run: async () => "done" });
  void week;
}

/** What enqueue answers is a closed union: a caller that forgets a case is told by its compiler. */
async function answersAreAUnion(claimer: Claimer): Promise<string> {
  const answer = await claimer.enqueue(job, { orderId: "7" }, { kick: true, deadlineAt: new Date(0), priority: 0 });
  expectTypeOf(answer.id).toEqualTypeOf<string>();
  expectTypeOf(answer.type).toEqualTypeOf<"enqueued" | "duplicate" | "replaced" | "rescheduled" | "successor">();
  expectTypeOf(answer.kick).toEqualTypeOf<(() => Promise<void>) | undefined>();
  // @ts-expect-error no such answer
  if (answer.type === "inserted") return "";
  // @ts-expect-error priorities are few and fixed
  claimer.enqueue(job, { orderId: "7" }, { priority: 9 });
  // @ts-expect-error a deadline of a job is an instant
  claimer.enqueue(job, { orderId: "7" }, { deadlineAt: "15m" });
  // @ts-expect-error queues are a list
  claimer.invoke({ type: "manual" }, { queues: "mail" });
  switch (answer.type) {
    case "enqueued":
    case "successor":
      return "new";
    case "duplicate":
    case "replaced":
    case "rescheduled":
      return "there before";
    default:
      return answer.type satisfies never;
  }
}

function keysAndSchedules(): void {
  const payload = z.object({
    account: z.string(),
    n: z.number(),
    deep: z.object({ id: z.boolean() }),
    list: z.array(z.string()),
  });
  defineJob({
    kind: "a",
    payload,
    uniqueKey: "{account}:{n}:{deep.id}",
    uniqueFor: "1h",
    onConflict: "replace",
    deadline: "15m",
  });
  // @ts-expect-error no such path in the payload
  defineJob({ kind: "a", payload, uniqueKey: "{acount}" });
  // @ts-expect-error a list is no key
  defineJob({ kind: "a", payload, uniqueKey: "{list}" });
  // @ts-expect-error one of three
  defineJob({ kind: "a", payload, uniqueKey: "{account}", onConflict: "drop" });
  // @ts-expect-error a bare number has no unit
  defineJob({ kind: "a", payload, deadline: 900 });
  // @ts-expect-error one of two
  defineJob({ kind: "a", payload, whenMissed: "skip" });
  defineSchedule({ name: "nightly", cron: "30 2 * * *", timeZone: "Europe/Zurich", job, payload: { orderId: "7" } });
  // @ts-expect-error the payload's shape is the definition's
  defineSchedule({ name: "nightly", cron: "30 2 * * *", job, payload: { orderId: 7 } });
  // @ts-expect-error one of three
  defineSchedule({ name: "nightly", cron: "30 2 * * *", job, payload: { orderId: "7" }, catchUp: "some" });
}

it("types follow from the schema", () => {
  expect(mustAndMustNotCompile).toBeTypeOf("function");
  expect(answersAreAUnion).toBeTypeOf("function");
  expect(keysAndSchedules).toBeTypeOf("function");
  expect(job.kind).toBe("order.ship");
});
