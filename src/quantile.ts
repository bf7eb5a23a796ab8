// Quantiles out of a histogram: where in the bucket, nobody knows, so in proportion. Pure.

import { lateBoundsMs } from "./inspection.ts";

/**
 * A quantile of lengths counted in the buckets of `lateBoundsMs`, in milliseconds; null of nothing. What lies above the last
 * bound is told as that bound.
 */
export function quantile(counts: readonly number[], q: number): number | null {
  const total = counts.reduce((sum, n) => sum + n, 0);
  if (total === 0) return null;
  let left = q * total;
  for (const [i, n] of counts.entries()) {
    if (left <= n && n > 0) {
      const low = lateBoundsMs[i - 1] ?? 0;
      const high = lateBoundsMs[i] ?? low;
      return Math.round(low + ((high - low) * left) / n);
    }
    left -= n;
  }
  return lateBoundsMs.at(-1) ?? null;
}
