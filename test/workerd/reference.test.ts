// The deployable Worker as wrangler bundles it for deployment, in real workerd.

import { execFile } from "node:child_process";
import { createHmac } from "node:crypto";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { createClient } from "../../src/client.ts";
import type { InvocationReport } from "../../src/index.ts";
import { endsWithin } from "../support/gate.ts";
import { setup, type World } from "../support/world.ts";
import { type Instance, secrets, soonMs, startInstance, workerVars } from "./support.ts";

const root = path.resolve(import.meta.dirname, "..", "..");
const require = createRequire(import.meta.url);
const webhookSecret = "webhook-secret";

let outdir: string;
let code: string;

beforeAll(async () => {
  outdir = await mkdtemp(path.join(tmpdir(), "pgclaim-dry-run-"));
  const wrangler = path.join(path.dirname(require.resolve("wrangler/package.json")), "bin", "wrangler.js");
  await promisify(execFile)(process.execPath, [wrangler, "deploy", "--dry-run", "--outdir", outdir], {
    cwd: root,
    // wrangler.toml's build command is npm's; it must find this Node and no older one.
    env: { ...process.env, PATH: [path.dirname(process.execPath), process.env.PATH].join(path.delimiter) },
    timeout: 60_000,
  });
  code = await readFile(path.join(outdir, "index.js"), "utf8");
}, 60_000);

afterAll(() => rm(outdir, { recursive: true, force: true }));

async function startReference(world: World): Promise<Instance> {
  await world.sql.query(await readFile(path.join(root, "worker", "schema.sql"), "utf8"));
  const bindings = { ...workerVars(world), ...secrets, GITHUB_WEBHOOK_SECRET: webhookSecret };
  return startInstance("reference", code, bindings);
}

/** A payload of GitHub's own examples. */
async function example(event: string): Promise<string> {
  const file = path.join(
    path.dirname(require.resolve("@octokit/webhooks-examples/package.json")),
    "api.github.com",
    "index.json",
  );
  const all = JSON.parse(await readFile(file, "utf8")) as { name: string; examples: unknown[] }[];
  const payload = all.find(({ name }) => name === event)?.examples[0];
  if (payload === undefined) throw new Error(`no example of ${event}`);
  return JSON.stringify(payload);
}

describe("the reference Worker", () => {
  it("serves in workerd as wrangler deploy bundles it", async () => {
    const world = await setup();
    const worker = await startReference(world);
    const health = await worker.fetch("/healthz");
    expect([health.status, health.json()]).toEqual([200, { ok: true }]);
    // The first wake makes the deployment known to the database.
    const { outcome, report } = await endsWithin(soonMs, worker.cron(), "scheduled()");
    expect([outcome, report.ended]).toEqual(["ok", "idle"]);
    expect(await world.rows("select name from pgclaim.kind order by name")).toEqual([
      { name: "github.event" },
      { name: "report.transaction" },
    ]);
  });

  it("lists jobs in workerd through the typed client, and shows its document and its page", async () => {
    const world = await setup();
    const worker = await startReference(world);
    await endsWithin(soonMs, worker.cron(), "scheduled()");
    const payload = { transactionId: "tx_1", account: "7", amount: "1" };
    const enqueued = await worker.fetch("/api/jobs", {
      method: "POST",
      headers: { authorization: `Bearer ${secrets.PGCLAIM_ENQUEUE_SECRET}`, "content-type": "application/json" },
      body: JSON.stringify({ kind: "report.transaction", payload, delay: "1h" }),
    });
    expect(enqueued.status).toBe(201);
    const client = createClient("http://reference", {
      token: secrets.PGCLAIM_READ_SECRET,
      fetch: async (input, init) => {
        const request = new Request(input, init);
        const { pathname, search } = new URL(request.url);
        const answer = await worker.fetch(pathname + search, {
          method: request.method,
          headers: Object.fromEntries(request.headers),
        });
        return new Response(answer.text, { status: answer.status });
      },
    });
    const jobs = await client.api.jobs.$get({ query: { state: "scheduled", "payload.account": "7" } });
    if (!jobs.ok) throw new Error(await jobs.text());
    expect((await jobs.json()).items).toMatchObject([{ kind: "report.transaction", why: { reason: "scheduled" } }]);
    const document = (await worker.fetch("/openapi.json")).json<{ openapi: string; paths: object }>();
    expect([document.openapi, "/api/jobs/{id}" in document.paths]).toEqual(["3.1.0", true]);
    const page = await worker.fetch("/docs/api");
    expect([page.status, page.text.includes("GET /api/jobs/{id}")]).toEqual([200, true]);
    expect(await world.locks()).toBe(0);
  });

  it("serves its dashboard in workerd, over the database, to whoever logged in", async () => {
    const world = await setup();
    const worker = await startReference(world);
    await endsWithin(soonMs, worker.cron(), "scheduled()");
    expect((await worker.fetch("/jobs", { redirect: "manual" })).status).toBe(303);
    const door = await worker.fetch("/login", {
      method: "POST",
      body: new URLSearchParams({ secret: secrets.PGCLAIM_READ_SECRET, back: "/jobs" }).toString(),
      headers: {
        "content-type": "application/x-www-form-urlencoded",
        "sec-fetch-site": "same-origin",
        origin: "http://worker.test",
      },
      redirect: "manual",
    });
    expect(door.status).toBe(303);
    const cookie = door.headers.get("set-cookie")?.split(";")[0] ?? "";
    for (const path of ["/", "/jobs", "/dead", "/keys", "/schedules", "/invocations", "/holders"]) {
      const page = await worker.fetch(path, { headers: { cookie } });
      expect([path, page.status, page.text.includes("database time")]).toEqual([path, 200, true]);
    }
  });

  it("takes a signed webhook once, and its event takes effect once", async () => {
    const world = await setup();
    const worker = await startReference(world);
    const body = await example("push");
    const signature = (secret: string) => `sha256=${createHmac("sha256", secret).update(body).digest("hex")}`;
    const deliver = (headers: Readonly<Record<string, string>> = {}) =>
      endsWithin(
        soonMs,
        worker.fetch("/webhooks/github", {
          method: "POST",
          body,
          headers: {
            "content-type": "application/json",
            "x-github-event": "push",
            "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
            "x-hub-signature-256": signature(webhookSecret),
            ...headers,
          },
        }),
        "POST /webhooks/github",
      );
    const stored = () => world.value<number>("select count(*)::int from webhook_event");

    for (const wrong of [signature("another secret"), signature(webhookSecret).replace(/.$/, "x"), ""]) {
      const refused = await deliver({ "x-hub-signature-256": wrong });
      expect([refused.status, refused.json<{ error: { code: string } }>().error.code]).toEqual([
        401,
        "PGCLAIM_UNAUTHORIZED",
      ]);
    }
    expect(await stored()).toBe(0);

    const taken = await deliver();
    expect([taken.status, taken.json()]).toEqual([202, { duplicate: false, jobId: expect.stringMatching(/^\d+$/) }]);
    const again = await deliver();
    expect([again.status, again.json()]).toEqual([200, { duplicate: true }]);
    expect(await stored()).toBe(1);
    expect(await world.value("select count(*)::int from pgclaim.job")).toBe(1);

    const report: InvocationReport = await endsWithin(soonMs, worker.trigger(), "POST /api/trigger");
    expect(report).toMatchObject({ claimed: 1, done: 1 });
    expect((await deliver()).json()).toEqual({ duplicate: true });
    await endsWithin(soonMs, worker.trigger(), "the second POST /api/trigger");
    const { repository, sender } = JSON.parse(body) as { repository: { full_name: string }; sender: { login: string } };
    expect(await world.rows("select repository, event, actor from repository_activity")).toEqual([
      { repository: repository.full_name, event: "push", actor: sender.login },
    ]);
    expect(await world.locks()).toBe(0);
  });
});
