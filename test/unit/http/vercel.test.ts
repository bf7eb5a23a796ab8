// createHandler's budgets, environment and failures. createClaimer is a recorder, the database address is never dialled.

import { beforeEach, describe, expect, it, vi } from "vitest";
import { createHandler, type HandlerOptions } from "../../../src/adapters/vercel.ts";
import { createClaimer } from "../../../src/claimer.ts";
import { errorOf, fakeClaimer, report } from "./support.ts";

vi.mock("../../../src/claimer.ts", () => ({ createClaimer: vi.fn() }));
vi.mock("../../../src/neon.ts", () => ({ neonDatabase: vi.fn(() => ({})) }));

const env = { DATABASE_URL: "postgresql://app:hunter2@db.example/app", CRON_SECRET: "c", PGCLAIM_TRIGGER_SECRET: "t" };
const cron = (token = "c") =>
  new Request("https://x.vercel.app/api/cron", {
    headers: {
      authorization: `Bearer ${token}`,
      "user-agent": "vercel-cron/1.0",
      "x-vercel-cron-schedule": "*/5 * * * *",
    },
  });

function setup(options: Partial<HandlerOptions> = {}, given: Record<string, string | undefined> = env) {
  const { claimer, calls } = fakeClaimer();
  vi.mocked(createClaimer).mockImplementation(() => claimer);
  return { calls, handlers: createHandler({ jobs: [], log: () => {}, ...options }, given) };
}

function budgetGiven(): unknown {
  return vi.mocked(createClaimer).mock.calls[0]?.[0].budget;
}

beforeEach(() => {
  vi.mocked(createClaimer).mockReset();
});

describe("createHandler", () => {
  it("serves Vercel's cron call", async () => {
    const { calls, handlers } = setup();
    const answer = await handlers.GET(cron());
    expect([answer.status, await answer.json()]).toEqual([200, report]);
    expect(calls).toEqual([["invoke", { type: "cron", cron: "*/5 * * * *", scheduledAt: null }, {}]]);
  });

  it("is one handler under three names, with one claimer", async () => {
    const { handlers } = setup();
    await handlers.GET(cron());
    await handlers.POST(cron());
    await handlers.fetch(cron());
    expect(createClaimer).toHaveBeenCalledTimes(1);
  });

  it("keeps the cron closed to the trigger's secret, and while CRON_SECRET is missing", async () => {
    expect((await setup().handlers.GET(cron("t"))).status).toBe(401);
    const answer = await setup({}, { ...env, CRON_SECRET: undefined }).handlers.GET(cron("undefined"));
    expect(answer.status).toBe(503);
    expect((await errorOf(answer)).message).toBe(
      "CRON_SECRET is not set in this deployment, so /api/cron stays closed. Set it: vercel env add CRON_SECRET",
    );
    expect(createClaimer).not.toHaveBeenCalled();
  });

  it.each([
    [{}, { http: "295000ms", cron: "295000ms" }],
    [{ maxDuration: "60s" }, { http: "55000ms", cron: "55000ms" }],
    [
      { maxDuration: "800s", budget: { http: "10s" } },
      { http: "10000ms", cron: "795000ms" },
    ],
    [
      { maxDuration: "60s", budget: { http: "5m", cron: "55s" } },
      { http: "55000ms", cron: "55000ms" },
    ],
  ] as const)("ends an invocation 5 s before the function ends: %j", async (options, budget) => {
    const { handlers } = setup(options);
    await handlers.GET(cron());
    expect(budgetGiven()).toEqual(budget);
  });

  it.each(["5s", "1s", 300, "300"])("answers 503 for a maxDuration of %j", async (maxDuration) => {
    vi.spyOn(console, "error").mockImplementation(() => {});
    const { handlers } = setup({ maxDuration: maxDuration as never });
    const answer = await handlers.GET(cron());
    const error = await errorOf(answer);
    expect([answer.status, error.code, error.path]).toEqual([503, "PGCLAIM_INVALID_OPTION", "maxDuration"]);
    vi.restoreAllMocks();
  });

  it("names a missing DATABASE_URL and Vercel's command", async () => {
    const answer = await setup({}, { CRON_SECRET: "c" }).handlers.GET(cron());
    expect(answer.status).toBe(503);
    expect((await errorOf(answer)).message).toContain("Set it: vercel env add DATABASE_URL");
  });

  it("reads process.env unless it is given another", async () => {
    const { claimer } = fakeClaimer();
    vi.mocked(createClaimer).mockImplementation(() => claimer);
    vi.stubEnv("CRON_SECRET", "from-process");
    vi.stubEnv("DATABASE_URL", env.DATABASE_URL);
    const handlers = createHandler((given) => ({ jobs: [], batch: given.CRON_SECRET?.length ?? 0 }));
    expect((await handlers.GET(cron("from-process"))).status).toBe(200);
    expect(vi.mocked(createClaimer).mock.calls[0]?.[0].batch).toBe(12);
    vi.unstubAllEnvs();
  });

  it("serves the user's own routes", async () => {
    const { handlers } = setup({ app: (app, tools) => app.get("/own", (c) => c.json(Object.keys(tools).sort())) });
    const answer = await handlers.fetch(new Request("https://x.vercel.app/own"));
    expect(await answer.json()).toEqual(["claimer", "env"]);
  });
});
