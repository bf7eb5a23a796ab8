// A WebSocket that can be dropped, for workerd. It ends an invocation only when each WebSocket of it has heard the other
// side's close frame; from a proxy that is gone without a word none comes, and scheduled() would hang until the platform's
// limit, 15 minutes. `new WebSocket()` has no handle for that, but aborting the fetch that made the upgrade drops it.

/** workerd's WebSocket, as the answer to an upgrade carries it. */
interface UpgradedSocket {
  binaryType: string;
  accept(): void;
  send(data: Uint8Array): void;
  close(): void;
  addEventListener(type: SocketEvent, listener: (event: unknown) => void): void;
}

type SocketEvent = "open" | "message" | "close" | "error";

/** Whether this is workerd, whose sockets need it. Nothing else has a WebSocketPair. */
export const isWorkerd = (): boolean => "WebSocketPair" in globalThis;

/** What the neon driver needs of a WebSocket, opened by a fetch. */
export class DroppableSocket {
  /** Set by the driver to what is set below anyway. */
  binaryType = "arraybuffer";
  readonly #upgrade = new AbortController();
  readonly #listeners: { readonly type: SocketEvent; readonly listener: (event: unknown) => void }[] = [];
  #socket: UpgradedSocket | null = null;
  #closed = false;

  constructor(url: string) {
    this.#open(url).catch((error: unknown) => {
      if (!this.#closed) this.#emit("error", error);
    });
  }

  addEventListener(type: SocketEvent, listener: (event: unknown) => void): void {
    this.#listeners.push({ type, listener });
  }

  /** The driver collects what it sends for a moment, in which the socket may have been closed; workerd's own would throw. */
  send(data: Uint8Array): void {
    if (!this.#closed) this.#socket?.send(data);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#socket === null) this.drop();
    else this.#socket.close();
  }

  drop(): void {
    this.#closed = true;
    this.#upgrade.abort();
  }

  async #open(url: string): Promise<void> {
    const response = await fetch(url.replace(/^ws/, "http"), {
      headers: { upgrade: "websocket" },
      signal: this.#upgrade.signal,
    });
    const { webSocket: socket } = response as { readonly webSocket?: UpgradedSocket | null };
    if (socket == null) {
      await response.body?.cancel();
      throw new Error(`the proxy answered ${response.status} instead of a WebSocket`);
    }
    this.#socket = socket;
    socket.binaryType = this.binaryType;
    for (const type of ["message", "close", "error"] as const) {
      socket.addEventListener(type, (event) => this.#emit(type, event));
    }
    socket.accept();
    this.#emit("open", null);
  }

  #emit(type: SocketEvent, event: unknown): void {
    for (const { type: wanted, listener } of this.#listeners) if (wanted === type) listener(event);
  }
}
