// The only file that reads a clock. It measures lengths inside one invocation; what is due, and when, the database decides.

export interface Clock {
  /** Milliseconds that only ever grow, from an arbitrary start. */
  now(): number;
  /** The instant for a log line, never for a decision. */
  date(): Date;
  /** Calls back once after `ms`; the answer takes it back. */
  timer(ms: number, callback: () => void): () => void;
  /** A draw from [0, 1), for jitter. */
  random(): number;
}

/** The runtime's own clock. */
export const systemClock: Clock = {
  now: () => performance.now(),
  date: () => new Date(),
  timer(ms, callback) {
    const handle = setTimeout(callback, ms);
    return () => clearTimeout(handle);
  },
  random: () => Math.random(),
};

/** Waits `ms`, or until the signal aborts, whichever comes first. Never rejects. */
export function wait(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted === true) return resolve();
    const finish = () => {
      cancel();
      signal?.removeEventListener("abort", finish);
      resolve();
    };
    const cancel = clock.timer(ms, finish);
    signal?.addEventListener("abort", finish, { once: true });
  });
}

/** What `within` answers when the time ran out. */
export const timedOut: unique symbol = Symbol("timedOut");

/** Waits for a promise at most `ms`. A promise that comes later is ignored, a late rejection too. */
export function within<T>(clock: Clock, ms: number, promise: Promise<T>): Promise<T | typeof timedOut> {
  return new Promise((resolve, reject) => {
    const cancel = clock.timer(ms, () => resolve(timedOut));
    promise.then(
      (value) => {
        cancel();
        resolve(value);
      },
      (error: unknown) => {
        cancel();
        reject(error);
      },
    );
  });
}
