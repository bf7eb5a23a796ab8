// The OpenAPI document, made of the table of routes when it is first asked for. Schemas become JSON Schema by zod itself:
// @hono/zod-openapi would bring zod's every language into the bundle, 79 KB gzipped where this is 2.

import * as z from "zod";
import { secretNames } from "./auth.ts";
import { contract } from "./contract.ts";
import type { Route } from "./route.ts";
import * as ask from "./schemas.ts";
import * as job from "./schemas_jobs.ts";
import * as state from "./schemas_state.ts";

/** JSON as the document has it. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };
export type JsonObject = { readonly [name: string]: Json };

/** Schemas with a name of their own in the document. */
const requests = {
  NewJob: ask.newJob,
  RedriveRequest: ask.redriveRequest,
  DiscardRequest: ask.discardRequest,
  CancelRequest: ask.cancelRequest,
  TriggerRequest: ask.triggerRequest,
} as const;
const answers = {
  Error: state.refused,
  Count: job.count,
  Job: job.jobAnswer,
  JobRow: job.jobRow,
  JobPage: job.jobPage,
  Lock: job.lockView,
  Action: job.actionView,
  Enqueued: job.enqueued,
  Operated: job.operated,
  BulkAnswer: job.bulkAnswer,
  DeadGroups: job.deadGroups,
  Key: job.keyRow,
  KeyPage: job.keyPage,
  Queue: state.queueRow,
  Kind: state.kindRow,
  Schedule: state.schedule,
  Trigger: state.triggerRow,
  Tick: state.tickRow,
  TickPage: state.tickPage,
  Invocation: state.invocation,
  Holders: state.holders,
  Series: state.series,
  Overview: state.overview,
  Report: state.report,
} as const;

let made: JsonObject | null = null;

/** The document, OpenAPI 3.1. The same for every deployment of this version. */
export function openApiDocument(): JsonObject {
  made ??= {
    openapi: "3.1.0",
    info: {
      title: "pgclaim",
      version: "1",
      description:
        "Bearer secrets by scope, never a cookie. Instants are ISO 8601 by the database's clock, lengths integer milliseconds, ids text. Every error is `{ error: { code, message, path? } }`.",
    },
    tags: [...new Set(Object.values(contract).map(({ tag }) => tag))].map((name) => ({ name })),
    paths: paths(),
    components: {
      schemas: { ...named(requests, "input"), ...named(answers, "output") },
      securitySchemes: Object.fromEntries(
        Object.entries(secretNames).map(([scope, name]) => [
          scope,
          { type: "http", scheme: "bearer", description: `The secret of ${name}.` },
        ]),
      ),
    },
  };
  return made;
}

function paths(): JsonObject {
  const all: Record<string, Record<string, Json>> = {};
  for (const [id, route] of Object.entries<Route>(contract)) {
    all[route.path] = { ...all[route.path], [route.method]: operation(id, route) };
  }
  return all;
}

function operation(id: string, route: Route): JsonObject {
  return {
    operationId: id,
    tags: [route.tag],
    summary: route.summary,
    security: route.scopes.map((scope) => ({ [scope]: [] })),
    parameters: [
      ...parameters("path", route.params),
      ...parameters("query", route.query),
      ...(route.payload === true ? [payloadParameter] : []),
      ...parameters("header", route.headers),
    ],
    ...(route.body === undefined
      ? {}
      : {
          requestBody: {
            required: route.bodyOptional !== true,
            content: { "application/json": { schema: schemaOf(route.body, "input") } },
          },
        }),
    responses: responses(route),
  };
}

const payloadParameter = {
  name: "payload.*",
  in: "query",
  required: false,
  description:
    "Contained in the payload: `payload.orderId=42` is the text 42, `payload.n:=42` the number, `payload.a.b=x` a field of a field. Looked for among the first 10,000 that match the rest.",
  schema: { type: "string" },
} as const;

function parameters(where: "path" | "query" | "header", of: z.ZodObject | undefined): JsonObject[] {
  return Object.entries(of?.shape ?? {}).map(([name, field]) => {
    const { description, ...schema } = schemaOf(field as z.ZodType, "input");
    return {
      name,
      in: where,
      required: where === "path",
      ...(description === undefined ? {} : { description }),
      schema,
    };
  });
}

function responses(route: Route): JsonObject {
  const error = (description: string) => ({
    description,
    content: { "application/json": { schema: { $ref: "#/components/schemas/Error" } } },
  });
  const takesInput = [route.params, route.query, route.headers, route.body].some((part) => part !== undefined);
  const ofEvery: Record<string, JsonObject> = {
    ...(takesInput ? { 400: error("Something in the request is wrong; `path` says what.") } : {}),
    ...(route.body === undefined
      ? {}
      : { 413: error("The body or a payload is too large."), 415: error("The body is no JSON in UTF-8.") }),
    ...(route.scopes.length === 0
      ? {}
      : {
          401: error("The bearer token is missing or wrong."),
          500: error("A fault of pgclaim or of its deployment, which is in its log."),
          503: error("The database is in trouble, or the secret or the schema is missing. `retry-after`: try again."),
        }),
  };
  const own = Object.entries(route.errors ?? {}).map(([status, codes]) => [status, error(codes)]);
  const good = Object.entries(route.answers).map(([status, schema]) => [status, success(schema)]);
  return { ...ofEvery, ...Object.fromEntries(own), ...Object.fromEntries(good) };
}

function success(schema: z.ZodType): JsonObject {
  const json = schemaOf(schema, "output");
  const type = json.type === "string" ? "text/plain" : "application/json";
  return { description: "Done.", content: { [type]: { schema: json } } };
}

type Direction = "input" | "output";

function optionsOf(io: Direction) {
  return { io, unrepresentable: "any", override: tidy } as const;
}

/** One schema, with references to those that have a name. */
function schemaOf(schema: z.ZodType, io: Direction): JsonObject {
  const registry = registryOf(io === "input" ? requests : answers);
  const known = registry.get(schema);
  if (known !== undefined) return { $ref: refOf(known.id) };
  registry.add(schema, { id: "this" });
  const { schemas } = z.toJSONSchema(registry, { ...optionsOf(io), uri: refOf });
  return clean(schemas.this);
}

function named(schemas: Readonly<Record<string, z.ZodType>>, io: Direction): JsonObject {
  const json = z.toJSONSchema(registryOf(schemas), { ...optionsOf(io), uri: refOf });
  return Object.fromEntries(Object.entries(json.schemas).map(([name, schema]) => [name, clean(schema)]));
}

function registryOf(schemas: Readonly<Record<string, z.ZodType>>) {
  const registry = z.registry<{ id: string }>();
  for (const [id, schema] of Object.entries(schemas)) registry.add(schema, { id });
  return registry;
}

function refOf(id: string): string {
  return `#/components/schemas/${id}`;
}

function clean(schema: unknown): JsonObject {
  const { $schema, $id, ...rest } = schema as Record<string, Json>;
  return rest;
}

/**
 * What zod says that a reader does not need: the bounds of every integer, a pattern beside its format, and that answers have
 * no further fields, since a later version's may.
 */
function tidy({
  zodSchema,
  jsonSchema,
}: {
  readonly zodSchema: z.core.$ZodType;
  jsonSchema: z.core.JSONSchema.BaseSchema;
}) {
  if (jsonSchema.minimum === Number.MIN_SAFE_INTEGER) delete jsonSchema.minimum;
  if (jsonSchema.maximum === Number.MAX_SAFE_INTEGER) delete jsonSchema.maximum;
  if (jsonSchema.format === "date-time") delete jsonSchema.pattern;
  // Of a list in the types; in the document it would mean a field that is never sent.
  delete jsonSchema.readOnly;
  const { def } = zodSchema._zod;
  if (def.type === "object" && !("catchall" in def && def.catchall !== undefined))
    delete jsonSchema.additionalProperties;
}
