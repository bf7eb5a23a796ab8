import { expect, it } from "vitest";
import { casts } from "./casts.ts";
import { explore } from "./explore.ts";
import { Lane } from "./lane.ts";

it("plays every order", async () => {
  const lane = await Lane.open();
  for (const cast of casts) {
    const startedAt = performance.now();
    const result = await explore(lane, cast, [], { until: Number.POSITIVE_INFINITY });
    const s = (performance.now() - startedAt) / 1000;
    console.log(cast.name, { ...result, failures: result.failures.length, labels: [...result.labels].join(" ") }, s.toFixed(1), (result.histories / s).toFixed(0));
    expect(result.failures.slice(0, 2)).toEqual([]);
  }
  await lane.close();
}, 600_000);
