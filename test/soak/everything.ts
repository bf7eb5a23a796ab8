// The soak of everything at once: processes over both transports and a workerd, on a Postgres of its own that does not wait for
// the disk (synchronous_commit off), while processes, backends, connections, the network and the server are taken away, in an
// order drawn from a seed. What meets what in time is the machine's, so a fault needs its story and not its seed alone.
//   npm run soak -- --minutes 30 --seed 7
// Exit code 1 where anything was lost, doubled, stuck, inverted, shared that is exclusive, deadlocked or left behind.

import { setTimeout as pause } from "node:timers/promises";
import pg from "pg";
import { startBridge } from "../../scripts/world/bridge.ts";
import { draws, pick } from "../../scripts/world/draws.ts";
import { startPostgres } from "../../scripts/world/postgres.ts";
import { pgDatabase } from "../../src/adapters/node.ts";
import { migrate } from "../../src/cli/migrate.ts";
import { createClaimer } from "../../src/index.ts";
import { blackout } from "../kills/blackout.ts";
import { startTcpProxy } from "../support/tcp_faults.ts";
import { argument, numberArgument, seedArgument } from "./arguments.ts";
import { type Actor, startActor, startAuthority, startWorkerActor, type Tally } from "./everything_cast.ts";
import { everythingJobs, type Payload } from "./everything_jobs.ts";
import { sabotage } from "./everything_sabotage.ts";
import { facts, nothing, violations } from "./everything_verdict.ts";
import type { SoakReport } from "./order.ts";

export interface SoakOptions {
  readonly seconds: number;
  readonly seed: number;
  /** Gets a line now and then. Default: nobody. */
  readonly progress?: (line: string) => void;
  /** A rule to take out first, to see that it is found out. */
  readonly sabotage?: string;
}

const enqueuers = 3;
const invocationsEach = 3;
const isolates = 2;
/** Processes of each transport: a short run has a machine to share. */
const processes = (seconds: number) => (seconds < 60 ? 1 : 2);
/** Between two blows: about so long, and so many handlers that have started. */
const blowEveryMs = 1_200;
const startsBetween = 6;
/** How much longer than asked a run may take until each blow has fallen once. */
const extraMs = 60_000;
/** Unfinished jobs above which the enqueuers wait, so that the drain is short. */
const backlog = 80;
const drainLimitMs = 120_000;
/** Poisons at most: each ends three processes. */
const poisonEveryMs = 30_000;
const keys = 8;
const names = 6;
const levels = ["read committed", "repeatable read", "serializable"] as const;
const kinds = [
  "plain",
  "ordered",
  "ordered",
  "locked",
  "locked",
  "limited",
  "limited_line",
  "limited_line",
  "unique",
  "alone",
  "parent",
  "dead",
];

/** What can be taken away. A run has each of them once before any comes again, then as often as its weight says. */
const blows = {
  "kill a Node process": 6,
  "kill workerd": 3,
  "terminate a backend that holds locks": 6,
  "terminate a backend that is busy": 4,
  "cancel a statement": 4,
  "reset every TCP connection": 3,
  "break every WebSocket": 3,
  "network black over pg": 2,
  "network black over neon": 2,
  "restart the server (fast)": 1,
  "restart the server (immediate)": 1,
  "restart the server (kill)": 1,
} as const;
type Blow = keyof typeof blows;
export const kindsOfBlows = Object.keys(blows).length;

export async function soakEverything(options: SoakOptions): Promise<SoakReport> {
  const { seconds, seed, progress = () => {} } = options;
  const draw = draws(seed);
  const fork = () => draws(pick(draw, 2 ** 31));
  const did: Record<string, number> = {};
  const faults: string[] = [];
  const tally: Tally = {
    count(what, by = 1) {
      if (by > 0) did[what] = (did[what] ?? 0) + by;
    },
    fault(what) {
      faults.push(what);
      progress(`FAULT  ${what}`);
    },
  };
  const cleanups: (() => Promise<unknown>)[] = [];
  try {
    // --- the stage
    const server = await startPostgres({
      // A WAL writer that seldom comes: what nobody insists on is lost in a crash.
      settings: { synchronous_commit: "off", wal_writer_delay: "10s", deadlock_timeout: "200ms" },
      onLog(line) {
        // The server's own statistics do not outlive a crash; its log does.
        if (line.includes("deadlock detected")) tally.fault(`the server says: ${line}`);
        if (/PANIC|signal (6|11)\b/.test(line)) tally.fault(`the server says: ${line}`);
      },
    });
    cleanups.push(() => server.stop());
    const url = server.url();
    const setupClient = new pg.Client(url);
    await setupClient.connect();
    await migrate({ client: setupClient });
    await setupClient.query(`
      create table asked (job_id bigint primary key, kind text not null);
      create table effect (serial bigserial, kind text not null, job_id bigint not null, attempt integer not null,
        k text not null, place bigint)`);
    if (options.sabotage !== undefined) await sabotage(setupClient, options.sabotage);
    await setupClient.end();
    await createClaimer({
      jobs: everythingJobs({ outside: "", instance: "" }),
      database: pgDatabase(url),
      log() {},
    }).register();
    await askAgain(url, "checkpoint");
    const target = { host: server.host, port: server.port };
    const bridge = await startBridge({ target });
    cleanups.push(() => bridge.close());
    const proxy = await startTcpProxy(target);
    cleanups.push(() => proxy.close());
    const through = new URL(url);
    through.port = String(proxy.port);

    // --- the cast
    const actors = new Map<string, Actor>();
    const authority = await startAuthority(fork(), (instance) => actors.get(instance)?.kill(), tally);
    cleanups.push(() => authority.close());
    const outside = authority.url;
    const cast = (actor: Actor) => actors.set(actor.instance, actor);
    const address = `127.0.0.1:${bridge.port}`;
    for (let n = 1; n <= processes(seconds); n++) {
      cast(
        startActor(
          { url: through.href, bridge: null, invocations: invocationsEach, outside, instance: `pg-${n}` },
          tally,
        ),
      );
      cast(startActor({ url, bridge: address, invocations: invocationsEach, outside, instance: `neon-${n}` }, tally));
    }
    cast(await startWorkerActor({ url, bridge: address, outside, instance: "workerd" }, isolates, tally));
    cleanups.push(() => Promise.all([...actors.values()].map((actor) => actor.stop())));
    const nodes = [...actors.values()].filter(({ instance }) => instance !== "workerd");

    // --- the load
    const startedAt = performance.now();
    const until = startedAt + seconds * 1_000;
    const complete = () => (Object.keys(blows) as Blow[]).every((blow) => did[`blow: ${blow}`] !== undefined);
    const loading = () => {
      const now = performance.now();
      return faults.length === 0 && (now < until || (now < until + extraMs && !complete()));
    };
    let poisonAt = startedAt + 2_000;
    const ask = (text: string) => askAgain(url, text);

    async function enqueuer(own: () => number): Promise<void> {
      let client: pg.Client | null = null;
      while (loading()) {
        try {
          client ??= await connect(url);
          await client.query(`begin isolation level ${levels[pick(own, levels.length)]}`);
          const poison = performance.now() > poisonAt && pick(own, enqueuers) === 0;
          if (poison) poisonAt = performance.now() + poisonEveryMs;
          for (let i = 1 + pick(own, 4); i > 0; i--) {
            const kind = `soak.${poison && i === 1 ? "poison" : kinds[pick(own, kinds.length)]}`;
            await client.query(
              `insert into asked (job_id, kind) select job_id, $1 from pgclaim.enqueue($1, $2) where type in ('enqueued', 'successor')`,
              [kind, payload(own)],
            );
          }
          const back = pick(own, 20) === 0;
          await client.query(back ? "rollback" : "commit");
          tally.count(back ? "enqueues rolled back" : "enqueues committed");
          while (
            loading() &&
            Number((await client.query("select count(*) as n from pgclaim.job where state <> 'dead'")).rows[0]?.n) >
              backlog
          )
            await pause(20);
        } catch (error) {
          const { code = "" } = error as { readonly code?: string };
          if (code === "40001") {
            tally.count("enqueues refused at SERIALIZABLE");
            await client?.query("rollback").catch(() => {});
            continue;
          }
          // Taken away: what it asked for is known by the table it wrote to in the same transaction.
          if (code !== "" && !/^(08|57|25P0|ECONN|EPIPE)/.test(code))
            tally.fault(`an enqueuer got ${code}: ${String(error)}`);
          tally.count("enqueuers cut off");
          await client?.end().catch(() => {});
          client = null;
          await pause(50);
        }
      }
      await client?.end().catch(() => {});
    }

    // --- the blows
    const own = fork();
    let deck: Blow[] = [];
    const drawBlow = (): Blow => {
      if (deck.length === 0) {
        const first = did.blows === undefined;
        deck = (Object.keys(blows) as Blow[]).flatMap((blow) => Array<Blow>(first ? 1 : blows[blow]).fill(blow));
      }
      return deck.splice(pick(own, deck.length), 1)[0] ?? "kill a Node process";
    };
    const backend = (verb: string, which: string) =>
      ask(`select pg_${verb}_backend(pid) as done from (
             select pid from pg_stat_activity a
             where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' and ${which}
             order by random() limit 1
           ) one`);
    const blackFor = async (net: Parameters<typeof blackout>[0]) => {
      const light = blackout(net);
      await pause(300 + own() * 2_500);
      light();
    };
    async function strike(blow: Blow): Promise<void> {
      let struck = true;
      switch (blow) {
        case "kill a Node process":
          nodes[pick(own, nodes.length)]?.kill();
          break;
        case "kill workerd":
          actors.get("workerd")?.kill();
          break;
        case "terminate a backend that holds locks":
          struck =
            (
              await backend(
                "terminate",
                "exists (select from pg_locks l where l.pid = a.pid and l.locktype = 'advisory')",
              )
            ).length > 0;
          break;
        case "terminate a backend that is busy":
          struck = (await backend("terminate", "state = 'active'")).length > 0;
          break;
        case "cancel a statement":
          struck = (await backend("cancel", "state = 'active'")).length > 0;
          break;
        case "reset every TCP connection":
          proxy.breakAll("reset");
          break;
        case "break every WebSocket": {
          const how = (["tcp-reset", "ws-close", "ws-terminate", "black-hole"] as const)[pick(own, 4)] ?? "tcp-reset";
          for (const connection of bridge.connections) if (connection.open) connection.break(how);
          break;
        }
        case "network black over pg":
          await blackFor(proxy);
          break;
        case "network black over neon":
          await blackFor(bridge);
          break;
        case "restart the server (kill)":
          await server.kill();
          await server.restart("immediate");
          break;
        case "restart the server (fast)":
        case "restart the server (immediate)":
          await server.restart(blow.includes("fast") ? "fast" : "immediate");
          break;
        default:
          blow satisfies never;
      }
      if (!struck) {
        deck.push(blow); // it met nobody; its turn comes again
        return;
      }
      tally.count(`blow: ${blow}`);
      tally.count("blows");
    }
    async function strikes(): Promise<void> {
      let told = 0;
      while (loading()) {
        await pause(blowEveryMs * (0.3 + own()));
        // Who is struck before he has done anything shows nothing: a busy machine gets more time, within a limit.
        const startsBefore = authority.starts.count;
        const workUntil = performance.now() + 5 * blowEveryMs;
        while (loading() && authority.starts.count < startsBefore + startsBetween && performance.now() < workUntil)
          await pause(20);
        if (!loading()) return;
        await strike(drawBlow());
        const minutes = Math.floor((performance.now() - startedAt) / 60_000);
        if (minutes === told) continue;
        told = minutes;
        progress(`${minutes} min: ${did.blows} blows, ${authority.starts.count} handlers started`);
      }
    }
    await Promise.all([strikes(), ...Array.from({ length: enqueuers }, () => enqueuer(fork()))]);

    // --- the drain
    const left = async () => (await ask(unfinished))[0] as { readonly n: number } | undefined;
    const drainedFrom = performance.now();
    tally.count("seconds of load", Math.round((drainedFrom - startedAt) / 1_000));
    const drainUntil = drainedFrom + drainLimitMs;
    while (((await left())?.n ?? 0) > 0 && performance.now() < drainUntil && faults.length === 0) await pause(100);
    tally.count("seconds of drain", Math.round((performance.now() - drainedFrom) / 1_000));
    await cleanups.pop()?.(); // the cast

    // --- the verdict
    for (const [what, text] of Object.entries(nothing)) {
      const rows = (await ask(text)) as { readonly n: string }[];
      if (Number(rows[0]?.n) > 0) tally.fault(`${what}: ${rows[0]?.n}`);
    }
    for (const { said } of (await ask(violations)) as { readonly said: string }[]) tally.fault(said);
    for (const [what, text] of Object.entries(facts))
      tally.count(what, Number(((await ask(text))[0] as { n: string }).n));
    tally.count("handlers started", authority.starts.count);
  } finally {
    for (const cleanup of cleanups.reverse()) await cleanup().catch((error: unknown) => tally.fault(String(error)));
  }
  return { did, faults };

  function payload(own: () => number): Payload {
    const left = Array.from({ length: names }, (_, i) => `n${i}`);
    const name = () => left.splice(pick(own, left.length), 1)[0] ?? "";
    return {
      k: `k${pick(own, keys)}`,
      a: name(),
      b: name(),
      c: name(),
      tenant: `t${pick(own, 3)}`,
      u: `u${pick(own, 40)}`,
      parent: "",
    };
  }
}

const unfinished = `select (
  (select count(*) from pgclaim.job where state <> 'dead') + (select count(*) from pgclaim.recheck)
  + (select count(*) from pgclaim.attempt where outcome is null)
)::integer as n`;

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000 });
  client.on("error", () => {}); // it is taken away now and then
  await client.connect();
  return client;
}

/** Asks on a connection of its own, again while the server is away. */
async function askAgain(url: string, text: string): Promise<unknown[]> {
  const until = performance.now() + 30_000;
  for (;;) {
    let client: pg.Client | null = null;
    try {
      client = await connect(url);
      return (await client.query(text)).rows;
    } catch (error) {
      const { code = "" } = error as { readonly code?: string };
      if (performance.now() > until || !/^(08|57|ECONN|EPIPE|$)/.test(code)) throw error;
      await pause(100);
    } finally {
      await client?.end().catch(() => {});
    }
  }
}

/** The command that does it again. */
export const replay = ({ seconds, seed }: Pick<SoakOptions, "seconds" | "seed">): string =>
  `npm run soak -- --seconds ${seconds} --seed ${seed}`;

if (process.argv[1] === import.meta.filename) {
  if (process.argv.includes("--help")) {
    console.log("npm run soak -- [--minutes 30 | --seconds N] [--seed N] [--sabotage fence|names|slots|reap]");
    process.exit(0);
  }
  const seconds = numberArgument("--seconds", 60 * numberArgument("--minutes", 30, 0), 0);
  const seed = seedArgument();
  const rule = argument("--sabotage");
  console.log(`soak of everything: ${seconds} s; again with: ${replay({ seconds, seed })}`);
  const { did, faults } = await soakEverything({
    seconds,
    seed,
    progress: (line) => console.log(line),
    ...(rule === undefined ? {} : { sabotage: rule }),
  });
  for (const [what, n] of Object.entries(did).sort(([a], [b]) => a.localeCompare(b)))
    console.log(`${String(n).padStart(9)}  ${what}`);
  for (const fault of faults) console.log(`FAULT  ${fault}`);
  console.log(
    faults.length === 0
      ? "Nothing lost, doubled, stuck, inverted, shared that is exclusive, deadlocked or left behind."
      : replay({ seconds, seed }),
  );
  process.exit(faults.length === 0 ? 0 : 1);
}
