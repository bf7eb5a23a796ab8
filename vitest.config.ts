import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/support/global_setup.ts"],
    testTimeout: 60_000,
    hookTimeout: 120_000,
    pool: "forks",
    // Tests mostly wait, for limits to pass and for locks: on two cores four files at a time cost less than three and leave room for limits.
    maxWorkers: 4,
    env: {
      CLOUDFLARE_CF_FETCH_ENABLED: "false",
      WRANGLER_SEND_METRICS: "false",
      WRANGLER_SEND_ERROR_REPORTS: "false",
      WRANGLER_WRITE_LOGS: "false",
      WRANGLER_HIDE_BANNER: "true",
    },
  },
});
