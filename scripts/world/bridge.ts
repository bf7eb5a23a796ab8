// Stands where Neon's proxy stands: WebSocket (/v2) and HTTP (/sql) on one side, a plain Postgres on the other.
// For development and tests only. Without a fault it passes bytes on unchanged; with one it breaks exactly there.

import http from "node:http";
import net from "node:net";
import tls from "node:tls";
import pg from "pg";
import { type RawData, type WebSocket, WebSocketServer } from "ws";

const HOST = "127.0.0.1";

/** Connections whose record is kept, newest last; a development bridge runs for days. */
const CONNECTIONS_KEPT = 1000;

/** Frames and statements whose text is kept for each connection. */
const TEXTS_KEPT = 1000;

/** Bytes of each frame kept in `firstBytes`. */
const FIRST_BYTES = 64;

export type BridgeTarget = { host: string; port: number; tls?: boolean };

export type BridgeOptions = {
  /** TCP port on 127.0.0.1. Default: a free one. */
  port?: number;
  target: BridgeTarget;
  /** Where /sql requests go. Default: the target. */
  sqlTarget?: BridgeTarget;
  /** Values of ?address= that are served, as host:port. Default: the target, also by the name localhost. */
  allow?: readonly string[];
};

/**
 * How a session connection breaks:
 * - tcp-reset: both sockets are reset; what a proxy's crash looks like.
 * - ws-close: a close frame (1011) to the client, and Postgres is disconnected.
 * - ws-terminate: the client's socket is destroyed without a close frame, and Postgres is disconnected.
 * - black-hole: nothing flows any more in either direction and nobody is told. Postgres keeps its half-open
 *   connection, whatever the client does, until its own timeouts or `close()` end it.
 */
export type BreakKind = "tcp-reset" | "ws-close" | "ws-terminate" | "black-hole";

type Skip = number | (() => boolean);

export type SessionFault = {
  /** Strikes the N-th client frame of a connection, counted from 1. Give this or `contains`. */
  frame?: number;
  /** Strikes a client frame with this text in it (case matters for a string). */
  contains?: string | RegExp;
  /** Only on the connection with this number (the first since start is 1). Default: any. */
  connection?: number;
  /**
   * before: the frame does not reach Postgres. after: it does, Postgres has answered it to its ReadyForQuery, and
   * none of that answer reaches the client. So with "commit", before means rolled back and after means committed.
   */
  at: "before" | "after";
  /**
   * A way to break, or a gate: the frame (before) or its answer (after) waits until the promise settles. A frame whose sender
   * has gone meanwhile is dropped, or with `late` arrives all the same, as one does that a proxy had passed on already.
   */
  how: BreakKind | { hold: Promise<unknown>; late?: boolean };
  /** Matches to let pass first, or a function that is asked at each match whether to. Default 0. */
  skip?: Skip;
  /** Matches to strike. Default 1; Infinity for all. */
  times?: number;
};

export type SqlFault = {
  /** Strikes a /sql request one of whose statements has this text. Default: any request. */
  contains?: string | RegExp;
  /** before: nothing has run. after: the request has run and committed, and its answer is withheld. */
  at: "before" | "after";
  /**
   * reset: the socket is reset. close: it is closed in order, without an answer. hang: no answer ever. http-500: that
   * status, as a failing proxy gives.
   * hold: waits until the promise settles, then goes on as if nothing had been. A held request runs even when its
   * client has gone away in the meantime, which is how a statement arrives late.
   */
  how: "reset" | "close" | "hang" | "http-500" | { hold: Promise<unknown> };
  skip?: Skip;
  times?: number;
};

export type ConnectFault = {
  /** refuse: HTTP 503 in place of the upgrade. reset: the socket is reset. black-hole: the upgrade is never answered. */
  how: "refuse" | "reset" | "black-hole";
  skip?: Skip;
  times?: number;
};

/** A fault that waits for its moment. */
export type ArmedFault = {
  /** How often it has struck. */
  readonly struck: number;
  /** Resolves when it strikes for the first time (for `after`: when the answer has been cut). */
  readonly fired: Promise<void>;
  /** Disarms it; what it broke stays broken. */
  cancel(): void;
};

/** What is known of one session connection. */
export type BridgeConnection = {
  /** Counts from 1 since the bridge started. */
  readonly number: number;
  readonly open: boolean;
  /** Client frames so far, whatever became of them. */
  readonly framesUp: number;
  /**
   * ReadyForQuery messages Postgres has sent: one ends start-up, then one for each round trip, however the client's
   * messages were split into frames.
   */
  readonly readyForQuery: number;
  /** Round trips after start-up: readyForQuery less the one that ended start-up. */
  readonly roundTrips: number;
  /** The first bytes of each client frame, as latin1; frames before the end of authentication are masked. */
  readonly firstBytes: readonly string[];
  /** SQL text of each Query and Parse message, in order. */
  readonly statements: readonly string[];
  /** Breaks it now, wherever it stands. */
  break(kind: BreakKind): void;
};

export type BridgeStats = {
  /** Session connections opened since start, and those open now. */
  wsOpened: number;
  wsOpen: number;
  framesUp: number;
  /** Round trips of all sessions, start-up not counted. */
  roundTrips: number;
  sqlRequests: number;
  sqlStatements: number;
  /** Requests under way now, the held ones too, whether or not somebody still waits for an answer. */
  sqlOpen: number;
};

export type Bridge = {
  readonly port: number;
  readonly stats: Readonly<BridgeStats>;
  /** The newest connections, oldest first. */
  readonly connections: readonly BridgeConnection[];
  /** Calls `fn` for each client frame before any fault is looked at. Answers a function that stops it. */
  onFrameUp(fn: (frame: Buffer, connection: BridgeConnection) => void): () => void;
  /** Calls `fn` with the statements of each /sql request as it arrives. Answers a function that stops it. */
  onSql(fn: (statements: readonly string[]) => void): () => void;
  breakSession(fault: SessionFault): ArmedFault;
  breakSql(fault: SqlFault): ArmedFault;
  breakConnect(fault: ConnectFault): ArmedFault;
  /** Disarms every fault; black holes stay black. */
  clearFaults(): void;
  /** Ends every connection and frees the port. */
  close(): Promise<void>;
};

export async function startBridge(options: BridgeOptions): Promise<Bridge> {
  const { target } = options;
  const allowed = new Set(options.allow ?? [`${target.host}:${target.port}`, `localhost:${target.port}`]);
  const stats: BridgeStats = {
    wsOpened: 0,
    wsOpen: 0,
    framesUp: 0,
    roundTrips: 0,
    sqlRequests: 0,
    sqlStatements: 0,
    sqlOpen: 0,
  };
  const live = new Set<Session>();
  const connections: BridgeConnection[] = [];
  const frameListeners = new Set<(frame: Buffer, connection: BridgeConnection) => void>();
  const sqlListeners = new Set<(statements: readonly string[]) => void>();
  const sessionFaults = new FaultList<SessionFault>();
  const sqlFaults = new FaultList<SqlFault>();
  const connectFaults = new FaultList<ConnectFault>();

  const sockets = new WebSocketServer({ noServer: true, perMessageDeflate: false });
  const server = http.createServer((request, response) => {
    if (request.method !== "POST" || request.url !== "/sql") {
      response.writeHead(404).end();
      return;
    }
    stats.sqlRequests++;
    const heard = (statements: readonly string[]) => {
      stats.sqlStatements += statements.length;
      for (const fn of sqlListeners) fn(statements);
      return sqlFaults.strike((fault) => statements.some((text) => matches(text, fault.contains)));
    };
    stats.sqlOpen++;
    answerSql(request, response, options.sqlTarget ?? target, heard)
      .catch(() => response.destroy())
      .finally(() => stats.sqlOpen--);
  });
  // Longer than any client keeps an idle socket, so that none writes into one we are just closing.
  server.keepAliveTimeout = 600_000;

  server.on("upgrade", (request, socket, head) => {
    const url = new URL(request.url ?? "/", "http://bridge");
    const address = url.searchParams.get("address") ?? `${target.host}:${target.port}`;
    socket.on("error", () => {}); // A client that leaves during the handshake is nobody's fault.
    if (url.pathname !== "/v2" || !allowed.has(address)) {
      socket.end("HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n");
      return;
    }
    const fault = connectFaults.strike(() => true);
    if (fault) {
      fault.fire();
      if (fault.spec.how === "refuse") socket.end("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n");
      else if (fault.spec.how === "reset" && socket instanceof net.Socket) socket.resetAndDestroy();
      else held.add(socket);
      return;
    }
    if (socket instanceof net.Socket) socket.setNoDelay(true);
    sockets.handleUpgrade(request, socket, head, (ws) => {
      const session = new Session(ws, target, {
        number: ++stats.wsOpened,
        onFrame(frame) {
          stats.framesUp++;
          for (const fn of frameListeners) fn(frame, session);
          return sessionFaults.strike(
            (f) =>
              (f.connection === undefined || f.connection === session.number) &&
              (f.frame === undefined || f.frame === session.framesUp) &&
              (f.contains === undefined || matches(frame.toString("latin1"), f.contains)),
          );
        },
        onRoundTrip() {
          stats.roundTrips++;
        },
        onEnd() {
          live.delete(session);
          stats.wsOpen--;
        },
      });
      stats.wsOpen++;
      live.add(session);
      connections.push(session);
      if (connections.length > CONNECTIONS_KEPT) connections.shift();
    });
  });
  const held = new Set<{ destroy(): void }>();

  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(options.port ?? 0, HOST, resolve);
  });
  const address = server.address();

  return {
    port: typeof address === "object" && address !== null ? address.port : 0,
    stats,
    connections,
    onFrameUp: (fn) => listen(frameListeners, fn),
    onSql: (fn) => listen(sqlListeners, fn),
    breakSession(fault) {
      if ((fault.frame === undefined) === (fault.contains === undefined)) {
        throw new Error("A session fault takes either `frame` or `contains`.");
      }
      return sessionFaults.arm(fault);
    },
    breakSql: (fault) => sqlFaults.arm(fault),
    breakConnect: (fault) => connectFaults.arm(fault),
    clearFaults() {
      for (const list of [sessionFaults, sqlFaults, connectFaults]) list.clear();
    },
    async close() {
      for (const session of live) session.end();
      for (const socket of held) socket.destroy();
      sockets.close();
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
    },
  };
}

type SessionHooks = {
  number: number;
  onFrame(frame: Buffer): Strike<SessionFault> | undefined;
  onRoundTrip(): void;
  onEnd(): void;
};

/** One WebSocket and its Postgres connection. */
class Session implements BridgeConnection {
  readonly number: number;
  framesUp = 0;
  readyForQuery = 0;
  readonly firstBytes: string[] = [];
  readonly statements: string[] = [];

  readonly #ws: WebSocket;
  readonly #hooks: SessionHooks;
  #tcp: net.Socket;
  #ended = false;
  #blackHole = false;
  /** While a frame is held, all later ones wait behind it. */
  #up: Promise<unknown> | undefined;
  /** What is held arrives even when the client has gone. */
  #late = false;
  /** While an answer is cut: breaks the connection when Postgres has sent this many ReadyForQuery. */
  #cut: { until: number; done: () => void } | undefined;
  /** While an answer is held: what Postgres has sent meanwhile. */
  #down: Buffer[] | undefined;
  readonly #client = new FrontendReader();
  readonly #server = new BackendReader();

  constructor(ws: WebSocket, target: BridgeTarget, hooks: SessionHooks) {
    this.#ws = ws;
    this.#hooks = hooks;
    this.number = hooks.number;
    ws.on("message", (data, isBinary) => {
      // A text frame is a protocol error; Neon's proxy drops it too.
      if (isBinary) this.#frame(toBuffer(data));
    });
    ws.on("close", () => {
      if (this.#blackHole) return;
      if (this.#late && this.#up !== undefined) void this.#up.then(() => this.#tcp.end());
      else this.end();
    });
    ws.on("error", () => this.end());
    this.#tcp = net.connect({ host: target.host, port: target.port, noDelay: true });
    if (target.tls) {
      const ready = secure(this.#tcp, target.host).then(
        (socket) => {
          this.#tcp = socket;
          this.#listen();
          if (this.#ended) socket.destroy();
        },
        () => this.end(),
      );
      this.#hold(ready);
    } else {
      this.#listen();
    }
  }

  get open(): boolean {
    return !this.#ended;
  }

  get roundTrips(): number {
    return Math.max(0, this.readyForQuery - 1);
  }

  /** Ends both sides at once. Destroying, not ending, the Postgres side is what frees its locks without delay. */
  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#tcp.destroy();
    if (this.#ws.isPaused) this.#ws.terminate();
    else if (this.#ws.readyState === this.#ws.OPEN) this.#ws.close(1011, "postgres connection closed");
    this.#cut?.done();
    this.#hooks.onEnd();
  }

  break(kind: BreakKind): void {
    if (this.#ended) return;
    switch (kind) {
      case "tcp-reset":
        this.#tcp.resetAndDestroy();
        resetSocket(this.#ws);
        break;
      case "ws-close":
        break;
      case "ws-terminate":
        this.#ws.terminate();
        break;
      case "black-hole":
        this.#blackHole = true;
        // Not reading is the point: a client's bytes, its close frame and even its FIN stay unseen.
        this.#ws.pause();
        return;
      default:
        kind satisfies never;
    }
    this.end();
  }

  #listen(): void {
    this.#tcp.on("data", (data) => this.#answer(data));
    this.#tcp.on("error", () => {}); // 'close' follows.
    this.#tcp.on("close", () => {
      this.#cut?.done();
      if (!this.#blackHole) this.end();
    });
  }

  #hold(gate: Promise<unknown>): void {
    const before = this.#up;
    const wait = Promise.allSettled([before, gate]).then(() => {
      if (this.#up === wait) this.#up = undefined;
    });
    this.#up = wait;
  }

  #frame(frame: Buffer): void {
    if (this.#blackHole || this.#ended) return;
    this.framesUp++;
    if (this.firstBytes.length < TEXTS_KEPT) {
      const masked = this.readyForQuery === 0;
      this.firstBytes.push(masked ? "(start-up)" : frame.subarray(0, FIRST_BYTES).toString("latin1"));
    }
    const strike = this.#hooks.onFrame(frame);
    if (strike?.spec.at === "before") {
      const { how } = strike.spec;
      strike.fire();
      if (typeof how === "string") {
        this.break(how);
        return;
      }
      this.#hold(how.hold);
      this.#late = how.late === true;
    }
    const send = () => this.#send(frame, strike?.spec.at === "after" ? strike : undefined);
    if (this.#up) this.#up = this.#up.then(send);
    else send();
  }

  #send(frame: Buffer, strike: Strike<SessionFault> | undefined): void {
    if (this.#blackHole || this.#ended) return;
    this.#client.read(frame, (sql) => {
      if (this.statements.length < TEXTS_KEPT) this.statements.push(sql);
    });
    if (strike) {
      const { how } = strike.spec;
      const until = this.#client.answers;
      if (typeof how === "string") {
        this.#cut = {
          until,
          done: () => {
            this.#cut = undefined;
            strike.fire();
            this.break(how);
          },
        };
      } else {
        strike.fire();
        this.#down ??= [];
        void Promise.allSettled([how.hold]).then(() => {
          const held = this.#down ?? [];
          this.#down = undefined;
          for (const data of held) this.#toClient(data);
        });
      }
    }
    this.#tcp.write(frame);
  }

  #answer(data: Buffer): void {
    const before = this.readyForQuery;
    this.readyForQuery += this.#server.read(data);
    for (let n = Math.max(1, before); n < this.readyForQuery; n++) this.#hooks.onRoundTrip();
    if (this.#cut) {
      if (this.readyForQuery >= this.#cut.until) this.#cut.done();
      return;
    }
    if (this.#down) this.#down.push(data);
    else this.#toClient(data);
  }

  #toClient(data: Buffer): void {
    if (!this.#blackHole && this.#ws.readyState === this.#ws.OPEN) this.#ws.send(data);
  }
}

/** Reads the client's stream just far enough to know how many ReadyForQuery will answer it, and the SQL in it. */
class FrontendReader {
  /** ReadyForQuery messages that will have been sent when all that was read so far is answered. */
  answers = 0;
  #rest: Buffer = Buffer.alloc(0);
  #started = false;
  #complete = 0;

  read(data: Buffer, onSql: (sql: string) => void): void {
    let rest = this.#rest.length === 0 ? data : Buffer.concat([this.#rest, data]);
    let pending = false;
    for (;;) {
      // The start-up message alone has no type byte.
      const head = this.#started ? 1 : 0;
      if (rest.length < head + 4) break;
      const size = head + rest.readInt32BE(head);
      if (rest.length < size) break;
      const type = this.#started ? String.fromCharCode(rest[0] ?? 0) : "startup";
      this.#started = true;
      const body = rest.subarray(head + 4, size);
      if (type === "Q") onSql(cString(body));
      if (type === "P") onSql(cString(body.subarray(body.indexOf(0) + 1)));
      if (type === "startup" || type === "Q" || type === "S" || type === "F") {
        this.#complete++;
        pending = false;
      } else if (type !== "p" && type !== "X") {
        pending = true; // Parse, Bind, Describe, Execute…: the Sync to come is what gets the answer.
      }
      rest = rest.subarray(size);
    }
    this.#rest = rest;
    this.answers = this.#complete + (pending || rest.length > 0 ? 1 : 0);
  }
}

/** Counts the ReadyForQuery messages in the server's stream. */
class BackendReader {
  #header: Buffer = Buffer.alloc(0);
  #skip = 0;

  read(data: Buffer): number {
    let ready = 0;
    let at = 0;
    while (at < data.length) {
      if (this.#skip > 0) {
        const step = Math.min(this.#skip, data.length - at);
        this.#skip -= step;
        at += step;
        continue;
      }
      const need = 5 - this.#header.length;
      this.#header = Buffer.concat([this.#header, data.subarray(at, at + need)]);
      at += Math.min(need, data.length - at);
      if (this.#header.length < 5) break;
      if (this.#header[0] === 0x5a /* Z */) ready++;
      this.#skip = this.#header.readInt32BE(1) - 4;
      this.#header = Buffer.alloc(0);
    }
    return ready;
  }
}

type Strike<Fault> = { spec: Fault; fire: () => void };

/** Armed faults of one sort; the first that matches strikes, and only that one. */
class FaultList<Fault extends { skip?: Skip; times?: number }> {
  readonly #armed = new Set<(hit: (spec: Fault) => boolean) => Strike<Fault> | undefined>();

  arm(spec: Fault): ArmedFault {
    const { skip = 0 } = spec;
    let passed = 0;
    const passes = typeof skip === "function" ? skip : () => passed++ < skip;
    let left = spec.times ?? 1;
    let struck = 0;
    let fire: () => void = () => {};
    const fired = new Promise<void>((resolve) => {
      fire = () => {
        struck++;
        resolve();
      };
    });
    const attempt = (hit: (spec: Fault) => boolean): Strike<Fault> | undefined => {
      if (!hit(spec)) return undefined;
      if (passes()) return undefined;
      if (--left <= 0) this.#armed.delete(attempt);
      return { spec, fire };
    };
    this.#armed.add(attempt);
    return {
      get struck() {
        return struck;
      },
      fired,
      cancel: () => {
        this.#armed.delete(attempt);
      },
    };
  }

  strike(hit: (spec: Fault) => boolean): Strike<Fault> | undefined {
    for (const attempt of this.#armed) {
      const strike = attempt(hit);
      if (strike) return strike;
    }
    return undefined;
  }

  clear(): void {
    this.#armed.clear();
  }
}

type Statement = { query: string; params?: unknown[] };

const ISOLATION: Readonly<Record<string, string>> = {
  ReadUncommitted: "read uncommitted",
  ReadCommitted: "read committed",
  RepeatableRead: "repeatable read",
  Serializable: "serializable",
};

/** Fields of a Postgres error as the driver expects them. */
const ERROR_FIELDS = [
  ...["severity", "code", "detail", "hint", "position", "internalPosition", "internalQuery", "where"],
  ...["schema", "table", "column", "dataType", "constraint", "file", "line", "routine"],
] as const;

/** The driver parses values itself, so they travel as Postgres wrote them. */
const AS_TEXT = { getTypeParser: () => (value: string) => value };

async function answerSql(
  request: http.IncomingMessage,
  response: http.ServerResponse,
  target: BridgeTarget,
  heard: (statements: readonly string[]) => Strike<SqlFault> | undefined,
): Promise<void> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk);
  const body: unknown = JSON.parse(Buffer.concat(chunks).toString("utf8"));
  const batch = isBatch(body);
  const statements = batch ? body.queries : [body as Statement];
  const strike = heard(statements.map((statement) => statement.query));
  const answer = (status: number, content: object) => {
    if (response.destroyed) return;
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(content));
  };
  /** Plays the fault if this is its moment; true when the request must go no further. */
  const play = async (at: SqlFault["at"]): Promise<boolean> => {
    if (strike === undefined || strike.spec.at !== at) return false;
    const { how } = strike.spec;
    strike.fire();
    if (typeof how !== "string") {
      await Promise.allSettled([how.hold]);
      return false;
    }
    if (how === "reset") request.socket.resetAndDestroy();
    if (how === "close") request.socket.end();
    if (how === "http-500") answer(500, { message: "the bridge was told to fail here" });
    return true;
  };

  if (await play("before")) return;
  const held = strike !== undefined && typeof strike.spec.how !== "string";
  const client = new pg.Client(clientConfig(String(request.headers["neon-connection-string"] ?? ""), target));
  client.on("error", () => {}); // The query in flight rejects with it.
  const end = () => void client.end().catch(() => {});
  const gone = () => {
    if (!response.writableFinished) end();
  };
  if (!held) {
    response.on("close", gone);
    if (response.destroyed) return;
  }
  try {
    await client.connect();
    const run = async ({ query, params = [] }: Statement) => {
      const config = { text: query, values: params, rowMode: "array" as const, types: AS_TEXT, queryMode: "extended" };
      const result = await client.query(config);
      return {
        command: result.command,
        rowCount: result.rowCount,
        rowAsArray: true,
        rows: result.rows,
        fields: result.fields.map((field) => ({ ...field, format: "text" })),
      };
    };
    let content: object;
    if (batch) {
      await client.query(beginFor(request.headers));
      const results = [];
      for (const statement of statements) results.push(await run(statement));
      await client.query("commit");
      content = { results };
    } else {
      content = await run(statements[0] ?? { query: "" });
    }
    if (await play("after")) return;
    answer(200, content);
  } catch (error) {
    if (await play("after")) return;
    const fields: Record<string, unknown> = error instanceof Error ? { ...error } : {};
    const message = error instanceof Error ? error.message : String(error);
    if (typeof fields.severity === "string") {
      answer(400, { message, ...Object.fromEntries(ERROR_FIELDS.map((name) => [name, fields[name] ?? null])) });
    } else {
      answer(500, { message });
    }
  } finally {
    response.off("close", gone);
    end();
  }
}

function isBatch(body: unknown): body is { queries: Statement[] } {
  return typeof body === "object" && body !== null && "queries" in body && Array.isArray(body.queries);
}

function clientConfig(connectionString: string, target: BridgeTarget): pg.ClientConfig {
  const url = new URL(connectionString);
  return {
    host: target.host,
    port: target.port,
    ssl: target.tls ? { servername: target.host } : false,
    user: decodeURIComponent(url.username),
    password: decodeURIComponent(url.password),
    database: decodeURIComponent(url.pathname.slice(1)),
    application_name: url.searchParams.get("application_name") ?? "bridge",
  };
}

function beginFor(headers: http.IncomingHttpHeaders): string {
  const isolation = ISOLATION[String(headers["neon-batch-isolation-level"])];
  return [
    "begin",
    isolation && `isolation level ${isolation}`,
    headers["neon-batch-read-only"] === "true" && "read only",
    headers["neon-batch-deferrable"] === "true" && "deferrable",
  ]
    .filter(Boolean)
    .join(" ");
}

/** Asks Postgres for TLS (SSLRequest) and answers the encrypted socket. */
async function secure(socket: net.Socket, servername: string): Promise<net.Socket> {
  const request = Buffer.alloc(8);
  request.writeInt32BE(8, 0);
  request.writeInt32BE(80877103, 4);
  const reply = await new Promise<Buffer>((resolve, reject) => {
    socket.once("error", reject);
    socket.once("close", () => reject(new Error("The server closed the connection before TLS.")));
    socket.once("data", resolve);
    socket.write(request);
  });
  if (reply.toString("latin1") !== "S") throw new Error("The server does not offer TLS.");
  const secured = tls.connect({ socket, servername });
  await new Promise<void>((resolve, reject) => {
    secured.once("secureConnect", resolve);
    secured.once("error", reject);
  });
  return secured;
}

/** The socket under a WebSocket is not public; a reset (RST, not FIN) can only be had there. */
function resetSocket(ws: WebSocket): void {
  const socket: unknown = Reflect.get(ws, "_socket");
  if (socket instanceof net.Socket) socket.resetAndDestroy();
  else ws.terminate();
}

function matches(text: string, wanted: string | RegExp | undefined): boolean {
  if (wanted === undefined) return true;
  return typeof wanted === "string" ? text.includes(wanted) : text.search(wanted) >= 0;
}

function cString(body: Buffer): string {
  const end = body.indexOf(0);
  return body.subarray(0, end < 0 ? body.length : end).toString("utf8");
}

function toBuffer(data: RawData): Buffer {
  if (Array.isArray(data)) return Buffer.concat(data);
  return Buffer.isBuffer(data) ? data : Buffer.from(data);
}

function listen<Fn>(listeners: Set<Fn>, fn: Fn): () => void {
  listeners.add(fn);
  return () => {
    listeners.delete(fn);
  };
}
