// Who has a unique key and until when, what becomes of a second job, and that none of it is lost. Sessions stand at
// barriers; the calls are those of SQL callers unless a test says otherwise.

import { describe, expect, it } from "vitest";
import { createApp } from "../../../src/http/app.ts";
import { deadLetter, defineJob, snooze } from "../../../src/index.ts";
import { invoke } from "../../support/engine.ts";
import { endsWithin, gate } from "../../support/gate.ts";
import { pidOf, sqlState, waitsForLock, wake } from "../sql/support.ts";
import { jobs, type Keyed, keyed, keyedWorld, keys, put, putOne } from "./support.ts";

const template = { payload: keyed, uniqueKey: "{key}" } as const;
const plain = defineJob({ kind: "plain", ...template });
const replace = defineJob({ kind: "replace", ...template, onConflict: "replace" });
const reschedule = defineJob({ kind: "reschedule", ...template, onConflict: "reschedule" });
const all = [plain, replace, reschedule];

const kinds = ["plain", "replace", "reschedule"] as const;
const one = (kind: string, key: string, value = 0) => ({ kind, payload: { key, value, account: "a" } });

describe("a key is taken while its job is unfinished", () => {
  it.each(kinds)("%s: ready", async (kind) => {
    const world = await keyedWorld(all);
    const first = await putOne(world.sql, one(kind, "k"));
    expect(first.type).toBe("enqueued");
    const second = await putOne(world.sql, one(kind, "k", 1));
    expect(second).toEqual({
      type: { plain: "duplicate", replace: "replaced", reschedule: "rescheduled" }[kind],
      id: first.id,
    });
    expect(await jobs(world)).toMatchObject([{ id: first.id, state: "ready", value: kind === "replace" ? 1 : 0 }]);
    // Another key, and the same key of another kind, are free.
    expect((await putOne(world.sql, one(kind, "other"))).type).toBe("enqueued");
    expect((await putOne(world.sql, one(kind === "plain" ? "replace" : "plain", "k"))).type).toBe("enqueued");
  });

  it("scheduled", async () => {
    const world = await keyedWorld(all);
    const first = await putOne(world.sql, { ...one("plain", "k"), delayMs: 60_000 });
    expect(await putOne(world.sql, one("plain", "k", 1))).toEqual({ type: "duplicate", id: first.id });
    expect(await jobs(world)).toMatchObject([{ state: "scheduled", value: 0 }]);
  });

  it("blocked behind its gate", async () => {
    const behind = defineJob({ kind: "behind", ...template, orderingKey: "{account}" });
    const world = await keyedWorld([behind]);
    const [head, follower] = await put(world.sql, one("behind", "k1"), one("behind", "k2"));
    expect(await jobs(world)).toMatchObject([{ state: "ready" }, { state: "blocked" }]);
    expect(await put(world.sql, one("behind", "k2"), one("behind", "k1"))).toEqual([
      { type: "duplicate", id: follower?.id },
      { type: "duplicate", id: head?.id },
    ]);
  });

  it("running, and snoozed", async () => {
    const started = gate();
    const goOn = gate();
    const job = plain.handle(async ({ job: { attempt } }) => {
      if (attempt > 1) return;
      started.open();
      await goOn.promise;
      return snooze("1h");
    });
    const world = await keyedWorld([job]);
    const first = await putOne(world.sql, one("plain", "k"));
    const running = invoke(world.claimer);
    await started.promise;
    expect(await putOne(world.sql, one("plain", "k"))).toEqual({ type: "duplicate", id: first.id });
    goOn.open();
    expect(await running).toMatchObject({ snoozed: 1 });
    expect(await putOne(world.sql, one("plain", "k"))).toEqual({ type: "duplicate", id: first.id });
  });

  it.each(kinds)("%s: dead, also after an operator has retried it", async (kind) => {
    const world = await keyedWorld(all.map((job) => (job.kind === kind ? job.handle(() => deadLetter("no")) : job)));
    const first = await putOne(world.sql, one(kind, "k"));
    await invoke(world.claimer);
    expect(await jobs(world)).toMatchObject([{ state: "dead" }]);
    expect(await putOne(world.sql, one(kind, "k", 1))).toEqual({ type: "duplicate", id: first.id });
    expect(await jobs(world)).toMatchObject([{ state: "dead", value: 0 }]);
    await world.claimer.retry(first.id);
    expect((await putOne(world.sql, one(kind, "k", 1))).id).toBe(first.id);
  });
});

describe("a key is free again", () => {
  const free = async (world: Keyed, holder: string) => {
    expect(await keys(world)).toEqual({});
    const next = await putOne(world.sql, one("plain", "k"));
    expect(next.type).toBe("enqueued");
    expect(next.id).not.toBe(holder);
  };

  it("when its job is done", async () => {
    const world = await keyedWorld([plain.handle(() => {})]);
    const { id } = await putOne(world.sql, one("plain", "k"));
    expect(await invoke(world.claimer)).toMatchObject({ done: 1 });
    await free(world, id);
  });

  it("when its dead letter is discarded", async () => {
    const world = await keyedWorld([plain.handle(() => deadLetter("no"))]);
    const { id } = await putOne(world.sql, one("plain", "k"));
    await invoke(world.claimer);
    expect(await world.claimer.discard(id)).toEqual({ type: "discarded" });
    await free(world, id);
  });

  it("when its job is cancelled while it waits", async () => {
    const world = await keyedWorld(all);
    const { id } = await putOne(world.sql, one("plain", "k"));
    expect(await world.claimer.cancel(id)).toEqual({ type: "cancelled" });
    await free(world, id);
  });

  it("when its job is cancelled while it runs", async () => {
    const started = gate();
    const job = plain.handle(async ({ signal }) => {
      started.open();
      await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
      throw new Error("stopped");
    });
    const world = await keyedWorld([job], { limits: { cancelPoll: "50ms" } });
    const { id } = await putOne(world.sql, one("plain", "k"));
    const running = invoke(world.claimer);
    await started.promise;
    expect(await world.claimer.cancel(id)).toEqual({ type: "requested" });
    expect(await running).toMatchObject({ cancelled: 1 });
    await free(world, id);
  });
});

describe("once per period", () => {
  const hourly = defineJob({ kind: "plain", ...template, uniqueFor: "1h" });
  const expire = (world: Keyed) =>
    world.sql.query("update pgclaim.unique_key set expires_at = clock_timestamp() - interval '1 millisecond'");

  it("throttles: the key outlives the job, names it, and is taken over when its period is over", async () => {
    const world = await keyedWorld([hourly.handle(() => {})]);
    const first = await putOne(world.sql, one("plain", "k"));
    const left = await world.value("select extract(epoch from expires_at - clock_timestamp()) from pgclaim.unique_key");
    expect(Number(left)).toBeGreaterThan(3_590);
    expect(Number(left)).toBeLessThanOrEqual(3_600);
    expect(await putOne(world.sql, one("plain", "k"))).toEqual({ type: "duplicate", id: first.id });
    expect(await invoke(world.claimer)).toMatchObject({ done: 1 });
    for (let i = 0; i < 3; i++) {
      expect(await putOne(world.sql, one("plain", "k"))).toEqual({ type: "duplicate", id: first.id });
    }
    expect(await invoke(world.claimer)).toMatchObject({ done: 0 });
    await expire(world);
    const second = await putOne(world.sql, one("plain", "k"));
    expect(second.type).toBe("enqueued");
    expect(await putOne(world.sql, one("plain", "k"))).toEqual({ type: "duplicate", id: second.id });
    expect(await invoke(world.claimer)).toMatchObject({ done: 1 });
  });

  it("takes an expired key over also while its job is unfinished, and that one's end frees nothing", async () => {
    const world = await keyedWorld([hourly.handle(() => {})], { batch: 1, maxTicks: 1 });
    const first = await putOne(world.sql, one("plain", "k"));
    await expire(world);
    const second = await putOne(world.sql, one("plain", "k"));
    expect([second.type, second.id === first.id]).toEqual(["enqueued", false]);
    expect(await invoke(world.claimer)).toMatchObject({ done: 1 });
    expect(await putOne(world.sql, one("plain", "k"))).toEqual({ type: "duplicate", id: second.id });
  });

  it("lets wake prune what is expired, and nothing else", async () => {
    const world = await keyedWorld([hourly, replace]);
    await put(world.sql, one("plain", "old"), one("replace", "unfinished"));
    await expire(world);
    await world.sql.query("update pgclaim.unique_key set expires_at = null where key = 'unfinished'");
    await putOne(world.sql, one("plain", "new"));
    await invoke(world.claimer);
    expect(Object.keys(await keys(world))).toEqual(["new", "unfinished"]);
  });
});

describe("debounce", () => {
  it("reschedule: a deadline that somebody asked for stays, whichever way in is used, until somebody asks for another", async () => {
    const world = await keyedWorld([reschedule]);
    const [first, second] = ["2098-01-01T00:00:00.000Z", "2099-01-01T00:00:00.000Z"];
    const deadline = async () => (await jobs(world))[0]?.deadline_at?.toISOString();
    await putOne(world.sql, { ...one("reschedule", "k", 1), deadlineAt: first });
    await putOne(world.sql, { ...one("reschedule", "k", 1), delayMs: 60_000 });
    expect(await deadline()).toBe(first);
    const payload = JSON.stringify(one("reschedule", "k", 1).payload);
    await world.sql.query("select pgclaim.enqueue('reschedule', $1, run_at => now() + interval '5 minutes')", [
      payload,
    ]);
    expect(await deadline()).toBe(first);
    await world.sql.query("select pgclaim.enqueue('reschedule', $1, deadline_at => $2)", [payload, second]);
    expect(await deadline()).toBe(second);
  });

  it("reschedule: within one call too the last deadline that was asked for holds", async () => {
    const world = await keyedWorld([reschedule]);
    const [first, second] = ["2098-01-01T00:00:00.000Z", "2099-01-01T00:00:00.000Z"];
    await put(
      world.sql,
      { ...one("reschedule", "k", 1), deadlineAt: first },
      { ...one("reschedule", "k", 1), deadlineAt: second },
      { ...one("reschedule", "k", 1), delayMs: 60_000 },
    );
    expect((await jobs(world)).map(({ deadline_at }) => deadline_at?.toISOString())).toEqual([second]);
  });

  it("reschedule: each enqueue puts the job off, and the first payload stays", async () => {
    const world = await keyedWorld(all);
    const first = await putOne(world.sql, { ...one("reschedule", "k", 1), delayMs: 60_000 });
    for (const [value, delayMs] of [
      [2, 120_000],
      [3, 240_000],
    ] as const) {
      expect(await putOne(world.sql, { ...one("reschedule", "k", value), delayMs })).toEqual({
        type: "rescheduled",
        id: first.id,
      });
    }
    const [row, ...more] = await jobs(world);
    expect([row?.state, row?.value, more]).toEqual(["scheduled", 1, []]);
    expect(row?.in_ms).toBeGreaterThan(230_000);
    // And brings it forward, also to now.
    await putOne(world.sql, { ...one("reschedule", "k"), delayMs: 0 });
    expect(await jobs(world)).toMatchObject([{ id: first.id, state: "ready", value: 1 }]);
  });

  it("replace: each enqueue puts the job off, and the last payload runs, once", async () => {
    const ran: number[] = [];
    const world = await keyedWorld([replace.handle(({ payload }) => void ran.push(payload.value))]);
    for (const value of [1, 2, 3]) await putOne(world.sql, { ...one("replace", "k", value), delayMs: 60_000 });
    expect(await invoke(world.claimer)).toMatchObject({ ended: "idle" });
    await putOne(world.sql, one("replace", "k", 4));
    await invoke(world.claimer);
    expect(ran).toEqual([4]);
  });
});

describe("within one call", () => {
  it("answers duplicates with the id of the one that is inserted", async () => {
    const world = await keyedWorld(all);
    const answers = await put(
      world.sql,
      one("plain", "b", 1),
      one("plain", "a", 2),
      one("plain", "b", 3),
      one("plain", "a", 4),
    );
    const [b, a] = answers;
    expect(answers.map(({ type }) => type)).toEqual(["enqueued", "enqueued", "duplicate", "duplicate"]);
    expect([answers[2]?.id, answers[3]?.id]).toEqual([b?.id, a?.id]);
    expect((await jobs(world)).map(({ value }) => value)).toEqual([1, 2]);
  });

  it("replaces: the last one of a key is what is inserted", async () => {
    const world = await keyedWorld(all);
    const answers = await put(
      world.sql,
      one("replace", "a", 1),
      one("replace", "b", 2),
      { ...one("replace", "a", 3), delayMs: 60_000 },
      { ...one("replace", "a", 4), delayMs: 120_000 },
    );
    expect(answers.map(({ type }) => type)).toEqual(["enqueued", "enqueued", "replaced", "replaced"]);
    expect(new Set([answers[0]?.id, answers[2]?.id, answers[3]?.id]).size).toBe(1);
    expect(await jobs(world)).toMatchObject([
      { id: answers[0]?.id, value: 4, state: "scheduled" },
      { id: answers[1]?.id, value: 2, state: "ready" },
    ]);
    expect(await keys(world)).toEqual({ a: answers[0]?.id, b: answers[1]?.id });
  });

  it("reschedules: the first payload with the last due time", async () => {
    const world = await keyedWorld(all);
    const later = new Date(Date.UTC(2099, 0, 1)).toISOString();
    const answers = await put(
      world.sql,
      { ...one("reschedule", "a", 1), delayMs: 5_000 },
      { ...one("reschedule", "a", 2), runAt: later },
      one("reschedule", "a", 3),
      { ...one("reschedule", "a", 4), runAt: later },
    );
    expect(answers.map(({ type }) => type)).toEqual(["enqueued", "rescheduled", "rescheduled", "rescheduled"]);
    expect(await jobs(world)).toMatchObject([{ value: 1, state: "scheduled" }]);
    expect(await world.value("select run_at from pgclaim.job")).toEqual(new Date(later));
  });

  it("changes a job that stood there before, and after that changes it again", async () => {
    const world = await keyedWorld(all);
    const first = await putOne(world.sql, one("replace", "a", 1));
    const answers = await put(world.sql, one("replace", "a", 2), one("replace", "a", 3));
    expect(answers).toEqual([
      { type: "replaced", id: first.id },
      { type: "replaced", id: first.id },
    ]);
    expect(await jobs(world)).toMatchObject([{ value: 3 }]);
  });

  it("and in one transaction, call by call, before any of it is committed", async () => {
    const ordered = defineJob({ kind: "ordered", ...template, orderingKey: "{account}", onConflict: "replace" });
    const world = await keyedWorld([ordered, ...all]);
    const client = await world.connect();
    await client.query("begin");
    const a = await putOne(client, one("ordered", "a", 1));
    const b = await putOne(client, one("ordered", "b", 2));
    expect(await putOne(client, one("ordered", "a", 3))).toEqual({ type: "replaced", id: a.id });
    await client.query("commit");
    expect(await jobs(world)).toMatchObject([
      { id: a.id, state: "ready", value: 3 },
      { id: b.id, state: "blocked", value: 2 },
    ]);
    const places = (await jobs(world)).map(({ place }) => Number(place));
    expect(places[0]).toBeLessThan(places[1] ?? 0);
  });
});

describe("a second one that waits for the first one's transaction", () => {
  it.each(kinds)("%s: is inserted when that rolls back: nothing is lost", async (kind) => {
    const world = await keyedWorld(all);
    const [first, second] = [await world.connect(), await world.connect()];
    const pid = await pidOf(second);
    await first.query("begin");
    await putOne(first, one(kind, "k", 1));
    const waiting = putOne(second, one(kind, "k", 2));
    await waitsForLock(world, pid);
    await first.query("rollback");
    const answer = await endsWithin(10_000, waiting, "the second enqueue");
    expect(answer.type).toBe("enqueued");
    expect(await jobs(world)).toMatchObject([{ id: answer.id, value: 2 }]);
    expect(await keys(world)).toEqual({ k: answer.id });
  });

  it.each([
    ["plain", "duplicate", 1],
    ["replace", "replaced", 2],
    ["reschedule", "rescheduled", 1],
  ] as const)("%s: is a value when that commits: %s", async (kind, type, value) => {
    const world = await keyedWorld(all);
    const [first, second] = [await world.connect(), await world.connect()];
    const pid = await pidOf(second);
    await first.query("begin");
    const { id } = await putOne(first, one(kind, "k", 1));
    const waiting = putOne(second, one(kind, "k", 2));
    await waitsForLock(world, pid);
    await first.query("commit");
    expect(await endsWithin(10_000, waiting, "the second enqueue")).toEqual({ type, id });
    expect(await jobs(world)).toMatchObject([{ id, value }]);
  });

  it.each(["commit", "rollback"] as const)(
    "replaces what the first has left by its %s, and one job stays one",
    async (how) => {
      const world = await keyedWorld(all);
      const { id } = await putOne(world.sql, one("replace", "k", 1));
      const [first, second] = [await world.connect(), await world.connect()];
      const pid = await pidOf(second);
      await first.query("begin");
      expect(await putOne(first, one("replace", "k", 2))).toEqual({ type: "replaced", id });
      const waiting = putOne(second, one("replace", "k", 3));
      await waitsForLock(world, pid);
      await first.query(how);
      expect(await endsWithin(10_000, waiting, "the second enqueue")).toEqual({ type: "replaced", id });
      expect(await jobs(world)).toMatchObject([{ id, value: 3 }]);
    },
  );

  it("keeps nobody waiting who only finds a duplicate", async () => {
    const world = await keyedWorld(all);
    const { id } = await putOne(world.sql, one("plain", "k"));
    const [first, second] = [await world.connect(), await world.connect()];
    await first.query("begin");
    expect(await putOne(first, one("plain", "k"))).toEqual({ type: "duplicate", id });
    expect(await endsWithin(5_000, putOne(second, one("plain", "k")), "the second")).toEqual({ type: "duplicate", id });
    await first.query("rollback");
  });
});

describe("callers at every isolation level", () => {
  const levels = ["read committed", "repeatable read", "serializable"] as const;

  it.each(levels)("%s: sees who has the key, and changes the job", async (level) => {
    const world = await keyedWorld(all);
    const client = await world.connect();
    const holders = await put(world.sql, one("plain", "k", 1), one("replace", "k", 1), one("reschedule", "k", 1));
    await client.query(`begin isolation level ${level}`);
    expect(
      await put(client, one("plain", "k", 2), one("replace", "k", 2), {
        ...one("reschedule", "k", 2),
        delayMs: 60_000,
      }),
    ).toEqual([
      { type: "duplicate", id: holders[0]?.id },
      { type: "replaced", id: holders[1]?.id },
      { type: "rescheduled", id: holders[2]?.id },
    ]);
    expect((await putOne(client, one("plain", "new"))).type).toBe("enqueued");
    await client.query("commit");
    expect((await jobs(world)).map(({ value, state }) => `${value} ${state}`)).toEqual([
      "1 ready",
      "2 ready",
      "1 scheduled",
      "0 ready",
    ]);
  });

  it.each(["repeatable read", "serializable"] as const)(
    "%s: what came after the snapshot is a serialization failure, and a value when it is tried again",
    async (level) => {
      const world = await keyedWorld(all);
      const client = await world.connect();
      await client.query(`begin isolation level ${level}`);
      await client.query("select 1 from pgclaim.kind");
      const { id } = await putOne(world.sql, one("plain", "k"));
      expect(await sqlState(putOne(client, one("plain", "k")))).toBe("40001");
      await client.query("rollback");
      await client.query(`begin isolation level ${level}`);
      expect(await putOne(client, one("plain", "k"))).toEqual({ type: "duplicate", id });
      await client.query("commit");
    },
  );

  it.each(["repeatable read", "serializable"] as const)(
    "%s: loses no job to one that finished after the snapshot",
    async (level) => {
      const world = await keyedWorld([plain.handle(() => {}), replace.handle(() => {})]);
      const client = await world.connect();
      await put(world.sql, one("plain", "k"), one("replace", "k"));
      await client.query(`begin isolation level ${level}`);
      await client.query("select 1 from pgclaim.job");
      expect(await invoke(world.claimer)).toMatchObject({ done: 2 });
      // The keys are free, whatever the snapshot says.
      expect((await put(client, one("plain", "k", 2), one("replace", "k", 2))).map(({ type }) => type)).toEqual([
        "enqueued",
        "enqueued",
      ]);
      await client.query("commit");
      expect(await invoke(world.claimer)).toMatchObject({ done: 2 });
    },
  );
});

describe("jobs of SQL, HTTP and TypeScript", () => {
  it("share their keys", async () => {
    const world = await keyedWorld(all);
    const { claimer } = world;
    const app = createApp({ claimer: () => claimer, secrets: { enqueue: "s" }, log: () => {} });
    const overHttp = async (body: unknown, status: number) => {
      const answer = await app.request("/api/jobs", {
        method: "POST",
        headers: { authorization: "Bearer s", "content-type": "application/json" },
        body: JSON.stringify(body),
      });
      // 201 only where there is a job that was not there before.
      expect(answer.status).toBe(status);
      return answer.json();
    };
    const bySql = async (kind: string, value: number) =>
      (
        await world.rows<{ type: string; id: string }>(
          "select type, job_id::text as id from pgclaim.enqueue($1, jsonb_build_object('key', 'k', 'value', $2::integer))",
          [kind, value],
        )
      )[0];
    const first = await claimer.enqueue(plain, { key: "k" });
    expect(first.type).toBe("enqueued");
    const duplicate = { type: "duplicate", id: first.id };
    expect(await claimer.enqueue(plain, { key: "k" })).toEqual(duplicate);
    expect(await overHttp(one("plain", "k"), 200)).toEqual(duplicate);
    expect(await bySql("plain", 1)).toEqual(duplicate);
    expect(await claimer.enqueueMany(plain, [{ key: "k" }, { key: "k2" }, { key: "k2" }])).toMatchObject([
      duplicate,
      { type: "enqueued" },
      { type: "duplicate" },
    ]);
    const other = await bySql("replace", 1);
    expect(await overHttp([one("replace", "k", 2)], 200)).toEqual([{ type: "replaced", id: other?.id }]);
    expect(await overHttp([one("replace", "k", 2), one("replace", "new", 1)], 201)).toMatchObject([
      { type: "replaced" },
      { type: "enqueued" },
    ]);
    expect(await claimer.enqueue(replace, { key: "k", value: 3 })).toEqual({ type: "replaced", id: other?.id });
    expect(await claimer.job(other?.id ?? "")).toMatchObject({ uniqueKey: "k", payload: { value: 3 } });
  });

  it("refuse a payload that gives no key, by its path and without its values", async () => {
    const loose = defineJob({ kind: "loose", payload: keyed.partial(), uniqueKey: "{key}" as never });
    const world = await keyedWorld([loose]);
    await expect(world.claimer.enqueue(loose, {})).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_PAYLOAD",
      path: "payload",
      message: expect.stringContaining("{key}"),
    });
    await expect(world.claimer.enqueue(loose, { key: "secret".repeat(100) })).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_PAYLOAD",
      message: expect.not.stringContaining("secret"),
    });
    expect(await sqlState(world.sql.query("select pgclaim.enqueue('loose', '{\"key\": {}}')"))).toBe("PC003");
  });
});

describe("a key that a finished job has left behind", () => {
  it("is taken over, and is pruned if nobody wants it", async () => {
    const world = await keyedWorld(all);
    await world.sql.query(
      "insert into pgclaim.unique_key (kind, key, job_id) values ('plain', 'k', 900001), ('plain', 'l', 900002)",
    );
    const { id, type } = await putOne(world.sql, one("plain", "k"));
    expect(type).toBe("enqueued");
    const live = await putOne(world.sql, one("replace", "m"));
    for (let i = 0; i < 50; i++) await wake(world.sql);
    expect(await keys(world)).toEqual({ k: id, m: live.id });
  });
});
