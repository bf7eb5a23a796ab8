// A process is killed while its handler runs; another one of the same system is there. How long until the job runs again?
// All are measured side by side, and what takes longer than --wait is not waited for.

import { setTimeout as pause } from "node:timers/promises";
import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import { startChild } from "./child.ts";
import type { Peers } from "./peers.ts";
import { claimerOf, type Exhibit, gate, main, type Row, type Stage } from "./stage.ts";
import { ownPool } from "./systems.ts";

const OWN_LIMIT_MS = 20_000;

/** Makes the world, and answers the other process: it starts when called, and its answer stops it. */
interface Case {
  readonly system: string;
  readonly child: "pgclaim" | "pg-boss" | "graphile";
  readonly rule: string;
  readonly remark?: string;
  prepare(url: string): Promise<void>;
  work(url: string, ran: () => void): Promise<() => Promise<void>>;
}

function pgclaim(every: number, system: string, rule: string, remark: string): Case {
  const make = (url: string, ran: () => void) => {
    const job = defineJob({
      kind: "exhibit",
      payload: z.any(),
      async run() {
        ran();
      },
    });
    return { job, claimer: claimerOf(url, [job]) };
  };
  return {
    system,
    child: "pgclaim",
    rule,
    remark,
    async prepare(url) {
      const { claimer, job } = make(url, () => {});
      await claimer.enqueue(job, {});
    },
    async work(url, ran) {
      const over = new AbortController();
      const loop = (async () => {
        // The worst case: the holder is killed right after a trigger.
        while (!over.signal.aborted) {
          await pause(every, undefined, { signal: over.signal }).catch(() => {});
          if (!over.signal.aborted) await make(url, ran).claimer.invoke({ type: "manual" });
        }
      })();
      return async () => {
        over.abort();
        await loop;
      };
    },
  };
}

function boss({ boss: { name, PgBoss } }: Peers, best: boolean): Case {
  const start = async (connectionString: string) => {
    const fast = best ? { superviseIntervalSeconds: 1, monitorIntervalSeconds: 1 } : {};
    const one = new PgBoss({ connectionString, schedule: false, ...fast });
    one.on("error", () => {});
    await one.start();
    return one;
  };
  return {
    system: best ? `${name}, heartbeatSeconds 10, supervised each second` : `${name}, default settings`,
    child: "pg-boss",
    rule: best ? "10 s + 1 s" : "15 min + 1 min",
    ...(best ? { remark: "10 s is the least it takes; a shorter expireInSeconds also ends longer healthy jobs" } : {}),
    async prepare(url) {
      const one = await start(url);
      await one.createQueue("exhibit", best ? { heartbeatSeconds: 10, retryLimit: 5 } : { retryLimit: 5 });
      await one.send("exhibit", {});
      await one.stop({ graceful: false });
    },
    async work(url, ran) {
      const one = await start(url);
      await one.work("exhibit", { pollingIntervalSeconds: 0.5 }, async () => ran());
      return async () => void (await one.stop({ graceful: false }));
    },
  };
}

function graphile({ graphile: { name, module, logger } }: Peers): Case {
  return {
    system: `${name}, default settings`,
    child: "graphile",
    rule: "4 h",
    remark: "the four hours are no setting; the Pro edition detects it by heartbeats (not measured)",
    async prepare(connectionString) {
      await module.runMigrations({ connectionString, logger });
      const pool = ownPool(connectionString, 1);
      await pool.query("select from graphile_worker.add_job('exhibit', '{}')");
      await pool.end();
    },
    async work(url, ran) {
      const pgPool = ownPool(url);
      const runner = await module.run({
        pgPool,
        logger,
        concurrency: 1,
        pollInterval: 100,
        noHandleSignals: true,
        taskList: { exhibit: async () => ran() },
      });
      return async () => {
        await runner.stop();
        await pgPool.end();
      };
    },
  };
}

async function measure(stage: Stage, one: Case): Promise<Row> {
  const url = await stage.database({ bare: one.child !== "pgclaim" });
  await one.prepare(url);
  const child = startChild({ system: one.child, url, folder: stage.peers?.folder, act: "stand" });
  stage.later(child.kill);
  await child.standing;
  const again = gate();
  const stop = await one.work(url, again.open);
  child.kill();
  const killedAt = performance.now();
  await child.ended;
  // In a small run only the peers' minutes are cut short.
  const waitMs = stage.quick && one.child === "pgclaim" ? OWN_LIMIT_MS : stage.waitMs;
  const limit = new AbortController();
  const ran = await Promise.race([
    again.promise.then(() => performance.now() - killedAt),
    pause(waitMs, null, { signal: limit.signal }).catch(() => null),
  ]);
  limit.abort();
  await stop();
  return {
    system: one.system,
    figures: {
      "s until the job runs again":
        ran === null ? `more than ${stage.waitMs / 1_000}, not waited for` : (ran / 1_000).toFixed(2),
      "its rule": one.rule,
    },
    ...(one.remark === undefined ? {} : { remark: one.remark }),
  };
}

export const killedHolder: Exhibit = {
  name: "killed_holder",
  title: "A killed holder, until the job runs again",
  says: "SIGKILL to a process whose handler runs; a second process is there all the time. For pgclaim the clock starts right after a trigger, which is the worst case.",
  async run(stage) {
    const { peers } = stage;
    const cases = [
      pgclaim(
        1_000,
        "pgclaim, a trigger each second",
        "the next trigger",
        "a request to POST /api/trigger is a trigger",
      ),
      ...(stage.quick
        ? []
        : [
            pgclaim(
              60_000,
              "pgclaim, a cron each minute",
              "the next trigger",
              "a killed process; a machine that vanishes without closing its socket: the server's limit comes first",
            ),
          ]),
    ];
    if (peers !== null) cases.push(boss(peers, false), boss(peers, true), graphile(peers));
    return Promise.all(cases.map((one) => measure(stage, one)));
  },
};

if (import.meta.main) await main([killedHolder]);
