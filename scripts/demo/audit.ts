// What the authority makes of the calls it got, account by account: their order, whether two came at the same time, and
// how much of each report's window was left. It knows when and in which order transactions were posted, and no more.

import type { Call } from "./authority.ts";
import type { Transaction } from "./input.ts";

/**
 * Calls that overtook another one of their account.
 *
 * A call may come again, since an answer can be lost or a whole tick vanish. But a transaction is reported only when the one
 * before it has been answered, and none comes again when a later one has been reported for good.
 */
export function overtaking(
  calls: readonly Call[],
  transactions: readonly Transaction[],
  isForGood: (call: Call) => boolean,
): Call[] {
  const accounts = Map.groupBy(transactions, ({ account }) => account);
  const earlier = new Map<string, Call[]>();
  return calls.filter((call) => {
    const order = (accounts.get(call.account) ?? []).map(({ transactionId }) => transactionId);
    const before = earlier.get(call.account) ?? [];
    earlier.set(call.account, [...before, call]);
    const place = order.indexOf(call.transactionId);
    const isTooEarly =
      place > 0 &&
      !before.some(
        ({ transactionId, answer, endedAt }) =>
          transactionId === order[place - 1] && answer === 200 && endedAt !== null && endedAt <= call.arrivedAt,
      );
    const isTooLate = before.some((other) => order.indexOf(other.transactionId) > place && isForGood(other));
    return place === -1 || isTooEarly || isTooLate;
  });
}

/** Calls that came while another one with the same name was under way. */
export function overlapping(calls: readonly Call[], name: (call: Call) => string): Call[] {
  return [...Map.groupBy(calls, name).values()].flatMap((group) =>
    group.filter((call) =>
      group.some(
        (other) =>
          other !== call &&
          other.arrivedAt <= call.arrivedAt &&
          (other.endedAt === null || other.endedAt > call.arrivedAt),
      ),
    ),
  );
}

/** Milliseconds that were left of each transaction's window when its last answered call came; -Infinity without one. */
export function slack(calls: readonly Call[], transactions: readonly Transaction[], windowMs: number): number[] {
  return transactions.map(({ transactionId, postedAt }) => {
    const last = calls.findLast((call) => call.transactionId === transactionId && call.answer === 200);
    return last === undefined ? Number.NEGATIVE_INFINITY : postedAt + windowMs - last.arrivedAt;
  });
}
