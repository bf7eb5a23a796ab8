// The deployable Worker: what it runs and which routes it adds. No decisions here.

import { createWorker } from "pgclaim/cloudflare";
import type { Env } from "./env.ts";
import { githubWebhooks } from "./github.ts";
import { githubEvent, reportTo, reportTransaction } from "./jobs.ts";

export default createWorker<Env>((env) => ({
  jobs: [githubEvent, reportTransaction.handle(reportTo(env.AUTHORITY_URL))],
  app: githubWebhooks,
}));
