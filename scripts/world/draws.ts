// Chance that a seed repeats, for tests and exhibits.

/** Numbers in [0, 1) from a seed (mulberry32). */
export function draws(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/** A whole number from 0 to below `count`. */
export const pick = (draw: () => number, count: number): number => Math.floor(draw() * count);
