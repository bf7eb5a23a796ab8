// Schedules in the database. What is due is decided by the server's clock, so a test moves next_at instead of the clock.

import * as z from "zod";
import { type AnySchedule, type Claimer, type ClaimerOptions, defineJob } from "../../../src/index.ts";
import { setup, type World } from "../../support/world.ts";

export const job = defineJob({ kind: "report", payload: z.object({ of: z.string() }) });

/** A rule that is due only when a test makes it so: of each minute's, a minute may begin while a test looks. */
export const yearly = "0 0 1 1 *";

export interface Scheduled extends Omit<World, "claimer"> {
  readonly claimer: Claimer;
  /** Another deployment on the same database. */
  deploy(options: Partial<Omit<ClaimerOptions, "database">>): Claimer;
}

/** A world whose schedules are registered. */
export async function scheduledWorld(
  schedules: readonly AnySchedule[],
  options: Partial<Omit<ClaimerOptions, "database">> = {},
): Promise<Scheduled> {
  const world = await setup();
  const deploy = (more: Partial<Omit<ClaimerOptions, "database">>) => world.claimer("pg", { jobs: [job], ...more });
  const claimer = deploy({ schedules, ...options });
  await claimer.register();
  return { ...world, claimer, deploy };
}

export function schedule(name: string, more: Partial<AnySchedule> = {}): AnySchedule {
  return { name, cron: "* * * * *", job, payload: { of: name }, ...more };
}

type Tables = Pick<World, "rows" | "value" | "sql">;

/** Makes schedules due since a whole minute, `minutes` ago; answers that minute in milliseconds. */
export async function dueSince(world: Tables, minutes: number, name?: string): Promise<number> {
  const { rows } = await world.sql.query<{ at: Date }>(
    `update pgclaim.schedule
     set next_at = date_trunc('minute', clock_timestamp()) - $1 * interval '1 minute', fresh = false
     where name = coalesce($2, name)
     returning next_at as at`,
    [minutes, name ?? null],
  );
  return rows[0]?.at.getTime() ?? 0;
}

/** The instants of the jobs that schedules have enqueued, in minutes after `since`, by name. */
export async function occurrences(world: Tables, since: number): Promise<Record<string, number[]>> {
  const rows = await world.rows<{ name: string; at: Date }>(
    `select payload ->> 'of' as name, run_at as at from pgclaim.job
     union all
     select payload ->> 'of', run_at from pgclaim.history
     order by 1, 2`,
  );
  const found: Record<string, number[]> = {};
  for (const { name, at } of rows) {
    const list = found[name] ?? [];
    list.push((at.getTime() - since) / 60_000);
    found[name] = list;
  }
  return found;
}

export interface ScheduleState {
  readonly name: string;
  readonly cron: string;
  readonly next_at: Date;
  readonly fresh: boolean;
  readonly last_at: Date | null;
  readonly fault: string | null;
}

export function states(world: Tables): Promise<ScheduleState[]> {
  return world.rows<ScheduleState>(
    "select name, cron, next_at, fresh, last_at, fault from pgclaim.schedule order by name",
  );
}

/** The server's clock is past the minute that `since` counts from by this many whole minutes. */
export async function minutesSince(world: Tables, since: number): Promise<number> {
  return Math.floor(
    Number(await world.value("select extract(epoch from clock_timestamp()) * 1000 - $1::float8", [since])) / 60_000,
  );
}
