// The server crashes right after a fence, and forgets what it was allowed to forget: synchronous_commit is off on this server,
// and its WAL writer is stopped (SIGSTOP), so that nothing reaches the disk that nobody insists on. The fence insists.
// The same history with a fence that does not is run as well: it must grant a number twice, or this test proves nothing.

import { afterAll, beforeAll, describe, expect, it, vi } from "vitest";
import { drain, effects, effectTable, expectWhole, invoke, upTo } from "../support/engine.ts";
import { setup, transports, type World } from "../support/world.ts";
import { type Start, victimKind } from "./process.ts";
import { backgroundPid, type OwnServer, ownServer, type Stop } from "./server.ts";
import { startVictim } from "./victim.ts";

vi.setConfig({ testTimeout: 60_000 }); // a busy machine has room

let own: OwnServer;
beforeAll(async () => {
  own = await ownServer({ settings: { synchronous_commit: "off" } });
});
afterAll(() => own.server.stop());

const crashes = ["immediate", "kill"] as const satisfies Stop[];
const jobs = upTo(3);

async function worldWithJobs(harm: "stand" | "none") {
  const world = await setup(own);
  await effectTable(world);
  expect(await world.value("show synchronous_commit")).toBe("off");
  const starts: Start[] = [];
  const kind = victimKind((start) => starts.push(start));
  const claimer = world.claimer("pg", { jobs: [kind] });
  await claimer.enqueueMany(
    kind,
    jobs.map((n) => ({ n, harm })),
  );
  await world.sql.query("checkpoint"); // all that, at least, is on disk
  return { world, starts, claimer };
}

/** Nothing that nobody flushes reaches the disk from here to the crash; that ends the WAL writer, too. */
async function stopWalWriter(world: World): Promise<{ crash(how: Stop): Promise<void> }> {
  const pid = await backgroundPid(world, "walwriter");
  process.kill(pid, "SIGSTOP");
  return {
    async crash(how) {
      const restarted = own.restart(how); // sends its signal before it waits for anything
      process.kill(pid, "SIGKILL");
      await restarted;
      await world.reconnect();
    },
  };
}

const tokens = (starts: readonly Start[]) => starts.map(({ n, attempt }) => `${n}:${attempt}`).sort();

/** A process with three fenced handlers dies together with the server; then somebody else does the jobs. */
async function crashAfterFence(
  how: Stop,
  transport: (typeof transports)[number],
  alter?: (world: World) => Promise<void>,
) {
  const { world, starts, claimer } = await worldWithJobs("stand");
  await alter?.(world);
  const victim = startVictim(world, transport);
  const walWriter = await stopWalWriter(world);
  await victim.until((begun) => begun.length === jobs.length);
  expect(tokens(victim.starts)).toEqual(["1:1", "2:1", "3:1"]);
  await victim.kill();
  await walWriter.crash(how);
  const onRecord = await world.rows<{ job_id: string; n: number; outcome: string | null }>(
    "select job_id, n, outcome from pgclaim.attempt order by job_id",
  );
  // Those who come now are not to stand for ever.
  await world.sql.query("update pgclaim.job set payload = payload || jsonb_build_object('harm', 'none')");
  const report = await invoke(claimer);
  return { world, claimer, report, onRecord, granted: [...victim.starts, ...starts] };
}

describe.each(crashes)("a server that crashes (%s) right after a fence", (how) => {
  it.each(transports)("has the fence, and grants no number twice (%s)", async (transport) => {
    const { world, report, onRecord, granted } = await crashAfterFence(how, transport);
    expect(onRecord.map(({ n, outcome }) => [n, outcome])).toEqual(jobs.map(() => [1, null]));
    expect(report).toMatchObject({ done: 3, crashed: 3 });
    expect(tokens(granted)).toEqual(["1:1", "1:2", "2:1", "2:2", "3:1", "3:2"]);
    await expectWhole(world, { effects: jobs });
  });

  it("has lost a fence that leaves synchronous_commit alone, and grants its numbers twice", async () => {
    const { report, onRecord, granted } = await crashAfterFence(how, "pg", forgetful);
    expect(onRecord).toEqual([]);
    expect(report).toMatchObject({ done: 3, crashed: 0 });
    expect(tokens(granted)).toEqual(["1:1", "1:1", "2:1", "2:1", "3:1", "3:1"]);
  });
});

/** The fence without its set_config. */
async function forgetful(world: World): Promise<void> {
  const text = await world.value<string>("select pg_get_functiondef('pgclaim.fence_v1(jsonb)'::regprocedure)");
  const without = text.replace(/perform set_config\('synchronous_commit', 'on', true\);/, "null;");
  expect(without).not.toBe(text);
  await world.sql.query(without);
  await world.sql.query("checkpoint");
}

describe.each(crashes)("a COMMIT that the server acknowledges and forgets (%s)", (how) => {
  it("takes the effects and the completion with it: they come once, under a new number", async () => {
    const { world, starts, claimer } = await worldWithJobs("none");
    const walWriter = await stopWalWriter(world);
    expect(await invoke(claimer)).toMatchObject({ done: 3 });
    expect(await effects(world)).toEqual(jobs);
    await walWriter.crash(how);
    // With synchronous_commit off that is the bargain; the other half of it is that nothing is torn apart.
    expect(await effects(world)).toEqual([]);
    expect(await world.value("select count(*)::integer from pgclaim.history")).toBe(0);
    await drain(world, claimer, jobs);
    expect(tokens(starts)).toEqual(["1:1", "1:2", "2:1", "2:2", "3:1", "3:2"]);
    await expectWhole(world, { effects: jobs });
  });
});
