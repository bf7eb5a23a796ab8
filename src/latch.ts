// The isolate's latch: a suspect job runs while nothing else of ours runs in this isolate, so that a crash can be charged
// to it and to nobody else. The only module state there is: an isolate is what a killer takes with it.
//
// Whatever is in here leaves by itself, or expires. A platform may end an invocation between two awaits, with its `finally`
// and its handlers, and the isolate lives on: an entry that only its owner could remove would keep every suspect out, or
// every invocation, for as long as the isolate lives.

interface Entry {
  readonly quarantined: boolean;
  /** Clock reading after which it no longer counts. */
  readonly expiresAt: number;
}

const ticks = new Set<Entry>();
/** Handlers that ignored their abort and still run, of ticks that are over. */
const unsettled = new Set<Entry>();

/** Enters a tick. Null where it may not start; otherwise leave by calling the answer. */
export function enterTick(tick: {
  readonly quarantined: boolean;
  readonly now: number;
  /** Clock reading by which the tick is over, whatever happens to it. */
  readonly expiresAt: number;
}): (() => void) | null {
  if (isQuarantineRunning(tick.now)) return null;
  if (tick.quarantined && (living(ticks, tick.now).length > 0 || living(unsettled, tick.now).length > 0)) return null;
  const entry: Entry = { quarantined: tick.quarantined, expiresAt: tick.expiresAt };
  ticks.add(entry);
  return () => {
    ticks.delete(entry);
  };
}

/** Remembers a handler that goes on after its tick, until it ends or `expiresAt` is past. */
export function trackUnsettled(handler: Promise<unknown>, expiresAt: number): void {
  const entry: Entry = { quarantined: false, expiresAt };
  unsettled.add(entry);
  const leave = () => {
    unsettled.delete(entry);
  };
  handler.then(leave, leave);
}

/** Whether a quarantined tick runs in this isolate right now. */
export function isQuarantineRunning(now: number): boolean {
  return living(ticks, now).some((entry) => entry.quarantined);
}

function living(entries: Set<Entry>, now: number): Entry[] {
  for (const entry of entries) if (entry.expiresAt <= now) entries.delete(entry);
  return [...entries];
}
