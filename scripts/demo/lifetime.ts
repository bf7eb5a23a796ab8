// Everything the demo starts ends with it: by itself, by an error, by Ctrl-C. Newest first.

/** The demo is ending, so what has just started is not wanted any more. */
export class Stopped extends Error {}

export class Lifetime {
  readonly #closers: (() => unknown)[] = [];
  readonly #opening = new Set<Promise<unknown>>();
  #stopping = false;

  get stopping(): boolean {
    return this.#stopping;
  }

  /** Waits for a resource and remembers how to close it. */
  async open<T>(resource: Promise<T>, close: (resource: T) => unknown): Promise<T> {
    const opening = resource.then((opened) => {
      this.#closers.push(() => close(opened));
    });
    this.#opening.add(opening);
    await opening.finally(() => this.#opening.delete(opening));
    if (this.#stopping) throw new Stopped("the demo is ending");
    return resource;
  }

  /** Closes everything, what is just opening too. What cannot be closed is reported, and the rest is closed. */
  async close(): Promise<void> {
    this.#stopping = true;
    while (this.#closers.length + this.#opening.size > 0) {
      const closer = this.#closers.pop();
      if (closer === undefined) {
        await Promise.allSettled(this.#opening);
        continue;
      }
      try {
        await closer();
      } catch (error) {
        console.error(`while cleaning up: ${error instanceof Error ? error.message : String(error)}`);
      }
    }
  }
}
