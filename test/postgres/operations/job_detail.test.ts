// One job: everything the page of a job shows, from the row or from history, with who holds its names right now.

import { describe, expect, it } from "vitest";
import type { JobDetail } from "../../../src/inspection.ts";
import { all, claimer, enqueue, enqueueOne, fence, finish, install } from "../sql/support.ts";
import { inspectorOf, KINDS, read } from "./support.ts";

describe("job", () => {
  it("tells what runs it: attempt, invocation, and each lock with its holder", async () => {
    const world = await install([
      ...KINDS,
      {
        name: "full",
        ...{ orderingKey: "o:{k}", locks: ["x:{k}"], sharedLocks: ["s"], limitNames: ["l:{k}"], limitMaxes: [3] },
      },
    ]);
    const inspector = await inspectorOf(world);
    const id = await enqueueOne(world.sql, "full", { k: "1" });
    const session = await claimer(world, { kinds: ["full"] });
    await fence(world.sql, session);
    const job = await inspector.job(id);
    expect(job).toMatchObject({
      id,
      state: "running",
      attempt: 1,
      why: { reason: "running", what: null },
      suspect: false,
    });
    expect(job?.attempts).toMatchObject([
      { n: 1, tick: session.tick, outcome: null, endedAt: null, invocationId: null },
    ]);
    const lock = (cls: string) => job?.locks.find((l) => l.class === cls);
    expect(job?.locks.map((l) => [l.class, l.name])).toEqual([
      ["key", "o:1"],
      ["limit", "l:1"],
      ["exclusive", "x:1"],
      ["shared", "s"],
      ["job", id],
    ]);
    for (const cls of ["key", "limit", "exclusive", "shared", "job"]) {
      // Another role's session: that it holds the lock may be seen, since when may not.
      expect(lock(cls)?.heldBy, cls).toEqual({ pid: session.pid, sinceMs: null, mine: true });
    }
    expect(lock("limit")).toMatchObject({ taken: 1, max: 3 });
    const mine = await read<JobDetail>(world, "job_detail_v1", { id });
    expect(mine.locks[0]?.heldBy?.sinceMs).toBeGreaterThanOrEqual(0);
    await finish(session.client, session.tick, all(session.jobs, "done"));
    const done = await inspector.job(id);
    expect(done).toMatchObject({
      state: "done",
      why: { reason: "ended", what: null },
      locks: [],
      behind: null,
      revision: null,
    });
    expect(done?.attempts).toMatchObject([{ n: 1, outcome: "done", invocationId: "test" }]);
    expect(done?.slackMs).toBeNull();
  });

  it("tells a name that somebody else holds, and one that is free", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const id = await enqueueOne(world.sql, "named", { k: "7" });
    const client = await world.connect();
    const { rows } = await client
      .query<{ pid: number }>("begin; select pg_backend_pid() as pid")
      .then((r) => (Array.isArray(r) ? r[1] : r));
    await client.query(
      "select pg_advisory_xact_lock(pgclaim.name_key('lock', 'session:7', seed)) from pgclaim.installation",
    );
    const job = await inspector.job(id);
    expect(job?.locks).toEqual([
      {
        class: "exclusive",
        name: "session:7",
        heldBy: { pid: rows[0]?.pid, sinceMs: null, mine: false },
        taken: null,
        max: null,
      },
      { class: "job", name: id, heldBy: null, taken: null, max: null },
    ]);
    expect(job?.why).toEqual({ reason: "busy", what: "session:7" });
  });

  it("gives the payload as text, to the digit, and cuts it at 65,536 characters", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const big = '{"id": 9007199254740993, "price": 1.10}';
    const id = await world.value<string>(`select job_id from pgclaim.enqueue('a', $1)`, [big]);
    expect(await inspector.payload(id)).toBe(big);
    expect(await inspector.job(id)).toMatchObject({ payloadText: big, payloadCut: false, payloadBytes: big.length });
    const text = "é".repeat(70_000);
    const long = await enqueueOne(world.sql, "a", { text });
    const job = await inspector.job(long);
    expect([job?.payloadText.length, job?.payloadCut]).toEqual([65_536, true]);
    expect(await inspector.payload(long)).toBe(`{"text": "${text}"}`);
    expect(job?.payloadBytes).toBe(Buffer.byteLength(`{"text": "${text}"}`));
  });

  it("shows hostile texts as they are", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const text = `<script>alert(1)</script>\u202e\u0007\\u0000 ' " %s \ud83e\udd8a`;
    const id = await enqueueOne(world.sql, "ordered", { k: text });
    const session = await claimer(world, { kinds: ["ordered"] });
    await fence(world.sql, session);
    await finish(session.client, session.tick, all(session.jobs, "dead", { error: text.repeat(20) }));
    await world.sql.query("insert into pgclaim.action (job_id, verb, actor, detail) values ($1, 'retry', $2, $2)", [
      id,
      text,
    ]);
    const job = await inspector.job(id);
    expect(job?.lastError).toBe(text.repeat(20));
    expect(job?.error).toBe([...text.repeat(20)].slice(0, 200).join(""));
    expect(job?.payloadText).toContain("<script>");
    expect(job?.actions).toMatchObject([{ verb: "retry", actor: text, detail: text }]);
    expect(job?.attempts[0]?.error).toBe(text.repeat(20));
  });

  it("counts who waits behind it in its key, to a cap", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const ids = await enqueue(world.sql, 5, "ordered", { k: "1" });
    expect((await inspector.job(ids[0] ?? ""))?.behind).toEqual({ n: 4, capped: false });
    expect((await inspector.job(ids[3] ?? ""))?.behind).toEqual({ n: 1, capped: false });
    expect((await read<JobDetail>(world, "job_detail_v1", { id: ids[0], behindCap: 2 })).behind).toEqual({
      n: 2,
      capped: true,
    });
    expect((await inspector.job(await enqueueOne(world.sql)))?.behind).toBeNull();
  });

  it("shows the newest hundred attempts, oldest first", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    const id = await enqueueOne(world.sql);
    await world.sql.query(
      `insert into pgclaim.attempt (job_id, n, tick, quarantined, ended_at, outcome)
       select $1, i, gen_random_uuid(), false, now(), 'failed' from generate_series(1, 130) i`,
      [id],
    );
    const numbers = (await inspector.job(id))?.attempts.map(({ n }) => n);
    expect(numbers).toEqual(Array.from({ length: 100 }, (_, i) => i + 31));
    await world.sql.query("delete from pgclaim.attempt");
  });

  it("answers null for a job that is not there, and refuses what is no id", async () => {
    const world = await install(KINDS);
    const inspector = await inspectorOf(world);
    for (const id of ["1", "9223372036854775807", "9223372036854775808", "99999999999999999999"]) {
      expect(await inspector.job(id)).toBeNull();
      expect(await inspector.payload(id)).toBeNull();
    }
    for (const id of ["", "-1", "1e3", "SECRET", "1; select 1", "9".repeat(31)]) {
      await expect(inspector.job(id), id).rejects.toMatchObject({ code: "PGCLAIM_INVALID_REQUEST" });
      await expect(inspector.payload(id)).rejects.not.toThrow(/SECRET/);
    }
  });
});
