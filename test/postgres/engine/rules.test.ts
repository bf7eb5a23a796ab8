// The fourteen rules of the design, measured on the engine as it runs. Where a rule needs every way a network breaks, its
// other tests are in lost_session.test.ts (7, 8, 11), connect.test.ts (8, 9) and timeouts.test.ts (10).

import pg from "pg";
import { beforeEach, describe, expect, it, onTestFinished } from "vitest";
import { startPostgres } from "../../../scripts/world/postgres.ts";
import { pgDatabase } from "../../../src/adapters/node.ts";
import { migrate } from "../../../src/cli/migrate.ts";
import { systemClock } from "../../../src/clock.ts";
import { createClaimer, defineJob } from "../../../src/index.ts";
import { readLimits } from "../../../src/limits.ts";
import { postgresGateway } from "../../../src/postgres.ts";
import {
  attempts,
  drain,
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  plain,
  quick,
  rendezvous,
  results,
  upTo,
  watchUnhandled,
  wire,
  workTick,
} from "../../support/engine.ts";
import { endsWithin, eventually, gate } from "../../support/gate.ts";
import { roleOf } from "../../support/roles.ts";
import { connections, setup, type TransportName, transports, type World } from "../../support/world.ts";

beforeEach(() => watchUnhandled());

async function jobs(world: World, transport: TransportName, count: number, options: { readonly batch?: number } = {}) {
  await effectTable(world);
  const job = plain();
  const claimer = world.claimer(transport, { jobs: [job], limits: quick, ...options });
  await claimer.enqueueMany(
    job,
    upTo(count).map((n) => ({ n })),
  );
  return { job, claimer };
}

/** SQL of a job's lock key. */
const keyOf =
  "(select pgclaim.job_key(k.namespace, j.id) from pgclaim.job j join pgclaim.kind k on k.name = j.kind where j.id = $1)";

function gatewayOf(world: World, transport: TransportName) {
  return postgresGateway({
    database: world.database(transport),
    clock: systemClock,
    limits: readLimits(quick),
    schema: "pgclaim",
  });
}

async function claimed(world: World, transport: TransportName, batch: number) {
  const gateway = gatewayOf(world, transport);
  const session = gateway.session();
  onTestFinished(() => session.close());
  await session.connect();
  const tickId = crypto.randomUUID();
  const answer = await session.claim({
    tickId,
    queues: ["default"],
    kinds: ["plain"],
    unfit: [],
    revision: 1_000,
    batch,
    quarantined: false,
    tickSlots: null,
    hardMs: 20_000,
  });
  return { gateway, session, tickId, answer };
}

describe.each(transports)("rule 1 over %s", (transport) => {
  it("names READ COMMITTED READ WRITE whatever the database's defaults are", async () => {
    const world = await setup();
    const { claimer } = await jobs(world, transport, 3);
    const { rows } = await world.sql.query("select current_database() as name");
    await world.sql.query(`alter database ${rows[0].name} set default_transaction_isolation = 'serializable'`);
    await world.sql.query(`alter database ${rows[0].name} set default_transaction_read_only = on`);
    expect(await invoke(claimer)).toMatchObject({ done: 3, faults: [] });
    await expectWhole(world, { effects: [1, 2, 3] });
  });

  it.each([
    ["wake_v1", "{}"],
    ["register_v1", "{}"],
    ["claim_v1", "{}"],
    ["fence_v1", "{}"],
    ["finish_v1", "{}"],
    ["settle_v1", "{}"],
    ["retry_v1", "1"],
    ["discard_v1", "1"],
  ])("%s refuses every other level", async (name, argument) => {
    const world = await setup();
    for (const mode of ["repeatable read read write", "serializable read write", "read committed read only"]) {
      await world.sql.query(`begin isolation level ${mode}`);
      await expect(world.sql.query(`select pgclaim.${name}('${argument}')`)).rejects.toMatchObject({ code: "PC001" });
      await world.sql.query("rollback");
    }
  });
});

describe.each(transports)("rule 2 over %s", (transport) => {
  it("does not hand out a job that was finished between the scan and the lock", async () => {
    // The lock key's function is made to wait at a barrier, which is exactly between a candidate's reading and its lock.
    const world = await setup();
    const { claimer } = await jobs(world, transport, 2);
    await invokeOnlyWake(world, claimer);
    await world.sql.query(`
      create or replace function pgclaim.job_key(namespace integer, job_id bigint) returns bigint language plpgsql volatile as $$
      begin
        if job_id = 1 then perform pg_advisory_lock_shared(4711); perform pg_advisory_unlock_shared(4711); end if;
        return (namespace::bigint << 32) | (job_id & 4294967295);
      end $$`);
    const holder = await world.connect();
    await holder.query("select pg_advisory_lock(4711)");
    const invocation = invoke(claimer);
    await eventually(async () => {
      expect(
        await world.value(
          "select count(*)::integer from pg_locks l join pg_database d on d.oid = l.database where l.locktype = 'advisory' and not l.granted and l.objid = 4711 and d.datname = current_database()",
        ),
      ).toBe(1);
    });
    await world.sql.query("delete from pgclaim.job where id = 1");
    await holder.query("select pg_advisory_unlock(4711)");
    const tick = workTick(await invocation);
    expect(tick).toMatchObject({
      claimed: 1,
      done: 1,
      skipped: { stale: 1 },
      skips: [{ jobId: "1", reason: "stale" }],
    });
    expect(await effects(world)).toEqual([2]);
    expect(await world.locks()).toBe(0);
  });
});

describe.each(transports)("rule 3 over %s", (transport) => {
  it("holds exactly the locks it reports, not those of what it looked at", async () => {
    const world = await setup();
    const { claimer } = await jobs(world, transport, 20);
    await invokeOnlyWake(world, claimer);
    const holder = await world.connect();
    await holder.query("begin");
    for (const id of [2, 3]) await holder.query(`select pg_advisory_xact_lock(${keyOf})`, [id]);
    await world.sql.query("update pgclaim.job set revision = 5000 where id = 4");
    const { session, answer } = await claimed(world, transport, 5);
    expect(answer.claims.map(({ jobId }) => jobId)).toEqual(["1", "5", "6", "7", "8"]);
    expect(answer.skipped).toEqual({ busy: 2, "newer-revision": 1 });
    const held = await world.rows<{ id: string }>(
      `select j.id from pg_locks l join pgclaim.kind k on true join pgclaim.job j on j.kind = k.name
         and ((l.classid::bigint << 32) | l.objid::bigint) = pgclaim.job_key(k.namespace, j.id)
       where l.locktype = 'advisory' and l.pid = $1 order by j.id`,
      [answer.backendPid],
    );
    expect(held.map(({ id }) => id)).toEqual(["1", "5", "6", "7", "8"]);
    expect(await world.locks()).toBe(5 + 2);
    await session.rollback();
    await eventually(async () => expect(await world.locks()).toBe(2));
  });
});

describe.each(transports)("rule 4 over %s", (transport) => {
  it("keeps every lock of the tick through the rollback of a handler's savepoint", async () => {
    const world = await setup();
    await effectTable(world);
    const meeting = rendezvous();
    const job = defineJob({
      kind: "plain",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        if (n === 1) throw new Error("rolled back to its savepoint");
        if (n === 2) await meeting.meet(2);
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    const invocation = invoke(claimer);
    await meeting.arrived(2);
    expect(await world.locks()).toBe(3);
    meeting.release(2);
    expect(results(workTick(await invocation))).toEqual(["retried:PGCLAIM_HANDLER_THREW", "done", "done"]);
    expect(await world.locks()).toBe(0);
  });
});

describe.each(transports)("rule 5 over %s", (transport) => {
  it("runs two jobs with one lock key one after the other, although a session's own lock seems free", async () => {
    const world = await setup();
    const { job, claimer } = await jobs(world, transport, 1);
    await world.sql.query("alter table pgclaim.job alter column id restart with 4294967297");
    await claimer.enqueue(job, { n: 2 });
    const report = await invoke(claimer);
    const [first, second] = report.ticks;
    expect(first).toMatchObject({ claimed: 1, skipped: { busy: 1 }, skips: [{ jobId: "4294967297", reason: "busy" }] });
    expect(second).toMatchObject({ claimed: 1, done: 1 });
    await expectWhole(world, { effects: [1, 2] });
  });
});

if (process.env.DATABASE_URL !== undefined)
  console.warn("NOT RUN: rule 6. It fills the lock table of a server of its own.");

describe("rule 6", () => {
  it.skipIf(process.env.DATABASE_URL !== undefined)(
    "ends the tick cleanly with a code of its own where the server's lock table is full",
    async () => {
      // A server of its own: the lock table is the whole server's, and other tests need theirs.
      const server = await startPostgres({
        settings: { max_connections: "10", max_locks_per_transaction: "10", autovacuum: "off" },
      });
      onTestFinished(() => server.stop());
      const connect = async () => {
        const client = new pg.Client(server.url());
        await client.connect();
        onTestFinished(() => client.end());
        return client;
      };
      const client = await connect();
      await migrate({ client });
      const job = defineJob({ kind: "many", payload: numbered, run() {} });
      const claimer = createClaimer({ jobs: [job], database: pgDatabase(server.url()), batch: 200, log: () => {} });
      await claimer.enqueueMany(
        job,
        upTo(200).map((n) => ({ n })),
      );
      const filler = await connect();
      await filler.query("begin");
      // Until not one more fits; then room for what a healthy statement needs, and not for 200.
      let taken = 0;
      for (const step of [64, 16, 4, 1]) {
        for (;;) {
          await filler.query("savepoint s");
          try {
            await filler.query("select pg_advisory_xact_lock(-g) from generate_series($1::int, $2::int) g", [
              taken + 1,
              taken + step,
            ]);
          } catch (error) {
            expect(error).toMatchObject({ code: "53200" });
            await filler.query("rollback to savepoint s");
            break;
          }
          await filler.query("release savepoint s");
          taken += step;
        }
      }
      await filler.query("rollback");
      await filler.query("begin");
      await filler.query("select pg_advisory_xact_lock(-g) from generate_series(1, $1::int) g", [taken - 60]);
      const report = await invoke(claimer);
      expect(report).toMatchObject({ ended: "error", claimed: 0, error: { code: "PGCLAIM_LOCKS_EXHAUSTED" } });
      expect(report.ticks.map(({ fate }) => fate)).toEqual(["refused"]);
      const locks = await client.query("select count(*)::integer as n from pg_locks where locktype = 'advisory'");
      expect(locks.rows).toEqual([{ n: taken - 60 }]);
      await filler.query("rollback");
      expect(await invoke(claimer)).toMatchObject({ done: 200, crashed: 0 });
    },
  );
});

describe.each(transports)("rule 7 over %s", (transport) => {
  it("takes nothing but the tag COMMIT for success: an aborted transaction's tick is lost", async () => {
    const world = await setup();
    const { claimer } = await jobs(world, transport, 1);
    await invokeOnlyWake(world, claimer);
    // What makes the rule: the server says ROLLBACK, and it is no error.
    await world.sql.query("begin");
    await world.sql.query("select 1 / 0").catch(() => {});
    expect((await world.sql.query("commit")).command).toBe("ROLLBACK");
    const { gateway, session, tickId, answer } = await claimed(world, transport, 1);
    await gateway.fence({ tickId, quarantined: false, jobs: [{ jobId: "1", attempt: 1 }] });
    expect(answer.claims).toHaveLength(1);
    await session.query("insert into effect (n) values (1)", []);
    await session.query("select 1 / 0", []).catch(() => {});
    const finish = session.finish({
      tickId,
      invocationId: "i",
      report: {},
      jobs: [{ jobId: "1", attempt: 1, outcome: "done" }],
    });
    await expect(finish).rejects.toMatchObject({ code: "25P02" });
    await session.rollback();
    const settle = {
      tickId,
      invocationId: "i",
      report: {},
      jobs: [{ jobId: "1", attempt: 1 }],
      mark: true,
      turn: null,
      quarantined: false,
      tickSlots: null,
    };
    expect(await gateway.settle(settle)).toBe("lost");
    expect(await gateway.settle(settle)).toBe("lost");
    expect(await attempts(world)).toEqual(["1:1 interrupted"]);
    expect(await effects(world)).toEqual([]);
  });
});

describe.each(transports)("rule 8 over %s", (transport) => {
  it("leaves no connection open when an invocation ends, well or badly", async () => {
    const world = await setup();
    const { claimer } = await jobs(world, transport, 2);
    const net = await wire(world, transport);
    const open = () => connections(world);
    net.breakSession({ contains: "claim_v1", at: "after", how: "reset", times: 2 });
    expect(await invoke(net.claimer({ jobs: [plain()] }))).toMatchObject({ ended: "error" });
    await eventually(async () => expect(await open()).toBe(0), 2_000);
    expect(await invoke(claimer)).toMatchObject({ done: 2 });
    await eventually(async () => expect(await open()).toBe(0), 2_000);
    expect(world.bridge.stats.wsOpen).toBe(0);
    await expectWhole(world, { effects: [1, 2] });
  });
});

describe("rule 9", () => {
  it("covers connect and the first answer with one deadline, since connect() may resolve before authentication", async () => {
    const world = await setup();
    const { claimer } = await jobs(world, "neon", 1);
    const held = gate();
    onTestFinished(() => held.open());
    // The socket opens, start-up and the first query go out in one frame, and that frame waits.
    const fault = world.bridge.breakSession({ frame: 1, at: "before", how: { hold: held.promise }, times: 2 });
    const report = await invoke(claimer, { within: 12_000 });
    await fault.fired;
    expect(report).toMatchObject({ ended: "error", claimed: 0 });
    expect(report.error?.code).toMatch(/^PGCLAIM_(NO_ANSWER|CONNECT_FAILED)$/);
    // Twice the two seconds of `connect`, not connect and then a message's limit on top.
    expect(report.totalMs).toBeLessThan(2 * 2_000 + 3_000);
  });
});

describe.each(transports)("rule 10 over %s", (transport) => {
  it("bounds the transaction on the server, locally, longer than our own limits, anew at each turn", async () => {
    const world = await setup();
    const seen: Record<string, number>[] = [];
    const job = defineJob({
      kind: "limits",
      payload: numbered,
      timeout: "5s",
      async run({ tx, payload: { n } }) {
        const { rows } = await tx.query<Record<string, number>>(
          `select extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval)::float8 * 1000 as idle,
             extract(epoch from current_setting('statement_timeout')::interval)::float8 * 1000 as statement,
             extract(epoch from current_setting('lock_timeout')::interval)::float8 * 1000 as lock,
             extract(epoch from current_setting('transaction_timeout', true)::interval)::float8 * 1000 as transaction`,
        );
        if (rows[0] !== undefined) seen.push(rows[0]);
        if (n === 1) await tx.query("set local statement_timeout = 0");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], limits: { reserve: "2s", serverGrace: "3s" } });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    expect(await invoke(claimer, { budget: "12s" })).toMatchObject({ done: 3 });
    expect(seen).toHaveLength(3);
    const version = Number(await world.value("show server_version_num"));
    for (const { idle, statement, lock, transaction } of seen) {
      // What is left of the budget, reserve included, and the grace: 15 s less what has gone by.
      expect(idle).toBeGreaterThan(12_000);
      expect(idle).toBeLessThanOrEqual(15_001);
      if (version >= 170_000) expect(transaction).toBeGreaterThan(12_000);
      // The handler's own five seconds, and one so that we stop first.
      expect(statement).toBeGreaterThan(5_000);
      expect(statement).toBeLessThanOrEqual(6_000);
      expect(lock).toBe(statement);
    }
  });

  it("outlives a transaction_timeout that the role has as its default", async () => {
    const world = await setup();
    if (Number(await world.value("show server_version_num")) < 170_000) return;
    const role = await roleOf(world, "run");
    await world.sql.query(`alter role ${role.name} set transaction_timeout = '400ms'`);
    const job = defineJob({
      kind: "longer",
      payload: numbered,
      run: async ({ tx }) => void (await tx.query("select pg_sleep(0.6)")),
    });
    const as = world.as(role.url);
    const claimer = as.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(job, [{ n: 1 }, { n: 2 }]);
    expect(await invoke(claimer)).toMatchObject({ done: 2 });
  });

  it("has the server end a transaction whose client is gone without a word", async () => {
    const world = await setup();
    const { claimer } = await jobs(world, transport, 1);
    await invokeOnlyWake(world, claimer);
    const gateway = gatewayOf(world, transport);
    const session = gateway.session();
    onTestFinished(() => session.close());
    await session.connect();
    const answer = await session.claim({
      tickId: crypto.randomUUID(),
      queues: ["default"],
      kinds: ["plain"],
      unfit: [],
      revision: 1_000,
      batch: 1,
      quarantined: false,
      tickSlots: null,
      hardMs: 200,
    });
    expect(answer.claims).toHaveLength(1);
    // 200 ms and the second of grace: nobody speaks, and the lock goes.
    await eventually(async () => expect(await world.locks()).toBe(0), 4_000);
    await eventually(() => expect(session.lost.aborted).toBe(true));
  });
});

describe.each(transports)("rule 11 over %s", (transport) => {
  it("aborts the signal at once when the connection is lost, with the reason as its cause", async () => {
    const world = await setup();
    const aborted = gate<unknown>();
    const started = gate();
    const job = defineJob({
      kind: "listens",
      payload: numbered,
      async run({ signal, job: { attempt } }) {
        if (attempt > 1) return;
        started.open();
        await new Promise<void>((resolve) => {
          signal.addEventListener(
            "abort",
            () => {
              aborted.open(signal.reason);
              resolve();
            },
            { once: true },
          );
        });
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], limits: quick });
    await claimer.enqueue(job, { n: 1 });
    const invocation = invoke(claimer);
    await started.promise;
    await world.sql.query(
      "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())",
    );
    expect(await endsWithin(1_000, aborted.promise, "the abort")).toMatchObject({
      code: "PGCLAIM_HANDLER_ABORTED",
      cause: { code: "PGCLAIM_TX_LOST" },
    });
    expect(workTick(await invocation).fate).toBe("lost");
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
  });
});

describe.each(transports)("rule 12 over %s", (transport) => {
  it("works with an empty search_path, and leaves no state on the session", async () => {
    const world = await setup();
    const { rows } = await world.sql.query("select current_database() as name");
    await world.sql.query(`alter database ${rows[0].name} set search_path = ''`);
    await world.sql.query("create table public.effect (n integer, note text)");
    const states: unknown[] = [];
    const job = defineJob({
      kind: "plain",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await tx.query("insert into public.effect (n) values ($1)", [n]);
        states.push(
          ...(
            await tx.query(
              `select (select count(*)::integer from pg_prepared_statements where name <> '') as prepared,
                 (select count(*)::integer from pg_listening_channels()) as channels,
                 (select count(*)::integer from pg_class where relpersistence = 't') as temporary,
                 (select count(*)::integer from pg_cursors where is_holdable) as cursors,
                 current_setting('search_path') as path`,
            )
          ).rows,
        );
        if (n === 2) throw new Error("once");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job], batch: 2 });
    await claimer.enqueueMany(
      job,
      upTo(4).map((n) => ({ n })),
    );
    expect(await invoke(claimer)).toMatchObject({ done: 3, retried: 1, faults: [] });
    expect(states).toEqual(upTo(4).map(() => ({ prepared: 0, channels: 0, temporary: 0, cursors: 0, path: '""' })));
    if (transport === "neon") {
      const statements = world.bridge.connections.flatMap((connection) =>
        connection.statements.flatMap((text) => text.split(";\n")),
      );
      expect(statements.length).toBeGreaterThan(20);
      const session = statements.filter((text) =>
        /^(set(?! local)|listen|prepare|create|declare)\b/i.test(text.trim()),
      );
      expect(session).toEqual([]);
      expect(statements.filter((text) => /pg_(try_)?advisory_lock/.test(text))).toEqual([]);
    }
  });
});

describe.each(transports)("rule 13 over %s", (transport) => {
  it("finishes in the claiming transaction and in no other", async () => {
    const world = await setup();
    const { claimer } = await jobs(world, transport, 1);
    await invokeOnlyWake(world, claimer);
    const { gateway, session, tickId } = await claimed(world, transport, 1);
    await gateway.fence({ tickId, quarantined: false, jobs: [{ jobId: "1", attempt: 1 }] });
    // As if a handler or a pooler had ended the transaction and begun another.
    await session.query("commit", []);
    await session.query("begin isolation level read committed read write", []);
    const finish = session.finish({
      tickId,
      invocationId: "i",
      report: {},
      jobs: [{ jobId: "1", attempt: 1, outcome: "done" }],
    });
    await expect(finish).rejects.toMatchObject({ code: "PC004" });
    expect(await world.value("select count(*)::integer from pgclaim.history")).toBe(0);
    await session.close();
    expect(await invoke(claimer)).toMatchObject({ crashed: 1, done: 1 });
    await expectWhole(world, { effects: [1] });
  });

  it("is not fooled by a handler that overwrites the setting", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "plain",
      payload: numbered,
      async run({ payload: { n }, tx }) {
        await effect(tx, n);
        await tx.query("select set_config('pgclaim.tick', gen_random_uuid()::text, $1)", [n === 1]);
        if (n === 3) await tx.query("reset all");
      },
    });
    const claimer = world.claimer(transport, { jobs: [job] });
    await claimer.enqueueMany(
      job,
      upTo(3).map((n) => ({ n })),
    );
    expect(await invoke(claimer)).toMatchObject({ done: 3 });
    await expectWhole(world, { effects: [1, 2, 3] });
  });
});

describe.each(transports)("rule 14 over %s", (transport) => {
  it("tries again what was only busy, and claims it in the same invocation when its holder lets go", async () => {
    const world = await setup();
    const { claimer } = await jobs(world, transport, 1);
    await invokeOnlyWake(world, claimer);
    const holder = await world.connect();
    await holder.query("begin");
    await holder.query(`select pg_advisory_xact_lock(${keyOf})`, [1]);
    let claims = 0;
    const second = gate();
    const stop =
      transport === "neon"
        ? world.bridge.onFrameUp((frame) => {
            if (frame.toString("latin1").includes("claim_v1") && ++claims === 2) second.open();
          })
        : () => {};
    const invocation = invoke(claimer);
    if (transport === "neon") {
      await endsWithin(2_000, second.promise, "the second try");
    } else {
      await eventually(async () => {
        expect(
          await world.value(
            "select count(*)::integer from pg_stat_activity where query = 'rollback' and datname = current_database()",
          ),
        ).toBe(1);
      });
    }
    await holder.query("rollback");
    stop();
    const report = await invocation;
    expect(report).toMatchObject({ ended: "empty", done: 1 });
    expect(report.skipped.busy).toBeGreaterThanOrEqual(1);
    await expectWhole(world, { effects: [1] });
  });

  it("gives up after a few tries with growing, jittered pauses, within the budget", async () => {
    const world = await setup();
    await effectTable(world);
    const job = plain();
    const pauses: number[] = [];
    const clock = {
      ...systemClock,
      timer(ms: number, callback: () => void) {
        // The pauses, and nothing else, are below two seconds here; they pass at once.
        if (ms >= 2_000) return systemClock.timer(ms, callback);
        pauses.push(ms);
        return systemClock.timer(0, callback);
      },
      random: () => 0.25,
    };
    const claimer = world.claimer(transport, { jobs: [job], clock });
    await claimer.enqueue(job, { n: 1 });
    await invokeOnlyWake(world, claimer);
    pauses.length = 0;
    const holder = await world.connect();
    await holder.query("begin");
    await holder.query(`select pg_advisory_xact_lock(${keyOf})`, [1]);
    expect(await invoke(claimer)).toMatchObject({ ended: "empty", claimed: 0, skipped: { busy: 5 } });
    expect(pauses.filter((ms) => ms !== 1_000)).toEqual([75, 150, 300, 600]);
    await holder.query("rollback");
    await drain(world, claimer, [1]);
  });
});

describe.each(transports)("wake over %s", (transport) => {
  it("never is what stops the work: where it fails, claim is asked, and the report says so", async () => {
    const world = await setup();
    const { claimer } = await jobs(world, transport, 2);
    await world.sql.query(
      "create or replace function pgclaim.wake_v1(request jsonb) returns jsonb language plpgsql as $$ begin raise exception 'out of order'; end $$",
    );
    expect(await invoke(claimer)).toMatchObject({
      ended: "empty",
      done: 2,
      faults: [{ step: "wake", sqlstate: "PGCLAIM_QUERY_FAILED" }],
    });
    await expectWhole(world, { effects: [1, 2] });
  });

  it("reports a housekeeping step that fails, and the work goes on", async () => {
    const world = await setup();
    const { claimer } = await jobs(world, transport, 2);
    await world.sql.query(
      "create or replace function pgclaim.reap(slice integer) returns integer language plpgsql as $$ begin raise exception 'out of order'; end $$",
    );
    expect(await invoke(claimer)).toMatchObject({
      ended: "empty",
      done: 2,
      faults: [{ step: "reap", sqlstate: "P0001" }],
    });
    await expectWhole(world, { effects: [1, 2] });
  });
});

describe.each(transports)("a log over %s", (transport) => {
  it("that throws costs no job and no report", async () => {
    const world = await setup();
    await effectTable(world);
    const job = defineJob({
      kind: "logs",
      payload: numbered,
      retry: { backoff: () => "nonsense" as "1s", minBackoff: "1h", maxBackoff: "1h" },
      async run({ payload: { n }, tx, log }) {
        log("a fact that is no JSON", { n: 1n });
        await effect(tx, n);
        if (n === 2) throw new Error("no");
      },
    });
    const claimer = world.claimer(transport, {
      jobs: [job],
      log(entry) {
        throw new Error(`no log today: ${entry.event}`);
      },
    });
    await claimer.enqueueMany(job, [{ n: 1 }, { n: 2 }]);
    expect(await invoke(claimer)).toMatchObject({ done: 1, retried: 1 });
    expect(await effects(world)).toEqual([1]);
  });
});

/** Registers the kinds with nothing due. */
async function invokeOnlyWake(
  world: World,
  claimer: { invoke: ReturnType<typeof createClaimer>["invoke"] },
): Promise<void> {
  await world.sql.query("update pgclaim.job set state = 'scheduled', run_at = clock_timestamp() + interval '1 hour'");
  expect(await claimer.invoke({ type: "manual" })).toMatchObject({ ended: "idle" });
  await world.sql.query("update pgclaim.job set state = 'ready', run_at = clock_timestamp()");
}
