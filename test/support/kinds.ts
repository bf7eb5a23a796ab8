// Payload and effect of most jobs in the engine's tests; apart from the rest, so that a process of its own can load it.

import * as z from "zod";
import type { Tx } from "../../src/index.ts";

export const numbered = z.object({ n: z.number() });

export function effect(tx: Tx, n: number, note?: string) {
  return tx.query("insert into effect (n, note) values ($1, $2)", [n, note ?? null]);
}
