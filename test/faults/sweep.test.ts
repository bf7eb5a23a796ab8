// Every round trip of an invocation is broken, in every way, on the session, on the one-shots and on both, over both
// transports. Each broken invocation ends within its limits and says with a code what happened; the next ones put things
// right: every job done, every effect there once, no attempt open, no lock held, no transaction left.
//
// CI breaks each round trip in one of the ways, which one is drawn. All of them, a quarter of an hour; or some, by how their
// names begin:
//   PGCLAIM_FAULTS=all npx vitest run test/faults/sweep.test.ts
//   PGCLAIM_FAULTS=neon/session npx vitest run test/faults/sweep.test.ts
// One case again:
//   PGCLAIM_FAULTS=neon/session/half-open/once/7 npx vitest run test/faults/sweep.test.ts

import pg from "pg";
import { afterAll, beforeAll, describe, expect, inject, it } from "vitest";
import { errorCodes } from "../../src/errors.ts";
import type { Case, Verdict } from "./lane.ts";
import { channels, extents, type Kind, kinds, transports } from "./network.ts";
import {
  everySeries,
  type Lanes,
  maxScale,
  nameOf,
  parseCase,
  type Series,
  type Swept,
  startLanes,
  sweep,
} from "./sweep.ts";
import { complaints, createEffects, expectedJobs, reset } from "./workload.ts";

const wanted = process.env.PGCLAIM_FAULTS ?? "some";
const seed = Number(process.env.PGCLAIM_SEED ?? Math.floor(Math.random() * 1e6));
/** Cases side by side. Most of them wait for a limit most of the time. */
const laneCount = Number(process.env.PGCLAIM_LANES ?? 6);

/** What a healthy run may take with limits at scale 1. */
const healthyMs = 400;

/** The ways that CI draws from; the rest differ from these in how the answer is cut. */
const main: readonly Kind[] = ["reset", "close", "half-open", "black-hole", "slow", "answer-lost"];

let admin: pg.Client;
let lanes: Lanes;
const databases: string[] = [];

async function createDatabase(name: string): Promise<string> {
  const database = `t_${process.pid}_${name}`;
  await admin.query(`create database ${database} template ${inject("template")}`);
  databases.push(database);
  const url = new URL(inject("adminUrl"));
  url.pathname = `/${database}`;
  return url.toString();
}

beforeAll(async () => {
  admin = new pg.Client(inject("adminUrl"));
  await admin.connect();
  const urls: string[] = [];
  for (let i = 0; i < laneCount; i++) urls.push(await createDatabase(`lane_${i}`));
  lanes = await startLanes(urls, process.env.DATABASE_URL === undefined);
});

afterAll(async () => {
  await lanes.close();
  for (const database of databases) await admin.query(`drop database ${database} with (force)`);
  await admin.end();
});

/** What is wrong with a run, each fault with the command that brings it back. */
function faultsOf({ of, struck, complaints: found, codes }: Verdict): string[] {
  const all = [...found];
  if (of.extent === "once" && struck.length > 1) all.push(`${struck.length} round trips were broken`);
  const unknown = codes.filter((code) => code.startsWith("PGCLAIM_") && !(code in errorCodes));
  if (unknown.length > 0) all.push(`no such code: ${unknown}`);
  const command = `PGCLAIM_FAULTS=${nameOf(of)}/${of.n} npx vitest run test/faults/sweep.test.ts`;
  return all.map((what) => `${what} [${struck[0] ?? "untouched"}; ${command}]`);
}

/** A run that only counts. */
const counting = { kind: "reset", extent: "once", n: Number.POSITIVE_INFINITY, scale: 1, sabotage: false } as const;

const isHealthy = ({ done, codes }: Verdict): boolean => done === expectedJobs && codes.length === 0;

/** A run in which nothing breaks, repeated while the machine is so busy that it meets even these limits. */
async function healthyRun(of: Case): Promise<Verdict> {
  let verdict: Verdict | null = null;
  for (let tries = 0; tries < 4 && (verdict === null || !isHealthy(verdict)); tries++)
    verdict = await lanes.run({ ...of, scale: maxScale });
  if (verdict === null) throw new Error("it was not run");
  return verdict;
}

/** What CI sweeps: each round trip of a channel in one way. */
function drawn(): { readonly series: Series; readonly from: number; readonly step: number }[] {
  return everySeries().flatMap((series) => {
    const way = main.indexOf(series.kind);
    // A session or a one-shot that breaks once is the rule; both, an outage that lasts.
    const extent = series.channel === "both" || series.channel === "settle" ? "lasting" : "once";
    if (way < 0 || series.extent !== extent) return [];
    return [{ series, from: 1 + ((way + seed) % main.length), step: main.length }];
  });
}

function table(swept: readonly Swept[]): string {
  const most = (of: readonly Verdict[], key: "brokenMs" | "repairMs" | "invocations" | "unhindered") =>
    Math.round(Math.max(0, ...of.map((verdict) => verdict[key])));
  const lines = swept.map((one) => {
    const healed = one.broken.filter(({ done }) => done === expectedJobs).length;
    return [
      nameOf(one).padEnd(34),
      String(one.broken.length).padStart(6),
      String(healed).padStart(6),
      String(most(one.broken, "brokenMs")).padStart(7),
      String(most(one.broken, "repairMs")).padStart(7),
      String(most(one.broken, "invocations")).padStart(4),
      [...new Set(one.broken.flatMap(({ codes }) => codes.map((code) => code.replace("PGCLAIM_", ""))))].join(" "),
    ].join(" ");
  });
  const head = `${"transport/channel/kind/extent".padEnd(34)} faults healed    ms<= repair<= later codes`;
  return [head, ...lines].join("\n");
}

const isCase = wanted.split("/").length === 5;

describe.runIf(!isCase)("a broken round trip", () => {
  const chosen = everySeries().filter((series) => wanted === "all" || nameOf(series).startsWith(wanted));
  const plan = wanted === "some" ? drawn() : chosen.map((series) => ({ series, from: 1, step: 1 }));

  it(`${wanted} of them: the invocation ends in its limits with a code, and the next ones put things right`, {
    timeout: 3_600_000,
  }, async () => {
    const began = performance.now();
    // A healthy run of each transport and channel, side by side: how many round trips there are to break, and how long
    // they take on this machine as it is now.
    const healthy = await Promise.all(
      transports.flatMap((transport) =>
        (["session", "one-shot", "both"] as const).map((channel) => healthyRun({ ...counting, transport, channel })),
      ),
    );
    for (const verdict of healthy) {
      expect(faultsOf(verdict)).toEqual([]);
      expect(verdict).toMatchObject({ done: expectedJobs, codes: [], struck: [], invocations: 0 });
    }
    const slowest = Math.max(...healthy.map(({ brokenMs }) => brokenMs));
    const scale = Math.min(maxScale / 2, Math.max(1, slowest / healthyMs));
    const swept: Swept[] = [];
    const left = [...plan];
    // As many series at a time as there are lanes, so that they end one after the other.
    await Promise.all(
      Array.from({ length: laneCount }, async () => {
        for (let next = left.shift(); next !== undefined; next = left.shift()) {
          const { series, from, step } = next;
          const { transport, channel } = series;
          // What comes after a settle depends on what is left of the budget.
          const counted = healthy.find(({ of }) => of.transport === transport && of.channel === channel) ?? null;
          const one = await sweep(lanes, { ...series, scale }, counted, { from, step });
          swept.push(one);
          if (wanted !== "some") console.info(table([one]).split("\n")[1]);
        }
      }),
    );
    expect(plan.length).toBeGreaterThan(0);
    const runs = swept.flatMap(({ broken }) => broken);
    const spoilt = swept.flatMap((one) => one.spoilt);
    const seconds = Math.round((performance.now() - began) / 1000);
    console.info(
      `${table(swept)}\n${runs.length} faults in ${swept.length} series, ${spoilt.length} runs repeated, limits x ${scale.toFixed(1)}, ${seconds} s, PGCLAIM_SEED=${seed}`,
    );
    expect([...runs, ...spoilt, ...swept.map(({ untouched }) => untouched)].flatMap(faultsOf)).toEqual([]);

    // No sweep ended early: a report counts what the engine sent, apart from how it came by.
    for (const { trips, roundTrips, of } of healthy) {
      const session = 1 + roundTrips.session + roundTrips.handlers;
      const known = { session, "one-shot": roundTrips.oneShot, both: session + roundTrips.oneShot, settle: 1 };
      expect(trips.length).toBeGreaterThanOrEqual(known[of.channel]);
    }
    for (const { untouched, channel } of swept)
      if (channel !== "settle") expect(untouched).toMatchObject({ struck: [], done: expectedJobs, codes: [] });
    // Every verb was broken, on every transport.
    for (const transport of wanted === "some" || wanted === "all" ? transports : []) {
      const names = new Set(runs.filter(({ of }) => of.transport === transport).flatMap(({ struck }) => struck));
      const verbs = ["wake", "register", "claim", "fence", "open turn", "query", "end_turn", "finish", "settle"];
      expect(verbs.filter((name) => !names.has(name))).toEqual([]);
      expect(
        ["rollback", "close", ...(transport === "pg" ? ["start-up", "password"] : ["upgrade"])].filter(
          (name) => !names.has(name),
        ),
      ).toEqual([]);
    }
    if (wanted === "all")
      expect(swept).toHaveLength(transports.length * channels.length * kinds.length * extents.length);
  });
});

describe.runIf(isCase)("the case asked for", () => {
  it(wanted, { timeout: 120_000 }, async () => {
    const verdict = await lanes.run(parseCase(wanted));
    console.info(JSON.stringify(verdict, null, 2));
    expect(faultsOf(verdict)).toEqual([]);
    expect(verdict.struck).not.toEqual([]);
  });
});

describe("the sweep itself", () => {
  it("finds effects that are not in the claiming transaction: a lost answer doubles them", async () => {
    for (const transport of transports) {
      const series = { ...counting, transport, channel: "session", scale: 4, sabotage: true } as const;
      const { trips, complaints: none } = await lanes.run(series);
      expect(none).toEqual([]);
      const verdict = await lanes.run({ ...series, n: trips.indexOf("finish") + 1 });
      expect(verdict.struck).toEqual(["finish"]);
      expect(verdict.complaints).toEqual([expect.stringMatching(/^effects are/)]);
    }
  });

  it("complains of each thing that can be wrong", async () => {
    const url = await createDatabase("wrong");
    const sql = new pg.Client(url);
    await sql.connect();
    await createEffects(sql);
    await sql.query(
      "insert into pgclaim.kind (name, namespace, revision, queue, priority, target_latency_ms, timeout_ms, max_attempts, max_crashes, backoff, min_backoff_ms, max_backoff_ms, alone) select k, row_number() over (), 1, 'default', 1, 0, 1, 1, 1, 'fixed', 1, 1, false from unnest('{line,held,turn,spawn,plain}'::text[]) k",
    );
    await reset(sql);
    await sql.query("insert into effect (n) values (2), (1)");
    await sql.query(
      "insert into pgclaim.attempt (job_id, n, tick, quarantined) values (1, 1, gen_random_uuid(), false)",
    );
    const other = new pg.Client(url);
    await other.connect();
    await other.query("begin");
    await other.query("select pg_advisory_xact_lock(1)");
    const found = await complaints(sql, ["1:1", "1:1", "7:7"]);
    await Promise.all([sql.end(), other.end()]);
    expect(found.map((what) => what.replace(/(?<=[a-z:] )[0-9].*$/, "").trim())).toMatchInlineSnapshot(`
      [
        "effects are",
        "a line is out of order:",
        "jobs are left:",
        "history says",
        "attempts are open:",
        "attempts that ended done:",
        "(job, attempt) started twice:",
        "started without being on record:",
        "1 advisory locks are held",
        "1 transactions are open",
      ]
    `);
  });
});
