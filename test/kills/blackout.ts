// The network between the invocations and everything else, gone all at once: what is open is swallowed for ever, what is new is
// accepted and never answered, and nobody is told.

import type { Bridge } from "../../scripts/world/bridge.ts";
import type { TcpProxy } from "../support/tcp_faults.ts";

/** Begins it on either transport; the answer ends it. */
export function blackout(through: Bridge | TcpProxy): () => void {
  if ("blackout" in through) return through.blackout();
  const always = Number.POSITIVE_INFINITY;
  through.breakConnect({ how: "black-hole", times: always });
  through.breakSql({ at: "before", how: "hang", times: always });
  for (const connection of through.connections) if (connection.open) connection.break("black-hole");
  return () => through.clearFaults();
}
