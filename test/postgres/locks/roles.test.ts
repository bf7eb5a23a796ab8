import { expect, it } from "vitest";
import { roleOf } from "../../support/roles.ts";
import type { World } from "../../support/world.ts";
import { all, finish, the } from "../sql/support.ts";
import { add, addOne, claim, hold, install, type LockKind, registerKinds, stateOf } from "./support.ts";

const as = async (world: World, scope: "run" | "operate") => (await roleOf(world, scope)).client;

const kindsOf = (max: number): LockKind[] => [
  { name: "l", limitNames: ["tenant:{t}"], limitMaxes: [max], locks: ["a:{t}"], sharedLocks: ["b"] },
  { name: "x2", locks: ["{a}", "{b}"] },
];

it("a role that runs claims by today's limits, reserves, refills gates, takes out what was cancelled", async () => {
  const world = await install(kindsOf(1));
  const client = await as(world, "run");
  const ids = await add(world.sql, "l", [{ t: "t" }, { t: "t" }, { t: "t" }]);
  await registerKinds(world.sql, kindsOf(2));
  const holder = await hold(world, "n");
  const starved = await addOne(world.sql, "x2", { a: "m", b: "n" });
  await world.sql.query("update pgclaim.job set run_at = run_at - interval '1 min' where id = $1", [starved]);
  const session = await claim(world, { kinds: ["l", "x2"], tickSlots: 2 }, client);
  expect(session.jobs.map(({ id }) => id)).toEqual([ids[0]]);
  expect(session.skips).toEqual([{ id: starved, reason: "busy", lock: "n", starved: true }]);
  const other = await as(world, "run");
  await other.query("select pgclaim.reserve_v1($1)", [JSON.stringify({ jobs: [starved], reserveMs: 30_000 })]);
  expect(await world.value("select count(*)::integer from pgclaim.reservation")).toBe(2);
  const jobs = session.jobs.map(({ id, n }) => ({ id, n }));
  await other.query("select from pgclaim.fence_v1($1)", [
    JSON.stringify({ tick: session.tick, quarantined: false, jobs }),
  ]);
  await finish(client, session.tick, all(jobs, "done"));
  expect(await stateOf(world, the(ids, 2))).toBe("ready");
  await world.sql.query("insert into pgclaim.cancel_request (job_id) values ($1)", [starved]);
  const { rows } = await other.query<{ answer: { faults: unknown[] } }>("select pgclaim.wake_v1($1) as answer", [
    JSON.stringify({
      digest: "x",
      queues: ["default"],
      reapSlice: 9,
      dueSlice: 9,
      gateSlice: 9,
      cancelSlice: 9,
      pruneSlice: 9,
      historyMs: null,
    }),
  ]);
  expect(the(rows).answer.faults).toEqual([]);
  expect(await world.value("select outcome from pgclaim.history where job_id = $1", [starved])).toBe("cancelled");
  await holder.query("rollback");
});

it("a role that operates cancels, and lets the next one in by today's limit", async () => {
  const world = await install(kindsOf(1));
  const client = await as(world, "operate");
  const ids = await add(world.sql, "l", [{ t: "t" }, { t: "t" }, { t: "t" }]);
  await registerKinds(world.sql, kindsOf(2));
  await client.query("select pgclaim.cancel_v1($1)", [ids[0]]);
  expect([await stateOf(world, the(ids, 1)), await stateOf(world, the(ids, 2))]).toEqual(["ready", "ready"]);
});
