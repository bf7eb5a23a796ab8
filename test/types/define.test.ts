// What must and must not compile. `tsc` is the test; each line below a ts-expect-error must be an error.

import { expect, expectTypeOf, it } from "vitest";
import * as z from "zod";
import { type Claimer, type Duration, defineJob } from "../../src/index.ts";

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

it("types follow from the schema", () => {
  expect(mustAndMustNotCompile).toBeTypeOf("function");
  expect(job.kind).toBe("order.ship");
});
