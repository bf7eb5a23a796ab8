import { describe, expect, it } from "vitest";
import { hasSecret, readSession, roleOf, sessionSeconds, signSession } from "../../../../src/http/dashboard/session.ts";

const secrets = { operate: "operate-1", read: "read-1" };
const now = new Date("2026-11-30T14:00:00Z");
const later = (seconds: number) => new Date(now.getTime() + seconds * 1_000);

describe("a session", () => {
  it("is read back as the role it was signed for", async () => {
    for (const role of ["operate", "read"] as const)
      expect(await readSession(await signSession(role, secrets, now), secrets, later(5))).toBe(role);
  });

  it("ends after twelve hours", async () => {
    const cookie = await signSession("operate", secrets, now);
    expect(await readSession(cookie, secrets, later(sessionSeconds - 1))).toBe("operate");
    expect(await readSession(cookie, secrets, later(sessionSeconds))).toBeNull();
  });

  it("ends when the secret is changed", async () => {
    const cookie = await signSession("operate", secrets, now);
    expect(await readSession(cookie, { ...secrets, operate: "operate-2" }, now)).toBeNull();
    expect(await readSession(cookie, { read: "read-1" }, now)).toBeNull();
  });

  it("of the reader cannot be made into the operator's", async () => {
    const cookie = await signSession("read", secrets, now);
    expect(await readSession(cookie.replace("read", "operate"), secrets, now)).toBeNull();
  });

  it("cannot be made longer, cut or guessed", async () => {
    const cookie = await signSession("operate", secrets, now);
    const [role, end, signature = ""] = cookie.split(".");
    for (const wrong of [
      `${role}.${Number(end) + 1}.${signature}`,
      `${role}.${end}.${signature.slice(2)}`,
      `${role}.${end}.${"0".repeat(64)}`,
      `${role}.${end}.`,
      `${role}.${end}`,
      "",
      "operate",
    ])
      expect([wrong, await readSession(wrong, secrets, now)]).toEqual([wrong, null]);
    expect(await readSession(undefined, secrets, now)).toBeNull();
  });
});

describe("logging in", () => {
  it("finds the role of a secret, white space around it apart", async () => {
    expect(await roleOf("operate-1", secrets)).toBe("operate");
    expect(await roleOf(" read-1\n", secrets)).toBe("read");
    expect(await roleOf("operate-1", { operate: "operate-1", read: "operate-1" })).toBe("operate");
  });

  it("opens nothing without a secret, or for a wrong one", async () => {
    for (const wrong of ["", " ", "operate-", "operate-11", "undefined"])
      expect([wrong, await roleOf(wrong, secrets)]).toEqual([wrong, null]);
    expect(await roleOf("", { operate: "", read: undefined })).toBeNull();
    expect(await roleOf("undefined", { operate: "undefined" })).toBeNull();
    expect([hasSecret({}), hasSecret({ trigger: "x" }), hasSecret({ read: "x" })]).toEqual([false, false, true]);
  });
});
