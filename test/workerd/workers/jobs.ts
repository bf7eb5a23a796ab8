// The test Worker: createWorker() with the test's kinds, its other options from a variable.

import { createWorker } from "../../../src/adapters/cloudflare.ts";
import { type KindsEnv, kinds } from "./kinds.ts";

interface Env extends KindsEnv {
  /** More options of createWorker, as JSON. */
  readonly OPTIONS: string;
}

export default createWorker<Env>((env) => ({ jobs: kinds(env), ...JSON.parse(env.OPTIONS) }));
