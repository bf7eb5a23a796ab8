// The list of jobs: which, where each stands, and why it is not running.

import { html } from "hono/html";
import type { PageContext } from "../context.ts";
import { load } from "../faults.ts";
import { filterOf } from "../filters.ts";
import { type Badges, keepOf, type Page } from "../layout.ts";
import { bulkBar, filterForm, jobList } from "../lists.ts";
import { faultsNote, type Look, unknownNote } from "../parts.ts";
import { firstJob } from "./overview.ts";

const pageSize = 50;

export async function jobsPage(context: PageContext, badges: Promise<Badges>): Promise<Page> {
  const { claimer, query } = context;
  const { filter, cursor, faults, unknown } = filterOf(query, ["q"]);
  const wrong = faults.length > 0;
  const [list, kinds, overview] = await Promise.all([
    wrong
      ? null
      : load(claimer.inspect.jobs({ ...filter, ...(cursor === undefined ? {} : { cursor }), limit: pageSize })),
    load(claimer.inspect.kinds()),
    badges,
  ]);
  const core = overview !== null && "value" in overview ? overview.value : null;
  const now = list !== null && "value" in list ? list.value.now : (core?.now ?? null);
  const look: Look = { zone: context.zone, now: now ?? "", keep: keepOf(context) };
  const form = filterForm({
    context,
    path: "/jobs",
    kinds: "value" in kinds ? kinds.value.map(({ name }) => name) : [],
    queues: core?.queues.map(({ name }) => name) ?? [],
  });
  const content = jobList({ list, context, look, filter, dead: false, cursor, empty: firstJob(context) });
  return {
    id: "jobs",
    title: "Jobs",
    now,
    status: wrong ? 400 : 200,
    parts: [
      unknownNote(unknown),
      faultsNote(faults),
      form,
      { region: "list", content },
      list !== null && "value" in list && list.value.items.length > 0
        ? bulkBar({ context, filter, dead: false })
        : html``,
    ],
  };
}
