// The server that cannot write: read-only by default, a hot standby, a full disk under one table, a full disk under the WAL
// (where Postgres gives up and dies). A tick ends with a code, nothing is lost or half done, and when there is room again the
// next invocation does the work.

import fs from "node:fs";
import path from "node:path";
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from "vitest";
import { defineJob } from "../../src/index.ts";
import {
  drain,
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  plain,
  quick,
  rendezvous,
  upTo,
  watchUnhandled,
  workTick,
} from "../support/engine.ts";
import { eventually } from "../support/gate.ts";
import { setup, transports, type World } from "../support/world.ts";
import { type OwnServer, ownServer, setting } from "./server.ts";
import { type TinyFilesystem, tinyFilesystem } from "./tiny_filesystem.ts";

vi.setConfig({ testTimeout: 90_000 }); // a busy machine has room

const boundMs = 15_000;
/** Where nobody can settle, how long it is tried decides how long the test takes. */
const limits = { ...quick, settle: "1s" } as const;
const three = upTo(3).map((n) => ({ n }));

let own: OwnServer;
beforeAll(async () => {
  own = await ownServer();
});
afterAll(() => own.server.stop());
beforeEach(() => watchUnhandled());

describe.each(transports)("a server that is read-only over %s", (transport) => {
  it("by default (default_transaction_read_only) makes no difference: every transaction of ours names READ WRITE", async () => {
    const world = await setup(own);
    await effectTable(world);
    const job = plain();
    const claimer = world.claimer(transport, { jobs: [job], limits });
    await setting(own, "default_transaction_read_only", "on");
    try {
      await expect((await world.connect()).query("create table refused ()")).rejects.toMatchObject({ code: "25006" });
      await claimer.enqueueMany(job, three);
      expect(await invoke(claimer)).toMatchObject({ ended: "empty", done: 3 });
    } finally {
      await setting(own, "default_transaction_read_only", null);
    }
    await expectWhole(world, { effects: [1, 2, 3] });
  });

  it("because it is a hot standby refuses with a code in the middle of a tick and after it, until it is promoted", async () => {
    const world = await setup(own);
    await effectTable(world);
    const meeting = rendezvous();
    const job = defineJob({
      kind: "outside",
      payload: numbered,
      async run({ payload: { n }, tx, job: { attempt } }) {
        if (attempt === 1) await meeting.meet(n);
        await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], limits });
    await claimer.enqueueMany(job, three);
    const running = invoke(claimer, { within: boundMs });
    await Promise.all(upTo(3).map(meeting.arrived));
    await demote();
    await world.reconnect();
    for (const n of upTo(3)) meeting.release(n);
    const report = await running;
    expect(report).toMatchObject({ ended: "error", error: { code: "PGCLAIM_OUTCOME_UNKNOWN" } });
    expect(workTick(report)).toMatchObject({ fate: "unknown", done: 0 });
    const refused = await invoke(claimer, { within: boundMs });
    expect(refused).toMatchObject({ ended: "error", claimed: 0, error: { code: "PGCLAIM_QUERY_FAILED" } });
    expect(refused.error?.message).toMatch(/read-write mode during recovery/);
    await expect(claimer.enqueue(job, { n: 4 })).rejects.toMatchObject({ code: "PGCLAIM_QUERY_FAILED" });
    await world.sql.query("select pg_promote()");
    await eventually(async () => expect(await world.value("select pg_is_in_recovery()")).toBe(false));
    // Nobody could settle; the reaper finds what was open.
    expect(await invoke(claimer)).toMatchObject({ done: 3, crashed: 3 });
    await expectWhole(world, { effects: [1, 2, 3] });
  });
});

/** Restarts the server as a standby without a primary: what a client meets that is sent to a replica. */
async function demote(): Promise<void> {
  const { uid, gid } = fs.statSync(own.server.dataDir);
  const signal = path.join(own.server.dataDir, "standby.signal");
  fs.writeFileSync(signal, "");
  fs.chownSync(signal, uid, gid);
  await own.restart("fast");
}

it("a handler that exceeds temp_file_limit fails alone", async () => {
  const world = await setup(own);
  await effectTable(world);
  const job = defineJob({
    kind: "sorting",
    payload: numbered,
    retry: { minBackoff: "0ms", maxBackoff: "0ms" },
    async run({ payload: { n }, tx, job: { attempt } }) {
      await effect(tx, n);
      if (n === 2 && attempt === 1) {
        await tx.query("set local work_mem = '64kB'");
        await tx.query("select g from generate_series(1, 200000) g order by g::text desc offset 199999");
      }
    },
  });
  const claimer = world.claimer("pg", { jobs: [job], limits, maxTicks: 1 });
  await claimer.enqueueMany(job, three);
  await setting(own, "temp_file_limit", "64");
  try {
    const report = await invoke(claimer);
    expect(report).toMatchObject({ done: 2, retried: 1 });
    expect(await world.value("select last_error from pgclaim.job")).toMatch(/temporary file size exceeds/);
  } finally {
    await setting(own, "temp_file_limit", null);
  }
  await drain(world, claimer, [1, 2, 3]);
  await expectWhole(world, { effects: [1, 2, 3] });
});

/** Where there is no room, and what then becomes of a tick of three jobs. */
const tables = [
  { table: "pgclaim.attempt", what: "the fence", code: "PGCLAIM_OUTCOME_UNKNOWN" },
  { table: "pgclaim.tick", what: "the tick's row", code: "PGCLAIM_OUTCOME_UNKNOWN" },
  { table: "pgclaim.history", what: "history", code: "PGCLAIM_QUERY_FAILED" },
  { table: "public.effect", what: "the handlers' effects", code: null },
] as const;

describe("a disk that is full", () => {
  it.for(tables)(
    "under $what: the tick ends with a code, and goes on when there is room",
    async ({ table, code }, { skip }) => {
      const tiny = tinyOrNotRun(4) ?? skip();
      const world = await setup(own);
      await effectTable(world);
      await moveTo(world, table, tiny);
      const job = plain();
      const claimer = world.claimer("pg", { jobs: [job], limits, maxTicks: 1 });
      await claimer.enqueueMany(job, three);
      tiny.fill();
      const report = await invoke(claimer, { within: boundMs });
      if (code === null) {
        expect(report).toMatchObject({ done: 0, retried: 3 });
        expect(report.error).toBeUndefined();
        for (const { last_error } of await world.rows("select last_error from pgclaim.job"))
          expect(last_error).toMatch(/No space left on device/);
      } else {
        expect(report).toMatchObject({ ended: "error", done: 0, error: { code } });
      }
      expect(await effects(world)).toEqual([]);
      expect(await world.locks()).toBe(0);
      tiny.free();
      await drain(world, claimer, [1, 2, 3]);
      await expectWhole(world, { effects: [1, 2, 3] });
    },
  );

  it("under the WAL, so that the server dies in the middle of a tick: nothing is lost when it comes back", async ({
    skip,
  }) => {
    const tiny = tinyOrNotRun(150) ?? skip();
    const small = { min_wal_size: "32MB", max_wal_size: "48MB", wal_recycle: "off", max_connections: "40" };
    const full = await ownServer({ dir: path.join(tiny.dir, "server"), settings: small });
    onTestFinished(() => full.server.stop());
    const world = await setup(full);
    await effectTable(world);
    const meeting = rendezvous();
    const job = defineJob({
      kind: "outside",
      payload: numbered,
      async run({ payload: { n }, tx, job: { attempt } }) {
        if (attempt === 1) await meeting.meet(n);
        await effect(tx, n);
      },
    });
    const claimer = world.claimer("pg", { jobs: [job], limits });
    await claimer.enqueueMany(job, three);
    const running = invoke(claimer, { within: boundMs });
    await Promise.all(upTo(3).map(meeting.arrived));
    tiny.fill();
    const scribe = await world.connect();
    const scribbling = async () => {
      for (;;) await scribe.query("select pg_logical_emit_message(false, 'pgclaim', repeat('x', 1000000))");
    };
    await expect(scribbling()).rejects.toThrow();
    const report = await running;
    for (const n of upTo(3)) meeting.release(n);
    expect(report).toMatchObject({ ended: "error", done: 0 });
    expect(report.error?.code).toMatch(/^PGCLAIM_(TX_LOST|OUTCOME_UNKNOWN)$/);
    tiny.free();
    await full.restart("immediate");
    await world.reconnect();
    expect(await effects(world)).toEqual([]);
    await drain(world, claimer, [1, 2, 3]);
    await expectWhole(world, { effects: [1, 2, 3] });
  });
});

/** A file system of that size, gone after everything else of the test; or null, having said loudly that there is none. */
function tinyOrNotRun(megabytes: number): TinyFilesystem | null {
  const tiny = tinyFilesystem(megabytes, fs.statSync(own.server.dataDir));
  if (typeof tiny === "string") {
    console.warn(`NOT RUN: ${expect.getState().currentTestName}. No file system can be mounted here: ${tiny}`);
    return null;
  }
  onTestFinished(() => tiny.remove());
  return tiny;
}

let tablespaces = 0;

/** Moves a table that is empty yet, and its indexes, where there will be no room; they come back for the database's end. */
async function moveTo(world: World, table: string, tiny: TinyFilesystem): Promise<void> {
  const { uid, gid } = fs.statSync(own.server.dataDir);
  const dir = path.join(tiny.dir, "space");
  fs.mkdirSync(dir, { mode: 0o700 });
  fs.chownSync(dir, uid, gid);
  const space = `tiny_${++tablespaces}`;
  await world.sql.query(`create tablespace ${space} location '${dir}'`);
  await world.sql.query(`alter table ${table} set tablespace ${space}`);
  const indexes = await world.rows<{ name: string }>(
    "select indexrelid::regclass::text as name from pg_index where indrelid = $1::regclass",
    [table],
  );
  for (const { name } of indexes) await world.sql.query(`alter index ${name} set tablespace ${space}`);
}
