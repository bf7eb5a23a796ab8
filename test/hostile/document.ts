// The API's own OpenAPI document, turned against it: requests drawn from its schemas, as they are and spoilt, and a checker of
// answers that shares nothing with the code that makes the document.

import fc from "fast-check";
import { openApiDocument } from "../../src/http/openapi.ts";
import { type Scope, secrets } from "../unit/http/support.ts";
import { edgeNumber, hostileText, jsonOf, storableText } from "./support.ts";

interface Schema {
  readonly [keyword: string]: unknown;
}

interface Content {
  readonly content?: Readonly<Record<string, { readonly schema: Schema }>>;
}

export interface Operation {
  readonly id: string;
  readonly method: string;
  readonly path: string;
  readonly scopes: readonly Scope[];
  readonly parameters: readonly {
    readonly name: string;
    readonly in: "path" | "query" | "header";
    readonly required: boolean;
    readonly schema: Schema;
  }[];
  readonly requestBody?: Content & { readonly required: boolean };
  readonly responses: Readonly<Record<string, Content>>;
}

const document = openApiDocument() as unknown as {
  readonly paths: Readonly<
    Record<
      string,
      Readonly<Record<string, Omit<Operation, "scopes"> & { operationId: string; security: Record<Scope, unknown>[] }>>
    >
  >;
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> };
};

export const operations: readonly Operation[] = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({
    ...operation,
    id: operation.operationId,
    method: method.toUpperCase(),
    path,
    scopes: operation.security.flatMap((one) => Object.keys(one) as Scope[]),
  })),
);

function resolved(schema: Schema): Schema {
  if (typeof schema.$ref !== "string") return schema;
  const found = document.components.schemas[schema.$ref.replace("#/components/schemas/", "")];
  if (found === undefined) throw new Error(`no schema ${schema.$ref}`);
  return found;
}

const annotations = ["description", "examples", "title", "default"];
const known = new Set([
  ...["$ref", "type", "enum", "const", "anyOf", "properties", "required", "additionalProperties", "propertyNames"],
  ...[
    "items",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
  ],
  ...annotations,
]);

/** What of a value its schema does not allow, the first fault only; null if nothing. A field that is not named is a fault. */
export function faultOf(given: Schema, value: unknown, at = "$"): string | null {
  const schema = resolved(given);
  for (const keyword of Object.keys(schema))
    if (!known.has(keyword)) throw new Error(`no check of "${keyword}" at ${at}`);
  if (Array.isArray(schema.anyOf)) {
    const faults = (schema.anyOf as Schema[]).map((one) => faultOf(one, value, at));
    return faults.includes(null) ? null : faults.join(" and ");
  }
  const types = [schema.type ?? []].flat() as string[];
  if (types.length > 0 && !types.some((type) => isOf(type, value))) {
    return `${at} is ${value === null ? "null" : typeof value}, not ${types.join(" or ")}`;
  }
  if (Array.isArray(schema.enum) && !schema.enum.includes(value))
    return `${at} is ${String(value)}, none of ${schema.enum}`;
  if ("const" in schema && schema.const !== value) return `${at} is not ${schema.const}`;
  if (typeof value === "string") return faultOfText(schema, value, at);
  if (typeof value === "number") {
    const isIn = value >= Number(schema.minimum ?? -Infinity) && value <= Number(schema.maximum ?? Infinity);
    return isIn ? null : `${at} is out of its range`;
  }
  if (Array.isArray(value)) {
    for (const [i, one] of value.entries()) {
      const fault = faultOf((schema.items ?? {}) as Schema, one, `${at}[${i}]`);
      if (fault !== null) return fault;
    }
    return null;
  }
  return typeof value === "object" && value !== null ? faultOfObject(schema, value, at) : null;
}

function isOf(type: string, value: unknown): boolean {
  switch (type) {
    case "integer":
      return Number.isInteger(value);
    case "array":
      return Array.isArray(value);
    case "null":
      return value === null;
    case "object":
      return typeof value === "object" && value !== null && !Array.isArray(value);
    default:
      return typeof value === type;
  }
}

function faultOfText(schema: Schema, value: string, at: string): string | null {
  if (typeof schema.pattern === "string" && !new RegExp(schema.pattern).test(value))
    return `${at} fits not ${schema.pattern}`;
  const isInstant = /^\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/.test(value);
  return schema.format === "date-time" && !isInstant ? `${at} is no instant: ${value}` : null;
}

function faultOfObject(schema: Schema, value: object, at: string): string | null {
  const properties = (schema.properties ?? {}) as Readonly<Record<string, Schema>>;
  for (const name of (schema.required ?? []) as string[])
    if (!Object.hasOwn(value, name)) return `${at} has no ${name}`;
  for (const [name, one] of Object.entries(value)) {
    const more = schema.additionalProperties;
    const field = properties[name] ?? (typeof more === "object" ? (more as Schema) : null);
    if (field === null) {
      if (schema.properties !== undefined) return `${at}.${name} is not documented`;
      continue;
    }
    const fault = faultOf(field, one, `${at}.${name}`);
    if (fault !== null) return fault;
    const nameFault =
      schema.propertyNames === undefined ? null : faultOf(schema.propertyNames as Schema, name, `name ${at}.${name}`);
    if (nameFault !== null) return nameFault;
  }
  return null;
}

/** What is likely to be there: the ids, names and keys of the test's database. */
export type Likely = Readonly<Record<string, readonly string[]>>;

/** A value as its schema says. `name` is the parameter's or the field's. */
function drawnValue(given: Schema, likely: Likely, name: string): fc.Arbitrary<unknown> {
  const schema = resolved(given);
  const there = likely[name];
  const drawn = drawnOf(schema, likely);
  return there === undefined || schema.type !== "string"
    ? drawn
    : fc.oneof({ weight: 3, arbitrary: fc.constantFrom(...there) }, { weight: 1, arbitrary: drawn });
}

function drawnOf(schema: Schema, likely: Likely): fc.Arbitrary<unknown> {
  if (Array.isArray(schema.anyOf))
    return fc.oneof(...(schema.anyOf as Schema[]).map((one) => drawnOf(resolved(one), likely)));
  if (Array.isArray(schema.enum)) return fc.constantFrom(...(schema.enum as unknown[]));
  switch (schema.type) {
    case "string":
      return textOf(schema);
    case "boolean":
      return fc.boolean();
    case "integer":
      return fc.integer({ min: Number(schema.minimum ?? -1e6), max: Number(schema.maximum ?? 1e6) });
    case "array":
      return fc.array(drawnValue(schema.items as Schema, likely, ""), {
        minLength: Number(schema.minItems ?? 0),
        maxLength: 3,
      });
    case "object":
      return objectOf(schema, likely);
    default:
      return jsonOf(storableText, 2);
  }
}

function objectOf(schema: Schema, likely: Likely): fc.Arbitrary<unknown> {
  const properties = Object.entries((schema.properties ?? {}) as Record<string, Schema>);
  if (properties.length === 0 && schema.additionalProperties !== false) {
    return fc.dictionary(fc.constantFrom("k", "n", "a"), jsonOf(storableText, 1), { maxKeys: 2 });
  }
  return fc
    .record(Object.fromEntries(properties.map(([name, one]) => [name, drawnValue(one, likely, name)])), {
      requiredKeys: (schema.required ?? []) as string[],
    })
    .filter((drawn) => Object.keys(drawn).length >= Number(schema.minProperties ?? 0));
}

function textOf(schema: Schema): fc.Arbitrary<string> {
  if (schema.format === "date-time") {
    const range = { min: new Date("2020-01-01T00:00:00Z"), max: new Date("2040-01-01T00:00:00Z"), noInvalidDate: true };
    return fc.date(range).map((date) => date.toISOString());
  }
  // Patterns have lengths of thousands, of which the first characters are the interesting ones.
  if (typeof schema.pattern === "string") {
    return fc.stringMatching(
      new RegExp(schema.pattern.replace(/\{1,\d{3,}\}/g, "{1,40}").replace(/^\^\\d\+/, "^\\d{1,3}")),
    );
  }
  return storableText.filter((text) => text.length >= 1 && text.length <= Number(schema.maxLength ?? 500));
}

export interface DrawnRequest {
  readonly operation: Operation;
  readonly spoilt: boolean;
  readonly target: string;
  readonly scope: Scope | null;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: unknown;
}

type Spoil = "value" | "extra" | "missing" | "body" | "secret";

/** A request of an operation as the document has it, or with one thing spoilt. */
export function requestOf(operation: Operation, likely: Likely): fc.Arbitrary<DrawnRequest> {
  const parameters = operation.parameters.map((parameter) =>
    fc.record({
      parameter: fc.constant(parameter),
      given: parameter.required ? fc.constant(true) : fc.nat(3).map((one) => one === 0),
      value: drawnValue(parameter.schema, likely, parameter.name).map(String),
    }),
  );
  const schema = operation.requestBody?.content?.["application/json"]?.schema;
  return fc
    .record({
      parameters: fc.tuple(...parameters),
      body: schema === undefined ? fc.constant(undefined) : drawnValue(schema, likely, ""),
      hasBody: operation.requestBody?.required === false ? fc.boolean() : fc.constant(schema !== undefined),
      spoil: fc.oneof(
        { weight: 3, arbitrary: fc.constant(null) },
        { weight: 2, arbitrary: fc.constantFrom<Spoil>("value", "extra", "missing", "body", "secret") },
      ),
      scope: fc.nat(1),
      nth: fc.nat(5),
      text: hostileText,
      json: fc.oneof(jsonOf(hostileText), edgeNumber),
    })
    .map(({ spoil, scope, nth, text, json, ...drawn }): DrawnRequest => {
      const spoiltAt = spoil === "value" ? nth % Math.max(1, drawn.parameters.length) : -1;
      const given = drawn.parameters
        .map((one, i) => (i === spoiltAt ? { ...one, given: true, value: text } : one))
        .filter((one) => one.given);
      const path = given.reduce(
        (all, { parameter, value }) =>
          parameter.in === "path" ? all.replace(`{${parameter.name}}`, () => segmentOf(value)) : all,
        operation.path,
      );
      const query = new URLSearchParams(
        given
          .filter(({ parameter }) => parameter.in === "query")
          .map(({ parameter, value }): [string, string] => [parameter.name, value]),
      );
      if (spoil === "extra") query.append(text.slice(0, 50), "x");
      // A header that is none is refused by the platform, long before this API.
      const headers = given
        .filter(({ parameter, value }) => parameter.in === "header" && /^[\x20-\x7e]*$/.test(value))
        .map(({ parameter, value }) => [parameter.name, value]);
      return {
        operation,
        spoilt: spoil !== null,
        target: `${path}${query.size === 0 ? "" : `?${query}`}`,
        scope: spoil === "secret" ? null : (operation.scopes[scope % Math.max(1, operation.scopes.length)] ?? null),
        headers: Object.fromEntries(headers),
        body: schema === undefined || !drawn.hasBody ? undefined : spoiltBody(spoil, drawn.body, json, text, nth),
      };
    });
}

/** Nothing, and dots, would make it another address. */
function segmentOf(value: string): string {
  return /^\.*$/.test(value) ? "%20" : encodeURIComponent(value.toWellFormed());
}

function spoiltBody(spoil: Spoil | null, body: unknown, json: unknown, text: string, nth: number): unknown {
  if (spoil === "body") return json;
  if (typeof body !== "object" || body === null || Array.isArray(body)) return body;
  const entries = Object.entries(body);
  if (spoil === "missing") return Object.fromEntries(entries.filter((_, i) => i !== nth % Math.max(1, entries.length)));
  if (spoil === "extra") return { ...body, [text]: json };
  if (spoil === "value")
    return Object.fromEntries(entries.map(([k, v], i) => [k, i === nth % entries.length ? json : v]));
  return body;
}

export function initOf({ operation, scope, headers, body }: DrawnRequest): RequestInit {
  return {
    method: operation.method,
    headers: {
      ...headers,
      ...(scope === null ? {} : { authorization: `Bearer ${secrets[scope]}` }),
      ...(body === undefined ? {} : { "content-type": "application/json" }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) ?? "null" }),
  };
}

/** What of an answer the document does not say; null if it says all of it. */
export async function surpriseOf(operation: Operation, answer: Response): Promise<string | null> {
  const documented = operation.responses[String(answer.status)];
  const text = await answer.text();
  if (documented === undefined) return `status ${answer.status} is not documented: ${text.slice(0, 300)}`;
  const type = (answer.headers.get("content-type") ?? "").split(";")[0] ?? "";
  const schema = documented.content?.[type]?.schema;
  if (schema === undefined) return `a ${type} with status ${answer.status} is not documented`;
  const fault = faultOf(schema, type === "application/json" ? JSON.parse(text) : text);
  return fault === null ? null : `status ${answer.status}: ${fault}`;
}
