// What wakes a Worker: crons, and the HTTP API with its secrets. All through real workerd, bridge and Postgres.

import { describe, expect, it } from "vitest";
import type { InvocationReport, JobView } from "../../src/index.ts";
import { endsWithin, eventually, gate } from "../support/gate.ts";
import { callAndHold, expectAllDone, namesOf, secrets, setupLab, soonMs, startListening } from "./support.ts";
import type { Order } from "./workers/kinds.ts";

const bearer = (secret: string) => ({ authorization: `Bearer ${secret}` });

describe("scheduled", () => {
  it("claims, runs and finishes what is due", async () => {
    const lab = await setupLab();
    const names = namesOf(3);
    await lab.enqueue("call", names);
    const worker = await lab.start();
    const { outcome, report } = await endsWithin(soonMs, worker.cron(), "scheduled()");
    expect(outcome).toBe("ok");
    expect(report).toMatchObject({ ended: "empty", claimed: 3, done: 3, retried: 0, dead: 0, crashed: 0 });
    // Claim, opening turn one, two ends of a turn, the last one, finish; then the claim that found nothing, rolled back.
    expect(report.roundTrips).toEqual({ session: 8, oneShot: 2 });
    await expectAllDone(lab, names);
  });

  it("asks the database one HTTP request and opens no WebSocket when nothing is due", async () => {
    const lab = await setupLab();
    await lab.enqueue("plain", ["first"]);
    const worker = await lab.start();
    await endsWithin(soonMs, worker.cron(), "the busy scheduled()");
    const { wsOpened, sqlRequests } = { ...lab.bridge.stats };
    expect(wsOpened).toBe(1);
    const { outcome, report } = await endsWithin(soonMs, worker.cron(), "the idle scheduled()");
    expect(outcome).toBe("ok");
    expect(report).toMatchObject({ ended: "idle", claimed: 0, roundTrips: { session: 0, oneShot: 1 } });
    expect(lab.bridge.stats).toMatchObject({ wsOpened, sqlRequests: sqlRequests + 1 });
  });

  it("shares forty jobs among four isolates that overlap, each effect exactly once", async () => {
    const lab = await setupLab();
    const names = namesOf(40);
    await lab.enqueue("call", names);
    const held = gate<Order>();
    lab.outside.answer(() => held.promise);
    const settings = { batch: 10, concurrency: 4 };
    const [left, right] = [await lab.start({ isolates: 2, settings }), await lab.start({ isolates: 2, settings })];
    const runs = [left.cron(0), left.cron(1), right.cron(0), right.cron(1)];
    // Four calls are all that one tick has under way, so sixteen prove that four ticks overlap.
    await lab.outside.reached(16);
    expect(await lab.locks()).toBe(40);
    held.open("ok");
    const ended = await endsWithin(soonMs, Promise.all(runs), "four times scheduled()");
    expect(ended.map(({ outcome }) => outcome)).toEqual(["ok", "ok", "ok", "ok"]);
    expect(ended.map(({ report }) => report.done)).toEqual([10, 10, 10, 10]);
    expect(lab.outside.calls).toHaveLength(40);
    await expectAllDone(lab, names);
  });

  it("overlaps with itself in one fresh isolate", async () => {
    const lab = await setupLab();
    const names = namesOf(12);
    await lab.enqueue("call", names);
    const held = gate<Order>();
    lab.outside.answer(() => held.promise);
    const worker = await lab.start({ settings: { batch: 4 } });
    const runs = [worker.cron(), worker.cron(), worker.cron()];
    await lab.outside.reached(12);
    held.open("ok");
    const ended = await endsWithin(soonMs, Promise.all(runs), "three times scheduled()");
    expect(ended.map(({ outcome }) => outcome)).toEqual(["ok", "ok", "ok"]);
    expect(lab.outside.calls).toHaveLength(12);
    await expectAllDone(lab, names);
  });

  it("rejects and logs a code when DATABASE_URL is missing, and does not name a password", async () => {
    const lab = await setupLab();
    const worker = await lab.start({ bindings: { DATABASE_URL: undefined } });
    expect(await endsWithin(soonMs, worker.scheduled(), "scheduled()")).toEqual({ outcome: "exception" });
    const line = await worker.logged((entry) => entry.event === "pgclaim.cron");
    expect(line).toMatchObject({ level: "error", code: "PGCLAIM_INVALID_DATABASE_URL" });
  });
});

describe("the HTTP API", () => {
  it("enqueues, triggers, and shows the job waiting, running and done", async () => {
    const lab = await setupLab();
    const held = gate<Order>();
    lab.outside.answer(() => held.promise);
    const worker = await lab.start();
    const posted = await worker.fetch("/api/jobs", {
      method: "POST",
      headers: { ...bearer(secrets.PGCLAIM_ENQUEUE_SECRET), "content-type": "application/json" },
      body: JSON.stringify({ kind: "call", payload: { name: "over-http" } }),
    });
    expect(posted.status, posted.text).toBe(201);
    const { id, type } = posted.json<{ id: string; type: string }>();
    expect([type, id]).toEqual(["enqueued", expect.stringMatching(/^[1-9]\d*$/)]);
    const look = async () => {
      const answer = await worker.fetch(`/api/jobs/${id}`, { headers: bearer(secrets.PGCLAIM_READ_SECRET) });
      expect(answer.status, answer.text).toBe(200);
      return answer.json<JobView>();
    };
    expect(await look()).toMatchObject({ id, kind: "call", state: "ready", attempt: 0, attempts: [] });

    const triggered = worker.trigger();
    await lab.outside.reached(1);
    expect(await look()).toMatchObject({ state: "running", attempts: [{ n: 1, outcome: null }] });
    held.open("ok");
    const report = await endsWithin(soonMs, triggered, "POST /api/trigger");
    expect(report).toMatchObject({ trigger: "http /api/trigger", ended: "empty", claimed: 1, done: 1, faults: [] });
    expect(report.ticks[0]).toMatchObject({
      fate: "committed",
      jobs: [{ jobId: id, kind: "call", attempt: 1, result: "done" }],
      roundTrips: { session: 4, oneShot: 1 },
    });
    expect(await look()).toMatchObject({ state: "done", attempts: [{ n: 1, outcome: "done" }] });
    await expectAllDone(lab, ["over-http"]);
  });

  it("runs GET /api/cron with its own secret, and names the schedule it was told", async () => {
    const lab = await setupLab();
    await lab.enqueue("plain", ["by-cron"]);
    const worker = await lab.start();
    const wrong = await worker.fetch("/api/cron", { headers: bearer(secrets.PGCLAIM_TRIGGER_SECRET) });
    expect(wrong.status).toBe(401);
    const answer = await worker.fetch("/api/cron", {
      headers: { ...bearer(secrets.CRON_SECRET), "x-vercel-cron-schedule": "*/5 * * * *" },
    });
    expect(answer.status, answer.text).toBe(200);
    expect(answer.json<InvocationReport>()).toMatchObject({ trigger: "cron */5 * * * *", done: 1 });
    await expectAllDone(lab, ["by-cron"]);
  });

  it("keeps a route closed without its secret (503) and with a wrong one (401)", async () => {
    const lab = await setupLab();
    const routes = [
      ["POST", "/api/trigger", "PGCLAIM_TRIGGER_SECRET"],
      ["GET", "/api/cron", "CRON_SECRET"],
      ["POST", "/api/jobs", "PGCLAIM_ENQUEUE_SECRET"],
      ["GET", "/api/jobs/1", "PGCLAIM_READ_SECRET"],
    ] as const;
    const none = Object.fromEntries(Object.keys(secrets).map((name) => [name, undefined]));
    const [closed, open] = [await lab.start({ bindings: none }), await lab.start()];
    for (const [method, route, name] of routes) {
      const missing = await closed.fetch(route, { method, headers: bearer(secrets[name]) });
      expect([route, missing.status]).toEqual([route, 503]);
      expect(missing.json<{ error: { code: string; message: string } }>().error).toMatchObject({
        code: "PGCLAIM_SECRET_MISSING",
        message: expect.stringContaining(name),
      });
      const others = routes.map(([, , other]) => other).filter((other) => other !== name);
      const wrong = ["wrong", `${secrets[name]}x`, "", ...others.map((other) => secrets[other])].map(bearer);
      for (const headers of [{}, ...wrong]) {
        const refused = await open.fetch(route, { method, headers });
        expect([route, refused.status]).toEqual([route, 401]);
        expect(refused.json<{ error: { code: string } }>().error.code).toBe("PGCLAIM_UNAUTHORIZED");
      }
    }
    // A refusal costs the database nothing.
    expect(lab.bridge.stats).toMatchObject({ sqlRequests: 0, wsOpened: 0 });
  });

  it("answers 503 with the code and the report when the database cannot be reached", async () => {
    const lab = await setupLab();
    await lab.enqueue("plain", ["later"]);
    const worker = await lab.start();
    lab.bridge.breakConnect({ how: "refuse", times: Number.POSITIVE_INFINITY });
    const trigger = () =>
      worker.fetch("/api/trigger", { method: "POST", headers: bearer(secrets.PGCLAIM_TRIGGER_SECRET) });
    const answer = await endsWithin(soonMs, trigger(), "POST /api/trigger");
    expect([answer.status, answer.headers.get("retry-after")]).toEqual([503, "1"]);
    const body = answer.json<{ error: { code: string; message: string }; report: InvocationReport }>();
    expect(body.error.code).toBe("PGCLAIM_CONNECT_FAILED");
    expect(body.report).toMatchObject({ ended: "error", claimed: 0 });
    expect(answer.text).not.toContain(new URL(lab.url).password);
    lab.bridge.clearFaults();
    expect((await endsWithin(soonMs, trigger(), "the next trigger")).status).toBe(200);
    await expectAllDone(lab, ["later"]);
  });
});

describe("a caller that hangs up", () => {
  // While the database is asked, no session is open whose socket would keep the request alive: only waitUntil does.
  it.each(["asking for work", "waiting for a handler"] as const)(
    "does not end an invocation that is %s",
    async (at) => {
      const lab = await setupLab();
      await lab.enqueue("call", ["left-alone"]);
      const held = gate<Order>();
      lab.outside.answer(() => held.promise);
      const asking = lab.bridge.breakSql({ contains: "wake_v1", at: "before", how: { hold: held.promise } });
      if (at !== "asking for work") asking.cancel();
      const { url, log } = await startListening(lab, "disconnect.ts");
      const caller = await callAndHold(new URL("/api/trigger", url), secrets.PGCLAIM_TRIGGER_SECRET);
      await endsWithin(soonMs, at === "asking for work" ? asking.fired : lab.outside.reached(1), "getting there");
      caller.hangUp();
      await eventually(() => expect(log).toContain("the caller has gone"));
      held.open("ok");
      await eventually(() => expect(log.some((line) => line.includes('"done":1'))).toBe(true));
      await expectAllDone(lab, ["left-alone"]);
    },
  );
});
