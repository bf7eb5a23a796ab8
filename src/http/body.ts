// A request's body, read up to its limit and as JSON. It says nothing of what was in it.

import { UsageError } from "../errors.ts";
import { invalid, Refusal } from "./respond.ts";

/** Bytes of a request body. One payload may have 1 MiB as stored; JSON text with its spaces and escapes needs more. */
export const maxBodyBytes = 1_500_000;

/**
 * Reads a request's JSON.
 *
 * Shape:  the parsed value; undefined if there is no body.
 * Units:  `limit` in bytes, counted while reading. hono/body-limit was not taken because it believes content-length.
 * Errors: PGCLAIM_BODY_TOO_LARGE (413), PGCLAIM_INVALID_REQUEST (415 for another type or coding, else 400).
 */
export async function readJson(request: Request, limit: number): Promise<unknown> {
  const bytes = await readBytes(request, limit, assertJsonType);
  if (bytes === null) return undefined;
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: false }).decode(bytes);
  } catch {
    throw invalid("", "the body is not UTF-8 text");
  }
  try {
    return JSON.parse(text);
  } catch {
    // The parser's own message quotes the text around the fault, which is somebody's payload.
    throw invalid("", "the body is not JSON");
  }
}

/** Reads a form's text, its type checked by the caller; null where it is longer than `limit` bytes, or ends early. */
export async function readForm(request: Request, limit: number): Promise<string | null> {
  try {
    return new TextDecoder().decode((await readBytes(request, limit, () => {})) ?? undefined);
  } catch (error) {
    if (error instanceof UsageError) return null;
    throw error;
  }
}

async function readBytes(
  request: Request,
  limit: number,
  assertType: (headers: Headers) => void,
): Promise<Uint8Array | null> {
  if (request.body === null || request.headers.get("content-length") === "0") return null;
  const reader = request.body.getReader();
  const chunks: Uint8Array[] = [];
  let size = 0;
  try {
    if (Number(request.headers.get("content-length") ?? 0) > limit) throw tooLarge(limit);
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw invalid("", "the body ended early");
      });
      if (done) break;
      // An empty body may have any type: `curl -d ''` says it is a form.
      if (size === 0 && value.length > 0) assertType(request.headers);
      size += value.length;
      if (size > limit) throw tooLarge(limit);
      chunks.push(value);
    }
  } catch (error) {
    // Tells the sender to stop. That it may be gone already changes nothing.
    await reader.cancel().catch(() => {});
    throw error;
  }
  return size === 0 ? null : concat(chunks, size);
}

function concat(chunks: readonly Uint8Array[], size: number): Uint8Array {
  const whole = new Uint8Array(size);
  let offset = 0;
  for (const chunk of chunks) {
    whole.set(chunk, offset);
    offset += chunk.length;
  }
  return whole;
}

function assertJsonType(headers: Headers): void {
  const refuse = (expected: string): Refusal => new Refusal(415, invalid("", expected));
  if (!/^application\/json\s*(?:;\s*charset\s*=\s*"?utf-8"?\s*)?$/i.test(headers.get("content-type") ?? "")) {
    throw refuse("expected content-type: application/json, in UTF-8");
  }
  if (!/^(?:identity)?$/i.test(headers.get("content-encoding") ?? "")) throw refuse("expected no content-encoding");
}

function tooLarge(limit: number): UsageError {
  return new UsageError("PGCLAIM_BODY_TOO_LARGE", `The body is larger than ${limit} bytes. Send fewer jobs a call.`);
}
