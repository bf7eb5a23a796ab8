// Every exhibit once, small, so that none of them rots: the peers' parts have to run, and our own line has to say what
// docs/exhibits.md says of us. What the peers do is theirs and asserted nowhere.

import { afterAll, beforeAll, describe, expect, inject, it } from "vitest";
import { exhibits } from "../../scripts/exhibits/all.ts";
import { fetchPeers, type Peers } from "../../scripts/exhibits/peers.ts";
import { type Exhibit, openStage, type Row } from "../../scripts/exhibits/stage.ts";
import { findPgBouncer } from "../../scripts/world/pgbouncer.ts";

/** What our line must say; every number and word that may differ from run to run is a matcher. */
const ours: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  same_transaction: { pairs: 20, "second ran first": 0 },
  inverted_commits: {
    "enqueued after the other's commit, ran first": 0,
    "committed last, ran first": 0,
    "enqueuers to a new key that waited for the other": "0 of 1",
  },
  order: { "out of order in one transaction": 0, "out of order across commits": 0, lost: 0, twice: 0 },
  zombie: {
    "the zombie's completion": "refused, its tick is lost",
    "the job then": "ready, attempt 2 open",
    "after attempt 2 failed": "waits for attempt 3",
  },
  nul: {
    "the job": "waits for its retry",
    "its error": "`PGCLAIM_HANDLER_THREW: Error: bad byte: \u2400`",
    "the job behind it": "done",
  },
  schedule_herd: { "jobs of one occurrence": 1, errors: 0 },
  killed_holder: { "s until the job runs again": expect.stringMatching(/^\d+\.\d\d$/) },
  vacuum: {
    "transactions open": 1,
    "with an xid": 0,
    "with a snapshot (xmin)": 0,
    "dead rows kept from vacuum, of 1000": "0",
  },
  locked_head: { "job 201 runs": "yes" },
  pooler_lock: { "granted to two at once": "0 of 5", "still held 2 s after the holder has gone": "0 of 5" },
  lock_sets: { deadlocks: 0, "rounds in which nobody got both": 0 },
};

let peers: Peers | null = null;
let rows = 0;
beforeAll(async () => {
  peers = await fetchPeers();
}, 150_000);
afterAll(() => {
  if (peers === null) console.warn(`NOT RUN: what the exhibits show of the peers; only pgclaim's ${rows} lines were.`);
});

async function show(exhibit: Exhibit, { skip }: { readonly skip: () => void }): Promise<void> {
  const stage = await openStage({ adminUrl: inject("adminUrl"), peers, quick: true, waitMs: 1_000 });
  let table: readonly Row[];
  try {
    table = await exhibit.run(stage);
  } finally {
    await stage.close();
  }
  if (exhibit.name === "pooler_lock" && findPgBouncer() === null) return skip(); // it has said so
  const own = table.filter(({ system }) => system.startsWith("pgclaim"));
  rows += own.length;
  expect(own[0]?.figures).toMatchObject(ours[exhibit.name] ?? {});
  if (exhibit.name === "locked_head") {
    const { "blocks touched, alone": alone, "blocks touched, behind them": behind } = own[0]?.figures ?? {};
    // What a running job costs those behind it: a look and a try, no more.
    expect(Number(behind) - Number(alone)).toBeLessThan(200 * 12);
  }
  if (peers !== null && !["pooler_lock", "lock_sets"].includes(exhibit.name)) {
    expect(table.some(({ system }) => system.startsWith("pg-boss"))).toBe(true);
    expect(table.some(({ system }) => system.startsWith("Graphile Worker"))).toBe(true);
  }
}

/** Leaves a suspect, and while that runs in quarantine every other invocation of this process is told "busy". */
const alone = (exhibit: Exhibit) => exhibit.name === "killed_holder";

// Side by side, since most of them wait for somebody most of the time.
describe.concurrent("exhibits side by side", () => {
  it.for(exhibits.filter((exhibit) => !alone(exhibit)))("$name: $title", { timeout: 120_000 }, show);
});

describe("exhibits one by one", () => {
  it.for(exhibits.filter(alone))("$name: $title", { timeout: 120_000 }, show);

  it("are all of them in this file", () => {
    expect(Object.keys(ours).sort()).toEqual(exhibits.map(({ name }) => name).sort());
  });
});
