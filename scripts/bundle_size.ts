// npm run bundle-size: how large the reference Worker is when it is deployed, against the limit it must stay below.
// Exit codes: 0 below the limit, 1 above it or not built.

import { bundleWorker } from "./world/worker_bundle.ts";

/** A promise of the README: 200 KB, minified and gzipped. Cloudflare's own limit is 3 MB on the free plan. */
const LIMIT_GZIP_BYTES = 200_000;

try {
  const { bytes, gzipBytes } = await bundleWorker({ minify: true });
  const fits = gzipBytes < LIMIT_GZIP_BYTES;
  console.log(`worker/index.ts, minified  ${kilobytes(bytes)}`);
  console.log(
    `                  gzipped  ${kilobytes(gzipBytes)}  limit ${kilobytes(LIMIT_GZIP_BYTES)}  ${fits ? "ok" : "TOO LARGE"}`,
  );
  process.exitCode = fits ? 0 : 1;
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}

function kilobytes(bytes: number): string {
  return `${(bytes / 1000).toFixed(1)} KB`.padStart(9);
}
