import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { jsonText } from "../../../../src/http/dashboard/json_text.ts";

const plain = { redact: [], pretty: false };
const hide = (...redact: string[]) => ({ redact, pretty: false });

describe("jsonText", () => {
  it("keeps every digit", () => {
    expect(jsonText('{"n":9007199254740993,"m":1.10}', plain).text).toBe('{"n": 9007199254740993, "m": 1.10}');
  });

  it("hides what a path names, and says that it did", () => {
    const { text, redacted } = jsonText('{"account": {"iban": "DE02", "id": 7}, "iban": "x"}', hide("account.iban"));
    expect(text).toBe('{"account": {"iban": "redacted", "id": 7}, "iban": "x"}');
    expect(redacted).toEqual(["account.iban"]);
  });

  it("hides whole objects and lists, and goes on after them", () => {
    const source = '{"a": {"b": [1, {"c": "s"}], "d": {}}, "e": [{"f": "s"}, {"f": "t", "g": 1}], "h": 2}';
    expect(jsonText(source, hide("a", "e.f")).text).toBe(
      '{"a": "redacted", "e": [{"f": "redacted"}, {"f": "redacted", "g": 1}], "h": 2}',
    );
  });

  it("reads the escapes of a key, so that they hide nothing", () => {
    expect(jsonText('{"\\u0069ban": "DE02"}', hide("iban")).text).not.toContain("DE02");
  });

  it("hides in a text that was cut, wherever", () => {
    const source = '{"a": 1, "account": {"iban": "SECRET\\"SECRET", "list": ["SECRET"]}, "b": "ok"}';
    for (let end = 0; end <= source.length; end++) {
      expect(jsonText(source.slice(0, end), hide("account.iban", "account.list")).text).not.toContain("SEC");
    }
  });

  it("prints nothing but the same values, for any JSON", () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.boolean(), (value, pretty) => {
        const source = JSON.stringify(value);
        expect(JSON.parse(jsonText(source, { redact: [], pretty }).text)).toEqual(JSON.parse(source));
      }),
    );
  });

  it("takes ten thousand brackets without a page of indentation", () => {
    const deep = `${"[".repeat(10_000)}${"]".repeat(10_000)}`;
    expect(jsonText(deep, { redact: [], pretty: true }).text.length).toBeLessThan(1_000_000);
  });

  it("puts one member on a line", () => {
    expect(jsonText('{"a":[1,2],"b":{}}', { redact: [], pretty: true }).text).toBe(
      '{\n  "a": [\n    1,\n    2\n  ],\n  "b": {}\n}',
    );
  });
});
