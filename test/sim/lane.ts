// One database with persistent sessions in which histories are played one after another, and the isolates that play them.

import type pg from "pg";
import { vi } from "vitest";
import * as z from "zod";
import type { Claimer } from "../../src/claimer.ts";
import type { Clock } from "../../src/clock.ts";
import { type Database, literal, type PgClient } from "../../src/database.ts";
import { type AnyJobDefinition, defineJob } from "../../src/define.ts";
import { sqlStateOf } from "../../src/errors.ts";
import { alter } from "../postgres/sql/support.ts";
import { setup, type World } from "../support/world.ts";
import { Backends } from "./backends.ts";
import type { Cast, JobSpec } from "./casts.ts";
import type { Footprint } from "./independence.ts";
import { Actor, ConnectionLost, currentActor, onStage, Stage, type Verb } from "./stage.ts";
import { StagedClient } from "./staged_client.ts";

type CreateClaimer = typeof import("../../src/claimer.ts").createClaimer;

/** Below this a timer is a pause between two tries, and passes at once; above it a limit, which no history reaches. */
const pauseBelowMs = 5_000;

/** What a history found in the database when everybody had ended. */
export interface Snapshot {
  readonly jobs: readonly {
    readonly id: string;
    readonly state: string;
    readonly attempt: number;
    readonly suspect: boolean;
    readonly dead_reason: string | null;
    readonly place: string | null;
  }[];
  readonly attempts: readonly {
    readonly job_id: string;
    readonly n: number;
    readonly tick: string;
    readonly quarantined: boolean;
    readonly outcome: string | null;
  }[];
  readonly ticks: readonly { readonly id: string; readonly outcome: string }[];
  readonly history: readonly {
    readonly job_id: string;
    readonly outcome: string;
    readonly attempts: number;
    readonly failures: number;
    readonly place: string | null;
  }[];
  readonly effects: readonly { readonly job: string; readonly attempt: number; readonly tick: string }[];
  readonly gates: readonly string[];
  readonly locks: number;
}

const tables = [
  ...["job", "attempt", "tick", "history", "recheck", "unique_key", "reservation", "cancel_request"].map(
    (t) => `pgclaim.${t}`,
  ),
  "effect",
];

// Functions, because their plans are kept: both are called for every history.
const resetFunction = `create function sim_reset(request jsonb) returns setof bigint language plpgsql as $$ begin
  ${tables.map((table) => `delete from ${table};`).join(" ")}
  return query select e.job_id from pgclaim.enqueue_v1(request) e order by e.i;
end $$`;

const snapshotFunction = `create function sim_snapshot() returns jsonb language plpgsql as $$ begin return ((
  select jsonb_build_object(
  'jobs', (select coalesce(jsonb_agg(jsonb_build_object('id', j.id::text, 'state', j.state, 'attempt', j.attempt,
  'suspect', j.suspect, 'dead_reason', j.dead_reason, 'place', j.place::text) order by j.id), '[]') from pgclaim.job j),
  'attempts', (select coalesce(jsonb_agg(jsonb_build_object('job_id', a.job_id::text, 'n', a.n, 'tick', a.tick,
  'quarantined', a.quarantined, 'outcome', a.outcome) order by a.job_id, a.n), '[]') from pgclaim.attempt a),
  'ticks', (select coalesce(jsonb_agg(jsonb_build_object('id', t.id, 'outcome', t.outcome)), '[]') from pgclaim.tick t),
  'history', (select coalesce(jsonb_agg(jsonb_build_object('job_id', h.job_id::text, 'outcome', h.outcome, 'attempts', h.attempts,
  'failures', h.failures, 'place', h.place::text) order by h.finished_at, h.place), '[]') from pgclaim.history h),
  'effects', (select coalesce(jsonb_agg(jsonb_build_object('job', e.job, 'attempt', e.attempt, 'tick', e.tick) order by e.i), '[]') from effect e),
  'gates', (select coalesce(jsonb_agg(b.what), '[]') from (
  select 'more ready than may run: ' || j.gate as what from pgclaim.job j where j.gate is not null and j.state = 'ready'
  group by j.gate, j.gate_width having count(*) > j.gate_width
  union all
  select 'without a place: ' || j.id from pgclaim.job j where j.gate is not null and j.place is null
  union all
  select 'active and not the lowest: ' || j.gate from pgclaim.job j
  where j.ordering_key is not null and j.state in ('ready', 'scheduled') and exists (
  select from pgclaim.job o where o.gate = j.gate and o.place < j.place and not (o.state = 'dead' and o.when_dead = 'skip'))
  ) b),
  'locks', (select count(*) from pg_locks l where l.locktype = 'advisory'
  and l.database = (select d.oid from pg_database d where d.datname = current_database()))
  )
)); end $$`;

export class Lane {
  readonly world: World;
  readonly backends: Backends;
  readonly #isolates: readonly CreateClaimer[];
  #claimers = new Map<string, Claimer>();
  #cast: Cast | null = null;
  /** Names of the history's jobs by id, and what each needs. */
  readonly names = new Map<string, string>();
  readonly #specs = new Map<string, JobSpec>();
  #nowMs = 0;
  #sinceTruncate = 0;

  private constructor(world: World, backends: Backends, isolates: readonly CreateClaimer[]) {
    this.world = world;
    this.backends = backends;
    this.#isolates = isolates;
  }

  static async open(killOneIn = 10): Promise<Lane> {
    const world = await setup();
    // Whatever else looked at these tables would make a step wait that nobody of the history holds up.
    for (const table of ["job", "attempt", "tick", "history", "recheck"])
      await world.sql.query(`alter table pgclaim.${table} set (autovacuum_enabled = false)`);
    await world.sql.query(
      "create table effect (i bigint generated always as identity, job text not null, attempt integer not null, tick uuid not null)",
    );
    // On a busy machine a history may stand still for longer than a settle waits in earnest.
    await alter(world.sql, "pgclaim.settle_v1(jsonb)", [
      ["set_config('lock_timeout', '2s', true)", "set_config('lock_timeout', '60s', true)"],
    ]);
    await world.sql.query(resetFunction);
    await world.sql.query(snapshotFunction);
    const backends = await Backends.open(world.url, killOneIn);
    // The latch is module state: an isolate of its own is a module graph of its own.
    const isolates: CreateClaimer[] = [];
    for (let i = 0; i < 4; i++) {
      vi.resetModules();
      isolates.push((await import("../../src/claimer.ts")).createClaimer);
    }
    return new Lane(world, backends, isolates);
  }

  async close(): Promise<void> {
    await this.backends.close();
  }

  /** Makes the claimers of a cast and registers its kinds. */
  async prepare(cast: Cast): Promise<void> {
    if (this.#cast === cast) return;
    this.#cast = cast;
    this.#claimers = new Map();
    for (const [i, name] of [...cast.invocations, "drain"].entries()) {
      const isolate =
        name === "drain" ? this.#isolates.length - 1 : cast.oneIsolate === true ? 0 : i % (this.#isolates.length - 1);
      const create = this.#isolates[isolate];
      if (create === undefined) throw new Error(`no isolate ${isolate}`);
      this.#claimers.set(
        name,
        create({
          jobs: this.#definitions(cast),
          database: this.#database(),
          clock: this.#clock(),
          log: () => {},
          batch: name === "drain" ? 25 : cast.batch,
          maxTicks: name === "drain" ? "none" : (cast.maxTicks ?? 1),
          // As long as a slow machine may take; no history waits for any of them.
          limits: { close: "60s", cancelPoll: "60s", message: "60s", oneShot: "60s" },
        }),
      );
    }
    await this.#free("drain", () => this.claimer("drain").register());
  }

  claimer(name: string): Claimer {
    const claimer = this.#claimers.get(name);
    if (claimer === undefined) throw new Error(`nobody is called ${name}`);
    return claimer;
  }

  /** An empty installation with the cast's first jobs in it, and a stage. */
  async reset(cast: Cast): Promise<Stage> {
    // Time passes between histories: what is left of the last one's isolates has expired.
    this.#nowMs += 10_000_000;
    this.names.clear();
    this.#specs.clear();
    const { monitor } = this.backends;
    // Truncate costs a file for each table; now and then it is cheaper than reading past what is dead.
    if (this.#sinceTruncate++ % 300 === 0) await monitor.query(`truncate ${tables.join(", ")}`);
    const first = cast.jobs.filter((job) => job.by === undefined);
    const { rows } = await monitor.query<{ job_id: string }>("select sim_reset($1)::text as job_id", [
      JSON.stringify({ jobs: first.map(request) }),
    ]);
    for (const [i, row] of rows.entries()) this.learn(row.job_id, first[i]);
    const stage = new Stage(this.backends, (id) => this.resources(id));
    stage.audit = () => this.#audit(stage);
    return stage;
  }

  /** Takes something out of a function of this lane's schema. */
  alter(signature: string, changes: readonly (readonly [from: string, to: string])[]): Promise<void> {
    return alter(this.backends.monitor, signature, changes);
  }

  /** What must hold at every moment, not only when all have ended. */
  async #audit(stage: Stage): Promise<void> {
    const { rows } = await this.backends.monitor.query<{ what: string; job_id: string; tick: string | null }>(`
      select 'two open' as what, a.job_id::text, null as tick from pgclaim.attempt a where a.outcome is null
      group by a.job_id having count(*) > 1
      union all
      select 'crashed', a.job_id::text, a.tick::text from pgclaim.attempt a where a.outcome = 'crashed'`);
    for (const { what, job_id, tick } of rows) {
      const name = this.names.get(job_id) ?? job_id;
      if (what === "two open") stage.faults.push(`${name} has two open attempts`);
      else if ([...stage.sessions].some((session) => session.held !== "local" && session.tick?.id === tick))
        stage.faults.push(`an attempt of ${name} was reaped while its transaction lived`);
    }
  }

  learn(id: string, spec: JobSpec | undefined): void {
    if (spec === undefined) throw new Error(`job ${id} is nobody's`);
    // A caller that had to repeat its transaction enqueues the same job under another id.
    for (const [other, name] of this.names) if (name === spec.name) this.names.delete(other);
    this.names.set(id, spec.name);
    this.#specs.set(id, spec);
  }

  spec(id: string): JobSpec | undefined {
    return this.#specs.get(id);
  }

  resources(id: string): ReadonlySet<string> | null {
    const spec = this.#specs.get(id);
    return spec === undefined ? null : resourcesOf(spec);
  }

  /** Begins every actor of the cast, each before its first step. */
  enter(stage: Stage, cast: Cast): Actor[] {
    const enqueuers = [...new Set(cast.jobs.flatMap(({ by }) => (by === undefined ? [] : [by])))];
    return [
      ...cast.invocations.map((name) => stage.enter(name, () => this.claimer(name).invoke({ type: "manual" }))),
      ...enqueuers.map((name) => stage.enter(name, () => this.#enqueue(stage, cast, name))),
      ...(cast.wakes === true ? [stage.enter("W", () => this.#wake(currentActor()))] : []),
      ...(cast.prunes === true ? [stage.enter("P", () => this.#prune(currentActor()))] : []),
    ];
  }

  /** One fresh invocation, healthy and undisturbed. */
  drain(stage: Stage): Promise<unknown> {
    this.#nowMs += 10_000_000;
    return this.#free("drain", () => this.claimer("drain").invoke({ type: "manual" }), stage);
  }

  async snapshot(): Promise<Snapshot> {
    const { rows } = await this.backends.monitor.query<{ s: Snapshot }>("select sim_snapshot() as s");
    const [row] = rows;
    if (row === undefined) throw new Error("no snapshot");
    return row.s;
  }

  #free<T>(
    name: string,
    play: () => Promise<T>,
    stage = new Stage(this.backends, (id) => this.resources(id)),
  ): Promise<T> {
    return onStage.run(new Actor(stage, name, true), play);
  }

  async #wake(actor: Actor): Promise<void> {
    await oneShot(
      actor,
      "select pgclaim.wake_v1($1::jsonb) as answer",
      JSON.stringify({
        digest: "unknown",
        queues: ["default"],
        schedules: [],
        reapSlice: 200,
        dueSlice: 500,
        gateSlice: 200,
        cancelSlice: 200,
        pruneSlice: 500,
        historyMs: null,
      }),
    );
  }

  #prune(actor: Actor): Promise<unknown> {
    return actor.stage.step({
      actor,
      verb: "prune",
      send: ({ client }) =>
        client.query(`update pgclaim.attempt set started_at = started_at - interval '2 days', ended_at = ended_at - interval '2 days' where outcome is not null;
          select pgclaim.prune(500, null)`),
      footprint: () => "global",
    });
  }

  /** A caller's own transaction: its jobs, then COMMIT. */
  async #enqueue(stage: Stage, cast: Cast, name: string): Promise<void> {
    const actor = currentActor();
    const level = cast.isolation?.[name] ?? "read committed";
    const jobs = cast.jobs.filter(({ by }) => by === name);
    const held: Footprint = new Set(jobs.flatMap((job) => [...resourcesOf(job)]));
    const session = new StagedClient(stage, actor);
    await session.connect("caller");
    const client = {
      query: async (text: string, values: unknown[] = []) => ({
        rows: (await session.run({ verb: "enqueue", text, values, footprint: "local" })).rows,
      }),
    };
    for (let committed = false; !committed; ) {
      await session.run({
        verb: "enqueue",
        text: `begin isolation level ${level}; select count(*) from pgclaim.job`,
        // Above READ COMMITTED this is when it looks at others.
        footprint: level === "read committed" ? "local" : "reader",
      });
      try {
        const answer = await this.claimer("drain").enqueueByKind(jobs.map(request), { client });
        for (const [i, { id }] of answer.entries()) this.learn(id, jobs[i]);
        await session.run({ verb: "commit", text: "commit", footprint: held });
        committed = true;
      } catch (error) {
        // What a caller at SERIALIZABLE has to expect, of us as of anybody.
        if (sqlStateOf(error) !== "40001" || level !== "serializable") throw error;
        await session.run({ verb: "rollback", text: "rollback", footprint: "local" });
      }
    }
    stage.commits.push(name);
    await session.end();
  }

  #definitions(cast: Cast): AnyJobDefinition[] {
    return cast.kinds.map((kind) =>
      defineJob({
        kind: kind.name,
        payload: z.object({ name: z.string(), k: z.string(), fails: z.number() }),
        timeout: "10s",
        retry: { minBackoff: "0s", maxBackoff: "0s", maxAttempts: kind.maxAttempts ?? 8 },
        maxCrashes: kind.maxCrashes ?? 3,
        alone: kind.alone ?? false,
        ...(kind.orderingKey === true ? { orderingKey: "{k}" as const } : {}),
        ...(kind.lock === true ? { locks: ["{k}" as const] } : {}),
        ...(kind.limit === undefined ? {} : { limits: [{ name: "{k}" as const, max: kind.limit }] }),
        run: async ({ payload, job, tx }) => {
          const actor = currentActor();
          const ended = this.#starts(actor, job.id, job.attempt);
          try {
            await actor.stage.step({
              actor,
              verb: "call",
              of: payload.name,
              needsBackend: false,
              send: () => Promise.resolve(),
            });
            await tx.query(
              "insert into effect (job, attempt, tick) values ($1, $2, current_setting('pgclaim.tick')::uuid)",
              [payload.name, job.attempt],
            );
            if (job.failures < payload.fails) throw new Error("as it was told");
          } finally {
            ended();
          }
        },
      }),
    );
  }

  /** Notes a start, and whether it may be: nobody else whose transaction lives has what it needs. */
  #starts(actor: Actor, id: string, attempt: number): () => void {
    const { stage } = actor;
    const name = this.names.get(id) ?? id;
    const session = stage.everySession.findLast((one) => one.actor === actor && one.tick?.jobs.has(id));
    stage.starts.push({
      job: name,
      attempt,
      tick: session?.tick?.id ?? "?",
      actor: actor.name,
      quarantined: session?.tick?.quarantined ?? false,
    });
    if (session === undefined) {
      stage.faults.push(`${actor.name} starts ${name} without a claim`);
      return () => {};
    }
    // Its transaction may be over and it cannot know: what it does outside may repeat, its effects are lost with it.
    if (session.held === "local") return () => {};
    const needs = [...(this.resources(id) ?? [])];
    for (const need of needs) {
      const limit = /^limit:.*:(\d+)$/.exec(need);
      const holders = [...stage.sessions].filter((one) => one !== session && one.running.has(need));
      if (limit === null && (holders.length > 0 || session.running.get(need) === true))
        stage.faults.push(`${actor.name} starts ${name} while another one has ${need}`);
      if (limit !== null && holders.length >= Number(limit[1]))
        stage.faults.push(`${actor.name} starts ${name} beside ${holders.length} others of ${need}`);
      session.running.set(need, true);
    }
    return () => {
      for (const need of needs) session.running.set(need, false);
    };
  }

  #clock(): Clock {
    return {
      now: () => this.#nowMs,
      date: () => new Date(),
      random: () => 0.5,
      timer: (ms, callback) => {
        if (ms >= pauseBelowMs) return () => {};
        let over = false;
        setImmediate(() => {
          if (over) return;
          this.#nowMs += ms;
          callback();
        });
        return () => {
          over = true;
        };
      },
    };
  }

  #database(): Database {
    return {
      open() {
        const actor = currentActor();
        const client = new StagedClient(actor.stage, actor);
        return { client: client as unknown as PgClient, destroy: () => client.destroy() };
      },
      oneShot: ({ text, argument }) => oneShot(currentActor(), text, argument),
    };
  }
}

/** As the transport for Node sends it, on a connection that is kept. */
async function oneShot(actor: Actor, text: string, argument: string): Promise<readonly Record<string, unknown>[]> {
  const [, name = "other"] = /pgclaim\.(\w+)_v1\(/.exec(text) ?? [];
  const verb: Verb = name === "wake" || name === "fence" || name === "settle" ? name : "other";
  const message = [
    "begin isolation level read committed read write",
    text.replace("$1", () => literal(argument)),
    "commit",
  ];
  return actor.stage.step({
    actor,
    verb,
    send: async ({ client }) => {
      const results = (await client.query(message.join(";\n"))) as unknown as pg.QueryResult[];
      if (results.at(-1)?.command !== "COMMIT") throw new ConnectionLost();
      return results[1]?.rows ?? [];
    },
    footprint: (rows) => touched(actor, verb, rows, argument),
  });
}

function touched(
  actor: Actor,
  verb: Verb,
  rows: readonly Record<string, unknown>[] | null,
  argument: string,
): Footprint {
  if (verb === "wake") {
    const answer = rows?.[0]?.answer as { crashed: number; promoted: number; pruned: number } | undefined;
    if (answer === undefined) return "global";
    return answer.crashed + answer.promoted + answer.pruned === 0 ? "reader" : "global";
  }
  if (verb !== "settle") return "global";
  const { jobs } = JSON.parse(argument) as { jobs: { id: string }[] };
  const names = jobs.map(({ id }) => actor.stage.resourcesOf(id));
  return names.includes(null) ? "global" : new Set(names.flatMap((set) => [...(set ?? [])]));
}

function request(job: JobSpec) {
  return { kind: job.kind, payload: { name: job.name, k: job.k ?? job.name, fails: job.fails ?? 0 } };
}

function resourcesOf(job: JobSpec): ReadonlySet<string> {
  return new Set([job.name, ...(job.needs ?? [])]);
}
