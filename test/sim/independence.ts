// Which steps of two actors commute, so that orders which differ only in them count once.
//
// A step's footprint says what of the shared state it reads and writes, as far as anybody else can see:
//
//   local    nothing: a handler's call, its statements on its own uncommitted transaction, an uncommitted enqueue, a message
//            that was never sent. READ COMMITTED hides them from everybody, and no table here has a unique key they share.
//   reader   reads the whole installation and changes nothing: a wake that reaped nothing, a claim that got nothing.
//   global   reads the whole installation and changes something: a claim, a fence (it reaps), a wake that reaped.
//   a set    reads and writes these and nothing else: jobs by name, `key:`, `lock:`, `limit:` of their gates. finish, COMMIT,
//            rollback, settle, the death of a session (its locks go).
//
// Two steps commute when one is local, when both are readers, or when both are sets without a common member. Everything else
// is taken for dependent, so a footprint may be too large and must never be too small. A step that has begun to wait for a
// lock counts with what it will touch; whoever ends its wait counts with both footprints.
//
// Soundness. Each actor is deterministic: which fault it meets, and where, is fixed before a history begins, so at any moment
// it has one next step (its handlers' steps are local). A local step commutes with every step of others from now on, hence
// {it} is a persistent set and it is run at once without a branch. All other steps branch, and sleep sets (Godefroid, "Partial-
// Order Methods for the Verification of Concurrent Systems", 1996) leave out exactly those orders that can be had from one
// already run by exchanging neighbours that commute. A sleeping step's footprint is the one it had when it ran in the sibling:
// only steps that commute with it have run since, so it would still do the same.

export type Footprint = "local" | "reader" | "global" | ReadonlySet<string>;

export function independent(a: Footprint, b: Footprint): boolean {
  if (a === "local" || b === "local") return true;
  if (a === "reader" && b === "reader") return true;
  if (typeof a === "string" || typeof b === "string") return false;
  for (const name of a) if (b.has(name)) return false;
  return true;
}

/** The footprint of both together. */
export function union(a: Footprint, b: Footprint): Footprint {
  if (a === "local") return b;
  if (b === "local") return a;
  if (typeof a !== "string" && typeof b !== "string") return new Set([...a, ...b]);
  return a === "reader" && b === "reader" ? "reader" : "global";
}
