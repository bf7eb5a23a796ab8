// The functions of the engine under arbitrary jsonb, as the role that runs. That role is the Worker's and is trusted with
// pgclaim's tables, so a request that is none may fail in Postgres's words. But it must fail clearly: no internal error, no
// server that ends, nothing read as SQL, no endless wait, and nothing outside the schema.

import fc from "fast-check";
import { expect, it } from "vitest";
import { install } from "../postgres/sql/support.ts";
import { roleOf } from "../support/roles.ts";
import { ask, canary, edgeNumber, forget, hostileText, jsonOf, storableText, timeFor, tryOut } from "./support.ts";

const functions = [
  "register_v1",
  "wake_v1",
  "claim_v1",
  "fence_v1",
  "end_turn_v1",
  "finish_v1",
  "settle_v1",
  "cancel_query_v1",
  "reserve_v1",
  "cancelled_v1",
  "fire_v1",
  "enqueue_v1",
] as const;

const jobWanted: readonly string[] = ["claim_v1", "fence_v1", "finish_v1", "settle_v1"];

/**
 * What a request that is none may be answered. PC0: our own. 22: a value that cannot be read as what it should be. 23: a
 * value that a constraint of our tables refuses (null, a range, a key that is there). 53: what one transaction may have of
 * the server is used up. P0002: settle's tick has no row. Not among them: XX (internal), 42 (text read as SQL, or a right
 * that is missing), 57 (a query without an end), 40, 55, 58.
 */
const fair = /^(PC0|22|23|53|54)|^P0002$/;

const tick = "00000000-0000-4000-8000-000000000001";

const id = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom<unknown>(1, 2, 3, "1", "2") },
  fc.constantFrom<unknown>(0, -1, "9223372036854775807", "9223372036854775808", null, "x", 1.5, [], {}),
);
const count = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom<unknown>(0, 1, 5, 100, 2_000) },
  fc.constantFrom<unknown>(-1, 2_147_483_647, 2_147_483_648, null, "5", "x", 1.5, true),
);
const name = fc.oneof(
  { weight: 3, arbitrary: fc.constantFrom<unknown>("a", "b", "default") },
  storableText,
  jsonOf(storableText, 1),
);
const names = fc.oneof(
  { weight: 4, arbitrary: fc.array(name, { maxLength: 3 }) as fc.Arbitrary<unknown> },
  jsonOf(storableText, 2),
);
const instant = fc.oneof(
  fc.constantFrom<unknown>(
    "2026-11-30T14:00:00Z",
    "infinity",
    "-infinity",
    "4714-11-24 BC",
    "294276-12-31",
    null,
    "now",
    7,
  ),
  storableText,
);
const flag = fc.oneof({ weight: 3, arbitrary: fc.boolean() as fc.Arbitrary<unknown> }, jsonOf(storableText, 1));
const tickId = fc.oneof(
  { weight: 5, arbitrary: fc.constant<unknown>(tick) },
  fc.constantFrom<unknown>(null, "", "x", 1, "{00000000-0000-4000-8000-000000000002}"),
  storableText,
);

const enqueue = fc.array(
  fc.record({ kind: name, payload: jsonOf(storableText, 2), runAt: instant }, { requiredKeys: ["kind"] }),
  {
    maxLength: 2,
  },
);
const job = fc.record(
  {
    id,
    n: count,
    outcome: fc.oneof(
      {
        weight: 4,
        arbitrary: fc.constantFrom<unknown>("done", "failed", "dead", "snoozed", "released", "cancelled", "missed"),
      },
      storableText,
    ),
    error: storableText,
    inMs: fc.oneof(count, edgeNumber),
    at: instant,
    enqueue,
  },
  { requiredKeys: ["id", "n"] },
);
const kind = fc.record(
  {
    name,
    queue: name,
    priority: count,
    targetLatencyMs: count,
    timeoutMs: count,
    maxAttempts: count,
    maxCrashes: count,
    backoff: fc.constantFrom("exponential", "fixed", "custom", "none"),
    minBackoffMs: count,
    maxBackoffMs: count,
    alone: flag,
    orderingKey: storableText,
    uniqueKey: storableText,
    locks: names,
    limitNames: names,
    limitMaxes: fc.array(count, { maxLength: 3 }),
    onConflict: fc.constantFrom("keep", "replace", "x"),
  },
  { requiredKeys: ["name"] },
);
const schedule = fc.record(
  {
    name,
    cron: storableText,
    timeZone: storableText,
    kind: name,
    payload: jsonOf(storableText, 2),
    catchUp: fc.constantFrom("all", "last", "none", "x"),
    definition: storableText,
    nextAt: instant,
    newNextAt: instant,
    occurrences: fc.array(instant, { maxLength: 2 }) as fc.Arbitrary<unknown>,
  },
  { requiredKeys: ["name"] },
);

/** Every field that any of them reads, and whatever may stand in it. */
const request: fc.Arbitrary<unknown> = fc.oneof(
  {
    weight: 9,
    arbitrary: fc.record(
      {
        tick: tickId,
        jobs: fc.oneof(
          { weight: 6, arbitrary: fc.array(job, { maxLength: 3 }) as fc.Arbitrary<unknown> },
          fc.array(id, { maxLength: 3 }),
          jsonOf(storableText, 2),
        ),
        invocation: name,
        report: jsonOf(storableText, 2),
        digest: storableText,
        kinds: fc.oneof(
          { weight: 2, arbitrary: fc.array(kind, { maxLength: 2 }) as fc.Arbitrary<unknown> },
          { weight: 3, arbitrary: names },
        ),
        schedules: fc.oneof(fc.array(schedule, { maxLength: 2 }) as fc.Arbitrary<unknown>, names),
        queues: names,
        queueMax: fc.oneof(
          fc.dictionary(storableText, count, { maxKeys: 2 }) as fc.Arbitrary<unknown>,
          jsonOf(storableText, 1),
        ),
        unfit: names,
        revision: count,
        batch: count,
        quarantined: flag,
        tickSlots: fc.oneof(count, fc.constant(null)),
        maxCandidates: count,
        maxSkips: count,
        maxBytes: count,
        reserveMs: count,
        reapSlice: count,
        dueSlice: count,
        gateSlice: count,
        cancelSlice: count,
        pruneSlice: count,
        historyMs: count,
        mark: flag,
        turn: id,
        interruptedLimit: count,
        pid: count,
        kind: name,
        jobId: id,
        enqueue,
        strict: flag,
      },
      // Any of them may be missing, and most requests have most.
      {
        requiredKeys: [
          "tick",
          "invocation",
          "digest",
          "jobs",
          "batch",
          "revision",
          "maxCandidates",
          "maxSkips",
          "maxBytes",
          "reserveMs",
        ],
      },
    ),
  },
  {
    weight: 1,
    arbitrary: jsonOf(
      hostileText.map((text) => text.replaceAll("\0", "").toWellFormed()),
      3,
    ),
  },
);

it(
  "answer any request, or refuse it clearly, and touch nothing outside the schema",
  async () => {
    const world = await install();
    const { untouched } = await canary(world);
    const { client } = await roleOf(world, "run");
    await client.query("set statement_timeout = '5s'; set lock_timeout = '2s'");
    const backend = (await client.query<{ pid: number }>("select pg_catalog.pg_backend_pid() as pid")).rows[0]?.pid;
    const codes = new Map<string, number>();
    let calls = 0;
    const input = fc.tuple(fc.constantFrom(...functions), request, fc.boolean());
    await tryOut({ usual: 600, counted: () => calls }, input, async ([fn, value, claims]) => {
      calls++;
      await client.query(`begin isolation level read committed read write; set local pgclaim.tick = '${tick}'`);
      try {
        // Something to claim, fence, finish and settle, undone with the rest.
        if (claims && jobWanted.includes(fn)) {
          await client.query(`select pgclaim.enqueue('a', '{"n": 1}')`);
          await client.query(
            `select pgclaim.fence_v1(pg_catalog.jsonb_build_object('tick', $1::text, 'quarantined', false, 'jobs',
               (select pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('id', j.id, 'n', 1)) from pgclaim.job j)))`,
            [tick],
          );
        }
        const answer = await ask(client, `select pgclaim.${fn}($1)`, [JSON.stringify(value)]);
        const code = "fault" in answer ? answer.fault.code : "answered";
        codes.set(`${fn} ${code}`, (codes.get(`${fn} ${code}`) ?? 0) + 1);
        if ("fault" in answer) expect(code, `${fn}: ${answer.fault.message}\n${answer.fault.where}`).toMatch(fair);
      } finally {
        await client.query("rollback");
      }
    });
    // Requests that are all refused at the first field prove little. One of the twelve may be unlucky in a short run.
    const answered = functions.filter((fn) => codes.has(`${fn} answered`));
    expect(answered.length, answered.join()).toBeGreaterThanOrEqual(functions.length - 1);
    console.log(`  answers: ${JSON.stringify(Object.fromEntries([...codes].sort()))}`);
    expect((await client.query<{ pid: number }>("select pg_catalog.pg_backend_pid() as pid")).rows[0]?.pid).toBe(
      backend,
    );
    await untouched();
    await forget(world);
  },
  timeFor(600),
);
