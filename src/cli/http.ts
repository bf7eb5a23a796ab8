// A deployment's HTTP address, and what its errors say. A secret goes over TLS, or to this machine.

import { exitCodes, Refusal } from "./command.ts";

/** Reads the address. Errors: a refusal (2) for none, for one with a password, and for plain HTTP to another machine. */
export function deploymentUrl(given: string | undefined): URL {
  const expected = "expected --url https://my-worker.example.com (or PGCLAIM_URL)";
  if (given === undefined || given === "") throw new Refusal(exitCodes.usage, `No deployment is named; ${expected}.`);
  if (!URL.canParse(given)) throw new Refusal(exitCodes.usage, `The deployment's address is none; ${expected}.`);
  const url = new URL(given);
  if (url.protocol !== "https:" && url.protocol !== "http:")
    throw new Refusal(exitCodes.usage, `The deployment's address is not http; ${expected}.`);
  if (url.username !== "" || url.password !== "")
    throw new Refusal(
      exitCodes.usage,
      "The deployment's address has a password in it, which is not sent. Leave it out.",
    );
  const here = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(url.hostname);
  if (url.protocol === "http:" && !here)
    throw new Refusal(
      exitCodes.usage,
      `${url.origin} is plain HTTP: a secret sent there can be read on the way. Use https.`,
    );
  return url;
}

/** Code and message of an answer that is an error of ours, or what can be said of any other. */
export function errorOf(status: number, body: unknown): { readonly code: string | null; readonly message: string } {
  const error = (body as { error?: { code?: unknown; message?: unknown } } | null)?.error;
  if (typeof error?.code === "string" && typeof error.message === "string")
    return { code: error.code, message: error.message };
  const report = (body as { error?: unknown; ended?: unknown } | null)?.ended;
  return {
    code: null,
    message:
      typeof report === "string"
        ? `The invocation ended with HTTP ${status} (${report}).`
        : `The deployment answered HTTP ${status}, which is no answer of pgclaim's.`,
  };
}
