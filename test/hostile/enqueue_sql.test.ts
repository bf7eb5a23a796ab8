// A role that may enqueue and nothing else, in psql, with bad intentions. Whatever it hands to the two functions: a refusal
// with a SQLSTATE of ours and nothing written, or a job that is stored exactly as it came. And whatever it got stored, the
// engine runs the innocent jobs beside it.

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import { effect, effectTable, invoke, numbered } from "../support/engine.ts";
import { type Role, roleOf } from "../support/roles.ts";
import { setup, type World } from "../support/world.ts";
import {
  ask,
  canary,
  edgeNumber,
  forget,
  hostileText,
  jsonOf,
  runsOf,
  type SqlFault,
  storableText,
  timeFor,
  tryOut,
} from "./support.ts";

/** Refusals of ours: an unknown kind; a payload, key, instant or argument that cannot be taken. */
const ours = ["PC002", "PC003"];

/**
 * What Postgres itself refuses before one of our functions is called: text that is no JSON (22P02) or has an escape that
 * is no character (22P05), a number with too large an exponent (22003), nesting beyond the server's stack (54001), a byte
 * that is no UTF-8 (22021), and an instant that it cannot read (22007, 22008, 22009, 22023).
 */
const parsers = ["22P02", "22P05", "22003", "54001", "22021", "22007", "22008", "22009", "22023"];

const anything = z.unknown();
const innocent = defineJob({
  kind: "innocent",
  payload: numbered,
  run: ({ payload: { n }, tx }) => effect(tx, n).then(() => {}),
});
const kinds = [
  innocent,
  defineJob({ kind: "plain", payload: anything, async run() {} }),
  defineJob({
    kind: "full",
    payload: z.object({ k: z.string(), l: z.string() }),
    orderingKey: "account:{k}",
    uniqueKey: "{k}:{l}",
    onConflict: "replace",
    locks: ["lock:{l}"],
    limits: [{ name: "{k}", max: 3 }],
    async run() {},
  }),
  defineJob({ kind: "late", payload: anything, deadline: "1h", whenMissed: "run", async run() {} }),
  defineJob({
    kind: "once",
    payload: z.object({ k: z.string() }),
    uniqueKey: "{k}",
    uniqueFor: "1h",
    onConflict: "reschedule",
    async run() {},
  }),
];

async function open(): Promise<{ readonly world: World; readonly role: Role; readonly total: () => Promise<number> }> {
  const world = await setup();
  await effectTable(world);
  await world.claimer("pg", { jobs: kinds }).register();
  const role = await roleOf(world, "enqueue");
  const total = () =>
    world.value<number>(
      "select (select count(*) from pgclaim.job)::integer + (select count(*) from pgclaim.unique_key)::integer",
    );
  return { world, role, total };
}

/** Fails unless the refusal is one that a caller may meet. */
function expectFair(fault: SqlFault): void {
  const inside = /pgclaim\./.test(fault.where);
  expect(inside ? ours : [...ours, ...parsers], `${fault.code} ${fault.message}\n${fault.where}`).toContain(fault.code);
}

/** Everything that is no JSON number as JavaScript has them, and yet one of Postgres's. */
const sqlNumber = fc.constantFrom(
  "1e400",
  "-1e400",
  "12345678901234567890",
  "0.1e-400",
  "1.0",
  "1e131071",
  "-0.0",
  "1.000",
);

/** JSON as text, so that what JavaScript cannot say can be said: huge numbers, duplicate keys, NUL, deep nesting. */
const jsonText: fc.Arbitrary<string> = fc.oneof(
  { weight: 6, arbitrary: jsonOf(hostileText).map((value) => JSON.stringify(value)) },
  { weight: 1, arbitrary: sqlNumber },
  { weight: 1, arbitrary: fc.nat(9_000).map((depth) => "[".repeat(depth) + "]".repeat(depth)) },
  { weight: 1, arbitrary: fc.nat(300).map((depth) => `${'{"a":'.repeat(depth)}1${"}".repeat(depth)}`) },
  {
    weight: 1,
    arbitrary: fc.tuple(sqlNumber, storableText).map(([n, text]) => `{"k":${n},"l":${JSON.stringify(text)},"k":"2"}`),
  },
  { weight: 1, arbitrary: fc.string() },
);

const instantText = fc.oneof(
  fc.constantFrom(
    "now",
    "infinity",
    "-infinity",
    "4714-11-24 00:00:00+00 BC",
    "0001-01-01 BC",
    "0000-01-01",
    "0001-01-01",
    "9999-12-31T23:59:59.999999Z",
    "10000-01-01",
    "294276-12-31 23:59:59+00",
    "294277-01-01",
    "2026-02-30",
    "2026-11-30T14:00:00Z",
    "1970-01-01",
    "epoch",
    "2026-11-30 25:00",
    "2026-11-30 00:00 Nowhere/Land",
    "allballs",
    "",
  ),
  fc.date({ noInvalidDate: true }).map((date) => date.toISOString()),
  storableText,
);
const plainInstant = fc.date({ min: new Date(0), max: new Date("2099-01-01"), noInvalidDate: true });
const mostlyInstant = fc.oneof(
  { weight: 4, arbitrary: plainInstant.map((date) => date.toISOString()) },
  { weight: 1, arbitrary: instantText },
);

/** A field of the wrong type now and then. */
const orAny = (usual: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.oneof({ weight: 15, arbitrary: usual.map((text) => JSON.stringify(text)) }, { weight: 1, arbitrary: jsonText });

const kindText = fc.oneof(
  { weight: 9, arbitrary: fc.constantFrom(...kinds.map(({ kind }) => kind)) },
  { weight: 1, arbitrary: hostileText },
);
const keyed = fc
  .record({ k: fc.oneof(storableText, edgeNumber, fc.boolean()), l: fc.oneof(storableText, edgeNumber) })
  .map((value) => JSON.stringify(value));
const payloadText = fc.oneof({ weight: 4, arbitrary: keyed }, { weight: 1, arbitrary: jsonText });

/** One job of a request, as the text of its fields; some left out, some doubled. */
const jobText: fc.Arbitrary<string> = fc
  .tuple(
    fc.subarray([
      "runAt",
      "delayMs",
      "deadlineAt",
      "priority",
      "queue",
      "revision",
      "id",
      "state",
      "suspect",
      "ordering_key",
    ]),
    orAny(kindText),
    payloadText,
    orAny(mostlyInstant),
    orAny(mostlyInstant),
    fc.oneof({ weight: 6, arbitrary: fc.nat(60_000).map(String) }, sqlNumber, edgeNumber.map(String), jsonText),
    fc.oneof(fc.constantFrom("0", "1", "3", "4", "-1", "1.0", '"1"', "null", "true"), jsonText),
    fc.nat(9).map((one) => one > 0),
  )
  .map(([fields, kind, payload, runAt, deadlineAt, delayMs, priority, whole]) => {
    const of: Record<string, string> = { runAt, deadlineAt, delayMs, priority };
    const parts = fields.map((name) => `"${name}": ${of[name] ?? '"x"'}`);
    return `{"kind": ${kind}${whole ? `, "payload": ${payload}` : ""}${parts.map((part) => `, ${part}`).join("")}}`;
  });

const requestText: fc.Arbitrary<string> = fc.oneof(
  { weight: 8, arbitrary: fc.array(jobText, { maxLength: 3 }).map((jobs) => `{"jobs": [${jobs.join(", ")}]}`) },
  {
    weight: 4,
    arbitrary: fc.tuple(jobText, jsonText).map(([job, strict]) => `{"jobs": [${job}], "strict": ${strict}}`),
  },
  { weight: 2, arbitrary: jsonText.map((jobs) => `{"jobs": ${jobs}}`) },
  { weight: 1, arbitrary: jsonText },
);

/** Whether each job of the answer is in the table as the request had it; one that replaced or repeats another is left out. */
const storedAsSent = `
  select count(*)::integer as stored, bool_and(j.payload = r.v -> 'payload' and j.payload::text = (r.v -> 'payload')::text
    and j.kind = r.v ->> 'kind' and (r.v ->> 'runAt' is null or j.run_at = (r.v ->> 'runAt')::timestamptz
      or (r.v ->> 'runAt')::timestamptz < clock_timestamp() and j.run_at < clock_timestamp())
    and j.state in ('ready', 'scheduled', 'blocked') and not j.suspect and j.attempt = 0) as same
  from unnest($2::integer[], $3::bigint[]) a(i, id)
  join jsonb_array_elements($1::jsonb -> 'jobs') with ordinality r(v, o) on r.o = a.i + 1
  join pgclaim.job j on j.id = a.id`;

describe("an enqueue-only role", () => {
  it(
    "is refused by a SQLSTATE of ours with nothing written, or its job is stored as it came: enqueue_v1",
    async () => {
      const { world, role, total } = await open();
      const { untouched } = await canary(world);
      let stored = 0;
      let clean = true;
      await tryOut({ usual: 800 }, requestText, async (request) => {
        if (!clean) await forget(world);
        clean = false;
        const answer = await ask<{ i: number; type: string; job_id: string | null }>(
          role.client,
          "select i, type, job_id from pgclaim.enqueue_v1($1::pg_catalog.jsonb)",
          [request],
        );
        if ("fault" in answer) expectFair(answer.fault);
        const rows = "rows" in answer ? answer.rows : [];
        const taken = rows.filter(({ job_id }) => job_id !== null);
        if (taken.length === 0) {
          expect(await total()).toBe(0);
          clean = true;
          return;
        }
        expect(taken).toHaveLength(rows.length);
        const fresh = taken.filter(
          ({ type, job_id }, at) =>
            type === "enqueued" && taken.every((other, o) => o === at || other.job_id !== job_id),
        );
        const [check] = await world.rows<{ stored: number; same: boolean | null }>(storedAsSent, [
          request,
          fresh.map(({ i }) => i),
          fresh.map(({ job_id }) => job_id),
        ]);
        expect(check).toEqual({ stored: fresh.length, same: fresh.length === 0 ? null : true });
        stored += fresh.length;
      });
      console.log(`  of them stored: ${stored}`);
      expect(stored).toBeGreaterThan(runsOf(800) / 20);
      await untouched();
    },
    timeFor(1_000),
  );

  it(
    "is refused by a SQLSTATE of ours with nothing written, or its job is stored as it came: enqueue",
    async () => {
      const { world, role, total } = await open();
      const { untouched } = await canary(world);
      let clean = true;
      const inputs = fc.tuple(kindText, payloadText, fc.option(instantText), fc.option(instantText));
      let stored = 0;
      await tryOut({ usual: 500 }, inputs, async (values) => {
        if (!clean) await forget(world);
        clean = false;
        const answer = await ask<{ job_id: string; type: string }>(
          role.client,
          "select job_id, type from pgclaim.enqueue($1, $2, $3, $4)",
          values,
        );
        if ("fault" in answer) {
          expectFair(answer.fault);
          expect(await total()).toBe(0);
          clean = true;
          return;
        }
        const [row] = answer.rows;
        if (row?.type !== "enqueued") return;
        expect(
          await world.rows("select payload::text = $2::jsonb::text as same from pgclaim.job where id = $1", [
            row.job_id,
            values[1],
          ]),
        ).toEqual([{ same: true }]);
        stored++;
      });
      expect(stored).toBeGreaterThan(runsOf(500) / 50);
      await untouched();
    },
    timeFor(700),
  );

  it(
    "does not stop the innocent jobs beside what it got stored",
    async () => {
      const { world, role } = await open();
      const claimer = world.claimer("pg", { jobs: kinds, batch: 200, budget: { cron: "30s", http: "30s" } });
      let round = 0;
      let tried = 0;
      const requests = fc.array(requestText, { minLength: 20, maxLength: 20 });
      await tryOut({ usual: 12, counted: () => tried }, requests, async (several) => {
        await forget(world);
        for (const request of several) {
          tried++;
          await ask(role.client, "select pgclaim.enqueue_v1($1::pg_catalog.jsonb)", [request]);
        }
        const n = ++round;
        await claimer.enqueue(innocent, { n });
        const report = await invoke(claimer, { within: 40_000 });
        expect(report.error).toBeUndefined();
        expect(await world.value("select count(*)::integer from effect where n = $1", [n])).toBe(1);
        expect(await world.value("select count(*)::integer from pgclaim.attempt where outcome is null")).toBe(0);
        expect(await world.locks()).toBe(0);
      });
    },
    timeFor(1_000),
  );

  // The setting is anybody's to set. The trigger at COMMIT believed it, and left the places to a finish that was not there.
  it.each(["read committed", "serializable"])(
    "cannot pass for a tick, to leave jobs behind that nobody places: %s",
    async (level) => {
      const { world, role } = await open();
      await role.client.query(`begin isolation level ${level}; set local pgclaim.tick = '${crypto.randomUUID()}'`);
      await role.client.query(
        `select pgclaim.enqueue('full', pg_catalog.jsonb_build_object('k', n::text, 'l', n::text))
       from pg_catalog.generate_series(1, 50) n`,
      );
      await role.client.query("commit");
      expect(await world.value("select count(*)::integer from pgclaim.job where place is null")).toBe(0);
      const claimer = world.claimer("pg", { jobs: kinds });
      await claimer.enqueue(innocent, { n: 1 });
      const report = await invoke(claimer);
      expect(report).toMatchObject({ done: 51, ended: "empty" });
    },
  );
});
