// What Postgres can store as JSON, checked where it enters; and text made storable where it is our own. Pure.

import { UsageError } from "./errors.ts";

/** Nesting of a payload; deeper is a mistake, and Postgres has a stack limit of its own. */
export const maxPayloadDepth = 100;

/** Characters of an error message that are kept. */
export const maxErrorLength = 16_384;

/**
 * Refuses a value that would not come back from jsonb as it went in, naming the path of the fault and never the value. `job`
 * is the kind whose payload it is, null for what is only looked for.
 *
 * Errors: PGCLAIM_INVALID_PAYLOAD for NUL and lone surrogates, bigint, NaN and infinities, cycles, functions, symbols,
 *         instances (Date, Map, ...), undefined in arrays, and nesting over 100 levels.
 */
export function assertStorable(value: unknown, path: string, job: string | null): void {
  const subject = job === null ? "" : `job "${job}": `;
  walk(value, path, []);

  function walk(node: unknown, at: string, above: readonly object[]): void {
    const refuse = (what: string, todo: string): UsageError =>
      new UsageError("PGCLAIM_INVALID_PAYLOAD", `${subject}${at}: ${what}; ${todo}`, { path: at });
    switch (typeof node) {
      case "string":
        if (isUnsafe(node))
          throw refuse(
            "the text has a NUL character or half of a surrogate pair, which Postgres cannot store",
            "remove or encode it.",
          );
        return;
      case "number":
        if (!Number.isFinite(node)) throw refuse(`${node} is no JSON number`, "expected a finite number.");
        return;
      case "boolean":
        return;
      case "bigint":
        throw refuse("a bigint is no JSON value", "send it as text.");
      case "undefined":
      case "function":
      case "symbol":
        throw refuse(
          `${typeof node} is no JSON value`,
          "expected text, a number, true, false, null, an array or an object.",
        );
      case "object":
        break;
    }
    if (node === null) return;
    if (above.includes(node)) throw refuse("the value contains itself", "send a tree.");
    if (above.length >= maxPayloadDepth)
      throw refuse(`nested deeper than ${maxPayloadDepth} levels`, "send a flatter value.");
    const inside = [...above, node];
    if (Array.isArray(node)) {
      for (let i = 0; i < node.length; i++) walk(node[i], `${at}[${i}]`, inside);
      return;
    }
    const prototype = Object.getPrototypeOf(node);
    if (prototype !== Object.prototype && prototype !== null) {
      const name = (node as { constructor?: { name?: string } }).constructor?.name ?? "an object";
      throw refuse(`${name} is no JSON value`, name === "Date" ? "send date.toISOString()." : "send a plain object.");
    }
    for (const [key, child] of Object.entries(node)) {
      if (isUnsafe(key)) throw refuse("a key has a NUL character or half of a surrogate pair", "remove or encode it.");
      // JSON leaves out an undefined property, and that is what people mean by one.
      if (child !== undefined) walk(child, `${at}.${key}`, inside);
    }
  }
}

function isUnsafe(text: string): boolean {
  return text.includes("\0") || !text.isWellFormed();
}

/** Makes our own text storable: recording a failure can never fail. NUL becomes U+2400, half a surrogate U+FFFD. */
export function storableText(text: string, limit = maxErrorLength): string {
  const cut = text.length > limit ? `${text.slice(0, limit)} ...` : text;
  return cut.replaceAll("\0", "\u2400").toWellFormed();
}
