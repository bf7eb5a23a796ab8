// An authority for the demo and for `npm run dev`: takes reports over HTTP, remembers each call and when it came, and
// does its part once for each idempotency key. It can refuse calls on purpose, and keep callers waiting.

import http from "node:http";

const HOST = "127.0.0.1";

/** Milliseconds an answer takes: what a call to another company's API in the same region costs. */
const LATENCY_MS = { least: 30, most: 60 };

/** While refusals are left, each so many-th new key is refused. */
const REFUSE_EACH = 7;

export type AuthorityOptions = {
  /** Default: a free one. */
  port?: number;
  /** How many calls are answered 503, each of them the first with its key. Default 0. */
  refusals?: number;
  /** Sees each call when it has come; the caller waits until it has looked. */
  onCall?: (call: Call) => Promise<void>;
};

/** One call as the authority saw it. Times are milliseconds of performance.now(). */
export type Call = {
  /** Who called: the part of the address that `urlFor` put in. */
  readonly from: string;
  readonly key: string;
  /** "<job>/<attempt>". */
  readonly fencingToken: string;
  readonly transactionId: string;
  readonly account: string;
  readonly arrivedAt: number;
  /** When it was over, for one side or the other; null while it waits. */
  endedAt: number | null;
  /** What it was answered, or "cut" if the caller was gone before the answer. */
  answer: number | "cut" | null;
};

export type Authority = {
  readonly port: number;
  readonly calls: readonly Call[];
  /** The keys for which it has done its part. A call with one of them is answered as before and does nothing. */
  readonly effects: ReadonlySet<string>;
  /** The address to call, by which the caller is known. */
  urlFor(caller: string): string;
  /**
   * From now on everybody waits. The victim's calls take effect and get no answer: the worst moment to be cut off. Those of
   * the others go on when what this answers is called.
   */
  hold(victim: string, onCall: (call: Call) => void): () => void;
  close(): Promise<void>;
};

export async function startAuthority(options: AuthorityOptions = {}): Promise<Authority> {
  const calls: Call[] = [];
  const effects = new Set<string>();
  let held: { readonly victim: string; readonly onCall: (call: Call) => void } | null = null;
  let open = Promise.resolve();
  let refusalsLeft = options.refusals ?? 0;
  let firstCalls = 0;

  const server = http.createServer((request, response) => {
    void answer(request, response).catch(() => response.destroy());
  });

  async function answer(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const arrivedAt = performance.now();
    const from = /^\/([\w-]+)\/reports$/.exec(request.url ?? "")?.[1];
    const key = request.headers["idempotency-key"];
    const fencingToken = request.headers["fencing-token"];
    if (request.method !== "POST" || from === undefined) return end(response, 404, {});
    const report = reportOf(await textOf(request));
    if (typeof key !== "string" || typeof fencingToken !== "string" || report === null) {
      return end(response, 422, {
        error: "expected transactionId and account, an idempotency-key and a fencing-token",
      });
    }
    const call: Call = { from, key, fencingToken, ...report, arrivedAt, endedAt: null, answer: null };
    const isFirst = !calls.some((other) => other.key === key);
    calls.push(call);
    const over = (answer: Call["answer"]) => {
      call.endedAt ??= performance.now();
      call.answer ??= answer;
    };
    response.once("close", () => over("cut"));
    await options.onCall?.(call);

    if (from === held?.victim) {
      effects.add(key);
      held.onCall(call);
      return;
    }
    await open;
    if (call.answer !== null) return;
    if (isFirst && ++firstCalls % REFUSE_EACH === 0 && refusalsLeft > 0) {
      refusalsLeft--;
      over(503);
      return end(response, 503, { error: "busy, come back later" });
    }
    effects.add(key);
    const { least, most } = LATENCY_MS;
    await new Promise((resolve) => setTimeout(resolve, least + Math.random() * (most - least)));
    if (call.answer !== null) return;
    over(200);
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
    hold(victim, onCall) {
      const { promise, resolve } = Promise.withResolvers<void>();
      held = { victim, onCall };
      open = promise;
      return resolve;
    },
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

async function textOf(request: http.IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

function reportOf(text: string): Pick<Call, "transactionId" | "account"> | null {
  try {
    const { transactionId, account } = Object(JSON.parse(text)) as Record<string, unknown>;
    return typeof transactionId === "string" && typeof account === "string" ? { transactionId, account } : null;
  } catch {
    return null; // Not JSON is as wrong as no id: both are answered 422.
  }
}
