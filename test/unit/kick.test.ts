// The kick, against real HTTP servers: answered, refused, redirected, silent, endless. It never rejects, never takes longer
// than its limit, and never tells a secret.

import http from "node:http";
import type { AddressInfo } from "node:net";
import { describe, expect, it, onTestFinished } from "vitest";
import { type KickOptions, kicker } from "../../src/kick.ts";
import type { LogEntry } from "../../src/report.ts";
import { endsWithin } from "../support/gate.ts";

const secret = "s3cret-of-the-trigger";

interface Seen {
  readonly method: string | undefined;
  readonly url: string | undefined;
  readonly headers: http.IncomingHttpHeaders;
  readonly body: string;
}

async function serve(answer: (response: http.ServerResponse, seen: Seen) => void) {
  const calls: Seen[] = [];
  const server = http.createServer((request, response) => {
    let body = "";
    request.on("data", (bytes: Buffer) => {
      body += bytes.toString();
    });
    request.on("end", () => {
      const seen = { method: request.method, url: request.url, headers: request.headers, body };
      calls.push(seen);
      answer(response, seen);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return { calls, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/api/trigger` };
}

function kickTo(url: string): { readonly kick: () => Promise<void>; readonly log: LogEntry[] } {
  const log: LogEntry[] = [];
  return { kick: kicker({ url, secret }, (entry) => log.push(entry)), log };
}

describe("a kick", () => {
  it("posts that it will not wait, with the secret as a bearer, and says nothing when that went well", async () => {
    const { url, calls } = await serve((response) => response.writeHead(202).end('{"accepted":true}'));
    const { kick, log } = kickTo(url);
    await kick();
    expect(calls).toEqual([
      {
        method: "POST",
        url: "/api/trigger",
        body: '{"wait":false}',
        headers: expect.objectContaining({ authorization: `Bearer ${secret}`, "content-type": "application/json" }),
      },
    ]);
    expect(log).toEqual([]);
  });

  it.each([401, 404, 500, 503])("that is refused with %i is a warning and nothing more", async (status) => {
    const { url } = await serve((response) => response.writeHead(status).end(`echo ${secret}`));
    const { kick, log } = kickTo(url);
    await kick();
    expect(log).toEqual([
      {
        level: "warn",
        event: "pgclaim.kick",
        message: `the trigger answered ${status}; the job waits for the next cron`,
      },
    ]);
  });

  it.each([301, 302, 307, 308])("does not follow a redirect (%i): the secret goes nowhere else", async (status) => {
    const elsewhere = await serve((response) => response.end());
    const { url } = await serve((response) => response.writeHead(status, { location: elsewhere.url }).end());
    const { kick, log } = kickTo(url);
    await kick();
    expect(elsewhere.calls).toEqual([]);
    expect(log).toHaveLength(1);
  });

  it("that nobody hears is given up after three seconds", async () => {
    const { url, calls } = await serve(() => {});
    const { kick, log } = kickTo(url);
    const began = performance.now();
    await endsWithin(10_000, kick(), "the kick");
    expect(performance.now() - began).toBeGreaterThan(2_900);
    expect(calls).toHaveLength(1);
    expect(log.map(({ message }) => message)).toEqual([
      "no answer from the trigger (TimeoutError); the job waits for the next cron",
    ]);
  });

  it("does not wait for a body that never ends", async () => {
    const { url } = await serve((response) => {
      response.writeHead(202);
      response.write("{");
    });
    const { kick, log } = kickTo(url);
    const began = performance.now();
    await endsWithin(10_000, kick(), "the kick");
    expect(performance.now() - began).toBeLessThan(2_500);
    expect(log).toEqual([]);
  });

  it("that finds no server, or one that hangs up, is a warning that names neither address nor secret", async () => {
    const { url, calls } = await serve((response) => response.destroy());
    const dead = new URL(url);
    dead.port = "1";
    for (const address of [url, dead.href, "http://nobody.invalid/api/trigger"]) {
      const { kick, log } = kickTo(`${address}?token=${secret}`);
      await endsWithin(10_000, kick(), "the kick");
      expect(log).toEqual([
        {
          level: "warn",
          event: "pgclaim.kick",
          message: expect.stringMatching(
            /^no answer from the trigger \([A-Za-z_]+\); the job waits for the next cron$/,
          ),
        },
      ]);
    }
    expect(calls).toHaveLength(1);
  });
});

describe("its options", () => {
  it.each([
    [{ url: "https://x.example/api/trigger", secret: "" }, "kick.secret is missing"],
    [{ url: "https://x.example/api/trigger", secret: " \n" }, "kick.secret is missing"],
    [{ url: "https://x.example/api/trigger" }, "kick.secret is missing"],
    [{ url: "https://x.example/api/trigger", secret: `${secret}\n${secret}` }, "kick.secret is no header's text"],
    [{ url: "https://x.example/api/trigger", secret: `${secret}ä` }, "kick.secret is no header's text"],
    [{ url: "/api/trigger", secret }, "kick.url is no http address; expected the address of /api/trigger."],
    [{ url: "ftp://x.example/", secret }, "kick.url is no http address"],
    [{ url: `https://user:${secret}@x.example/`, secret }, "kick.url is an address with a user or a password in it"],
    [{ url: undefined, secret }, "kick.url is undefined"],
    [{ uri: "https://x.example/", secret }, 'kick: unknown option "uri"; did you mean "url"?'],
    [null, "kick is null; expected { url, secret }."],
    ["https://x.example/", "kick is"],
  ])("%j are refused, and the secret is not said", (options, message) => {
    let thrown: unknown = null;
    try {
      kicker(options as unknown as KickOptions, () => {});
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toMatchObject({ code: "PGCLAIM_INVALID_OPTION", message: expect.stringContaining(message) });
    expect(String(thrown)).not.toContain(secret);
  });

  it("drop the white space that a shell has put around the secret", async () => {
    const { url, calls } = await serve((response) => response.writeHead(202).end());
    await kicker({ url, secret: ` ${secret}\n` }, () => {})();
    expect(calls[0]?.headers.authorization).toBe(`Bearer ${secret}`);
  });
});
