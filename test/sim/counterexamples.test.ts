// Counterexamples of the protocol page, section 6, that had no twin yet: the same history with its rule in the schema, and
// with the rule taken out of a copy. README.md beside this file says where each of the others is.

import { describe, expect, it } from "vitest";
import { claimLine, finished, installOrdered, put } from "../postgres/order/support.ts";
import {
  all,
  alter,
  attempts,
  claimer,
  crash,
  enqueue,
  enqueueOne,
  fence,
  finish,
  type Installation,
  ids,
  install,
  job,
  kill,
  outcomes,
  reap,
  runTick,
  settle,
  the,
} from "../postgres/sql/support.ts";

const QUICK = { name: "a", maxCrashes: 1, minBackoffMs: 0, maxBackoffMs: 0 } as const;

/** Each history is played with the rule and without it. */
const both = describe.each([{ rule: true }, { rule: false }]);

async function world(
  rule: boolean,
  signature: string,
  without: readonly (readonly [from: string, to: string])[],
): Promise<Installation> {
  const made = await install([QUICK]);
  if (!rule) await alter(made.sql, signature, without);
  return made;
}

/** A job that was beside a killer once. */
async function suspect(on: Installation): Promise<string> {
  const id = await enqueueOne(on.sql);
  await crash(on);
  await reap(on.sql);
  await on.sql.query("update pgclaim.kind set max_crashes = 1");
  return id;
}

both("A6, a crash in company, rule: $rule", ({ rule }) => {
  it(rule ? "charges nobody" : "makes dead letters of the innocent", async () => {
    const on = await world(rule, "pgclaim.reap(integer)", [
      ["o.outcome = 'crashed' and o.quarantined and o.n", "o.outcome = 'crashed' and o.n"],
    ]);
    const jobs = await enqueue(on.sql, 2);
    await crash(on);
    await reap(on.sql);
    for (const id of jobs) expect((await job(on.sql, id)).state).toBe(rule ? "ready" : "dead");
  });
});

both("A7, a killer that was handed back, rule: $rule", ({ rule }) => {
  it(rule ? "is alone again" : "is back in company, and takes its neighbour with it", async () => {
    const on = await world(rule, "pgclaim.finish_v1(jsonb)", [
      ["update pgclaim.job j\n  set attempt = c.n\n", "update pgclaim.job j\n  set attempt = c.n, suspect = false\n"],
    ]);
    const killer = await suspect(on);
    const alone = await claimer(on, { quarantined: true });
    await fence(on.sql, { ...alone, quarantined: true });
    await finish(alone.client, alone.tick, all(alone.jobs, "released"));
    const neighbour = await enqueueOne(on.sql);
    const next = await claimer(on);
    expect(ids(next.jobs)).toEqual(rule ? [neighbour] : [killer, neighbour]);
    await next.client.query("rollback");
  });
});

both("A12, a settle that comes before the fence of a healthy suspect, rule: $rule", ({ rule }) => {
  it(rule ? "closes its number, nobody is charged" : "leaves it to be opened and charged", async () => {
    const on = await world(rule, "pgclaim.settle_v1(jsonb)", [["(j.attempt < u.n or exists (", "(exists ("]]);
    const id = await suspect(on);
    const session = await claimer(on, { quarantined: true });
    await kill(on, session.pid);
    expect(await settle(on.sql, { ...session, quarantined: true })).toBe("lost");
    await fence(on.sql, { ...session, quarantined: true });
    await reap(on.sql);
    expect((await job(on.sql, id)).state).toBe(rule ? "ready" : "dead");
    expect(the(await attempts(on.sql, id), 1).outcome).toBe(rule ? "interrupted" : "crashed");
  });
});

/** Quarantined ticks that end as the answer says, until the job is dead; at most eight. */
async function untilDead(
  on: Installation,
  id: string,
  end: (session: Awaited<ReturnType<typeof claimer>>) => Promise<void>,
): Promise<number> {
  for (let starts = 0; starts < 8; starts++) {
    await reap(on.sql);
    await on.sql.query("update pgclaim.job set state = 'ready' where state = 'scheduled'");
    if ((await job(on.sql, id)).state === "dead") return starts;
    const session = await claimer(on, { quarantined: true });
    await fence(on.sql, { ...session, quarantined: true });
    await end(session);
  }
  return Number.POSITIVE_INFINITY;
}

both("A13, a job that loses its session in its own turn, rule: $rule", ({ rule }) => {
  it(rule ? "is counted and dies" : "runs for ever", async () => {
    const on = await world(rule, "pgclaim.settle_v1(jsonb)", [
      ["where u.id is distinct from (request ->> 'turn')::bigint\n", "where true\n"],
    ]);
    const id = await suspect(on);
    const starts = await untilDead(on, id, async (session) => {
      await kill(on, session.pid);
      await settle(on.sql, { ...session, quarantined: true, turn: id });
    });
    expect(starts).toBe(rule ? 1 : Number.POSITIVE_INFINITY);
  });
});

both("A14, a job whose effects make finish fail, rule: $rule", ({ rule }) => {
  it(rule ? "is counted and dies" : "runs for ever", async () => {
    const on = await world(rule, "pgclaim.settle_v1(jsonb)", [
      ["if fate = 'committed' or not (request ->> 'mark')::boolean then", "if fate = 'committed' then"],
    ]);
    const id = await suspect(on);
    const starts = await untilDead(on, id, async (session) => {
      await session.client.query("rollback");
      await settle(on.sql, { ...session, quarantined: true, mark: false });
    });
    expect(starts).toBe(rule ? 1 : Number.POSITIVE_INFINITY);
  });
});

both("B10, a follower that was granted without its head, rule: $rule", ({ rule }) => {
  it(rule ? "is handed back, and runs behind it" : "takes effect before it", async () => {
    const on = await installOrdered();
    const head = await put(on.sql, "x", 1);
    await put(on.sql, "x", 2);
    const dead = await claimLine(on);
    await kill(on, dead.pid);
    const tick = await claimLine(on);
    await fence(on.sql, { tick: dead.tick, jobs: [{ id: head, n: 1 }] });
    const granted = await fence(on.sql, { tick: tick.tick, jobs: tick.jobs });
    expect(granted).toHaveLength(1);
    // The rule is run's (src/run.ts, #releaseBehind): what it would do without it is to say done.
    await finish(tick.client, tick.tick, all(granted, rule ? "released" : "done"));
    await reap(on.sql);
    await runTick(on, { quarantined: true });
    await runTick(on);
    expect(await finished(on.sql)).toEqual(rule ? [1, 2] : [2, 1]);
    expect((await outcomes(on.sql, head)).at(-1)).toBe("done");
  });
});
