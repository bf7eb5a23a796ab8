// An installation with some of everything: done, dead, halted, waiting, late, running, and text that is up to no good wherever
// text may be.

import * as z from "zod";
import { type Claimer, deadLetter, defineJob } from "../../src/index.ts";
import { eventually, gate } from "../support/gate.ts";
import type { World } from "../support/world.ts";

/** HTML, an attribute's end, a bidi override, a control character, an address that is a script. */
export const hostile = `"><script>alert(1)</script><img src=x onerror=alert(2)>'\u202e\u0007 javascript:alert(3)`;

const payload = z.object({ n: z.number(), account: z.string(), mode: z.string(), note: z.string(), iban: z.string() });

export interface Seeded {
  readonly claimer: Claimer;
  /** Jobs by what became of them. */
  readonly jobs: {
    readonly dead: string;
    readonly retrying: string;
    readonly scheduled: string;
    readonly running: string;
  };
  /** Lets the job that runs come to its end, and waits for its invocation. */
  release(): Promise<void>;
}

export async function seed(world: World): Promise<Seeded> {
  const held = gate();
  const entered = gate();
  const report = defineJob({
    kind: "report.transaction",
    payload,
    orderingKey: "account:{account}",
    locks: ["authority-session:{account}"],
    retry: { maxAttempts: 3, minBackoff: "1h" },
    deadline: "15m",
    timeout: "14m",
    queue: "reports",
    async run({ payload: { mode } }) {
      if (mode === "hold") {
        entered.open();
        await held.promise;
      }
      if (mode === "fail") throw new Error(`503 from https://authority.example ${hostile}`);
      if (mode === "dead") return deadLetter(`the authority refuses: ${hostile}`);
      return undefined;
    },
  });
  const mail = defineJob({
    kind: "mail.send",
    payload: z.object({ to: z.string() }),
    uniqueKey: "mail:{to}",
    limits: [{ name: "smtp", max: 2 }],
    async run({ payload: { to } }) {
      if (to.startsWith("bad")) return deadLetter("no such mailbox");
      return undefined;
    },
  });
  const gone = defineJob({ kind: "invoice.void", payload: z.object({ n: z.number() }), async run() {} });
  const jobs = [report, mail];
  // A job that runs as long as somebody looks.
  const budget = { http: "20m", cron: "20m" } as const;
  // They fire on New Year's Day only: one that fires meanwhile is a job that nobody here counts.
  const schedules = [
    { name: "nightly", cron: "30 2 1 1 *", timeZone: "Europe/Zurich", job: mail, payload: { to: "night" } },
    { name: "every-five", cron: "*/5 * 1 1 *", job: mail, payload: { to: "five" }, catchUp: "none" as const },
  ];
  const old = world.claimer("pg", { jobs: [...jobs, gone], budget });
  await old.register();
  await old.enqueue(gone, { n: 1 }, { delay: "1h" });
  const claimer = world.claimer("pg", { jobs, schedules, queueMax: { reports: 5 }, budget });
  await claimer.register();

  const of = (n: number, mode: string, account = `${n}`) => ({
    n,
    account,
    mode,
    note: n % 2 === 0 ? hostile : "fine",
    iban: "DE02120300000000202051",
  });
  for (let n = 1; n <= 20; n++) await claimer.enqueue(report, of(n, "done"));
  await claimer.enqueueMany(mail, [{ to: "a" }, { to: "b" }, { to: "bad-1" }, { to: "bad-2" }, { to: hostile }]);
  const dead = await claimer.enqueue(report, of(30, "dead", hostile));
  await claimer.enqueue(report, of(31, "done", hostile));
  await claimer.enqueue(report, of(32, "done", hostile));
  const retrying = await claimer.enqueue(report, of(33, "fail"));
  const scheduled = await claimer.enqueue(mail, { to: "later" }, { delay: "1h" });
  await claimer.enqueue(report, of(34, "done"), { delay: "10m", deadlineAt: new Date(Date.now() + 40_000) });
  await claimer.invoke({ type: "cron", cron: "*/1 * * * *", scheduledAt: null });
  await claimer.invoke({ type: "http", by: "/api/trigger" });
  const running = await claimer.enqueue(report, of(40, "hold"));
  const invocation = claimer.invoke({ type: "http", by: "/api/trigger" }, { budget: "20m" });
  await entered.promise;
  await world.sql.query("select pgclaim.sample_depth(100000, 5000)");
  await fillCharts(world);
  // Not due again before the minute is over, whatever the machine does.
  await world.sql.query(
    "update pgclaim.trigger set last_seen_at = last_seen_at - interval '20 minutes' where type = 'cron'",
  );
  await eventually(async () => {
    const { running: n } = await claimer.inspect.overview();
    if (n !== 1) throw new Error(`${n} jobs run`);
  });
  return {
    claimer,
    jobs: { dead: dead.id, retrying: retrying.id, scheduled: scheduled.id, running: running.id },
    async release() {
      held.open();
      await invocation;
    },
  };
}

/** Three hours of minutes as the rollups have them, with a gap in the middle. */
async function fillCharts(world: World): Promise<void> {
  await world.sql.query(
    `insert into pgclaim.rollup (width, at, kind, done, retried, dead, late, late_ms)
     select 1, m, 'report.transaction', 120 + round(60 * sin(i / 14.0)), i % 7, 0,
       array[5, 10, 30, 40, 20, 10, 5, 2 + i % 4, 0, 0, 0, 0, 0, 0], 90000
     from generate_series(2, 179) as i, lateral (select date_trunc('minute', clock_timestamp()) - i * interval '1 minute' as m) t
     where i not between 80 and 95
     on conflict do nothing`,
  );
  await world.sql.query(
    `insert into pgclaim.tick_rollup (width, at, committed, lost, claimed, skipped)
     select 1, date_trunc('minute', clock_timestamp()) - i * interval '1 minute', 2, 0, 100 + (i * 31) % 60,
       jsonb_build_object('busy', (i * 7) % 40)
     from generate_series(2, 179) as i
     where i not between 80 and 95
     on conflict do nothing`,
  );
}
