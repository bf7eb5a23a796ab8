// npm run exhibits: every exhibit, one table each. See stage.ts for the flags.

import { killedHolder } from "./killed_holder.ts";
import { lockSets } from "./lock_sets.ts";
import { lockedHead } from "./locked_head.ts";
import { nul } from "./nul.ts";
import { order } from "./order.ts";
import { poolerLock } from "./pooler_lock.ts";
import { invertedCommits, sameTransaction } from "./same_key.ts";
import { scheduleHerd } from "./schedule_herd.ts";
import { type Exhibit, main } from "./stage.ts";
import { vacuum } from "./vacuum.ts";
import { zombie } from "./zombie.ts";

export const exhibits: readonly Exhibit[] = [
  sameTransaction,
  invertedCommits,
  order,
  zombie,
  nul,
  scheduleHerd,
  killedHolder,
  vacuum,
  lockedHead,
  poolerLock,
  lockSets,
];

if (import.meta.main) await main(exhibits);
