// The doctor on the way to the database: how far it is, what stands between, how the door is guarded.

import net from "node:net";
import { performance } from "node:perf_hooks";
import { describeError } from "../../errors.ts";
import { integer, type Row } from "../../rows.ts";
import { length } from "../format.ts";
import { type Details, type Finding, fail, ok, warn } from "./finding.ts";
import { openProbe, type Probe } from "./probe.ts";

const connectLimitMs = 10_000;
/** How long a second transaction may wait for a connection of a pool before we say that there is none. */
const secondMs = 3_000;
const samples = 10;
/** A tick is 3 round trips at least, so a query of this length makes an idle tick cost 150 ms. */
const slowMs = 50;

export interface Connected {
  readonly probe: Probe | null;
  readonly finding: Finding;
}

/** Connects and measures. Without a connection the probe is null, and the finding says why. */
export async function connect(url: string): Promise<Connected> {
  const tcpMs = await tcp(url).catch(() => null);
  const started = performance.now();
  let probe: Probe;
  try {
    probe = await openProbe(url, connectLimitMs);
    await probe.ping();
  } catch (error) {
    return { probe: null, finding: unreachable(error) };
  }
  const firstMs = performance.now() - started;
  const times: number[] = [];
  for (let i = 0; i < samples; i++) times.push(await probe.ping());
  const p50 = times.sort((a, b) => a - b)[Math.floor(samples / 2)] ?? 0;
  const facts = { tcpMs: rounded(tcpMs), firstMs: rounded(firstMs), p50Ms: rounded(p50) };
  const measured = `${tcpMs === null ? "" : `TCP ${short(tcpMs)}, `}first query ${short(firstMs)}, SELECT 1 ${short(p50)} (p50 of ${samples})`;
  return {
    probe,
    finding:
      p50 > slowMs
        ? warn(
            "connect",
            `${measured}; a tick makes 3 round trips`,
            "run this and your deployment in the database's region",
            facts,
          )
        : ok("connect", measured, { facts }),
  };
}

function unreachable(error: unknown): Finding {
  return fail(
    "connect",
    `no connection: ${describeError(error)}`,
    "look at DATABASE_URL, and whether the database is up and lets this address in",
  );
}

function tcp(url: string): Promise<number> {
  const { hostname, port } = new URL(url);
  return new Promise((resolve, reject) => {
    const started = performance.now();
    const socket = net.connect({
      host: hostname.replace(/^\[|\]$/g, ""),
      port: Number(port || 5432),
      timeout: connectLimitMs,
    });
    const end = (settle: () => void) => {
      socket.destroy();
      settle();
    };
    socket.once("connect", () => end(() => resolve(performance.now() - started)));
    socket.once("error", (error) => end(() => reject(error)));
    socket.once("timeout", () => end(() => reject(new Error("timeout"))));
  });
}

/**
 * Whether a pooler stands between, and in which mode, proved by backends: two transactions of one connection that were served by
 * different ones, or one that served two open connections. Nothing is set and no lock is taken, so nothing can be left behind.
 */
export async function pooling(url: string, probe: Probe): Promise<Finding> {
  const other = await openProbe(url, connectLimitMs);
  try {
    return await judge(probe, other);
  } finally {
    await other.close();
  }
}

async function judge(probe: Probe, other: Probe): Promise<Finding> {
  const backends = new Set<number>();
  let shared = false;
  const own = (probe.client as unknown as { processID?: number | null }).processID ?? null;
  try {
    for (let round = 0; round < 3 && !shared && backends.size < 2; round++) {
      const first = await backendOf(probe);
      const [, held] = await other.send("begin read only; select pg_backend_pid() as pid");
      const pid = integer(held?.rows[0], "pid");
      // While the other one keeps a backend, ours must come from somewhere else, if it is not ours to keep.
      const second = probe.send("begin read only; select pg_backend_pid() as pid; commit");
      const waited = await Promise.race([second.then(() => false), pause(secondMs).then(() => true)]);
      await other.send("rollback");
      const answer = await second;
      if (waited) return poolOfOne();
      for (const backend of [first, integer(answer[1]?.rows[0], "pid")]) backends.add(backend);
      shared = pid === first;
    }
  } catch (error) {
    return fail(
      "pooling",
      `a transaction cannot be opened (${describeError(error)}); a pooler in statement mode says so`,
      "use the direct address, or transaction mode",
    );
  }
  const leftovers = await leftBehind(probe);
  const facts: Details["facts"] = { backends: [...backends], connectionPid: own, leftovers };
  if (!shared && backends.size < 2) {
    const direct = own !== null && backends.has(own);
    return ok(
      "pooling",
      direct
        ? "direct: one connection, one backend"
        : "session mode: one backend for the connection, behind something that gives it another number",
      { facts: { ...facts, mode: direct ? "direct" : "session" } },
    );
  }
  const seen = `transaction mode: ${shared ? "one backend served two open connections" : "two transactions of one connection had two backends"}`;
  if (leftovers.length > 0) {
    return warn(
      "pooling",
      `${seen}; somebody's SET without LOCAL is still there: ${leftovers.join(", ")}`,
      "find who sets it, and use SET LOCAL; RECONNECT in the pooler's console clears it",
      { ...facts, mode: "transaction" },
    );
  }
  return ok("pooling", `${seen}; nothing here needs a session`, { facts: { ...facts, mode: "transaction" } });
}

async function backendOf(probe: Probe): Promise<number> {
  const answer = await probe.send("begin read only; select pg_backend_pid() as pid; commit");
  return integer(answer[1]?.rows[0], "pid");
}

function poolOfOne(): Finding {
  return fail(
    "pooling",
    "a pool of one connection: a second transaction waited for the first",
    "raise the pool's size: a tick holds one connection while it waits for its fence on another",
    { mode: "transaction", poolSize: 1 },
  );
}

/** Poolers keep these as the client has them. */
const tracked = [
  "application_name",
  "client_encoding",
  "DateStyle",
  "IntervalStyle",
  "TimeZone",
  "standard_conforming_strings",
];

async function leftBehind(probe: Probe): Promise<readonly string[]> {
  const rows = await probe.ask(
    `select name from pg_catalog.pg_settings where source = 'session' and name not in ('search_path', 'statement_timeout', 'transaction_isolation', 'transaction_read_only') and name <> all ('{${tracked.join(",")}}') order by name`,
  );
  return rows.map((row) => String(row.name));
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => {
    setTimeout(resolve, ms).unref();
  });
}

/** TLS, what the address asks for and no driver does, and how the password is kept. */
export function driver(url: string, probe: Probe, server: Row): Finding {
  const { hostname, searchParams } = new URL(url);
  const local = /^(localhost|127(\.\d+){3}|\[::1\]|)$/.test(hostname);
  const stream = (probe.client as unknown as { connection?: { stream?: { encrypted?: boolean } } }).connection?.stream;
  const encrypted = stream?.encrypted === true;
  const neon = /\.neon\.tech$/.test(hostname)
    ? /-pooler\./.test(hostname)
      ? "Neon's pooled address"
      : "Neon's direct address"
    : null;
  const facts = {
    tls: encrypted,
    sslmode: searchParams.get("sslmode"),
    passwordEncryption: server.password_encryption,
    neon,
  };
  const seen = [
    encrypted ? "TLS" : local ? "no TLS, on this machine" : "no TLS",
    `passwords as ${String(server.password_encryption)}`,
    ...(neon === null ? [] : [neon]),
  ].join(", ");
  if (!encrypted && !local)
    return fail("driver", `${seen}: payloads can be read on the way`, "add ?sslmode=verify-full to the address", facts);
  if (encrypted && ["no-verify", "allow", "prefer"].includes(searchParams.get("sslmode") ?? ""))
    return warn(
      "driver",
      `${seen}, but sslmode=${searchParams.get("sslmode")} lets anybody answer`,
      "say sslmode=verify-full",
      facts,
    );
  if (searchParams.get("channel_binding") === "require")
    return warn(
      "driver",
      `${seen}; channel_binding=require is libpq's: neither pg nor neon's driver does it`,
      "take it out of the address, so that nobody relies on it",
      facts,
    );
  if (server.password_encryption === "md5")
    return warn(
      "driver",
      `${seen}: md5 is on its way out of Postgres`,
      "set password_encryption to scram-sha-256, and every password anew",
      facts,
    );
  const scram = neon === null ? "; neon's driver needs PGCLAIM_PIPELINE_CONNECT=false here" : "";
  return ok("driver", `${seen}${scram}`, { facts });
}

function short(ms: number): string {
  return ms < 10 ? `${ms.toFixed(1)} ms` : length(ms);
}

function rounded(ms: number | null): number | null {
  return ms === null ? null : Math.round(ms * 10) / 10;
}
