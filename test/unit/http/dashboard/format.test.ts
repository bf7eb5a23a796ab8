import { describe, expect, it } from "vitest";
import {
  about,
  absolute,
  bytes,
  count,
  cut,
  duration,
  isZone,
  many,
  number,
  relative,
  slack,
  visible,
} from "../../../../src/http/dashboard/format.ts";

describe("duration", () => {
  it.each([
    [0, "0 ms"],
    [450, "450 ms"],
    [999.4, "999 ms"],
    [1_000, "1 s"],
    [12_300, "12.3 s"],
    [59_949, "59.9 s"],
    [59_960, "1 min"],
    [250_000, "4 min 10 s"],
    [3_599_600, "1 h"],
    [11_100_000, "3 h 5 min"],
    [187_200_000, "2 d 4 h"],
    [-3_000, "clock?"],
    [Number.NaN, "clock?"],
  ])("writes %d ms as %s", (ms, text) => expect(duration(ms)).toBe(text));
});

describe("instants", () => {
  const now = "2026-11-30T14:03:07.000Z";
  it.each([
    ["2026-11-30T14:02:26Z", "41 s ago"],
    ["2026-11-30T14:03:19.900Z", "in 12 s"],
    ["2026-11-30T14:03:06.500Z", "just now"],
    ["nonsense", "–"],
  ])("says of %s: %s", (at, text) => expect(relative(at, now)).toBe(text));

  it("writes the zone with the time", () => {
    expect(absolute(now, "UTC")).toBe("2026-11-30 14:03:07 UTC");
    expect(absolute(now, "Europe/Zurich")).toBe("2026-11-30 15:03:07 Europe/Zurich");
    expect(absolute("2026-11-30T00:00:00Z", "UTC")).toBe("2026-11-30 00:00:00 UTC");
  });

  it("knows which zones there are", () => {
    expect([isZone("UTC"), isZone("Europe/Zurich"), isZone("Mars/Olympus"), isZone("")]).toEqual([
      true,
      true,
      false,
      false,
    ]);
  });

  it("says what is left, and by how much it was missed", () => {
    expect([slack(38_000), slack(-120_000), slack(0)]).toEqual(["38 s left", "missed by 2 min", "0 s left"]);
  });
});

describe("numbers", () => {
  it("says where counting stopped", () => {
    expect(count({ n: 12_480, capped: false })).toBe("12,480");
    expect(count({ n: 100_000, capped: true })).toBe("100,000+");
    expect(many({ n: 1, capped: true }, "job")).toBe("1+ jobs");
    expect([many(1, "job"), many(37, "job")]).toEqual(["1 job", "37 jobs"]);
  });

  it("sets thousands apart, and gives one decimal", () => {
    expect([0, 999, 1_000, 1_234_567, 98.64, 1_200.04].map(number)).toEqual([
      "0",
      "999",
      "1,000",
      "1,234,567",
      "98.6",
      "1,200",
    ]);
  });

  it("rounds what is only estimated", () => {
    expect([about(null), about(-1), about(812), about(48_200), about(10_234_000)]).toEqual([
      "not known yet",
      "not known yet",
      "about 812",
      "about 48 thousand",
      "about 10.2 million",
    ]);
    expect([bytes(412), bytes(3_100_000)]).toEqual(["412 B", "3.1 MB"]);
  });
});

describe("text", () => {
  it("spells out what nobody could see", () => {
    expect(visible("a\u202eb\u0007c\u{e0041}d\ud800e\u00adf\u2028g")).toBe(
      "a\\u202eb\\u0007c\\u{e0041}d\\ud800e\\u00adf\\u2028g",
    );
  });

  it("leaves emoji, other scripts and, in blocks, lines alone", () => {
    expect(visible("👩‍💻 می‌خواهم שלום")).toBe("👩‍💻 می‌خواهم שלום");
    expect(visible("a\n\tb\r", true)).toBe("a\n\tb\\u000d");
  });

  it("cuts between characters, never inside one", () => {
    expect(cut("abcdef", 3)).toBe("abc…");
    expect(cut("ab😀cd", 3)).toBe("ab…");
    expect(cut("abc", 3)).toBe("abc");
  });
});
