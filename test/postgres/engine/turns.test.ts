// run: what a handler's turn keeps, undoes and must not reach. Every test looks at what was committed, not at what the
// engine says of it alone.

import { beforeEach, describe, expect, it } from "vitest";
import * as z from "zod";
import { deadLetter, defineJob, done, retryIn, snooze } from "../../../src/index.ts";
import {
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  results,
  upTo,
  watchUnhandled,
  workTick,
} from "../../support/engine.ts";
import { gate } from "../../support/gate.ts";
import { setup, transports } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

describe.each(transports)("a turn over %s", (transport) => {
  it("keeps the effects of done and snooze and undoes those of a throw, retryIn and deadLetter", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "mixed",
      payload: z.object({ n: z.number(), end: z.string() }),
      async run({ payload, tx }) {
        await effect(tx, payload.n);
        switch (payload.end) {
          case "throw":
            throw new Error("no");
          case "retryIn":
            return retryIn("1h");
          case "deadLetter":
            return deadLetter("never again");
          case "snooze":
            return snooze("1h");
          case "done":
            return done();
          default:
            return undefined;
        }
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    const ends = ["done", "throw", "nothing", "retryIn", "snooze", "deadLetter", "done"];
    await claimer.enqueueMany(
      job,
      ends.map((end, i) => ({ n: i + 1, end })),
    );
    const report = await invoke(claimer);
    const tick = workTick(report);
    expect(results(tick)).toEqual([
      "done",
      "retried:PGCLAIM_HANDLER_THREW",
      "done",
      "retried:PGCLAIM_HANDLER_THREW",
      "snoozed",
      "dead",
      "done",
    ]);
    expect(await effects(world)).toEqual([1, 3, 5, 7]);
    expect(
      await world.rows(
        "select payload ->> 'end' as end, state, failures, attempt, dead_reason from pgclaim.job order by id",
      ),
    ).toEqual([
      { end: "throw", state: "scheduled", failures: 1, attempt: 1, dead_reason: null },
      { end: "retryIn", state: "scheduled", failures: 1, attempt: 1, dead_reason: null },
      { end: "snooze", state: "scheduled", failures: 0, attempt: 1, dead_reason: null },
      { end: "deadLetter", state: "dead", failures: 1, attempt: 1, dead_reason: "handler" },
    ]);
    expect(await world.locks()).toBe(0);
  });

  it("fails a handler that swallowed an error of its query, since its effects cannot be kept", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "swallow",
      payload: numbered,
      async run({ payload, tx }) {
        await effect(tx, payload.n);
        if (payload.n === 2) await tx.query("select 1 / 0").catch(() => {});
        return done();
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    expect(results(workTick(await invoke(claimer)))).toEqual(["done", "retried:PGCLAIM_TURN_FAILED", "done"]);
    expect(await effects(world)).toEqual([1, 3]);
  });

  it("fails the handler alone that violates a deferred constraint, and lets the next one use it rightly", async () => {
    const world = await setup();
    await world.sql.query(`
      create table parent (id integer primary key);
      create table child (n integer, parent integer references parent deferrable initially deferred);
      create table slot (place integer unique deferrable initially deferred);
      insert into slot values (1), (2);
    `);
    const job = defineJob({
      kind: "defer",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await tx.query("insert into child values ($1, $1)", [n]);
        // The odd ones fix what they deferred.
        if (n % 2 === 1) {
          await tx.query("insert into parent values ($1)", [n]);
          await tx.query("update slot set place = 3 - place");
        }
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(5).map((n) => ({ n })),
    );
    const tick = workTick(await invoke(claimer));
    const failed = "retried:PGCLAIM_TURN_FAILED";
    expect(results(tick)).toEqual(["done", failed, "done", failed, "done"]);
    expect(await world.rows("select n from child order by n")).toEqual([{ n: 1 }, { n: 3 }, { n: 5 }]);
    expect(await world.value("select last_error from pgclaim.job order by id limit 1")).toMatch(
      /23503.*child_parent_fkey/s,
    );
  });

  it("hides SET, SET LOCAL, SET ROLE and search_path of one handler from the next and from the tick after it", async () => {
    const world = await setup();
    await world.sql.query("create table seen (n integer, what jsonb)");
    await world.sql.query("do $$ begin create role pgclaim_tenant; exception when duplicate_object then null; end $$");
    await world.sql.query("grant pgclaim_tenant to current_user; grant all on seen to public");
    const job = defineJob({
      kind: "tenant",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await tx.query(
          `insert into public.seen select $1, jsonb_build_object(
             'local', nullif(current_setting('app.local', true), ''), 'plain', nullif(current_setting('app.plain', true), ''),
             'role', current_user = session_user, 'path', current_setting('search_path'), 'zone', current_setting('timezone'))`,
          [n],
        );
        await tx.query("set local app.local = 'mine'");
        await tx.query("set app.plain = 'mine'");
        await tx.query("select set_config('timezone', 'Pacific/Auckland', false)");
        await tx.query("set search_path = pg_temp");
        await tx.query("set role pgclaim_tenant");
        if (n === 2) throw new Error("undone, and unseen as well");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], batch: 3 });
    await claimer.enqueueMany(
      job,
      upTo(6).map((n) => ({ n })),
    );
    expect((await invoke(claimer)).done).toBe(5);
    const seen = await world.rows<{ what: unknown }>("select what from seen order by n");
    expect(seen).toHaveLength(5);
    const [first] = seen;
    expect(first?.what).toMatchObject({ local: null, plain: null, role: true });
    for (const { what } of seen) expect(what).toEqual(first?.what);
  });

  it.each(["done", "throws"])(
    "leaves nothing of a handler that %s in the session: no LISTEN, statement, table or lock",
    async (how) => {
      const world = await setup();
      const found: Record<string, unknown>[] = [];
      const look = `select (select count(*) from pg_prepared_statements)::integer as statements,
      (select count(*) from pg_listening_channels())::integer as channels,
      (select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
       where n.oid = pg_my_temp_schema() and c.relkind = 'r')::integer as tables,
      (select count(*) from pg_locks l where l.pid = pg_backend_pid() and l.locktype = 'advisory' and l.objsubid = 1
       and ((l.classid::bigint << 32) | l.objid::bigint) = 4711)::integer as locks`;
      const job = defineJob({
        kind: "a",
        payload: numbered,
        async run({ payload, tx }) {
          if (payload.n === 2) {
            found.push(...(await tx.query(look)).rows);
            return;
          }
          await tx.query("prepare mine as select 1");
          await tx.query("listen mine");
          await tx.query("create temp table mine (n integer)");
          await tx.query("select pg_advisory_lock(4711)");
          found.push(...(await tx.query(look)).rows);
          if (how === "throws") throw new Error("no");
        },
      });
      const claimer = world.claimer(transport, { jobs: [job], concurrency: 1 });
      await claimer.enqueueMany(job, [{ n: 1 }, { n: 2 }]);
      await invoke(claimer);
      expect(found).toEqual([
        // LISTEN begins with the COMMIT.
        { statements: 1, channels: 0, tables: 1, locks: 1 },
        { statements: 0, channels: 0, tables: 0, locks: 0 },
      ]);
    },
  );

  it("refuses transaction control in every disguise, and commits nothing of the handler that tried", async () => {
    const disguises = [
      "commit",
      "COMMIT",
      "  \n\t commit work",
      "; ; commit",
      "-- a comment\ncommit",
      "-- a comment\r commit",
      "/* a comment */ commit",
      "/* a /* nested */ comment */ commit",
      "/**/;/**/-- x\n/* /* */ */ end",
      "begin",
      "start transaction",
      "start  \n transaction",
      "start/* */transaction",
      "start -- x\n transaction",
      "rollback",
      "rollback to savepoint pgclaim_turn",
      "abort",
      "savepoint mine",
      "release savepoint pgclaim_turn",
      "release pgclaim_turn",
      "prepare transaction 'x'",
      "prepare/**/transaction 'x'",
      "commit prepared 'x'",
      "rollback prepared 'x'",
      "set transaction read only",
      "set /* */ transaction read only",
      "set local transaction read only",
      "set session characteristics as transaction read only",
      "commit and chain",
      "end transaction",
    ];
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "control",
      payload: numbered,
      retry: { maxAttempts: 1 },
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        await tx.query(disguises[n - 1] ?? "select 1");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], batch: 100 });
    await claimer.enqueueMany(
      job,
      upTo(disguises.length + 1).map((n) => ({ n })),
    );
    const tick = workTick(await invoke(claimer));
    expect(tick.fate).toBe("committed");
    const bad = tick.jobs.flatMap(({ result, code }, i) =>
      result === "dead" && code === "PGCLAIM_TX_CONTROL" ? [] : [`${disguises[i]} -> ${result} ${code}`],
    );
    expect(bad).toEqual(["undefined -> done undefined"]);
    await expectWhole(world, { effects: [disguises.length + 1], dead: disguises.length });
  });

  it("refuses several statements in one text, even without parameters", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "several",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        if (n === 1) await tx.query("select 1; commit");
        if (n === 2) await tx.query("insert into effect values (99); rollback; begin", []);
        // One statement with a semicolon behind it is one statement.
        if (n === 3) await tx.query("select ';commit' as text /* ; commit */ ;");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const threw = "retried:PGCLAIM_HANDLER_THREW";
    expect(results(workTick(await invoke(claimer)))).toEqual([threw, threw, "done"]);
    expect(await effects(world)).toEqual([3]);
    expect(await world.value("select last_error from pgclaim.job order by id limit 1")).toMatch(/multiple commands/);
  });

  it("fails alone the handler that makes the transaction read only", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "read_only",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        if (n === 1) await tx.query("select set_config('transaction_read_only', 'on', true)");
        if (n === 2) await tx.query("set local transaction_read_only = on");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const failed = "retried:PGCLAIM_TURN_FAILED";
    expect(results(workTick(await invoke(claimer)))).toEqual([failed, failed, "done"]);
    expect(await effects(world)).toEqual([3]);
  });

  it("ends tx with the handler: a query after it is refused and touches nothing", async () => {
    const world = await setup();
    await effectTable(world);
    const late = gate<unknown>();
    const job = defineJob({
      kind: "late",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        if (n === 1) setImmediate(() => effect(tx, 99).then(late.open, late.open));
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    expect((await invoke(claimer)).done).toBe(3);
    expect(await late.promise).toMatchObject({ code: "PGCLAIM_TX_CLOSED" });
    expect(await effects(world)).toEqual([1, 2, 3]);
  });

  it("fails a handler that ends while its query still waits for the turn, and runs the others", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "hasty",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        if (n === 1) void effect(tx, n);
        else await effect(tx, n);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    expect(results(workTick(await invoke(claimer)))).toEqual(["retried:PGCLAIM_TX_CLOSED", "done", "done"]);
    expect(await effects(world)).toEqual([2, 3]);
  });

  it("judges a query the handler sent and did not wait for with its turn", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "unawaited",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        if (n === 1) void tx.query("select 1 / 0");
        if (n === 2) void effect(tx, 20);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    expect(results(workTick(await invoke(claimer)))).toEqual(["retried:PGCLAIM_TURN_FAILED", "done", "done"]);
    expect(await effects(world)).toEqual([2, 3, 20]);
  });

  it("runs parallel queries of one handler in order, in its own turn", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "parallel",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        const answers = await Promise.all(
          upTo(10).map((i) => tx.query<{ i: number }>("insert into effect values ($1) returning n as i", [10 * n + i])),
        );
        expect(answers.map(({ rows: [row] }) => row?.i)).toEqual(upTo(10).map((i) => 10 * n + i));
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const report = await invoke(claimer);
    expect(report.done).toBe(3);
    expect(workTick(report).handlerQueries).toBe(30);
    expect(await effects(world)).toEqual(upTo(30).map((i) => 10 + i));
  });

  it.each([
    ["too few parameters", (cause: Cause) => cause.query("select $1::int + $2::int", [1])],
    ["a parameter that contains itself", (cause: Cause) => cause.query("select $1::jsonb", [cause.circle])],
    ["a bigint inside an object", (cause: Cause) => cause.query("select $1::jsonb", [{ a: 1n }])],
    ["a parameter whose toJSON throws", (cause: Cause) => cause.query("select $1::jsonb", [[{ toJSON: cause.fail }]])],
    ["values that are no array", (cause: Cause) => cause.query("select 1", 5 as unknown as unknown[])],
    ["a text that is no text", (cause: Cause) => cause.query({ text: "select 1" } as unknown as string)],
    ["no text at all", (cause: Cause) => cause.query("", [])],
    [
      "an error of class 08 that the session survives",
      (cause: Cause) => cause.query("do $$ begin raise sqlstate '08006'; end $$"),
    ],
    [
      "an error of class 57 that the session survives",
      (cause: Cause) => cause.query("do $$ begin raise sqlstate '57P01'; end $$"),
    ],
    [
      "a row trigger's own idle-limit code",
      (cause: Cause) => cause.query("do $$ begin raise sqlstate '25P03'; end $$"),
    ],
  ])("keeps the session when a query fails for %s", async (what, query) => {
    const world = await setup();
    await effectTable(world);
    const circle: Record<string, unknown> = {};
    circle.self = circle;
    const job = defineJob({
      kind: "wrong",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        if (n !== 2) return;
        await query({
          query: (text, values) => tx.query(text, values),
          circle,
          fail: () => {
            throw new Error("toJSON threw");
          },
        });
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const tick = workTick(await invoke(claimer));
    expect(tick.fate).toBe("committed");
    const empty = what === "no text at all";
    const code = what === "a text that is no text" ? "PGCLAIM_TX_CONTROL" : "PGCLAIM_HANDLER_THREW";
    expect(results(tick)).toEqual(["done", empty ? "done" : `retried:${code}`, "done"]);
    expect(await effects(world)).toEqual(empty ? [1, 2, 3] : [1, 3]);
  });

  it("takes the parameters pg takes: arrays, objects, dates, bytes, bigint, null", async () => {
    const world = await setup();
    const answer = gate<unknown>();
    const at = new Date("2026-03-04T05:06:07.008Z");
    const job = defineJob({
      kind: "parameters",
      payload: numbered,
      async run({ tx }) {
        const { rows } = await tx.query(
          `select $1::int[] as ints, $2::jsonb as object, $3::timestamptz as at, $4::bytea as bytes, $5::bigint as big,
             $6::text as nothing, $7::text[] as texts, $8::jsonb[] as objects, $9::boolean as yes, $10::bytea[] as many`,
          [
            [1, 2, null],
            { a: ["x"] },
            at,
            Buffer.from([0, 255]),
            9_007_199_254_740_993n,
            undefined,
            ['a"b', "c\\d"],
            [{ b: 1 }],
            true,
            [Buffer.from([1])],
          ],
        );
        answer.open(rows[0]);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueue(job, { n: 1 });
    expect((await invoke(claimer)).done).toBe(1);
    expect(await answer.promise).toMatchObject({
      ints: [1, 2, null],
      object: { a: ["x"] },
      at,
      big: "9007199254740993",
      nothing: null,
      texts: ['a"b', "c\\d"],
      objects: [{ b: 1 }],
      yes: true,
    });
    expect(Buffer.from(((await answer.promise) as { bytes: Uint8Array }).bytes).toString("hex")).toBe("00ff");
  });
});

interface Cause {
  query(text: string, values?: readonly unknown[]): Promise<unknown>;
  readonly circle: object;
  readonly fail: () => never;
}

describe.each(transports)("enqueue in a handler over %s", (transport) => {
  it.each(["with tx", "without tx"])("commits with the handler's completion or not at all, %s", async (how) => {
    const world = await setup();
    await effectTable(world);
    const child = defineJob({ kind: "child", payload: numbered, async run() {} });
    const job = defineJob({
      kind: "parent",
      payload: numbered,
      async run({ payload: { n }, tx, enqueue }) {
        if (how === "with tx") await effect(tx, n);
        expect(await enqueue(child, { n }, { delay: "1h" })).toEqual({ type: "deferred" });
        if (n === 2) throw new Error("no child of mine");
        return n === 3 ? snooze("1h") : done();
      },
    });
    const claimer = world.claimer(transport, { jobs: [job, child] });
    await claimer.enqueueMany(
      job,
      upTo(4).map((n) => ({ n })),
    );
    expect(results(workTick(await invoke(claimer)))).toEqual([
      "done",
      "retried:PGCLAIM_HANDLER_THREW",
      "snoozed",
      "done",
    ]);
    expect(
      await world.rows("select payload ->> 'n' as n, state from pgclaim.job where kind = 'child' order by id"),
    ).toEqual(["1", "3", "4"].map((n) => ({ n, state: "scheduled" })));
  });

  it.each(["with tx", "without tx"])("fails the handler alone whose job is over the limit, %s", async (how) => {
    const world = await setup();
    await effectTable(world);
    const child = defineJob({ kind: "child", payload: z.object({ text: z.string() }), async run() {} });
    const job = defineJob({
      kind: "parent",
      payload: numbered,
      async run({ payload: { n }, tx, enqueue }) {
        if (how === "with tx") await effect(tx, n);
        await enqueue(child, { text: "x" }, { delay: "1h" });
        if (n === 2) await enqueue(child, { text: "x".repeat(1_048_577) }, { delay: "1h" });
      },
    });
    const claimer = world.claimer(transport, { jobs: [job, child] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const tick = workTick(await invoke(claimer));
    expect(tick.fate).toBe("committed");
    expect(results(tick)).toEqual(["done", "retried:PGCLAIM_TURN_FAILED", "done"]);
    expect(await effects(world)).toEqual(how === "with tx" ? [1, 3] : []);
    expect(await world.value("select count(*)::integer from pgclaim.job where kind = 'child'")).toBe(2);
  });

  it("waits for an enqueue the handler did not wait for, and fails the handler when it is refused", async () => {
    const world = await setup();
    const child = defineJob({ kind: "child", payload: numbered, async run() {} });
    const job = defineJob({
      kind: "parent",
      payload: numbered,
      run({ payload: { n }, enqueue }) {
        void enqueue(child, { n: n === 2 ? Number.NaN : n }, { delay: "1h" });
      },
    });
    const claimer = world.claimer(transport, { jobs: [job, child] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    expect(results(workTick(await invoke(claimer)))).toEqual(["done", "retried:PGCLAIM_INVALID_PAYLOAD", "done"]);
    expect(await world.rows("select payload ->> 'n' as n from pgclaim.job where kind = 'child' order by id")).toEqual([
      { n: "1" },
      { n: "3" },
    ]);
  });

  it("lets a handler catch a refusal and go on", async () => {
    const world = await setup();
    const child = defineJob({ kind: "child", payload: numbered, async run() {} });
    const refused = gate<unknown>();
    const job = defineJob({
      kind: "parent",
      payload: numbered,
      async run({ enqueue }) {
        await enqueue(child, { n: Number.NaN }).catch(refused.open);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job, child] });
    await claimer.enqueue(job, { n: 1 });
    expect((await invoke(claimer)).done).toBe(1);
    expect(await refused.promise).toMatchObject({ code: "PGCLAIM_INVALID_PAYLOAD", path: "payload.n" });
  });

  it("refuses to enqueue after the handler has ended", async () => {
    const world = await setup();
    const child = defineJob({ kind: "child", payload: numbered, async run() {} });
    const late = gate<unknown>();
    const job = defineJob({
      kind: "parent",
      payload: numbered,
      async run({ enqueue }) {
        setImmediate(() => enqueue(child, { n: 1 }).then(late.open, late.open));
      },
    });
    const claimer = world.claimer(transport, { jobs: [job, child] });
    await claimer.enqueue(job, { n: 1 });
    await invoke(claimer);
    expect(await late.promise).toMatchObject({ code: "PGCLAIM_TX_CLOSED" });
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(0);
  });
});

describe.each(transports)("a handler's end over %s", (transport) => {
  it.each([
    ["undefined", undefined],
    ["null", null],
    ["a string with a NUL", "bad \0 thing"],
    ["half a surrogate pair", new Error("half \ud800 pair")],
    ["an object without a prototype", Object.create(null)],
    [
      "an error whose stack throws",
      Object.defineProperty(new Error("x"), "stack", {
        get: () => {
          throw new Error("stack");
        },
      }),
    ],
    ["an error whose message is a symbol", Object.assign(new Error("x"), { stack: undefined, message: Symbol("m") })],
    ["an error of a megabyte", new Error("x".repeat(1_000_000))],
    [
      "a proxy that throws at every touch",
      new Proxy(
        {},
        {
          get: () => {
            throw new Error("proxy");
          },
          getPrototypeOf: () => {
            throw new Error("proxy");
          },
        },
      ),
    ],
  ])("records a failure that threw %s", async (_what, thrown) => {
    const world = await setup();
    const job = defineJob({
      kind: "thrower",
      payload: numbered,
      timeout: "5s",
      run({ payload: { n } }) {
        if (n === 1) throw thrown;
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(2).map((n) => ({ n })),
    );
    const tick = workTick(await invoke(claimer));
    expect(results(tick)).toEqual(["retried:PGCLAIM_HANDLER_THREW", "done"]);
    expect(tick.runMs).toBeLessThan(3_000);
    expect(await world.value("select length(last_error) between 1 and 20000 from pgclaim.job")).toBe(true);
  });

  it("fails alone the handler that snoozes to an instant Postgres cannot hold", async () => {
    const world = await setup();
    const job = defineJob({
      kind: "far",
      payload: numbered,
      run({ payload: { n } }) {
        if (n === 1) return snooze(new Date(8.64e15));
        if (n === 2) return snooze(new Date(-8.64e15));
        return done();
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const tick = workTick(await invoke(claimer));
    expect(tick.fate).toBe("committed");
    expect(tick).toMatchObject({ retried: 2, done: 1 });
  });
});
