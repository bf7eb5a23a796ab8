// Requests as bytes, to the real Worker in a real workerd over a socket: addresses that no client library would leave as
// they are, two Authorization lines, folded and doubled headers, lengths that contradict, bytes that are no ASCII. What the
// HTTP parser of the runtime refuses never gets to us; what does get an answer of ours is decent, and opens nothing.

import net from "node:net";
import fc from "fast-check";
import { expect, it } from "vitest";
import { endsWithin } from "../support/gate.ts";
import { setupLab, soonMs } from "../workerd/support.ts";
import { canary, timeFor, tryOut } from "./support.ts";

/** Right, and enough to be let in where it is let in. Those of the other scopes are only ever sent spoilt. */
const enqueueSecret = "enqueue-secret";
const spoilt = ["trigger-secret", "operate-secret", "read-secret"] as const;
const bindings = { PGCLAIM_OPERATE_SECRET: "operate-secret" };

const target = fc.constantFrom(
  ...[
    "/api/jobs",
    "/api/trigger",
    "/api/cron",
    "/api/jobs/1",
    "/api/jobs/1/cancel",
    "/api/queues/default/pause",
    "/api/schedules",
  ].flatMap((path) => [
    path,
    `/${path}`,
    `${path}/`,
    path.replaceAll("/", "//"),
    path.replace("/api", "/healthz/../api"),
    path.replace("/api", "/healthz/%2e%2e/api"),
    path.replace("/api/", "/api%2f"),
    path.replace("api", "%61pi"),
    path.replace("api", "API"),
    path.replaceAll("/", "\\"),
    `${path}?x=1#y`,
    `${path}%00`,
    `${path};a=b`,
    `http://other.test${path}`,
    `//other.test${path}`,
    `${path}%0d%0aAuthorization:%20Bearer%20operate-secret`,
    `${path}\u00e9`,
  ]),
  "*",
  "",
  "x",
);

const method = fc.constantFrom(
  "POST",
  "POST",
  "POST",
  "GET",
  "HEAD",
  "OPTIONS",
  "PUT",
  "TRACE",
  "CONNECT",
  "post",
  "P\u00d6ST",
  "GET\t",
  "",
);

const authorization = fc.oneof(
  fc.constantFrom(
    [],
    [`Authorization: Bearer ${enqueueSecret}`],
    [`authorization:Bearer ${enqueueSecret}`],
    [`AUTHORIZATION: bearer   ${enqueueSecret}  `],
  ),
  fc
    .constantFrom(...spoilt)
    .chain((secret) =>
      fc.constantFrom(
        [`Authorization: Bearer ${secret}x`],
        [`Authorization: Bearer ${secret}\u00e9`],
        [`Authorization: Bearer ${enqueueSecret}`, `Authorization: Bearer ${secret}`],
        [`Authorization: Bearer ${secret}`, `Authorization: Bearer ${secret}`],
        [`Authorization: Bearer`, ` ${secret}`],
        [`Authorization: Bearer\t${secret}`],
        [`Authorization : Bearer ${secret}`],
        [`X-Authorization: Bearer ${secret}`],
        [`Proxy-Authorization: Bearer ${secret}`],
        [`Cookie: authorization=Bearer ${secret}`],
        [`Authorization: Basic ${btoa(`x:${secret}`)}`],
        [`Authorization: Bearer ${secret}${"x".repeat(20_000)}`],
        [`Authorization: Bearer ${secret.toUpperCase()}`],
      ),
    ),
);

const job = JSON.stringify({ kind: "plain", payload: { name: "x" } });
const smuggled = `POST /api/queues/default/pause HTTP/1.1\r\nhost: x\r\nauthorization: Bearer operate-secretx\r\ncontent-length: 0\r\n\r\n`;

/** The lines about the body, and the body. */
const body = fc.constantFrom<readonly [readonly string[], string]>(
  [[`content-length: ${job.length}`], job],
  [["transfer-encoding: chunked"], `${job.length.toString(16)}\r\n${job}\r\n0\r\n\r\n`],
  [[`content-length: ${job.length}`, `content-length: ${job.length + 1}`], job],
  [["content-length: -1"], job],
  [["content-length: 99999999999999999999"], job],
  [["content-length: 0"], job],
  [["content-length: 5", "transfer-encoding: chunked"], `0\r\n\r\n${smuggled}`],
  [["transfer-encoding: chunked", "transfer-encoding: identity"], `0\r\n\r\n${smuggled}`],
  [["transfer-encoding: xchunked"], `0\r\n\r\n${smuggled}`],
  [["transfer-encoding: chunked"], `zz\r\n${job}\r\n0\r\n\r\n`],
  [["content-length: 0"], ""],
  [[], ""],
);

const extra = fc.subarray(
  [
    "content-type: application/json",
    "X-HTTP-Method-Override: POST",
    "X-Original-URL: /api/queues/default/pause",
    "x\u00e9: 1",
    "no colon here",
    ": empty",
    "Connection: close, authorization",
    "Expect: 100-continue",
    "Upgrade: websocket",
    "Forwarded: for=127.0.0.1",
  ],
  { maxLength: 4 },
);

/** A right enqueue with up to two things of it spoilt. */
const input = fc
  .record({
    spoilt: fc.subarray(["method", "target", "authorization", "extra", "body"] as const, { maxLength: 2 }),
    method,
    target,
    authorization,
    extra,
    body,
  })
  .map((drawn) => {
    const has = (what: (typeof drawn.spoilt)[number]) => drawn.spoilt.includes(what);
    const [about, content] = has("body") ? drawn.body : ([[`content-length: ${job.length}`], job] as const);
    return {
      verb: has("method") ? drawn.method : "POST",
      path: has("target") ? drawn.target : "/api/jobs",
      lines: [
        ...(has("authorization") ? drawn.authorization : [`authorization: Bearer ${enqueueSecret}`]),
        ...(has("extra") ? drawn.extra : ["content-type: application/json"]),
        ...about,
      ],
      content,
    };
  });

interface RawAnswer {
  readonly status: number;
  readonly head: string;
  readonly body: string;
}

/** Sends bytes, ends its side, and reads the first answer; null where the connection ends without one. */
async function exchange(url: URL, bytes: Buffer): Promise<RawAnswer | null> {
  const socket = net.connect(Number(url.port), url.hostname);
  const parts: Buffer[] = [];
  const text = () => Buffer.concat(parts).toString("utf8");
  /** Whole as soon as its length is there: the server may keep the connection. */
  const isWhole = () => {
    const [head = "", ...rest] = text().split("\r\n\r\n");
    const length = /^content-length: *(\d+)/im.exec(head)?.[1];
    return (
      rest.length > 0 &&
      (length === undefined
        ? /\r\n0\r\n/.test(rest.join("\r\n\r\n"))
        : Buffer.byteLength(rest.join("\r\n\r\n")) >= Number(length))
    );
  };
  const ended = new Promise<void>((resolve) => {
    socket.on("data", (data) => {
      parts.push(data);
      if (isWhole()) resolve();
    });
    socket.on("error", () => resolve());
    socket.on("close", () => resolve());
  });
  socket.end(bytes);
  await endsWithin(soonMs, ended, "the answer to raw bytes").finally(() => socket.destroy());
  const status = /^HTTP\/1\.1 (\d{3})/.exec(text())?.[1];
  if (status === undefined) return null;
  const [head = "", ...rest] = text().split("\r\n\r\n");
  return { status: Number(status), head, body: rest.join("\r\n\r\n") };
}

it(
  "the Worker over a socket is not talked into anything",
  async () => {
    const lab = await setupLab();
    const { untouched } = await canary(lab);
    const { url, log } = await lab.start({ bindings });
    await lab.enqueue("plain", ["sentinel"]);
    const ours = new Map<number, number>();
    let runtimes = 0;
    await tryOut({ usual: 100 }, input, async ({ verb, path, lines, content }) => {
      const head = [`${verb} ${path} HTTP/1.1`, `host: ${url.host}`, "connection: close", ...lines];
      const answer = await exchange(url, Buffer.from(`${head.join("\r\n")}\r\n\r\n${content}`, "latin1"));
      // Ours say so in a header; the runtime's own refusals have a shape of their own.
      if (answer === null || !/^x-content-type-options: nosniff/im.test(answer.head)) {
        runtimes++;
        return;
      }
      ours.set(answer.status, (ours.get(answer.status) ?? 0) + 1);
      expect(answer.status, answer.body).toBeLessThan(500);
      if (answer.status >= 400 && verb !== "HEAD") {
        expect(answer.body).toMatch(/\{"error":\{"code":"PGCLAIM_[A-Z_]+","message":"/);
      }
      for (const secret of [enqueueSecret, ...spoilt]) expect(answer.head + answer.body).not.toContain(secret);
    });
    console.log(`  answers of ours: ${JSON.stringify([...ours].sort())}, of the runtime's parser: ${runtimes}`);
    expect(ours.get(201) ?? 0).toBeGreaterThan(0);
    expect((ours.get(401) ?? 0) + (ours.get(404) ?? 0)).toBeGreaterThan(0);
    // Nothing was triggered, paused or cancelled; what was enqueued was enqueued with its own secret.
    expect(await lab.value("select count(*)::integer from pgclaim.tick")).toBe(0);
    expect(await lab.value("select count(*)::integer from pgclaim.queue where paused_at is not null")).toBe(0);
    expect(await lab.rows("select state from pgclaim.job where payload ->> 'name' = 'sentinel'")).toEqual([
      { state: "ready" },
    ]);
    expect(await lab.value("select count(*)::integer - 1 from pgclaim.job")).toBe(ours.get(201) ?? 0);
    for (const entry of log)
      for (const secret of [enqueueSecret, ...spoilt]) expect(JSON.stringify(entry)).not.toContain(secret);
    await untouched();
  },
  timeFor(600),
);
