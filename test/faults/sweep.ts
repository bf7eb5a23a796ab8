// The sweep: breaks the first round trip, the second, the third ... until a run goes untouched, for every way to break on
// every channel of every transport. Lanes run cases side by side; which cases there are only the runs themselves say.

import { Worker } from "node:worker_threads";
import type { Case, LaneArguments, Verdict } from "./lane.ts";
import {
  type Channel,
  channels,
  type Extent,
  extents,
  type Kind,
  kinds,
  type Transport,
  transports,
} from "./network.ts";

export interface Series {
  readonly transport: Transport;
  readonly channel: Channel;
  readonly kind: Kind;
  readonly extent: Extent;
  readonly scale: number;
  readonly sabotage: boolean;
}

export interface Swept extends Series {
  /** Runs with a broken round trip, by its number. */
  readonly broken: readonly Verdict[];
  /** Runs that went another way before the fault came. */
  readonly spoilt: readonly Verdict[];
  /** The run that ended the sweep: it made fewer round trips than the one that was to break. */
  readonly untouched: Verdict;
}

export interface Lanes {
  run(of: Case): Promise<Verdict>;
  close(): Promise<void>;
}

/** One worker thread for each database. */
export async function startLanes(urls: readonly string[], pipeline: boolean): Promise<Lanes> {
  const idle: Worker[] = [];
  const waiting: ((lane: Worker) => void)[] = [];
  const release = (lane: Worker) => {
    const next = waiting.shift();
    if (next === undefined) idle.push(lane);
    else next(lane);
  };
  const answer = <T>(lane: Worker) =>
    new Promise<T>((resolve, reject) => {
      const end = () => {
        lane.off("message", onMessage);
        lane.off("error", onError);
      };
      const onMessage = (message: T) => {
        end();
        resolve(message);
      };
      const onError = (error: unknown) => {
        end();
        reject(error);
      };
      lane.on("message", onMessage);
      lane.on("error", onError);
    });
  const lanes = urls.map((url) => {
    const workerData: LaneArguments = { url, pipeline };
    return new Worker(new URL("./lane.ts", import.meta.url), { workerData });
  });
  for (const lane of lanes) {
    answer(lane).then(
      () => release(lane),
      () => {}, // whoever waits for it is told by its own limit
    );
  }
  return {
    async run(of) {
      const lane = idle.pop() ?? (await new Promise<Worker>((resolve) => waiting.push(resolve)));
      const verdict = answer<Verdict>(lane);
      lane.postMessage(of);
      try {
        return await verdict;
      } finally {
        release(lane);
      }
    },
    async close() {
      await Promise.all(lanes.map((lane) => lane.terminate()));
    },
  };
}

/** Runs of one case until the fault meets the round trip it was meant for, at most. */
const maxTries = 4;
/** However slow the machine is, limits are stretched no further. */
export const maxScale = 16;

/**
 * Sweeps one series: every `step`-th round trip from `from`, until a run goes untouched. `counted` is a run that broke
 * nothing; null where none is known.
 *
 * On a loaded machine a run may meet one of its own small limits before the fault comes. It is judged like any other, and
 * run again with longer ones: else the sweep would end early, or break another round trip than it says.
 */
export async function sweep(
  lanes: Lanes,
  series: Series,
  counted: Verdict | null,
  { from = 1, step = 1 } = {},
): Promise<Swept> {
  const broken: Verdict[] = [];
  const spoilt: Verdict[] = [];
  for (let n = from; ; n += step) {
    let verdict: Verdict | null = null;
    for (let tries = 1; tries <= maxTries && (verdict === null || isSpoilt(verdict, counted)); tries++) {
      if (verdict !== null) spoilt.push(verdict);
      verdict = await lanes.run({ ...series, n, scale: Math.min(maxScale, series.scale * 2 ** (tries - 1)) });
    }
    if (verdict === null || isSpoilt(verdict, counted))
      throw new Error(`${nameOf(series)}/${n} did not meet "${counted?.trips[n - 1]}": ${JSON.stringify(verdict)}`);
    if (verdict.struck.length === 0) return { ...series, broken, spoilt, untouched: verdict };
    broken.push(verdict);
  }
}

/** Goodbyes of one-shots are not waited for, so they may come one round trip sooner or later. */
const jitter = 2;

function isSpoilt({ struck, codes, done, of }: Verdict, counted: Verdict | null): boolean {
  const [name] = struck;
  if (counted === null) return name === undefined && of.n === 1;
  const { trips } = counted;
  if (name !== undefined) return !trips.slice(Math.max(0, of.n - 1 - jitter), of.n + jitter).includes(name);
  return of.n <= trips.length - jitter || done !== counted.done || String(codes) !== String(counted.codes);
}

export function everySeries(): Series[] {
  return transports.flatMap((transport) =>
    channels.flatMap((channel) =>
      kinds.flatMap((kind) =>
        extents.map((extent) => ({ transport, channel, kind, extent, scale: 1, sabotage: false })),
      ),
    ),
  );
}

export function nameOf({ transport, channel, kind, extent }: Series): string {
  return `${transport}/${channel}/${kind}/${extent}`;
}

/** Reads `transport/channel/kind/extent/n`. */
export function parseCase(text: string): Case {
  const [transport, channel, kind, extent, n] = text.split("/");
  const series = everySeries().find((one) => nameOf(one) === [transport, channel, kind, extent].join("/"));
  if (series === undefined || !(Number(n) >= 1))
    throw new Error(`"${text}" is no case; expected for example neon/session/half-open/once/7`);
  return { ...series, n: Number(n) };
}
