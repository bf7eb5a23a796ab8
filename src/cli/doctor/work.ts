// The doctor on the work itself: kinds nobody handles, keys that stand still, triggers that went silent, jobs that are cut again
// and again.

import type { Overview } from "../../inspection.ts";
import { integer } from "../../rows.ts";
import type { Connection } from "../connect.ts";
import { ago, count, length, plural } from "../format.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";
import type { Probe } from "./probe.ts";

export async function kinds({ inspect }: Connection): Promise<Finding> {
  const all = await inspect.kinds();
  const lost = all.filter(({ registered, waiting }) => !registered && waiting.n > 0);
  const facts = { kinds: all.length, unregistered: lost.map(({ name, waiting }) => ({ name, waiting })) };
  if (lost.length > 0) {
    const names = lost.slice(0, 3).map(({ name, waiting }) => `"${name}" (${count(waiting)})`);
    return fail(
      "kinds",
      `${plural(lost.length, "kind")} with waiting jobs and no handler in the deployment in force: ${names.join(", ")}${lost.length > 3 ? ", ..." : ""}`,
      `export it in the deployment's jobs, or: pgclaim jobs cancel --kind ${lost[0]?.name}`,
      facts,
    );
  }
  return all.length === 0
    ? warn(
        "kinds",
        "none: no deployment has run yet",
        "deploy, and trigger it once: pgclaim trigger --url https://...",
        facts,
      )
    : ok("kinds", `${plural(all.length, "kind")}, none with jobs that nobody handles`, { facts });
}

export function haltedKeys({ haltedKeys: halted, behindHalted }: Overview): Finding {
  const facts = { halted, behind: behindHalted };
  return halted.n > 0
    ? warn("halted keys", `${count(halted)} (${count(behindHalted)} jobs behind)`, "pgclaim keys list --halted", facts)
    : ok("halted keys", "none", { facts });
}

export function triggers({ triggers: all, now }: Overview): Finding {
  const facts = {
    triggers: all.map(({ name, status, lastSeenAt, everyMs }) => ({ name, status, lastSeenAt, everyMs })),
  };
  const told = ({ name, lastSeenAt, everyMs }: Overview["triggers"][number]) =>
    `"${name}" last seen ${ago(lastSeenAt, now)}${everyMs === null ? "" : `, expected every ${length(everyMs)}`}`;
  const silent = all.filter(({ status }) => status === "silent");
  if (silent.length > 0)
    return fail(
      "triggers",
      `silent: ${silent.map(told).join("; ")}`,
      "look at the platform's cron; a new one can take 15 minutes. Now: pgclaim trigger --url https://...",
      facts,
    );
  const late = all.filter(({ status }) => status === "late");
  if (late.length > 0)
    return warn("triggers", `late: ${late.map(told).join("; ")}`, "look again in a few minutes", facts);
  if (all.length === 0)
    return warn(
      "triggers",
      "none was seen yet",
      "deploy with a cron trigger; a new one can take 15 minutes to start",
      facts,
    );
  return ok("triggers", `${plural(all.length, "trigger")}, none silent: ${all.slice(0, 2).map(told).join("; ")}`, {
    facts,
  });
}

/** Interruptions in a row after which a job runs alone, uncharged; `counts.interruptedLimit`. */
const inARow = 5;
/** Suspects that are looked at. */
const looked = 200;

/** Jobs whose invocations were cut again and again: by the platform, or by what the job does. Nobody charges them. */
export async function interruptions(probe: Probe, schema: string): Promise<Finding> {
  const rows = await probe.ask(
    `select s.kind, count(*)::integer as jobs
     from (select j.id, j.kind from ${schema}.job j where j.state = 'ready' and j.suspect limit ${looked}) s
     cross join lateral (
       select count(*) filter (where l.outcome = 'interrupted') as n
       from (select a.outcome from ${schema}.attempt a where a.job_id = s.id and a.outcome is not null order by a.n desc limit ${inARow}) l
     ) c
     where c.n = ${inARow}
     group by s.kind order by 2 desc`,
  );
  const facts = { kinds: rows };
  if (rows.length === 0) return ok("interruptions", `no job waits that was cut ${inARow} times in a row`, { facts });
  const names = rows.slice(0, 3).map((row) => `${integer(row, "jobs")} "${String(row.kind)}"`);
  return warn(
    "interruptions",
    `cut ${inARow} times in a row, so they run alone, uncharged: ${names.join(", ")}`,
    "look at the platform's limits and logs for these kinds: memory, CPU time, a handler that blocks",
    facts,
  );
}
