// Real connections, kept and used again: a fresh backend has to plan every function anew, which costs more than a history.

import pg from "pg";
import { endsWithin } from "../support/gate.ts";

/** What it is for: those that are killed all the time must not take the others' plans with them. */
export type Role = "session" | "caller" | "one-shot";

export interface Backend {
  readonly role: Role;
  readonly client: pg.Client;
  readonly pid: number;
  /** Settles when the server's process is gone, and its transaction and locks with it. */
  readonly gone: Promise<void>;
}

export class Backends {
  readonly #url: string;
  readonly #idle: Record<Role, Backend[]> = { session: [], caller: [], "one-shot": [] };
  readonly #all = new Set<Backend>();
  readonly #monitor: pg.Client;
  killed = 0;
  /** Transactions ended from outside, by a kill or by a rollback. */
  ended = 0;
  readonly #killOneIn: number;

  private constructor(url: string, monitor: pg.Client, killOneIn: number) {
    this.#killOneIn = killOneIn;
    this.#url = url;
    this.#monitor = monitor;
  }

  static async open(url: string, killOneIn: number): Promise<Backends> {
    const monitor = new pg.Client(url);
    monitor.on("error", () => {}); // the database may be dropped before a test that failed has closed it
    await monitor.connect();
    return new Backends(url, monitor, killOneIn);
  }

  /** Outside of every history: what looks at locks, ends backends, resets and checks. */
  get monitor(): Pick<pg.Client, "query"> {
    return this.#monitor;
  }

  async take(role: Role): Promise<Backend> {
    const idle = this.#idle[role].pop();
    if (idle !== undefined) return idle;
    const client = new pg.Client(this.#url);
    client.on("error", () => {}); // its end is awaited, not announced
    const gone = new Promise<void>((resolve) => {
      client.on("end", () => resolve());
    });
    await client.connect();
    const { rows } = await client.query<{ pid: number }>("select pg_backend_pid() as pid");
    const backend = { role, client, pid: Number(rows[0]?.pid), gone };
    this.#all.add(backend);
    return backend;
  }

  /** Returns when the server has dealt with everything sent to it so far, or is gone. */
  async ready({ client, gone }: Backend): Promise<void> {
    await Promise.race([client.query(""), gone]).catch(() => {});
  }

  /** Its transaction is over. */
  give(backend: Backend): void {
    this.#idle[backend.role].push(backend);
  }

  /**
   * The death of an idle session. One in so many is killed; of the others only the transaction is rolled back, which does the
   * same to it and its locks, and leaves a backend that need not plan everything anew.
   */
  async end(backend: Backend): Promise<void> {
    if (this.ended++ % this.#killOneIn === 0) return this.kill(backend);
    await backend.client.query("rollback");
    this.give(backend);
  }

  /** Ends the server's process, whatever it does. The socket closes after the transaction and its locks have gone. */
  async kill(backend: Backend): Promise<void> {
    this.killed++;
    this.#all.delete(backend);
    await this.#monitor.query("select pg_terminate_backend($1)", [backend.pid]);
    await endsWithin(10_000, backend.gone, `backend ${backend.pid}`);
  }

  /** Whether the backend waits for a lock that another one has. */
  async isBlocked(backend: Backend): Promise<boolean> {
    const { rows } = await this.#monitor.query<{ blocked: boolean }>(
      "select cardinality(pg_blocking_pids($1)) > 0 as blocked",
      [backend.pid],
    );
    return rows[0]?.blocked === true;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#all].map(({ client }) => client.end().catch(() => {})));
    await this.#monitor.end();
  }
}
