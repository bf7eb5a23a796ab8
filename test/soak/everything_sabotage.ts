// Rules taken out, one at a time, to see that the soak of everything finds out:
//   npm run soak -- --seconds 60 --sabotage names
// Each is a change of one function on the soak's own server, and exit code 1 is what is expected then.

import type pg from "pg";

const sabotages = {
  /** The fence does not insist on the disk, so that a crash of the server forgets it. */
  fence: {
    of: "pgclaim.fence_v1(jsonb)",
    rule: "perform set_config('synchronous_commit', 'on', true);",
    without: "null;",
  },
  /** Names are locked under a key that nobody else has. */
  names: {
    of: "pgclaim.take_locks",
    rule: "pgclaim.name_key('lock', n.name, seed)",
    without: "pgclaim.name_key('lock', n.name || random(), seed)",
  },
  /** So are slots of limits. */
  slots: {
    of: "pgclaim.take_slot",
    rule: "pgclaim.name_key(",
    without: "pgclaim.name_key(random() || ",
  },
  /** Whoever has an open attempt is taken for dead, though his transaction lives. */
  reap: {
    of: "pgclaim.reap(integer)",
    rule: "continue when not pgclaim.try_job_lock(j.kind, a.job_id);",
    without: "",
  },
} as const;

export async function sabotage(client: pg.Client, name: string): Promise<void> {
  const what = sabotages[name as keyof typeof sabotages];
  if (what === undefined) throw new Error(`--sabotage wants one of: ${Object.keys(sabotages).join(", ")}`);
  const cast = what.of.includes("(") ? "regprocedure" : "regproc";
  const { rows } = await client.query<{ text: string }>(`select pg_get_functiondef($1::${cast}) as text`, [what.of]);
  const text = rows[0]?.text ?? "";
  if (!text.includes(what.rule)) throw new Error(`the sabotage "${name}" does not find its rule`);
  await client.query(text.replaceAll(what.rule, () => what.without));
}
