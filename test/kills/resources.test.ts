// Jobs that take their process with them without a signal from anybody: one fills the heap until the process dies, one never
// gives the event loop back, so that only the server's limits end its transaction and only the platform its process. Each is
// found out, runs alone, and ends as a dead letter `crashed`; the jobs beside it end done, uncharged.
//
// workerd here enforces neither 128 MB nor CPU time. The heap is bounded by RLIMIT_DATA (prlimit) in workerd, by
// --max-old-space-size in Node, so that a process dies in a second and the machine does not notice.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { describe, expect, it, vi } from "vitest";
import { effectTable, expectWhole, invoke, makeDue, upTo } from "../support/engine.ts";
import { endsWithin, eventually, gate } from "../support/gate.ts";
import { setup, type TransportName, transports, type World } from "../support/world.ts";
import { expectClean, namesOf, never, setupLab, soonMs, type WorkerSettings } from "../workerd/support.ts";
import { victimKind } from "./process.ts";
import { everyStage } from "./server.ts";
import { startVictim } from "./victim.ts";

vi.setConfig({ testTimeout: 120_000 }); // a busy machine has room

/** Of the kind of the poison. */
const maxCrashes = 2;
/** More than are needed: one for each death, one that counts the last, and some whose budget was too short for more. */
const mostProcesses = 10;
/** Where the loop is blocked, the budget decides how long the server keeps the locks; elsewhere nobody is in a hurry. */
const budgetOf = { "fill-heap": "60s", block: "2500ms" } as const;
const harms = ["fill-heap", "block"] as const;

/** Reads a process's private writable memory and allows it so much more, or says why that cannot be done here. */
function capMemory(pid: number, moreMb: number): string | null {
  try {
    const dataKb = Number(/VmData:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
    execFileSync("prlimit", ["--pid", String(pid), `--data=${(dataKb + moreMb * 1024) * 1024}`], { stdio: "pipe" });
    return null;
  } catch (error) {
    return String(error);
  }
}

describe.each(harms)("a handler in workerd that does %s", (harm) => {
  const poison = "poison";
  const innocents = namesOf(3, "innocent");
  const settings: WorkerSettings = {
    budget: { cron: budgetOf[harm], http: "8s" },
    limits: { reserve: "300ms", serverGrace: "200ms", settle: "1500ms", connect: "5s", oneShot: "5s", message: "5s" },
    concurrency: 6,
  };

  it("is quarantined and ends crashed; the jobs beside it end done and uncharged", async ({ annotate, skip }) => {
    const lab = await setupLab();
    await lab.enqueue("brief", [innocents[0] ?? "", poison, ...innocents.slice(1)]);
    let deaths = 0;
    let harmed = gate();
    lab.outside.answer(async ({ name }) => {
      if (name !== poison) return deaths === 0 ? never() : "ok";
      if (deaths === 0) await lab.outside.reached(innocents.length + 1);
      harmed.open();
      return harm;
    });
    for (let processes = 0; (await unfinished(lab)) > 0; processes++) {
      expect(processes).toBeLessThan(mostProcesses);
      harmed = gate();
      const worker = await lab.start({ settings });
      if (harm === "fill-heap") {
        const refused = capMemory(worker.pid, 100);
        if (refused !== null) {
          console.warn(`NOT RUN: the heap of workerd filled up. Its memory cannot be bounded here: ${refused}`);
          skip();
        }
      }
      const running = worker.cron().then(
        ({ report }) => report.ended,
        (error: unknown) => String(error),
      );
      const startedAt = performance.now();
      const first = await endsWithin(soonMs, Promise.race([running, harmed.promise]), "scheduled(), or the harm");
      if (first === undefined) {
        if (harm === "block") {
          // The server gives the locks away by its own limits; then the platform ends the process.
          await lab.locksFree();
          await worker.kill();
        } else {
          await endsWithin(20_000, worker.exited, "the process whose heap is filled");
        }
        deaths++;
        await annotate(`death ${deaths} after ${Math.round(performance.now() - startedAt)} ms`);
      }
      await endsWithin(soonMs, running, "scheduled(), or its end");
      await worker.stop();
      await lab.locksFree();
    }
    expect(deaths).toBe(1 + maxCrashes);
    expect(await histories(lab)).toEqual([
      "crashed, done alone",
      "crashed, crashed alone, crashed alone",
      "crashed, done alone",
      "crashed, done alone",
    ]);
    expect(await lab.effects()).toEqual(innocents);
    expect(await lab.rows("select state, dead_reason, failures from pgclaim.job")).toEqual([
      { state: "dead", dead_reason: "crashed", failures: 0 },
    ]);
    await expectClean(lab);
  });
});

/** A blocked loop takes the server's limits three times over: once in CI. */
const blocked = (transport: TransportName) => transport === "pg" || everyStage;

describe.each(transports)("a handler in Node over %s", (transport) => {
  it.each(harms.filter((harm) => harm !== "block" || blocked(transport)))(
    "that does %s is quarantined and ends crashed; the others end done",
    async (harm) => {
      const world = await setup();
      await effectTable(world);
      const kind = victimKind(() => {});
      const claimer = world.claimer("pg", { jobs: [kind] });
      await claimer.enqueueMany(
        kind,
        upTo(4).map((n) => ({ n, harm: n === 2 ? harm : "none" })),
      );
      const ends: string[] = [];
      for (let processes = 0; (await unfinished(world)) > 0; processes++) {
        expect(processes).toBeLessThan(mostProcesses);
        const victim = startVictim(world, transport, { budget: budgetOf[harm], heapMb: 64 });
        if (harm === "block") {
          const blocked = victim.until((starts) => starts.some(({ n }) => n === 2)).then(() => "blocked");
          blocked.catch(() => {});
          if ((await Promise.race([victim.ended, blocked])) === "blocked") {
            await noLocks(world);
            await victim.kill();
          }
        }
        const end = await endsWithin(20_000, victim.ended, "the process");
        if (typeof end === "string") ends.push(end);
        await noLocks(world);
        await makeDue(world);
      }
      expect(ends).toEqual(Array(1 + maxCrashes).fill(harm === "block" ? "SIGKILL" : expect.stringMatching(/^SIG/)));
      expect(await histories(world)).toEqual([
        "crashed, done alone",
        "crashed, crashed alone, crashed alone",
        "crashed, done alone",
        "crashed, done alone",
      ]);
      expect(await invoke(claimer)).toMatchObject({ claimed: 0, crashed: 0 });
      expect(await world.rows("select id, dead_reason from pgclaim.job")).toEqual([
        { id: "2", dead_reason: "crashed" },
      ]);
      await expectWhole(world, { effects: [1, 3, 4], dead: 1 });
    },
  );
});

/** What became of each job's attempts; without those that were handed back when a budget was over. */
async function histories(world: Pick<World, "rows">): Promise<string[]> {
  const rows = await world.rows<{ line: string }>(
    `select string_agg(outcome || case when quarantined then ' alone' else '' end, ', ' order by n) as line
     from pgclaim.attempt where outcome is distinct from 'released' group by job_id order by job_id`,
  );
  return rows.map(({ line }) => line);
}

function unfinished(world: Pick<World, "value">): Promise<number> {
  return world.value<number>("select count(*)::integer from pgclaim.job where state <> 'dead'");
}

/** Until the server has given all locks away. */
async function noLocks(world: World): Promise<void> {
  await eventually(async () => expect(await world.locks()).toBe(0));
}
