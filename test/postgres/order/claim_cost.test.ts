// What a claim costs, counted in buffers and not in time: as much with a long line as with a short one, with 100,000 keys as
// with a hundred, and behind a key that stands still. CI counts with 20,000 jobs; the big figures come from
//   PGCLAIM_ORDER_JOBS=1000000 npx vitest run test/postgres/order/claim_cost.test.ts
// which prints each count with its time. Each case is counted without statistics and with them: a plan must not hang on
// what autovacuum has got round to.

import type pg from "pg";
import { describe, expect, it } from "vitest";
import { type Installation, the } from "../sql/support.ts";
import { claimLine, installOrdered } from "./support.ts";

const jobs = Number(process.env.PGCLAIM_ORDER_JOBS ?? 20_000);
const few = 1_000;
const limitMs = jobs > 100_000 ? 900_000 : 120_000;

interface Shape {
  readonly jobs: number;
  readonly keys: number;
  /** One more key with as many jobs, whose first one is in this state. */
  readonly stuck?: "dead" | "ready";
}

/** Jobs straight into the table, as they stand after their commits: of each key the first one ready, the others blocked. */
async function fill(world: Installation, { jobs: count, keys, stuck }: Shape): Promise<void> {
  const insert = (from: string) =>
    world.sql.query(`
      insert into pgclaim.job (
        kind, queue, state, priority, rank, run_at, revision, payload, ordering_key, gate, gate_width, place, dead_at, dead_reason
      )
      select 'a', 'default', state, 2, timestamptz '2026-01-01' + n * interval '1 ms', '2026-01-01', 1,
        jsonb_build_object('k', k, 'n', n), 'k:' || k, 'order:k:' || k, 1, nextval('pgclaim.place_seq'),
        case state when 'dead' then now() end, case state when 'dead' then 'handler' end
      from (${from}) r(n, k, state)`);
  if (stuck !== undefined) {
    await insert(
      `select n, 'stuck', case n when 1 then '${stuck}' else 'blocked' end from generate_series(1, ${count}) n`,
    );
    await insert(`select n, 'free' || n, 'ready' from generate_series(${count} + 1, ${count} + ${keys}) n`);
  } else {
    await insert(
      `select n, (n % ${keys})::text, case when n <= ${keys} then 'ready' else 'blocked' end from generate_series(1, ${count}) n`,
    );
  }
}

interface Cost {
  readonly buffers: number;
  readonly ms: number;
}

async function explain(client: pg.Client, statement: string): Promise<Cost> {
  const { rows } = await client.query<{ "QUERY PLAN": [{ Plan: Record<string, number>; "Execution Time": number }] }>(
    `explain (analyze, buffers, format json) ${statement}`,
  );
  const [{ Plan: plan, "Execution Time": ms }] = the(rows)["QUERY PLAN"];
  return { buffers: (plan["Shared Hit Blocks"] ?? 0) + (plan["Shared Read Blocks"] ?? 0), ms };
}

/**
 * The cheapest of five: plans are made and catalogues are read by then, and an invalidation that comes from elsewhere in
 * between does not count. Each is undone, so all see the same table.
 */
async function cheapest(client: pg.Client, statement: string): Promise<Cost> {
  const costs: Cost[] = [];
  for (let i = 0; i < 5; i++) {
    await client.query("begin isolation level read committed read write");
    costs.push(await explain(client, statement));
    await client.query("rollback");
  }
  return the(costs.sort((one, other) => one.buffers - other.buffers));
}

const claimOf = (batch: number) =>
  `select * from pgclaim.claim_v1('${JSON.stringify({
    queues: ["default"],
    kinds: ["a"],
    unfit: [],
    revision: 1,
    batch,
    quarantined: false,
    maxCandidates: 10_000,
    maxSkips: 100,
  })}')`;

interface Counted {
  readonly what: string;
  readonly cost: Cost;
}

/** Counts a claim of 10 and of 100, and a refill, of one shape, with and without statistics. */
async function count(shape: Shape): Promise<Counted[]> {
  const world = await installOrdered([{ name: "a", orderingKey: "k:{k}" }]);
  await world.sql.query("alter table pgclaim.job set (autovacuum_enabled = false)");
  await fill(world, shape);
  const holder = await world.connect();
  await holder.query("begin");
  if (shape.stuck === "ready")
    await holder.query(
      "select pg_advisory_xact_lock(pgclaim.name_key('order', 'k:stuck', seed)) from pgclaim.installation",
    );
  const counted: Counted[] = [];
  const client = await world.connect();
  for (const statistics of ["no statistics", "statistics"]) {
    if (statistics === "statistics") await world.sql.query("analyze pgclaim.job");
    for (const batch of [10, 100]) {
      const claim = await claimLine(world, { batch }, client);
      expect(claim.jobs, "as many as were asked for are claimed").toHaveLength(batch);
      expect(claim.skips).toHaveLength(shape.stuck === "ready" ? 1 : 0);
      await client.query("rollback");
      counted.push({ what: `claim ${batch}, ${statistics}`, cost: await cheapest(client, claimOf(batch)) });
    }
    const key = shape.stuck === undefined ? "order:k:1" : "order:k:stuck";
    counted.push({ what: `refill, ${statistics}`, cost: await cheapest(client, `select pgclaim.refill('${key}')`) });
  }
  await holder.query("rollback");
  await holder.end();
  await client.end();
  await world.sql.query("truncate pgclaim.job");
  return counted;
}

describe("a claim costs no more than twice what it costs with 1,000 jobs", () => {
  it.each<readonly [string, Shape, Shape]>([
    ["in 10 keys", { jobs: few, keys: 10 }, { jobs, keys: 10 }],
    ["in a tenth as many keys", { jobs: few, keys: few / 10 }, { jobs, keys: jobs / 10 }],
    ["behind one halted key", { jobs: few, keys: 200, stuck: "dead" }, { jobs, keys: 200, stuck: "dead" }],
    ["behind one locked key", { jobs: few, keys: 200, stuck: "ready" }, { jobs, keys: 200, stuck: "ready" }],
  ])(
    `with ${jobs} %s`,
    async (what, small, large) => {
      const [before, after] = [await count(small), await count(large)];
      for (const [i, { what: case_, cost }] of after.entries()) {
        const base = before[i]?.cost ?? { buffers: 0, ms: 0 };
        console.log(
          `${what}, ${case_}: ${base.buffers} buffers (${base.ms.toFixed(1)} ms) with ${few} jobs, ${cost.buffers} (${cost.ms.toFixed(1)} ms) with ${jobs}`,
        );
        expect(base.buffers).toBeGreaterThan(0);
        expect(cost.buffers, case_).toBeLessThanOrEqual(2 * base.buffers);
      }
    },
    limitMs,
  );
});

describe("a claim of free jobs costs no more than twice what it costs alone", () => {
  it.each([
    [
      "with as many scheduled for later at a higher priority",
      `select 'a', 'default', 'scheduled', 0, now() + interval '1 day', now() + interval '1 day', 1, '{}'::jsonb,
         null::text[], null::integer[], null, null::integer, null::bigint
       from generate_series(1, ${jobs})`,
    ],
    [
      "with as many that wait for one busy tenant at a higher priority",
      `select 'a', 'default', case when g <= 5 then 'ready' else 'blocked' end, 0, now(), now(), 1, '{}'::jsonb,
         array['tenant:busy'], array[5], 'limit:tenant:busy', 5, nextval('pgclaim.place_seq')
       from generate_series(1, ${jobs}) g`,
    ],
  ])(
    "%s",
    async (_, others) => {
      const world = await installOrdered([{ name: "a" }]);
      await world.sql.query("alter table pgclaim.job set (autovacuum_enabled = false)");
      const insert = (rows: string) =>
        world.sql.query(`
          insert into pgclaim.job (
            kind, queue, state, priority, rank, run_at, revision, payload, limit_names, limit_maxes, gate, gate_width, place
          ) ${rows}`);
      await insert(
        `select 'a', 'default', 'ready', 1, now(), now(), 1, '{}'::jsonb, null::text[], null::integer[], null, null::integer, null::bigint
         from generate_series(1, ${few})`,
      );
      const client = await world.connect();
      const alone = await cheapest(client, claimOf(100));
      await insert(others);
      const holder = await world.connect();
      await holder.query("begin");
      await holder.query(
        "select pg_advisory_xact_lock(pgclaim.name_key('limit', 'tenant:busy#' || s, seed)) from pgclaim.installation, generate_series(0, 4) s",
      );
      for (const statistics of [false, true]) {
        if (statistics) await world.sql.query("analyze pgclaim.job");
        const claim = await claimLine(world, { batch: 100 }, client);
        expect(claim.jobs, "the free ones are claimed").toHaveLength(100);
        await client.query("rollback");
        expect((await cheapest(client, claimOf(100))).buffers).toBeLessThanOrEqual(2 * alone.buffers);
      }
      await holder.query("rollback");
      await world.sql.query("truncate pgclaim.job");
    },
    limitMs,
  );
});
