// Who may look and who may act: the door, the cookie, forms from elsewhere, and the role that only reads.

import { describe, expect, it } from "vitest";
import { secrets } from "../support.ts";
import { logIn, origin, post, stage } from "./stage.ts";

const discard = { do: "discard", job: "918273", back: "/dead?kind=a" };

describe("the door", () => {
  it("stays closed without a secret, and says which to set", async () => {
    for (const none of [{}, { trigger: "x" }, { operate: " ", read: "undefined" }]) {
      const { app } = stage({ app: { secrets: none } });
      for (const path of ["/", "/login", "/jobs/7", "/jobs/7/payload"]) {
        const answer = await app.request(path);
        expect([path, answer.status]).toEqual([path, 503]);
        expect(await answer.text()).toContain("wrangler secret put PGCLAIM_OPERATE_SECRET");
      }
      expect((await app.request("/act", post(discard))).status).toBe(503);
      expect((await app.request("/login", post({ secret: "" }))).status).toBe(503);
    }
  });

  it("gives a cookie that only this host's pages send, and no script reads", async () => {
    const answer = await stage().app.request("/login", post({ secret: secrets.operate, back: "/dead" }));
    expect(answer.status).toBe(303);
    expect(answer.headers.get("location")).toBe("/dead");
    const cookie = answer.headers.get("set-cookie") ?? "";
    expect(cookie).toMatch(/^__Host-pgclaim=operate\.\d+\.[0-9a-f]{64};/);
    for (const part of ["Max-Age=43200", "Path=/", "HttpOnly", "Secure", "SameSite=Strict"])
      expect(cookie).toContain(part);
    expect(cookie).not.toContain("Domain");
    expect(cookie).not.toContain(secrets.operate);
  });

  it("does not open to a wrong secret, nor lead elsewhere", async () => {
    const { app } = stage();
    const wrong = await app.request("/login", post({ secret: "nope", back: "/" }));
    expect(wrong.status).toBe(401);
    expect(wrong.headers.get("set-cookie")).toBeNull();
    const away = await app.request("/login", post({ secret: secrets.read, back: "//evil.example" }));
    expect(away.headers.get("location")).toBe("/");
  });

  it("takes no bearer token, and the API takes no cookie", async () => {
    const { app } = stage();
    const cookie = await logIn(app);
    expect((await app.request("/", { headers: { authorization: `Bearer ${secrets.operate}` } })).status).toBe(303);
    expect((await app.request("/api/jobs/7", { headers: { cookie } })).status).toBe(401);
    expect((await app.request("/api/jobs/7/discard", { method: "POST", headers: { cookie } })).status).toBe(401);
  });

  it("logs out", async () => {
    const { app } = stage();
    const answer = await app.request("/logout", post({}, await logIn(app)));
    expect(answer.headers.get("set-cookie")).toMatch(/^__Host-pgclaim=;.*Max-Age=0/);
  });

  it("is not there where something else asks who comes, or where there is no dashboard", async () => {
    const open = stage({ app: { dashboard: { login: "none" }, secrets: {} } });
    expect((await open.app.request("/")).status).toBe(200);
    expect((await open.app.request("/act", post(discard))).status).toBe(303);
    const foreign = await open.app.request("/act", post(discard, "", { origin: "https://evil.example" }));
    expect([foreign.status, await foreign.text()]).toEqual([
      403,
      expect.stringContaining("Sec-Fetch-Site: same-origin"),
    ]);
    const none = stage({ app: { dashboard: false } });
    expect((await none.app.request("/")).status).toBe(404);
  });

  it("refuses options nobody knows", () => {
    for (const dashboard of [
      { nam: "x" },
      { colour: "pink" },
      { redact: "iban" },
      { login: "off" },
      { showPayloads: 1 },
    ])
      expect(() => stage({ app: { dashboard: dashboard as object } })).toThrow("dashboard.");
  });
});

describe("a form", () => {
  it.each([
    ["another site", { origin: "https://evil.example", "sec-fetch-site": "cross-site" }],
    ["another site that says it is ours", { "sec-fetch-site": "cross-site" }],
    ["an address of ours, from another site", { origin: "https://evil.example" }],
    ["a sibling", { "sec-fetch-site": "same-site" }],
    ["nowhere", { origin: "null" }],
    ["a bookmark", { "sec-fetch-site": "none" }],
  ])("from %s does nothing", async (_, headers) => {
    const on = stage();
    const cookie = await logIn(on.app);
    for (const path of ["/act", "/logout", "/login"]) {
      const answer = await on.app.request(path, post({ ...discard, secret: secrets.operate }, cookie, headers));
      expect([path, answer.status, answer.headers.get("set-cookie")]).toEqual([path, 403, null]);
    }
    expect(on.calls).toEqual([]);
  });

  it("is needed: no other body acts", async () => {
    const on = stage();
    const cookie = await logIn(on.app);
    for (const type of ["application/json", "text/plain", "multipart/form-data; boundary=x"]) {
      const answer = await on.app.request("/act", {
        ...post(discard, cookie, { "content-type": type }),
        body: JSON.stringify(discard),
      });
      expect([type, answer.status]).toEqual([type, 415]);
    }
    expect(on.calls).toEqual([]);
  });

  it("is read no further than a form can be long", async () => {
    const on = stage();
    let sent = 0;
    const endless = new ReadableStream<Uint8Array>({
      pull(controller) {
        sent += 65_536;
        if (sent > 10_000_000) controller.close();
        else controller.enqueue(new Uint8Array(65_536).fill(97));
      },
    });
    const answer = await on.app.request("/login", {
      ...post({}, undefined, { "content-type": "application/x-www-form-urlencoded" }),
      body: endless,
      duplex: "half",
    } as RequestInit);
    expect(answer.status).toBe(401);
    expect(sent).toBeLessThan(500_000);
  });

  it("of ours acts, and leads back to the view it came from with what it did", async () => {
    const on = stage();
    const answer = await on.app.request("/act", post(discard, await logIn(on.app)));
    expect(answer.status).toBe(303);
    expect(answer.headers.get("location")).toBe("/dead?kind=a&did=discarded&of=918273");
    expect(on.calls).toEqual([["discard", "918273", "dashboard"]]);
  });

  it("with the read secret's cookie does nothing, and its pages have no button", async () => {
    const on = stage();
    const cookie = await logIn(on.app, secrets.read);
    expect((await on.app.request("/act", post(discard, cookie))).status).toBe(403);
    expect(on.calls).toEqual([]);
    for (const path of ["/", "/jobs", "/jobs/7", "/dead", "/keys", "/schedules", "/holders"]) {
      const body = await (await on.app.request(path, { headers: { cookie } })).text();
      expect([path, body.includes("/confirm"), body.includes('name="do"')]).toEqual([path, false, false]);
    }
  });
});

describe("an action", () => {
  async function act(fields: Record<string, string> | URLSearchParams) {
    const on = stage();
    const answer = await on.app.request("/act", post(fields, await logIn(on.app)));
    return { ...on, answer, location: answer.headers.get("location") ?? "" };
  }

  it("on what was selected tells how many had changed", async () => {
    const form = new URLSearchParams([
      ["do", "retry"],
      ["id", "1"],
      ["id", "2"],
      ["id", "2"],
      ["back", "/dead"],
    ]);
    const { calls, location } = await act(form);
    expect(calls).toEqual([
      ["retry", "1", "dashboard"],
      ["retry", "2", "dashboard"],
    ]);
    expect(location).toBe("/dead?did=many-retry&n=2&left=0");
  });

  it("on all that match carries the filter and the highest id of its question", async () => {
    const { calls, location } = await act({
      do: "retry-all",
      kind: "a",
      reason: "missed",
      upTo: "918273",
      spread: "10m",
      back: "/dead",
    });
    expect(calls).toEqual([
      [
        "bulk",
        {
          verb: "retry",
          filter: { state: "dead", kind: "a", reason: "missed" },
          upTo: "918273",
          by: "dashboard",
          limit: 1_000,
          spreadMs: 600_000,
        },
      ],
    ]);
    expect(location).toBe("/dead?did=many-retry&n=34&left=3");
    const told = await stage().app.request(location, { headers: { cookie: await logIn(stage().app) } });
    expect(await told.text()).toContain("Retried 34 of 37. 3 had changed meanwhile, or were locked.");
  });

  it("of more than ten slices stops, and asks whether to go on from there", async () => {
    const calls: unknown[] = [];
    const on = stage();
    const cookie = await logIn(on.app);
    const answer = await stage({
      app: {
        claimer: () =>
          ({
            operate: {
              bulk: async (request: { cursor?: string }) => {
                calls.push(request.cursor);
                return { changed: 1_000, left: 0, more: true, cursor: `c${calls.length}` };
              },
            },
          }) as never,
      },
    }).app.request("/act", post({ do: "discard-all", kind: "a", upTo: "9", back: "/dead" }, cookie));
    expect(calls).toHaveLength(10);
    const location = answer.headers.get("location") ?? "";
    expect(location).toContain("/confirm?state=dead&kind=a&do=discard-all&upTo=9&n=10000");
    const asked = await (await on.app.request(location, { headers: { cookie } })).text();
    expect(asked).toContain("10,000 done, more remain. Continue?");
    expect(asked).toContain('name="next" value="c10"');
  });

  it("cancels many only by a filter", async () => {
    const on = stage();
    const headers = { cookie: await logIn(on.app) };
    const asked = await (await on.app.request("/confirm?do=cancel-all&state=ready", { headers })).text();
    expect(asked).toContain("Set a filter first");
  });

  it("reschedules by the database's clock", async () => {
    const { calls } = await act({ do: "reschedule", job: "7", in: "10m", at: "" });
    expect(calls).toEqual([["reschedule", "7", "2026-11-30T14:13:07.000Z", "dashboard"]]);
    const exact = await act({ do: "reschedule", job: "7", in: "10m", at: "2026-12-01T00:00:00Z" });
    expect(exact.calls).toEqual([["reschedule", "7", "2026-12-01T00:00:00.000Z", "dashboard"]]);
    const wrong = await act({ do: "reschedule", job: "7", at: "tomorrow" });
    expect([wrong.answer.status, wrong.calls]).toEqual([400, []]);
  });

  it.each([
    [{ do: "run-schedule", name: "nightly" }, ["runSchedule", "nightly", "dashboard"]],
    [{ do: "pause-schedule", name: "nightly" }, ["pauseSchedule", "nightly"]],
    [{ do: "resume-schedule", name: "nightly" }, ["resumeSchedule", "nightly"]],
    [{ do: "pause-queue", name: "mail" }, ["pauseQueue", "mail"]],
    [{ do: "resume-queue", name: "mail" }, ["resumeQueue", "mail"]],
    [
      { do: "terminate", pid: "4121", start: "s" },
      ["terminate", { pid: 4_121, transactionStart: "s", by: "dashboard" }],
    ],
  ])("does %j", async (fields, call) => {
    const { calls, answer } = await act({ ...fields, back: "/" } as Record<string, string>);
    expect(answer.status).toBe(303);
    expect(calls).toEqual([call]);
  });

  it("that nobody knows, or on nothing, does nothing", async () => {
    for (const fields of [
      { do: "drop" },
      {},
      { do: "retry" },
      { do: "retry", job: "x" },
      { do: "terminate", pid: "-1" },
      { do: "discard-all" },
    ]) {
      const { answer, calls } = await act(fields as Record<string, string>);
      expect([fields, answer.status, calls]).toEqual([fields, 400, []]);
    }
  });

  it("is asked with its verb, object, number and consequence, and the safe choice has the focus", async () => {
    const on = stage();
    const headers = { cookie: await logIn(on.app), origin };
    const ask = async (path: string) => (await on.app.request(path, { headers })).text();
    const all = await ask("/confirm?do=discard-all&kind=a&back=/dead");
    expect(all).toContain("Discard 37 dead letters?");
    expect(all).toContain("stay in history as discarded. External calls already made are not undone.");
    expect(all).toContain('name="upTo" value="918273"');
    expect(all).toMatch(/<a class="btn" href="\/dead" data-back autofocus>Keep as it is<\/a>/);
    expect(await ask("/confirm?do=skip&job=918273&next=918274")).toContain("918274 will run next.");
    expect(on.calls).toEqual([]);
  });
});
