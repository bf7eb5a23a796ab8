// Order in tests comes from gates and retried assertions, never from sleeping.

/** A promise with its handles outside. */
export interface Gate<T = void> {
  readonly promise: Promise<T>;
  open(value: T): void;
  fail(error: unknown): void;
}

export function gate<T = void>(): Gate<T> {
  let open: (value: T) => void = () => {};
  let fail: (error: unknown) => void = () => {};
  const promise = new Promise<T>((resolve, reject) => {
    open = resolve;
    fail = reject;
  });
  promise.catch(() => {}); // a gate nobody waits at any more is no news
  return { promise, open, fail };
}

/** Asks again until the assertion holds, at most `boundMs`; then its last failure is thrown. */
export async function eventually<T>(assertion: () => Promise<T> | T, boundMs = 10_000): Promise<T> {
  const until = performance.now() + boundMs;
  for (;;) {
    try {
      return await assertion();
    } catch (error) {
      if (performance.now() >= until) throw error;
      await new Promise((resolve) => setImmediate(resolve));
    }
  }
}

/** Fails loudly when something that must end does not. */
export async function endsWithin<T>(boundMs: number, promise: Promise<T>, what: string): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const limit = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not end within ${boundMs} ms`)), boundMs);
  });
  try {
    return await Promise.race([promise, limit]);
  } finally {
    clearTimeout(timer);
  }
}
