import { describe, expect, it } from "vitest";
import { checkBearer, type Secrets, secretNames } from "../../../src/http/auth.ts";

const secret = "correct-horse-battery";

async function codeFor(authorization: string | null | undefined, secrets: Secrets = { trigger: secret }) {
  const refusal = await checkBearer({
    authorization,
    scopes: ["trigger"],
    secrets,
    route: "/api/trigger",
    secretCommand: "wrangler secret put",
  });
  return refusal?.code ?? "granted";
}

describe("checkBearer", () => {
  it.each([
    ["the secret", `Bearer ${secret}`],
    ["a scheme in lower case", `bearer ${secret}`],
    ["a scheme in upper case", `BEARER ${secret}`],
    ["two spaces after the scheme", `Bearer  ${secret}`],
    ["a space at the end", `Bearer ${secret} `],
  ])("grants %s", async (_, header) => {
    expect(await codeFor(header)).toBe("granted");
  });

  it.each([
    ["no header", undefined],
    ["a null header", null],
    ["an empty header", ""],
    ["the scheme alone", "Bearer"],
    ["the scheme and a space", "Bearer "],
    ["the secret without a scheme", secret],
    ["another scheme", `Basic ${secret}`],
    ["no space", `Bearer${secret}`],
    ["a tab for the space", `Bearer\t${secret}`],
    ["a colon", `Bearer: ${secret}`],
    ["another token", "Bearer wrong"],
    ["a prefix of the secret", `Bearer ${secret.slice(0, -1)}`],
    ["a longer token", `Bearer ${secret}x`],
    ["another last character", `Bearer ${secret.slice(0, -1)}x`],
    ["the secret in another case", `Bearer ${secret.toUpperCase()}`],
    ["the secret twice", `Bearer ${secret}, Bearer ${secret}`],
    ["the word undefined", "Bearer undefined"],
    ["the word null", "Bearer null"],
    ["a very long token", `Bearer ${"x".repeat(100_000)}`],
  ])("refuses %s", async (_, header) => {
    expect(await codeFor(header)).toBe("PGCLAIM_UNAUTHORIZED");
  });

  it("answers every wrong token in the same words", async () => {
    const ask = (authorization: string | undefined) =>
      checkBearer({ authorization, scopes: ["read"], secrets: { read: secret }, route: "/x", secretCommand: "set" });
    const messages = await Promise.all([undefined, "Basic x", "Bearer x", `Bearer ${secret}x`].map(ask));
    expect(new Set(messages.map((refusal) => refusal?.message)).size).toBe(1);
  });

  it.each([
    ["unset", undefined],
    ["empty", ""],
    ["white space", " \t\n"],
    ["the word undefined", "undefined"],
    ["the word null", "null"],
  ])("stays closed for every token while the secret is %s", async (_, value) => {
    for (const header of [undefined, "", "Bearer", "Bearer ", "Bearer undefined", "Bearer null", `Bearer ${value}`]) {
      expect(await codeFor(header, { trigger: value })).toBe("PGCLAIM_SECRET_MISSING");
    }
    expect(await codeFor("Bearer undefined", {})).toBe("PGCLAIM_SECRET_MISSING");
  });

  it("names the missing secret and how to set it", async () => {
    const refusal = await checkBearer({
      authorization: undefined,
      scopes: ["trigger"],
      secrets: {},
      route: "/api/trigger",
      secretCommand: "wrangler secret put",
    });
    expect(refusal?.message).toBe(
      "PGCLAIM_TRIGGER_SECRET is not set in this deployment, so /api/trigger stays closed. Set it: wrangler secret put PGCLAIM_TRIGGER_SECRET",
    );
  });

  it("ignores a newline around the configured secret", async () => {
    expect(await codeFor(`Bearer ${secret}`, { trigger: ` ${secret}\n` })).toBe("granted");
  });

  it("opens a route of two scopes with either, also when only the second has a secret", async () => {
    const ask = (token: string, secrets: Secrets) =>
      checkBearer({
        authorization: `Bearer ${token}`,
        scopes: ["read", "operate"],
        secrets,
        route: "/x",
        secretCommand: "set",
      });
    expect(await ask("r", { read: "r", operate: "o" })).toBeNull();
    expect(await ask("o", { read: "r", operate: "o" })).toBeNull();
    expect(await ask("o", { operate: "o" })).toBeNull();
    expect((await ask("x", { operate: "o" }))?.code).toBe("PGCLAIM_UNAUTHORIZED");
    // Two scopes that share one secret match twice.
    expect(await ask("same", { read: "same", operate: "same" })).toBeNull();
    expect((await ask("x", {}))?.message).toContain(secretNames.read);
  });
});
