// Injection through every string that a program hands in: what handlers throw and answer, what they enqueue and query with,
// what triggers are called, names of kinds, queues and schedules, time zones, keys and lock names, identifiers of the
// database itself. On both transports, since merged messages carry literals. A canary beside it must be untouched.

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import * as z from "zod";
import {
  createClaimer,
  deadLetter,
  defineJob,
  defineSchedule,
  PgclaimError,
  retryIn,
  snooze,
} from "../../src/index.ts";
import { storableText as asStored } from "../../src/storable.ts";
import { invoke } from "../support/engine.ts";
import { setup, transports } from "../support/world.ts";
import { canary, hostileText, runsOf, storableText, timeFor, tryOut } from "./support.ts";

const acts = ["throw", "throw text", "stack", "dead", "retry", "weird", "query", "enqueue", "enqueue with tx"] as const;

interface Act {
  readonly how: (typeof acts)[number];
  readonly text: string;
}

const act: fc.Arbitrary<Act> = fc.record({ how: fc.constantFrom(...acts), text: hostileText });

/** What is thrown by code that nobody reviewed. */
function weird(text: string): unknown {
  const things: readonly (() => unknown)[] = [
    () => null,
    () => undefined,
    () => Symbol(text),
    () => ({ message: { nested: text } }),
    () => Object.freeze(Object.assign(new Error(text), { code: text, name: text })),
    () => Object.assign(new Error(text), { message: undefined, stack: 7 }),
    () =>
      new Proxy(
        {},
        {
          get: () => {
            throw new Error(text);
          },
        },
      ),
    () =>
      Object.defineProperty(new Error("x"), "message", {
        get: () => {
          throw new Error(text);
        },
      }),
    () =>
      Object.defineProperty(new Error("x"), "stack", {
        get: () => {
          throw new Error(text);
        },
      }),
    () => new AggregateError([new Error(text)], text, { cause: text }),
  ];
  return things[text.length % things.length]?.();
}

describe.each(transports)("a tick over %s", (transport) => {
  it(
    "stores whatever its handlers throw, answer, enqueue and ask, and reads none of it as SQL",
    async () => {
      const world = await setup();
      await world.sql.query("create table public.said (job text primary key, text text)");
      const { untouched } = await canary(world);
      let playing: readonly Act[] = [];
      const got: string[] = [];
      const child = defineJob({
        kind: "child",
        payload: z.object({ text: z.string() }),
        uniqueKey: "{text}",
        locks: ["name:{text}"],
        async run({ payload }) {
          got.push(payload.text);
        },
      });
      const parent = defineJob({
        kind: "parent",
        payload: z.object({ i: z.number() }),
        retry: { maxAttempts: 1 },
      }).handle(async ({ payload: { i }, tx, job, enqueue }) => {
        const { how, text } = playing[i] ?? { how: "throw", text: "no act" };
        switch (how) {
          case "throw":
            throw new Error(text);
          case "throw text":
            throw text;
          case "stack":
            throw Object.assign(new Error("x"), { stack: text });
          case "weird":
            throw weird(text);
          case "dead":
            return deadLetter(text === "" ? "x" : text);
          case "retry":
            return retryIn("1h");
          case "enqueue with tx":
            await tx.query("select 1");
            await enqueue(child, { text });
            return;
          case "enqueue":
            await enqueue(child, { text });
            return;
          case "query": {
            const { rows } = await tx.query<{ same: string }>("select $1::text as same", [asStored(text)]);
            await tx.query("insert into public.said values ($1, $2)", [job.id, rows[0]?.same]);
            return;
          }
        }
      });
      const claimer = world.claimer(transport, { jobs: [parent, child], batch: 50, concurrency: 10 });
      await claimer.register();
      let tried = 0;
      const input = fc.tuple(fc.array(act, { minLength: 25, maxLength: 25 }), storableText);
      await tryOut({ usual: 4, counted: () => tried }, input, async ([list, triggerName]) => {
        await world.sql.query(
          "delete from public.said; delete from pgclaim.job; delete from pgclaim.history; delete from pgclaim.unique_key",
        );
        playing = list;
        got.length = 0;
        tried += list.length;
        const ids = (
          await claimer.enqueueMany(
            parent,
            list.map((_, i) => ({ i })),
          )
        ).map(({ id }) => id);
        const report = await claimer.invoke({ type: "cron", cron: triggerName, scheduledAt: null });
        expect(report.error).toBeUndefined();
        expect(report.ticks.map(({ error }) => error).filter((error) => error !== undefined)).toEqual([]);
        const wanted: string[] = [];
        for (const [i, { how, text }] of list.entries()) {
          const id = ids[i];
          const [dead] = await world.rows<{ last_error: string; state: string }>(
            "select last_error, state from pgclaim.job where id = $1",
            [id],
          );
          const tellable = !text.includes("\0") && text.isWellFormed();
          if (how === "query") {
            expect(await world.rows("select text from public.said where job = $1", [id])).toEqual([
              { text: asStored(text) },
            ]);
          } else if (how.startsWith("enqueue") && tellable && Buffer.byteLength(text) < 160) {
            expect(dead, `${how} ${JSON.stringify(text)}`).toBeUndefined();
            wanted.push(text);
          } else if (how === "throw" || how === "throw text" || how === "stack" || how === "dead") {
            expect(dead?.state).toBe("dead");
            if (text !== "") expect(dead?.last_error).toContain(asStored(text).slice(0, 500));
          } else if (how === "weird") {
            expect(dead).toMatchObject({
              state: "dead",
              last_error: expect.stringMatching(/^PGCLAIM_HANDLER_THREW: /),
            });
          }
        }
        // Those of long texts may or may not fit a key; the others all came, each once.
        expect(got.filter((text) => Buffer.byteLength(text) < 160).sort()).toEqual([...new Set(wanted)].sort());
        expect(await world.value("select count(*)::integer from pgclaim.attempt where outcome is null")).toBe(0);
        expect(await world.locks()).toBe(0);
      });
      await untouched();
    },
    timeFor(600),
  );
});

describe("an answer", () => {
  it.each([
    ["past the year 9999", new Date(Date.UTC(10_000, 0))],
    ["at the end of JavaScript's time", new Date(8.64e15)],
    ["before the year 1", new Date(-8.64e15)],
  ])("that snoozes until an instant %s fails its own job and nobody else's", async (_, until) => {
    const world = await setup();
    const sleepy = defineJob({ kind: "sleepy", payload: z.unknown(), retry: { maxAttempts: 1 } }).handle(() =>
      snooze(until),
    );
    const innocent = defineJob({ kind: "innocent", payload: z.unknown(), async run() {} });
    const claimer = world.claimer("pg", { jobs: [sleepy, innocent] });
    await claimer.enqueue(sleepy, 1);
    await claimer.enqueue(innocent, 1);
    expect(await invoke(claimer)).toMatchObject({ claimed: 2, done: 1, dead: 1 });
  });
});

describe("names", () => {
  it(
    "are refused where they are defined, or come back as they were",
    async () => {
      const world = await setup();
      const { untouched } = await canary(world);
      const plain = defineJob({ kind: "plain", payload: z.unknown(), async run() {} });
      let taken = 0;
      let tried = 0;
      const input = fc.tuple(
        fc.constantFrom("kind", "queue", "schedule", "timeZone", "cron", "orderingKey", "lock", "limit", "unique"),
        storableText,
      );
      await tryOut({ usual: 80, counted: () => tried }, input, async ([what, text]) => {
        tried++;
        // A digest seen before changes nothing, and two inputs may be alike.
        await world.sql.query(
          "delete from pgclaim.revision; delete from pgclaim.kind; delete from pgclaim.schedule; delete from pgclaim.job",
        );
        try {
          const own =
            what === "kind" || what === "queue" || what === "schedule" || what === "timeZone" || what === "cron"
              ? {}
              : {
                  ...(what === "orderingKey" ? { orderingKey: text } : {}),
                  ...(what === "lock" ? { locks: [text] } : {}),
                  ...(what === "limit" ? { limits: [{ name: text, max: 1 }] } : {}),
                  ...(what === "unique" ? { uniqueKey: text } : {}),
                };
          // A template of any text: what its type refuses, its check at run time must refuse as well.
          const job = defineJob({
            kind: what === "kind" ? text : "own",
            queue: what === "queue" ? text : "default",
            payload: z.object({ k: z.string() }),
            async run() {},
            ...own,
          } as Parameters<typeof defineJob>[0]);
          const schedules = ["schedule", "timeZone", "cron"].includes(what)
            ? [
                defineSchedule({
                  name: what === "schedule" ? text : "own",
                  cron: what === "cron" ? text : "0 0 1 1 *",
                  timeZone: what === "timeZone" ? text : "UTC",
                  job: plain,
                  payload: {},
                }),
              ]
            : [];
          const claimer = createClaimer({
            jobs: [plain, job],
            schedules,
            database: world.database("pg"),
            log: () => {},
          });
          await claimer.register();
          const [kept] = await world.rows<Record<string, unknown>>(
            `select name as kind, queue, ordering_key as "orderingKey", locks[1] as lock, limit_names[1] as limit, unique_key as unique
             from pgclaim.kind where name = $1`,
            [what === "kind" ? text : "own"],
          );
          const [planned] = await world.rows<Record<string, unknown>>(
            'select name as schedule, time_zone as "timeZone", cron from pgclaim.schedule',
          );
          expect({ ...kept, ...planned }[what]).toBe(text);
          const answer = await claimer.enqueueByKind([
            { kind: what === "kind" ? text : "own", payload: { k: "'; drop table public.canary; --" } },
          ]);
          expect(answer).toHaveLength(1);
          taken++;
        } catch (error) {
          if (!(error instanceof PgclaimError) || error.family !== "usage") throw error;
        }
      });
      console.log(`  of them taken: ${taken}`);
      expect(taken).toBeGreaterThan(runsOf(80) / 40);
      await untouched();
    },
    timeFor(300),
  );

  it("of roles, schemas and constraints are quoted where they become SQL", async () => {
    const world = await setup();
    const { untouched } = await canary(world);
    const odd = `x"; drop table public.canary; --'$$\\`;
    const quoted = `"${odd.replaceAll('"', '""')}"`;
    await world.sql.query(`create role ${quoted}; create schema ${quoted}`);
    await world.sql.query(
      `create table ${quoted}.a (id integer primary key); create table ${quoted}.b (a integer, constraint ${quoted} foreign key (a) references ${quoted}.a deferrable initially deferred)`,
    );
    for (const scope of ["enqueue", "run", "operate"])
      await world.sql.query("select pgclaim.grant_v1($1, $2)", [scope, odd]);
    const writes = defineJob({
      kind: "writes",
      payload: z.object({ a: z.number() }),
      retry: { maxAttempts: 1 },
      async run({ payload, tx }) {
        await tx.query(`insert into ${quoted}.b values ($1)`, [payload.a]);
      },
    });
    await world.sql.query(`insert into ${quoted}.a values (1)`);
    const claimer = world.claimer("pg", { jobs: [writes] });
    await claimer.enqueueMany(writes, [{ a: 1 }, { a: 2 }]);
    expect(await invoke(claimer)).toMatchObject({ done: 1, dead: 1 });
    await world.sql.query(`drop owned by ${quoted}; drop schema ${quoted} cascade; drop role ${quoted}`);
    await untouched();
  });
});

describe.each(transports)("a database whose settings change what a literal is, over %s", (transport) => {
  it("reads no string as SQL", async () => {
    const world = await setup();
    const { untouched } = await canary(world);
    const name = await world.value<string>("select current_database()");
    await world.sql.query(`
      alter database ${name} set standard_conforming_strings = off;
      alter database ${name} set backslash_quote = on;
      alter database ${name} set escape_string_warning = on;
      alter database ${name} set client_encoding = 'SJIS';
      alter database ${name} set bytea_output = 'escape';
      alter database ${name} set datestyle = 'SQL, DMY';
      alter database ${name} set intervalstyle = 'sql_standard';
      alter database ${name} set timezone = 'Asia/Kathmandu'`);
    const texts = [
      "\\'; drop table public.canary; --",
      "\u8868'; drop table public.canary; --",
      "\\",
      "\\\\'",
      "\u00a5",
      "\u{20000}'",
    ];
    const job = defineJob({
      kind: "a",
      payload: z.object({ text: z.string() }),
      retry: { maxAttempts: 1 },
      uniqueKey: "{text}",
      async run({ payload, job: { runAt } }) {
        if (Math.abs(Date.now() - runAt.getTime()) > 60_000) throw new Error(`read as ${runAt.toISOString()}`);
        throw new Error(payload.text);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      texts.map((text) => ({ text })),
    );
    expect(await claimer.invoke({ type: "cron", cron: texts.join(), scheduledAt: null })).toMatchObject({
      dead: texts.length,
    });
    const rows = await world.rows<{ text: string; last_error: string }>(
      "select payload ->> 'text' as text, last_error from pgclaim.job order by id",
    );
    expect(rows.map(({ text }) => text)).toEqual(texts);
    for (const { text, last_error } of rows) expect(last_error).toContain(text);
    await untouched();
  });
});
