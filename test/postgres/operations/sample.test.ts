// How deep the queues are, counted now and then, to a cap and within a time; and the pruning of all records.

import { describe, expect, it } from "vitest";
import { enqueue, type Installation, install } from "../sql/support.ts";
import { recordingWake } from "./recording_support.ts";

const KINDS = [{ name: "a" }, { name: "b", queue: "other" }, { name: "k", ...{ orderingKey: "{k}" } }];

const sample = (world: Installation, cap = 100_000, ms = 500) =>
  world.value<boolean>("select pgclaim.sample_depth($1, $2)", [cap, ms]);

/** As `queue state: n`, with a plus where there may be more. */
const depth = async (world: Installation): Promise<string[]> =>
  (
    await world.rows<{ queue: string; state: string; n: number; capped: boolean }>(
      "select queue, state, n::integer, capped from pgclaim.depth order by queue, state",
    )
  ).map(({ queue, state, n, capped }) => `${queue} ${state}: ${n}${capped ? "+" : ""}`);

/** Lets the next one count again. */
const due = (world: Installation) =>
  world.sql.query(
    "update pgclaim.housekeeping set ran_at = ran_at - interval '1 minute', took_ms = 0 where step = 'sample'",
  );

describe("the sample of depths", () => {
  it("counts every state of every queue, and takes back what became empty", async () => {
    const world = await install(KINDS);
    await enqueue(world.sql, 10, "a");
    await enqueue(world.sql, 4, "b");
    await enqueue(world.sql, 3, "k", { k: "x" }); // one head, two behind it
    await world.sql.query(`
      update pgclaim.job set suspect = true where id = 1;
      update pgclaim.job set state = 'scheduled', run_at = now() + interval '1 day', failures = case when id = 4 then 1 else 0 end where id in (2, 3, 4);
      update pgclaim.job set state = 'dead', dead_at = now(), dead_reason = 'handler' where id in (5, 11, 12)`);
    expect(await sample(world)).toBe(true);
    expect(await depth(world)).toEqual([
      "default blocked: 2",
      "default dead: 1",
      "default ready: 7",
      "default retrying: 1",
      "default scheduled: 2",
      "other dead: 2",
      "other ready: 2",
    ]);
    await world.sql.query("delete from pgclaim.job where state in ('scheduled', 'dead') or queue = 'other'");
    await due(world);
    await sample(world);
    expect(await depth(world)).toEqual(["default blocked: 2", "default ready: 7"]);
  });

  it("counts waiting jobs of names behind their gate as blocked, too", async () => {
    const world = await install([{ name: "l", ...{ locks: ["{k}"] } }]);
    await enqueue(world.sql, 5, "l", { k: "x" });
    await sample(world);
    expect((await depth(world)).map((cell) => cell.replace(/\d+$/, ""))).toEqual([
      "default blocked: ",
      "default ready: ",
    ]);
    expect(await world.value("select sum(n)::integer from pgclaim.depth")).toBe(5);
  });

  it("stops at the cap: of ready jobs by queue, of the others by state", async () => {
    const world = await install(KINDS);
    await enqueue(world.sql, 5, "a");
    await enqueue(world.sql, 4, "b");
    await sample(world, 4);
    expect(await depth(world)).toEqual(["default ready: 4+", "other ready: 4"]);
    await world.sql.query(
      "update pgclaim.job set state = 'dead', dead_at = timestamptz '2026-01-01' + id * interval '1 second', dead_reason = 'handler'",
    );
    await due(world);
    await sample(world, 6);
    expect(await depth(world)).toEqual(["default dead: 5+", "other dead: 1+"]);
    await due(world);
    await sample(world, 9);
    expect(await depth(world)).toEqual(["default dead: 5", "other dead: 4"]);
    await due(world);
    await sample(world, 5); // it does not come to the other queue, so it does not know better
    expect(await depth(world)).toEqual(["default dead: 5+", "other dead: 4"]);
  });

  it("reads no more than the cap, from the partial indexes, whatever the statistics say", async () => {
    const world = await install(KINDS);
    await enqueue(world.sql, 3_000, "a");
    // Statistics of a table that is all scheduled, in no order: it looks cheaper to go through it by its key.
    await world.sql.query("update pgclaim.job set state = 'scheduled', run_at = now() + random() * interval '1 day'");
    await world.sql.query("vacuum (full, analyze) pgclaim.job");
    await world.sql.query("update pgclaim.job set state = 'ready' where id <= 1500");
    const client = await world.connect();
    await client.query("begin; set local random_page_cost = 1000000");
    await client.query("select pgclaim.sample_depth(100, 500)");
    const { rows } = await client.query<{ name: string; n: number }>(`
      select c.relname as name, pg_stat_get_xact_tuples_returned(c.oid)::integer as n from pg_class c
      where c.relnamespace = 'pgclaim'::regnamespace and (c.relname = 'job' or c.relname like 'job\\_%') and c.relkind in ('r', 'i')`);
    await client.query("commit");
    const read = (name: string) => rows.find((row) => row.name === name)?.n ?? 0;
    expect(read("job_ready")).toBeGreaterThan(100);
    expect(read("job_ready")).toBeLessThan(300);
    expect(read("job_scheduled")).toBeLessThan(300);
    expect(read("job_pkey")).toBe(0);
    expect(read("job")).toBe(0); // no row was read by a scan of the table
    expect(await depth(world)).toEqual(["default ready: 100+", "default scheduled: 100+"]);
  });

  it("stops where its time is up, says so, and keeps what it did not come to", async () => {
    const world = await install(KINDS);
    await enqueue(world.sql, 1_200, "a");
    await sample(world);
    const first = await world.value<Date>("select sampled_at from pgclaim.depth");
    await world.sql.query(
      "update pgclaim.job set state = 'scheduled', run_at = now() + interval '1 day' where id > 100",
    );
    await due(world);
    expect(await sample(world, 100_000, 0)).toBe(true);
    expect(await depth(world)).toEqual(["default ready: 1200", "default scheduled: 499+"]);
    expect(await world.value("select sampled_at from pgclaim.depth where state = 'ready'")).toEqual(first);
  });

  it("happens once a minute at most, and takes no more than a two-hundredth of the time", async () => {
    const world = await install(KINDS);
    const last = (ago: string, tookMs: number) =>
      world.sql.query(
        "update pgclaim.housekeeping set ran_at = now() - $1::interval, took_ms = $2 where step = 'sample'",
        [ago, tookMs],
      );
    expect(await sample(world)).toBe(true);
    expect(await sample(world)).toBe(false);
    await last("59 seconds", 0);
    expect(await sample(world)).toBe(false);
    await last("61 seconds", 10);
    expect(await sample(world)).toBe(true);
    await last("199 seconds", 1_000);
    expect(await sample(world)).toBe(false);
    await last("201 seconds", 1_000);
    expect(await sample(world)).toBe(true);
  });

  it("is taken by one wake at a time; the others do not wait for it", async () => {
    const world = await install(KINDS);
    await enqueue(world.sql, 2, "a");
    const keeper = await world.connect();
    await keeper.query("begin isolation level read committed");
    expect((await recordingWake(keeper)).faults).toEqual([]);
    expect((await recordingWake(world.sql)).faults).toEqual([]);
    expect(await depth(world)).toEqual([]);
    await keeper.query("commit");
    expect(await depth(world)).toEqual(["default ready: 2"]);
  });
});

describe("records", () => {
  it("go when they are old, a slice of each table at a time, and not before", async () => {
    const world = await install();
    const at = (ago: string) => `now() - interval '${ago}' - n * interval '1 second'`;
    const rows = (what: string, old: string, young: string) =>
      [old, young].map((ago) => what.replaceAll("$at", at(ago))).join(";");
    await world.sql.query(
      [
        rows(
          "insert into pgclaim.rollup (width, at, kind) select 1, $at, 'a' from generate_series(1, 5) n",
          "2 days",
          "47 hours",
        ),
        rows(
          "insert into pgclaim.rollup (width, at, kind) select 60, $at, 'a' from generate_series(1, 5) n",
          "90 days",
          "89 days",
        ),
        rows(
          "insert into pgclaim.tick_rollup (width, at) select 1, $at from generate_series(1, 5) n",
          "2 days",
          "47 hours",
        ),
        rows(
          "insert into pgclaim.tick_rollup (width, at) select 60, $at from generate_series(1, 5) n",
          "90 days",
          "89 days",
        ),
        rows(
          "insert into pgclaim.trigger_minute (name, at) select 'x', $at from generate_series(1, 5) n",
          "2 days",
          "47 hours",
        ),
        rows(
          "insert into pgclaim.trigger (name, type, last_seen_at) select md5(random()::text), 'cron', $at from generate_series(1, 5) n",
          "30 days",
          "29 days",
        ),
        rows(
          "insert into pgclaim.action (job_id, at, verb, actor) select n, $at, 'retry', 'cli' from generate_series(1, 5) n",
          "90 days",
          "89 days",
        ),
        rows(
          "insert into pgclaim.request_key (role_name, key, digest, created_at) select current_user, md5(random()::text), 'x', $at from generate_series(1, 5) n",
          "1 day",
          "23 hours",
        ),
        "insert into pgclaim.rollup (width, at, kind, done) values (0, 'epoch', 'a', 7); insert into pgclaim.tick_rollup (width, at) values (0, 'epoch')",
      ].join(";"),
    );
    const left = () =>
      world.rows<{ name: string; n: number }>(`
        select 'rollup ' || width as name, count(*)::integer as n from pgclaim.rollup group by 1
        union all select 'tick_rollup ' || width, count(*)::integer from pgclaim.tick_rollup group by 1
        union all select 'trigger_minute', count(*)::integer from pgclaim.trigger_minute where name = 'x'
        union all select 'trigger', count(*)::integer from pgclaim.trigger where name <> 'manual'
        union all select 'action', count(*)::integer from pgclaim.action
        union all select 'request_key', count(*)::integer from pgclaim.request_key
        order by 1`);
    expect(await recordingWake(world.sql, { pruneSlice: 3 })).toMatchObject({ pruned: 8 * 3, faults: [] });
    expect((await left()).filter(({ name }) => !name.endsWith(" 0")).map(({ n }) => n)).toEqual(Array(8).fill(7));
    expect((await recordingWake(world.sql)).pruned).toBe(0); // not its turn
    await world.sql.query(
      "update pgclaim.housekeeping set ran_at = ran_at - interval '20 seconds' where step = 'roll up'",
    );
    expect((await recordingWake(world.sql)).pruned).toBe(8 * 2);
    const kept = await left();
    expect(kept.filter(({ name }) => !name.endsWith(" 0")).map(({ n }) => n)).toEqual(Array(8).fill(5));
    expect(kept.filter(({ name }) => name.endsWith(" 0")).map(({ n }) => n)).toEqual([1, 1]);
  });
});
