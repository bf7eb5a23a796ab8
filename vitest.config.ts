import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/support/global_setup.ts"],
    testTimeout: 60_000,
    hookTimeout: 120_000,
    pool: "forks",
    // Tests mostly wait, for limits to pass and for locks: on two cores six files at a time take half as long as three.
    maxWorkers: 6,
    env: {
      CLOUDFLARE_CF_FETCH_ENABLED: "false",
      WRANGLER_SEND_METRICS: "false",
      WRANGLER_SEND_ERROR_REPORTS: "false",
      WRANGLER_WRITE_LOGS: "false",
      WRANGLER_HIDE_BANNER: "true",
    },
  },
});
