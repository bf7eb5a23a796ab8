// Requests that nobody's client would send: arbitrary methods, paths between the routes, headers that mean something to
// somebody else's router, bodies of every kind. And what every answer must look like.

import fc from "fast-check";
import { expect } from "vitest";
import { type Scope, secrets } from "../unit/http/support.ts";
import { edgeNumber, hostileText, jsonOf, storableText } from "./support.ts";

/** Stands in payloads only, so an answer or a log line that has it has told somebody's payload. */
export const marker = "PAYLOAD-OF-SOMEBODY";

export interface HostileRequest {
  readonly method: string;
  /** As it stands in the request line, query included. */
  readonly target: string;
  readonly headers: readonly (readonly [name: string, value: string])[];
  /** Whose secret it has, in a form that must be taken. Null: in no such form. */
  readonly scope: Scope | null;
  readonly body: Uint8Array | null;
  /** Whether the body comes in pieces and without a length. */
  readonly streamed: boolean;
}

const scopes = Object.keys(secrets) as Scope[];

const method = fc.oneof(
  { weight: 8, arbitrary: fc.constantFrom("POST", "GET") },
  {
    weight: 2,
    arbitrary: fc.constantFrom("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "PROPFIND", "post", "Get", "QUERY"),
  },
);

const id = fc.oneof(
  fc.constantFrom(
    "1",
    "2",
    "3",
    "0",
    "-1",
    "01",
    "1.0",
    "1e3",
    "9223372036854775807",
    "9223372036854775808",
    "NaN",
    "null",
  ),
  fc.constantFrom("1%00", "1%27", "1;--", "1%2Fretry", "%31", "1%20", "\u0661", "9".repeat(400), "1,2", "1?x"),
);
const name = fc.oneof(
  fc.constantFrom(
    "default",
    "nightly",
    "a.b:c-d_e",
    "__proto__",
    "constructor",
    "x".repeat(100),
    "x".repeat(101),
    "x".repeat(300),
  ),
  fc.constantFrom("%27%3B--", "%00", "%ff", "%c3%28", "a%2Fpause", "..", "%2e%2e", "a b", "*", "%", "%%", "default%2f"),
);

const route = fc.oneof(
  fc.constantFrom(
    "/api/trigger",
    "/api/cron",
    "/api/jobs",
    "/api/schedules",
    "/healthz",
    "/",
    "/api",
    "/api/",
    "/admin",
  ),
  fc.constantFrom("/api/jobs/:id", "/api/jobs/:id/retry", "/__proto__", "/api/constructor", "*", "/api/*"),
  id.map((text) => `/api/jobs/${text}`),
  fc
    .tuple(id, fc.constantFrom("retry", "discard", "skip", "cancel", "reschedule", "payload", "delete", ""))
    .map(([text, verb]) => `/api/jobs/${text}/${verb}`),
  fc
    .tuple(fc.constantFrom("queues", "schedules"), name, fc.constantFrom("pause", "resume", "run", "drop"))
    .map(([what, text, verb]) => `/api/${what}/${text}/${verb}`),
  { weight: 1, arbitrary: fc.webPath() },
);

/** Other ways to write an address, some of which other routers take for the same. */
const tricks: readonly ((path: string) => string)[] = [
  (path) => `${path}/`,
  (path) => `/${path}`,
  (path) => path.replaceAll("/", "//"),
  (path) => path.replace("/api", "/api/."),
  (path) => path.replace("/api", "/x/../api"),
  (path) => path.replace("/api", "/x/%2e%2e/api"),
  (path) => path.replace("/api/", "/api%2F"),
  (path) => path.replace("/api/", "/api%5C"),
  (path) => path.replace("/api/", "\\api\\"),
  (path) => path.replace("a", "%61"),
  (path) => path.replace("j", "%6a"),
  (path) => path.replace("/api", "/%61%70%69"),
  (path) => path.replace("%", "%25"),
  (path) => path.toUpperCase(),
  (path) => path.replace("api", "Api"),
  (path) => `${path};jsessionid=1`,
  (path) => `${path}.json`,
  (path) => `${path}%00`,
  (path) => `${path}%0d%0ax-injected:%201`,
  (path) => `${path}?_method=POST`,
  (path) => `${path}?id=1&scope=operate&authorization=Bearer%20${secrets.operate}`,
  (path) => `${path}#/api/jobs/1/cancel`,
  (path) => `/healthz/..${path}`,
  (path) => `/healthz%2f..${path}`,
  (path) => `${path}/../trigger`,
  (path) => `${path}${"/x".repeat(500)}`,
  (path) => `${path}?${"q=1&".repeat(2_000)}`,
];

const target = route;

/** Text a header can carry: Latin-1 without control characters. */
const headerText = fc.oneof(
  fc.string({ maxLength: 30 }),
  fc.string({
    unit: fc
      .integer({ min: 0x20, max: 0xff })
      .filter((c) => c !== 0x7f)
      .map((c) => String.fromCharCode(c)),
    maxLength: 30,
  }),
  fc.constantFrom("x".repeat(8_000), "\u00ff".repeat(100), "a\tb"),
);

interface Credentials {
  readonly scope: Scope | null;
  readonly headers: readonly (readonly [string, string])[];
}

const credentials: fc.Arbitrary<Credentials> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc
      .tuple(
        fc.constantFrom(...scopes),
        fc.constantFrom("Bearer ", "bearer ", "BEARER ", "Bearer    "),
        fc.constantFrom("", " ", "\t"),
      )
      .map(([scope, scheme, end]) => ({
        scope,
        headers: [["authorization", `${scheme}${secrets[scope]}${end}`] as const],
      })),
  },
  { weight: 1, arbitrary: fc.constant({ scope: null, headers: [] }) },
  {
    weight: 2,
    arbitrary: fc
      .tuple(
        fc.constantFrom(...scopes),
        fc.constantFrom<(secret: string) => string>(
          (secret) => secret,
          (secret) => `Basic ${btoa(`:${secret}`)}`,
          (secret) => `Bearer\t${secret}`,
          (secret) => `Bearer${secret}`,
          (secret) => `Bearer "${secret}"`,
          (secret) => `Bearer ${secret}\u00e9`,
          (secret) => `Bearer \u00e9${secret}`,
          (secret) => `Bearer ${secret} ${secret}`,
          (secret) => `Bearer ${secret.slice(0, -1)}`,
          (secret) => `Bearer ${secret.toUpperCase()}`,
          (secret) => `Bearer ${secret}${"x".repeat(8_000)}`,
          (secret) => `Bearer ${secret},`,
          (secret) => `Bearer ${encodeURIComponent(secret)}%00`,
          () => "Bearer undefined",
          () => "Bearer null",
          () => "Bearer *",
          () => "Bearer [object Object]",
        ),
      )
      .map(([scope, spoil]) => ({ scope: null, headers: [["authorization", spoil(secrets[scope])] as const] })),
  },
  {
    // Two of them become one with a comma, which is nobody's secret.
    weight: 1,
    arbitrary: fc.tuple(fc.constantFrom(...scopes), fc.constantFrom(...scopes)).map(([one, other]) => ({
      scope: null,
      headers: [
        ["authorization", `Bearer ${secrets[one]}`],
        ["Authorization", `Bearer ${secrets[other]}`],
      ] as const,
    })),
  },
  {
    weight: 1,
    arbitrary: headerText.map((text) => ({ scope: null, headers: [["authorization", `Bearer x${text}`]] as const })),
  },
);

const extraHeader: fc.Arbitrary<readonly [string, string]> = fc.oneof(
  fc.tuple(
    fc.constantFrom("x-http-method-override", "x-http-method", "x-method-override"),
    fc.constantFrom("POST", "GET", "DELETE", "post"),
  ),
  fc.tuple(
    fc.constantFrom("x-original-url", "x-rewrite-url", "x-forwarded-path"),
    fc.constantFrom("/api/trigger", "/healthz", "/api/jobs/1/cancel"),
  ),
  fc.tuple(
    fc.constantFrom("x-forwarded-for", "x-real-ip", "forwarded", "host", "origin", "referer", "cookie", "x-api-key"),
    headerText,
  ),
  fc.tuple(
    fc.constant("x-vercel-cron-schedule"),
    fc.oneof(fc.constantFrom("* * * * *", "';--", "<script>"), headerText),
  ),
  fc.tuple(
    fc.constantFrom("accept", "accept-encoding", "range", "if-match", "if-none-match", "expect", "te"),
    headerText,
  ),
  fc.tuple(fc.constant("content-encoding"), fc.constantFrom("gzip", "identity", "br", "", "gzip, gzip")),
);

const contentType = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.constantFrom(
      "application/json",
      "application/json; charset=utf-8",
      'Application/JSON;charset="UTF-8"',
    ),
  },
  {
    weight: 2,
    arbitrary: fc.constantFrom(
      "text/plain",
      "application/x-www-form-urlencoded",
      "multipart/form-data; boundary=x",
      "application/json; charset=utf-16",
      "application/json, text/html",
      "application/jsonp",
      "application/vnd.api+json",
      "",
      "*/*",
    ),
  },
);

const utf8 = (text: string): Uint8Array => new TextEncoder().encode(text);

/** Somebody's payload: every text in it has the marker. Names of fields have none, since a refusal names them. */
const secretText = hostileText.map((text) => `${marker}${text}`);
const payload = fc.oneof(
  { weight: 3, arbitrary: storableText.map((text) => ({ k: `${marker}${text}` })) },
  { weight: 2, arbitrary: fc.record({ k: secretText, more: jsonOf(secretText, 3, hostileText) }) },
  { weight: 1, arbitrary: jsonOf(secretText, 3, hostileText) },
  { weight: 1, arbitrary: edgeNumber },
  { weight: 1, arbitrary: fc.constantFrom({ n: 1 }, { n: 9 }, { n: "1" }, { n: 1, m: 2 }) },
);

const instants = fc.oneof(
  { weight: 3, arbitrary: fc.constantFrom("2026-11-30T14:00:00Z", "2099-12-31T23:59:59+05:45") },
  fc.constantFrom(
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59-12:00",
    "0001-01-01T00:00:00+23:59",
    "now",
    "infinity",
    "",
  ),
  edgeNumber,
);
const delays = fc.oneof(
  { weight: 3, arbitrary: fc.constantFrom("1s", "0ms", "3650d", "1.5h") },
  fc.constantFrom("3651d", "1e9s", "-1s", "NaNs", "9".repeat(400), "1 s", "\u0661s"),
  edgeNumber,
);

/** One field too many or none. */
const options = fc.oneof(
  { weight: 3, arbitrary: fc.constant({}) },
  instants.map((runAt) => ({ runAt })),
  delays.map((delay) => ({ delay })),
  instants.map((deadlineAt) => ({ deadlineAt })),
  fc.tuple(instants, delays).map(([runAt, delay]) => ({ runAt, delay })),
  fc.constantFrom({ priority: 0 }, { queue: "vip" }, { Kind: "plain" }, { client: {} }, { kick: true }),
  hostileText.map((field) => ({ [field]: 1 })),
);

const jobBody: fc.Arbitrary<unknown> = fc
  .tuple(
    fc.oneof(
      { weight: 6, arbitrary: fc.constantFrom("plain", "keyed", "picky") },
      { weight: 1, arbitrary: hostileText },
    ),
    payload,
    options,
  )
  .map(([kind, value, more]) => ({ kind, payload: value, ...more }));

const jobBodies: fc.Arbitrary<Uint8Array> = fc
  .oneof({ weight: 4, arbitrary: jobBody }, { weight: 1, arbitrary: fc.array(jobBody, { maxLength: 3 }) })
  .map((value) => utf8(JSON.stringify(value)));

const wrapped = fc.oneof(
  { weight: 4, arbitrary: jobBody.map((job) => JSON.stringify(job)) },
  { weight: 2, arbitrary: fc.array(jobBody, { maxLength: 4 }).map((jobs) => JSON.stringify(jobs)) },
  {
    weight: 2,
    arbitrary: fc
      .record(
        {
          wait: fc.oneof(fc.boolean(), edgeNumber),
          budget: fc.oneof(fc.constantFrom("1s", "100ms", "0ms", "999d", "x"), edgeNumber),
          queues: fc.oneof(
            fc.constantFrom(["default"], [], ["a b"], ["x".repeat(101)], "default"),
            fc.array(hostileText, { maxLength: 22 }),
          ),
        },
        { requiredKeys: [] },
      )
      .map((trigger) => JSON.stringify(trigger)),
  },
  { weight: 1, arbitrary: jsonOf(hostileText).map((value) => JSON.stringify(value) ?? "null") },
  {
    weight: 2,
    arbitrary: fc.constantFrom(
      "{}",
      "[]",
      "null",
      `{"kind":"picky","kind":"plain","payload":"${marker}","payload":{"k":"${marker}"}}`,
      `{"kind":"plain","payload":{"__proto__":{"polluted":"${marker}"}},"__proto__":{"polluted":true}}`,
      `{"kind":"plain","payload":{"constructor":{"prototype":{"polluted":"${marker}"}}}}`,
      '{"kind":"plain","payload":1e400}',
      '{"kind":"plain","payload":12345678901234567890}',
      `{"kind":"plain","payload":"${marker}\\u0000"}`,
      `{"kind":"plain","payload":{"k":"${marker}\\ud800"}}`,
      `{"kind":"plain","payload":${"[".repeat(101)}"${marker}"${"]".repeat(101)}}`,
      `{"kind":"plain","payload":${'{"a":'.repeat(20_000)}1${"}".repeat(20_000)}}`,
      "[".repeat(200_000),
      `${'[{"kind":"plain","payload":'.repeat(3)}`,
      `[${Array.from({ length: 1_001 }, () => '{"kind":"plain","payload":1}').join()}]`,
      `{"kind":"plain","payload":1,"${"x".repeat(10_000)}":1}`,
      `\ufeff{"kind":"plain","payload":{"k":"${marker}"}}`,
      `{'kind':'plain','payload':'${marker}'}`,
      `{"kind":"plain","payload":"${marker}",}`,
      `// ${marker}`,
      `kind=plain&payload=${marker}`,
      `<job>${marker}</job>`,
    ),
  },
);

const body: fc.Arbitrary<Uint8Array | null> = fc.oneof(
  { weight: 10, arbitrary: wrapped.map(utf8) },
  { weight: 2, arbitrary: fc.constant(null) },
  { weight: 1, arbitrary: fc.uint8Array({ maxLength: 60 }) },
  { weight: 1, arbitrary: wrapped.map((text) => Buffer.from(text, "utf16le")) },
  { weight: 1, arbitrary: wrapped.map((text) => Buffer.concat([Buffer.from([0xc3, 0x28]), utf8(text)])) },
);

const lists = [
  ...["/api/schedules", "/api/jobs/1", "/api/jobs/1/payload", "/api/jobs", "/api/dead", "/api/keys", "/api/queues"],
  ...["/api/kinds", "/api/triggers", "/api/ticks", "/api/invocations/x", "/api/holders", "/api/stats"],
  ...["/api/stats/series", "/metrics", "/openapi.json", "/docs/api", "/docs/api.css"],
];

/** A route as its callers use it: what is spoiled comes later. */
const fitting = fc.oneof(
  {
    // The one route that stores what it is sent.
    weight: 4,
    arbitrary: fc.record({
      method: fc.constant("POST"),
      target: fc.constant("/api/jobs"),
      of: fc.constant(["enqueue"] as const),
    }),
  },
  fc.record({
    method: fc.constant("POST"),
    target: fc.constant("/api/trigger"),
    of: fc.constant(["trigger"] as const),
  }),
  fc.record({ method: fc.constant("GET"), target: fc.constant("/api/cron"), of: fc.constant(["cron"] as const) }),
  fc.record({
    method: fc.constantFrom("GET", "HEAD"),
    target: fc.oneof(
      fc.constantFrom(...lists),
      id.map((text) => `/api/jobs/${text}`),
    ),
    of: fc.constant(["read", "operate"] as const),
  }),
  fc.record({
    method: fc.constant("POST"),
    target: fc.oneof(
      fc
        .tuple(id, fc.constantFrom("retry", "discard", "skip", "cancel", "reschedule"))
        .map(([text, verb]) => `/api/jobs/${text}/${verb}`),
      fc
        .tuple(fc.constantFrom("queues", "schedules"), name, fc.constantFrom("pause", "resume"))
        .map(([what, text, verb]) => `/api/${what}/${text}/${verb}`),
    ),
    of: fc.constant(["operate"] as const),
  }),
);

type Aspect = "method" | "target" | "credentials" | "type" | "trick";
const aspects: Aspect[] = ["method", "target", "credentials", "type", "trick"];

/** A request as it should be with up to two things of it spoilt, or one of which nothing fits. */
export const hostileRequest: fc.Arbitrary<HostileRequest> = fc
  .record({
    fit: fitting,
    spoilt: fc.oneof(
      { weight: 4, arbitrary: fc.constant<Aspect[]>([]) },
      { weight: 5, arbitrary: fc.subarray(aspects, { maxLength: 2 }) },
      { weight: 2, arbitrary: fc.constant(aspects) },
    ),
    method,
    target,
    trick: fc.constantFrom(...tricks),
    credentials,
    scope: fc.nat(1),
    extra: fc.array(extraHeader, { maxLength: 3 }),
    type: contentType,
    body,
    jobs: fc.oneof({ weight: 4, arbitrary: jobBodies }, { weight: 1, arbitrary: body }),
    empty: fc.nat(3).map((one) => one === 0),
    streamed: fc.boolean(),
  })
  .map(({ fit, spoilt: list, ...drawn }): HostileRequest => {
    const isSpoilt = (what: Aspect) => list.includes(what);
    const fitted = fit.of[drawn.scope % fit.of.length] ?? fit.of[0];
    const { scope, headers } = isSpoilt("credentials")
      ? drawn.credentials
      : { scope: fitted, headers: [["authorization", `Bearer ${secrets[fitted]}`] as const] };
    const plain = isSpoilt("target") ? drawn.target : fit.target;
    const used = isSpoilt("method") ? drawn.method : fit.method;
    const bare = ["GET", "HEAD"].includes(used.toUpperCase());
    // The verbs of an operator take no body, so most of them come without one.
    const empty = bare || (fitted === "operate" ? !drawn.empty : fitted !== "enqueue" && drawn.empty);
    return {
      method: used,
      target: isSpoilt("trick") ? drawn.trick(plain) : plain,
      scope,
      headers: [...headers, ["content-type", isSpoilt("type") ? drawn.type : "application/json"], ...drawn.extra],
      body: empty ? null : fitted === "enqueue" ? drawn.jobs : drawn.body,
      streamed: drawn.streamed,
    };
  });

const reads = [
  "schedules",
  ...["overview", "series", "jobs", "job", "payload", "deadGroups", "keys", "queues", "kinds", "triggers", "ticks"].map(
    (verb) => `inspect.${verb}`,
  ),
  ...["invocation", "holders", "metrics"].map((verb) => `inspect.${verb}`),
].flatMap((verb) => [`GET ${verb}`, `HEAD ${verb}`]);

/** Calls of the claimer that a secret opens, with the method a caller must have used. */
export const rights: Readonly<Record<Scope, readonly string[]>> = {
  trigger: ["POST invoke http"],
  cron: ["GET invoke cron"],
  enqueue: ["POST enqueueByKind"],
  read: reads,
  operate: [
    ...reads,
    "POST inspect.count",
    ...["pauseQueue", "resumeQueue", "pauseSchedule", "resumeSchedule"].map((verb) => `POST ${verb}`),
    ...["retry", "discard", "skip", "cancel", "reschedule", "bulk", "runSchedule", "terminate"].map(
      (verb) => `POST operate.${verb}`,
    ),
  ],
};

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

/** What holds for every answer of the app, whatever was asked. */
export function expectDecent(answer: Answer, request: HostileRequest): void {
  const { status, headers, text } = answer;
  expect(status, text).toBeLessThan(500);
  expect(headers.get("cache-control")).toBe("no-store");
  expect(headers.get("x-content-type-options")).toBe("nosniff");
  expect(headers.get("x-injected")).toBeNull();
  expect(headers.get("access-control-allow-origin")).toBeNull();
  for (const secret of Object.values(secrets)) expect(text).not.toContain(secret);
  if (text === "") {
    // No body where none may be.
    expect(request.method === "HEAD" || request.method === "OPTIONS", `${status} without a body`).toBe(true);
    return;
  }
  if (status < 400 && /^text\/(plain|html|css);/.test(headers.get("content-type") ?? "")) return;
  expect(headers.get("content-type")).toMatch(/^application\/json/);
  const value: unknown = JSON.parse(text);
  if (status < 400) return;
  expect(text).not.toContain(marker);
  expect(Object.keys(value as object)).toEqual(["error"]);
  const { error } = value as { error: Record<string, unknown> };
  expect(Object.keys(error).sort().join()).toMatch(/^code,message(,path)?$/);
  expect(error.code).toMatch(/^PGCLAIM_[A-Z_]+$/);
  for (const one of Object.values(error)) expect(typeof one).toBe("string");
  if (status === 401) expect(headers.get("www-authenticate")).toBe("Bearer");
}
