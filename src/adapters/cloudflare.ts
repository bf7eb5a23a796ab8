// pgclaim as a Cloudflare Worker: its events become triggers, its bindings become configuration. Typed by structure, so
// that no version of the platform's types is forced on anybody.

import type { ExecutionContext, Hono } from "hono";
import { type Claimer, createClaimer } from "../claimer.ts";
import type { Database } from "../database.ts";
import { createApp } from "../http/app.ts";
import { answerError, cronError, deploymentFault, errorOf } from "../http/respond.ts";
import type { InvocationReport, Trigger } from "../model.ts";
import { consoleLog, type Log } from "../report.ts";
import { type DeploymentOptions, databaseOf, secretsOf } from "./environment.ts";

/** What a Worker's own routes are given. */
export interface AppTools<Env extends object> {
  readonly env: Env;
  /** The claimer, made at the first call. Errors: PGCLAIM_INVALID_DATABASE_URL and those of `createClaimer`. */
  readonly claimer: () => Claimer;
}

/** The options of `createClaimer`; the database is the one of DATABASE_URL unless `database` is given. */
export type WorkerOptions<Env extends object> = DeploymentOptions & {
  /**
   * Adds routes of your own beside the API's, once per isolate. They are open unless they check for themselves; what they
   * throw is answered and logged as everything else is.
   */
  readonly app?: (app: Hono<{ Bindings: Env }>, tools: AppTools<Env>) => void;
};

/** What `scheduled` is given; a `ScheduledController` fits. */
export interface CronEvent {
  readonly cron: string;
  /** When it was planned for, in milliseconds since 1970. */
  readonly scheduledTime: number;
}

/** What both handlers are given; an `ExecutionContext` fits. */
export interface WorkerContext {
  waitUntil(promise: Promise<unknown>): void;
}

export interface WorkerHandlers<Env extends object> {
  fetch(request: Request, env: Env, ctx: WorkerContext): Promise<Response>;
  scheduled(controller: CronEvent, env: Env, ctx: WorkerContext): Promise<void>;
}

const secretCommand = "wrangler secret put";

/**
 * The two handlers of a Worker: `export default createWorker({ jobs: [sendReceipt] })`.
 *
 * Reads DATABASE_URL, the PGCLAIM_..._SECRET of each scope and CRON_SECRET from `env`. `fetch` serves the HTTP API and
 * never rejects. `scheduled` runs one invocation and rejects if it ended in an error, so that the platform records a
 * failed run; an isolate that was busy with a quarantined tick is no failure.
 */
export function createWorker<Env extends object = Record<string, unknown>>(
  options: WorkerOptions<Env> | ((env: Env) => WorkerOptions<Env>),
): WorkerHandlers<Env> {
  // Kept for each env, which is one per isolate. Safe across requests, since what is kept is configuration: definitions,
  // secrets and an address. Connections and sockets, which belong to the request that opened them, are opened and closed
  // inside one invocation. Weak, so that an env the runtime drops takes its claimer with it.
  const deployments = new WeakMap<Env, Deployment<Env>>();
  const deploymentOf = (env: Env): Deployment<Env> => {
    let deployment = deployments.get(env);
    if (deployment === undefined) {
      deployment = deploy(typeof options === "function" ? options(env) : options, env);
      deployments.set(env, deployment);
    }
    return deployment;
  };

  return {
    async fetch(request, env, ctx) {
      let answer: Promise<Response>;
      try {
        // Structural: what Hono asks for beyond waitUntil, only routes of the user's own can ask of it.
        answer = Promise.resolve(deploymentOf(env).app.fetch(request, env, ctx as ExecutionContext));
      } catch (error) {
        return answerError(deploymentFault(error), { route: request.method, log: consoleLog });
      }
      // A caller that hangs up does not end the work it began: it gets the 30 s that the platform gives.
      ctx.waitUntil(answer.catch(() => {}));
      return answer;
    },

    async scheduled(controller, env) {
      let log = consoleLog;
      let report: InvocationReport;
      try {
        const deployment = deploymentOf(env);
        log = deployment.log;
        report = await deployment.claimer().invoke(cronTrigger(controller));
      } catch (error) {
        throw cronError(error, { route: `cron ${controller.cron}`, log });
      }
      const failure = errorOf(report);
      if (failure !== null) throw failure;
    },
  };
}

interface Deployment<Env extends object> {
  readonly app: Hono<{ Bindings: Env }>;
  readonly claimer: () => Claimer;
  readonly log: Log;
}

function deploy<Env extends object>({ app: addRoutes, ...options }: WorkerOptions<Env>, env: Env): Deployment<Env> {
  let made: Claimer | undefined;
  // Made at its first use: a request that is refused before needs none.
  const claimer = () => {
    made ??= createClaimer({ ...options, database: options.database ?? droppable(databaseOf(env, secretCommand)) });
    return made;
  };
  const log = options.log ?? consoleLog;
  const app = createApp<Env>({
    claimer,
    secrets: secretsOf(env),
    log,
    secretCommand,
  });
  addRoutes?.(app, { env, claimer });
  return { app, claimer, log };
}

function cronTrigger({ cron, scheduledTime }: CronEvent): Trigger {
  const scheduledAt = new Date(scheduledTime);
  return { type: "cron", cron, scheduledAt: Number.isNaN(scheduledAt.getTime()) ? null : scheduledAt };
}

/** The driver's client, as far as its socket goes. */
interface NeonClient {
  readonly neonConfig: { webSocketConstructor: unknown };
}

/**
 * The same database, but a session's socket can be dropped.
 *
 * workerd ends an invocation only when each WebSocket of it has heard the other side's close frame. From a proxy that is
 * gone without a word none comes, and scheduled() would hang until the platform's limit, 15 minutes.
 */
function droppable(database: Database): Database {
  return {
    ...database,
    open() {
      const { client, destroy } = database.open();
      const sockets = new Set<DroppableSocket>();
      (client as unknown as NeonClient).neonConfig.webSocketConstructor = class extends DroppableSocket {
        constructor(url: string) {
          super(url);
          sockets.add(this);
        }
      };
      return {
        client,
        destroy() {
          destroy();
          for (const socket of sockets) socket.drop();
        },
      };
    },
  };
}

/** workerd's WebSocket, as the answer to an upgrade carries it. */
interface UpgradedSocket {
  binaryType: string;
  accept(): void;
  send(data: Uint8Array): void;
  close(): void;
  addEventListener(type: SocketEvent, listener: (event: unknown) => void): void;
}

type SocketEvent = "open" | "message" | "close" | "error";

/**
 * What the driver needs of a WebSocket, opened by a fetch: aborting that fetch drops the connection at once, for which
 * `new WebSocket()` has no handle.
 */
class DroppableSocket {
  /** Set by the driver to what is set below anyway. */
  binaryType = "arraybuffer";
  readonly #upgrade = new AbortController();
  readonly #listeners: { readonly type: SocketEvent; readonly listener: (event: unknown) => void }[] = [];
  #socket: UpgradedSocket | null = null;
  #closed = false;

  constructor(url: string) {
    this.#open(url).catch((error: unknown) => {
      if (!this.#closed) this.#emit("error", error);
    });
  }

  addEventListener(type: SocketEvent, listener: (event: unknown) => void): void {
    this.#listeners.push({ type, listener });
  }

  /** The driver sends its goodbye a moment after it has closed, where workerd's own socket would throw. */
  send(data: Uint8Array): void {
    if (!this.#closed) this.#socket?.send(data);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#socket === null) this.drop();
    else this.#socket.close();
  }

  drop(): void {
    this.#closed = true;
    this.#upgrade.abort();
  }

  async #open(url: string): Promise<void> {
    const response = await fetch(url.replace(/^ws/, "http"), {
      headers: { upgrade: "websocket" },
      signal: this.#upgrade.signal,
    });
    const { webSocket: socket } = response as { readonly webSocket?: UpgradedSocket | null };
    if (socket == null) {
      await response.body?.cancel();
      throw new Error(`the proxy answered ${response.status} instead of a WebSocket`);
    }
    this.#socket = socket;
    socket.binaryType = this.binaryType;
    for (const type of ["message", "close", "error"] as const) {
      socket.addEventListener(type, (event) => this.#emit(type, event));
    }
    socket.accept();
    this.#emit("open", null);
  }

  #emit(type: SocketEvent, event: unknown): void {
    for (const { type: wanted, listener } of this.#listeners) if (wanted === type) listener(event);
  }
}
