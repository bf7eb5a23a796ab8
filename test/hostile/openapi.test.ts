// The API fuzzed against its own document: each answer has a status that is documented and a body of that status's schema, and
// none is a 500. First against a claimer that records, then against the real one on a real Postgres.

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import * as z from "zod";
import type { Claimer } from "../../src/claimer.ts";
import { createApp } from "../../src/http/app.ts";
import { deadLetter, defineJob, defineSchedule } from "../../src/index.ts";
import { setup as setupWorld } from "../support/world.ts";
import { fakeClaimer, secrets } from "../unit/http/support.ts";
import { faultOf, initOf, type Likely, operations, requestOf, surpriseOf } from "./document.ts";
import { timeFor, tryOut } from "./support.ts";

async function bombard(claimer: Claimer, likely: Likely, usual: number): Promise<void> {
  const app = createApp({ claimer: () => claimer, secrets, log: () => {} });
  const counts = new Map<string, { good: number; refused: number }>();
  await tryOut({ usual }, fc.oneof(...operations.map((one) => requestOf(one, likely))), async (request) => {
    const { operation } = request;
    const answer = await app.request(request.target, initOf(request));
    const { status } = answer;
    expect(await surpriseOf(operation, answer)).toBeNull();
    expect(status).toBeLessThan(500);
    const count = counts.get(operation.id) ?? { good: 0, refused: 0 };
    counts.set(operation.id, count);
    // A job that is not there, or not dead, is an answer too: the request was understood.
    if (status < 300 || status === 404 || status === 409) count.good++;
    else count.refused++;
  });
  const sum = (of: "good" | "refused") => [...counts.values()].reduce((all, count) => all + count[of], 0);
  console.log(`  understood: ${sum("good")}, ${sum("refused")} refused, by ${counts.size} operations`);
  // Requests that are all refused would prove little.
  for (const { id } of operations) expect([id, (counts.get(id)?.good ?? 0) > 0]).toEqual([id, true]);
  expect(sum("refused")).toBeGreaterThan(0);
}

describe("the API against its document", () => {
  it(
    "answers as documented, whatever is asked",
    async () => {
      await bombard(fakeClaimer().claimer, {}, 3_000);
    },
    timeFor(3_000),
  );

  it(
    "answers as documented on a real database",
    async () => {
      const world = await setupWorld();
      const plain = defineJob({ kind: "plain", payload: z.unknown(), async run() {} });
      const broken = defineJob({ kind: "broken", payload: z.unknown(), run: async () => deadLetter("no good") });
      const keyed = defineJob({
        kind: "keyed",
        payload: z.object({ k: z.string() }),
        orderingKey: "account:{k}",
        uniqueKey: "{k}",
        locks: ["a:{k}"],
        deadline: "15m",
        run: async () => deadLetter("no good"),
      });
      const jobs = [plain, broken, keyed];
      const schedules = [
        defineSchedule({ name: "nightly", cron: "30 2 * * *", job: plain, payload: { nightly: true } }),
      ];
      const claimer = world.claimer("pg", { jobs, schedules });
      await claimer.register();
      const requests = [
        ...Array.from({ length: 4 }, (_, n) => ({ kind: "plain", payload: { n } })),
        ...Array.from({ length: 4 }, (_, n) => ({ kind: "broken", payload: { n } })),
        ...Array.from({ length: 3 }, (_, n) => ({ kind: "keyed", payload: { k: String(n) } })),
      ];
      await claimer.enqueueByKind(requests);
      const { invocationId } = await claimer.invoke({ type: "cron", cron: "* * * * *", scheduledAt: null });
      await claimer.enqueueByKind(requests.map((request) => ({ ...request, delay: "1h" as const })));
      const { next } = await claimer.inspect.jobs({ limit: 1 });
      const ids = (await claimer.inspect.jobs({ limit: 200 })).items.map(({ id }) => id);
      const [group] = (await claimer.inspect.deadGroups()).groups;
      await bombard(
        claimer,
        {
          id: [...ids, invocationId],
          upTo: ids,
          kind: ["plain", "broken", "keyed"],
          queue: ["default"],
          name: ["default", "nightly"],
          orderingKey: ["account:1"],
          uniqueKey: ["1"],
          cursor: [next ?? ""],
          fingerprint: [group?.fingerprint ?? ""],
          "payload.*": ["x"],
        },
        1_000,
      );
      expect(await world.locks()).toBe(0);
    },
    timeFor(1_000),
  );
});

describe("the checker of answers", () => {
  const schema = {
    type: "object",
    properties: { id: { type: "string", pattern: "^[1-9]" }, n: { anyOf: [{ type: "integer" }, { type: "null" }] } },
    required: ["id"],
  };

  it.each([
    [{ id: "1", n: null }, null],
    [{ id: "0" }, "$.id fits not ^[1-9]"],
    [{ n: 1 }, "$ has no id"],
    [{ id: "1", n: 0.5 }, "$.n is number, not integer and $.n is number, not null"],
    [{ id: "1", more: 1 }, "$.more is not documented"],
    [[], "$ is object, not object"],
  ])("sees what is wrong with %j", (value, fault) => {
    expect(faultOf(schema, value)).toBe(fault);
  });

  it("checks no schema it does not understand", () => {
    expect(() => faultOf({ not: {} }, 1)).toThrow('no check of "not"');
  });
});
