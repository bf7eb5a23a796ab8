// What a route is: its address, who may call it, what it takes and what it answers. Routes are data, so that the app, the
// document and the client's types cannot disagree. Types only, but for the one helper that keeps them narrow.

import type { Hono } from "hono";
import type { Schema } from "hono/types";
import type { StatusCode } from "hono/utils/http-status";
import type * as z from "zod";
import type { Scope } from "./auth.ts";
import type { ErrorBody } from "./respond.ts";

export interface Route {
  readonly method: "get" | "post";
  /** As in the document: `/api/jobs/{id}`. */
  readonly path: string;
  /** Those that open it. The first is the one a refusal names as missing. None: it is open. */
  readonly scopes: readonly Scope[];
  readonly tag: string;
  readonly summary: string;
  /** What of the address is checked, and by which name a refusal calls it. */
  readonly params?: z.ZodObject;
  /** Not given: what stands behind the question mark is not looked at. */
  readonly query?: z.ZodObject;
  /** Whether `payload.<path>` are parameters too. */
  readonly payload?: true;
  readonly headers?: z.ZodObject;
  readonly body?: z.ZodType;
  /** Whether a body may be left out. */
  readonly bodyOptional?: true;
  /** Whether the route checks the body itself, because a union's refusals say nothing. */
  readonly raw?: true;
  /** Whether HEAD, which Hono answers by GET, would do the work. */
  readonly noHead?: true;
  /** Status -> schema. Text where the schema is a string, JSON otherwise. */
  readonly answers: Readonly<Record<number, z.ZodType>>;
  /** Statuses of errors that are its own, with their codes; those of every route go without saying. */
  readonly errors?: Readonly<Record<number, string>>;
}

/** Keeps the literals of a route, which the client's types are made of. */
export function route<const R extends Route>(spec: R): R {
  return spec;
}

type OutputOf<S> = S extends z.ZodType ? z.output<S> : undefined;
export type ParamsOf<R extends Route> = OutputOf<R["params"]>;
export type QueryOf<R extends Route> = OutputOf<R["query"]> &
  (R extends { payload: true } ? { readonly payload?: Readonly<Record<string, unknown>> } : unknown);
export type HeadersOf<R extends Route> = OutputOf<R["headers"]>;
export type BodyOf<R extends Route> = R extends { raw: true }
  ? unknown
  : OutputOf<R["body"]> | (R extends { bodyOptional: true } ? undefined : never);

/** What a handler answers: a status of the route's with its body, or a Response it made itself. */
export type Reply<R extends Route> =
  | {
      [S in keyof R["answers"] & number]: { readonly status: S; readonly body: OutputOf<R["answers"][S]> };
    }[keyof R["answers"] & number]
  | Response;

type Colons<Path extends string> = Path extends `${infer Start}{${infer Name}}${infer Rest}`
  ? `${Start}:${Name}${Colons<Rest>}`
  : Path;

type In<Name extends string, S> = S extends z.ZodType ? { readonly [K in Name]: z.input<S> } : unknown;
type QueryIn<R extends Route> = R extends { payload: true; query: infer S extends z.ZodType }
  ? { readonly query?: z.input<S> & { readonly [path: `payload.${string}`]: string } }
  : R extends { query: infer S extends z.ZodType }
    ? keyof z.input<S> extends never
      ? unknown
      : { readonly query?: z.input<S> }
    : unknown;
type JsonIn<R extends Route> = R extends { bodyOptional: true; body: infer S extends z.ZodType }
  ? { readonly json?: z.input<S> }
  : In<"json", R["body"]>;
type Input<R extends Route> = In<"param", R["params"]> & QueryIn<R> & JsonIn<R> & HeaderIn<R>;
type HeaderIn<R extends Route> = R extends { headers: infer S extends z.ZodType }
  ? { readonly header?: z.input<S> }
  : unknown;

type FormatOf<Body> = Body extends string ? "text" : "json";
type Endpoint<R extends Route> =
  | {
      [S in keyof R["answers"] & StatusCode]: {
        input: Input<R>;
        output: OutputOf<R["answers"][S]>;
        outputFormat: FormatOf<OutputOf<R["answers"][S]>>;
        status: S;
      };
    }[keyof R["answers"] & StatusCode]
  | {
      input: Input<R>;
      output: ErrorBody;
      outputFormat: "json";
      status: Exclude<400 | 401 | 404 | 409 | 413 | 415 | 500 | 503, keyof R["answers"]>;
    };

type Intersection<U> = (U extends unknown ? (one: U) => void : never) extends (all: infer I) => void ? I : never;
type SchemaOf<Routes extends Readonly<Record<string, Route>>> = Intersection<
  {
    [K in keyof Routes]: {
      [P in Colons<Routes[K]["path"]>]: { [M in `$${Routes[K]["method"]}`]: Endpoint<Routes[K]> };
    };
  }[keyof Routes]
>;

/** The app of these routes as Hono's client sees it. */
export type AppOf<Routes extends Readonly<Record<string, Route>>> =
  SchemaOf<Routes> extends infer S extends Schema ? Hono<object, S, "/"> : never;
