// The network goes black in the middle of ticks, for the session and the one-shots alike, so that nobody can settle; then it
// comes back. The invocations end within their limits and say `unknown`; the server ends what it never hears of again.

import { beforeEach, describe, expect, it, onTestFinished, vi } from "vitest";
import { pgDatabase } from "../../src/adapters/node.ts";
import { createClaimer, defineJob } from "../../src/index.ts";
import {
  drain,
  effect,
  effects,
  effectTable,
  expectWhole,
  invoke,
  numbered,
  quick,
  rendezvous,
  upTo,
  watchUnhandled,
  workTick,
} from "../support/engine.ts";
import { endsWithin, eventually } from "../support/gate.ts";
import { startTcpProxy } from "../support/tcp_faults.ts";
import { setup, transports } from "../support/world.ts";
import { blackout } from "./blackout.ts";

vi.setConfig({ testTimeout: 60_000 }); // a busy machine has room

beforeEach(() => watchUnhandled());

const limits = { ...quick, message: "1s", oneShot: "1s", settle: "1500ms", serverGrace: "500ms" } as const;
const budget = "4s";
/** The end of the budget, then a message, a settle, a one-shot and a close to their limits; and room for a busy machine. */
const boundMs = 4_000 + 1_000 + 1_500 + 1_000 + 300 + 7_000;

describe.each(transports)("a network over %s that goes black in the middle of ticks", (transport) => {
  it("ends every invocation with a code, is told of nothing, and costs no job and no effect", async () => {
    const world = await setup();
    await effectTable(world);
    const { hostname, port } = new URL(world.url);
    const proxy = await startTcpProxy({ host: hostname, port: Number(port || 5432) });
    onTestFinished(() => proxy.close());
    const through = new URL(world.url);
    through.hostname = "127.0.0.1";
    through.port = String(proxy.port);
    const meeting = rendezvous();
    const starts: string[] = [];
    // 1 calls out, 2 holds its turn, 3 waits for its turn behind 2's; each in a tick of its own but the last two.
    const job = (queue: string) =>
      defineJob({
        kind: `black.${queue}`,
        queue,
        payload: numbered,
        timeout: "2s",
        async run({ payload: { n }, tx, job: { attempt } }) {
          starts.push(`${n}:${attempt}`);
          if (n > 1) await effect(tx, n);
          if (attempt === 1 && n < 3) await meeting.meet(n);
          if (n === 1) await effect(tx, n);
        },
      });
    const [outside, turns] = [job("outside"), job("turns")];
    const claimer = createClaimer({
      jobs: [outside, turns],
      limits,
      log: () => {},
      database: transport === "pg" ? pgDatabase(through.toString()) : world.database("neon"),
    });
    await claimer.enqueue(outside, { n: 1 });
    await claimer.enqueueMany(turns, [{ n: 2 }, { n: 3 }]);
    const running = ["outside", "turns"].map((queue) =>
      endsWithin(boundMs, claimer.invoke({ type: "manual" }, { queues: [queue], budget }), `the one of ${queue}`),
    );
    await Promise.all([meeting.arrived(1), meeting.arrived(2)]);
    const light = blackout(transport === "pg" ? proxy : world.bridge);
    meeting.release(1);
    meeting.release(2);
    for (const report of await Promise.all(running)) {
      expect(report).toMatchObject({ ended: "error", error: { code: "PGCLAIM_OUTCOME_UNKNOWN" } });
      expect(workTick(report)).toMatchObject({ fate: "unknown", done: 0 });
    }
    // In the dark nothing can even begin, and that ends with a code too.
    const inTheDark = await invoke(claimer, { budget, within: boundMs });
    expect(inTheDark).toMatchObject({
      ended: "error",
      claimed: 0,
      error: { code: expect.stringMatching(/^PGCLAIM_/) },
    });
    light();
    // The server has heard of nothing, until its own limits end what is left.
    await eventually(async () => expect(await world.locks()).toBe(0));
    expect(await effects(world)).toEqual([]);
    await drain(world, claimer, upTo(3));
    expect(new Set(starts).size).toBe(starts.length);
    await expectWhole(world, { effects: upTo(3) });
  });
});
