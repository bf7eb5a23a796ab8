// Stands between pg and Postgres as the bridge stands between the WebSocket driver and Postgres: it passes requests on
// unchanged until an armed fault meets the one it waits for, and breaks the connection exactly there.

import net from "node:net";
import { type Gate, gate } from "./gate.ts";

/**
 * reset: both sockets are reset. close: both are closed in order. black-hole: nothing flows any more and nobody is told;
 * Postgres keeps its side.
 */
export type TcpBreak = "reset" | "close" | "black-hole";

export interface TcpFault {
  /** Strikes a request with this text in it. */
  readonly contains: string | RegExp;
  /** before: it does not reach Postgres. after: Postgres has answered it, and the answer is cut. */
  readonly at: "before" | "after";
  /** A way to break, or a promise: the request (before) or the answer (after) waits for it. */
  readonly how: TcpBreak | { readonly hold: Promise<unknown> };
  /** Asked at each match whether to let it pass. Default: never. */
  readonly skip?: () => boolean;
  /** Matches to strike. Default 1. */
  readonly times?: number;
}

export interface ArmedTcpFault {
  /** Resolves when it strikes for the first time; for `after`, when the answer has been cut. */
  readonly fired: Promise<void>;
}

export interface TcpProxy {
  readonly port: number;
  /** Connections opened since start, and open towards Postgres now. */
  readonly stats: { opened: number; open: number };
  /** Calls `fn` with each request before any fault is looked at. */
  onRequest(fn: (text: string) => void): void;
  break(fault: TcpFault): ArmedTcpFault;
  /** Breaks every connection there is now: a black hole for ever, a reset or a clean close. */
  breakAll(how: TcpBreak): void;
  /** New connections are swallowed as well, until the answer is called. */
  blackout(): () => void;
  /** Disarms every fault; black holes stay black. */
  clearFaults(): void;
  close(): Promise<void>;
}

interface Armed {
  readonly fault: TcpFault;
  readonly fired: Gate;
  left: number;
}

const readyForQuery = Buffer.from([0x5a, 0, 0, 0, 5]);

/** Starts the proxy on a free port. A request is what one answer is awaited for, however it was cut into packets. */
export async function startTcpProxy(target: { readonly host: string; readonly port: number }): Promise<TcpProxy> {
  const armed = new Set<Armed>();
  const listeners = new Set<(text: string) => void>();
  const stats = { opened: 0, open: 0 };
  const sockets = new Set<net.Socket>();
  const breakers = new Set<(how: TcpBreak) => void>();
  let dark = false;

  function strike(bytes: Buffer): Armed | null {
    const text = bytes.toString("latin1");
    for (const fn of listeners) fn(text);
    for (const one of armed) {
      const { contains, skip } = one.fault;
      if (!(typeof contains === "string" ? text.includes(contains) : contains.test(text))) continue;
      if (skip?.() === true) continue;
      if (--one.left <= 0) armed.delete(one);
      return one;
    }
    return null;
  }

  const breakAll = (how: TcpBreak) => {
    for (const breakNow of [...breakers]) breakNow(how);
  };

  const server = net.createServer({ noDelay: true, allowHalfOpen: true }, (client) => {
    if (dark) {
      sockets.add(client);
      client.on("error", () => {});
      return;
    }
    const upstream = net.connect({ ...target, noDelay: true });
    stats.opened++;
    stats.open++;
    sockets.add(client).add(upstream);
    const requests = new RequestReader();
    let blackHole = false;
    let up: Promise<unknown> | null = null;
    /** Whose answer is being cut, and whether that ends with ReadyForQuery; the answer to a start-up packet does not. */
    let cut: { readonly struck: Armed; readonly ready: boolean } | null = null;
    let held: Buffer[] | null = null;
    /** Whose answer is being held: it has struck when Postgres has answered. */
    let waiting: Armed | null = null;

    function breakNow(how: TcpBreak): void {
      if (blackHole) return;
      if (how === "black-hole") {
        blackHole = true;
        client.pause();
        return;
      }
      if (how === "reset") client.resetAndDestroy();
      else client.end();
      upstream.destroy();
    }
    breakers.add(breakNow);

    function send(bytes: Buffer, struck: Armed | null): void {
      if (blackHole || upstream.destroyed) return;
      if (struck !== null) {
        const { how } = struck.fault;
        if (typeof how === "string") {
          cut = { struck, ready: !isStartup(bytes) };
        } else {
          waiting = struck;
          held ??= [];
          void Promise.allSettled([how.hold]).then(() => {
            for (const answer of held ?? []) client.write(answer);
            held = null;
          });
        }
      }
      upstream.write(bytes);
    }

    function request(bytes: Buffer): void {
      if (blackHole || client.destroyed) return;
      const struck = strike(bytes);
      if (struck?.fault.at === "before") {
        struck.fired.open();
        const { how } = struck.fault;
        if (typeof how === "string") {
          breakNow(how);
          return;
        }
        up = Promise.allSettled([up, how.hold]);
      }
      const go = () => send(bytes, struck?.fault.at === "after" ? struck : null);
      if (up === null) go();
      else up = up.then(go);
    }

    client.on("data", (bytes) => {
      for (const one of requests.read(bytes)) request(one);
    });
    // What is held arrives even when its sender has gone: that is how a statement arrives late.
    const gone = () => {
      if (blackHole) return;
      if (up === null) upstream.destroy();
      else void up.then(() => upstream.end());
    };
    client.on("end", gone);
    client.on("close", gone);
    client.on("error", () => {});
    upstream.on("data", (bytes) => {
      if (cut !== null) {
        if (cut.ready && !bytes.includes(readyForQuery)) return;
        const { fault, fired } = cut.struck;
        cut = null;
        fired.open();
        if (typeof fault.how === "string") breakNow(fault.how);
        return;
      }
      if (blackHole) return;
      if (waiting !== null && bytes.includes(readyForQuery)) {
        waiting.fired.open();
        waiting = null;
      }
      if (held !== null) held.push(bytes);
      else if (!client.destroyed) client.write(bytes);
    });
    upstream.on("error", () => {});
    upstream.on("close", () => {
      stats.open--;
      breakers.delete(breakNow);
      cut?.struck.fired.open();
      if (blackHole) return;
      if (client.writableEnded) client.destroySoon();
      else client.destroy();
    });
  });

  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  return {
    port: typeof address === "object" && address !== null ? address.port : 0,
    stats,
    onRequest(fn) {
      listeners.add(fn);
    },
    break(fault) {
      const one = { fault, fired: gate(), left: fault.times ?? 1 };
      armed.add(one);
      return { fired: one.fired.promise };
    },
    breakAll,
    blackout() {
      dark = true;
      breakAll("black-hole");
      return () => {
        dark = false;
      };
    },
    clearFaults() {
      armed.clear();
    },
    async close() {
      for (const socket of sockets) socket.destroy();
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}

/** A start-up packet has no type byte: its length comes first, and is short. */
function isStartup(bytes: Buffer): boolean {
  return bytes[0] === 0;
}

/** Messages that wait for an answer: Query, Sync, Flush, the password, and Terminate, after which nothing comes. */
const awaited = new Set(["Q", "S", "H", "p", "X", "F"]);

/** Cuts the client's stream into requests: all messages up to one that awaits an answer. */
class RequestReader {
  #rest: Buffer = Buffer.alloc(0);
  #started = false;

  read(data: Buffer): Buffer[] {
    const bytes = Buffer.concat([this.#rest, data]);
    const requests: Buffer[] = [];
    let from = 0;
    let at = 0;
    for (;;) {
      const head = this.#started ? 1 : 0;
      if (bytes.length < at + head + 4) break;
      const end = at + head + bytes.readInt32BE(at + head);
      if (bytes.length < end) break;
      const type = this.#started ? String.fromCharCode(bytes[at] ?? 0) : "startup";
      this.#started = true;
      at = end;
      if (type !== "startup" && !awaited.has(type)) continue;
      requests.push(bytes.subarray(from, end));
      from = end;
    }
    this.#rest = bytes.subarray(from);
    return requests;
  }
}
