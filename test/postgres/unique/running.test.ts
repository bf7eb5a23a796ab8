// Jobs that run while their key is wanted again: a successor follows, no payload is lost, and nobody's transaction, however
// long, stops a tick or a wake.

import { describe, expect, it } from "vitest";
import { deadLetter, defineJob, snooze, type Tx } from "../../../src/index.ts";
import { effects, invoke, makeDue, rendezvous } from "../../support/engine.ts";
import { endsWithin } from "../../support/gate.ts";
import { claimOn, fence, ids, settle, wake } from "../sql/support.ts";
import { jobs, type Keyed, keyed, keyedWorld, keys, put, putOne } from "./support.ts";

const template = { payload: keyed, uniqueKey: "{key}" } as const;
const keep = defineJob({ kind: "keep", ...template });
const replace = defineJob({ kind: "replace", ...template, onConflict: "replace" });
const reschedule = defineJob({ kind: "reschedule", ...template, onConflict: "reschedule" });

const one = (kind: string, key: string, value = 0, more: Record<string, unknown> = {}) => ({
  kind,
  payload: { key, value, account: "a", lock: "l", ...more },
});
const leave = (tx: Tx, n: number) => tx.query("insert into effect (n) values ($1)", [n]);

describe("a job that runs", () => {
  it("is followed by a successor when it is replaced, and both payloads take effect", async () => {
    const meeting = rendezvous();
    const job = replace.handle(async ({ payload, tx }) => {
      await meeting.meet(payload.value);
      await leave(tx, payload.value);
    });
    const world = await keyedWorld([job]);
    const first = await putOne(world.sql, one("replace", "k", 1));
    const running = invoke(world.claimer);
    await meeting.arrived(1);
    const second = await putOne(world.sql, one("replace", "k", 2));
    expect([second.type, second.id === first.id]).toEqual(["successor", false]);
    // The next one replaces the successor, which waits.
    expect(await putOne(world.sql, one("replace", "k", 3))).toEqual({ type: "replaced", id: second.id });
    expect(await keys(world)).toEqual({ k: second.id });
    meeting.release(1);
    meeting.release(3);
    await running;
    await invoke(world.claimer);
    expect(await effects(world)).toEqual([1, 3]);
    expect(await keys(world)).toEqual({});
  });

  it("is a duplicate when it is rescheduled: its due time is over", async () => {
    const meeting = rendezvous();
    const world = await keyedWorld([reschedule.handle(({ payload }) => meeting.meet(payload.value))]);
    const { id } = await putOne(world.sql, one("reschedule", "k", 1));
    const running = invoke(world.claimer);
    await meeting.arrived(1);
    expect(await putOne(world.sql, { ...one("reschedule", "k", 2), delayMs: 60_000 })).toEqual({
      type: "duplicate",
      id,
    });
    meeting.release(1);
    expect(await running).toMatchObject({ done: 1 });
    expect(await jobs(world)).toEqual([]);
    expect(await keys(world)).toEqual({});
  });

  it("is followed also while it is claimed and not on record yet", async () => {
    const world = await keyedWorld([replace]);
    const first = await putOne(world.sql, one("replace", "k", 1));
    const session = await claimOn(await world.connect(), { kinds: ["replace"] });
    expect(session.jobs).toHaveLength(1);
    const second = await putOne(world.sql, one("replace", "k", 2));
    expect(second.type).toBe("successor");
    expect(await jobs(world)).toMatchObject([
      { id: first.id, value: 1 },
      { id: second.id, value: 2 },
    ]);
    await session.client.query("rollback");
  });

  it("and crashes is followed, and not tried again: that would be the old payload's work after the new one's", async () => {
    const ran: number[] = [];
    const world = await keyedWorld([replace.handle(({ payload }) => void ran.push(payload.value))]);
    await putOne(world.sql, one("replace", "k", 1));
    const session = await claimOn(await world.connect(), { kinds: ["replace"] });
    await world.sql.query("select pgclaim.fence_v1($1)", [
      JSON.stringify({ tick: session.tick, quarantined: false, jobs: session.jobs }),
    ]);
    await session.client.end();
    expect((await putOne(world.sql, one("replace", "k", 2))).type).toBe("successor");
    await invoke(world.claimer);
    await invoke(world.claimer);
    expect(ran).toEqual([2]);
    expect(await jobs(world)).toEqual([]);
    expect(await endings(world)).toEqual({ 1: "cancelled", 2: "done" });
    expect(await world.rows("select from pgclaim.cancel_request")).toEqual([]);
  });

  it.each([
    ["fails", "failed"],
    ["asks for the dead letters", "dead"],
    ["snoozes", "snoozed"],
  ] as const)("and %s after it was replaced is not tried again beside its successor", async (_, how) => {
    const meeting = rendezvous();
    const aborted: boolean[] = [];
    const job = replace.handle(async ({ payload, signal }) => {
      await meeting.meet(payload.value);
      if (payload.value === 2) return;
      aborted.push(signal.aborted);
      if (how === "dead") return deadLetter("no");
      if (how === "snoozed") return snooze("1ms");
      throw new Error("no");
    });
    const world = await keyedWorld([job], { limits: { cancelPoll: "20ms" } });
    await putOne(world.sql, one("replace", "k", 1));
    const running = invoke(world.claimer);
    await meeting.arrived(1);
    expect(await putOne(world.sql, one("replace", "k", 2))).toMatchObject({ type: "successor" });
    meeting.release(1);
    meeting.release(2);
    await running;
    await invoke(world.claimer);
    expect(aborted).toEqual([false]);
    if (how !== "snoozed")
      expect(await world.value("select last_error from pgclaim.history where outcome = 'cancelled'")).toMatch(/no/);
    expect(await jobs(world)).toEqual([]);
    expect(await endings(world)).toEqual({ 1: "cancelled", 2: "done" });
    expect(await keys(world)).toEqual({});
    expect(await world.rows("select from pgclaim.cancel_request")).toEqual([]);
  });

  it("and fails is tried again if the caller that replaced it rolls back", async () => {
    const meeting = rendezvous();
    const job = replace.handle(async ({ payload, job: { attempt } }) => {
      await meeting.meet(payload.value);
      if (attempt === 1) throw new Error("no");
    });
    const world = await keyedWorld([job]);
    await putOne(world.sql, one("replace", "k", 1));
    const running = invoke(world.claimer);
    await meeting.arrived(1);
    const caller = await world.connect();
    await caller.query("begin");
    expect(await putOne(caller, one("replace", "k", 2))).toMatchObject({ type: "successor" });
    meeting.release(1);
    expect(await running).toMatchObject({ retried: 1 });
    await caller.query("rollback");
    await makeDue(world);
    expect(await invoke(world.claimer)).toMatchObject({ done: 1 });
    expect(await endings(world)).toEqual({ 1: "done" });
  });

  it("and was to be cancelled when its tick was lost takes no new payload with it", async () => {
    const ran: number[] = [];
    const world = await keyedWorld([replace.handle(({ payload }) => void ran.push(payload.value))]);
    const first = await putOne(world.sql, one("replace", "k", 1));
    const session = await claimOn(await world.connect(), { kinds: ["replace"] });
    await fence(world.sql, session);
    expect(await world.claimer.cancel(first.id)).toEqual({ type: "requested" });
    await session.client.end();
    expect(await settle(world.sql, session)).toBe("lost");
    // Nobody runs it, and the next wake takes it out.
    expect((await putOne(world.sql, one("replace", "k", 2))).id).not.toBe(first.id);
    await invoke(world.claimer);
    await invoke(world.claimer);
    expect(ran).toEqual([2]);
    expect(await endings(world)).toEqual({ 1: "cancelled", 2: "done" });
    expect(await keys(world)).toEqual({});
  });

  it("not, because its deadline has passed, stays a dead letter that says so when it is replaced", async () => {
    const world = await keyedWorld([replace]);
    const past = new Date(Date.UTC(2020, 0, 1)).toISOString();
    const first = await putOne(world.sql, { ...one("replace", "k", 1), deadlineAt: past });
    const session = await claimOn(await world.connect(), { kinds: ["replace"] });
    expect(ids(session.jobs)).toEqual([first.id]);
    expect((await putOne(world.sql, one("replace", "k", 2))).type).toBe("successor");
    await session.client.query("select pgclaim.finish_v1($1)", [
      JSON.stringify({ tick: session.tick, jobs: [{ ...session.jobs[0], outcome: "missed" }], invocation: "test" }),
    ]);
    await session.client.query("commit");
    await wake(world.sql);
    expect((await jobs(world)).map(({ id, state }) => ({ id, state }))).toContainEqual({ id: first.id, state: "dead" });
    expect(await world.rows("select from pgclaim.cancel_request")).toEqual([]);
  });

  it("and is cancelled after it was replaced is stopped", async () => {
    const meeting = rendezvous();
    const job = replace.handle(async ({ payload, signal }) => {
      await Promise.race([meeting.meet(payload.value), aborted(signal)]);
      signal.throwIfAborted();
    });
    const world = await keyedWorld([job], { limits: { cancelPoll: "20ms" } });
    const first = await putOne(world.sql, one("replace", "k", 1));
    const running = invoke(world.claimer);
    await meeting.arrived(1);
    await putOne(world.sql, one("replace", "k", 2));
    expect(await world.claimer.cancel(first.id)).toEqual({ type: "requested" });
    meeting.release(2);
    await running;
    await invoke(world.claimer);
    expect(await endings(world)).toEqual({ 1: "cancelled", 2: "done" });
  });
});

/** How the jobs that are over have ended, by value. */
async function endings(world: Pick<Keyed, "rows">): Promise<Record<string, string>> {
  const rows = await world.rows<{ value: string; outcome: string }>(
    "select payload ->> 'value' as value, outcome from pgclaim.history",
  );
  return Object.fromEntries(rows.map(({ value, outcome }) => [value, outcome]));
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}

describe("inside the tick that runs it, where its lock is our own", () => {
  it.each([
    ["with writes on tx", true],
    ["without", false],
  ])("a handler that enqueues its own key, %s, gets a successor", async (_, usesTx) => {
    const ran: number[] = [];
    const job = replace.handle(async ({ payload, enqueue, tx }) => {
      ran.push(payload.value);
      if (usesTx) await leave(tx, payload.value);
      if (payload.value < 3) await enqueue(replace, { ...payload, value: payload.value + 1 });
    });
    const world = await keyedWorld([job]);
    await putOne(world.sql, one("replace", "k", 1));
    await invoke(world.claimer);
    expect(ran).toEqual([1, 2, 3]);
    expect(await jobs(world)).toEqual([]);
    expect(await keys(world)).toEqual({});
  });

  it("a handler that enqueues the key of another job of the tick loses neither payload", async () => {
    const ran: string[] = [];
    const trigger = defineJob({ kind: "a.trigger", payload: keyed }).handle(async ({ enqueue }) => {
      await enqueue(replace, { key: "k", value: 2 });
    });
    const job = replace.handle(({ payload }) => void ran.push(`${payload.key}${payload.value}`));
    const world = await keyedWorld([trigger, job]);
    await put(world.sql, one("replace", "k", 1), one("a.trigger", "t"));
    expect(await invoke(world.claimer)).toMatchObject({ done: 3 });
    expect(ran.sort()).toEqual(["k1", "k2"]);
  });

  it("one that has missed its deadline, which nobody starts, is followed: the new payload does not die with it", async () => {
    const ran: number[] = [];
    const trigger = defineJob({ kind: "a.trigger", payload: keyed }).handle(async ({ enqueue }) => {
      await enqueue(replace, { key: "k", value: 2 });
    });
    const world = await keyedWorld([trigger, replace.handle(({ payload }) => void ran.push(payload.value))]);
    const past = new Date(Date.UTC(2020, 0, 1)).toISOString();
    const [late] = await put(world.sql, { ...one("replace", "k", 1), deadlineAt: past }, one("a.trigger", "t"));
    expect(await invoke(world.claimer)).toMatchObject({ done: 2, missed: 1 });
    expect(ran).toEqual([2]);
    expect(await jobs(world)).toMatchObject([{ id: late?.id, state: "dead", value: 1 }]);
  });

  it("two handlers that want one free key: the second changes what the first has enqueued", async () => {
    const ran: number[] = [];
    const trigger = defineJob({ kind: "a.trigger", payload: keyed }).handle(async ({ payload, enqueue, tx }) => {
      await leave(tx, payload.value);
      await enqueue(replace, { key: "k", value: payload.value });
    });
    const world = await keyedWorld([trigger, replace.handle(({ payload }) => void ran.push(payload.value))], {
      concurrency: 1,
    });
    await put(world.sql, one("a.trigger", "t", 1), one("a.trigger", "u", 2));
    expect(await invoke(world.claimer)).toMatchObject({ done: 3 });
    expect(ran).toEqual([2]);
  });

  it("a handler that fails takes nothing: its key is free, the waiting job as it was", async () => {
    const trigger = defineJob({ kind: "a.trigger", payload: keyed }).handle(async ({ enqueue, tx }) => {
      await leave(tx, 1);
      await enqueue(keep, { key: "new" });
      await enqueue(replace, { key: "k", value: 2 });
      return deadLetter("no");
    });
    const world = await keyedWorld([trigger, keep, replace]);
    await put(world.sql, { ...one("replace", "k", 1), delayMs: 60_000 }, one("a.trigger", "t"));
    await invoke(world.claimer);
    expect((await jobs(world)).map(({ value, state }) => `${value} ${state}`)).toEqual(["1 scheduled", "0 dead"]);
    expect(Object.keys(await keys(world))).toEqual(["k"]);
  });
});

describe("a replaced job", () => {
  it("takes payload, due time, deadline and priority, with all attempts before it", async () => {
    let fails = true;
    const job = defineJob({ ...spec(), kind: "replace", retry: { minBackoff: "1h", maxBackoff: "1h" } }).handle(() => {
      if (fails) throw new Error("not yet");
    });
    const world = await keyedWorld([job]);
    const { id } = await putOne(world.sql, one("replace", "k", 1));
    await invoke(world.claimer);
    expect(await jobs(world)).toMatchObject([{ id, state: "scheduled", failures: 1, attempt: 1 }]);
    const deadlineAt = new Date(Date.UTC(2098, 0, 1));
    expect(
      await putOne(world.sql, { ...one("replace", "k", 2), deadlineAt: deadlineAt.toISOString(), priority: 3 }),
    ).toEqual({ type: "replaced", id });
    expect(await jobs(world)).toMatchObject([
      { id, state: "ready", value: 2, failures: 0, attempt: 1, priority: 3, deadline_at: deadlineAt },
    ]);
    fails = false;
    await invoke(world.claimer);
    // Numbers go on: an attempt's number is never used twice.
    expect(await world.claimer.job(id)).toMatchObject({ state: "done", attempt: 2 });
  });

  it("is the new policy's from then on: a deployment that does not know it leaves the job alone", async () => {
    const world = await keyedWorld([replace]);
    const { id } = await putOne(world.sql, one("replace", "k", 1));
    const newer = defineJob({ ...spec(), kind: "replace", queue: "other", priority: 0 });
    await world.sql.query("select pgclaim.register_v1($1)", [
      JSON.stringify({ digest: "newer", kinds: [newer.policy] }),
    ]);
    const [before] = await jobs(world);
    await putOne(world.sql, one("replace", "k", 2));
    expect(await world.rows("select id::text as id, queue, priority, revision from pgclaim.job")).toEqual([
      { id, queue: "other", priority: 0, revision: (before?.revision ?? 0) + 1 },
    ]);
  });

  it("keeps its place in its ordering key", async () => {
    const ran: number[] = [];
    const ordered = defineJob({ ...spec(), kind: "ordered", orderingKey: "{account}" });
    const world = await keyedWorld([ordered.handle(({ payload }) => void ran.push(payload.value))]);
    const placed = await put(world.sql, one("ordered", "a", 1), one("ordered", "b", 2), one("ordered", "c", 3));
    expect(await putOne(world.sql, one("ordered", "b", 20))).toEqual({ type: "replaced", id: placed[1]?.id });
    await invoke(world.claimer);
    expect(ran).toEqual([1, 20, 3]);
  });

  it("whose ordering key changes goes to the end of the other one, and the old one goes on", async () => {
    const ran: string[] = [];
    const ordered = defineJob({ ...spec(), kind: "ordered", orderingKey: "{account}" });
    const world = await keyedWorld([
      ordered.handle(({ payload }) => void ran.push(`${payload.account}${payload.value}`)),
    ]);
    const placed = await put(
      world.sql,
      one("ordered", "a", 1, { account: "x" }),
      one("ordered", "b", 2, { account: "x" }),
      one("ordered", "c", 3, { account: "y" }),
      one("ordered", "d", 4, { account: "y" }),
    );
    const moved = await putOne(world.sql, one("ordered", "a", 10, { account: "y" }));
    expect(moved.type).toBe("replaced");
    expect(moved.id).not.toBe(placed[0]?.id);
    expect(await world.claimer.job(placed[0]?.id ?? "")).toMatchObject({ state: "cancelled", payload: { value: 1 } });
    expect(await keys(world)).toMatchObject({ a: moved.id });
    await invoke(world.claimer);
    await invoke(world.claimer);
    expect(ran.filter((text) => text.startsWith("x"))).toEqual(["x2"]);
    expect(ran.filter((text) => text.startsWith("y"))).toEqual(["y3", "y4", "y10"]);
    expect(await jobs(world)).toEqual([]);
  });

  it("whose names change waits for the new ones and no more for the old", async () => {
    const locked = defineJob({ ...spec(), kind: "locked", orderingKey: "{account}", locks: ["name:{lock}"] });
    const free = defineJob({ ...spec(), kind: "free", locks: ["name:{lock}"] });
    const world = await keyedWorld([locked, free]);
    const same = await putOne(world.sql, one("locked", "a", 1, { lock: "old" }));
    expect(await putOne(world.sql, one("locked", "a", 2, { lock: "new" }))).toEqual({ type: "replaced", id: same.id });
    const gated = await putOne(world.sql, one("free", "a", 1, { lock: "old" }));
    const moved = await putOne(world.sql, one("free", "a", 2, { lock: "new" }));
    expect([moved.type, moved.id === gated.id]).toEqual(["replaced", false]);
    expect(await world.rows("select id::text as id, locks, gate from pgclaim.job order by id")).toEqual([
      { id: same.id, locks: ["name:new"], gate: "order:a" },
      { id: moved.id, locks: ["name:new"], gate: "lock:default:name:new" },
    ]);
  });

  function spec() {
    return { ...template, onConflict: "replace" } as const;
  }
});

describe("a rescheduled job of a gate", () => {
  it("that is the head of its key keeps the key, put off and brought forward", async () => {
    const ran: number[] = [];
    const ordered = defineJob({ kind: "ordered", ...template, onConflict: "reschedule", orderingKey: "{account}" });
    const world = await keyedWorld([ordered.handle(({ payload }) => void ran.push(payload.value))]);
    await put(world.sql, one("ordered", "a", 1), one("ordered", "b", 2));
    await putOne(world.sql, { ...one("ordered", "a"), delayMs: 3_600_000 });
    expect(await jobs(world)).toMatchObject([{ state: "scheduled" }, { state: "blocked" }]);
    await invoke(world.claimer);
    expect(ran).toEqual([]);
    await putOne(world.sql, one("ordered", "a"));
    await invoke(world.claimer);
    expect(ran).toEqual([1, 2]);
  });

  it("that stands behind its head waits for its time when its turn comes", async () => {
    const ran: number[] = [];
    const ordered = defineJob({ kind: "ordered", ...template, onConflict: "reschedule", orderingKey: "{account}" });
    const world = await keyedWorld([ordered.handle(({ payload }) => void ran.push(payload.value))]);
    await put(world.sql, one("ordered", "a", 1), one("ordered", "b", 2), one("ordered", "c", 3));
    await putOne(world.sql, { ...one("ordered", "b"), delayMs: 3_600_000 });
    await invoke(world.claimer);
    expect(ran).toEqual([1]);
    expect(await jobs(world)).toMatchObject([{ state: "scheduled" }, { state: "blocked" }]);
    await makeDue(world);
    await invoke(world.claimer);
    expect(ran).toEqual([1, 2, 3]);
  });

  it("of a limit frees its place for the next one, and goes behind the gate when its time has come", async () => {
    const ran: number[] = [];
    const limited = defineJob({
      kind: "limited",
      ...template,
      onConflict: "reschedule",
      limits: [{ name: "{account}", max: 1 }],
    });
    const world = await keyedWorld([limited.handle(({ payload }) => void ran.push(payload.value))]);
    await put(world.sql, one("limited", "a", 1), one("limited", "b", 2));
    expect(await jobs(world)).toMatchObject([{ state: "ready" }, { state: "blocked" }]);
    await putOne(world.sql, { ...one("limited", "a"), delayMs: 3_600_000 });
    await wake(world.sql, { gateSlice: 200 });
    expect(await jobs(world)).toMatchObject([{ state: "scheduled" }, { state: "ready" }]);
    await putOne(world.sql, one("limited", "a"));
    expect(await jobs(world)).toMatchObject([{ state: "blocked" }, { state: "ready" }]);
    await invoke(world.claimer);
    await invoke(world.claimer);
    expect(ran).toEqual([2, 1]);
  });
});

describe("a caller's long transaction", () => {
  it.each(["replace", "reschedule"] as const)(
    "that has changed a waiting job (%s) stops no tick, and its gate goes on after it",
    async (onConflict) => {
      const ran: number[] = [];
      const ordered = defineJob({ kind: "ordered", ...template, onConflict, orderingKey: "{account}" });
      const other = defineJob({ kind: "other", payload: keyed, orderingKey: "{account}" });
      const world = await keyedWorld([
        ordered.handle(({ payload }) => void ran.push(payload.value)),
        other.handle(({ payload }) => void ran.push(payload.value)),
      ]);
      await put(
        world.sql,
        one("ordered", "a", 1),
        one("ordered", "b", 2),
        one("ordered", "c", 3),
        one("other", "d", 4, { account: "z" }),
      );
      const client = await world.connect();
      await client.query("begin");
      expect((await putOne(client, one("ordered", "b", onConflict === "replace" ? 20 : 2))).id).toBe(
        (await jobs(world))[1]?.id,
      );
      // The head finishes, its refill meets a row that is locked, and everything else goes on.
      const report = await invoke(world.claimer);
      expect(report).toMatchObject({ ended: "empty", done: 2, faults: [] });
      expect([...ran].sort()).toEqual([1, 4]);
      expect(await invoke(world.claimer)).toMatchObject({ done: 0, faults: [] });
      await client.query("commit");
      await invoke(world.claimer);
      expect(ran.slice(2)).toEqual([onConflict === "replace" ? 20 : 2, 3]);
    },
  );

  it.each(["commit", "rollback"] as const)(
    "that wants a successor does not hold up the end of the job that runs: %s",
    async (how) => {
      const meeting = rendezvous();
      const job = replace.handle(({ payload }) => meeting.meet(payload.value));
      const world = await keyedWorld([job]);
      const first = await putOne(world.sql, one("replace", "k", 1));
      const running = invoke(world.claimer);
      await meeting.arrived(1);
      const client = await world.connect();
      await client.query("begin");
      const second = await putOne(client, one("replace", "k", 2));
      expect(second.type).toBe("successor");
      meeting.release(1);
      meeting.release(2);
      meeting.release(3);
      expect(await endsWithin(5_000, running, "the tick")).toMatchObject({ ended: "empty", done: 1 });
      await client.query(how);
      if (how === "commit") expect(await keys(world)).toEqual({ k: second.id });
      const third = await putOne(world.sql, one("replace", "k", 3));
      expect(third.type).toBe(how === "commit" ? "replaced" : "enqueued");
      expect(third.id).not.toBe(first.id);
      expect(await invoke(world.claimer)).toMatchObject({ done: 1 });
      expect(await keys(world)).toEqual({});
    },
  );

  it.each(["keep", "reschedule"] as const)(
    "that found a duplicate of a job that runs (%s) does not hold up its end",
    async (kind) => {
      const meeting = rendezvous();
      const world = await keyedWorld(
        [keep, reschedule].map((job) => job.handle(({ payload }) => meeting.meet(payload.value))),
      );
      await putOne(world.sql, one(kind, "k", 1));
      const running = invoke(world.claimer);
      await meeting.arrived(1);
      const client = await world.connect();
      await client.query("begin");
      expect((await putOne(client, one(kind, "k", 2))).type).toBe("duplicate");
      meeting.release(1);
      expect(await endsWithin(5_000, running, "the tick")).toMatchObject({ ended: "empty", done: 1 });
      expect(await keys(world)).toEqual({});
      await client.query("rollback");
    },
  );

  it("that has taken over an expired key stops no wake", async () => {
    const hourly = defineJob({ kind: "keep", ...template, uniqueFor: "1h" });
    const world = await keyedWorld([hourly.handle(() => {})]);
    await put(world.sql, one("keep", "k"), one("keep", "l"));
    await world.sql.query("update pgclaim.unique_key set expires_at = clock_timestamp() - interval '1 hour'");
    const client = await world.connect();
    await client.query("begin");
    expect((await putOne(client, one("keep", "k"))).type).toBe("enqueued");
    expect(await endsWithin(5_000, invoke(world.claimer), "the invocation")).toMatchObject({ done: 2, faults: [] });
    expect(Object.keys(await keys(world))).toEqual(["k"]);
    await client.query("commit");
  });

  it("that has inserted a key costs the handler that wants it one attempt, and the others nothing", async () => {
    const trigger = defineJob({ kind: "a.trigger", payload: keyed, retry: { minBackoff: "1s" } });
    const wants = trigger.handle(async ({ payload, enqueue, tx }) => {
      if (payload.value > 1) await leave(tx, payload.value);
      if (payload.value < 3) await enqueue(keep, { key: "k", value: payload.value });
    });
    const world = await keyedWorld([wants, keep.handle(() => {})]);
    const client = await world.connect();
    await client.query("begin");
    await putOne(client, one("keep", "k", 9));
    // The first enqueues with finish, the second in its turn; the third has nothing to do with it.
    await put(world.sql, one("a.trigger", "t", 1), one("a.trigger", "u", 2), one("a.trigger", "v", 3));
    const report = await endsWithin(15_000, invoke(world.claimer), "the invocation");
    expect(report).toMatchObject({ done: 1, retried: 2, dead: 0 });
    expect(report.error).toBeUndefined();
    await client.query("rollback");
    await makeDue(world);
    expect(await invoke(world.claimer)).toMatchObject({ done: 3 });
    expect(await effects(world)).toEqual([2, 3]);
  });

  it("that has inserted the keys of many handlers of a tick costs each an attempt, and the tick not its time", async () => {
    const trigger = defineJob({ kind: "a.trigger", payload: keyed, retry: { minBackoff: "1s" } });
    const wants = trigger.handle(async ({ payload, enqueue }) => {
      await enqueue(keep, { key: `k${payload.value}`, value: payload.value });
    });
    const world = await keyedWorld([wants, keep.handle(() => {})]);
    const client = await world.connect();
    await client.query("begin");
    const numbers = Array.from({ length: 12 }, (_, i) => i);
    await put(client, ...numbers.map((n) => one("keep", `k${n}`, n)));
    await put(world.sql, ...numbers.map((n) => one("a.trigger", `t${n}`, n)), one("a.trigger", "free", 99));
    const report = await endsWithin(20_000, invoke(world.claimer), "the invocation");
    expect(report).toMatchObject({ retried: 12, dead: 0 });
    expect(report.ticks[0]).toMatchObject({ done: 1, fate: "committed" });
    expect(report.error).toBeUndefined();
    await client.query("commit");
  });

  it("holds no lock on anything after it", async () => {
    const world = await keyedWorld([replace]);
    await put(world.sql, one("replace", "k", 1), one("replace", "l", 1));
    const client = await world.connect();
    await client.query("begin");
    await put(client, one("replace", "k", 2), one("replace", "l", 2));
    expect(await world.locks()).toBe(2);
    await client.query("rollback");
    expect(await world.locks()).toBe(0);
  });
});
