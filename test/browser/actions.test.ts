// Every action of the dashboard, clicked through its question in a real browser, and looked up in the database afterwards. Then
// what the script adds: refresh without a reload, its pauses, keys.

import type { Page } from "playwright-core";
import { describe, expect, it } from "vitest";
import { eventually } from "../support/gate.ts";
import { setup } from "../support/world.ts";
import { type Seeded, seed } from "./seed.ts";
import { expectAccessible, installed, launch, logIn, serve, watch } from "./support.ts";

async function open() {
  const world = await setup();
  const seeded = await seed(world);
  const base = await serve(seeded.claimer);
  const { page, faults } = await watch(await (await launch()).newContext({ viewport: { width: 1280, height: 900 } }));
  await logIn(page, base);
  return { world, ...seeded, base, page, faults };
}

/** Clicks what asks, checks that the safe choice has the focus, confirms in the dialog, and answers what was said then. */
async function act(page: Page, label: string, confirm: string): Promise<string> {
  const main = page.locator("main");
  const [link, button] = (["link", "button"] as const).map((role) =>
    main.getByRole(role, { name: label, exact: true }),
  );
  if (link === undefined || button === undefined) throw new Error("two roles");
  await link.or(button).first().click();
  const dialog = page.locator("dialog#ask[open]");
  await dialog.waitFor();
  expect(await page.evaluate("document.activeElement.textContent")).toBe("Keep as it is");
  await dialog.getByRole("button", { name: confirm }).click();
  return said(page);
}

/** What the page says that an action did. */
async function said(page: Page): Promise<string> {
  return (await page.locator("p.note[role=status]:not(#live-note)").textContent()) ?? "";
}

function stateOf({ claimer }: Pick<Seeded, "claimer">, id: string) {
  return async () => (await claimer.inspect.job(id))?.state;
}

describe.skipIf(!installed)("actions in Chromium", () => {
  it("does to one job what its buttons say", async () => {
    const { page, base, claimer, jobs, faults, release, world } = await open();
    const go = (id: string) => page.goto(`${base}/jobs/${id}`);
    await go(jobs.scheduled);
    expect(await act(page, "Run now", "Run now job")).toBe(`Job ${jobs.scheduled} was rescheduled.`);
    await go(jobs.retrying);
    await page.getByRole("link", { name: "Reschedule" }).click();
    await page.locator("dialog[open]").getByLabel("When").selectOption("6h");
    await expectAccessible(page, "the dialog of a question");
    await page.getByRole("button", { name: "Reschedule job" }).click();
    await page.getByText("was rescheduled").waitFor();
    expect(
      await world.value("select run_at > clock_timestamp() + interval '5 hours' from pgclaim.job where id = $1", [
        jobs.retrying,
      ]),
    ).toBe(true);
    expect(await act(page, "Cancel", "Cancel job")).toBe(`Job ${jobs.retrying} was cancelled.`);
    expect(await stateOf({ claimer }, jobs.retrying)()).toBe("cancelled");
    await go(jobs.dead);
    expect(await act(page, "Retry now", "Retry job")).toContain("was retried");
    expect(await stateOf({ claimer }, jobs.dead)()).not.toBe("dead");
    await go(jobs.running);
    expect(await act(page, "Cancel", "Cancel job")).toContain("its handler is asked to stop");
    await go(jobs.retrying);
    expect(await page.locator("table", { hasText: "By hand" }).textContent()).toContain("dashboard");
    expect(faults).toEqual([]);
    await release();
  }, 120_000);

  it("skips, and discards, what halts a key, and says what goes next", async () => {
    const { page, base, claimer, jobs, faults, release } = await open();
    await page.goto(`${base}/keys`);
    expect(await page.locator("main").textContent()).toContain(
      "Nothing behind it runs until you retry, skip or discard it.",
    );
    await page.getByRole("link", { name: "Skip head" }).click();
    expect(await page.locator("dialog[open]").textContent()).toMatch(/: \d+ will run next\./);
    await page.getByRole("link", { name: "Keep as it is" }).click();
    expect(await page.locator("dialog[open]").count()).toBe(0);
    expect(await page.evaluate("document.activeElement.textContent")).toBe("Skip head");
    expect(await act(page, "Skip head", "Skip job")).toBe(`Job ${jobs.dead} was skipped.`);
    expect((await claimer.inspect.overview()).haltedKeys.n).toBe(0);
    await page.goto(`${base}/jobs/${jobs.dead}`);
    expect(await act(page, "Discard", "Discard job")).toBe(`Job ${jobs.dead} was discarded.`);
    expect(faults).toEqual([]);
    await release();
  }, 120_000);

  it("acts on what is selected, and on all that match a filter as it was when it was asked", async () => {
    const { page, base, claimer, faults, release } = await open();
    await page.goto(`${base}/dead?kind=mail.send`);
    const [first] = (await claimer.inspect.jobs({ state: "dead", kind: "mail.send" })).items;
    await page.getByLabel(`Select job ${first?.id}`).check();
    expect(await page.locator("#selected").textContent()).toBe("1 selected, live updates paused");
    await page.getByRole("button", { name: "Retry", exact: true }).click();
    await page.getByRole("button", { name: "Retry 1 job" }).click();
    expect(await said(page)).toBe("Retried 1 of 1.");
    await page.getByRole("link", { name: "Discard all" }).click();
    expect(await page.locator("dialog#ask h2").textContent()).toBe("Discard 1 dead letter?");
    // Dies while the question stands: it has a higher id, so it is not swept in.
    const late = await claimer.enqueueByKind([{ kind: "mail.send", payload: { to: "bad-late" } }]);
    await claimer.invoke({ type: "manual" });
    await eventually(async () => expect(await stateOf({ claimer }, late[0]?.id ?? "")()).toBe("dead"));
    await page.getByRole("button", { name: "Discard 1 dead letter" }).click();
    await eventually(async () => expect(await said(page)).toBe("Discarded 1 of 1."));
    expect(await stateOf({ claimer }, late[0]?.id ?? "")()).toBe("dead");
    await page.goto(`${base}/jobs?kind=report.transaction&state=blocked`);
    expect(await act(page, "Cancel all", "Cancel")).toMatch(/^Cancelled 2 of 2/);
    expect(faults).toEqual([]);
    await release();
  }, 120_000);

  it("pauses, resumes and runs schedules; pauses and resumes queues", async () => {
    const { page, base, claimer, faults, release, world } = await open();
    await page.goto(`${base}/schedules`);
    expect(await act(page, "Pause", "Pause schedule")).toBe("Paused.");
    expect((await claimer.schedules()).filter(({ pausedAt }) => pausedAt !== null)).toHaveLength(1);
    expect(await act(page, "Resume", "Resume schedule")).toBe("Resumed.");
    expect(await act(page, "Run now", "Run schedule now")).toMatch(/^Job \d+ was enqueued/);
    await page.goto(`${base}/`);
    expect(await act(page, "Pause", "Pause queue")).toBe("Paused.");
    expect(await world.value("select count(*)::integer from pgclaim.queue where paused_at is not null")).toBe(1);
    expect(await act(page, "Resume", "Resume queue")).toBe("Resumed.");
    expect(faults).toEqual([]);
    await release();
  }, 120_000);

  it("ends the transaction of a holder, and only that one", async () => {
    const { page, base, jobs, faults, world } = await open();
    await page.goto(`${base}/holders`);
    expect(await page.locator("main").textContent()).toContain(jobs.running);
    expect(await act(page, "Terminate", "Terminate")).toMatch(/^The transaction of pid \d+ was ended\.$/);
    await eventually(async () => expect(await world.locks()).toBe(0));
    expect(faults).toEqual([]);
  }, 120_000);

  it("refreshes without a reload, not while a row is selected, and says so when the database is gone", async () => {
    const { page, base, claimer, faults, release } = await open();
    await page.clock.install();
    await page.goto(`${base}/jobs?kind=mail.send&state=scheduled`);
    await page.evaluate("globalThis.mark = 1");
    const rows = () => page.locator("tr[data-href]").count();
    const before = await rows();
    const [added] = await claimer.enqueueByKind([{ kind: "mail.send", payload: { to: "new" }, delay: "2h" }]);
    // The browser's clock stands still but for what is run here; what a poll answers takes time of ours.
    const after = async (ms: number, assertion: () => unknown) => {
      for (let left = 5; ; left--) {
        await page.clock.runFor(ms);
        try {
          return await eventually(assertion, 3_000);
        } catch (error) {
          if (left === 0) throw error;
        }
      }
    };
    await after(16_000, async () => expect(await rows()).toBe(before + 1));
    expect(await page.evaluate("globalThis.mark")).toBe(1);

    const polls: number[] = [];
    page.on("response", (answer) => {
      if (answer.request().headers()["x-pgclaim-regions"] === "1") polls.push(answer.status());
    });
    await after(16_000, () => expect(polls).toContain(304));
    await page.getByLabel(`Select job ${added?.id}`).check();
    const asked = polls.length;
    await page.clock.runFor(60_000);
    expect(polls.length).toBe(asked);
    await page.getByLabel(`Select job ${added?.id}`).uncheck();
    await after(16_000, () => expect(polls.length).toBeGreaterThan(asked));

    await page.route(`${base}/jobs**`, (route) => route.abort());
    await after(16_000, async () =>
      expect(await page.locator("#live-note").textContent()).toMatch(/^These numbers are from .* Retrying in \d+ s\./),
    );
    expect(await rows()).toBe(before + 1);
    await page.unroute(`${base}/jobs**`);
    await page.getByRole("button", { name: "Retry now" }).click();
    await eventually(async () => expect(await page.locator("#live-note").isVisible()).toBe(false));

    await after(11 * 60_000, async () =>
      expect(await page.locator("#live-note").textContent()).toContain("so your database can sleep"),
    );
    const asleep = polls.length;
    await page.clock.runFor(5 * 60_000);
    expect(polls.length).toBe(asleep);
    expect(faults.filter((fault) => !fault.includes("ERR_FAILED"))).toEqual([]);
    await release();
  }, 180_000);

  it("is walked through by keys, and none of them fires in a field", async () => {
    const { page, base, jobs, faults, release } = await open();
    await page.goto(`${base}/jobs`);
    await page.keyboard.press("/");
    expect(await page.evaluate("document.activeElement.id")).toBe("f-key");
    await page.keyboard.type("gjx?");
    expect(await page.getByLabel("Ordering key").inputValue()).toBe("gjx?");
    await page.locator("h1").click();
    await page.keyboard.press("j");
    await page.keyboard.press("x");
    expect(await page.locator("input[name=id]:checked").count()).toBe(1);
    await page.keyboard.press("x");
    await page.keyboard.press("?");
    await page.locator("dialog#help[open]").waitFor();
    await page.keyboard.press("Escape");
    await page.keyboard.press("Enter");
    await page.waitForURL(`${base}/jobs/${jobs.running}`);
    await page.keyboard.press("g");
    await page.keyboard.press("k");
    await page.waitForURL(`${base}/keys`);
    expect(faults).toEqual([]);
    await release();
  }, 120_000);
});
