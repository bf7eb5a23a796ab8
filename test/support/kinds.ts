// Payload and effect of most jobs in the engine's tests; apart from the rest, so that a process of its own can load it.

import * as z from "zod";
import { defineJob, type Tx } from "../../src/index.ts";

export const numbered = z.object({ n: z.number() });

export function effect(tx: Tx, n: number, note?: string) {
  return tx.query("insert into effect (n, note) values ($1, $2)", [n, note ?? null]);
}

/** A job that leaves one effect and nothing else. */
export function plain() {
  return defineJob({
    kind: "plain",
    payload: numbered,
    async run({ payload: { n }, tx }) {
      await effect(tx, n);
    },
  });
}
