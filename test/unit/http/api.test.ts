// The routes that read and operate, on a claimer that records: what each hands on, what it answers, and what it refuses
// before there is a claimer. And the pages about the API.

import { describe, expect, it } from "vitest";
import { UsageError } from "../../../src/errors.ts";
import { openApiDocument } from "../../../src/http/openapi.ts";
import { bearer, detail, errorOf, post, read, type Scope, secrets, setup } from "./support.ts";

const get = (scope: Scope = "read") => ({ headers: bearer(scope) });
const instant = "2026-11-30T14:00:00Z";

/** Every route of this file, with a request that is right, what the claimer is asked, and what is answered. */
const routes: readonly (readonly [string, string, unknown, unknown[][], number, unknown])[] = [
  ["GET", "/api/jobs", undefined, [["inspect.jobs", {}]], 200, read.jobs],
  [
    "GET",
    `/api/jobs?state=dead&queue=mail&kind=receipt.send&orderingKey=account%3A1&uniqueKey=%C3%A4%20b&reason=attempts&fingerprint=ab12&since=${instant}&cursor=abc_-&limit=200`,
    undefined,
    [
      [
        "inspect.jobs",
        {
          state: "dead",
          queue: "mail",
          kind: "receipt.send",
          orderingKey: "account:1",
          uniqueKey: "ä b",
          reason: "attempts",
          fingerprint: "ab12",
          since: instant,
          cursor: "abc_-",
          limit: 200,
        },
      ],
    ],
    200,
    read.jobs,
  ],
  ["GET", "/api/dead", undefined, [["inspect.deadGroups"]], 200, read.deadGroups],
  ["GET", "/api/keys?halted=true&limit=1", undefined, [["inspect.keys", { halted: true, limit: 1 }]], 200, read.keys],
  ["GET", "/api/queues", undefined, [["inspect.queues"]], 200, read.queues],
  ["GET", "/api/kinds", undefined, [["inspect.kinds"]], 200, read.kinds],
  ["GET", "/api/triggers", undefined, [["inspect.triggers"]], 200, read.triggers],
  [
    "GET",
    "/api/ticks?trigger=cron%20*%20*&outcome=lost",
    undefined,
    [["inspect.ticks", { trigger: "cron * *", outcome: "lost" }]],
    200,
    read.ticks,
  ],
  ["GET", "/api/invocations/7f3a", undefined, [["inspect.invocation", "7f3a"]], 200, read.invocation],
  ["GET", "/api/holders", undefined, [["inspect.holders"]], 200, read.holders],
  ["GET", "/api/stats", undefined, [["inspect.overview"]], 200, read.overview],
  ["GET", "/api/stats/series", undefined, [["inspect.series", { windowMs: 10_800_000 }]], 200, read.series],
  [
    "GET",
    "/api/stats/series?window=7d&kind=a&queue=b",
    undefined,
    [["inspect.series", { windowMs: 604_800_000, kind: "a", queue: "b" }]],
    200,
    read.series,
  ],
  [
    "POST",
    "/api/jobs/7/reschedule",
    { runAt: "2026-11-30T15:00:00+01:00" },
    [["operate.reschedule", "7", "2026-11-30T14:00:00.000Z", "api"]],
    200,
    { id: "7", type: "rescheduled" },
  ],
  [
    "POST",
    "/api/schedules/nightly/run",
    undefined,
    [["operate.runSchedule", "nightly", "api"]],
    201,
    { schedule: "nightly", job: { type: "enqueued", id: "1" } },
  ],
  [
    "POST",
    "/api/holders/4121/terminate",
    { transactionStart: "2026-11-30T14:00:00.123456+00:00" },
    [["operate.terminate", { pid: 4121, transactionStart: "2026-11-30T14:00:00.123456+00:00", by: "api" }]],
    200,
    { pid: 4121, type: "terminated" },
  ],
  [
    "GET",
    "/api/jobs/7",
    undefined,
    [["inspect.job", "7"]],
    200,
    expect.objectContaining({ payloadText: detail.payloadText }),
  ],
];

describe("every route", () => {
  it.each(routes)("%s %s", async (method, path, body, asked, status, answered) => {
    const { app, calls } = setup();
    const answer = await app.request(path, method === "GET" ? get() : post("operate", body));
    expect([answer.status, await answer.json()]).toEqual([status, answered]);
    expect(calls).toEqual(asked);
  });

  it("opens to the scopes the document names, and to no other", async () => {
    const all = operations();
    expect(all.length).toBeGreaterThan(30);
    for (const { method, path, scopes, body } of all) {
      for (const scope of Object.keys(secrets) as Scope[]) {
        const { app, counted } = setup();
        const init = method === "GET" ? get(scope) : post(scope, body);
        const answer = await app.request(path, init);
        const opens = scopes.length === 0 || scopes.includes(scope);
        expect([method, path, scope, answer.status === 401]).toEqual([method, path, scope, !opens]);
        if (!opens) expect(counted.claimers).toBe(0);
      }
    }
  });

  it("takes a cookie for nothing", async () => {
    const { app } = setup();
    const headers = { cookie: `pgclaim=${secrets.operate}; __Host-pgclaim=${secrets.operate}` };
    expect((await app.request("/api/jobs", { headers })).status).toBe(401);
  });

  it("says that other methods are not taken, at every address", async () => {
    const { app, counted } = setup();
    for (const { path } of operations()) {
      const answer = await app.request(path, { method: "DELETE" });
      expect([path, answer.status]).toEqual([path, 405]);
      const options = await app.request(path, { method: "OPTIONS" });
      expect([options.status, options.headers.get("allow")]).toEqual([204, answer.headers.get("allow")]);
    }
    expect(counted.claimers).toBe(0);
  });
});

describe("a query", () => {
  it.each([
    ["/api/jobs?limit=201", "query.limit", "query.limit: expected a whole number from 1 to 200."],
    ["/api/jobs?limit=0", "query.limit", undefined],
    ["/api/jobs?limit=1e2", "query.limit", undefined],
    ["/api/jobs?limit=", "query.limit", undefined],
    ["/api/jobs?limit=5&limit=6", "query.limit", "query.limit: given twice; expected it once."],
    ["/api/jobs?state=sleeping", "query.state", undefined],
    ["/api/jobs?statee=dead", "query.statee", 'query.statee: unknown parameter "statee"; did you mean "state"?'],
    ["/api/jobs?kind=a%20b", "query.kind", "query.kind: expected 1 to 200 letters, digits and . _ : -."],
    ["/api/jobs?orderingKey=%00", "query.orderingKey", undefined],
    [`/api/jobs?uniqueKey=${"x".repeat(501)}`, "query.uniqueKey", undefined],
    ["/api/jobs?since=yesterday", "query.since", undefined],
    ["/api/jobs?cursor=%20", "query.cursor", undefined],
    ["/api/jobs?payload=x", "query.payload", undefined],
    ["/api/jobs?payload.=x", "query.payload.", undefined],
    ["/api/jobs?payload.a..b=x", "query.payload.a..b", undefined],
    ["/api/jobs?payload.n:={", "query.payload.n:", undefined],
    ["/api/jobs?payload.a=1&payload.a.b=2", "query.payload.a.b", undefined],
    ["/api/jobs?payload.a.b=1&payload.a=2", "query.payload.a", undefined],
    ["/api/keys?halted=yes", "query.halted", "query.halted: expected true or false."],
    ["/api/ticks?outcome=won", "query.outcome", undefined],
    ["/api/queues?limit=5", "query.limit", 'query.limit: unknown parameter "limit"; there are none.'],
    ["/api/dead?kind=a", "query.kind", undefined],
    ["/api/stats/series?window=8d", "query.window", "query.window: expected 1m to 7d."],
    ["/api/stats/series?window=59s", "query.window", undefined],
  ])("is refused: %s", async (path, at, message) => {
    const { app, counted } = setup();
    const answer = await app.request(path, get());
    const error = await errorOf(answer);
    expect([answer.status, error.code, error.path]).toEqual([400, "PGCLAIM_INVALID_REQUEST", at]);
    if (message !== undefined) expect(error.message).toBe(message);
    expect(counted.claimers).toBe(0);
  });

  it("refuses a window without a unit in the words of every other duration", async () => {
    const error = await errorOf(await setup().app.request("/api/stats/series?window=3", get()));
    expect(error).toMatchObject({ code: "PGCLAIM_INVALID_OPTION", path: "query.window" });
  });

  it.each<readonly [string, unknown]>([
    ["payload.orderId=42", { orderId: "42" }],
    ["payload.n:=42", { n: 42 }],
    ["payload.a.b=x&payload.a.c:=[1,null]", { a: { b: "x", c: [1, null] } }],
    ["payload.empty=", { empty: "" }],
    ["payload.%C3%A4%20b=x", { "ä b": "x" }],
  ])("asks for what a payload contains: %s", async (query, payload) => {
    const { app, calls } = setup();
    expect((await app.request(`/api/jobs?${query}`, get())).status).toBe(200);
    expect(calls).toEqual([["inspect.jobs", { payload }]]);
  });

  it("may ask for a field named like a part of every object", async () => {
    const { app, calls } = setup();
    await app.request("/api/jobs?payload.__proto__.polluted=1", get());
    expect(JSON.stringify(calls[0]?.[1])).toBe('{"payload":{"__proto__":{"polluted":"1"}}}');
    expect(({} as { polluted?: unknown }).polluted).toBeUndefined();
  });

  it("is asked by the cursor's own name where the database refuses the cursor", async () => {
    const refuse = async () => {
      throw new UsageError("PGCLAIM_INVALID_OPTION", "The cursor does not belong to this list.");
    };
    const { app } = setup({ "inspect.jobs": refuse, "operate.bulk": refuse });
    expect(await errorOf(await app.request("/api/jobs?cursor=abc", get()))).toEqual({
      code: "PGCLAIM_INVALID_REQUEST",
      message: "query.cursor: The cursor does not belong to this list.",
      path: "query.cursor",
    });
    const body = { filter: { kind: "a" }, cursor: "abc", upTo: "9" };
    expect((await errorOf(await app.request("/api/dead/discard", post("operate", body)))).path).toBe("cursor");
  });
});

describe("a job's payload", () => {
  it("is answered as a file that no browser shows, byte for byte", async () => {
    const payload = '{"n": 12345678901234567890, "html": "<script>alert(1)</script>"}';
    const { app } = setup({ "inspect.payload": async () => payload });
    const answer = await app.request("/api/jobs/7/payload", get());
    expect([answer.status, await answer.text()]).toEqual([200, payload]);
    expect(answer.headers.get("content-type")).toBe("text/plain; charset=utf-8");
    expect(answer.headers.get("content-disposition")).toBe('attachment; filename="job-7-payload.json.txt"');
    expect(answer.headers.get("x-content-type-options")).toBe("nosniff");
    expect(answer.headers.get("cache-control")).toBe("no-store");
  });

  it("is whole in the job too, although its text is cut", async () => {
    const { app, calls } = setup({
      "inspect.job": async () => ({ ...detail, payloadText: '{"a": [1', payloadCut: true }),
      "inspect.payload": async () => '{"a": [1, 2]}',
    });
    const answer = await app.request("/api/jobs/7", get());
    expect(await answer.json()).toMatchObject({ payload: { a: [1, 2] }, payloadText: '{"a": [1', payloadCut: true });
    expect(calls.map(([name]) => name)).toEqual(["inspect.job", "inspect.payload"]);
  });

  it.each(["/api/jobs/7/payload", "/api/jobs/7", "/api/invocations/7"])("404: %s", async (path) => {
    const nobody = async () => null;
    const { app } = setup({ "inspect.payload": nobody, "inspect.job": nobody, "inspect.invocation": nobody });
    const answer = await app.request(path, get());
    expect([answer.status, (await errorOf(answer)).code]).toEqual([
      404,
      path.includes("jobs") ? "PGCLAIM_JOB_NOT_FOUND" : "PGCLAIM_NOT_FOUND",
    ]);
  });
});

describe("one job or schedule", () => {
  it.each([
    ["not-found", 404, "PGCLAIM_JOB_NOT_FOUND"],
    ["busy", 409, "PGCLAIM_JOB_BUSY"],
    ["not-waiting", 409, "PGCLAIM_JOB_NOT_WAITING"],
  ])("that cannot be rescheduled: %s", async (type, status, code) => {
    const { app } = setup({ "operate.reschedule": async () => ({ type, state: "dead" }) });
    const answer = await app.request("/api/jobs/7/reschedule", post("operate", { runAt: instant }));
    expect([answer.status, (await errorOf(answer)).code]).toEqual([status, code]);
  });

  it("needs an instant to be rescheduled", async () => {
    for (const [body, path] of [
      [{}, "runAt"],
      [{ runAt: "soon" }, "runAt"],
      [{ delay: "5m" }, "runAt"],
    ] as const) {
      const answer = await setup().app.request("/api/jobs/7/reschedule", post("operate", body));
      expect([answer.status, (await errorOf(answer)).path]).toEqual([400, path]);
    }
    const nothing = await setup().app.request("/api/jobs/7/reschedule", post("operate"));
    expect([nothing.status, (await errorOf(nothing)).message]).toEqual([400, "expected a JSON object."]);
  });

  it("that is a schedule nobody knows is 404, and one whose job is there already is no new one", async () => {
    const none = setup({ "operate.runSchedule": async () => ({ type: "not-found" }) });
    const answer = await none.app.request("/api/schedules/nightly/run", post("operate"));
    expect([answer.status, (await errorOf(answer)).code]).toEqual([404, "PGCLAIM_NOT_FOUND"]);
    const job = { type: "duplicate", id: "9" };
    const twice = setup({ "operate.runSchedule": async () => ({ type: "enqueued", job }) });
    const again = await twice.app.request("/api/schedules/nightly/run", post("operate"));
    expect([again.status, await again.json()]).toEqual([200, { schedule: "nightly", job }]);
  });

  it.each(["0", "-1", "2147483648", "1e3", "x", "1%202"])("is no process: %s", async (pid) => {
    const { app, counted } = setup();
    const answer = await app.request(`/api/holders/${pid}/terminate`, post("operate", { transactionStart: instant }));
    expect([answer.status, (await errorOf(answer)).path, counted.claimers]).toEqual([400, "pid", 0]);
  });
});

describe.each([
  ["/api/dead/redrive", "retry", "dead"],
  ["/api/dead/discard", "discard", "dead"],
  ["/api/jobs/cancel", "cancel", undefined],
] as const)("POST %s", (path, verb, state) => {
  const filter = { kind: "receipt.send", payload: { orderId: "42" } };
  const asked = state === undefined ? filter : { ...filter, state };

  it("is frozen at the highest id that matches now, and changes a slice", async () => {
    const { app, calls } = setup();
    const answer = await app.request(path, post("operate", { filter }));
    expect([answer.status, await answer.json()]).toEqual([
      200,
      { changed: 3, left: 1, more: false, upTo: "9", cursor: null },
    ]);
    expect(calls).toEqual([
      ["inspect.count", asked],
      ["operate.bulk", { verb, filter: asked, upTo: "9", limit: 1_000, by: "api" }],
    ]);
  });

  it("does nothing where nothing matches", async () => {
    const { app, calls } = setup({
      "inspect.count": async () => ({ n: 0, capped: false, upTo: null, searched: null }),
    });
    const answer = await app.request(path, post("operate", { filter }));
    expect(await answer.json()).toEqual({ changed: 0, left: 0, more: false, upTo: null, cursor: null });
    expect(calls).toHaveLength(1);
  });

  it("ends after 10,000 in slices of 1,000, and goes on from its cursor with the same upTo", async () => {
    let slices = 0;
    const bulk = async () => ({ changed: 900, left: 100, more: true, cursor: `c${++slices}` });
    const { app, calls } = setup({ "operate.bulk": bulk });
    const first = await (await app.request(path, post("operate", { filter, upTo: "77" }))).json();
    expect(first).toEqual({ changed: 9_000, left: 1_000, more: true, upTo: "77", cursor: "c10" });
    expect(calls.map(([name]) => name)).toEqual(Array.from({ length: 10 }, () => "operate.bulk"));
    expect(calls.map(([, request]) => (request as { cursor?: string }).cursor)).toEqual([
      undefined,
      ...Array.from({ length: 9 }, (_, i) => `c${i + 1}`),
    ]);
    await app.request(path, post("operate", { filter, upTo: "77", cursor: "c10" }));
    expect(calls[10]?.[1]).toMatchObject({ cursor: "c10", upTo: "77" });
  });

  it("leaves it to the next request where a slice only searched", async () => {
    const { app, calls } = setup({ "operate.bulk": async () => ({ changed: 0, left: 0, more: true, cursor: "c" }) });
    const answer = await (await app.request(path, post("operate", { filter, upTo: "77" }))).json();
    expect([answer, calls.length]).toEqual([{ changed: 0, left: 0, more: true, upTo: "77", cursor: "c" }, 1]);
  });

  it.each<readonly [unknown, string | undefined]>([
    [undefined, undefined],
    [{}, "filter"],
    [{ filter: {} }, "filter"],
    [{ filter: null }, "filter"],
    [{ filter: { state: "done" } }, "filter.state"],
    [{ filter: { kindd: "a" } }, "filter"],
    [{ filter: { payload: [] } }, "filter.payload"],
    [{ filter, upTo: 9 }, "upTo"],
    [{ filter, upTo: "0" }, "upTo"],
    [{ filter, cursor: "" }, "cursor"],
    [{ filter, limit: 5 }, undefined],
  ])("refuses %j", async (body, at) => {
    const { app, counted } = setup();
    const answer = await app.request(path, post("operate", body));
    const error = await errorOf(answer);
    expect([answer.status, error.code, error.path]).toEqual([400, "PGCLAIM_INVALID_REQUEST", at]);
    expect(counted.claimers).toBe(0);
  });

  it("refuses to look for what no payload can contain, however deep", async () => {
    for (const payload of [
      '{"a":"\\u0000"}',
      '{"a":9007199254740993}',
      `{"a":${"[".repeat(9_999)}${"]".repeat(9_999)}}`,
    ]) {
      const { app, counted } = setup();
      const answer = await app.request(path, post("operate", `{"filter":{"payload":${payload}}}`));
      const error = await errorOf(answer);
      expect([answer.status, error.code]).toEqual([400, "PGCLAIM_INVALID_PAYLOAD"]);
      expect(error.path).toMatch(/^filter\.payload\.a/);
      expect(counted.claimers).toBe(0);
    }
  });
});

describe("POST /api/dead/redrive", () => {
  it("spreads what it retries", async () => {
    const { app, calls } = setup();
    await app.request("/api/dead/redrive", post("operate", { filter: { state: "dead" }, spread: "10m" }));
    expect(calls[1]?.[1]).toMatchObject({ spreadMs: 600_000 });
    const { app: other, counted } = setup();
    const answer = await other.request("/api/dead/redrive", post("operate", { filter: { state: "dead" }, spread: 10 }));
    expect([answer.status, (await errorOf(answer)).path, counted.claimers]).toEqual([400, "spread", 0]);
  });
});

describe("the document and the page", () => {
  it("need no secret and no claimer, and name every route", async () => {
    const { app, counted } = setup({}, { secrets: {} });
    const answer = await app.request("/openapi.json");
    expect([answer.status, await answer.json()]).toEqual([200, openApiDocument()]);
    const page = await app.request("/docs/api");
    const text = await page.text();
    expect([page.status, page.headers.get("content-type")]).toEqual([200, "text/html; charset=UTF-8"]);
    for (const { method, template } of operations()) expect(text).toContain(`<code>${method} ${template}</code>`);
    expect(counted.claimers).toBe(0);
  });

  it("load nothing but the style sheet, run nothing, and have every link's target", async () => {
    const { app } = setup();
    const page = await app.request("/docs/api");
    const text = await page.text();
    expect(page.headers.get("content-security-policy")).toMatch(/^default-src 'none'; style-src 'self';/);
    expect(text).not.toMatch(/<script|<style| style=| on[a-z]+=|javascript:|https?:/);
    const ids = new Set([...text.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id));
    const links = [...text.matchAll(/href="#([^"]+)"/g)].map(([, id]) => id);
    expect(links.length).toBeGreaterThan(50);
    expect(links.filter((id) => !ids.has(id))).toEqual([]);
    expect(ids.size).toBe([...text.matchAll(/ id="/g)].length);
    const style = await app.request("/docs/api.css");
    expect([style.status, style.headers.get("content-type")]).toEqual([200, "text/css; charset=utf-8"]);
  });

  it("has a schema for every reference", () => {
    const document = JSON.stringify(openApiDocument());
    const { components } = openApiDocument() as { components: { schemas: Record<string, unknown> } };
    const references = [...document.matchAll(/"\$ref":"#\/components\/schemas\/(\w+)"/g)].map(([, name]) => name ?? "");
    expect(references.length).toBeGreaterThan(50);
    expect(references.filter((name) => !(name in components.schemas))).toEqual([]);
    expect(document).not.toContain("__shared");
  });
});

interface Operation {
  readonly method: string;
  readonly template: string;
  /** With its parameters filled in. */
  readonly path: string;
  readonly scopes: readonly string[];
  readonly body: unknown;
}

function operations(): Operation[] {
  const bodies: Readonly<Record<string, unknown>> = {
    enqueue: { kind: "receipt.send", payload: 1 },
    rescheduleJob: { runAt: instant },
    terminateHolder: { transactionStart: instant },
  };
  const { paths } = openApiDocument() as unknown as {
    paths: Record<string, Record<string, { operationId: string; security: Record<string, unknown>[] }>>;
  };
  return Object.entries(paths).flatMap(([template, methods]) =>
    Object.entries(methods).map(([method, { operationId, security }]) => ({
      method: method.toUpperCase(),
      template,
      path: template.replace(/\{\w+\}/, "7"),
      scopes: security.flatMap((one) => Object.keys(one)),
      body: bodies[operationId] ?? (template.match(/dead|cancel$/) ? bulkBody(template) : undefined),
    })),
  );
}

function bulkBody(template: string): unknown {
  return template.includes("{id}") ? undefined : { filter: { kind: "receipt.send" } };
}
