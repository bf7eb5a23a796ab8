// An authority for the demo and for `npm run dev`: takes reports over HTTP, remembers each call and when it came, and does
// its part once for each idempotency key. It can refuse calls on purpose, and keep a caller waiting.

import http from "node:http";

const HOST = "127.0.0.1";

/** Milliseconds an answer takes: what a call to another company's API in the same region costs. */
const LATENCY_MS = { least: 30, most: 60 };

export type AuthorityOptions = {
  /** Default: a free one. */
  port?: number;
  /** How many calls are answered 503, each a key's first. Default 0. */
  refusals?: number;
};

/** One call as the authority saw it. Times are milliseconds of performance.now(). */
export type Call = {
  /** Who called: the part of the address that `urlFor` put in. */
  readonly from: string;
  readonly key: string;
  /** "<job>/<attempt>". */
  readonly fencingToken: string;
  readonly transactionId: string;
  readonly arrivedAt: number;
  /** When it was over, for one side or the other; null while it waits. */
  endedAt: number | null;
  /** What it was answered, or "cut" if the caller was gone before the answer. */
  answer: number | "cut" | null;
};

export type Authority = {
  readonly port: number;
  readonly calls: readonly Call[];
  /** How often the authority did its part for each key. It is one, or the key is worth nothing. */
  readonly effects: ReadonlyMap<string, number>;
  /** The address to call, by which the caller is known. */
  urlFor(caller: string): string;
  /** From now on this caller's calls take effect and get no answer. Resolves when the first one waits. */
  keepWaiting(caller: string): Promise<void>;
  close(): Promise<void>;
};

export async function startAuthority(options: AuthorityOptions = {}): Promise<Authority> {
  const calls: Call[] = [];
  const effects = new Map<string, number>();
  const kept = new Map<string, () => void>();
  let refusalsLeft = options.refusals ?? 0;

  const server = http.createServer((request, response) => {
    void answer(request, response).catch(() => response.destroy());
  });

  async function answer(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const arrivedAt = performance.now();
    const from = /^\/([\w-]+)\/reports$/.exec(request.url ?? "")?.[1];
    const key = request.headers["idempotency-key"];
    const fencingToken = request.headers["fencing-token"];
    if (request.method !== "POST" || from === undefined) return end(response, 404, {});
    const transactionId = transactionOf(Buffer.concat(await Array.fromAsync(request)).toString());
    if (typeof key !== "string" || typeof fencingToken !== "string" || transactionId === null) {
      return end(response, 422, { error: "expected a transactionId, an idempotency-key and a fencing-token" });
    }
    const call: Call = { from, key, fencingToken, transactionId, arrivedAt, endedAt: null, answer: null };
    const isFirst = !calls.some((other) => other.key === key);
    calls.push(call);
    response.once("close", () => {
      call.endedAt = performance.now();
      call.answer ??= "cut";
    });

    const onFirst = kept.get(from);
    if (onFirst === undefined && isFirst && refusalsLeft > 0 && calls.length % 5 === 0) {
      refusalsLeft--;
      call.answer = 503;
      return end(response, 503, { error: "busy, come back later" });
    }
    if (!effects.has(key)) effects.set(key, 1);
    if (onFirst !== undefined) return onFirst(); // The worst moment: the effect is there, the answer never comes.
    const { least, most } = LATENCY_MS;
    await new Promise((resolve) => setTimeout(resolve, least + Math.random() * (most - least)));
    if (call.answer !== null) return;
    call.answer = 200;
    end(response, 200, { receipt: `r-${key}` });
  }

  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(options.port ?? 0, HOST, resolve);
  });
  const address = server.address();
  const port = typeof address === "object" && address !== null ? address.port : 0;

  return {
    port,
    calls,
    effects,
    urlFor: (caller) => `http://${HOST}:${port}/${caller}`,
    keepWaiting: (caller) =>
      new Promise((resolve) => {
        kept.set(caller, () => resolve());
      }),
    async close() {
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
    },
  };
}

function end(response: http.ServerResponse, status: number, body: object): void {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

function transactionOf(text: string): string | null {
  const body: unknown = JSON.parse(text);
  const id = typeof body === "object" && body !== null && "transactionId" in body ? body.transactionId : null;
  return typeof id === "string" ? id : null;
}
