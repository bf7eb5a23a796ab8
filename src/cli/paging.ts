// Lists longer than a page.

import type { Page } from "../inspection.ts";

/** Items of a page as the database gives it at most. */
const pageSize = 200;

export interface Listed<T> {
  readonly items: readonly T[];
  /** Where the next call goes on; null: there is no more. */
  readonly next: string | null;
  readonly searched: number | null;
  /** The database's clock, of the last page. */
  readonly now: string;
}

/** Reads pages until there are `limit` items or no more. */
export async function pages<T>(
  limit: number,
  cursor: string | undefined,
  read: (page: { cursor?: string; limit: number }) => Promise<Page<T>>,
): Promise<Listed<T>> {
  const items: T[] = [];
  let next: string | null = cursor ?? null;
  for (;;) {
    const page: Page<T> = await read({
      limit: Math.min(pageSize, limit - items.length),
      ...(next === null ? {} : { cursor: next }),
    });
    items.push(...page.items);
    next = page.next;
    if (next === null || items.length >= limit) return { items, next, searched: page.searched, now: page.now };
  }
}
