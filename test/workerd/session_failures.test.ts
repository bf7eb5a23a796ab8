// What can happen to the session while scheduled() runs: to its socket, its backend, its password.

import { describe, expect, it, onTestFinished } from "vitest";
import type { BreakKind } from "../../scripts/world/bridge.ts";
import { endsWithin, eventually, gate } from "../support/gate.ts";
import { type Failure, names, settlesDespite } from "./settles.ts";
import { expectAllDone, type Lab, never, setupLab, soonMs } from "./support.ts";

const always = Number.POSITIVE_INFINITY;

const session = "select pid from pg_stat_activity where datname = current_database() and state = $1 and query like $2";

/** Ends the claiming session's backend when it is there. */
async function terminate(lab: Lab, state: "idle in transaction" | "active", query: string): Promise<void> {
  await eventually(async () => {
    const rows = await lab.rows<{ pid: number }>(session, [state, query]);
    expect(rows).toHaveLength(1);
    expect(await lab.value("select pg_terminate_backend($1)", [rows[0]?.pid])).toBe(true);
  });
}

const sessionBreaks = (["tcp-reset", "ws-close", "ws-terminate"] as const satisfies BreakKind[]).flatMap(
  (how): Failure[] => [
    {
      what: `the session breaks (${how}) at its claim, twice`,
      arrange: (lab) => void lab.bridge.breakSession({ contains: "claim_v1", at: "before", how, times: 2 }),
      code: "PGCLAIM_TX_LOST",
    },
    {
      what: `the session breaks (${how}) while handlers call out`,
      async arrange(lab) {
        const held = gate<"ok">();
        lab.outside.answer(() => held.promise);
        await lab.outside.reached(2);
        lab.bridge.connections.at(-1)?.break(how);
        // The handlers are never answered: losing the session is what ends them.
      },
      code: "PGCLAIM_TX_LOST",
    },
    {
      what: `the session breaks (${how}) before its finish`,
      arrange: (lab) => void lab.bridge.breakSession({ contains: "finish_v1", at: "before", how }),
      code: "PGCLAIM_TX_LOST",
    },
  ],
);

const failures: Failure[] = [
  {
    what: "the backend is terminated while it is idle in the transaction",
    async arrange(lab) {
      lab.outside.answer(() => never());
      await lab.outside.reached(2);
      await terminate(lab, "idle in transaction", "%claim_v1%");
    },
    code: "PGCLAIM_TX_LOST",
    withinMs: 3_000,
  },
  {
    what: "the backend is terminated while a handler's query runs",
    async arrange(lab) {
      lab.outside.answer(({ name }) => (name === names[0] ? "sleep-in-query" : "ok"));
      await terminate(lab, "active", "select pg_sleep%");
    },
    code: "PGCLAIM_TX_LOST",
    // The one that held the turn may be what killed the session, so it counts as a crash and runs alone.
    left: { done: 2, crashed: 1 },
    withinMs: 3_000,
  },
  {
    what: "the session breaks at its claim",
    arrange: (lab) => void lab.bridge.breakSession({ contains: "claim_v1", at: "before", how: "tcp-reset" }),
    code: null, // nothing was fenced, so it is tried once more at once
    left: { done: 0 },
  },
  ...sessionBreaks,
  {
    what: "the session falls silent at its claim",
    arrange: (lab) => void lab.bridge.breakSession({ contains: "claim_v1", at: "before", how: "black-hole", times: 2 }),
    code: "PGCLAIM_NO_ANSWER",
    swallowed: 2,
  },
  {
    what: "the session falls silent before its finish",
    arrange: (lab) => void lab.bridge.breakSession({ contains: "finish_v1", at: "before", how: "black-hole" }),
    code: "PGCLAIM_NO_ANSWER",
    settings: { budget: { cron: "4s" } },
    locksMs: 4_500 + soonMs,
    swallowed: 1,
  },
  {
    what: "the session falls silent after its finish",
    arrange: (lab) => void lab.bridge.breakSession({ contains: "finish_v1", at: "after", how: "black-hole" }),
    code: null,
    left: { done: 0 },
    swallowed: 1,
  },
  {
    what: "the bridge refuses the session once",
    arrange: (lab) => void lab.bridge.breakConnect({ how: "refuse" }),
    code: null,
    left: { done: 0 },
  },
  {
    what: "the bridge refuses every session",
    arrange: (lab) => void lab.bridge.breakConnect({ how: "refuse", times: always }),
    code: "PGCLAIM_CONNECT_FAILED",
    withinMs: 3_000,
  },
  {
    what: "the bridge never answers the session's upgrade",
    arrange: (lab) => void lab.bridge.breakConnect({ how: "black-hole", times: always }),
    code: "PGCLAIM_CONNECT_FAILED",
  },
];

settlesDespite(failures);

describe("scheduled() rejects", () => {
  it("when the password is changed between wake and session, and goes on once it is right again", async () => {
    const lab = await setupLab();
    await lab.enqueue("call", names);
    const role = `pgclaim_test_${process.pid}`;
    await lab.sql.query(`create role ${role} login password 'first'`);
    onTestFinished(async () => {
      await lab.sql.query(`drop owned by ${role}`);
      await lab.sql.query(`drop role ${role}`);
    });
    await lab.sql.query("select pgclaim.grant_v1('run', $1)", [role]);
    await lab.sql.query(`grant insert on public.effect to ${role}`);
    const url = new URL(lab.url);
    url.username = role;
    url.password = "first";
    const worker = await lab.start({ bindings: { DATABASE_URL: url.toString() } });

    const woken = gate();
    const held = lab.bridge.breakSql({ contains: "wake_v1", at: "after", how: { hold: woken.promise } });
    const running = worker.cron();
    await endsWithin(soonMs, held.fired, "waking");
    await lab.sql.query(`alter role ${role} password 'second'`);
    woken.open();
    const { outcome, report } = await endsWithin(5_000, running, "scheduled()");
    expect([outcome, report.error?.code]).toEqual(["exception", "PGCLAIM_AUTHENTICATION_FAILED"]);
    // Asking again with the same password would only lock the role out.
    expect(lab.bridge.stats.wsOpened).toBe(1);
    expect(worker.log.filter(({ event }) => event === "text")).toEqual([]);

    await lab.sql.query(`alter role ${role} password 'first'`);
    const next = await endsWithin(soonMs, worker.cron(), "the next scheduled()");
    expect(next).toMatchObject({ outcome: "ok", report: { done: names.length } });
    await expectAllDone(lab, names);
  });
});
