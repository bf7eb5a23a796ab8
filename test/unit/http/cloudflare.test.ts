// createWorker's events, environment and failures. createClaimer is a recorder, the database address is never dialled.

import { beforeEach, describe, expect, it, vi } from "vitest";
import { createWorker, type WorkerOptions } from "../../../src/adapters/cloudflare.ts";
import { createClaimer } from "../../../src/claimer.ts";
import type { ClaimerOptions } from "../../../src/claimer_options.ts";
import { DatabaseError } from "../../../src/errors.ts";
import { neonDatabase } from "../../../src/neon.ts";
import type { LogEntry } from "../../../src/report.ts";
import { errorOf, fakeClaimer, report } from "./support.ts";

vi.mock("../../../src/claimer.ts", () => ({ createClaimer: vi.fn() }));
vi.mock("../../../src/neon.ts", () => ({ neonDatabase: vi.fn(() => ({})) }));

const url = "postgresql://app:hunter2@db.example/app";
const env = { DATABASE_URL: url, PGCLAIM_TRIGGER_SECRET: "t", PGCLAIM_ENQUEUE_SECRET: "e" };
const trigger = (token = "t") =>
  new Request("http://x/api/trigger", { method: "POST", headers: { authorization: `Bearer ${token}` } });
const event = { cron: "* * * * *", scheduledTime: Date.UTC(2026, 10, 30, 14) };

function context() {
  const waiting: Promise<unknown>[] = [];
  return { waiting, waitUntil: (promise: Promise<unknown>) => void waiting.push(promise) };
}

/** A worker with a recording claimer and log. */
function setup(verbs: Parameters<typeof fakeClaimer>[0] = {}, more: Partial<WorkerOptions<object>> = {}) {
  const { claimer, calls } = fakeClaimer(verbs);
  vi.mocked(createClaimer).mockImplementation(() => claimer);
  const lines: LogEntry[] = [];
  const worker = createWorker<object>({ jobs: [], log: (entry) => lines.push(entry), ...more });
  return { worker, calls, lines };
}

beforeEach(() => {
  vi.mocked(createClaimer).mockReset();
  vi.mocked(neonDatabase).mockClear();
});

describe("fetch", () => {
  it("serves the API with the secrets and the database of env", async () => {
    const { worker, calls } = setup();
    const answer = await worker.fetch(trigger(), env, context());
    expect([answer.status, await answer.json()]).toEqual([200, report]);
    expect(calls).toHaveLength(1);
    expect(neonDatabase).toHaveBeenCalledWith(url, {});
  });

  it("makes one claimer for an env, and none before a request is allowed", async () => {
    const { worker } = setup();
    expect((await worker.fetch(new Request("http://x/healthz"), env, context())).status).toBe(200);
    expect((await worker.fetch(trigger("wrong"), env, context())).status).toBe(401);
    expect(createClaimer).not.toHaveBeenCalled();
    await worker.fetch(trigger(), env, context());
    await worker.fetch(trigger(), env, context());
    await worker.scheduled(event, env, context());
    expect(createClaimer).toHaveBeenCalledTimes(1);
    await worker.fetch(trigger(), { ...env }, context());
    expect(createClaimer).toHaveBeenCalledTimes(2);
  });

  it("keeps the invocation alive when its caller goes", async () => {
    const { worker } = setup();
    const ctx = context();
    const answer = await worker.fetch(trigger(), env, ctx);
    expect(ctx.waiting).toHaveLength(1);
    await expect(ctx.waiting[0]).resolves.toBe(answer);
  });

  it("names the secret that is missing, and wrangler's command", async () => {
    const { worker, lines } = setup();
    const answer = await worker.fetch(trigger(), { DATABASE_URL: url }, context());
    expect(answer.status).toBe(503);
    expect((await errorOf(answer)).message).toBe(
      "PGCLAIM_TRIGGER_SECRET is not set in this deployment, so /api/trigger stays closed. Set it: wrangler secret put PGCLAIM_TRIGGER_SECRET",
    );
    expect(lines).toMatchObject([{ level: "error", code: "PGCLAIM_SECRET_MISSING" }]);
  });

  it.each([
    ["missing", undefined, "is not set in this deployment"],
    ["empty", " ", "is not set in this deployment"],
    ["an object", {}, "is not set in this deployment"],
    ["of another kind", "mysql://app:hunter2@db.example/app", "does not begin with postgresql://"],
    ["a bare host", "hunter2", "does not begin with postgresql://"],
    ["no address", "postgres://app:hunter2@db:port/app", "is not an address"],
    ["refused by the driver only", "postgres://app:hunter2@10.0.0.999/app", "is not an address"],
    ["without a user", "postgres://db.example/hunter2", "names no user"],
    ["without a host", "postgres:///hunter2", ""],
    ["without a database", "postgres://app:hunter2@db.example", "names no database"],
  ])("answers 503 when DATABASE_URL is %s, and never repeats it", async (_, value, says) => {
    const { worker, lines } = setup();
    const answer = await worker.fetch(trigger(), { ...env, DATABASE_URL: value }, context());
    const error = await errorOf(answer);
    expect([answer.status, error.code]).toEqual([503, "PGCLAIM_INVALID_DATABASE_URL"]);
    expect(error.message).toContain(says);
    expect(error.message).toContain("wrangler secret put DATABASE_URL");
    expect(JSON.stringify([error, lines])).not.toContain("hunter2");
    expect(lines).toHaveLength(1);
    expect(neonDatabase).not.toHaveBeenCalled();
  });

  it("passes the local bridge and pipelineConnect on, and drops white space around the address", async () => {
    const { worker } = setup();
    const local = {
      ...env,
      DATABASE_URL: `${url}\n`,
      PGCLAIM_LOCAL_BRIDGE: "localhost:4444",
      PGCLAIM_PIPELINE_CONNECT: "false",
    };
    await worker.fetch(trigger(), local, context());
    expect(neonDatabase).toHaveBeenCalledWith(url, { localBridge: "localhost:4444", pipelineConnect: false });
    await worker.fetch(trigger(), { ...env, PGCLAIM_LOCAL_BRIDGE: "", PGCLAIM_PIPELINE_CONNECT: "" }, context());
    expect(neonDatabase).toHaveBeenLastCalledWith(url, {});
  });

  it("refuses another PGCLAIM_PIPELINE_CONNECT, as the deployment's fault", async () => {
    const { worker } = setup();
    const answer = await worker.fetch(trigger(), { ...env, PGCLAIM_PIPELINE_CONNECT: "no" }, context());
    expect([answer.status, (await errorOf(answer)).code]).toEqual([503, "PGCLAIM_INVALID_OPTION"]);
  });

  it("prefers the database that is given", async () => {
    const database = { open: vi.fn(), oneShot: vi.fn() } as unknown as ClaimerOptions["database"];
    const { worker } = setup({}, { database, batch: 7 });
    await worker.fetch(trigger(), { PGCLAIM_TRIGGER_SECRET: "t" }, context());
    expect(vi.mocked(createClaimer).mock.calls[0]?.[0]).toMatchObject({ jobs: [], batch: 7, database });
    expect(neonDatabase).not.toHaveBeenCalled();
  });

  it("gives createClaimer its own options only", async () => {
    const { worker } = setup({}, { app: () => {} });
    await worker.fetch(trigger(), env, context());
    expect(Object.keys(vi.mocked(createClaimer).mock.calls[0]?.[0] ?? {}).sort()).toEqual(["database", "jobs", "log"]);
  });

  it("answers 503 when the options cannot be made, and 500 when making them breaks", async () => {
    vi.spyOn(console, "error").mockImplementation(() => {});
    const broken = createWorker<object>(() => {
      throw new TypeError("env.MAIL is undefined");
    });
    const answer = await broken.fetch(trigger(), env, context());
    expect([answer.status, (await errorOf(answer)).code]).toEqual([500, "PGCLAIM_INTERNAL"]);
    expect(console.error).toHaveBeenCalledTimes(1);
    vi.restoreAllMocks();
  });

  it("serves the user's own routes, which may ask for the claimer", async () => {
    const { worker, calls } = setup(
      {},
      {
        app: (app, tools) =>
          app.post("/webhooks/mine", async (c) =>
            c.json({ job: await tools.claimer().job("7"), same: tools.env === c.env }),
          ),
      },
    );
    const answer = await worker.fetch(new Request("http://x/webhooks/mine", { method: "POST" }), env, context());
    expect(await answer.json()).toMatchObject({ same: true });
    expect(answer.headers.get("cache-control")).toBe("no-store");
    expect(calls).toEqual([["job", "7"]]);
  });

  it("takes its options from env", async () => {
    const { claimer } = fakeClaimer();
    vi.mocked(createClaimer).mockImplementation(() => claimer);
    const worker = createWorker<{ BATCH: string; PGCLAIM_TRIGGER_SECRET: string; DATABASE_URL: string }>((given) => ({
      jobs: [],
      batch: Number(given.BATCH),
    }));
    await worker.fetch(trigger(), { ...env, BATCH: "9" }, context());
    expect(vi.mocked(createClaimer).mock.calls[0]?.[0]).toMatchObject({ batch: 9 });
  });
});

describe("scheduled", () => {
  it("runs one invocation with the cron and its planned time", async () => {
    const { worker, calls, lines } = setup();
    await worker.scheduled(event, env, context());
    expect(calls).toEqual([
      ["invoke", { type: "cron", cron: "* * * * *", scheduledAt: new Date("2026-11-30T14:00:00Z") }],
    ]);
    expect(lines).toEqual([]);
  });

  it("knows no planned time where the platform gives none", async () => {
    const { worker, calls } = setup();
    await worker.scheduled({ cron: "", scheduledTime: Number.NaN }, env, context());
    expect(calls).toEqual([["invoke", { type: "cron", cron: "", scheduledAt: null }]]);
  });

  it("rejects with an Error that names the code when the invocation ended in an error", async () => {
    const error = { code: "PGCLAIM_TX_LOST", message: `the connection ended (${url})` };
    const { worker } = setup({ invoke: async () => ({ ...report, ended: "error", error }) });
    const failure = await worker.scheduled(event, env, context()).catch((thrown: unknown) => thrown);
    expect(failure).toBeInstanceOf(Error);
    expect(String(failure)).toBe(
      "Error: PGCLAIM_TX_LOST: the connection ended (postgres://(hidden)) (invocation 7f3a)",
    );
  });

  it("rejects for an error in a report that ended otherwise, and not for a busy isolate", async () => {
    const error = { code: "PGCLAIM_FINISH_FAILED", message: "no" };
    const lost = setup({ invoke: async () => ({ ...report, ended: "empty", error }) });
    await expect(lost.worker.scheduled(event, env, context())).rejects.toThrow("PGCLAIM_FINISH_FAILED");
    const busy = setup({ invoke: async () => ({ ...report, ended: "busy", error }) });
    await expect(busy.worker.scheduled(event, env, context())).resolves.toBeUndefined();
  });

  it.each([
    ["a missing DATABASE_URL", {}, "PGCLAIM_INVALID_DATABASE_URL: DATABASE_URL is not set in this deployment"],
    [
      "a wrong one",
      { DATABASE_URL: "mysql://app:hunter2@db/app" },
      "PGCLAIM_INVALID_DATABASE_URL: DATABASE_URL does not",
    ],
  ])("rejects for %s with one log line and a real Error", async (_, given, message) => {
    const { worker, lines } = setup();
    const failure = await worker.scheduled(event, given, context()).catch((thrown: unknown) => thrown);
    expect(failure).toBeInstanceOf(Error);
    expect((failure as Error).message).toContain(message);
    expect(lines).toMatchObject([
      { level: "error", event: "pgclaim.cron", route: "cron * * * * *", code: "PGCLAIM_INVALID_DATABASE_URL" },
    ]);
    expect(JSON.stringify([lines, String(failure), (failure as Error).stack])).not.toContain("hunter2");
  });

  it.each([
    ["an event", { type: "error" }],
    ["nothing", undefined],
    ["a database error", new DatabaseError("PGCLAIM_CONNECT_FAILED", "no answer")],
  ])("rejects with a real Error when the claimer rejects with %s", async (_, thrown) => {
    const { worker, lines } = setup({ invoke: async () => Promise.reject(thrown) });
    const failure = await worker.scheduled(event, env, context()).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(Error);
    expect((failure as Error).message).toMatch(/^PGCLAIM_[A-Z_]+: /);
    expect(lines).toHaveLength(1);
  });
});

describe("the types", () => {
  it("refuse an option that nobody knows", () => {
    // @ts-expect-error: a database address is no option, it comes from env
    createWorker({ jobs: [], databaseUrl: url });
  });
});
