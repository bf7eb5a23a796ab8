// A job that kills its whole process, every time, beside nine that are innocent. No try and no counter in the dead process
// can help; what is left is what the fence has put on record.

import { describe, expect, it } from "vitest";
import { endsWithin } from "../support/gate.ts";
import {
  expectClean,
  type Instance,
  type Lab,
  namesOf,
  never,
  setupLab,
  soonMs,
  type WorkerSettings,
} from "./support.ts";

const poison = "poison";
const innocents = namesOf(9, "innocent");
/** Nothing in here ends by itself: whoever ends, was killed or is done. */
const settings: WorkerSettings = { budget: { cron: "10m" }, limits: { serverGrace: "10m" }, concurrency: 10 };
/** As in the kind. */
const maxCrashes = 3;

/** Triggers one fresh process after another until one finds nothing left. Answers what each of them came to. */
async function triggerUntilQuiet(lab: Lab): Promise<("killed" | "ended")[]> {
  const fates: ("killed" | "ended")[] = [];
  const processes = new Map<string, Instance>();
  lab.outside.answer(async ({ name, instance }) => {
    // Innocents of the first tick are still under way when the poison comes: it takes all of them with it.
    if (name !== poison) return fates.length === 0 ? never() : "ok";
    if (fates.length === 0) await lab.outside.reached(innocents.length + 1);
    await processes.get(instance)?.kill();
    return never();
  });
  for (;;) {
    const worker = await lab.start({ settings });
    processes.set(worker.name, worker);
    const ended = await endsWithin(
      soonMs,
      worker.cron().then(
        ({ report }) => report.ended,
        () => "killed" as const,
      ),
      "scheduled(), or its end",
    );
    if (ended === "killed") await lab.locksFree();
    else await worker.stop();
    fates.push(ended === "killed" ? "killed" : "ended");
    if (ended === "idle" || fates.length === 12) return fates;
  }
}

describe("a job that kills its process every time", () => {
  it("ends as a dead letter, and the nine jobs beside it end done and uncharged", async () => {
    const lab = await setupLab();
    await lab.enqueue("call", [...innocents.slice(0, 4), poison, ...innocents.slice(4)]);
    const fates = await triggerUntilQuiet(lab);

    // Once in company, then alone until its crashes are spent; the wake that counts the last of them finds nothing due.
    expect(fates).toEqual([...Array(1 + maxCrashes).fill("killed"), "ended"]);
    const starts = lab.outside.calls.filter(({ name }) => name === poison);
    expect(starts.map(({ attempt }) => attempt)).toEqual([1, 2, 3, 4]);

    // Nobody else was charged: crashes of others stand from the tick they shared with the poison, and only from it.
    expect(await lab.attempts()).toEqual([
      ...innocents.slice(0, 4).flatMap((name) => [`${name} 1 crashed`, `${name} 2 done alone`]),
      ...["1 crashed", "2 crashed alone", "3 crashed alone", "4 crashed alone"].map((end) => `${poison} ${end}`),
      ...innocents.slice(4).flatMap((name) => [`${name} 1 crashed`, `${name} 2 done alone`]),
    ]);
    expect(await lab.effects()).toEqual(innocents);
    expect(
      await lab.rows("select payload ->> 'name' as name, state, dead_reason, attempt, failures from pgclaim.job"),
    ).toEqual([{ name: poison, state: "dead", dead_reason: "crashed", attempt: 1 + maxCrashes, failures: 0 }]);
    await expectClean(lab);
  });

  it("does not hold up jobs that are enqueued meanwhile", async () => {
    const lab = await setupLab();
    await lab.enqueue("call", [poison]);
    const processes = new Map<string, Instance>();
    lab.outside.answer(async ({ name, instance }) => {
      if (name !== poison) return "ok";
      await processes.get(instance)?.kill();
      return never();
    });
    const late = namesOf(3, "late");
    for (const name of late) {
      const worker = await lab.start({ settings });
      processes.set(worker.name, worker);
      await endsWithin(
        soonMs,
        worker.cron().catch(() => "killed"),
        "scheduled(), or its end",
      );
      await lab.locksFree();
      await lab.enqueue("call", [name]);
    }
    const last = await lab.start({ settings });
    processes.set(last.name, last);
    await endsWithin(
      soonMs,
      last.cron().catch(() => "killed"),
      "the last scheduled(), or its end",
    );
    await lab.locksFree();
    // Each ran before the poison took its process: normal work goes first.
    expect(await lab.effects()).toEqual(late);
    expect((await lab.attempts()).filter((line) => !line.startsWith(poison))).toEqual(
      late.map((name) => `${name} 1 done`),
    );
  });
});
