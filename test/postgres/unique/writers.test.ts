// Thirty-two writers at once, on one key and on many, in every order, with rollbacks, while invocations finish what they
// enqueue: one job for each key, nothing lost, no deadlock in the server's own count.

import type pg from "pg";
import { describe, expect, it } from "vitest";
import { draws } from "../../../scripts/world/draws.ts";
import { defineJob } from "../../../src/index.ts";
import { endsWithin } from "../../support/gate.ts";
import { deadlocks, expectOneForEachKey, jobs, keyed, keyedWorld, keys, put, putOne } from "./support.ts";

const template = { payload: keyed, uniqueKey: "{key}" } as const;
const kinds = [
  defineJob({ kind: "keep", ...template }),
  defineJob({ kind: "replace", ...template, onConflict: "replace" }),
  defineJob({ kind: "reschedule", ...template, onConflict: "reschedule" }),
] as const;

const count = 32;
const boundMs = 60_000;

function seeded(): { readonly seed: number; readonly random: () => number } {
  const seed = Number(process.env.PGCLAIM_SEED ?? Math.floor(Math.random() * 2 ** 31));
  return { seed, random: draws(seed) };
}

function shuffled<T>(list: readonly T[], random: () => number): T[] {
  const drawn = list.map((value) => ({ value, at: random() }));
  return drawn.sort((a, b) => a.at - b.at).map(({ value }) => value);
}

async function connectAll(world: { connect(): Promise<pg.Client> }): Promise<pg.Client[]> {
  const clients: pg.Client[] = [];
  for (let i = 0; i < count; i++) clients.push(await world.connect());
  return clients;
}

describe("thirty-two writers", () => {
  it.each(["keep", "replace", "reschedule"])(
    "of one key at the same instant leave one job: %s",
    async (kind) => {
      const world = await keyedWorld(kinds);
      const clients = await connectAll(world);
      for (let round = 0; round < 5; round++) {
        const answers = await Promise.all(
          clients.map((client, i) => putOne(client, { kind, payload: { key: `k${round}`, value: i } })),
        );
        const first = answers.filter(({ type }) => type === "enqueued");
        expect(first).toHaveLength(1);
        expect(new Set(answers.map(({ id }) => id)).size).toBe(1);
        const others = { keep: "duplicate", replace: "replaced", reschedule: "rescheduled" }[kind];
        expect(answers.filter(({ type }) => type === others)).toHaveLength(count - 1);
      }
      await expectOneForEachKey(world, ["k0", "k1", "k2", "k3", "k4"]);
      expect(await deadlocks(world)).toBe(0);
    },
    boundMs,
  );

  it.each(["keep", "replace", "reschedule"])(
    "of batches with the same keys in different orders: %s",
    async (kind) => {
      const { seed, random } = seeded();
      const world = await keyedWorld(kinds);
      const clients = await connectAll(world);
      const names = Array.from({ length: 25 }, (_, i) => `k${i}`);
      const committed = await Promise.all(
        clients.map(async (client, i) => {
          const batch = shuffled(names, random).map((key) => ({ kind, payload: { key, value: i } }));
          const keeps = random() > 0.3;
          await client.query("begin");
          const answers = await put(client, ...batch);
          await client.query(keeps ? "commit" : "rollback");
          return keeps ? answers : [];
        }),
      );
      const enqueued = committed.flat().filter(({ type }) => type === "enqueued");
      expect(enqueued, `PGCLAIM_SEED=${seed}`).toHaveLength(names.length);
      await expectOneForEachKey(world, names);
      expect(await deadlocks(world)).toBe(0);
    },
    boundMs,
  );

  it(
    "of different keys do not wait for each other",
    async () => {
      const world = await keyedWorld(kinds);
      const clients = await connectAll(world);
      for (const client of clients) await client.query("begin");
      // Nobody has committed when the last one has its answer.
      const answers = await endsWithin(
        20_000,
        Promise.all(clients.map((client, i) => putOne(client, { kind: "replace", payload: { key: `k${i}` } }))),
        "thirty-two enqueues",
      );
      expect(answers.every(({ type }) => type === "enqueued")).toBe(true);
      for (const client of clients) await client.query("commit");
      expect(await jobs(world)).toHaveLength(count);
    },
    boundMs,
  );

  it(
    "beside invocations that finish what they enqueue, behind gates: each job runs once, and no key is left",
    async () => {
      const { seed, random } = seeded();
      const ran = new Map<string, number>();
      const gated = kinds.map((kind, i) =>
        defineJob({
          kind: kind.kind,
          ...template,
          onConflict: kind.policy.onConflict,
          ...(i === 0
            ? { locks: ["{lock}"] }
            : i === 1
              ? { orderingKey: "{account}" }
              : { limits: [{ name: "{account}", max: 2 }] }),
        }).handle(async ({ job, tx }) => {
          ran.set(job.id, (ran.get(job.id) ?? 0) + 1);
          await tx.query("insert into effect (n) values ($1::bigint % 2147483647)", [job.id]);
        }),
      );
      const world = await keyedWorld(gated, { batch: 10 });
      const clients = await connectAll(world);
      let writing = true;
      const errors: unknown[] = [];
      const reports = [1, 2].map(async () => {
        const seen = { done: 0, faults: 0 };
        while (writing || (await world.value<number>("select count(*)::integer from pgclaim.job")) > 0) {
          const report = await world.claimer.invoke({ type: "manual" });
          seen.done += report.done;
          if (report.error !== undefined) errors.push(report.error);
          errors.push(...report.faults);
        }
        return seen;
      });
      const expected = new Set<string>();
      await Promise.all(
        clients.map(async (client) => {
          for (let round = 0; round < 4; round++) {
            const batch = shuffled(
              Array.from({ length: 12 }, (_, i) => i),
              random,
            ).map((i) => ({
              kind: ["keep", "replace", "reschedule"][i % 3] ?? "keep",
              payload: { key: `k${i}`, account: `a${i % 2}`, lock: `l${i % 4}` },
            }));
            const keeps = random() > 0.2;
            await client.query("begin");
            const answers = await put(client, ...batch);
            await client.query(keeps ? "commit" : "rollback");
            if (!keeps) continue;
            for (const { type, id } of answers) if (type === "enqueued" || type === "successor") expected.add(id);
          }
        }),
      );
      writing = false;
      await endsWithin(40_000, Promise.all(reports), "the invocations");
      expect(errors, `PGCLAIM_SEED=${seed}`).toEqual([]);
      expect([...ran.values()].every((times) => times === 1)).toBe(true);
      expect([...ran.keys()].sort()).toEqual([...expected].sort());
      expect(await world.value("select count(*)::integer from effect")).toBe(expected.size);
      // A key may be left behind by a job that finished while a caller had it locked, who then rolled back; its next user
      // takes it over.
      for (const [key, id] of Object.entries(await keys(world))) expect([key, ran.get(id)]).toEqual([key, 1]);
      expect(await deadlocks(world)).toBe(0);
    },
    boundMs,
  );
});
