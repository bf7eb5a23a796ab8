// The isolate's latch: a suspect job runs while nothing else of ours runs in this isolate, so that a crash can be charged
// to it and to nobody else. The only module state there is: an isolate is what a killer takes with it.

interface Isolate {
  ticks: number;
  quarantined: boolean;
  /** Handlers that ignored their abort and still run, of ticks that are over. */
  unsettled: number;
}

const isolate: Isolate = { ticks: 0, quarantined: false, unsettled: 0 };

/** Enters a tick. Null where it may not start; otherwise leave by calling the answer once. */
export function enterTick(options: { readonly quarantined: boolean }): (() => void) | null {
  if (isolate.quarantined) return null;
  if (options.quarantined && (isolate.ticks > 0 || isolate.unsettled > 0)) return null;
  isolate.ticks++;
  isolate.quarantined = options.quarantined;
  let inside = true;
  return () => {
    if (!inside) return;
    inside = false;
    isolate.ticks--;
    if (options.quarantined) isolate.quarantined = false;
  };
}

/** Remembers a handler that goes on after its tick, until it ends. */
export function trackUnsettled(handler: Promise<unknown>): void {
  isolate.unsettled++;
  const leave = () => {
    isolate.unsettled--;
  };
  handler.then(leave, leave);
}

/** Whether a quarantined tick runs in this isolate right now. */
export function isQuarantineRunning(): boolean {
  return isolate.quarantined;
}
