// The session of an actor as the driver's client looks to the engine, on a real backend: each message is a step.

import pg from "pg";
import type { Backend, Role } from "./backends.ts";
import { type Footprint, union } from "./independence.ts";
import { type Actor, ConnectionLost, type Stage, type Verb } from "./stage.ts";

/** What the engine makes of the driver's Query. */
export interface QueryObject {
  callback: (error: unknown, result?: unknown) => void;
}

interface Result {
  readonly command: string;
  readonly rows: readonly Record<string, unknown>[];
}

/** The tick whose transaction is open. */
interface Tick {
  readonly id: string;
  readonly quarantined: boolean;
  /** Job ids with the attempt they were claimed for. */
  readonly jobs: ReadonlyMap<string, number>;
}

export class StagedClient {
  /** The engine makes its extended queries from the driver's own class. */
  static readonly Query: unknown = pg.Query;
  readonly actor: Actor;
  readonly #stage: Stage;
  readonly #listeners = new Map<string, ((error?: unknown) => void)[]>();
  #backend: Backend | null = null;
  tick: Tick | null = null;
  /** Exclusive names whose holder has started here; false once its handler has ended. */
  readonly running = new Map<string, boolean>();
  /** Holds what others may have to wait for. */
  writes = false;
  /** The engine's end of it is gone. */
  lost = false;
  #open = false;
  /** A statement outside of every savepoint has failed: the server has undone everything and given the locks back. */
  #aborted = false;
  #held: Footprint = "local";
  #lastClaim = "";

  constructor(stage: Stage, actor: Actor) {
    this.#stage = stage;
    this.actor = actor;
  }

  get backend(): Backend {
    if (this.#backend === null) throw new Error("a step on a session that is not connected");
    return this.#backend;
  }

  /** What is free again when the transaction ends, or changes with it. */
  get held(): Footprint {
    return this.#open && !this.#aborted ? this.#held : "local";
  }

  async connect(role: Role = "session"): Promise<void> {
    this.#backend = await this.#stage.backends.take(role);
    this.#stage.sessions.add(this);
    this.#stage.everySession.push(this);
  }

  on(event: string, listener: (error?: unknown) => void): this {
    this.#listeners.set(event, [...(this.#listeners.get(event) ?? []), listener]);
    return this;
  }

  query(query: string | QueryObject): unknown {
    // Killed behind the engine's back: it learns of it now.
    if (this.#backend === null && !this.lost) this.lose();
    if (typeof query === "string") return this.lost ? Promise.reject(new ConnectionLost()) : this.#message(query);
    void this.#extended(query);
    return query;
  }

  async end(): Promise<void> {
    const backend = this.#backend;
    if (backend === null) return;
    if (this.#open) return this.kill();
    this.#backend = null;
    this.#stage.sessions.delete(this);
    this.#stage.backends.give(backend);
  }

  destroy(): void {
    // After a loss that the history made; a healthy session says goodbye first.
    if (this.#backend !== null && !this.lost) void this.end();
  }

  async #message(text: string): Promise<unknown> {
    const statements = text.split(";\n");
    const verb = verbOf(statements);
    if (verb === "claim") this.#lastClaim = text;
    if (verb !== "finish") return this.#step(verb, text, (value) => this.#footprint(verb, value));
    const finished = (await this.#step("finish", statements.slice(0, -1).join(";\n"), () => this.#held)) as Result[];
    const committed = await this.#commit(this.actor);
    return [...finished, committed];
  }

  #commit(actor: Actor): Promise<Result> {
    const held = this.#held;
    return this.#step("commit", "commit", () => held, actor) as Promise<Result>;
  }

  /** The rest of a message whose first statements went through, its sender being gone. */
  async commitAs(actor: Actor): Promise<void> {
    await this.#commit(actor);
  }

  /** The server finds the connection gone. */
  async dieAs(actor: Actor): Promise<void> {
    if (this.#backend === null) return;
    const held = this.held;
    await this.#stage.step({
      actor,
      verb: "die",
      needsBackend: false,
      send: () => this.kill(),
      footprint: () => held,
    });
  }

  #step(verb: Verb, text: string, footprint: (value: unknown) => Footprint, actor = this.actor): Promise<unknown> {
    return this.#stage.step({
      actor,
      verb,
      session: this,
      send: ({ client }) => client.query(text) as Promise<unknown>,
      footprint,
    });
  }

  /** A statement of an actor that is no engine. */
  run(request: {
    readonly verb: Verb;
    readonly text: string;
    readonly values?: readonly unknown[];
    readonly footprint: Footprint;
  }): Promise<pg.QueryResult> {
    return this.#stage.step({
      actor: this.actor,
      verb: request.verb,
      session: this,
      send: ({ client }) =>
        request.values === undefined ? client.query(request.text) : client.query(request.text, [...request.values]),
      footprint: () => request.footprint,
    });
  }

  async #extended(query: QueryObject): Promise<void> {
    const { callback } = query;
    if (this.lost) return callback(new ConnectionLost());
    try {
      const result = await this.#stage.step({
        actor: this.actor,
        verb: "effect",
        session: this,
        send: ({ client }) =>
          new Promise((resolve, reject) => {
            query.callback = (error, answer) => (error == null ? resolve(answer) : reject(error));
            client.query(query as unknown as pg.Query);
          }),
      });
      callback(null, result);
    } catch (error) {
      callback(error);
    }
  }

  before(verb: Verb): void {
    if (verb === "enqueue") this.#open = true;
    if (!this.writes && (verb === "effect" || verb === "finish" || verb === "enqueue" || verb === "commit")) {
      this.writes = true;
      this.#stage.wrote(1);
    }
  }

  /** Takes note of what the answer says about the transaction. */
  after(verb: Verb, failed: boolean, value: unknown): void {
    if (verb === "claim" && !failed) this.#claimed(value as Result[]);
    if (verb === "rollback" || (verb === "commit" && !failed)) this.#over();
    else if (failed && (verb === "finish" || verb === "commit")) this.#abort();
  }

  #claimed(results: readonly Result[]): void {
    const claims = (results.at(-1)?.rows ?? []).filter(({ skip }) => skip === null);
    const jobs = new Map(claims.map((row) => [String(row.job_id), Number(row.attempt)]));
    const [, id] = /\.tick = E'([^']+)'/.exec(this.#lastClaim) ?? [];
    this.tick = { id: id ?? "?", quarantined: /"quarantined":true/.test(this.#lastClaim), jobs };
    for (const other of this.#stage.sessions) {
      const both =
        other === this || other.held === "local" ? [] : [...jobs.keys()].filter((job) => other.tick?.jobs.has(job));
      for (const job of both)
        this.#stage.faults.push(`${this.actor.name} claims ${job} while ${other.actor.name} holds it`);
    }
    this.#open = true;
    let held: Footprint = "local";
    for (const job of jobs.keys()) held = union(held, this.#stage.resourcesOf(job) ?? "global");
    this.#held = held;
  }

  #footprint(verb: Verb, value: unknown): Footprint {
    if (verb === "claim") return value === null || this.tick?.jobs.size === 0 ? "reader" : "global";
    return verb === "rollback" ? this.#held : "local";
  }

  /** The engine's end: whatever it waits for fails, and its driver says that the connection is gone. */
  lose(): void {
    this.lost = true;
    for (const step of this.actor.pending.filter(({ session }) => session === this)) step.reject(new ConnectionLost());
    this.actor.pending = this.actor.pending.filter(({ session }) => session !== this);
    for (const listener of this.#listeners.get("error") ?? []) listener(new ConnectionLost());
    for (const listener of this.#listeners.get("end") ?? []) listener();
  }

  /** The server's end. */
  async kill(busy = false): Promise<void> {
    const backend = this.#backend;
    if (backend === null) return;
    this.#backend = null;
    this.#stage.sessions.delete(this);
    if (busy) await this.#stage.backends.kill(backend);
    else await this.#stage.backends.end(backend);
    this.#over();
  }

  async abandon(stuck: boolean): Promise<void> {
    const backend = this.#backend;
    if (backend === null) return;
    if (stuck) return this.kill(true);
    if (this.#open) await backend.client.query("rollback");
    this.#over();
    this.#backend = null;
    this.#stage.sessions.delete(this);
    this.#stage.backends.give(backend);
  }

  #over(): void {
    this.#abort();
    this.#open = false;
    this.#aborted = false;
  }

  #abort(): void {
    this.#aborted = true;
    this.running.clear();
    if (this.writes) this.#stage.wrote(-1);
    this.writes = false;
  }
}

function verbOf(statements: readonly string[]): Verb {
  const [first = ""] = statements;
  if (first.startsWith("begin isolation")) return "claim";
  if (first === "rollback") return "rollback";
  if (first.startsWith("rollback to")) return "undo";
  if (statements.some((one) => one.includes(".finish_v1("))) return "finish";
  if (statements.some((one) => one.includes(".end_turn_v1("))) return "end-turn";
  if (statements.at(-1) === "savepoint pgclaim_turn") return "turn";
  return "other";
}
