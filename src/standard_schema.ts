// The part of the Standard Schema interface pgclaim uses, so that zod, valibot, arktype and others all fit.
// Source: standardschema.dev, version 1.

export interface StandardSchema<Input = unknown, Output = Input> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => Result<Output> | Promise<Result<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
  };
}

type Result<Output> = { readonly value: Output; readonly issues?: undefined } | { readonly issues: readonly Issue[] };

interface Issue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/** What a caller passes in. */
export type InputOf<S extends StandardSchema> = NonNullable<S["~standard"]["types"]>["input"];
/** What a handler gets. */
export type OutputOf<S extends StandardSchema> = NonNullable<S["~standard"]["types"]>["output"];

/** The first issue: where it is and what the schema says of it. Schemas name types there, not values. */
export interface SchemaIssue {
  readonly path: string;
  readonly message: string;
}

/** Validates a value. Answers the parsed output, or the first issue with its path below `root`. */
export async function validate<S extends StandardSchema>(
  schema: S,
  value: unknown,
  root: string,
): Promise<{ readonly ok: true; readonly value: OutputOf<S> } | { readonly ok: false; readonly issue: SchemaIssue }> {
  const result = await schema["~standard"].validate(value);
  if (result.issues === undefined) return { ok: true, value: result.value as OutputOf<S> };
  return { ok: false, issue: firstIssue(result.issues, root) };
}

/** The first issue of a schema that answers at once; null where it has none, or answers later. */
export function issueAtOnce(schema: StandardSchema, value: unknown, root: string): SchemaIssue | null {
  const result = schema["~standard"].validate(value);
  if (result instanceof Promise) {
    result.catch(() => {}); // it is asked again before it matters
    return null;
  }
  return result.issues === undefined ? null : firstIssue(result.issues, root);
}

function firstIssue([issue]: readonly Issue[], root: string): SchemaIssue {
  const steps = (issue?.path ?? []).map((step) => (typeof step === "object" ? step.key : step));
  const path = steps.reduce<string>(
    (at, step) => at + (typeof step === "number" ? `[${step}]` : `.${String(step)}`),
    root,
  );
  return { path, message: issue?.message ?? "the value does not fit the schema" };
}
