// The HTTP API under requests nobody's client would send. First against a claimer that only records, for many; then
// against the real one on a real Postgres. Never 5xx by the caller's fault, never a verb that its secret does not open,
// always one shape of error, never a secret or a payload in an error or a log line.

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { describe, expect, it } from "vitest";
import * as z from "zod";
import type { Claimer } from "../../src/claimer.ts";
import { createApp } from "../../src/http/app.ts";
import { defineJob } from "../../src/index.ts";
import { setup as setupWorld } from "../support/world.ts";
import { fakeClaimer, secrets, stream } from "../unit/http/support.ts";
import { type Answer, expectDecent, type HostileRequest, hostileRequest, marker, rights } from "./requests.ts";
import { canary, timeFor, tryOut } from "./support.ts";

type App = ReturnType<typeof createApp>;

/** Null where the platform itself refuses to make such a request. */
function requestOf({ method, target, headers, body, streamed }: HostileRequest): Request | null {
  try {
    const made = new Headers();
    for (const [name, value] of headers) made.append(name, value);
    return new Request(`http://pgclaim.test${target.startsWith("/") ? target : `/${target}`}`, {
      method,
      headers: made,
      ...(body === null
        ? {}
        : streamed
          ? { body: stream(body), duplex: "half" as const }
          : { body: new Uint8Array(body) }),
    });
  } catch (error) {
    if (error instanceof TypeError) return null;
    throw error;
  }
}

async function send(app: App, request: Request): Promise<Answer> {
  const answer = await app.request(request);
  return { status: answer.status, headers: answer.headers, text: await answer.text() };
}

/** The claimer with each call of a verb written down as `METHOD verb`, those of its parts as `METHOD part.verb`. */
function watched<T extends object>(claimer: T, seen: string[], method: () => string, part = ""): T {
  return new Proxy(claimer, {
    get(of, name, receiver) {
      const verb: unknown = Reflect.get(of, name, receiver);
      if (name === "inspect" || name === "operate") return watched(verb as object, seen, method, `${name}.`);
      if (typeof verb !== "function") return verb;
      return (...args: unknown[]) => {
        const trigger = name === "invoke" ? ` ${(args[0] as { type: string }).type}` : "";
        seen.push(`${method()} ${part}${String(name)}${trigger}`);
        return (verb as (...args: unknown[]) => unknown).apply(of, args);
      };
    },
  });
}

/** Sends hostile requests to an app over this claimer and checks all that needs no database. */
async function bombard(
  claimer: Claimer,
  options: {
    readonly usual: number;
    readonly lines: string[];
    readonly after?: (verbs: readonly string[], answer: Answer) => Promise<void>;
  },
): Promise<ReadonlyMap<string, number>> {
  let seen: string[] = [];
  let method = "";
  let refused = 0;
  const used = new Map<string, number>();
  const app = createApp({
    claimer: () => watched(claimer, seen, () => method),
    secrets,
    log: (line) => options.lines.push(JSON.stringify(line)),
    // Its answers are pages, in a shape of their own: dashboard.test.ts.
    dashboard: false,
  });
  await tryOut({ usual: options.usual }, hostileRequest, async (hostile) => {
    const request = requestOf(hostile);
    if (request === null) {
      refused++;
      return;
    }
    seen.length = 0;
    method = request.method;
    const answer = await send(app, request);
    for (const verb of seen) used.set(verb, (used.get(verb) ?? 0) + 1);
    const allowed = hostile.scope === null ? [] : rights[hostile.scope];
    expect(seen.filter((verb) => !allowed.includes(verb))).toEqual([]);
    expectDecent(answer, hostile);
    expect(({} as { polluted?: unknown }).polluted).toBeUndefined();
    expect(options.lines.filter((line) => line.includes("pgclaim.request"))).toEqual([]);
    await options.after?.([...seen], answer);
    seen = seen.slice(0, 0);
  });
  console.log(`  of them refused by the platform: ${refused}; verbs reached: ${JSON.stringify([...used].sort())}`);
  for (const line of options.lines)
    for (const secret of [...Object.values(secrets), marker]) expect(line).not.toContain(secret);
  return used;
}

describe("the HTTP API under hostile requests", () => {
  it(
    "answers each in its one shape, and reaches no verb that the secret does not open",
    async () => {
      const used = await bombard(fakeClaimer().claimer, { usual: 3_000, lines: [] });
      // Hostile requests that are all refused at the door prove little.
      for (const verbs of Object.values(rights))
        expect(
          verbs.some((verb) => used.has(verb)),
          verbs.join(),
        ).toBe(true);
    },
    timeFor(3_000),
  );

  it(
    "does so on a real database, and nothing is stored but what an enqueue stored",
    async () => {
      const world = await setupWorld();
      const { untouched } = await canary(world);
      const jobs = [
        defineJob({ kind: "plain", payload: z.unknown(), async run() {} }),
        defineJob({
          kind: "keyed",
          payload: z.object({ k: z.string() }),
          uniqueKey: "{k}",
          locks: ["a:{k}"],
          async run() {},
        }),
        defineJob({ kind: "picky", payload: z.strictObject({ n: z.number().int().max(5) }), async run() {} }),
      ];
      const claimer = world.claimer("pg", { jobs });
      await claimer.register();
      let stored = 0;
      await bombard(claimer, {
        usual: 250,
        lines: [],
        async after(verbs, answer) {
          const before = stored;
          stored = await world.value<number>(
            "select (select count(*) from pgclaim.job)::integer + (select count(*) from pgclaim.history)::integer",
          );
          if (!verbs.includes("POST enqueueByKind") || answer.status !== 201) expect(stored).toBe(before);
        },
      });
      expect(stored).toBeGreaterThan(0);
      for (const line of world.log) expect(JSON.stringify(line)).not.toContain(marker);
      expect(await world.locks()).toBe(0);
      await untouched();
    },
    timeFor(800),
  );

  it.each([
    ["with its length", false, true],
    ["with a length that lies", false, false],
    ["in pieces, without a length", true, false],
  ])("refuses a body of a byte too many with 413: %s", async (_, streamed, honest) => {
    const { claimer, calls } = fakeClaimer();
    const app = createApp({ claimer: () => claimer, secrets, maxBodyBytes: 1_000 });
    for (const size of [1_000, 1_001, 100_000]) {
      const text = `"${"x".repeat(size - 2)}"`;
      const answer = await app.request("/api/jobs", {
        method: "POST",
        headers: {
          authorization: `Bearer ${secrets.enqueue}`,
          "content-type": "application/json",
          ...(honest ? { "content-length": String(size) } : streamed ? {} : { "content-length": "7" }),
        },
        body: streamed ? stream(text.slice(0, 500), text.slice(500)) : text,
        ...(streamed ? { duplex: "half" } : {}),
      } as RequestInit);
      expect(answer.status, String(size)).toBe(size > 1_000 ? 413 : 400);
    }
    expect(calls).toEqual([]);
  });
});

describe("the comparison of secrets", () => {
  const source = readFileSync(resolve(import.meta.dirname, "../../src/http/auth.ts"), "utf8").replaceAll(
    /^\s*(\/\/|\/?\*).*$/gm,
    "",
  );
  const body = (name: string) => new RegExp(`function ${name}\\([^]*?\\n}`).exec(source)?.[0] ?? "";

  // The time of an answer is not measured: on a shared machine such a test proves nothing. The shape of the code is.
  it("is of digests, of every byte, and never ends early", () => {
    expect(body("equal")).not.toBe("");
    expect(body("equal").match(/\breturn\b/g)).toHaveLength(1);
    expect(body("equal")).not.toMatch(/\b(break|every|some|continue|if)\b|&&|\|\||(?<!\?)\?(?!\?)/);
    const check = body("checkBearer");
    expect(check).toMatch(/equal\(presented, await sha256\(secret\)\)/);
    expect(check).toMatch(/presented = await sha256\(token\)/);
    // Between the digest of what was presented and the verdict nothing leaves the loop.
    const [, comparing = ""] = check.split("presented = await sha256(token)");
    expect(comparing.split("if (matches")[0]).not.toMatch(/\b(return|break|throw|continue)\b/);
  });

  it("never sees a token or a secret as text", () => {
    expect(source).not.toMatch(/(token|secret|presented)\s*[!=]==?\s*(token|secret|presented)/);
    expect(source).not.toMatch(/\.(startsWith|includes|indexOf|localeCompare|endsWith)\(/);
  });
});
