// What the browser suite shares: the system's Chromium, the app behind a real HTTP server, an installation full of everything
// that a page can show, and a page that notices whatever it must not do.

import { accessSync, constants, mkdirSync } from "node:fs";
import http from "node:http";
import { delimiter, join } from "node:path";
import axe from "axe-core";
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { expect, onTestFinished } from "vitest";
import type { Claimer } from "../../src/claimer.ts";
import { createApp, type DashboardOptions } from "../../src/http/app.ts";

export const secrets = { operate: "operate-secret-of-the-browser", read: "read-secret-of-the-browser" } as const;

const names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/** The browser of CHROMIUM_PATH, or the first of the known names in PATH; null where there is none. */
function findChromium(): string | null {
  const given = process.env.CHROMIUM_PATH ?? "";
  const folders = (process.env.PATH ?? "").split(delimiter);
  const places = given === "" ? folders.flatMap((folder) => names.map((name) => join(folder, name))) : [given];
  return places.find(isExecutable) ?? null;
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

const executablePath = findChromium();
export const installed = executablePath !== null;
if (!installed)
  console.warn("NOT RUN: the browser suite. No Chromium in PATH or CHROMIUM_PATH (Debian: apt-get install chromium).");

/** Screenshots to look at; git ignores them. */
export const screenshots = join(import.meta.dirname, "screenshots");

export async function launch(): Promise<Browser> {
  mkdirSync(screenshots, { recursive: true });
  // No sandbox: CI runs as root in a container, and what is opened is ours.
  const browser = await chromium.launch({ executablePath: executablePath ?? "", args: ["--no-sandbox"] });
  onTestFinished(() => browser.close());
  return browser;
}

/** The app as it is deployed, behind Node's HTTP server on a free port; ended with the test. */
export async function serve(claimer: Claimer, dashboard: DashboardOptions = {}): Promise<string> {
  const app = createApp({ claimer: () => claimer, secrets, log: () => {}, dashboard });
  const server = http.createServer(async (incoming, outgoing) => {
    const chunks: Buffer[] = [];
    for await (const chunk of incoming) chunks.push(chunk as Buffer);
    const headers = new Headers();
    for (const [name, value] of Object.entries(incoming.headers)) headers.set(name, String(value));
    const answer = await app.request(`http://${incoming.headers.host}${incoming.url}`, {
      method: incoming.method ?? "GET",
      headers,
      ...(chunks.length === 0 ? {} : { body: Buffer.concat(chunks) }),
    });
    outgoing.writeHead(answer.status, Object.fromEntries(answer.headers));
    outgoing.end(Buffer.from(await answer.arrayBuffer()));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  const address = server.address();
  return `http://localhost:${typeof address === "object" && address !== null ? address.port : 0}`;
}

export interface Watched {
  readonly page: Page;
  /** What went wrong on it so far: errors, refusals of the content policy, dialogs that hostile text has opened. */
  readonly faults: string[];
}

/** A page that keeps what it must never do. */
export async function watch(context: BrowserContext): Promise<Watched> {
  const page = await context.newPage();
  const faults: string[] = [];
  page.on("console", (message) => {
    // A page that is an answer of 4xx on purpose is noted by Chromium as an error of loading it.
    const isStatus = /Failed to load resource: the server responded with a status of 4\d\d/.test(message.text());
    if ((message.type() === "error" || message.type() === "warning") && !isStatus) faults.push(message.text());
  });
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("dialog", (dialog) => {
    faults.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss().catch(() => {});
  });
  page.on("response", (answer) => {
    if (answer.status() >= 500) faults.push(`${answer.status()} ${answer.url()}`);
  });
  return { page, faults };
}

export async function logIn(page: Page, base: string, secret: string = secrets.operate): Promise<void> {
  await page.goto(`${base}/login`);
  await page.getByLabel("Secret").fill(secret);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.waitForURL(`${base}/`);
}

/** Asserts that axe-core finds nothing on the page as it is now. */
export async function expectAccessible(page: Page, where: string): Promise<void> {
  await page.evaluate(axe.source);
  const found = await page.evaluate(async () => {
    const run = (globalThis as unknown as { axe: { run(o: object): Promise<axe.AxeResults> } }).axe.run;
    const { violations } = await run({
      runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    });
    return violations.map(({ id, nodes }) => ({ id, nodes: nodes.slice(0, 3).map((node) => node.html.slice(0, 200)) }));
  });
  expect.soft({ where, found }).toEqual({ where, found: [] });
}

/** Asserts that nothing is wider than the window. */
export async function expectNoSideways(page: Page, where: string): Promise<void> {
  const over = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth");
  expect.soft({ where, over }).toEqual({ where, over: 0 });
}
