// The test Worker: createWorker() with the test's kinds, its other options from a variable.

import { createWorker } from "../../../src/adapters/cloudflare.ts";
import { type KindsEnv, kinds } from "./kinds.ts";

/** Of the runtime's globals, what is used here; the types are those of no platform. */
declare function addEventListener(
  type: "unhandledrejection",
  listener: (event: { readonly reason: unknown }) => void,
): void;

interface Env extends KindsEnv {
  /** More options of createWorker, as JSON. */
  readonly OPTIONS: string;
}

// workerd itself is silent about it.
addEventListener("unhandledrejection", (event) => {
  console.error(`unhandled rejection: ${String(event.reason)}`);
});

export default createWorker<Env>((env) => ({ jobs: kinds(env), ...JSON.parse(env.OPTIONS) }));
