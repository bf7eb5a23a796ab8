import { describe, expect, it } from "vitest";
import { pgDatabase } from "../../../src/adapters/node.ts";
import { type Claimer, createClaimer, deadLetter, defineJob, defineSchedule } from "../../../src/index.ts";
import { invoke } from "../../support/engine.ts";
import { roleOf } from "../../support/roles.ts";
import { sqlState, wake } from "../sql/support.ts";
import { keyed, keyedWorld, keys } from "./support.ts";

const template = { payload: keyed, uniqueKey: "{key}", onConflict: "replace" } as const;
const job = defineJob({ kind: "a", ...template, orderingKey: "{account}" }).handle(({ payload }) =>
  payload.value === 13 ? deadLetter("no") : undefined,
);
const schedules = [defineSchedule({ name: "s", cron: "* * * * *", job, payload: { key: "scheduled", account: "s" } })];

const of = (key: string) => ({ key, account: "a" });

const claimerOf = ({ url }: { readonly url: string }): Claimer =>
  createClaimer({ jobs: [job], schedules, database: pgDatabase(url), log: () => {} });

describe("grant_v1", () => {
  it("run: enqueues, replaces, fires, runs, frees and prunes", async () => {
    const world = await keyedWorld([job]);
    const runner = claimerOf(await roleOf(world, "run"));
    await runner.register();
    expect(await runner.enqueueMany(job, [of("k"), of("l"), { ...of("k"), value: 2 }])).toMatchObject([
      { type: "enqueued" },
      { type: "enqueued" },
      { type: "replaced" },
    ]);
    await world.sql.query(
      "insert into pgclaim.unique_key (kind, key, job_id, expires_at) values ('a', 'old', 99, clock_timestamp())",
    );
    await world.sql.query(
      "update pgclaim.schedule set next_at = date_trunc('minute', clock_timestamp()), fresh = false",
    );
    expect(await invoke(runner)).toMatchObject({ done: 3, fired: [{ schedule: "s" }], faults: [] });
    expect(await keys(world)).toEqual({});
  });

  it("enqueue: enqueues, replaces and reschedules, and reads none of it", async () => {
    const world = await keyedWorld([job]);
    const { client } = await roleOf(world, "enqueue");
    const call = (value: number) =>
      client.query<{ type: string }>("select type from pgclaim.enqueue('a', $1)", [
        JSON.stringify({ key: "k", value, account: "a" }),
      ]);
    expect((await call(1)).rows).toEqual([{ type: "enqueued" }]);
    expect((await call(2)).rows).toEqual([{ type: "replaced" }]);
    for (const text of [
      "select * from pgclaim.unique_key",
      "select pgclaim.claim_unique_key('a', 'k', null, 'keep', 1, '{}', '{}', now())",
      "select pgclaim.change_holder('a', 'k', 1, 'replace', 2, '{}', now())",
      "select pgclaim.derive_jobs('[]', '{}', now())",
      "select pgclaim.fire_v1('{}')",
      "select pgclaim.pause_queue_v1('default')",
      "select pgclaim.pause_schedule_v1('s')",
      "select pgclaim.write_schedules(9, '{}', '[]')",
    ]) {
      expect([text, await sqlState(client.query(text))]).toEqual([text, "42501"]);
    }
  });

  it("operate: discards and cancels what has a key, pauses and resumes queues and schedules", async () => {
    const world = await keyedWorld([job], { schedules });
    const operator = claimerOf(await roleOf(world, "operate"));
    const dead = await world.claimer.enqueue(job, { ...of("dead"), value: 13 });
    await invoke(world.claimer);
    const waiting = await world.claimer.enqueue(job, { key: "waiting", account: "b" });
    expect(Object.keys(await keys(world))).toEqual(["dead", "waiting"]);
    expect(await operator.discard(dead.id)).toEqual({ type: "discarded" });
    expect(await operator.cancel(waiting.id)).toEqual({ type: "cancelled" });
    expect(await keys(world)).toEqual({});
    expect([await operator.pauseQueue("default"), await operator.resumeQueue("default")]).toEqual([true, true]);
    expect([await operator.pauseSchedule("s"), await operator.resumeSchedule("s")]).toEqual([true, true]);
    expect(await operator.schedules()).toMatchObject([{ name: "s", pausedAt: null }]);
    await expect(operator.enqueue(job, of("k"))).rejects.toMatchObject({ code: "PGCLAIM_PERMISSION_DENIED" });
    expect(await wake(world.sql)).toMatchObject({ faults: [] });
  });
});
