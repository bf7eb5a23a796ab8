// Whether a trigger has gone silent: what its cron expression promises, or the gaps it kept so far.

import { expect, it } from "vitest";
import { install } from "../sql/support.ts";
import { inspectorOf } from "./reading.ts";

const minute = 60_000;

it.each<[name: string, seen: string, everyMs: number | null, status: string]>([
  ["cron * * * * *", "35 seconds", minute, "ok"],
  ["cron * * * * *", "2 minutes", minute, "late"],
  ["cron * * * * *", "6 minutes", minute, "silent"],
  ["cron 0 * * * *", "30 minutes", 60 * minute, "ok"],
  ["cron 0 * * * *", "5 hours", 60 * minute, "silent"],
  ["cron /api/cron", "6 minutes", null, "unexpected"],
  ["http /api/trigger", "3 days", null, "unexpected"],
  ["manual", "3 days", null, "unexpected"],
])("%s, last seen %s ago", async (name, seen, everyMs, status) => {
  const world = await install();
  await world.sql.query(
    "insert into pgclaim.trigger (name, type, last_seen_at) values ($1, $2, now() - $3::interval)",
    [name, name.split(" ")[0], seen],
  );
  const [trigger] = await (await inspectorOf(world)).triggers();
  if (name === "cron 0 * * * *" && seen === "30 minutes" && trigger?.status === "late") {
    // The full hour has struck since, more than 30 s ago: then it is late, rightly.
    expect(new Date().getUTCMinutes()).toBeLessThan(31);
    return;
  }
  expect(trigger).toMatchObject({ name, everyMs, status });
});

it("knows a trigger without an expression by the median of its gaps", async () => {
  const world = await install();
  const woken = async (lastSeen: string) => {
    await world.sql.query("delete from pgclaim.trigger");
    await world.sql.query(
      `insert into pgclaim.trigger (name, type, last_seen_at, recent)
       select 'cron /api/cron', 'cron', now() - $1::interval, array(select now() - $1::interval - i * interval '10 minutes' from generate_series(20, 0, -1) i)`,
      [lastSeen],
    );
    return (await (await inspectorOf(world)).triggers())[0];
  };
  expect(await woken("9 minutes")).toMatchObject({ everyMs: 10 * minute, status: "ok" });
  expect(await woken("11 minutes")).toMatchObject({ everyMs: 10 * minute, status: "late" });
  expect(await woken("31 minutes")).toMatchObject({ everyMs: 10 * minute, status: "silent" });
});
