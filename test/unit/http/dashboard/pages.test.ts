// Every page over reads that are full of hostile text: what is answered, to whom, with which headers. What a browser makes of it,
// test/browser shows.

import { gzipSync } from "node:zlib";
import { describe, expect, it } from "vitest";
import { DatabaseError } from "../../../../src/errors.ts";
import { script } from "../../../../src/http/dashboard/assets/script.ts";
import { style } from "../../../../src/http/dashboard/assets/style.ts";
import { secrets } from "../support.ts";
import { hostile, logIn, overview, post, stage } from "./stage.ts";

const paths = [
  "/",
  "/jobs",
  "/jobs?state=retrying",
  "/jobs/918273",
  "/dead",
  "/keys",
  "/schedules",
  "/invocations",
  "/invocations/7f3a",
  "/holders",
  "/confirm?do=discard&job=918273&back=/dead",
  "/confirm?do=skip&job=918273&next=918274",
  "/confirm?do=retry&id=1&id=2",
  "/confirm?do=retry-all&kind=a",
  `/confirm?do=pause-queue&name=${encodeURIComponent(hostile)}`,
  `/confirm?do=terminate&pid=4121&start=${encodeURIComponent(hostile)}`,
  `/jobs?queue=${encodeURIComponent(hostile)}&key=${encodeURIComponent(hostile)}&payload=${encodeURIComponent(`a:${hostile}`)}`,
  `/jobs?state=${encodeURIComponent(hostile)}&${encodeURIComponent(hostile)}=1`,
  `/invocations?trigger=${encodeURIComponent(hostile)}&outcome=${encodeURIComponent(hostile)}`,
  `/?window=${encodeURIComponent(hostile)}`,
  `/?tz=${encodeURIComponent(hostile)}`,
  `/dead?did=not-dead&of=${encodeURIComponent(hostile)}&was=${encodeURIComponent(hostile)}`,
];

async function get(path: string, headers: Record<string, string> = {}, on = stage()) {
  const cookie = await logIn(on.app);
  return on.app.request(path, { headers: { cookie, ...headers } });
}

describe("every page", () => {
  it.each(paths)("keeps hostile text text: %s", async (path) => {
    const answer = await get(path);
    const body = await answer.text();
    expect(answer.headers.get("content-type")).toBe("text/html; charset=utf-8");
    // Every tag that is open is one of ours: the only script has an address, nothing is an image.
    expect(body.match(/<script[^>]*>/g)).toEqual([expect.stringContaining('src="/assets/dashboard.js?')]);
    // In an attribute's value anything may stand but its end; what a form carries must be as it is.
    const bare = body.replaceAll(/="[^"]*"/g, "");
    expect(bare).not.toMatch(/<img|<[^>]*\s(on[a-z]+|style)\b|'/i);
    for (const unseen of ["\u202e", "\u0007"]) expect(bare.includes(unseen)).toBe(false);
    for (const [, address] of body.matchAll(/(?:href|action)="([^"]*)"/g))
      expect(address).toMatch(/^(\/(?!\/)|#|data:,$)/);
    expect(body).not.toMatch(/\bundefined\b|\[object |\bNaN\b/);
  });

  it.each(paths)("says how it may be shown, framed and kept: %s", async (path) => {
    const { headers } = await get(path);
    expect(headers.get("content-security-policy")).toBe(
      "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    );
    expect(headers.get("cache-control")).toBe("private, no-store");
    expect(headers.get("referrer-policy")).toBe("same-origin");
    expect(headers.get("x-content-type-options")).toBe("nosniff");
  });

  it.each(paths.slice(0, 10))("leads who is not logged in to the door, and back: %s", async (path) => {
    const { app } = stage();
    const answer = await app.request(path);
    expect(answer.status).toBe(303);
    const back = new URL(answer.headers.get("location") ?? "", "http://x").searchParams.get("back") ?? "/";
    expect(back).toBe(path);
    const body = new URLSearchParams({ secret: secrets.read, back });
    expect((await app.request("/login", post(body))).headers.get("location")).toBe(path);
  });

  it("names a wrong value, keeps the form as it was, and asks the database nothing", async () => {
    const on = stage({
      inspect: {
        jobs: async () => {
          throw new Error("asked");
        },
      },
    });
    const answer = await get("/jobs?state=tired&key=account%3A42", {}, on);
    const body = await answer.text();
    expect(answer.status).toBe(400);
    expect(body).toContain("state is &quot;tired&quot;");
    expect(body).toContain('name="key" value="account:42"');
  });

  it("answers 404 for a job that is not there, 400 for what is no id", async () => {
    expect((await get("/jobs/7", {}, stage({ inspect: { job: async () => null } }))).status).toBe(404);
    expect((await get("/jobs/%00")).status).toBe(400);
    expect((await get("/jobs/07")).status).toBe(400);
  });
});

describe("a region that fails", () => {
  const cancelled = new DatabaseError("PGCLAIM_QUERY_FAILED", "The database failed (57014: canceling statement).", {
    cause: Object.assign(new Error("canceling statement"), { code: "57014" }),
  });
  const refused = new DatabaseError("PGCLAIM_CONNECT_FAILED", "no answer from postgres://u:p@db.example/x", {
    cause: Object.assign(new Error("connect ECONNREFUSED 10.1.2.3:5432"), { code: "ECONNREFUSED" }),
  });
  const fails = (error: Error) => async () => {
    throw error;
  };

  it("leaves the others as they are", async () => {
    const answer = await get("/", {}, stage({ inspect: { series: fails(cancelled) } }));
    const body = await answer.text();
    expect(answer.status).toBe(200);
    expect(body).toContain("took longer than 2 s and was cancelled");
    expect(body).toContain("12,480");
    const dead = await (await get("/dead", {}, stage({ inspect: { deadGroups: fails(cancelled) } }))).text();
    expect(dead).toContain("took longer than 2 s");
    expect(dead).toContain("9223372036854775807");
  });

  it("says that the database is not reached, and not where it is", async () => {
    const all = { overview: fails(refused), series: fails(refused), jobs: fails(refused), kinds: fails(refused) };
    const answer = await get("/jobs", {}, stage({ inspect: all }));
    const body = await answer.text();
    expect(answer.status).toBe(503);
    expect(body).toContain("Cannot reach the database (PGCLAIM_CONNECT_FAILED): ECONNREFUSED. Run `pgclaim doctor`.");
    expect(body).not.toMatch(/10\.1\.2\.3|db\.example|u:p/);
    const polled = await get("/jobs", { "x-pgclaim-regions": "1" }, stage({ inspect: all }));
    expect(polled.status).toBe(503);
  });

  it("passes on nothing of an error that nobody expected, and logs it", async () => {
    const lines: unknown[] = [];
    const claimer = () => {
      throw new Error("secret thing");
    };
    const answer = await get("/", {}, stage({ app: { claimer, log: (line) => lines.push(line) } }));
    expect(answer.status).toBe(503);
    expect(await answer.text()).not.toContain("secret thing");
    expect(JSON.stringify(lines)).toContain("secret thing");
  });
});

describe("a refresh", () => {
  it("answers regions only, and nothing at all while nothing changed but ages", async () => {
    const on = stage();
    const cookie = await logIn(on.app);
    const poll = (headers = {}) => on.app.request("/", { headers: { cookie, "x-pgclaim-regions": "1", ...headers } });
    const first = await poll();
    const body = await first.text();
    expect(body).toContain('data-region="nav"');
    expect(body).not.toContain("<html");
    const etag = first.headers.get("etag") ?? "";
    expect(first.headers.get("x-pgclaim-now")).toBe(overview.now);
    const later = stage({ inspect: { overview: async () => ({ ...overview, now: "2026-11-30T14:03:12.000Z" }) } });
    const second = await later.app.request("/", {
      headers: { cookie, "x-pgclaim-regions": "1", "if-none-match": etag },
    });
    expect([second.status, await second.text()]).toEqual([304, ""]);
    const changed = stage({ inspect: { overview: async () => ({ ...overview, running: 15 }) } });
    const third = await changed.app.request("/", {
      headers: { cookie, "x-pgclaim-regions": "1", "if-none-match": etag },
    });
    expect(third.status).toBe(200);
  });

  it("answers 401 and no page when the session is over", async () => {
    const answer = await stage().app.request("/", { headers: { "x-pgclaim-regions": "1" } });
    expect(answer.status).toBe(401);
  });
});

describe("what is loaded", () => {
  it("is small: 8 KB of style, 6 KB of script, gzipped", () => {
    expect(gzipSync(style).length).toBeLessThan(8_000);
    expect(gzipSync(script).length).toBeLessThan(6_000);
  });

  it("is kept by the browser under an address of its content, and parses", async () => {
    const { app } = stage();
    const page = await (await app.request("/login")).text();
    for (const [address] of page.matchAll(/\/assets\/dashboard\.(css|js)\?[0-9a-f]{8}/g)) {
      const answer = await app.request(address);
      expect(answer.status).toBe(200);
      expect(answer.headers.get("cache-control")).toContain("immutable");
      const again = await app.request(address, { headers: { "if-none-match": answer.headers.get("etag") ?? "" } });
      expect(again.status).toBe(304);
    }
    expect(() => new Function(script)).not.toThrow();
  });
});

describe("redaction", () => {
  it("keeps a named value out of lists, the job's page and the download", async () => {
    const on = () => stage({ app: { dashboard: { redact: ["account.iban"] } } });
    for (const path of ["/jobs", "/dead", "/jobs/7", "/jobs/7/payload"]) {
      const body = await (await get(path, {}, on())).text();
      expect([path, body.includes("DE02120300000000202051")]).toEqual([path, false]);
    }
    expect(await (await get("/jobs/7", {}, on())).text()).toContain("9007199254740993");
  });

  it("shows no payload in lists where it is told so", async () => {
    const body = await (await get("/jobs", {}, stage({ app: { dashboard: { showPayloads: false } } }))).text();
    expect(body).not.toContain("DE02120300000000202051");
  });
});
