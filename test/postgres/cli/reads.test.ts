// What the command line shows, from the built program against a real database: tables and JSON, exit codes, and nothing that a
// terminal would obey.

import { describe, expect, it } from "vitest";
import { roleOf } from "../../support/roles.ts";
import { setup } from "../../support/world.ts";
import { hasTerminal, hostile, inTerminal, pgclaim, stock } from "./support.ts";

/** What a terminal obeys, line ends excepted. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const obeyed = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/;

/** Runs a command that must answer 0, be silent on stderr, and print nothing that a terminal obeys. */
function asked(url: string) {
  async function run(args: readonly string[]) {
    const ran = await pgclaim(url, args);
    expect({ args, code: ran.code, err: ran.err }).toEqual({ args, code: 0, err: "" });
    expect(ran.out).not.toMatch(obeyed);
    return ran;
  }
  return {
    words: async (...args: string[]) => (await run(args)).out,
    json: async (...args: string[]) => (await run([...args, "--json"])).json(),
  };
}

describe("pgclaim", () => {
  it("shows jobs and one job, in words and as JSON", async () => {
    const world = await setup();
    const jobs = await stock(world);
    const { words, json } = asked(world.url);
    expect(await words("jobs", "list")).toMatch(
      new RegExp(`^job +kind.*\\n${jobs.later} +receipt\\.send +default +scheduled`),
    );
    expect((await json("jobs", "list")).map(({ id }) => id)).toEqual([jobs.later, jobs.behind, jobs.head, jobs.doomed]);
    expect((await json("jobs", "list", "--state", "done")).map(({ id, kind }) => [id, kind])).toEqual([
      [jobs.done, "receipt.send"],
    ]);
    expect(await words("jobs", "list", "--kind", "transfer", "--state", "blocked")).toContain(
      `key halted by ${jobs.head}`,
    );
    expect((await json("jobs", "list", "--payload", '{"orderId":"2"}')).map(({ id }) => id)).toEqual([jobs.later]);

    const one = await words("jobs", "show", jobs.doomed);
    expect(one).toContain(`Job ${jobs.doomed}  doomed  dead`);
    expect(one).toContain("no \\u001b[2J\\u009b31m\\u202eevil\\r\n  line");
    expect(one).toMatch(/attempt +started/);
    const [detail] = await json("jobs", "show", jobs.doomed);
    expect(detail).toMatchObject({ id: jobs.doomed, state: "dead", deadReason: "handler", lastError: hostile });
    const payload = await words("jobs", "show", jobs.doomed, "--payload");
    expect(JSON.parse(payload)).toEqual({ text: hostile });
  });

  it("shows dead letters and what they have in common, in words and as JSON", async () => {
    const world = await setup();
    const jobs = await stock(world);
    const { words, json } = asked(world.url);
    expect(await words("dead", "list")).toMatch(new RegExp(`\\n${jobs.doomed} +doomed`));
    expect((await json("dead", "list", "--reason", "handler", "--since", "1h")).map(({ id }) => id)).toEqual([
      jobs.head,
      jobs.doomed,
    ]);
    const groups = await json("dead", "groups");
    expect(groups.map(({ kind }) => kind).sort()).toEqual(["doomed", "transfer"]);
    const bank = groups.find(({ kind }) => kind === "transfer")?.fingerprint as string;
    expect((await json("dead", "list", "--fingerprint", bank)).map(({ id }) => id)).toEqual([jobs.head]);
  });

  it("shows keys, kinds, queues and schedules, in words and as JSON", async () => {
    const world = await setup();
    const jobs = await stock(world);
    const { words, json } = asked(world.url);
    expect(await words("keys", "list", "--halted")).toMatch(/account:42 +transfer +halted/);
    expect(await json("keys", "list")).toMatchObject([{ orderingKey: "account:42", halted: true, head: jobs.head }]);
    expect((await json("kinds", "list")).map(({ name, registered }) => [name, registered])).toEqual([
      ["doomed", true],
      ["receipt.send", true],
      ["transfer", true],
    ]);
    expect(await json("kinds", "revisions")).toMatchObject([{ n: 1, kinds: ["doomed", "receipt.send", "transfer"] }]);
    expect(await words("kinds", "revisions")).toMatch(/^revision/);
    expect((await json("queues", "list")).map(({ name }) => name)).toEqual(["default"]);
    expect(await json("schedules", "list")).toMatchObject([{ name: "nightly", cron: "30 2 * * *", pausedAt: null }]);
  });

  it("shows triggers, ticks and a live view, in words and as JSON", async () => {
    const world = await setup();
    await stock(world);
    const { words, json } = asked(world.url);
    expect(await words("triggers", "list")).toContain("cron * * * * *");
    expect(await json("triggers", "list")).toMatchObject([{ name: "cron * * * * *", status: "ok" }]);
    expect((await json("ticks")).every(({ outcome }) => outcome === "committed")).toBe(true);
    expect(await words("ticks", "--follow", "--times", "1")).toMatch(/cron \* \* \* \* \*.*committed/);
    expect(await words("watch", "--times", "2", "--every", "1ms")).toMatch(/^(\S+Z ready .*\n){2}$/);
    expect(await json("watch", "--times", "1")).toMatchObject([{ dead: { n: 2 }, haltedKeys: { n: 1 } }]);
  });

  it("answers 4 where nothing matched, and names the kind that was perhaps meant", async () => {
    const world = await setup();
    for (const args of [
      ["jobs", "list"],
      ["dead", "list"],
      ["dead", "groups"],
      ["keys", "list"],
      ["kinds", "list"],
      ["kinds", "revisions"],
      ["schedules", "list"],
      ["triggers", "list"],
      ["ticks"],
      ["holders"],
      ["jobs", "show", "4711"],
    ]) {
      const ran = await pgclaim(world.url, args);
      expect({ args, code: ran.code, out: ran.out }).toEqual({ args, code: 4, out: "" });
      expect(ran.err).not.toBe("");
    }
    await stock(world);
    const ran = await pgclaim(world.url, ["jobs", "list", "--kind", "recipt.send"]);
    expect(ran).toMatchObject({ code: 4, out: "" });
    expect(ran.err).toContain('No kind "recipt.send" in the database. Did you mean "receipt.send"?');
  });

  it("pages through a list that is longer than a page, and says where it goes on", async () => {
    const world = await setup();
    await stock(world);
    await world.sql.query(
      `select pgclaim.enqueue('receipt.send', jsonb_build_object('orderId', i::text)) from generate_series(1, 450) i`,
    );
    const all = await pgclaim(world.url, ["jobs", "list", "--kind", "receipt.send", "--limit", "1000", "--json"]);
    expect(new Set(all.json().map(({ id }) => id)).size).toBe(451);
    const first = await pgclaim(world.url, ["jobs", "list", "--kind", "receipt.send", "--limit", "3", "--json"]);
    const cursor = /^more: --cursor (\S+)\n$/.exec(first.err)?.[1] ?? "";
    const next = await pgclaim(world.url, [
      "jobs",
      "list",
      "--kind",
      "receipt.send",
      "--limit",
      "3",
      "--json",
      "--cursor",
      cursor,
    ]);
    const ids = all.json().map(({ id }) => id);
    expect([...first.json(), ...next.json()].map(({ id }) => id)).toEqual(ids.slice(0, 6));
  });

  it("shows who holds what, proved by the lock table", async () => {
    const world = await setup();
    const { later } = await stock(world);
    const holder = await world.connect();
    await holder.query("begin");
    await holder.query("select pgclaim.try_job_lock('receipt.send', $1)", [later]);
    const [{ pid }] = (await holder.query("select pg_backend_pid() as pid")).rows;
    const ran = await pgclaim(world.url, ["holders", "--json"]);
    expect(ran.code).toBe(0);
    expect(ran.json()).toMatchObject([{ type: "holder", pid }]);
    expect((await pgclaim(world.url, ["holders"])).out).toMatch(new RegExp(`^pid.*\\n${pid} `));
    await holder.query("rollback");
  });
});

describe("exit codes and errors", () => {
  it("are 2 for wrong usage, with the nearest name", async () => {
    const wrong: [string[], RegExp][] = [
      [["jobs", "lst"], /Did you mean list/],
      [["jobs", "list", "--jsn"], /Did you mean --json/],
      [["jobs", "list", "--state", "deaf"], /Did you mean "dead"/],
      [["jobs", "show", "one"], /Expected a job's id/],
      [["jobs", "list", "--since", "2"], /Expected an instant with its zone/],
      [["dead", "discard"], /Say which ones/],
      [["dead", "discard", "--all", "--kind", "x"], /do not go together/],
      [[], /Usage: pgclaim/],
    ];
    for (const [args, said] of wrong) {
      const ran = await pgclaim("postgresql://u:p@127.0.0.1:1/d", args);
      expect({ args, code: ran.code, out: ran.out }).toEqual({ args, code: 2, out: "" });
      expect(ran.err).toMatch(said);
    }
    expect(await pgclaim(null, ["--help"])).toMatchObject({ code: 0, err: "" });
  });

  it("take the address from the environment only, and never print its password", async () => {
    const secret = "hunter2hunter2";
    const address = `postgresql://u:${secret}@127.0.0.1:1/d`;
    const runs = await Promise.all([
      pgclaim(null, ["jobs", "list", "--database-url", address]),
      pgclaim(null, ["jobs", "list", `--databse-url=${address}`]),
      pgclaim(null, ["jobs", "list"]),
      pgclaim(null, ["jobs", "list"], { env: { DATABASE_URL: `mysql://u:${secret}@h/d` } }),
      pgclaim(address, ["jobs", "list", "--json"]),
      pgclaim(address, ["doctor"]),
      pgclaim(address, ["doctor", "--json"]),
      pgclaim(address, ["migrate"]),
    ]);
    expect(runs.map(({ code }) => code)).toEqual([2, 2, 2, 2, 3, 3, 3, 3]);
    for (const ran of runs) expect(ran.out + ran.err).not.toContain(secret);
    expect(JSON.parse(runs[4]?.err ?? "")).toMatchObject({ error: { code: "PGCLAIM_CONNECT_FAILED" } });
  });

  it("are 3 where the server does not let us in, 1 without the schema or the right", async () => {
    const world = await setup();
    const wrong = new URL(world.url);
    wrong.pathname = "/nothing_here";
    expect((await pgclaim(wrong.href, ["jobs", "list"])).code).toBe(3);
    const nobody = await roleOf(world, null);
    const denied = await pgclaim(nobody.url, ["jobs", "list"]);
    expect(denied.code).toBe(1);
    expect(denied.err).toContain("PGCLAIM_PERMISSION_DENIED");
    const missing = await pgclaim(world.url, ["jobs", "list", "--schema", "elsewhere"]);
    expect(missing.code).toBe(1);
    expect(missing.err).toContain("PGCLAIM_SCHEMA_MISSING");
  });

  it("survives a reader that goes away in the middle", async () => {
    const world = await setup();
    await stock(world);
    const ran = await inShell(world.url, "jobs list --limit 1000 --json | head -1; echo $?");
    expect(ran).toMatch(/^\{.*\}\n0\n$/);
  });
});

async function inShell(url: string, line: string): Promise<string> {
  const { execFileSync } = await import("node:child_process");
  const main = new URL("../../../dist/cli/main.js", import.meta.url).pathname;
  return execFileSync("bash", ["-c", `set -o pipefail; "${process.execPath}" "${main}" ${line}`], {
    env: { PATH: process.env.PATH ?? "", DATABASE_URL: url },
    encoding: "utf8",
  });
}

describe.runIf(hasTerminal)("on a terminal", () => {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: a colour
  const colour = /\u001b\[\d+m/;

  it("colours, and not with NO_COLOR", async () => {
    const world = await setup();
    await stock(world);
    expect((await inTerminal(world.url, ["jobs", "list"])).out).toMatch(colour);
    expect((await inTerminal(world.url, ["jobs", "list"], { env: { NO_COLOR: "1" } })).out).not.toMatch(colour);
    expect((await pgclaim(world.url, ["jobs", "list"])).out).not.toMatch(colour);
  });

  it("redraws watch until q, and gives the screen back", async () => {
    const world = await setup();
    await stock(world);
    const ran = await inTerminal(world.url, ["watch", "--every", "1h"], { stdin: "xq" });
    expect(ran.code).toBe(0);
    expect(ran.out).toContain("\u001b[?1049h");
    expect(ran.out).toContain("q quits");
    expect(ran.out.endsWith("\u001b[?25h\u001b[?1049l")).toBe(true);
  });
});
