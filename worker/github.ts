// POST /webhooks/github: an event comes in, is proven to be GitHub's, and is stored together with its job, in one
// statement, so there is never one without the other. It must never log or answer what an event says.

import { neon, neonConfig } from "@neondatabase/serverless";
import type { Hono } from "hono";
import { DatabaseError, UsageError } from "pgclaim";
import type { AppTools } from "pgclaim/cloudflare";
import type { Env } from "./env.ts";
import { type GithubEventPayload, githubEvent } from "./jobs.ts";

/**
 * Bytes of an event. GitHub sends up to 25 MB, but the largest of its 329 example payloads has 27 KB, and what has to be
 * held in memory before its signature is known should be little. An event that is larger is answered 413 and shows as
 * failed in GitHub's list of deliveries.
 */
const maxBodyBytes = 1_000_000;

/** Milliseconds to store an event. GitHub gives up after 10 s. */
const storeLimitMs = 8_000;

export function githubWebhooks(app: Hono<{ Bindings: Env }>, { env, claimer }: AppTools<Env>): void {
  // The driver knows the local bridge only as a global.
  if (env.PGCLAIM_LOCAL_BRIDGE) neonConfig.fetchEndpoint = () => `http://${env.PGCLAIM_LOCAL_BRIDGE}/sql`;

  app.post("/webhooks/github", async (c) => {
    const secret = env.GITHUB_WEBHOOK_SECRET?.trim();
    if (!secret) {
      throw new UsageError(
        "PGCLAIM_SECRET_MISSING",
        "GITHUB_WEBHOOK_SECRET is not set in this deployment, so /webhooks/github stays closed. Set it: wrangler secret put GITHUB_WEBHOOK_SECRET",
      );
    }
    const request = c.req.raw;
    const delivery = {
      id: header(request, "x-github-delivery", /^[A-Za-z0-9-]{1,100}$/),
      event: header(request, "x-github-event", /^[a-z0-9_]{1,100}$/),
    };
    const body = await readBody(request);
    if (!(await isSigned(secret, request.headers.get("x-hub-signature-256"), body))) {
      throw new UsageError("PGCLAIM_UNAUTHORIZED", "X-Hub-Signature-256 is missing or does not fit the body.");
    }
    const event = { ...delivery, ...parse(request, body) };

    let jobId: string | null;
    try {
      jobId = await store(env, event);
    } catch (error) {
      if (sqlStateOf(error) !== "PC002") throw storeError(error);
      // The database has never heard of this kind: no invocation of a deployment that defines it has run. One has now.
      await claimer().invoke({ type: "manual" }, { budget: "4s" });
      jobId = await store(env, event).catch((again: unknown) => Promise.reject(storeError(again)));
    }
    return jobId === null ? c.json({ duplicate: true }, 200) : c.json({ duplicate: false, jobId }, 202);
  });
}

interface StoredEvent {
  readonly id: string;
  readonly event: string;
  /** The JSON text as it came; parsing and printing it again would change large numbers. */
  readonly text: string;
  readonly repository: string | null;
}

/**
 * Stores an event and enqueues its job.
 *
 * Shape:  the job's id, or null if this delivery was stored before.
 * SQL:    one statement, so one transaction. enqueue() takes the delivery's id from the row that was inserted, and is
 *         therefore called for that row only; were it not to depend on it, a redelivery could enqueue as well.
 */
async function store(env: Env, { id, event, text, repository }: StoredEvent): Promise<string | null> {
  const sql = neon(env.DATABASE_URL, { fetchOptions: { signal: AbortSignal.timeout(storeLimitMs) } });
  const rest = { event, repository } satisfies Omit<GithubEventPayload, "deliveryId">;
  const rows = await sql.query(
    `with event as (
       insert into webhook_event (delivery_id, name, body)
       values ($1, $2, $3::jsonb)
       on conflict (delivery_id) do nothing
       returning delivery_id
     )
     select job.job_id
     from event
     cross join lateral pgclaim.enqueue($4, $5::jsonb || jsonb_build_object('deliveryId', event.delivery_id)) as job`,
    [id, event, text, githubEvent.kind, JSON.stringify(rest)],
  );
  const jobId: unknown = rows[0]?.job_id;
  return typeof jobId === "string" ? jobId : null;
}

/** Whether the signature is the body's. Compared by crypto.subtle.verify, whose time tells nothing. */
async function isSigned(secret: string, signature: string | null, body: Uint8Array<ArrayBuffer>): Promise<boolean> {
  const hex = /^sha256=([0-9a-f]{64})$/.exec(signature ?? "")?.[1];
  if (hex === undefined) return false;
  const key = await crypto.subtle.importKey(
    "raw",
    new TextEncoder().encode(secret),
    { name: "HMAC", hash: "SHA-256" },
    false,
    ["verify"],
  );
  return crypto.subtle.verify(
    "HMAC",
    key,
    Uint8Array.from(hex.match(/../g) ?? [], (byte) => Number.parseInt(byte, 16)),
    body,
  );
}

/** Reads the whole body, counting while reading, since content-length is only what the sender says. */
async function readBody(request: Request): Promise<Uint8Array<ArrayBuffer>> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  const reader = request.body?.getReader();
  while (reader !== undefined) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.byteLength;
    if (size > maxBodyBytes) {
      await reader.cancel().catch(() => {}); // the sender may be gone, which is as well
      throw new UsageError("PGCLAIM_BODY_TOO_LARGE", `The event is larger than ${maxBodyBytes} bytes.`);
    }
    chunks.push(value);
  }
  const whole = new Uint8Array(size);
  let offset = 0;
  for (const chunk of chunks) {
    whole.set(chunk, offset);
    offset += chunk.byteLength;
  }
  return whole;
}

/** Reads what the job needs to know. Not before the signature was found right. */
function parse(request: Request, body: Uint8Array): { readonly text: string; readonly repository: string | null } {
  if (!/^application\/json\b/i.test(request.headers.get("content-type") ?? "")) {
    throw invalid("the event is not application/json; choose that content type in GitHub's webhook settings");
  }
  let text: string;
  let value: unknown;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(body);
    value = JSON.parse(text);
  } catch {
    throw invalid("the body is not JSON in UTF-8"); // the parser's own message would quote it
  }
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw invalid("the body is not a JSON object");
  const repository = "repository" in value ? value.repository : null;
  const name =
    typeof repository === "object" && repository !== null && "full_name" in repository ? repository.full_name : null;
  return { text, repository: typeof name === "string" ? name : null };
}

function header(request: Request, name: string, pattern: RegExp): string {
  const value = request.headers.get(name);
  if (value !== null && pattern.test(value)) return value;
  throw invalid(`the header ${name} is ${value === null ? "missing" : "not one GitHub sends"}`);
}

function invalid(what: string): UsageError {
  return new UsageError("PGCLAIM_INVALID_REQUEST", `${what[0]?.toUpperCase()}${what.slice(1)}.`);
}

/** What the database said, without what it quotes of the event. */
function storeError(error: unknown): UsageError | DatabaseError {
  const state = sqlStateOf(error);
  // Class 22 is data that Postgres cannot hold, such as the character NUL in jsonb.
  if (state?.startsWith("22")) return invalid(`the database cannot hold this event (${state})`);
  const said = state === null ? "no answer" : state;
  return new DatabaseError("PGCLAIM_QUERY_FAILED", `The event could not be stored (${said}). Deliver it again.`, {
    cause: error,
  });
}

function sqlStateOf(error: unknown): string | null {
  const code = typeof error === "object" && error !== null && "code" in error ? error.code : null;
  return typeof code === "string" ? code : null;
}
