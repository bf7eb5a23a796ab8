// Every route and every refusal, on an app whose claimer is a recorder. Each refusal is also seen to have made no claimer.

import { Hono } from "hono";
import { HTTPException } from "hono/http-exception";
import { describe, expect, it } from "vitest";
import { DatabaseError, JobError, UsageError } from "../../../src/errors.ts";
import { createApp } from "../../../src/http/app.ts";
import type { InvocationReport, OperatorAnswer } from "../../../src/model.ts";
import { gate } from "../../support/gate.ts";
import {
  bearer,
  errorOf,
  fakeClaimer,
  post,
  report,
  type Scope,
  schedule,
  secrets,
  setup,
  stream,
  view,
} from "./support.ts";

const job = { kind: "receipt.send", payload: { orderId: "42" } };

/** Every route that needs a secret, with a request that is right but for its secret. */
const routes: readonly { readonly method: string; readonly path: string; readonly opens: readonly Scope[] }[] = [
  { method: "POST", path: "/api/trigger", opens: ["trigger"] },
  { method: "GET", path: "/api/cron", opens: ["cron"] },
  { method: "POST", path: "/api/jobs", opens: ["enqueue"] },
  { method: "GET", path: "/api/jobs/7", opens: ["read", "operate"] },
  { method: "POST", path: "/api/jobs/7/retry", opens: ["operate"] },
  { method: "POST", path: "/api/jobs/7/discard", opens: ["operate"] },
  { method: "POST", path: "/api/jobs/7/skip", opens: ["operate"] },
  { method: "POST", path: "/api/jobs/7/cancel", opens: ["operate"] },
  { method: "POST", path: "/api/queues/mail/pause", opens: ["operate"] },
  { method: "POST", path: "/api/queues/mail/resume", opens: ["operate"] },
  { method: "GET", path: "/api/schedules", opens: ["read", "operate"] },
  { method: "POST", path: "/api/schedules/nightly/pause", opens: ["operate"] },
  { method: "POST", path: "/api/schedules/nightly/resume", opens: ["operate"] },
];

function request(method: string, path: string, headers: Record<string, string>): RequestInit {
  const withBody = path === "/api/jobs";
  return {
    method,
    headers: withBody ? { ...headers, "content-type": "application/json" } : headers,
    ...(withBody ? { body: JSON.stringify(job) } : {}),
  };
}

describe("every route", () => {
  it.each(routes)("$method $path opens to its scopes and to no other", async ({ method, path, opens }) => {
    for (const scope of Object.keys(secrets) as Scope[]) {
      const { app, counted } = setup();
      const answer = await app.request(path, request(method, path, bearer(scope)));
      expect([scope, answer.status < 300]).toEqual([scope, opens.includes(scope)]);
      expect(counted.claimers).toBe(opens.includes(scope) ? 1 : 0);
    }
  });

  it.each(routes)("$method $path is closed (401) to no token and to a wrong one", async ({ method, path }) => {
    for (const headers of [{}, { authorization: "Bearer wrong" }, { authorization: "Bearer undefined" }]) {
      const { app, counted } = setup();
      const answer = await app.request(path, request(method, path, headers as Record<string, string>));
      expect(answer.status).toBe(401);
      expect(answer.headers.get("www-authenticate")).toBe("Bearer");
      expect(await errorOf(answer)).toEqual({
        code: "PGCLAIM_UNAUTHORIZED",
        message: "The bearer token is missing or wrong.",
      });
      expect(counted.claimers).toBe(0);
    }
  });

  it.each(routes)(
    "$method $path is closed (503) while its secret is missing, and logs which",
    async ({ method, path }) => {
      for (const value of [undefined, "", "  ", "undefined"]) {
        const none = { trigger: value, enqueue: value, read: value, operate: value, cron: value };
        const { app, counted, lines } = setup({}, { secrets: none });
        const answer = await app.request(path, request(method, path, { authorization: `Bearer ${value}` }));
        expect(answer.status).toBe(503);
        const error = await errorOf(answer);
        expect(error.code).toBe("PGCLAIM_SECRET_MISSING");
        expect(error.message).toMatch(/^(PGCLAIM_[A-Z]+|CRON)_SECRET is not set in this deployment, so \/api\//);
        expect(lines).toHaveLength(1);
        expect(JSON.parse(lines[0] ?? "")).toMatchObject({ level: "error", code: error.code, message: error.message });
        expect(counted.claimers).toBe(0);
      }
    },
  );

  it("refuses a token in the query string", async () => {
    const { app } = setup();
    const answer = await app.request(`/api/trigger?token=${secrets.trigger}&access_token=${secrets.trigger}`, {
      method: "POST",
    });
    expect(answer.status).toBe(401);
  });

  it("carries its safety headers on every kind of answer", async () => {
    const { app } = setup({ "operate.retry": async () => Promise.reject(new Error("boom")) });
    const answers = await Promise.all([
      app.request("/healthz"),
      app.request("/healthz", { method: "HEAD" }),
      app.request("/nothing"),
      app.request("/api/trigger", { method: "PUT" }),
      app.request("/api/trigger", { method: "OPTIONS" }),
      app.request("/api/trigger", { method: "POST" }),
      app.request("/api/trigger", post("trigger")),
      app.request("/api/jobs", post("enqueue", "{")),
      app.request("/api/jobs/7/retry", post("operate")),
    ]);
    expect(answers.map((answer) => answer.status)).toEqual([200, 200, 404, 405, 204, 401, 200, 400, 500]);
    for (const answer of answers) {
      expect(answer.headers.get("cache-control")).toBe("no-store");
      expect(answer.headers.get("x-content-type-options")).toBe("nosniff");
      expect(answer.headers.get("access-control-allow-origin")).toBeNull();
    }
  });

  it("answers an address nobody has in the error's shape", async () => {
    const { app } = setup();
    for (const path of [
      "/api",
      "/api/jobs/",
      "/api/trigger/",
      "/api/jobs/7/run",
      "/api/queues/mail",
      "/api/schedules/",
      "/api/schedules/nightly",
      "/%00",
      "/api/%2e%2e/x",
    ]) {
      const answer = await app.request(path, { headers: bearer("operate") });
      expect([path, answer.status, (await errorOf(answer)).code]).toEqual([path, 404, "PGCLAIM_ROUTE_NOT_FOUND"]);
    }
  });

  it.each([
    ["/healthz", ["POST", "PUT", "DELETE"], "GET, HEAD, OPTIONS"],
    ["/api/trigger", ["GET", "HEAD", "PUT"], "POST, OPTIONS"],
    ["/api/cron", ["POST", "HEAD", "DELETE"], "GET, OPTIONS"],
    ["/api/jobs", ["PUT", "PATCH", "DELETE"], "GET, HEAD, POST, OPTIONS"],
    ["/api/jobs/7", ["POST", "PUT", "DELETE"], "GET, HEAD, OPTIONS"],
    ["/api/jobs/7/retry", ["GET", "DELETE"], "POST, OPTIONS"],
    ["/api/jobs/7/discard", ["GET", "DELETE"], "POST, OPTIONS"],
    ["/api/jobs/7/skip", ["GET", "DELETE"], "POST, OPTIONS"],
    ["/api/jobs/7/cancel", ["GET", "DELETE"], "POST, OPTIONS"],
    ["/api/queues/mail/pause", ["GET", "HEAD", "PUT"], "POST, OPTIONS"],
    ["/api/queues/mail/resume", ["GET", "HEAD", "PUT"], "POST, OPTIONS"],
    ["/api/schedules", ["POST", "PUT", "DELETE"], "GET, HEAD, OPTIONS"],
    ["/api/schedules/nightly/pause", ["GET", "HEAD", "PUT"], "POST, OPTIONS"],
    ["/api/schedules/nightly/resume", ["GET", "HEAD", "PUT"], "POST, OPTIONS"],
  ])("%s answers other methods 405 and OPTIONS 204, and does nothing", async (path, methods, allow) => {
    const { app, counted } = setup();
    const everything = { authorization: `Bearer ${secrets.cron}` };
    for (const method of methods) {
      const answer = await app.request(path, { method, headers: everything });
      expect([method, answer.status, answer.headers.get("allow")]).toEqual([method, 405, allow]);
      if (method !== "HEAD") expect((await errorOf(answer)).code).toBe("PGCLAIM_INVALID_REQUEST");
    }
    const options = await app.request(path, { method: "OPTIONS" });
    expect([options.status, options.headers.get("allow"), await options.text()]).toEqual([204, allow, ""]);
    expect(counted.claimers).toBe(0);
  });
});

describe("GET /healthz", () => {
  it("answers without a secret and without a claimer", async () => {
    const { app, counted } = setup({}, { secrets: {} });
    const answer = await app.request("/healthz");
    expect([answer.status, await answer.json()]).toEqual([200, { ok: true }]);
    expect(counted.claimers).toBe(0);
  });
});

describe("POST /api/trigger", () => {
  it("runs one invocation and answers its report", async () => {
    const { app, calls } = setup();
    const answer = await app.request("/api/trigger", post("trigger"));
    expect([answer.status, await answer.json()]).toEqual([200, report]);
    expect(calls).toEqual([["invoke", { type: "http", by: "/api/trigger" }, {}]]);
  });

  it("takes an empty body of any type, as curl -d '' sends it", async () => {
    const { app } = setup();
    const headers = { ...bearer("trigger"), "content-type": "application/x-www-form-urlencoded" };
    for (const body of ["", stream(), stream("", "")]) {
      const answer = await app.request("/api/trigger", {
        method: "POST",
        headers,
        body,
        duplex: "half",
      } as RequestInit);
      expect(answer.status).toBe(200);
    }
  });

  it.each([
    ["10s", "10000ms"],
    ["250ms", "250ms"],
    ["25s", "25000ms"],
    ["26s", "25000ms"],
    ["7d", "25000ms"],
  ])("takes a budget of %s as %s", async (budget, given) => {
    const { app, calls } = setup();
    await app.request("/api/trigger", post("trigger", { budget }));
    expect(calls[0]?.[2]).toEqual({ budget: given });
  });

  it.each([
    [{ budget: 20 }, "PGCLAIM_INVALID_OPTION", 'budget is 20; write the unit, for example "20s".'],
    [{ budget: "20" }, "PGCLAIM_INVALID_OPTION", undefined],
    [{ budget: "-1s" }, "PGCLAIM_INVALID_OPTION", undefined],
    [{ budget: "Infinitys" }, "PGCLAIM_INVALID_OPTION", undefined],
    [{ budget: null }, "PGCLAIM_INVALID_OPTION", undefined],
    [{ budget: ["20s"] }, "PGCLAIM_INVALID_OPTION", undefined],
    [{ bugdet: "20s" }, "PGCLAIM_INVALID_REQUEST", 'unknown field "bugdet"; did you mean "budget"?'],
    [{ x: "20s" }, "PGCLAIM_INVALID_REQUEST", 'unknown field "x"; the fields are budget, wait, queues.'],
    [{ wait: "no" }, "PGCLAIM_INVALID_REQUEST", "wait: expected true or false."],
    [{ wait: null }, "PGCLAIM_INVALID_REQUEST", "wait: expected true or false."],
    [{ queues: [] }, "PGCLAIM_INVALID_REQUEST", "queues: expected 1 to 20 names of letters, digits and . _ : -."],
    [{ queues: "mail" }, "PGCLAIM_INVALID_REQUEST", undefined],
    [{ queues: ["a b"] }, "PGCLAIM_INVALID_REQUEST", "queues[0]: expected 1 to 100 letters, digits and . _ : -."],
    [{ queues: ["x".repeat(101)] }, "PGCLAIM_INVALID_REQUEST", undefined],
    [{ queues: [7] }, "PGCLAIM_INVALID_REQUEST", undefined],
    [{ queues: Array.from({ length: 21 }, (_, i) => `q${i}`) }, "PGCLAIM_INVALID_REQUEST", undefined],
    [{ queues: null }, "PGCLAIM_INVALID_REQUEST", undefined],
    [[], "PGCLAIM_INVALID_REQUEST", "expected a JSON object."],
    ["null", "PGCLAIM_INVALID_REQUEST", "expected a JSON object."],
    ['"20s"', "PGCLAIM_INVALID_REQUEST", "expected a JSON object."],
  ])("refuses %j", async (body, code, message) => {
    const { app, counted } = setup();
    const answer = await app.request("/api/trigger", post("trigger", body));
    const error = await errorOf(answer);
    expect([answer.status, error.code]).toEqual([400, code]);
    if (message !== undefined) expect(error.message).toBe(message);
    expect(counted.claimers).toBe(0);
  });

  it("hands on the queues it names, in their order", async () => {
    const { app, calls } = setup();
    const queues = ["mail", "default", "x".repeat(100)];
    expect((await app.request("/api/trigger", post("trigger", { queues }))).status).toBe(200);
    expect(calls).toEqual([["invoke", { type: "http", by: "/api/trigger" }, { queues }]]);
  });

  it("that shall not wait is answered 202 at once, and the runtime is given the invocation to keep alive", async () => {
    const ends = gate<InvocationReport>();
    const { app, calls } = setup({ invoke: () => ends.promise });
    const kept: Promise<unknown>[] = [];
    const context = {
      waitUntil: (promise: Promise<unknown>) => kept.push(promise),
      passThroughOnException() {},
      props: {},
    };
    const answer = await app.request("/api/trigger", post("trigger", { wait: false, queues: ["mail"] }), {}, context);
    expect([answer.status, await answer.json()]).toEqual([202, { accepted: true }]);
    expect(calls).toEqual([["invoke", { type: "http", by: "/api/trigger" }, { queues: ["mail"] }]]);
    expect(kept).toHaveLength(1);
    ends.fail(new Error("boom"));
    await expect(kept[0]).resolves.toBeUndefined();
  });

  it("that shall not wait does wait where no runtime would keep the work alive", async () => {
    const { app } = setup();
    const answer = await app.request("/api/trigger", post("trigger", { wait: false }));
    expect([answer.status, await answer.json()]).toEqual([200, report]);
  });

  it("that waits says so in no other way than by its answer", async () => {
    const { app } = setup();
    const kept: Promise<unknown>[] = [];
    const context = {
      waitUntil: (promise: Promise<unknown>) => kept.push(promise),
      passThroughOnException() {},
      props: {},
    };
    const answer = await app.request("/api/trigger", post("trigger", { wait: true }), {}, context);
    expect([answer.status, kept]).toEqual([200, []]);
  });

  it("answers 200 when the isolate is busy with a quarantined tick", async () => {
    const { app } = setup({ invoke: async () => ({ ...report, ended: "busy" }) });
    expect((await app.request("/api/trigger", post("trigger"))).status).toBe(200);
  });

  it("answers 503 with the error and the report when the invocation ended in one", async () => {
    const failed: InvocationReport = {
      ...report,
      ended: "error",
      error: { code: "PGCLAIM_TX_LOST", message: "The database failed while claiming." },
    };
    const { app } = setup({ invoke: async () => failed });
    const answer = await app.request("/api/trigger", post("trigger"));
    expect([answer.status, answer.headers.get("retry-after")]).toEqual([503, "1"]);
    expect(await answer.json()).toEqual({ error: failed.error, report: failed });
  });

  it("asks for no retry when a retry cannot help", async () => {
    const error = { code: "PGCLAIM_AUTHENTICATION_FAILED", message: "The database refused the credentials." };
    const { app } = setup({ invoke: async () => ({ ...report, ended: "error", error }) });
    const answer = await app.request("/api/trigger", post("trigger"));
    expect([answer.status, answer.headers.get("retry-after")]).toEqual([503, null]);
  });

  it("hides what an internal error in a report says, in the tick's too", async () => {
    const error = { code: "PGCLAIM_INTERNAL", message: "cannot read 4111-1111 of undefined" };
    const ticks = [{ tickId: "t1", error }] as unknown as InvocationReport["ticks"];
    for (const ended of ["error", "budget"] as const) {
      const { app } = setup({ invoke: async () => ({ ...report, ended, error, ticks }) });
      const answer = await app.request("/api/trigger", post("trigger"));
      const text = await answer.text();
      expect([ended, answer.status]).toEqual([ended, ended === "error" ? 503 : 200]);
      expect(text).toContain("PGCLAIM_INTERNAL");
      expect(text).not.toContain("4111");
    }
  });

  it("goes on when its caller hangs up", async () => {
    const hangUp = new AbortController();
    let options: unknown;
    const { app } = setup({
      invoke: async (_trigger, given) => {
        options = given;
        hangUp.abort();
        return report;
      },
    });
    const answer = await app.request(
      new Request("http://x/api/trigger", { ...post("trigger"), signal: hangUp.signal }),
    );
    expect(answer.status).toBe(200);
    expect(options).toEqual({});
  });
});

describe("GET /api/cron", () => {
  it.each([
    ["*/5 * * * *", "*/5 * * * *"],
    ["0 12 ? * MON-FRI", "0 12 ? * MON-FRI"],
    [undefined, "/api/cron"],
    ["", "/api/cron"],
    ["x".repeat(101), "/api/cron"],
    ["<script>", "/api/cron"],
  ])("names the schedule of the header %j", async (header, cron) => {
    const { app, calls } = setup();
    const headers = { ...bearer("cron"), ...(header === undefined ? {} : { "x-vercel-cron-schedule": header }) };
    const answer = await app.request("/api/cron", { headers });
    expect([answer.status, await answer.json()]).toEqual([200, report]);
    expect(calls).toEqual([["invoke", { type: "cron", cron, scheduledAt: null }, {}]]);
  });

  it("answers 503 for a failed invocation, so that the platform's log shows it", async () => {
    const { app } = setup({ invoke: async () => ({ ...report, ended: "error" }) });
    const answer = await app.request("/api/cron", { headers: bearer("cron") });
    expect([answer.status, ((await answer.json()) as { error: unknown }).error]).toEqual([
      503,
      { code: "PGCLAIM_INTERNAL", message: "Something unexpected happened; the log of this deployment says what." },
    ]);
  });
});

describe("POST /api/jobs", () => {
  it("enqueues one job and answers its id", async () => {
    const { app, calls } = setup();
    const answer = await app.request("/api/jobs", post("enqueue", job));
    expect([answer.status, await answer.json()]).toEqual([201, { type: "enqueued", id: "1" }]);
    expect(calls).toEqual([["enqueueByKind", [job], { source: "api" }]]);
  });

  it("enqueues an array and answers an array, also for one", async () => {
    const { app, calls } = setup();
    const deadlineAt = "2026-11-30T16:00:00+02:00";
    const jobs = [job, { ...job, runAt: "2026-11-30T15:00:00.5+01:00" }, { ...job, delay: "1.5h", deadlineAt }];
    const answer = await app.request("/api/jobs", post("enqueue", jobs));
    expect([answer.status, ((await answer.json()) as unknown[]).length]).toEqual([201, 3]);
    expect(calls[0]?.[1]).toEqual([
      job,
      { ...job, runAt: new Date("2026-11-30T14:00:00.500Z") },
      { ...job, delay: "5400000ms", deadlineAt: new Date("2026-11-30T14:00:00.000Z") },
    ]);
    const one = await app.request("/api/jobs", post("enqueue", [job]));
    expect(await one.json()).toEqual([{ type: "enqueued", id: "1" }]);
  });

  it("takes 1,000 jobs in one call and refuses 1,001 and none", async () => {
    const { app, calls } = setup();
    const many = (n: number) =>
      post(
        "enqueue",
        Array.from({ length: n }, () => job),
      );
    expect((await app.request("/api/jobs", many(1_000))).status).toBe(201);
    for (const n of [0, 1_001]) {
      const error = await errorOf(await app.request("/api/jobs", many(n)));
      expect(error).toMatchObject({ code: "PGCLAIM_INVALID_REQUEST", path: "jobs" });
      expect(error.message).toBe(`jobs: expected 1 to 1000 jobs, got ${n}.`);
    }
    expect(calls).toHaveLength(1);
  });

  it.each([null, false, 0, "", "text", [], {}, [[[1]]]])(
    "hands the payload %j to the claimer as it came",
    async (payload) => {
      const { app, calls } = setup();
      expect((await app.request("/api/jobs", post("enqueue", { kind: "a", payload }))).status).toBe(201);
      expect(calls[0]?.[1]).toEqual([{ kind: "a", payload }]);
    },
  );

  it.each([
    ["no body", undefined, undefined, "expected a job or an array of jobs as JSON."],
    ["null", "null", undefined, "expected a JSON object."],
    ["a number", "7", undefined, "expected a JSON object."],
    ["no kind", { payload: 1 }, "kind", "kind: expected 1 to 200 letters, digits and . _ : -."],
    ["an empty kind", { kind: "", payload: 1 }, "kind", undefined],
    ["a long kind", { kind: "k".repeat(201), payload: 1 }, "kind", undefined],
    ["a kind with NUL", { kind: "a\0", payload: 1 }, "kind", undefined],
    ["a kind that is no text", { kind: 7, payload: 1 }, "kind", undefined],
    ["no payload", { kind: "a" }, "payload", "payload: expected a JSON value."],
    ["an unknown field", { ...job, paylod: 1 }, undefined, 'unknown field "paylod"; did you mean "payload"?'],
    [
      "an option of defineJob",
      { ...job, retry: {} },
      undefined,
      'unknown field "retry"; the fields are kind, payload, runAt, delay, deadlineAt, trace.',
    ],
    ["a priority, which is the kind's", { ...job, priority: 0 }, undefined, undefined],
    ["deadlineAt without a zone", { ...job, deadlineAt: "2026-11-30T14:00:00" }, "deadlineAt", undefined],
    ["deadlineAt on a day that is none", { ...job, deadlineAt: "2026-02-30T14:00:00Z" }, "deadlineAt", undefined],
    ["deadlineAt as a number", { ...job, deadlineAt: 1_764_511_200_000 }, "deadlineAt", undefined],
    ["deadlineAt as null", { ...job, deadlineAt: null }, "deadlineAt", undefined],
    [
      "deadlineAt as a length",
      { ...job, deadlineAt: "15m" },
      "deadlineAt",
      'deadlineAt: expected an instant with its zone, for example "2026-11-30T14:00:00Z".',
    ],
    ["__proto__", '{"kind":"a","payload":1,"__proto__":{}}', undefined, undefined],
    ["runAt without a zone", { ...job, runAt: "2026-11-30T14:00:00" }, "runAt", undefined],
    ["runAt as a date", { ...job, runAt: "2026-11-30" }, "runAt", undefined],
    ["runAt on a day that is none", { ...job, runAt: "2026-02-30T14:00:00Z" }, "runAt", undefined],
    ["runAt as a number", { ...job, runAt: 1_764_511_200_000 }, "runAt", undefined],
    ["runAt as null", { ...job, runAt: null }, "runAt", undefined],
    [
      "runAt and delay",
      { ...job, runAt: "2026-11-30T14:00:00Z", delay: "1s" },
      "delay",
      "delay: give runAt or delay, not both.",
    ],
    ["in a list, the second without kind", [job, { payload: 1 }], "jobs[1].kind", undefined],
    ["in a list, a list", [job, [job]], "jobs[1]", "jobs[1]: expected a JSON object."],
  ])("refuses %s", async (_, body, path, message) => {
    const { app, counted } = setup();
    const answer = await app.request("/api/jobs", post("enqueue", body));
    const error = await errorOf(answer);
    expect([answer.status, error.code]).toEqual([400, "PGCLAIM_INVALID_REQUEST"]);
    if (path !== undefined) expect(error.path).toBe(path);
    if (message !== undefined) expect(error.message).toBe(message);
    expect(counted.claimers).toBe(0);
  });

  it.each([
    [20, 'delay is 20; write the unit, for example "20s".'],
    ["soon", undefined],
    ["-1s", undefined],
    [null, undefined],
    ["99999d", undefined],
  ])("refuses a delay of %j in the words of every other duration", async (delay, message) => {
    const { app } = setup();
    const error = await errorOf(await app.request("/api/jobs", post("enqueue", { ...job, delay })));
    expect(error).toMatchObject({ code: "PGCLAIM_INVALID_OPTION", path: "delay" });
    if (message !== undefined) expect(error.message).toBe(message);
  });

  it("refuses integers that JSON would change on the way in, by their path", async () => {
    const { app, counted } = setup();
    const refused = ['{"a":[1,{"n":9007199254740993}]}', '{"a":[1,{"n":-9007199254740992}]}', '{"a":[1,{"n":1e400}]}'];
    for (const payload of refused.slice(0, 2)) {
      const answer = await app.request("/api/jobs", post("enqueue", `{"kind":"a","payload":${payload}}`));
      expect([answer.status, await errorOf(answer)]).toMatchObject([
        400,
        { code: "PGCLAIM_INVALID_PAYLOAD", path: "payload.a[1].n" },
      ]);
    }
    expect(counted.claimers).toBe(0);
    const kept = '{"a":[9007199254740991,-9007199254740991,0.1,1e-7,1.5e10]}';
    expect((await app.request("/api/jobs", post("enqueue", `{"kind":"a","payload":${kept}}`))).status).toBe(201);
  });

  it("does not fall over a payload nested 600,000 deep", async () => {
    const { app, calls } = setup();
    const deep = `{"kind":"a","payload":${"[".repeat(600_000)}${"]".repeat(600_000)}}`;
    // The claimer is the one to refuse it; here it only has to arrive.
    expect((await app.request("/api/jobs", post("enqueue", deep))).status).toBe(201);
    expect(calls).toHaveLength(1);
  });

  it.each([
    ["PGCLAIM_UNKNOWN_KIND", 404],
    ["PGCLAIM_INVALID_PAYLOAD", 400],
    ["PGCLAIM_PAYLOAD_TOO_LARGE", 413],
    ["PGCLAIM_SCHEMA_MISSING", 503],
  ] as const)("passes on the claimer's %s as %i, with its path", async (code, status) => {
    const refusal = async () => {
      throw new UsageError(code, "what happened to which thing", { path: "payload.orderId" });
    };
    const { app } = setup({ enqueueByKind: refusal });
    const one = await app.request("/api/jobs", post("enqueue", job));
    expect([one.status, await errorOf(one)]).toEqual([
      status,
      { code, message: "what happened to which thing", path: "payload.orderId" },
    ]);
  });

  it.each([
    [new DatabaseError("PGCLAIM_CONNECT_FAILED", "no answer"), "1"],
    [new DatabaseError("PGCLAIM_AUTHENTICATION_FAILED", "refused"), null],
  ])("answers 503 when the database is in trouble, and whether to try again", async (error, retryAfter) => {
    const { app, lines } = setup({ enqueueByKind: async () => Promise.reject(error) });
    const answer = await app.request("/api/jobs", post("enqueue", job));
    expect([answer.status, answer.headers.get("retry-after")]).toEqual([503, retryAfter]);
    expect(JSON.parse(lines[0] ?? "")).toMatchObject({ route: "POST /api/jobs", status: 503, code: error.code });
  });
});

describe("a body", () => {
  const space = " ".repeat(100);
  const limit = 300;
  const fits = JSON.stringify(job).padEnd(limit, " ");

  it("may be exactly as long as the limit, in one piece or in many", async () => {
    const { app } = setup({}, { maxBodyBytes: limit });
    const pieces = [fits.slice(0, 10), "", fits.slice(10, 299), fits.slice(299)];
    for (const body of [fits, stream(fits), stream(...pieces)]) {
      const init = { ...post("enqueue", "x"), body, duplex: "half" } as RequestInit;
      expect((await app.request("/api/jobs", init)).status).toBe(201);
    }
  });

  it("is refused (413) one byte later, also without a length or with a false one", async () => {
    const { app, counted } = setup({}, { maxBodyBytes: limit });
    const bodies: [RequestInit["body"], Record<string, string>][] = [
      [`${fits} `, {}],
      [`${fits} `, { "content-length": "301" }],
      [stream(fits, " "), {}],
      [stream(fits, " "), { "content-length": "10" }],
      [stream(fits, " "), { "content-length": "many" }],
      [stream(fits, " "), { "content-length": "10", "transfer-encoding": "chunked" }],
      // Bytes count, not characters.
      [JSON.stringify({ ...job, payload: "ä".repeat(140) }), {}],
    ];
    for (const [body, headers] of bodies) {
      const init = { ...post("enqueue", "x", headers), body, duplex: "half" } as RequestInit;
      const answer = await app.request("/api/jobs", init);
      expect([answer.status, (await errorOf(answer)).code]).toEqual([413, "PGCLAIM_BODY_TOO_LARGE"]);
    }
    expect(counted.claimers).toBe(0);
  });

  it("that says it is too long is refused unread, and one that goes on is stopped", async () => {
    const { app } = setup({}, { maxBodyBytes: limit });
    let pulls = 0;
    let cancelled = 0;
    const endless = () =>
      new ReadableStream<Uint8Array>(
        {
          pull: (controller) => {
            pulls++;
            controller.enqueue(new TextEncoder().encode(space));
          },
          cancel: () => {
            cancelled++;
          },
        },
        { highWaterMark: 0 },
      );
    const send = (headers: Record<string, string>) =>
      app.request("/api/jobs", { ...post("enqueue", "x", headers), body: endless(), duplex: "half" } as RequestInit);
    expect((await send({ "content-length": "999999999999" })).status).toBe(413);
    expect([pulls, cancelled]).toEqual([0, 1]);
    expect((await send({})).status).toBe(413);
    expect([pulls, cancelled]).toEqual([4, 2]);
  });

  it("is not read at all before the secret is right", async () => {
    const { app } = setup();
    let pulls = 0;
    const body = new ReadableStream<Uint8Array>({ pull: () => void pulls++ }, { highWaterMark: 0 });
    const answer = await app.request("/api/jobs", { method: "POST", body, duplex: "half" } as RequestInit);
    expect([answer.status, pulls]).toEqual([401, 0]);
  });

  it("has a limit of 1,500,000 bytes unless it is set", async () => {
    const { app } = setup();
    const text = JSON.stringify(job);
    expect((await app.request("/api/jobs", post("enqueue", text.padEnd(1_500_000)))).status).toBe(201);
    expect((await app.request("/api/jobs", post("enqueue", text.padEnd(1_500_001)))).status).toBe(413);
  });

  it.each([
    "application/json",
    "APPLICATION/JSON",
    "application/json; charset=utf-8",
    'application/json;charset="UTF-8"',
  ])("may be %s", async (type) => {
    const { app } = setup();
    expect((await app.request("/api/jobs", post("enqueue", job, { "content-type": type }))).status).toBe(201);
  });

  it.each([
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/jsonp",
    "text/json",
    "application/json; charset=latin1",
    "",
  ])("of type %j is refused (415)", async (type) => {
    const { app, counted } = setup();
    for (const path of ["/api/jobs", "/api/trigger", "/api/jobs/7/retry"]) {
      const scope = path === "/api/jobs" ? "enqueue" : path === "/api/trigger" ? "trigger" : "operate";
      const answer = await app.request(path, post(scope, job, { "content-type": type }));
      expect([answer.status, (await errorOf(answer)).code]).toEqual([415, "PGCLAIM_INVALID_REQUEST"]);
    }
    expect(counted.claimers).toBe(0);
  });

  it("that is compressed is refused (415)", async () => {
    const { app } = setup();
    expect((await app.request("/api/jobs", post("enqueue", job, { "content-encoding": "gzip" }))).status).toBe(415);
    expect((await app.request("/api/jobs", post("enqueue", job, { "content-encoding": "identity" }))).status).toBe(201);
  });

  it.each(["{", "{'kind':1}", "undefined", "NaN", '{"kind":"a"}{}', "[1,]", "\u0000"])(
    "that is no JSON is refused without its text: %j",
    async (text) => {
      const { app } = setup();
      const answer = await app.request("/api/jobs", post("enqueue", text));
      expect([answer.status, await errorOf(answer)]).toEqual([
        400,
        { code: "PGCLAIM_INVALID_REQUEST", message: "the body is not JSON." },
      ]);
    },
  );

  it("that is no UTF-8 is refused", async () => {
    const { app } = setup();
    const body = new Uint8Array([0x22, 0xff, 0xfe, 0x22]);
    const answer = await app.request("/api/jobs", { ...post("enqueue", "x"), body });
    expect([answer.status, (await errorOf(answer)).message]).toEqual([400, "the body is not UTF-8 text."]);
  });

  it("that breaks off is refused, and nothing is enqueued", async () => {
    const { app, counted } = setup();
    const body = new ReadableStream({
      pull: (controller) => controller.error(new Error("socket hang up")),
    });
    const answer = await app.request("/api/jobs", { ...post("enqueue", "x"), body, duplex: "half" } as RequestInit);
    expect([answer.status, (await errorOf(answer)).message]).toEqual([400, "the body ended early."]);
    expect(counted.claimers).toBe(0);
  });
});

describe("GET /api/jobs/{id}", () => {
  it("answers the job, with ids near 2^63 as text", async () => {
    const { app, calls } = setup();
    const answer = await app.request("/api/jobs/9223372036854775807", { headers: bearer("read") });
    expect([answer.status, await answer.json()]).toMatchObject([200, view]);
    expect(calls).toEqual([["inspect.job", "9223372036854775807"]]);
  });

  it("answers HEAD without a body", async () => {
    const { app } = setup();
    const answer = await app.request("/api/jobs/7", { method: "HEAD", headers: bearer("read") });
    expect([answer.status, await answer.text()]).toEqual([200, ""]);
  });

  it("answers 404 for a job nobody knows", async () => {
    const { app } = setup({ "inspect.job": async () => null });
    const answer = await app.request("/api/jobs/7", { headers: bearer("read") });
    expect([answer.status, (await errorOf(answer)).code]).toEqual([404, "PGCLAIM_JOB_NOT_FOUND"]);
  });

  it.each([
    "0",
    "-1",
    "+1",
    "007",
    "1.0",
    "1e3",
    "0x10",
    "abc",
    "1%20",
    "%31a",
    "1%2F2",
    "١",
    "9223372036854775808",
    "18446744073709551615",
    "9".repeat(5_000),
    "1;drop",
    "null",
  ])("refuses the id %s", async (id) => {
    const { app, counted } = setup();
    for (const [path, init] of [
      [`/api/jobs/${id}`, { headers: bearer("read") }],
      [`/api/jobs/${id}/retry`, post("operate")],
      [`/api/jobs/${id}/discard`, post("operate")],
      [`/api/jobs/${id}/skip`, post("operate")],
      [`/api/jobs/${id}/cancel`, post("operate")],
    ] as const) {
      const answer = await app.request(path, init);
      expect([answer.status, await errorOf(answer)]).toMatchObject([
        400,
        { code: "PGCLAIM_INVALID_REQUEST", path: "id" },
      ]);
    }
    expect(counted.claimers).toBe(0);
  });

  it("takes the ids around 2^31, 2^32 and 2^53 as they are", async () => {
    const ids = [
      "1",
      "2147483647",
      "2147483648",
      "4294967295",
      "4294967296",
      "9007199254740993",
      "9223372036854775807",
    ];
    const { app, calls } = setup();
    for (const id of ids) await app.request(`/api/jobs/${id}`, { headers: bearer("read") });
    expect(calls.map((call) => call[1])).toEqual(ids);
  });
});

describe.each([
  ["retry", "retried"],
  ["discard", "discarded"],
  ["skip", "skipped"],
  ["cancel", "cancelled"],
] as const)("POST /api/jobs/{id}/%s", (verb, type) => {
  const answers: readonly [OperatorAnswer, number, string][] = [
    [{ type: "not-found" }, 404, "PGCLAIM_JOB_NOT_FOUND"],
    [{ type: "busy" }, 409, "PGCLAIM_JOB_BUSY"],
    [{ type: "not-dead", state: "ready" }, 409, "PGCLAIM_JOB_NOT_DEAD"],
  ];

  it("answers what was done", async () => {
    const { app, calls } = setup();
    const answer = await app.request(`/api/jobs/7/${verb}`, post("operate"));
    expect([answer.status, await answer.json()]).toEqual([200, { id: "7", type }]);
    expect(calls).toEqual([[`operate.${verb}`, "7", "api"]]);
  });

  it.each(answers)("answers $type with its code", async (given, status, code) => {
    const { app } = setup({ [`operate.${verb}`]: async () => given });
    const answer = await app.request(`/api/jobs/7/${verb}`, post("operate", {}));
    expect([answer.status, (await errorOf(answer)).code]).toEqual([status, code]);
  });

  it("refuses a body that says something", async () => {
    const { app, counted } = setup();
    const answer = await app.request(`/api/jobs/7/${verb}`, post("operate", { force: true }));
    expect([answer.status, (await errorOf(answer)).message]).toEqual([400, 'unknown field "force"; there are none.']);
    expect(counted.claimers).toBe(0);
  });
});

describe("POST /api/jobs/{id}/cancel", () => {
  it("says of a running job that its cancel was asked for", async () => {
    const { app } = setup({ "operate.cancel": async () => ({ type: "requested" }) });
    const answer = await app.request("/api/jobs/7/cancel", post("operate"));
    expect([answer.status, await answer.json()]).toEqual([200, { id: "7", type: "requested" }]);
  });
});

const named = [
  ["queue", "queues", "pause", "pauseQueue", 100],
  ["queue", "queues", "resume", "resumeQueue", 100],
  ["schedule", "schedules", "pause", "pauseSchedule", 200],
  ["schedule", "schedules", "resume", "resumeSchedule", 200],
] as const;

describe.each(named)("POST /api/%ss/{name}: %s/%s", (what, folder, verb, method, longest) => {
  it.each([true, false])("answers whether it changed anything: %s", async (changed) => {
    const { app, calls } = setup({ [method]: async () => changed });
    const answer = await app.request(`/api/${folder}/a.b_c:d-9/${verb}`, post("operate"));
    expect([answer.status, await answer.json()]).toEqual([200, { [what]: "a.b_c:d-9", changed }]);
    expect(calls).toEqual([[method, "a.b_c:d-9"]]);
  });

  it("takes names as long as they can be defined, and no longer", async () => {
    const { app, counted } = setup();
    const path = (length: number) => `/api/${folder}/${"x".repeat(length)}/${verb}`;
    expect((await app.request(path(longest), post("operate"))).status).toBe(200);
    const answer = await app.request(path(longest + 1), post("operate"));
    expect([answer.status, await errorOf(answer)]).toEqual([
      400,
      {
        code: "PGCLAIM_INVALID_REQUEST",
        message: `name: expected 1 to ${longest} letters, digits and . _ : -.`,
        path: "name",
      },
    ]);
    expect(counted.claimers).toBe(1);
  });

  it.each(["a%20b", "%C3%A4", "a%00", "a%2Fb", "a;b", "%25", "a%0A"])("refuses the name %s", async (name) => {
    const { app, counted } = setup();
    const answer = await app.request(`/api/${folder}/${name}/${verb}`, post("operate"));
    expect([answer.status, (await errorOf(answer)).path]).toEqual([400, "name"]);
    expect(counted.claimers).toBe(0);
  });

  it("refuses a body that says something", async () => {
    const { app, counted } = setup();
    const answer = await app.request(`/api/${folder}/mail/${verb}`, post("operate", { force: true }));
    expect([answer.status, (await errorOf(answer)).message]).toEqual([400, 'unknown field "force"; there are none.']);
    expect(counted.claimers).toBe(0);
  });
});

describe("GET /api/schedules", () => {
  it("answers every schedule, instants in ISO 8601", async () => {
    const { app } = setup();
    const answer = await app.request("/api/schedules", { headers: bearer("read") });
    expect([answer.status, await answer.json()]).toEqual([200, [{ ...schedule, nextAt: "2026-12-01T01:30:00.000Z" }]]);
  });
});

describe("what goes wrong inside", () => {
  const secret = "postgresql://app:hunter2@db.example/app";

  it.each([
    ["an Error", () => new TypeError("boom 4111-1111")],
    ["an event", () => ({ type: "error", message: "boom 4111-1111" })],
    ["text", () => "boom 4111-1111"],
    ["nothing", () => undefined],
    ["a handler's error", () => new JobError("PGCLAIM_HANDLER_THREW", "boom 4111-1111")],
  ])("is answered 500 without a word of it: %s", async (_, make) => {
    const { app, lines } = setup({ "inspect.job": async () => Promise.reject(make()) });
    const answer = await app.request("/api/jobs/7", { headers: bearer("read") });
    const text = await answer.text();
    expect([answer.status, JSON.parse(text)]).toEqual([
      500,
      {
        error: {
          code: "PGCLAIM_INTERNAL",
          message: "Something unexpected happened; the log of this deployment says what.",
        },
      },
    ]);
    expect(lines).toHaveLength(1);
    expect(lines[0]).not.toContain("\n");
    expect(JSON.parse(lines[0] ?? "")).toMatchObject({
      level: "error",
      event: "pgclaim.request",
      route: "GET /api/jobs/:id",
      status: 500,
    });
  });

  it("is told to the log in one bounded line, without connection strings", async () => {
    const { app, lines } = setup({
      "inspect.job": async () => Promise.reject(new Error(`bad address ${secret} ${"x".repeat(99_999)}`)),
    });
    await app.request("/api/jobs/7", { headers: bearer("read") });
    expect(lines[0]).toContain("bad address postgres://(hidden)");
    expect(lines[0]).not.toContain("hunter2");
    expect(lines[0]?.length).toBeLessThan(10_000);
  });

  it("never passes a connection string on, whoever wrote it into a message", async () => {
    const error = new DatabaseError("PGCLAIM_CONNECT_FAILED", `no answer from ${secret}`);
    const { app, lines } = setup({
      "inspect.job": async () => Promise.reject(error),
      invoke: async () => ({ ...report, ended: "error", error: { code: error.code, message: error.message } }),
    });
    const answers = [
      await app.request("/api/jobs/7", { headers: bearer("read") }),
      await app.request("/api/trigger", post("trigger")),
    ];
    for (const answer of answers) expect(await answer.text()).not.toContain("hunter2");
    expect(lines.join()).not.toContain("hunter2");
  });

  it("is answered although the log throws", async () => {
    const log = () => {
      throw new Error("the log is full");
    };
    const { app } = setup({ "inspect.job": async () => Promise.reject(new Error("boom")) }, { log });
    expect((await app.request("/api/jobs/7", { headers: bearer("read") })).status).toBe(500);
  });

  it("is the deployment's fault (503) where the claimer cannot be built, whatever its code says", async () => {
    const claimer = () => {
      throw new UsageError("PGCLAIM_DUPLICATE_KIND", 'Two jobs are named "receipt.send".');
    };
    const { app, lines } = setup({}, { claimer });
    const answer = await app.request("/api/trigger", post("trigger"));
    expect([answer.status, (await errorOf(answer)).code]).toEqual([503, "PGCLAIM_DUPLICATE_KIND"]);
    expect(lines).toHaveLength(1);
  });
});

describe("payloads and secrets", () => {
  it("appear in no refusal and in no log line, whatever is wrong with the request", async () => {
    const value = "4111-1111-1111-1111";
    const wrong: readonly (readonly [string, RequestInit])[] = [
      ["/api/jobs", post("enqueue", `{"kind":"a","payload":"${value}"`)],
      ["/api/jobs", post("enqueue", { kind: value.repeat(50), payload: value })],
      ["/api/jobs", post("enqueue", { kind: "a", payload: value, runAt: value })],
      ["/api/jobs", post("enqueue", { kind: "a", payload: value, more: value })],
      ["/api/jobs", post("enqueue", [{ kind: "a", payload: value }, value])],
      ["/api/jobs", post("enqueue", { kind: "a", payload: { [value.slice(0, 4)]: value, n: 2 ** 60 } })],
      ["/api/jobs", post("enqueue", { kind: "a", payload: value }, { "content-type": value })],
      ["/api/jobs", post("trigger", { kind: "a", payload: value })],
      ["/api/jobs", { ...post("enqueue", { kind: "a", payload: value }), method: "PUT" }],
      ["/api/trigger", post("trigger", { value })],
      [`/api/jobs/${value}`, { headers: bearer("read") }],
      [`/${value}`, { headers: bearer("read") }],
      ["/api/jobs/7/retry", post("operate", { value })],
      ["/api/jobs/7/retry", post("read")],
    ];
    const { app, lines, counted } = setup();
    for (const [path, init] of wrong) {
      const answer = await app.request(path, init);
      const text = `${await answer.text()} ${[...answer.headers].join()}`;
      expect([path, answer.status >= 400]).toEqual([path, true]);
      expect(text).not.toContain(value);
      for (const secret of Object.values(secrets)) expect(text).not.toContain(secret);
    }
    expect(lines.join()).not.toContain(value);
    for (const secret of Object.values(secrets)) expect(lines.join()).not.toContain(secret);
    expect(counted.claimers).toBe(0);
  });

  it("appear in no log line when a request with them fails inside", async () => {
    const value = "4111-1111-1111-1111";
    const { app, lines } = setup({ enqueueByKind: async () => Promise.reject(new Error("boom")) });
    await app.request("/api/jobs", post("enqueue", { kind: "a", payload: value }));
    expect(lines).toHaveLength(1);
    expect(lines[0]).not.toContain(value);
    expect(lines[0]).not.toContain(secrets.enqueue);
  });
});

describe("createApp", () => {
  it("mounts inside another app, under another address", async () => {
    const { claimer } = fakeClaimer();
    const outer = new Hono();
    outer.get("/mine", (c) => c.text("mine"));
    outer.route("/jobs", createApp({ claimer: () => claimer, secrets, log: () => {} }));
    expect((await outer.request("/jobs/api/trigger", post("trigger"))).status).toBe(200);
    const refused = await outer.request("/jobs/api/trigger", { method: "POST" });
    expect([refused.status, (await errorOf(refused)).code]).toEqual([401, "PGCLAIM_UNAUTHORIZED"]);
    expect(await (await outer.request("/mine")).text()).toBe("mine");
  });

  it("gives a route of the user's own the same error shape, and keeps what it set itself", async () => {
    const { app, lines } = setup();
    app.get("/own", (c) => c.text("mine", 200, { "cache-control": "max-age=60" }));
    app.get("/teapot", () => {
      throw new HTTPException(418, { message: "short and stout" });
    });
    app.get("/broken", () => {
      throw new Error("boom");
    });
    const own = await app.request("/own");
    expect([own.headers.get("cache-control"), own.headers.get("x-content-type-options")]).toEqual([
      "max-age=60",
      "nosniff",
    ]);
    expect((await app.request("/teapot")).status).toBe(418);
    const broken = await app.request("/broken");
    expect([broken.status, (await errorOf(broken)).code]).toEqual([500, "PGCLAIM_INTERNAL"]);
    expect(lines).toHaveLength(1);
  });

  it("reads secrets and claimer from the environment of the request", async () => {
    const { claimer } = fakeClaimer();
    const seen: unknown[] = [];
    const app = createApp<{ SECRET: string }>({
      claimer: (env) => {
        seen.push(env);
        return claimer;
      },
      secrets: (env) => ({ trigger: env.SECRET }),
      log: () => {},
    });
    const init = { method: "POST", headers: { authorization: "Bearer one" } };
    expect((await app.request("/api/trigger", init, { SECRET: "one" })).status).toBe(200);
    expect((await app.request("/api/trigger", init, { SECRET: "two" })).status).toBe(401);
    expect(seen).toEqual([{ SECRET: "one" }]);
  });

  it("refuses options it does not know", () => {
    const { claimer } = fakeClaimer();
    const options = { claimer: () => claimer, secrets };
    expect(() => createApp({ ...options, maxBodyByte: 1 } as never)).toThrow(/did you mean "maxBodyBytes"/);
  });
});
