// The same as a Worker, triggered by its scheduled handler.

import { createWorker } from "../../src/adapters/cloudflare.ts";
import { everythingJobs, soakOptions } from "./everything_jobs.ts";

interface Env {
  readonly OUTSIDE: string;
  readonly INSTANCE: string;
}

export default createWorker<Env>((env) => ({
  ...soakOptions,
  jobs: everythingJobs({ outside: env.OUTSIDE, instance: env.INSTANCE }),
}));
