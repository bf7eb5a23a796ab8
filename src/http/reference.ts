// The reference page of the API: the OpenAPI document as HTML, for people. Every text goes through hono/html, which escapes it;
// there is no script, and the style sheet is an address of its own, so that the strictest policy holds.

import { html } from "hono/html";
import { type Json, type JsonObject, openApiDocument } from "./openapi.ts";

type Html = ReturnType<typeof html>;

/** What the page may load: its style sheet, and nothing else. */
export const referenceHeaders = {
  "content-security-policy":
    "default-src 'none'; style-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
  "referrer-policy": "no-referrer",
} as const;

/** The page, made when it is first asked for; the document is the same for every deployment of this version. */
export function referencePage(): Html {
  const document = openApiDocument();
  const paths = Object.entries(object(document.paths)).flatMap(([path, methods]) =>
    Object.entries(object(methods)).map(([method, operation]) => ({ path, method, operation: object(operation) })),
  );
  const tags = list(document.tags).map((tag) => text(object(tag).name));
  const schemas = object(object(document.components).schemas);
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>pgclaim: HTTP API</title>
<link rel="stylesheet" href="api.css">
</head>
<body>
<a class="skip" href="#main">Skip to the routes</a>
<header><h1>pgclaim: HTTP API</h1>
<p>${text(object(document.info).description)} The same for programs: <a href="../openapi.json">openapi.json</a>.</p>
<nav aria-label="Groups of routes"><ul>${tags.map((tag) => html`<li><a href="#${anchor(tag)}">${tag}</a></li>`)}
<li><a href="#schemas">Schemas</a></li></ul></nav></header>
<main id="main">
${tags.map(
  (tag) => html`<section><h2 id="${anchor(tag)}">${tag}</h2>
${paths.filter(({ operation }) => list(operation.tags).includes(tag)).map(operationPart)}</section>`,
)}
<section><h2 id="schemas">Schemas</h2>
${Object.entries(schemas).map(
  ([name, schema]) => html`<article id="schema-${name}"><h3>${name}</h3>${schemaPart(object(schema))}</article>`,
)}</section>
</main>
</body>
</html>`;
}

function operationPart(of: { readonly path: string; readonly method: string; readonly operation: JsonObject }): Html {
  const { operation } = of;
  const scopes = list(operation.security).flatMap((one) => Object.keys(object(one)));
  const parameters = list(operation.parameters).map(object);
  const body = operation.requestBody === undefined ? null : object(operation.requestBody);
  return html`<article id="${text(operation.operationId)}">
<h3><code>${of.method.toUpperCase()} ${of.path}</code></h3>
<p>${text(operation.summary)}</p>
<p class="scope">${scopes.length === 0 ? "Open: no secret." : `Secret: ${scopes.join(" or ")}.`}</p>
${
  parameters.length === 0
    ? ""
    : html`<h4>Parameters</h4><dl>${parameters.map(
        (
          one,
        ) => html`<dt><code>${text(one.name)}</code> ${text(one.in)}${one.required === true ? ", required" : ""}</dt>
<dd>${schemaPart(object(one.schema))} ${text(one.description)}</dd>`,
      )}</dl>`
}
${body === null ? "" : html`<h4>Body${body.required === true ? "" : ", may be left out"}</h4>${contentPart(body)}`}
<h4>Answers</h4><dl>${Object.entries(object(operation.responses)).map(
    ([status, answer]) => html`<dt><code>${status}</code></dt>
<dd>${text(object(answer).description)} ${contentPart(object(answer))}</dd>`,
  )}</dl>
</article>
`;
}

function contentPart(of: JsonObject): Html[] {
  return Object.entries(object(of.content ?? {})).map(
    ([type, content]) =>
      html`${type === "application/json" ? "" : html`<code>${type}</code> `}${schemaPart(object(object(content).schema))}`,
  );
}

/** A schema: a link where it has a name, its fields where it is an object, else a phrase. */
function schemaPart(schema: JsonObject): Html {
  const { properties } = schema;
  if (properties === undefined) return phrase(schema);
  const required = list(schema.required ?? []);
  return html`<dl>${Object.entries(object(properties)).map(([name, field]) => {
    const inner = object(field);
    return html`<dt><code>${name}</code>${required.includes(name) ? "" : " optional"}</dt>
<dd>${schemaPart(inner)} ${text(inner.description)}</dd>`;
  })}</dl>`;
}

function phrase(schema: JsonObject): Html {
  if (schema.$ref !== undefined) {
    const name = text(schema.$ref).split("/").at(-1) ?? "";
    return html`<a href="#schema-${name}">${name}</a>`;
  }
  const choices = list(schema.anyOf ?? schema.oneOf ?? []).map(object);
  if (choices.length > 0) return html`${choices.map((one, i) => html`${i === 0 ? "" : " or "}${schemaPart(one)}`)}`;
  if (schema.type === "array") return html`a list of ${schemaPart(object(schema.items ?? {}))}`;
  if (schema.enum !== undefined) {
    return html`one of ${list(schema.enum).map((one, i) => html`${i === 0 ? "" : ", "}<code>${text(one)}</code>`)}`;
  }
  if (schema.const !== undefined) return html`<code>${JSON.stringify(schema.const)}</code>`;
  if (schema.type === "object" && typeof schema.additionalProperties === "object") {
    return html`an object whose fields are ${schemaPart(object(schema.additionalProperties))}`;
  }
  return html`${wordsOf(schema)}`;
}

function wordsOf(schema: JsonObject): string {
  const type = Array.isArray(schema.type) ? schema.type.map(text).join(" or ") : text(schema.type ?? "any JSON");
  const { minimum, maximum, maxLength, format } = schema;
  return [
    type,
    format === undefined ? "" : `(${text(format)})`,
    minimum === undefined || maximum === undefined ? "" : `${text(minimum)} to ${text(maximum)}`,
    maxLength === undefined ? "" : `of at most ${text(maxLength)} characters`,
  ]
    .filter((part) => part !== "")
    .join(" ");
}

function object(value: Json | undefined): JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonObject) : {};
}

function list(value: Json | undefined): readonly Json[] {
  return Array.isArray(value) ? value : [];
}

function text(value: Json | undefined): string {
  return value === undefined || typeof value === "object" ? "" : String(value);
}

function anchor(tag: string): string {
  return `tag-${tag.toLowerCase().replaceAll(" ", "-")}`;
}

/** The page's style sheet. The colours are the dashboard's; the contrast is 5.9:1 at least. */
export const referenceStyle = `:root{color-scheme:light dark;--text:#1b1f24;--muted:#57606a;--link:#0550ae;--line:#818b98;--ground:#fff}
@media (prefers-color-scheme:dark){:root{--text:#e6edf3;--muted:#9198a1;--link:#79c0ff;--line:#6e7681;--ground:#0d1117}}
body{margin:0 auto;max-width:60rem;padding:1rem;font:1rem/1.5 system-ui,sans-serif;color:var(--text);background:var(--ground);overflow-wrap:anywhere}
a{color:var(--link)}a:focus-visible{outline:2px solid;outline-offset:2px}
.skip{position:absolute;left:-99rem}.skip:focus{position:static}
code{font:.875em ui-monospace,monospace}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;list-style:none}nav a{display:inline-block;min-height:24px}
article{border-top:1px solid var(--line);padding:.5rem 0}h3{margin:.5rem 0;font-size:1rem}h4{margin:.5rem 0 0;font-size:.875rem}
p{margin:.25rem 0}dl{margin:0 0 0 1rem}dt{margin-top:.25rem}dd{margin:0 0 0 1rem}.scope,dd{color:var(--muted)}
`;
