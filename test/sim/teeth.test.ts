// The simulation can fail: with a rule of the protocol taken out of the schema, in this test's own database, it finds a
// history that breaks an invariant. Each prints the shortest one it found.

import { describe, expect, it } from "vitest";
import { type Cast, casts } from "./casts.ts";
import { explore } from "./explore.ts";
import { Lane } from "./lane.ts";
import { readReplay } from "./plans.ts";

interface Tooth {
  readonly rule: string;
  readonly where: string;
  readonly without: readonly (readonly [from: string, to: string])[];
  /** Cast and plan in which it shows, as planName writes them. */
  readonly history: string;
  readonly says: RegExp;
}

const teeth: readonly Tooth[] = [
  {
    rule: "claim holds a job only if the lock call said so",
    where:
      "pgclaim.take_locks(bigint,text,text,text[],text[],text[],integer[],boolean,bigint[],boolean[],bigint[],integer,bigint)",
    without: [
      [
        "if wanted = any (held_keys) or not pg_try_advisory_xact_lock(wanted) then\n    took.reason",
        "perform pg_try_advisory_xact_lock(wanted); if false then\n    took.reason",
      ],
    ],
    history: "one job | no fault",
    says: /claims \d+ while/,
  },
  {
    rule: "claim leaves a job with an open attempt alone (A4)",
    where: "pgclaim.claim_v1(jsonb)",
    without: [
      [
        "when exists (select from pgclaim.attempt o where o.job_id = j.id and o.outcome is null) then 'open-attempt'",
        "when false then 'open-attempt'",
      ],
    ],
    history: "one job | A.call:j1#1 crash",
    says: /two open attempts/,
  },
  {
    rule: "the fence opens no number below the job's own (A2)",
    where: "pgclaim.fence_v1(jsonb)",
    without: [["where j.attempt < u.n\n", "where true\n"]],
    history: "a failing job, a day goes by | A.fence#1 late-twice",
    says: /below the job's number|started twice|two open/,
  },
  {
    rule: "the fence grants a number to the tick that wrote it and to no other",
    where: "pgclaim.fence_v1(jsonb)",
    without: [["where a.tick = (request ->> 'tick')::uuid and a.outcome is null", "where a.outcome is null"]],
    history: "one job | A.fence#1 silent",
    says: /j1:1 started twice/,
  },
  {
    rule: "prune keeps a number until the job's own has passed it (A3)",
    where: "pgclaim.prune(integer,bigint)",
    without: [["(j.id is null or o.n <= j.attempt)", "true"]],
    history: "one job, a day goes by | A.fence#1 late-twice + A.finish#1 lose",
    says: /two open attempts|below/,
  },
  {
    rule: "the reaper tries the job's lock first (A5)",
    where: "pgclaim.reap(integer)",
    without: [["continue when not pgclaim.try_job_lock(j.kind, a.job_id);", ""]],
    history: "one job | no fault",
    says: /reaped while its transaction lived/,
  },
  {
    rule: "a tick's row decides its fate by who inserts it first (A15)",
    where: "pgclaim.finish_v1(jsonb)",
    without: [
      [
        "request ->> 'invocation', request -> 'report');",
        "request ->> 'invocation', request -> 'report') on conflict do nothing;",
      ],
    ],
    history: "one job | A.finish#1 late",
    says: /by a tick that did not commit/,
  },
  {
    rule: "an enqueuer takes the gate's lock at COMMIT (B2)",
    where: "pgclaim.place_at_commit()",
    without: [["perform pgclaim.lock_gates(gates);", ""]],
    history: "one invocation, a key, one enqueued | no fault",
    says: /not drained|enqueues committed as/,
  },
  {
    rule: "finish takes the gates of what it ends (B2)",
    where: "pgclaim.finish_v1(jsonb)",
    without: [["pgclaim.lock_gates(gates, array(", "coalesce('{}'::text[], array("]],
    history: "one invocation, a key, one enqueued | no fault",
    says: /not drained/,
  },
  {
    rule: "a caller above READ COMMITTED leaves a note (B3)",
    where: "pgclaim.place_at_commit()",
    without: [["current_setting('transaction_isolation') = 'read committed'", "true"]],
    history: "one invocation, a key, one enqueued at repeatable read | no fault",
    says: /not drained/,
  },
  {
    rule: "places are drawn at COMMIT, not where the job is inserted (B1)",
    where: "pgclaim.draw_places(text[])",
    without: [["nextval('pgclaim.place_seq') as place", "o.id as place"]],
    history: "two jobs of a key, two that enqueue | no fault",
    says: /enqueues committed as j2 j1/,
  },
];

describe("without a rule the simulation finds a history that breaks", () => {
  it.each(teeth)(
    "$rule",
    async ({ rule, where, without, history, says }) => {
      const { cast: name, plans } = readReplay(history);
      const cast = casts.find((one): one is Cast => one.name === name);
      if (cast === undefined) throw new Error(`no cast is called ${name}`);
      const lane = await Lane.open();
      try {
        await lane.alter(where, without);
        const { failures, histories } = await explore(lane, cast, plans, {
          until: Number.POSITIVE_INFINITY,
          failures: 3,
        });
        const [shortest] = failures.toSorted((a, b) => a.trace.length - b.trace.length);
        expect(shortest, `${histories} histories found nothing`).toBeDefined();
        console.log(
          `without "${rule}", ${failures.length} of ${histories} histories break. The shortest:\n  ${shortest?.trace.join("\n  ")}\n  => ${shortest?.faults.join("; ")}`,
        );
        expect(failures.flatMap(({ faults }) => faults).join("\n")).toMatch(says);
      } finally {
        await lane.close();
      }
    },
    120_000,
  );
});
