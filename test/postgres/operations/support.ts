// A wake that says what woke it, and so leaves records.

import { type Db, type Wake, wake } from "../sql/support.ts";

export const MANUAL = { name: "manual", type: "manual" } as const;

/** The wake of an invocation; `request` adds to it. */
export function recordingWake(db: Db, request: Record<string, unknown> = {}): Promise<Wake> {
  return wake(db, { trigger: MANUAL, rollSlice: 2_000, depthCap: 100_000, depthMs: 500, ...request });
}

/** Tables that wake writes its records to. */
export const records = ["trigger", "trigger_minute", "trigger_bump", "rollup", "tick_rollup", "depth", "housekeeping"];
