// Stands between pg and Postgres as the bridge stands between the WebSocket driver and Postgres: it passes bytes on
// unchanged until an armed fault meets the client bytes it waits for, and breaks the connection exactly there.

import net from "node:net";
import { type Gate, gate } from "./gate.ts";

/** reset: both sockets are reset. black-hole: nothing flows any more and nobody is told. */
export type TcpBreak = "reset" | "black-hole";

export interface TcpFault {
  /** Strikes client bytes with this text in them. */
  readonly contains: string | RegExp;
  /** before: they do not reach Postgres. after: Postgres has answered them, and the answer is cut. */
  readonly at: "before" | "after";
  /** A way to break, or a promise: the bytes (before) or the answer (after) wait for it. */
  readonly how: TcpBreak | { readonly hold: Promise<unknown> };
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
  break(fault: TcpFault): ArmedTcpFault;
  /** Every connection there is goes into a black hole for ever, or is reset. */
  breakAll(how: TcpBreak): void;
  /** New connections are swallowed as well, until the answer is called. */
  blackout(): () => void;
  close(): Promise<void>;
}

interface Armed {
  readonly fault: TcpFault;
  readonly fired: Gate;
  left: number;
}

const readyForQuery = Buffer.from([0x5a, 0, 0, 0, 5]);

export async function startTcpProxy(target: { readonly host: string; readonly port: number }): Promise<TcpProxy> {
  const armed = new Set<Armed>();
  const stats = { opened: 0, open: 0 };
  const sockets = new Set<net.Socket>();
  const breaks = new Set<(how: TcpBreak) => void>();
  let dark = false;

  function strike(bytes: Buffer): Armed | null {
    const text = bytes.toString("latin1");
    for (const one of armed) {
      const { contains } = one.fault;
      if (!(typeof contains === "string" ? text.includes(contains) : contains.test(text))) continue;
      if (--one.left <= 0) armed.delete(one);
      return one;
    }
    return null;
  }

  const breakAll = (how: TcpBreak) => {
    for (const breakNow of [...breaks]) breakNow(how);
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
    let blackHole = false;
    let up: Promise<unknown> | null = null;
    let cut: Armed | null = null;
    let held: Buffer[] | null = null;
    /** Whose answer is being held: it has struck when Postgres has answered. */
    let waiting: Armed | null = null;

    function breakNow(how: TcpBreak): void {
      if (how === "black-hole") {
        blackHole = true;
        client.pause();
        return;
      }
      client.resetAndDestroy();
      upstream.destroy();
    }

    breaks.add(breakNow);

    function send(bytes: Buffer, struck: Armed | null): void {
      if (blackHole || upstream.destroyed) return;
      if (struck !== null) {
        const { how } = struck.fault;
        if (typeof how === "string") {
          cut = struck;
        } else {
          waiting = struck;
          held = [];
          void Promise.allSettled([how.hold]).then(() => {
            for (const answer of held ?? []) client.write(answer);
            held = null;
          });
        }
      }
      upstream.write(bytes);
    }

    client.on("data", (bytes) => {
      if (blackHole) return;
      const struck = strike(bytes);
      if (struck?.fault.at === "before") {
        struck.fired.open();
        const { how } = struck.fault;
        if (typeof how === "string") return breakNow(how);
        up = Promise.allSettled([up, how.hold]);
      }
      const go = () => send(bytes, struck?.fault.at === "after" ? struck : null);
      if (up === null) go();
      else up = up.then(go);
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
        if (!bytes.includes(readyForQuery)) return;
        const { fault, fired } = cut;
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
      breaks.delete(breakNow);
      if (cut !== null) cut.fired.open();
      if (!blackHole) client.destroy();
    });
  });

  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  return {
    port: typeof address === "object" && address !== null ? address.port : 0,
    stats,
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
    async close() {
      for (const socket of sockets) socket.destroy();
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}
