// What a check of the doctor answers.

export type Status = "ok" | "warn" | "FAIL";

/** One line: what was measured, against what, and one thing to do about it. */
export interface Finding {
  readonly name: string;
  readonly status: Status;
  /** What was measured, and what it was held against. */
  readonly measured: string;
  /** One thing to do. Null where there is nothing to do. */
  readonly todo: string | null;
  /** The numbers of it, for --json. */
  readonly facts: Readonly<Record<string, unknown>>;
}

export interface Details {
  readonly todo?: string;
  readonly facts?: Readonly<Record<string, unknown>>;
}

export function ok(name: string, measured: string, { todo, facts }: Details = {}): Finding {
  return { name, status: "ok", measured, todo: todo ?? null, facts: facts ?? {} };
}

export function warn(name: string, measured: string, todo: string, facts: Details["facts"] = {}): Finding {
  return { name, status: "warn", measured, todo, facts };
}

export function fail(name: string, measured: string, todo: string, facts: Details["facts"] = {}): Finding {
  return { name, status: "FAIL", measured, todo, facts };
}
