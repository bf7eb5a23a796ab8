// Every page in a real browser, over a real database: in both themes, at three widths, with hostile text wherever text may be.
// A page must make no error, ask nothing the content policy forbids, be accessible, and be no wider than its window.

import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { setup } from "../support/world.ts";
import { seed } from "./seed.ts";
import {
  expectAccessible,
  expectNoSideways,
  installed,
  launch,
  logIn,
  screenshots,
  secrets,
  serve,
  watch,
} from "./support.ts";

const widths = [360, 768, 1280] as const;
const themes = ["light", "dark"] as const;

describe.skipIf(!installed)("every page in Chromium", () => {
  it("opens in both themes and three widths without an error, accessible, no wider than the window", async () => {
    const world = await setup();
    const { claimer, jobs, release } = await seed(world);
    const base = await serve(claimer, { name: 'prod "eu"', colour: "red", redact: ["iban"] });
    const browser = await launch();
    const { items } = await claimer.inspect.ticks({ limit: 1 });
    const paths: readonly (readonly [string, string])[] = [
      ["overview", "/"],
      ["overview-24h-local", "/?window=24h&tz=Europe/Zurich"],
      ["jobs", "/jobs"],
      ["jobs-running", "/jobs?state=running"],
      ["jobs-done", "/jobs?state=done"],
      ["jobs-none", "/jobs?queue=nowhere"],
      ["jobs-wrong", "/jobs?state=tired&since=yesterday&colour=red"],
      ["job-dead", `/jobs/${jobs.dead}`],
      ["job-retrying", `/jobs/${jobs.retrying}`],
      ["job-running", `/jobs/${jobs.running}`],
      ["job-none", "/jobs/999999999"],
      ["dead", "/dead"],
      ["keys", "/keys"],
      ["schedules", "/schedules"],
      ["invocations", "/invocations"],
      ["invocation", `/invocations/${items[0]?.invocationId ?? ""}`],
      ["holders", "/holders"],
      ["confirm", `/confirm?do=discard&job=${jobs.dead}&back=/dead`],
      ["confirm-all", "/confirm?do=retry-all&kind=mail.send&back=/dead"],
      ["confirm-reschedule", `/confirm?do=reschedule&job=${jobs.retrying}&back=/jobs`],
    ];
    for (const theme of themes) {
      const context = await browser.newContext({ colorScheme: theme });
      const { page, faults } = await watch(context);
      await page.goto(base);
      for (const width of widths) {
        await page.setViewportSize({ width, height: 900 });
        await expectNoSideways(page, `login ${width}`);
        await page.screenshot({ path: join(screenshots, `login-${width}-${theme}.png`), fullPage: true });
      }
      await expectAccessible(page, `login ${theme}`);
      await logIn(page, base);
      for (const [name, path] of paths) {
        for (const width of widths) {
          await page.setViewportSize({ width, height: 900 });
          await page.goto(`${base}${path}`);
          for (const summary of await page.locator("main details:not(.fold) > summary").all()) await summary.click();
          const where = `${name} ${width} ${theme}`;
          await expectNoSideways(page, where);
          if (width !== 768) await expectAccessible(page, where);
          await page.screenshot({ path: join(screenshots, `${name}-${width}-${theme}.png`), fullPage: true });
          expect.soft({ where, faults }).toEqual({ where, faults: [] });
        }
      }
      await context.close();
    }
    await release();
  }, 400_000);

  it("shows hostile text as text, redacts what it was told to, and keeps every digit", async () => {
    const world = await setup();
    const { claimer, jobs, release } = await seed(world);
    const base = await serve(claimer, { redact: ["iban"] });
    const { page, faults } = await watch(await (await launch()).newContext());
    await logIn(page, base);
    await page.goto(`${base}/jobs/${jobs.dead}`);
    expect(await page.locator("main").textContent()).toContain("<script>alert(1)</script>");
    expect(await page.locator("main").textContent()).toContain("\\u202e\\u0007");
    expect(await page.locator("main script, main img").count()).toBe(0);
    const payload = await page.locator("#payload-text").textContent();
    expect(payload).toContain('"iban": "redacted"');
    const all = await page.content();
    expect(all).not.toContain("DE02120300000000202051");
    await page.goto(`${base}/jobs`);
    expect(await page.content()).not.toContain("DE02120300000000202051");
    const download = await page.request.get(`${base}/jobs/${jobs.dead}/payload`);
    expect(download.headers()["content-disposition"]).toContain("attachment");
    expect(await download.text()).not.toContain("DE02120300000000202051");
    expect(faults).toEqual([]);
    await release();
  }, 120_000);

  it("is the whole dashboard without script", async () => {
    const world = await setup();
    const { claimer, jobs, release } = await seed(world);
    const base = await serve(claimer);
    const context = await (await launch()).newContext({ javaScriptEnabled: false });
    const { page } = await watch(context);
    await logIn(page, base);
    await page.getByRole("link", { name: "Jobs", exact: true }).click();
    await page.getByLabel("State").selectOption("retrying");
    await page.getByRole("button", { name: "Filter" }).click();
    expect(new URL(page.url()).searchParams.get("state")).toBe("retrying");
    await page.getByLabel(`Select job ${jobs.retrying}`).check();
    await page.getByRole("button", { name: "Run now" }).click();
    expect(await page.locator("main h2").textContent()).toBe("Run now 1 job?");
    await page.getByRole("button", { name: "Run now 1 job" }).click();
    expect(await page.getByRole("status").first().textContent()).toBe("Made due now 1 of 1.");
    await page.getByRole("link", { name: "dark" }).click();
    expect(await page.locator("html").getAttribute("data-theme")).toBe("dark");
    await release();
  }, 120_000);

  it("gives the read secret a look and nothing else", async () => {
    const world = await setup();
    const { claimer, jobs, release } = await seed(world);
    const base = await serve(claimer);
    const { page } = await watch(await (await launch()).newContext());
    await logIn(page, base, secrets.read);
    await page.goto(`${base}/jobs/${jobs.dead}`);
    expect(await page.locator("[data-confirm]").count()).toBe(0);
    await page.goto(`${base}/confirm?do=discard&job=${jobs.dead}`);
    expect(await page.locator("main").textContent()).toContain("may look only");
    const status = await page.evaluate(
      async (id) =>
        (await fetch("/act", { method: "POST", body: new URLSearchParams({ do: "discard", job: id }) })).status,
      jobs.dead,
    );
    expect(status).toBe(403);
    expect((await claimer.inspect.job(jobs.dead))?.state).toBe("dead");
    await release();
  }, 120_000);
});
