// A handler fails with a NUL in its error's message, which Postgres can store neither as text nor as jsonb.

import * as z from "zod";
import { defineJob } from "../../src/index.ts";
import { startChild, UNSTORABLE } from "./child.ts";
import type { Peers } from "./peers.ts";
import { claimerOf, type Exhibit, main, type Row, type Stage, until, value } from "./stage.ts";

/** The failure must be on record by then; a healthy system takes milliseconds. */
const limitMs = ({ quick }: Stage) => (quick ? 1_000 : 3_000);

async function pgclaim(stage: Stage): Promise<Row> {
  const url = await stage.database();
  const sql = await stage.connect(url);
  const job = defineJob({
    kind: "exhibit",
    payload: z.object({ bad: z.boolean() }),
    retry: { minBackoff: "1h", maxBackoff: "1h" },
    async run({ payload: { bad } }) {
      if (bad) throw new Error(UNSTORABLE);
    },
  });
  const claimer = claimerOf(url, [job]);
  await claimer.enqueueMany(job, [{ bad: true }, { bad: false }]);
  await claimer.invoke({ type: "manual" });
  return {
    system: "pgclaim",
    figures: {
      "the job": await value(
        sql,
        "select case state when 'scheduled' then 'waits for its retry' else state end from pgclaim.job",
      ),
      "its error": `\`${await value(sql, "select split_part(last_error, chr(10), 1) from pgclaim.job")}\``,
      "the job behind it": await value(sql, "select outcome from pgclaim.history"),
    },
  };
}

async function boss(stage: Stage, { boss: { name, PgBoss } }: Peers): Promise<Row> {
  const url = await stage.database({ bare: true });
  const sql = await stage.connect(url);
  const one = new PgBoss({ connectionString: url, supervise: false, schedule: false });
  const errors: string[] = [];
  one.on("error", (error) => errors.push(error.message));
  await one.start();
  await one.createQueue("exhibit", { retryLimit: 5, retryDelay: 3_600 });
  await one.send("exhibit", { bad: true });
  await one.send("exhibit", { bad: false });
  await one.work<{ bad: boolean }>("exhibit", { pollingIntervalSeconds: 0.5 }, async ([job]) => {
    if (job?.data.bad === true) throw new Error(UNSTORABLE);
  });
  const of = (bad: boolean) =>
    value<string>(sql, "select state::text from pgboss.job where name = 'exhibit' and (data ->> 'bad')::boolean = $1", [
      bad,
    ]);
  await until(limitMs(stage), async () =>
    (await of(false)) === "completed" && (await of(true)) !== "active" ? true : null,
  );
  const state = await of(true);
  const output = await value<string | null>(
    sql,
    "select left(output #>> '{message}', 60) from pgboss.job where name = 'exhibit' and (data ->> 'bad')::boolean",
  );
  const next = await of(false);
  await one.stop({ graceful: false });
  return {
    system: name,
    figures: {
      "the job":
        state === "active"
          ? `still "active" after ${limitMs(stage) / 1_000} s`
          : state === "retry"
            ? "waits for its retry"
            : state,
      "its error": output === null ? `not stored: ${errors[0]?.split(" (")[0] ?? "no error told"}` : `\`${output}\``,
      "the job behind it": next === "completed" ? "done" : next,
    },
    ...(state === "active" ? { remark: "comes back when its lease ends, by default after 15 minutes" } : {}),
  };
}

async function graphile(stage: Stage, { folder, graphile: { name, module, logger } }: Peers): Promise<Row> {
  const url = await stage.database({ bare: true });
  const sql = await stage.connect(url);
  await module.runMigrations({ connectionString: url, logger });
  await sql.query(
    "select graphile_worker.add_job('exhibit', '{\"bad\": true}'), graphile_worker.add_job('exhibit', '{\"bad\": false}')",
  );
  // In a process of its own: what it does with such an error must not end ours.
  const child = startChild({ system: "graphile", url, folder, act: "fail" });
  stage.later(child.kill);
  let ended: string | null = null;
  child.ended.then((how) => {
    ended = how;
  });
  const bad = "select locked_at is not null from graphile_worker._private_jobs where (payload ->> 'bad')::boolean";
  const good = async () =>
    (await value<string>(
      sql,
      "select count(*) from graphile_worker._private_jobs where not (payload ->> 'bad')::boolean",
    )) === "0";
  await child.standing;
  await until(limitMs(stage), async () => ((await good()) && !(await value<boolean>(sql, bad)) ? true : null));
  const locked = await value<boolean>(sql, bad);
  const error = await value<string | null>(
    sql,
    "select last_error from graphile_worker._private_jobs where (payload ->> 'bad')::boolean",
  );
  const next = (await good()) ? "done" : "not run";
  child.kill();
  return {
    system: name,
    figures: {
      "the job": locked ? `still locked after ${limitMs(stage) / 1_000} s` : "waits for its retry",
      "its error": error === null ? "not stored" : `\`${error}\``,
      "the job behind it": next,
    },
    ...(locked
      ? {
          remark: `comes back when its lock ends, after four hours${ended === null ? "" : `; the error is nobody's, and ends the process (${ended})`}`,
        }
      : {}),
  };
}

export const nul: Exhibit = {
  name: "nul",
  title: "NUL in an error message",
  says: "A handler fails with a message that contains `\\u0000`; a second job waits behind it.",
  async run(stage) {
    const { peers } = stage;
    const rows = [await pgclaim(stage)];
    if (peers !== null) rows.push(await boss(stage, peers), await graphile(stage, peers));
    return rows;
  },
};

if (import.meta.main) await main([nul]);
