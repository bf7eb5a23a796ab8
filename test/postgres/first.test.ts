import { describe, expect, it } from "vitest";
import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import { setup, transports } from "../support/world.ts";
describe.each(transports)("over %s", (transport) => {
  it("runs one", async () => {
    const world = await setup();
    const job = defineJob({ kind: "a", payload: z.object({ n: z.number() }), async run() {} });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueue(job, { n: 1 });
    expect((await claimer.invoke({ type: "manual" })).done).toBe(1);
    expect(await world.locks()).toBe(0);
  });
});
