// Enqueue and kick: the trigger of a real workerd is woken over its own socket as soon as the job is committed, and answers
// before the work is done. A kick that is lost, refused, slow or doubled changes nothing but the time.

import http from "node:http";
import type { AddressInfo } from "node:net";
import { describe, expect, it, onTestFinished } from "vitest";
import { type Claimer, defineJob, type LogEntry } from "../../../src/index.ts";
import { invoke, numbered } from "../../support/engine.ts";
import { endsWithin, eventually, gate } from "../../support/gate.ts";
import { setup, type World } from "../../support/world.ts";
import { type Lab, secrets, setupLab, soonMs, startListening } from "../../workerd/support.ts";
import { kinds, type Order } from "../../workerd/workers/kinds.ts";

const call = kinds({ OUTSIDE: "", INSTANCE: "none" })[0] as ReturnType<typeof kinds>[number];

/** A workerd with a socket of its own, and a claimer elsewhere that kicks it. */
async function kickable(): Promise<{ readonly lab: Lab; readonly claimer: Claimer; readonly triggered: () => number }> {
  const lab = await setupLab();
  const { url, log } = await startListening(lab, "jobs.ts");
  const claimer = lab.claimer("pg", {
    jobs: kinds({ OUTSIDE: lab.outside.url, INSTANCE: "none" }),
    kick: { url: new URL("/api/trigger", url).href, secret: secrets.PGCLAIM_TRIGGER_SECRET },
  });
  await claimer.register();
  const triggered = () => log.filter((line) => line.includes('"trigger":"http /api/trigger"')).length;
  return { lab, claimer, triggered };
}

describe("a kick of real workerd", () => {
  it("is answered while the job it brought still runs, and the invocation goes on to its end", async () => {
    const { lab, claimer, triggered } = await kickable();
    const held = gate<Order>();
    lab.outside.answer(() => held.promise);
    // The handler cannot end before the test lets it, so an answer that came after the work would never come.
    const answer = await endsWithin(soonMs, claimer.enqueue(call, { name: "kicked" }, { kick: true }), "the enqueue");
    expect(answer).toEqual({ type: "enqueued", id: expect.stringMatching(/^\d+$/) });
    await lab.outside.reached(1);
    expect(lab.log.filter(({ event }) => event === "pgclaim.kick")).toEqual([]);
    expect(triggered()).toBe(0);
    held.open("ok");
    await eventually(async () => expect(await lab.effects()).toEqual(["kicked"]), soonMs);
    await eventually(() => expect(triggered()).toBe(1), soonMs);
    expect(await claimer.job(answer.id)).toMatchObject({ state: "done", attempts: [{ n: 1, outcome: "done" }] });
    await lab.locksFree();
  });

  it("comes after the commit: with the caller's client only when the caller says so", async () => {
    const { lab, claimer, triggered } = await kickable();
    const client = await lab.connect();
    await client.query("begin");
    const { kick, ...answer } = await claimer.enqueue(call, { name: "mine" }, { kick: true, client });
    expect(answer).toEqual({ type: "enqueued", id: expect.any(String) });
    // Too early, it finds nothing, which is no harm.
    await kick?.();
    await eventually(() => expect(triggered()).toBe(1), soonMs);
    expect(await lab.effects()).toEqual([]);
    await client.query("commit");
    await kick?.();
    await eventually(async () => expect(await lab.effects()).toEqual(["mine"]), soonMs);
  });

  it("that is doubled runs nothing twice", async () => {
    const { lab, claimer, triggered } = await kickable();
    const names = Array.from({ length: 8 }, (_, i) => `n${i}`);
    await Promise.all(names.map((name) => claimer.enqueue(call, { name }, { kick: true })));
    await eventually(async () => expect(await lab.effects()).toEqual(names), soonMs);
    await eventually(() => expect(triggered()).toBe(8), soonMs);
    expect(lab.outside.calls).toHaveLength(8);
    await lab.locksFree();
  });

  it("brings a whole batch with one kick", async () => {
    const { lab, claimer, triggered } = await kickable();
    await claimer.enqueueMany(call, [{ name: "a" }, { name: "b" }], { kick: true });
    await eventually(async () => expect(await lab.effects()).toEqual(["a", "b"]), soonMs);
    await eventually(() => expect(triggered()).toBe(1), soonMs);
  });
});

describe("a kick that fails", () => {
  const secret = "not-to-be-told";

  async function failing(answer: (response: http.ServerResponse) => void): Promise<{ world: World; claimer: Claimer }> {
    const server = http.createServer((_, response) => answer(response));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    onTestFinished(() => {
      server.closeAllConnections();
      server.close();
    });
    const world = await setup();
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/api/trigger`;
    return { world, claimer: world.claimer("pg", { jobs: [job], kick: { url, secret } }) };
  }
  const job = defineJob({ kind: "a", payload: numbered, run() {} });
  const kicks = (world: World): LogEntry[] => world.log.filter(({ event }) => event === "pgclaim.kick");

  it.each([
    ["is refused", (response: http.ServerResponse) => void response.writeHead(401).end()],
    ["is hung up on", (response: http.ServerResponse) => void response.destroy()],
    ["is never answered", () => {}],
  ])("because it %s costs seconds at most: the job is there, and the next cron runs it", async (_, answer) => {
    const { world, claimer } = await failing(answer);
    const enqueued = await endsWithin(6_000, claimer.enqueue(job, { n: 1 }, { kick: true }), "the enqueue");
    expect(enqueued.type).toBe("enqueued");
    expect(kicks(world)).toHaveLength(1);
    expect(JSON.stringify(world.log)).not.toContain(secret);
    expect(await invoke(claimer)).toMatchObject({ done: 1 });
  });

  it("does not come at all where the job was refused", async () => {
    let heard = 0;
    const { claimer } = await failing((response) => {
      heard++;
      response.end();
    });
    await expect(claimer.enqueue(job, { n: "x" } as never, { kick: true })).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_PAYLOAD",
    });
    expect(heard).toBe(0);
    await claimer.enqueue(job, { n: 1 });
    expect(heard).toBe(0);
    await claimer.enqueue(job, { n: 1 }, { kick: true });
    expect(heard).toBe(1);
  });
});

describe("its options", () => {
  const job = defineJob({ kind: "a", payload: numbered });

  it("are asked for where they are missing, before anything is enqueued", async () => {
    const world = await setup();
    const claimer = world.claimer("pg", { jobs: [job] });
    await claimer.register();
    const refused = { code: "PGCLAIM_INVALID_OPTION", path: "kick" };
    await expect(claimer.enqueue(job, { n: 1 }, { kick: true })).rejects.toMatchObject(refused);
    await expect(claimer.enqueueMany(job, [{ n: 1 }], { kick: true })).rejects.toMatchObject(refused);
    await expect(claimer.enqueue(job, { n: 1 }, { kick: "yes" as never })).rejects.toMatchObject(refused);
    expect((await claimer.enqueue(job, { n: 1 }, { kick: false })).type).toBe("enqueued");
    expect(await world.value("select count(*)::integer from pgclaim.job")).toBe(1);
  });

  it("refuse a batch on the caller's client, whose answer has no kick to carry", async () => {
    const world = await setup();
    const claimer = world.claimer("pg", { jobs: [job], kick: { url: "http://127.0.0.1:1/", secret: "s" } });
    const client = await world.connect();
    await expect(claimer.enqueueMany(job, [{ n: 1 }], { kick: true, client })).rejects.toMatchObject({
      code: "PGCLAIM_INVALID_OPTION",
      path: "kick",
    });
  });

  it("are checked when the claimer is made, and the secret is not said", async () => {
    const world = await setup();
    const make = (kick: unknown) => () => world.claimer("pg", { jobs: [job], kick: kick as never });
    expect(make({ url: "nowhere", secret: "hidden" })).toThrow(
      expect.objectContaining({ code: "PGCLAIM_INVALID_OPTION" }),
    );
    expect(make({ url: "nowhere", secret: "hidden" })).toThrow(
      expect.not.objectContaining({ message: expect.stringContaining("hidden") }),
    );
    expect(make(null)).toThrow(expect.objectContaining({ path: "kick" }));
  });
});
