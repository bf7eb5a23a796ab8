// The README's programs, taken from the README. The first one runs as a Worker in workerd; the others must type-check.

import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join, resolve } from "node:path";
import { expect, it, onTestFinished, vi } from "vitest";
import { bundleWorker } from "../../scripts/world/worker_bundle.ts";
import { startWorkerd } from "../../scripts/world/workerd.ts";
import type { Claimer } from "../../src/index.ts";
import { setup } from "../support/world.ts";

const root = resolve(import.meta.dirname, "../..");
const readme = readFileSync(join(root, "README.md"), "utf8");
const blocks = (language: string) =>
  [...readme.matchAll(new RegExp(`\`\`\`${language}\n([\\s\\S]*?)\`\`\``, "g"))].map(([, code]) => code ?? "");

/** A folder inside the checkout, so that `pgclaim` and the drivers resolve as they would for a user. */
function workspace(): string {
  mkdirSync(join(root, ".pgclaim"), { recursive: true });
  const folder = mkdtempSync(join(root, ".pgclaim", "readme-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

it("runs the README's Worker: a job enqueued from the README's SQL ends with its effect", async () => {
  const world = await setup();
  const keys: unknown[] = [];
  const mail = createServer((request, response) => {
    keys.push(request.headers["idempotency-key"]);
    response.end();
  });
  await new Promise<void>((listening) => mail.listen(0, "127.0.0.1", listening));
  onTestFinished(() => new Promise<void>((closed) => mail.close(() => closed())));
  const { port } = mail.address() as AddressInfo;

  const [program] = blocks("ts");
  const entry = join(workspace(), "index.ts");
  writeFileSync(entry, (program ?? "").replace("https://mail.example", `http://127.0.0.1:${port}`));
  const { code } = await bundleWorker({ entry, buildLibrary: false });
  const workerd = await startWorkerd({
    code,
    bindings: {
      DATABASE_URL: world.url,
      PGCLAIM_LOCAL_BRIDGE: `127.0.0.1:${world.bridge.port}`,
      ...(process.env.DATABASE_URL === undefined ? {} : { PGCLAIM_PIPELINE_CONNECT: "false" }),
    },
  });
  onTestFinished(() => workerd.stop());

  await world.sql.query("create table orders (id text primary key, receipt_sent_at timestamptz)");
  await workerd.scheduled(); // first use: registers the kind
  const [sql] = blocks("sql");
  await world.sql.query((sql ?? "").replace("now() + interval '5 minutes'", "now()"));
  await workerd.scheduled();
  expect(await world.rows("select id, receipt_sent_at is not null as sent from orders")).toEqual([
    { id: "5", sent: true },
  ]);
  expect(keys).toEqual([expect.stringMatching(/^1-[0-9a-f]+$/)]);
});

it("type-checks the README's programs", () => {
  const folder = workspace();
  const [worker, enqueue] = blocks("ts");
  writeFileSync(join(folder, "jobs.ts"), worker ?? "");
  writeFileSync(join(folder, "enqueue.ts"), enqueue ?? "");
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ extends: "../../tsconfig.json", include: ["*.ts"] }));
  for (const [i, name] of ["order", "client", "traced", "watched"].entries())
    writeFileSync(join(folder, `${name}.ts`), blocks("ts")[i + 2] ?? "");
  expect(blocks("ts")).toHaveLength(6);
  execFileSync(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", folder], {
    encoding: "utf8",
    stdio: "pipe",
  });
});

it("runs the README's telemetry and events: a failing job is told, and nothing breaks without an SDK", async () => {
  const world = await setup();
  vi.stubEnv("DATABASE_URL", world.url);
  onTestFinished(() => void vi.unstubAllEnvs());
  const folder = workspace();
  // The README's job calls a mail server that does not exist.
  writeFileSync(join(folder, "jobs.ts"), (blocks("ts")[0] ?? "").replace("https://mail.example", "http://127.0.0.1:1"));
  for (const [i, name] of ["traced", "watched"].entries())
    writeFileSync(join(folder, `${name}.ts`), blocks("ts")[i + 4] ?? "");
  const { sendReceipt } = (await import(join(folder, "jobs.ts"))) as { sendReceipt: never };
  const { traced } = (await import(join(folder, "traced.ts"))) as { traced: Claimer };
  const { watched, failures } = (await import(join(folder, "watched.ts"))) as { watched: Claimer; failures: string[] };
  await traced.enqueue(sendReceipt, { orderId: "1" } as never);
  expect(await watched.invoke({ type: "manual" })).toMatchObject({ retried: 1 });
  expect(failures).toEqual(["receipt.send 1 PGCLAIM_HANDLER_THREW"]);
  expect(await traced.invoke({ type: "manual" })).toMatchObject({ ended: "idle" });
});
