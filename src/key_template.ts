// Templates of keys and lock names: account:{account}. Checked here, at compile time and when a kind is defined; rendered
// in the database only, so that a job enqueued from SQL gets the same keys.

import { show } from "./duration.ts";
import { UsageError } from "./errors.ts";

/** Paths of a payload's texts, numbers and booleans: `account`, `customer.id`. */
type PathOf<P> = P extends object
  ? {
      [K in keyof P & string]: NonNullable<P[K]> extends string | number | boolean
        ? K
        : NonNullable<P[K]> extends readonly unknown[]
          ? never
          : NonNullable<P[K]> extends object
            ? `${K}.${PathOf<NonNullable<P[K]>>}`
            : never;
    }[keyof P & string]
  : never;

type Placeholder<T extends string> = T extends `${string}{${infer Name}}${infer Rest}`
  ? Name | Placeholder<Rest>
  : never;

/** A template whose placeholders are paths of the payload; anything else is a type that names the wrong one. */
export type KeyTemplate<T extends string, P> = string extends T
  ? T
  : [Exclude<Placeholder<T>, PathOf<P>>] extends [never]
    ? T
    : `{${Exclude<Placeholder<T>, PathOf<P>>}} is no text, number or boolean of the payload`;

/** Characters of a template. A rendered key has at most 500 bytes. */
export const maxTemplateLength = 200;

/**
 * Checks a template: placeholders are paths, and two of them have a sign between them, since `{a}{b}` would make one key
 * of (1, 23) and (12, 3). Errors: PGCLAIM_INVALID_OPTION.
 */
export function keyTemplate(value: unknown, where: string): string {
  const refuse = (why: string): UsageError =>
    new UsageError("PGCLAIM_INVALID_OPTION", `${where} is ${show(value)}; ${why}, for example "account:{account}".`, {
      path: where,
    });
  if (typeof value !== "string" || value === "") throw refuse("expected a template");
  if (value.length > maxTemplateLength) throw refuse(`expected at most ${maxTemplateLength} characters`);
  if (value.startsWith("@")) throw refuse("names that begin with @ are pgclaim's own");
  if (value.includes("\0") || !value.isWellFormed()) throw refuse("the text cannot be stored");
  const literals = value.split(/\{[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*\}/);
  if (literals.some((literal) => /[{}]/.test(literal)))
    throw refuse("a placeholder is a path of the payload in braces");
  if (literals.slice(1, -1).some((between) => !/[^A-Za-z0-9%]/.test(between))) {
    throw refuse("two placeholders need a sign such as : between them");
  }
  return value;
}
