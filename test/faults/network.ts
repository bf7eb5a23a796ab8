// The network between an invocation and its database, on either transport: it counts round trips, and breaks the N-th.

import { type ConnectFault, type SessionFault, type SqlFault, startBridge } from "../../scripts/world/bridge.ts";
import { pgDatabase } from "../../src/adapters/node.ts";
import type { Database } from "../../src/database.ts";
import { neonDatabase } from "../../src/neon.ts";
import { startTcpProxy, type TcpFault } from "../support/tcp_faults.ts";

export const transports = ["pg", "neon"] as const;
export const channels = ["session", "one-shot", "both", "settle"] as const;
export const extents = ["once", "lasting"] as const;

/**
 * How a round trip breaks:
 * - reset, close: the request does not arrive; the connection is reset, or closed in order.
 * - black-hole: the request and all that follows vanish, and nobody is told.
 * - half-open: the request arrives and takes effect, the answer and all that follows vanish; the server's transaction lives.
 * - slow: the request arrives when its sender has long given up, for the invocation has ended.
 * - answer-lost: the request arrives and takes effect, and the answer is cut by a reset; COMMIT too.
 * - answer-closed, slow-answer: the same by a close in order; the answer comes when the invocation has ended.
 */
export const kinds = [
  "reset",
  "close",
  "half-open",
  "black-hole",
  "slow",
  "answer-lost",
  "answer-closed",
  "slow-answer",
] as const;

/** Those whose request or answer comes late. */
export const late: readonly Kind[] = ["slow", "slow-answer"];

export type Transport = (typeof transports)[number];
/**
 * session, one-shot: round trips of that channel.
 * both: counted together; when one breaks, what else is open breaks with it.
 * settle: the session breaks at its first finish, and one-shots are counted from there.
 */
export type Channel = (typeof channels)[number];
/** once: the N-th round trip. lasting: the N-th and every later one, until the network heals. */
export type Extent = (typeof extents)[number];
export type Kind = (typeof kinds)[number];

export interface Fault {
  readonly channel: Channel;
  readonly kind: Kind;
  readonly extent: Extent;
  /** Counts from 1. Infinity breaks nothing and counts. */
  readonly n: number;
}

export interface Network {
  readonly database: Database;
  /** Round trips of the fault's channel since it was armed, by name. */
  readonly trips: readonly string[];
  /** Those that were broken. */
  readonly struck: readonly string[];
  arm(fault: Fault): void;
  /** Everything arrives again; what was slow arrives now, what was broken stays broken. */
  heal(): void;
  /** Whether nothing is under way any more. A black hole is, until it is closed. */
  idle(): boolean;
  /** Ends every connection. */
  close(): Promise<void>;
}

interface Breaks {
  readonly at: "before" | "after";
  readonly tcp: Exclude<TcpFault["how"], object> | "hold";
  readonly ws: Exclude<SessionFault["how"], object> | "hold";
  readonly sql: Exclude<SqlFault["how"], object> | "hold";
  /** Of the WebSocket's upgrade, which comes before any connection to Postgres. */
  readonly connect: ConnectFault["how"];
}

const reset = { tcp: "reset", ws: "tcp-reset", sql: "reset", connect: "reset" } as const;
const close = { tcp: "close", ws: "ws-close", sql: "close", connect: "refuse" } as const;
const silence = { tcp: "black-hole", ws: "black-hole", sql: "hang", connect: "black-hole" } as const;
const delay = { tcp: "hold", ws: "hold", sql: "hold", connect: "black-hole" } as const;

const breaks: Readonly<Record<Kind, Breaks>> = {
  reset: { at: "before", ...reset },
  close: { at: "before", ...close },
  "black-hole": { at: "before", ...silence },
  slow: { at: "before", ...delay },
  "half-open": { at: "after", ...silence },
  "answer-lost": { at: "after", ...reset },
  "answer-closed": { at: "after", ...close },
  "slow-answer": { at: "after", ...delay },
};

/** Counts, and decides which round trip breaks. */
class Counter {
  readonly trips: string[] = [];
  readonly struck: string[] = [];
  #fault: Fault | null = null;
  #finished = false;
  #healed: () => void = () => {};
  /** Settles when the network heals. */
  until: Promise<void> = Promise.resolve();

  arm(fault: Fault): void {
    this.#fault = fault;
    this.#finished = false;
    this.trips.length = 0;
    this.struck.length = 0;
    this.until = new Promise((resolve) => {
      this.#healed = resolve;
    });
  }

  heal(): void {
    this.#fault = null;
    this.#healed();
  }

  /** Whether this round trip passes. */
  passes(channel: "session" | "one-shot", text: string): boolean {
    const fault = this.#fault;
    if (fault === null) return true;
    const name = tripName(channel, text);
    if (fault.channel === "settle") {
      if (channel === "session") {
        if (this.#finished || name !== "finish") return true;
        this.#finished = true;
        return false;
      }
      if (!this.#finished) return true;
    } else if (fault.channel !== "both" && fault.channel !== channel) {
      return true;
    }
    this.trips.push(name);
    const n = this.trips.length;
    if (fault.extent === "once" ? n !== fault.n : n < fault.n) return true;
    this.struck.push(name);
    return false;
  }

  hold<How extends string>(how: How | "hold"): How | { hold: Promise<void>; late: true } {
    return how === "hold" ? { hold: this.until, late: true } : how;
  }
}

export interface NetworkOptions {
  readonly url: string;
  readonly transport: Transport;
  /** Whether the server takes a password with the first message, as Neon's proxy does. */
  readonly pipeline: boolean;
}

export function startNetwork(options: NetworkOptions): Promise<Network> {
  return options.transport === "pg" ? overTcp(options) : overWebSocket(options);
}

function serverOf(url: string): { host: string; port: number } {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port || 5432) };
}

/** Every round trip matches; the counter says which one passes. */
const everyRequest = "";

async function overTcp({ url }: NetworkOptions): Promise<Network> {
  const counter = new Counter();
  const session = await startTcpProxy(serverOf(url));
  const oneShot = await startTcpProxy(serverOf(url));
  const through = (port: number) => {
    const address = new URL(url);
    address.hostname = "127.0.0.1";
    address.port = String(port);
    return address.toString();
  };
  return {
    database: pgDatabase(through(session.port), { oneShotConnectionString: through(oneShot.port) }),
    trips: counter.trips,
    struck: counter.struck,
    arm(fault) {
      counter.arm(fault);
      const { at, tcp } = breaks[fault.kind];
      for (const [proxy, channel] of [
        [session, "session"],
        [oneShot, "one-shot"],
      ] as const) {
        let text = "";
        proxy.onRequest((request) => {
          text = request;
        });
        const skip = () => counter.passes(channel, text);
        const { fired } = proxy.break({
          contains: everyRequest,
          at,
          how: counter.hold(tcp),
          skip,
          times: Number.POSITIVE_INFINITY,
        });
        if (fault.channel !== "both" || tcp === "hold") continue;
        void fired.then(() => {
          session.breakAll(tcp);
          oneShot.breakAll(tcp);
        });
      }
    },
    heal() {
      session.clearFaults();
      oneShot.clearFaults();
      counter.heal();
    },
    idle: () => session.stats.open + oneShot.stats.open === 0,
    async close() {
      await Promise.all([session.close(), oneShot.close()]);
    },
  };
}

async function overWebSocket({ url, pipeline }: NetworkOptions): Promise<Network> {
  const counter = new Counter();
  const bridge = await startBridge({ target: serverOf(url) });
  let frame = "";
  let statements = "";
  bridge.onFrameUp((bytes) => {
    frame = bytes.toString("latin1");
  });
  bridge.onSql((texts) => {
    statements = texts.join(";");
  });
  const always = { times: Number.POSITIVE_INFINITY };
  return {
    database: neonDatabase(url, {
      localBridge: `127.0.0.1:${bridge.port}`,
      ...(pipeline ? {} : { pipelineConnect: false as const }),
    }),
    trips: counter.trips,
    struck: counter.struck,
    arm(fault) {
      counter.arm(fault);
      const { at, ws, sql, connect } = breaks[fault.kind];
      const armed = [
        bridge.breakConnect({ how: connect, skip: () => counter.passes("session", "upgrade"), ...always }),
        bridge.breakSession({
          contains: everyRequest,
          at,
          how: counter.hold(ws),
          skip: () => counter.passes("session", frame),
          ...always,
        }),
        bridge.breakSql({ at, how: counter.hold(sql), skip: () => counter.passes("one-shot", statements), ...always }),
      ];
      if (fault.channel !== "both" || ws === "hold") return;
      for (const { fired } of armed) {
        void fired.then(() => {
          for (const connection of bridge.connections) connection.break(ws);
        });
      }
    },
    heal() {
      bridge.clearFaults();
      counter.heal();
    },
    idle: () => bridge.stats.wsOpen + bridge.stats.sqlOpen === 0,
    close: () => bridge.close(),
  };
}

const verb = /\b(wake|register|fence|settle|claim|finish|end_turn|cancel_query|cancelled|reserve|fire)_v1\b/;

/** What a round trip is about. */
function tripName(channel: "session" | "one-shot", text: string): string {
  const found = verb.exec(text)?.[1];
  if (found !== undefined) return found;
  const what = () => {
    if (text === "upgrade") return "upgrade";
    if (text.startsWith("\0")) return "start-up";
    if (text.startsWith("p")) return "password";
    if (text.startsWith("X")) return "close";
    if (text.includes("rollback to savepoint pgclaim_turn")) return "undo turn";
    if (text.includes("savepoint pgclaim_turn")) return "open turn";
    if (text.includes("rollback")) return "rollback";
    return "query";
  };
  return channel === "session" ? what() : `one-shot's ${what()}`;
}
