// Who plays, and with which jobs.

export interface KindSpec {
  readonly name: string;
  /** Ordered by the payload's k. */
  readonly orderingKey?: boolean;
  /** Needs the name k for itself. */
  readonly lock?: boolean;
  /** So many at a time for k. */
  readonly limit?: number;
  readonly alone?: boolean;
  readonly maxCrashes?: number;
  readonly maxAttempts?: number;
}

export interface JobSpec {
  readonly name: string;
  readonly kind: string;
  readonly k?: string;
  /** Handler fails that often before it succeeds. */
  readonly fails?: number;
  /** Whose transaction enqueues it; there from the beginning if nobody's. */
  readonly by?: string;
  /** What it needs beside itself: `key:x`, `lock:x`, `limit:x:2`. */
  readonly needs?: readonly string[];
}

export interface Cast {
  readonly name: string;
  /** How many faults of A a history has at most when everything is played, and in CI (null: none of it is). B is as A, so its faults are too. */
  readonly faults: 0 | 1 | 2;
  readonly ci: 0 | 1 | null;
  readonly kinds: readonly KindSpec[];
  readonly jobs: readonly JobSpec[];
  readonly invocations: readonly string[];
  readonly batch: number;
  readonly maxTicks?: number;
  /** Another wake, with its reaper, at any moment. */
  readonly wakes?: boolean;
  /** A day goes by at any moment, and wake prunes what is that old. */
  readonly prunes?: boolean;
  readonly oneIsolate?: boolean;
  readonly isolation?: Readonly<Record<string, "read committed" | "repeatable read" | "serializable">>;
}

const plain: KindSpec = { name: "plain" };
const keyed: KindSpec = { name: "keyed", orderingKey: true };
const locked: KindSpec = { name: "locked", lock: true };

const key = (name: string, more: Partial<JobSpec> = {}): JobSpec => ({
  name,
  kind: "keyed",
  k: "x",
  needs: ["key:x"],
  ...more,
});

const two = ["A", "B"] as const;

export const casts: readonly Cast[] = [
  {
    name: "one invocation, a key, one enqueued",
    faults: 1,
    ci: 1,
    kinds: [keyed],
    jobs: [key("j1"), key("j2", { by: "E" })],
    invocations: ["A"],
    batch: 1,
  },
  {
    name: "one invocation, a key, one enqueued at repeatable read",
    faults: 1,
    ci: 0,
    kinds: [keyed],
    jobs: [key("j1"), key("j2", { by: "E" })],
    invocations: ["A"],
    batch: 1,
    isolation: { E: "repeatable read" },
  },
  {
    name: "two jobs of a key, two that enqueue",
    faults: 1,
    ci: 0,
    kinds: [keyed],
    jobs: [key("j1", { by: "E" }), key("j2", { by: "F" })],
    invocations: ["A"],
    batch: 2,
  },
  {
    name: "one job, a day goes by",
    faults: 1,
    ci: null,
    kinds: [plain],
    jobs: [{ name: "j1", kind: "plain" }],
    invocations: two,
    batch: 1,
    prunes: true,
  },
  {
    name: "one job",
    faults: 2,
    ci: 1,
    kinds: [plain],
    jobs: [{ name: "j1", kind: "plain" }],
    invocations: two,
    batch: 1,
  },
  {
    name: "one job, one wake",
    faults: 1,
    ci: null,
    kinds: [plain],
    jobs: [{ name: "j1", kind: "plain" }],
    invocations: two,
    batch: 1,
    wakes: true,
  },
  {
    name: "one job and one enqueued",
    faults: 1,
    ci: null,
    kinds: [plain],
    jobs: [
      { name: "j1", kind: "plain" },
      { name: "j2", kind: "plain", by: "E" },
    ],
    invocations: two,
    batch: 2,
  },
  {
    name: "a failing job",
    faults: 1,
    ci: 0,
    kinds: [plain],
    jobs: [{ name: "j1", kind: "plain", fails: 1 }],
    invocations: two,
    batch: 1,
  },
  {
    name: "a failing job, a day goes by",
    faults: 1,
    ci: null,
    kinds: [plain],
    jobs: [{ name: "j1", kind: "plain", fails: 1 }],
    invocations: two,
    batch: 1,
    prunes: true,
  },
  {
    name: "two jobs of a key",
    faults: 1,
    ci: 0,
    kinds: [keyed],
    jobs: [key("j1"), key("j2")],
    invocations: two,
    batch: 2,
  },
  {
    name: "two jobs of a key, one by one, one enqueued",
    faults: 1,
    ci: null,
    kinds: [keyed],
    jobs: [key("j1"), key("j2"), key("j3", { by: "E" })],
    invocations: two,
    batch: 1,
  },
  {
    name: "three jobs, two of a key, one enqueued",
    faults: 0,
    ci: null,
    kinds: [plain, keyed],
    jobs: [key("j1"), { name: "j2", kind: "plain" }, key("j3", { by: "E" })],
    invocations: two,
    batch: 2,
  },
  {
    name: "one job, one isolate",
    faults: 1,
    ci: null,
    kinds: [plain],
    jobs: [{ name: "j1", kind: "plain" }],
    invocations: two,
    batch: 1,
    maxTicks: 2,
    oneIsolate: true,
  },
  {
    name: "two jobs with one name",
    faults: 1,
    ci: 0,
    kinds: [locked],
    jobs: [
      { name: "j1", kind: "locked", k: "x", needs: ["lock:x"] },
      { name: "j2", kind: "locked", k: "x", needs: ["lock:x"] },
    ],
    invocations: two,
    batch: 1,
  },
];
