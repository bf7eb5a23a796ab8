// What the command line changes: it asks on a terminal, refuses without one, does what was said and says what became of it.

import { describe, expect, it } from "vitest";
import { createApp } from "../../../src/http/app.ts";
import { eventually, gate } from "../../support/gate.ts";
import { roleOf } from "../../support/roles.ts";
import { setup } from "../../support/world.ts";
import { hasTerminal, inTerminal, kinds, pgclaim, serve, stock } from "./support.ts";

describe("jobs enqueue", () => {
  it("enqueues by the kind's name, from an argument or stdin, and rounds no number", async () => {
    const world = await setup();
    await stock(world);
    const ran = await pgclaim(world.url, [
      "jobs",
      "enqueue",
      "receipt.send",
      '{"orderId": "7", "n": 9007199254740993}',
      "--delay",
      "2h",
      "--deadline",
      "15m",
      "--priority",
      "0",
      "--json",
    ]);
    expect(ran).toMatchObject({ code: 0, err: "" });
    const [answer] = ran.json();
    const row = await world.rows(
      "select payload ->> 'n' as n, priority, source, run_at > now() + interval '119 minutes' as late, deadline_at - run_at as left from pgclaim.job where id = $1",
      [answer?.id],
    );
    expect(row).toMatchObject([
      { n: "9007199254740993", priority: 0, source: "cli", late: true, left: { minutes: 15 } },
    ]);
    expect(answer?.type).toBe("enqueued");
    const piped = await pgclaim(world.url, ["jobs", "enqueue", "receipt.send", "-"], { stdin: '{"orderId": "8"}' });
    expect(piped.out).toMatch(/^Enqueued job \d+\.\n$/);
  });

  it("refuses an unknown kind with the nearest one, and a payload that is not JSON without repeating it", async () => {
    const world = await setup();
    await stock(world);
    const unknown = await pgclaim(world.url, ["jobs", "enqueue", "recipt.send", "{}"]);
    expect(unknown).toMatchObject({ code: 1, out: "" });
    expect(unknown.err).toContain(
      'PGCLAIM_UNKNOWN_KIND: No kind "recipt.send" in the database. Did you mean "receipt.send"?',
    );
    const broken = await pgclaim(world.url, ["jobs", "enqueue", "receipt.send", '{"iban": "CH93'], {});
    expect(broken).toMatchObject({ code: 1, out: "" });
    expect(broken.err).toContain("PGCLAIM_INVALID_PAYLOAD");
    expect(broken.err).not.toContain("CH93");
    const both = await pgclaim(world.url, [
      "jobs",
      "enqueue",
      "receipt.send",
      "{}",
      "--delay",
      "1m",
      "--run-at",
      "2030-01-01T00:00:00Z",
    ]);
    expect(both.code).toBe(2);
  });
});

describe("one job", () => {
  it("is retried, discarded, skipped, cancelled and moved, and the answer decides the exit code", async () => {
    const world = await setup();
    const { done, doomed, head, later } = await stock(world);
    const moved = await pgclaim(world.url, ["jobs", "reschedule", later, "--at", "2031-01-01T00:00:00Z"]);
    expect(moved).toMatchObject({ code: 0, out: `${later} rescheduled\n` });
    expect(await world.value("select run_at from pgclaim.job where id = $1", [later])).toEqual(
      new Date("2031-01-01T00:00:00Z"),
    );
    expect(await pgclaim(world.url, ["jobs", "retry", done])).toMatchObject({
      code: 1,
      out: `${done} is done: no dead letter to retry\n`,
    });
    expect((await pgclaim(world.url, ["jobs", "retry", "4711"])).code).toBe(4);
    expect(await pgclaim(world.url, ["jobs", "retry", head])).toMatchObject({ code: 0, out: `${head} retried\n` });
    expect(await pgclaim(world.url, ["jobs", "discard", doomed, "4711", "--yes", "--json"])).toMatchObject({
      code: 4,
      out: `{"id":"${doomed}","type":"discarded"}\n{"id":"4711","type":"not-found"}\n`,
    });
    expect(await pgclaim(world.url, ["jobs", "cancel", later, "--yes"])).toMatchObject({
      code: 0,
      out: `${later} cancelled\n`,
    });
    expect(await world.rows("select verb, actor from pgclaim.action order by id")).toEqual([
      { verb: "reschedule", actor: "cli" },
      { verb: "retry", actor: "cli" },
      { verb: "discard", actor: "cli" },
      { verb: "cancel", actor: "cli" },
    ]);
  });

  it("is not destroyed without a terminal and without --yes", async () => {
    const world = await setup();
    const { doomed, later } = await stock(world);
    for (const args of [
      ["jobs", "discard", doomed],
      ["jobs", "cancel", later],
      ["dead", "redrive", "--all"],
      ["dead", "discard", "--kind", "doomed"],
      ["keys", "skip", "account:42"],
      ["kinds", "use", "1"],
    ]) {
      const ran = await pgclaim(world.url, args, { stdin: "y\n" });
      expect({ args, code: ran.code, out: ran.out }).toEqual({ args, code: 2, out: "" });
      expect(ran.err).toContain("say --yes");
    }
    expect(await world.value("select count(*)::integer from pgclaim.action")).toBe(0);
  });

  it.runIf(hasTerminal)("is asked about on a terminal, where no is the answer of a mere Enter", async () => {
    const world = await setup();
    const { doomed } = await stock(world);
    const no = await inTerminal(world.url, ["jobs", "discard", doomed], { stdin: "\n" });
    expect(no.out).toContain("Discard 1 dead letter? [y/N]");
    expect(no.code).toBe(1);
    expect((await inTerminal(world.url, ["jobs", "discard", doomed], { stdin: "y\n" })).code).toBe(0);
    expect(await world.value("select outcome from pgclaim.history where job_id = $1", [doomed])).toBe("discarded");
  });
});

describe("dead letters", () => {
  it("are redriven by a filter in slices, counted before, and others are left alone", async () => {
    const world = await setup();
    await stock(world);
    await world.sql.query(
      `select pgclaim.enqueue('receipt.send', jsonb_build_object('orderId', i::text)) from generate_series(1, 2500) i`,
    );
    await world.sql.query(
      "update pgclaim.job set state = 'dead', dead_at = clock_timestamp(), dead_reason = 'attempts' where kind = 'receipt.send' and state = 'ready'",
    );
    const ran = await pgclaim(world.url, ["dead", "redrive", "--kind", "receipt.send", "--spread", "10m", "--yes"]);
    expect(ran).toMatchObject({ code: 0, out: "Retried 2,500.\n" });
    expect(ran.err).toMatch(/1,000 of 2,500 so far\n.*2,000 of 2,500 so far\n/s);
    expect(await world.value("select count(*)::integer from pgclaim.job where state = 'dead'")).toBe(2);
    expect((await pgclaim(world.url, ["dead", "redrive", "--kind", "receipt.send", "--yes"])).code).toBe(4);
    const discarded = await pgclaim(world.url, ["dead", "discard", "--all", "--yes", "--json"]);
    expect(discarded.json()).toEqual([{ verb: "discard", changed: 2, left: 0, more: false }]);
    const cancelled = await pgclaim(world.url, ["jobs", "cancel", "--kind", "receipt.send", "--yes", "--json"]);
    expect(cancelled.json()).toMatchObject([{ verb: "cancel", changed: 2501, left: 0 }]);
  });
});

describe("keys, kinds, queues, schedules", () => {
  it("act on the head of a halted key", async () => {
    const world = await setup();
    const { head, behind } = await stock(world);
    expect(await pgclaim(world.url, ["keys", "retry", "account:7"])).toMatchObject({ code: 4, out: "" });
    expect(await pgclaim(world.url, ["keys", "skip", "account:42", "--yes"])).toMatchObject({
      code: 0,
      out: `${head} skipped\n`,
    });
    expect(await world.value("select state from pgclaim.job where id = $1", [behind])).toBe("ready");
    expect((await pgclaim(world.url, ["keys", "list", "--halted"])).code).toBe(4);
  });

  it("put an older deployment in force", async () => {
    const world = await setup();
    await stock(world);
    await world.claimer("pg", { jobs: [kinds.receipt] }).invoke({ type: "manual" });
    expect(await pgclaim(world.url, ["kinds", "use", "1", "--yes"])).toMatchObject({
      code: 0,
      out: "Deployment 1 is in force, as revision 3.\n",
    });
    expect((await pgclaim(world.url, ["kinds", "use", "3", "--yes"])).code).toBe(0);
    expect((await pgclaim(world.url, ["kinds", "use", "9", "--yes"])).code).toBe(4);
  });

  it("pause and resume, and run a schedule now", async () => {
    const world = await setup();
    await stock(world);
    expect(await pgclaim(world.url, ["queues", "pause", "default"])).toMatchObject({
      code: 0,
      out: 'Queue "default" is paused.\n',
    });
    expect((await pgclaim(world.url, ["queues", "list"])).out).toContain("paused");
    expect(await pgclaim(world.url, ["queues", "pause", "default", "--json"])).toMatchObject({
      out: '{"queue":"default","changed":false}\n',
    });
    expect(await pgclaim(world.url, ["queues", "resume", "default"])).toMatchObject({ code: 0 });
    expect(await pgclaim(world.url, ["schedules", "pause", "nightly"])).toMatchObject({
      code: 0,
      out: 'Schedule "nightly" is paused.\n',
    });
    expect((await pgclaim(world.url, ["schedules", "list"])).out).toContain("paused");
    expect(await pgclaim(world.url, ["schedules", "resume", "nightly"])).toMatchObject({ code: 0 });
    const ran = await pgclaim(world.url, ["schedules", "run", "nightly", "--json"]);
    expect(ran.json()).toMatchObject([{ schedule: "nightly", type: "enqueued" }]);
    const missing = await pgclaim(world.url, ["schedules", "run", "nightlly"]);
    expect(missing).toMatchObject({ code: 4, out: "" });
    expect(missing.err).toContain('Did you mean "nightly"?');
  });
});

describe("holders terminate", () => {
  it("ends the transaction of a holder, and of nobody else", async () => {
    const world = await setup();
    const { later } = await stock(world);
    const [holder, bystander] = [await world.connect(), await world.connect()];
    const pidOf = async (client: typeof holder) =>
      (await client.query("select pg_backend_pid() as pid")).rows[0].pid as number;
    const [pid, other] = [await pidOf(holder), await pidOf(bystander)];
    await holder.query("begin");
    await holder.query("select pgclaim.try_job_lock('receipt.send', $1)", [later]);
    expect((await pgclaim(world.url, ["holders", "terminate", String(other), "--yes"])).code).toBe(4);
    expect((await pgclaim(world.url, ["holders", "terminate", String(pid)])).code).toBe(2);
    expect(await pgclaim(world.url, ["holders", "terminate", String(pid), "--yes"])).toMatchObject({
      code: 0,
      out: `Process ${pid} is ended.\n`,
    });
    await eventually(async () => expect(await world.locks()).toBe(0));
    expect(await pidOf(bystander)).toBe(other);
  });
});

describe("trigger", () => {
  const secret = "a-trigger-secret-of-some-length";

  it("wakes a deployment with its secret and says what it did", async () => {
    const world = await setup();
    const claimer = world.claimer("pg", { jobs: Object.values(kinds) });
    const url = await serve(createApp({ claimer: () => claimer, secrets: { trigger: secret } }));
    await claimer.enqueue(kinds.receipt, { orderId: "1" });
    const env = { PGCLAIM_TRIGGER_SECRET: secret, PGCLAIM_URL: url };
    const ran = await pgclaim(null, ["trigger"], { env });
    expect(ran).toMatchObject({ code: 0, err: "" });
    expect(ran.out).toMatch(/^empty: \d+ ticks, claimed 1, done 1, \d\+\d round trips, /);
    expect((await pgclaim(null, ["trigger", "--json"], { env })).json()).toMatchObject([
      { trigger: "http /api/trigger", claimed: 0 },
    ]);
  });

  it("fails with the deployment's own words, and sends no secret where it could be read", async () => {
    const url = await serve(
      createApp({ claimer: () => Promise.reject(new Error("never asked")), secrets: { trigger: secret } }),
    );
    const wrong = await pgclaim(null, ["trigger", "--url", url], { env: { PGCLAIM_TRIGGER_SECRET: "another" } });
    expect(wrong).toMatchObject({ code: 1, out: "" });
    expect(wrong.err).toContain("PGCLAIM_UNAUTHORIZED");
    const seen = gate<string | null>();
    const elsewhere = await serve({
      fetch: (request) => {
        seen.open(request.headers.get("authorization"));
        return new Response("{}");
      },
    });
    const redirecting = await serve({ fetch: () => Response.redirect(elsewhere, 307) });
    const env = { PGCLAIM_TRIGGER_SECRET: secret };
    const redirected = await pgclaim(null, ["trigger", "--url", redirecting], { env });
    expect(redirected.code).toBe(1);
    seen.open("nobody");
    expect(await seen.promise).toBe("nobody");
    expect((await pgclaim(null, ["trigger", "--url", "http://example.com"], { env })).code).toBe(2);
    expect((await pgclaim(null, ["trigger"], { env })).code).toBe(2);
    expect((await pgclaim(null, ["trigger", "--url", url])).code).toBe(2);
    for (const ran of [wrong, redirected]) expect(ran.out + ran.err).not.toContain(secret);
  });
});

describe("migrate", () => {
  it("says what is missing, tries it, does it, and prints it as SQL", async () => {
    const world = await setup();
    await world.sql.query("drop schema pgclaim cascade");
    const status = await pgclaim(world.url, ["migrate", "status", "--json"]);
    expect(status.code).toBe(1);
    expect(status.json()).toMatchObject([{ version: 0, current: false }]);
    const dry = await pgclaim(world.url, ["migrate", "--dry-run"]);
    expect(dry).toMatchObject({ code: 0, out: expect.stringContaining("rolled back") });
    expect(dry.err).toContain("applying 0001_create_tables.sql");
    expect(await world.value("select to_regnamespace('pgclaim') is null")).toBe(true);
    const script = await pgclaim(world.url, ["migrate", "--sql"]);
    expect(script.code).toBe(0);
    await world.sql.query(script.out);
    expect(await pgclaim(world.url, ["migrate", "status"])).toMatchObject({
      code: 0,
      out: expect.stringContaining("Nothing to do"),
    });
    const again = await pgclaim(world.url, ["migrate", "--json"]);
    expect(again.json()).toMatchObject([{ applied: [], functionsChanged: false, dryRun: false }]);
    expect((await pgclaim(world.url, ["migrate", "--sql", "--dry-run"])).code).toBe(2);
    expect((await pgclaim(null, ["migrate", "--sql"])).out).toContain("version 0 to");
    const nobody = await roleOf(world, null);
    await world.sql.query("drop schema pgclaim cascade");
    expect((await pgclaim(nobody.url, ["migrate"])).code).toBe(1);
  });
});
