// Enqueueing from plain SQL: inside anybody's transaction, at any level, all or nothing, and refused where it enters.

import { describe, expect, it } from "vitest";
import {
  claimer,
  enqueue,
  failure,
  fence,
  type Installation,
  ids,
  install,
  job,
  runTick,
  sqlState,
  the,
  wake,
} from "./support.ts";

const LIMIT = 1_048_576;

const plain = async (world: Installation, text = "'a', '{}'"): Promise<string> =>
  String(await world.value(`select job_id from pgclaim.enqueue(${text})`));

const batch = (world: Installation, jobs: readonly unknown[], strict = false) =>
  world.rows<{ i: number; type: string; job_id: string | null; detail: string | null }>(
    "select * from pgclaim.enqueue_v1($1)",
    [JSON.stringify({ jobs, strict })],
  );

const count = (world: Installation) => world.value<number>("select count(*)::int from pgclaim.job");

describe("enqueue", () => {
  it("gives a job what its kind says, due now", async () => {
    const world = await install([{ name: "a", queue: "q", priority: 1, targetLatencyMs: 120_000 }]);
    const id = await plain(world, `'a', '{"n": 1}'`);
    const row = await job(world.sql, id);
    expect(row).toMatchObject({
      kind: "a",
      queue: "q",
      priority: 1,
      state: "ready",
      attempt: 0,
      failures: 0,
      crash_base: 0,
      suspect: false,
      payload: { n: 1 },
      revision: world.revision,
    });
    expect(Number(row.rank) - Number(row.run_at)).toBe(120_000);
    expect(Math.abs(Number(row.run_at) - Date.now())).toBeLessThan(10_000);
  });

  it("answers the id and that it was enqueued; payload and time may be left out", async () => {
    const world = await install();
    expect(await world.rows("select * from pgclaim.enqueue('a')")).toEqual([
      { job_id: expect.stringMatching(/^\d+$/), type: "enqueued" },
    ]);
    expect(await world.value("select payload from pgclaim.job")).toEqual({});
  });

  it("schedules what is due later, and not what was due before", async () => {
    const world = await install();
    const later = await plain(world, "'a', '{}', run_at => now() + interval '1 hour'");
    const past = await plain(world, "'a', '{}', run_at => '2001-02-03 04:05:06Z'");
    expect((await job(world.sql, later)).state).toBe("scheduled");
    expect(await job(world.sql, past)).toMatchObject({ state: "ready", run_at: new Date("2001-02-03T04:05:06Z") });
    expect((await wake(world.sql)).promoted).toBe(0);
  });

  it("takes a delay from the database's clock, not from the start of a long transaction", async () => {
    const world = await install();
    await world.sql.query("begin");
    await world.sql.query("select pg_sleep(0.05)");
    await batch(world, [{ kind: "a", payload: {} }]);
    expect(await world.value("select run_at > now() from pgclaim.job")).toBe(true);
    await world.sql.query("commit");
    await batch(world, [{ kind: "a", payload: {}, delayMs: 60_000 }]);
    expect(
      await world.value(
        "select run_at - clock_timestamp() between interval '50 s' and interval '60 s' from pgclaim.job where state = 'scheduled'",
      ),
    ).toBe(true);
  });

  it("vanishes with a transaction that rolls back, and with a savepoint that does", async () => {
    const world = await install();
    await world.sql.query("begin");
    await plain(world);
    await world.sql.query("rollback");
    expect(await count(world)).toBe(0);
    await world.sql.query("begin");
    const kept = await plain(world);
    await world.sql.query("savepoint s");
    await plain(world);
    await world.sql.query("rollback to s; commit");
    expect(await world.rows("select id from pgclaim.job")).toEqual([{ id: kept }]);
  });

  it("is seen by nobody before its transaction commits", async () => {
    const world = await install();
    const caller = await world.connect();
    await caller.query("begin");
    await caller.query("select pgclaim.enqueue('a')");
    expect((await wake(world.sql)).ready).toBe(false);
    expect((await claimer(world)).jobs).toEqual([]);
    await caller.query("commit");
    expect((await wake(world.sql)).ready).toBe(true);
    expect(await runTick(world)).toHaveLength(1);
  });

  it.each(["read uncommitted", "read committed", "repeatable read", "serializable"])(
    "works at %s, with the caller's own data in the same transaction",
    async (level) => {
      const world = await install();
      await world.sql.query("create table orders (id bigint)");
      await world.sql.query(`begin isolation level ${level}`);
      await world.sql.query("insert into orders values (1)");
      const id = await plain(world);
      await world.sql.query("commit");
      expect(await world.value("select count(*)::int from orders")).toBe(1);
      expect(ids(await runTick(world))).toEqual([id]);
    },
  );

  it("takes no lock that another enqueuer, a claim or a finish would meet", async () => {
    const world = await install();
    const caller = await world.connect();
    await caller.query("begin isolation level serializable");
    await caller.query("select pgclaim.enqueue('a')");
    expect(await world.locks()).toBe(0);
    await world.sql.query("set lock_timeout = '100ms'");
    const id = await plain(world);
    expect(ids(await runTick(world))).toEqual([id]);
    await caller.query("commit");
  });

  it("is refused in a read-only transaction by Postgres itself", async () => {
    const world = await install();
    await world.sql.query("begin read only");
    expect(await sqlState(plain(world))).toBe("25006");
  });
});

describe("an unknown kind", () => {
  it("is refused as PC002, by its name, with the names that are known and what to do", async () => {
    const world = await install([{ name: "b.two" }, { name: "a.one" }]);
    const error = await failure(plain(world, "'a.uno', '{}'"));
    expect(error).toMatchObject({
      code: "PC002",
      message: 'No kind "a.uno" in the database.',
      detail: "Known kinds: a.one, b.two.",
    });
    expect(error.hint).toContain("deploy");
  });

  it("is refused where no kind is known, and where it is null", async () => {
    const world = await install([]);
    expect(await failure(plain(world, "'a', '{}'"))).toMatchObject({ code: "PC002", detail: "Known kinds: none." });
    expect(await failure(plain(world, "null, '{}'"))).toMatchObject({
      code: "PC002",
      message: 'No kind "null" in the database.',
    });
  });

  it("is told by its exact name: case and spaces count", async () => {
    const world = await install([{ name: "Mail" }]);
    for (const name of ["mail", "Mail ", "MAIL"]) expect(await sqlState(plain(world, `'${name}'`))).toBe("PC002");
    await plain(world, "'Mail'");
  });
});

describe("a payload", () => {
  it.each([
    ["of exactly the limit", LIMIT, undefined],
    ["of one byte more", LIMIT + 1, "PC003"],
  ])("%s is taken or refused: %i bytes, %s", async (_, bytes, code) => {
    const world = await install();
    const enqueueing = world.sql.query("select pgclaim.enqueue('a', to_jsonb(repeat('x', $1::integer - 2)))", [bytes]);
    if (code === undefined) {
      await enqueueing;
      expect(await world.value("select octet_length(payload::text) from pgclaim.job")).toBe(bytes);
    } else {
      const error = await failure(enqueueing);
      expect(error.code).toBe(code);
      expect(error.message).toContain(`${LIMIT + 1} of at most ${LIMIT} bytes`);
      expect(await count(world)).toBe(0);
    }
  });

  it("is measured in bytes, not characters", async () => {
    const world = await install();
    const umlauts = (n: number) =>
      world.sql.query("select pgclaim.enqueue('a', to_jsonb(repeat('ä', $1::integer)))", [n]);
    await umlauts(LIMIT / 2 - 1);
    expect(await sqlState(umlauts(LIMIT / 2))).toBe("PC003");
  });

  it.each([
    ["null", "null"],
    ["a number", "7"],
    ["a string", '"x"'],
    ["a list", "[1, 2]"],
    ["an empty object", "{}"],
  ])("may be any JSON value: %s", async (_, json) => {
    const world = await install();
    await world.sql.query("select pgclaim.enqueue('a', $1::jsonb)", [json]);
    const session = await claimer(world);
    expect(the(await fence(world.sql, session)).payload).toBe(json);
  });

  it("with a NUL is refused by Postgres, which says so", async () => {
    const world = await install();
    const error = await failure(world.sql.query("select pgclaim.enqueue('a', $1::jsonb)", ['{"x": "a\\u0000b"}']));
    expect(error.code).toBe("22P05");
    expect(error.detail).toContain("\\u0000 cannot be converted to text");
    expect(await count(world)).toBe(0);
  });

  it("with half a surrogate pair, or that is no JSON, is refused by Postgres", async () => {
    const world = await install();
    for (const text of ['{"x": "\\ud800"}', "{x: 1}", '{"x": NaN}']) {
      expect(await sqlState(world.sql.query("select pgclaim.enqueue('a', $1::jsonb)", [text]))).toBe("22P02");
    }
  });

  it("that is missing is refused by that name", async () => {
    const world = await install();
    expect(await batch(world, [{ kind: "a" }])).toEqual([
      { i: 0, type: "invalid-payload", job_id: null, detail: "missing" },
    ]);
    const error = await failure(batch(world, [{ kind: "a" }], true));
    expect(error).toMatchObject({ code: "PC003", message: "Job 0: invalid-payload, missing." });
  });
});

describe("a run_at", () => {
  it.each(["infinity", "-infinity"])("of %s is refused, and the message says which value it was", async (value) => {
    const world = await install();
    const error = await failure(plain(world, `'a', '{}', run_at => '${value}'`));
    expect(error).toMatchObject({ code: "PC003", message: `Job 0: invalid-run-at, ${value}.` });
    expect(await count(world)).toBe(0);
  });

  // The engine reads instants as JavaScript does. A row whose instant it cannot read would fail every tick that claims it.
  it.each(["0001-12-31 23:59:59+00 BC", "10000-01-01 00:00:00+00", "294276-12-31 23:59:59+00"])(
    "or a deadline_at of %s, which JavaScript cannot read, is refused",
    async (value) => {
      const world = await install();
      for (const argument of ["run_at", "deadline_at"])
        expect(await sqlState(plain(world, `'a', '{}', ${argument} => '${value}'`))).toBe("PC003");
      expect(await count(world)).toBe(0);
    },
  );

  it.each(["0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"])("of %s is taken", async (value) => {
    const world = await install();
    await plain(world, `'a', '{}', run_at => '${value}', deadline_at => '${value}'`);
    expect(await count(world)).toBe(1);
  });

  it("that is no instant, and a request that is none, are refused in our words", async () => {
    const world = await install();
    const error = await failure(batch(world, [{ kind: "a", payload: {}, runAt: "whenever" }]));
    expect(error).toMatchObject({
      code: "PC003",
      message: expect.stringMatching(/^The request cannot be read: .*"whenever"/),
    });
    for (const jobs of ["1", '"x"', "{}", "null", '[{"kind": "a", "payload": 1, "delayMs": "soon"}]'])
      expect(await sqlState(world.sql.query("select pgclaim.enqueue_v1($1)", [`{"jobs": ${jobs}}`])), jobs).toBe(
        "PC003",
      );
  });

  it("is read as the instant it names, whatever the caller's time zone and date style", async () => {
    const world = await install();
    await world.sql.query("set timezone = 'Asia/Kathmandu'; set datestyle = 'SQL, DMY'");
    await batch(world, [{ kind: "a", payload: {}, runAt: "2033-04-05T06:07:08.910Z" }]);
    const id = await plain(world, "'a', '{}', run_at => '2033-04-05T06:07:08.910Z'::timestamptz");
    await world.sql.query("reset timezone; reset datestyle");
    expect((await job(world.sql, id)).run_at).toEqual(new Date("2033-04-05T06:07:08.910Z"));
    expect(await world.value("select count(distinct run_at)::int from pgclaim.job")).toBe(1);
  });
});

describe("a batch", () => {
  it("gives ids that ascend with the position, and says which is which", async () => {
    const world = await install();
    const rows = await batch(
      world,
      Array.from({ length: 500 }, (_, i) => ({ kind: i % 3 === 0 ? "b" : "a", payload: { i } })),
    );
    expect(rows.map((row) => row.i)).toEqual(Array.from({ length: 500 }, (_, i) => i));
    expect(
      await world.value(
        "select bool_and((payload ->> 'i')::int = j.r - 1) from (select payload, row_number() over (order by id) as r from pgclaim.job) j",
      ),
    ).toBe(true);
    const stored = await world.rows<{ id: string }>("select id from pgclaim.job order by (payload ->> 'i')::int");
    expect(stored.map((row) => row.id)).toEqual(rows.map((row) => row.job_id));
  });

  it("keeps that promise with a plan that hashes, and with many kinds", async () => {
    const names = Array.from({ length: 300 }, (_, i) => ({ name: `k${i}` }));
    const world = await install(names);
    await world.sql.query("analyze pgclaim.kind; set enable_nestloop = off; set enable_mergejoin = off");
    const rows = await batch(
      world,
      Array.from({ length: 600 }, (_, i) => ({ kind: `k${(i * 7) % 300}`, payload: i })),
    );
    expect(rows).toHaveLength(600);
    expect(
      await world.value(
        "select array_agg(payload::int order by id) = array(select generate_series(0, 599)) from pgclaim.job",
      ),
    ).toBe(true);
  });

  it("is all or none: every refusal is a value, with its position and reason", async () => {
    const world = await install();
    const rows = await batch(world, [
      { kind: "a", payload: {} },
      { kind: "nobody", payload: {} },
      { kind: "a", payload: "x".repeat(LIMIT) },
      { kind: "a", payload: {}, runAt: "infinity" },
      { payload: {} },
      { kind: "a" },
    ]);
    expect(rows).toEqual([
      { i: 1, type: "unknown-kind", job_id: null, detail: "nobody" },
      { i: 2, type: "payload-too-large", job_id: null, detail: `${LIMIT + 2} of at most ${LIMIT} bytes` },
      { i: 3, type: "invalid-run-at", job_id: null, detail: "infinity" },
      { i: 4, type: "unknown-kind", job_id: null, detail: null },
      { i: 5, type: "invalid-payload", job_id: null, detail: "missing" },
    ]);
    expect(await count(world)).toBe(0);
  });

  it("leaves the caller's transaction usable when it is refused by value, and aborts it when strict", async () => {
    const world = await install();
    await world.sql.query("begin");
    await batch(world, [{ kind: "nobody", payload: {} }]);
    expect(await enqueue(world.sql, 1)).toHaveLength(1);
    expect(await sqlState(batch(world, [{ kind: "nobody", payload: {} }], true))).toBe("PC002");
    expect((await world.sql.query("commit")).command).toBe("ROLLBACK");
    expect(await count(world)).toBe(0);
  });

  it("of nothing enqueues nothing", async () => {
    const world = await install();
    expect(await batch(world, [])).toEqual([]);
  });
});
