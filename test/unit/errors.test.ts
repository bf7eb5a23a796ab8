import { describe, expect, it } from "vitest";
import {
  DatabaseError,
  databaseError,
  describeError,
  errorCodes,
  isSessionOver,
  isTransient,
  toError,
  UsageError,
} from "../../src/errors.ts";

const sqlError = (code: string, more: Record<string, unknown> = {}) =>
  Object.assign(new Error("said"), { code, ...more });

describe("databaseError", () => {
  it.each([
    ["42P01", "PGCLAIM_SCHEMA_MISSING"],
    ["42883", "PGCLAIM_SCHEMA_MISSING"],
    ["3F000", "PGCLAIM_SCHEMA_MISSING"],
    ["42501", "PGCLAIM_PERMISSION_DENIED"],
    ["PC001", "PGCLAIM_WRONG_ISOLATION"],
    ["28P01", "PGCLAIM_AUTHENTICATION_FAILED"],
    ["28000", "PGCLAIM_AUTHENTICATION_FAILED"],
    ["08P01", "PGCLAIM_AUTHENTICATION_FAILED"],
    ["53200", "PGCLAIM_LOCKS_EXHAUSTED"],
    ["PC004", "PGCLAIM_TX_FOREIGN"],
    ["40001", "PGCLAIM_SERIALIZATION"],
    ["40P01", "PGCLAIM_SERIALIZATION"],
    ["57P01", "PGCLAIM_TX_LOST"],
    ["25P03", "PGCLAIM_TX_LOST"],
    ["08006", "PGCLAIM_TX_LOST"],
    ["22012", "PGCLAIM_QUERY_FAILED"],
  ])("%s is %s", (state, code) => {
    expect(databaseError(sqlError(state), "claiming")).toMatchObject({ code, cause: expect.anything() });
  });

  it("leaves detail, hint and parameters out of the message", () => {
    const error = sqlError("23505", { detail: "Key (email)=(secret@example.org) already exists.", hint: "secret" });
    expect(databaseError(error, "claiming").message).not.toContain("secret");
  });

  it("passes an error of ours on unchanged", () => {
    const error = new DatabaseError("PGCLAIM_NO_ANSWER", "x");
    expect(databaseError(error, "claiming")).toBe(error);
  });
});

describe("classification", () => {
  it("takes anything the server did not say for a broken connection", () => {
    expect(isSessionOver(new Error("Connection terminated unexpectedly"))).toBe(true);
    expect(isSessionOver({ type: "error" })).toBe(true);
    expect(isSessionOver(sqlError("57014"))).toBe(false);
    expect(isSessionOver(sqlError("25P02"))).toBe(false);
  });

  it("knows what may be repeated as it stands", () => {
    for (const state of ["08006", "40001", "40P01", "53200", "57014", "55P03"])
      expect(isTransient(sqlError(state))).toBe(true);
    for (const state of ["23505", "23503", "P0001", "22012", "PC004"]) expect(isTransient(sqlError(state))).toBe(false);
  });
});

describe("toError", () => {
  it("makes a real Error of an ErrorEvent, an empty one too", () => {
    const event = { type: "error", message: "" };
    expect(toError(event)).toBeInstanceOf(Error);
    expect(toError(event).message).toBe("the connection broke without a message");
    expect(toError("text").message).toBe("text");
    expect(toError(undefined)).toBeInstanceOf(Error);
    expect(describeError({ message: "Network connection lost." })).toBe("Network connection lost.");
  });
});

describe("codes", () => {
  it("have a family, and the family decides the HTTP status", () => {
    for (const [code, { family, status }] of Object.entries(errorCodes)) {
      expect(code).toMatch(/^PGCLAIM_[A-Z_]+$/);
      if (family === "database") expect(status).toBe(503);
    }
    expect(new UsageError("PGCLAIM_UNKNOWN_KIND", "x")).toMatchObject({
      family: "usage",
      retryable: false,
      name: "UsageError",
    });
  });
});
