// A deployment that is rolled back, through the whole engine: it says that it was superseded, and is put in force again.

import { describe, expect, it } from "vitest";
import { defineJob } from "../../../src/index.ts";
import { effect, effects, effectTable, invoke, numbered } from "../../support/engine.ts";
import { setup } from "../../support/world.ts";

describe("a deployment that is back after a newer one", () => {
  it("reports that it is superseded, leaves the newer jobs alone, and runs them when somebody says so", async () => {
    const world = await setup();
    await effectTable(world);
    const jobOf = (maxAttempts: number) =>
      defineJob({
        kind: "a",
        payload: numbered,
        retry: { maxAttempts },
        run: async ({ payload, tx }) => void (await effect(tx, payload.n)),
      });
    const [older, newer] = [3, 9].map((maxAttempts) => world.claimer("pg", { jobs: [jobOf(maxAttempts)] }));
    if (older === undefined || newer === undefined) throw new Error("two claimers");
    expect(await invoke(older)).toMatchObject({ ended: "idle", revision: 1, supersededBy: null });
    expect(await invoke(newer)).toMatchObject({ ended: "idle", revision: 2, supersededBy: null });
    await newer.enqueueByKind([{ kind: "a", payload: { n: 1 } }]);
    world.log.length = 0;
    expect(await invoke(older)).toMatchObject({
      done: 0,
      revision: 1,
      supersededBy: 2,
      skipped: { "newer-revision": 1 },
    });
    expect(world.log.at(-1)).toMatchObject({ event: "pgclaim.invocation", revision: 1, supersededBy: 2 });

    expect(await world.value("select pgclaim.use_revision_v1(1)")).toEqual({ type: "used", revision: 3 });
    expect(await invoke(older)).toMatchObject({ done: 1, revision: 3, supersededBy: null });
    expect(await invoke(newer)).toMatchObject({ revision: 2, supersededBy: 3 });
    expect(await effects(world)).toEqual([1]);
  });
});
