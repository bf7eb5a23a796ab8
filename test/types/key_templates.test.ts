// Which templates compile against which payloads. `tsc` is the test; each line below a ts-expect-error must be an error.

import { expect, it } from "vitest";
import * as z from "zod";
import { defineJob } from "../../src/index.ts";

const payload = z.object({
  account: z.string(),
  amount: z.number(),
  urgent: z.boolean(),
  kind: z.enum(["a", "b"]),
  region: z.string().optional(),
  owner: z.string().nullable(),
  customer: z.object({ id: z.string(), address: z.object({ zip: z.number() }) }),
  tags: z.array(z.string()),
  when: z.number().transform((n) => new Date(n)),
});

function mustAndMustNotCompile(computed: string): void {
  defineJob({ kind: "a", payload, orderingKey: "account:{account}" });
  defineJob({ kind: "a", payload, orderingKey: "constant" });
  defineJob({ kind: "a", payload, orderingKey: "{amount}/{urgent}/{kind}" });
  defineJob({ kind: "a", payload, orderingKey: "{customer.id}:{customer.address.zip}" });
  // Optional and nullable ones compile; a job without the value is refused at enqueue.
  defineJob({ kind: "a", payload, uniqueKey: "{region}:{owner}" });
  // A transform's input is what is stored, so it is what a template sees.
  defineJob({ kind: "a", payload, locks: ["when:{when}"] });
  defineJob({ kind: "a", payload, locks: ["{account}", "x:{customer.id}"], sharedLocks: ["all"] });
  defineJob({
    kind: "a",
    payload,
    limits: [
      { name: "tenant:{account}", max: 5 },
      { name: "all", max: 9 },
    ],
    max: 3,
  });
  // A text that is not known at compile time is checked when it is defined.
  defineJob({ kind: "a", payload, orderingKey: computed });

  // @ts-expect-error no such property
  defineJob({ kind: "a", payload, orderingKey: "account:{acount}" });
  // @ts-expect-error one of two is wrong
  defineJob({ kind: "a", payload, orderingKey: "{account}:{nobody}" });
  // @ts-expect-error an object is no text
  defineJob({ kind: "a", payload, orderingKey: "{customer}" });
  // @ts-expect-error no such property inside
  defineJob({ kind: "a", payload, orderingKey: "{customer.name}" });
  // @ts-expect-error a text has no properties
  defineJob({ kind: "a", payload, orderingKey: "{account.length}" });
  // @ts-expect-error an array is no text
  defineJob({ kind: "a", payload, orderingKey: "{tags}" });
  // @ts-expect-error nor its elements
  defineJob({ kind: "a", payload, orderingKey: "{tags.0}" });
  // @ts-expect-error an empty placeholder
  defineJob({ kind: "a", payload, orderingKey: "{}" });
  // @ts-expect-error the second of the locks
  defineJob({ kind: "a", payload, locks: ["{account}", "{nobody}"] });
  // @ts-expect-error a shared lock
  defineJob({ kind: "a", payload, sharedLocks: ["{nobody}"] });
  // @ts-expect-error a limit's name
  defineJob({ kind: "a", payload, limits: [{ name: "{nobody}", max: 1 }] });
  // @ts-expect-error a limit without a number
  defineJob({ kind: "a", payload, limits: [{ name: "{account}" }] });
  // @ts-expect-error a unique key
  defineJob({ kind: "a", payload, uniqueKey: "{nobody}" });
  // @ts-expect-error a lock is a template, not a list of one
  defineJob({ kind: "a", payload, locks: "{account}" });
  // @ts-expect-error dead letters halt or let pass
  defineJob({ kind: "a", payload, orderingKey: "{account}", whenDead: "stop" });
}

it("templates follow from the payload", () => {
  expect(mustAndMustNotCompile).toBeTypeOf("function");
});
