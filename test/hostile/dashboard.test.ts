// The dashboard under addresses and forms that nobody's browser makes: it answers a page, runs nothing of what it was given,
// and does nothing that a form of ours has not asked for.

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { logIn, post, stage } from "../unit/http/dashboard/stage.ts";
import { timeFor, tryOut } from "./support.ts";

const paths = [
  "/",
  "/jobs",
  "/jobs/7",
  "/dead",
  "/keys",
  "/schedules",
  "/invocations",
  "/invocations/7",
  "/holders",
  "/confirm",
  "/login",
  "/prefer",
];
const names = [
  "state",
  "queue",
  "kind",
  "key",
  "unique",
  "payload",
  "reason",
  "fingerprint",
  "since",
  "cursor",
  "q",
  "tz",
  "window",
  "halted",
  "trigger",
  "outcome",
  "work",
  "do",
  "job",
  "id",
  "name",
  "pid",
  "start",
  "back",
  "theme",
  "did",
  "n",
  "left",
  "of",
  "was",
  "next",
  "upTo",
  "spread",
  "in",
  "at",
];
const verbs = [
  "retry",
  "discard",
  "skip",
  "cancel",
  "run-now",
  "reschedule",
  "retry-all",
  "cancel-all",
  "pause-queue",
  "terminate",
];

const value = fc.oneof(
  fc.string({ unit: "binary", maxLength: 80 }),
  fc.constantFrom(
    "7",
    "0",
    "-1",
    "9223372036854775808",
    "dead",
    "/\\evil.example",
    "//evil.example",
    "javascript:alert(1)",
    '"><script>alert(1)</script>',
    "constructor",
    "__proto__",
  ),
  fc.constantFrom(...verbs),
);
const fields = fc.array(fc.tuple(fc.oneof(fc.constantFrom(...names), value), value), { maxLength: 8 });

describe("the dashboard under hostile requests", () => {
  it(
    "answers every address with a page that has no script but ours, and leads nowhere else",
    async () => {
      const { app, calls } = stage();
      const cookie = await logIn(app);
      await tryOut({ usual: 300 }, fc.tuple(fc.constantFrom(...paths), fields), async ([path, query]) => {
        const answer = await app.request(`${path}?${new URLSearchParams(query)}`, { headers: { cookie } });
        const body = await answer.text();
        expect(answer.status).toBeLessThan(500);
        expect(body.match(/<script[^>]*>/g) ?? []).toHaveLength(answer.status === 303 ? 0 : 1);
        const location = answer.headers.get("location");
        if (location !== null) expect(new URL(location, "http://localhost").host).toBe("localhost");
      });
      expect(calls).toEqual([]);
    },
    timeFor(300),
  );

  it(
    "does for a form of ours what it names, or says what is wrong with it",
    async () => {
      const { app } = stage();
      const cookie = await logIn(app);
      await tryOut({ usual: 300 }, fields, async (form) => {
        const answer = await app.request("/act", post(new URLSearchParams(form), cookie));
        expect([303, 400]).toContain(answer.status);
        const location = answer.headers.get("location");
        if (location !== null) expect(new URL(location, "http://localhost").host).toBe("localhost");
      });
    },
    timeFor(300),
  );

  it(
    "does nothing for whoever has no cookie",
    async () => {
      const { app, calls } = stage();
      const cookies = fc
        .string({ unit: "grapheme-ascii", maxLength: 90 })
        .map((text) => `__Host-pgclaim=operate.${text}`);
      await tryOut({ usual: 300 }, fc.tuple(cookies, fields), async ([cookie, form]) => {
        const answer = await app.request("/act", post(new URLSearchParams(form), cookie));
        expect(answer.status).toBe(303);
        expect(answer.headers.get("location")).toMatch(/^\/login/);
      });
      expect(calls).toEqual([]);
    },
    timeFor(300),
  );
});
