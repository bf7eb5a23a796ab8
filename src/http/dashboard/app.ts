// The dashboard as a Hono app: who may look, which page, and the answer with its headers. Each route is registered by its own
// path, since middleware of a mounted app would reach every route of the one it is mounted in.

import { type Context, Hono, type MiddlewareHandler } from "hono";
import { getCookie, setCookie } from "hono/cookie";
import { csrf } from "hono/csrf";
import { html } from "hono/html";
import { assertJobId, type Claimer } from "../../claimer.ts";
import { systemClock } from "../../clock.ts";
import { UsageError } from "../../errors.ts";
import { readForm } from "../body.ts";
import { logFailure } from "../respond.ts";
import { assets } from "./assets.ts";
import { type DashboardDependencies, type PageContext, readDashboardOptions, type Theme } from "./context.ts";
import { act, outcomeOf } from "./deeds.ts";
import { faultOf, load } from "./faults.ts";
import { isZone } from "./format.ts";
import { jsonText } from "./json_text.ts";
import { type Badges, document, type Page, regions } from "./layout.ts";
import { deadPage } from "./pages/dead.ts";
import { holdersPage } from "./pages/holders.ts";
import { invocationPage, invocationsPage } from "./pages/invocations.ts";
import { jobPage } from "./pages/job.ts";
import { jobsPage } from "./pages/jobs.ts";
import { keysPage } from "./pages/keys.ts";
import { closed, loginForm } from "./pages/login.ts";
import { overviewPage } from "./pages/overview.ts";
import { schedulesPage } from "./pages/schedules.ts";
import { alertOf, faultsNote, type Html } from "./parts.ts";
import { askForm, questionOf } from "./questions.ts";
import { hrefs, localPath, type Query } from "./routes.ts";
import { cookieName, hasSecret, type Role, readSession, roleOf, sessionSeconds, signSession } from "./session.ts";

export type { DashboardOptions } from "./context.ts";

/** Nothing inline, nothing from elsewhere, in nobody's frame. */
const contentSecurityPolicy =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const pageHeaders = {
  "content-security-policy": contentSecurityPolicy,
  "cache-control": "private, no-store",
  // Not no-referrer: a browser sends `Origin: null` with a form then, and the check of the origin refuses it.
  "referrer-policy": "same-origin",
  "x-content-type-options": "nosniff",
} as const;

/** The same check, which throws before anything behind it runs; the bare word it answers helps nobody. */
function sayingWhy(check: MiddlewareHandler): MiddlewareHandler {
  return async (c, next) => {
    let passed = false;
    try {
      return await check(c, () => {
        passed = true;
        return next();
      });
    } catch (error) {
      if (passed) throw error;
      return c.text(
        "This form did not come from one of these pages: expected an Origin of this host and Sec-Fetch-Site: same-origin.\n" +
          "Load the page again. Where a proxy stands before it, let it keep Host, Origin and Sec-Fetch-Site.\n",
        403,
        pageHeaders,
      );
    }
  };
}

/** Bytes of a form: 50 ids and a filter are far below. */
const maxFormBytes = 100_000;

type Env<Bindings extends object> = { Bindings: Bindings };
type PageMaker = (context: PageContext, badges: Promise<Badges>) => Promise<Page>;

/** Makes the dashboard. Errors: PGCLAIM_INVALID_OPTION. */
export function createDashboard<Bindings extends object = object>(
  dependencies: DashboardDependencies<Bindings>,
): Hono<Env<Bindings>> {
  const { claimer: claimerOf, secrets: secretsOf, log, secretCommand, clock = systemClock, ...given } = dependencies;
  const options = readDashboardOptions(given);
  const app = new Hono<Env<Bindings>>();
  const secretsFor = (c: Context) => (typeof secretsOf === "function" ? secretsOf(c.env as Bindings) : secretsOf);

  page("/", overviewPage);
  page("/jobs", jobsPage);
  page("/jobs/:id", (context, badges) => jobPage(assertJobId(idOf(context.path)), context, badges));
  page("/dead", deadPage);
  page("/keys", (context) => keysPage(context));
  page("/schedules", schedulesPage);
  page("/invocations", invocationsPage);
  page("/invocations/:id", (context) => invocationPage(idOf(context.path), context));
  page("/holders", (context) => holdersPage(context));
  page("/confirm", confirmPage, { badges: false });

  app.get("/jobs/:id/payload", (c) =>
    guarded(c, async (context) => {
      const id = assertJobId(c.req.param("id"));
      const payload = await context.claimer.inspect.payload(id);
      if (payload === null) return c.text("There is no such job.", 404, pageHeaders);
      const { text } = jsonText(payload, { redact: options.redact, pretty: false });
      return c.body(options.redact.length === 0 ? payload : text, 200, {
        ...pageHeaders,
        "content-type": "text/plain; charset=utf-8",
        "content-disposition": `attachment; filename="job-${id}.json"`,
      });
    }),
  );

  app.get("/login", async (c) => {
    if (options.login === "none") return c.redirect("/", 303);
    if (!hasSecret(secretsFor(c))) return answerClosed(c);
    return loginPage(c, localPath(c.req.query("back")), false);
  });
  for (const route of ["/login", "/logout", "/act"]) {
    // Both must say so: a browser that sends one of them only is none that this page was made for.
    app.post(route, sayingWhy(csrf({ origin: isOwnHost, secFetchSite: () => false })));
    app.post(route, sayingWhy(csrf({ origin: () => false, secFetchSite: "same-origin" })));
  }
  app.post("/login", login);
  app.post("/logout", (c) => {
    setCookie(c, cookieName, "", { ...cookieOptions, maxAge: 0 });
    return c.redirect("/login", 303);
  });
  app.post("/act", (c) =>
    guarded(c, async (context) => {
      if (context.role !== "operate") return forbidden(context);
      const form = await formOf(c);
      if (form === null) return c.text("Expected a form.", 415, pageHeaders);
      return c.redirect(await act(queryOf(form), form.getAll("id"), context.claimer), 303);
    }),
  );

  app.get("/prefer", (c) => {
    const theme = c.req.query("theme");
    if (theme === "system" || theme === "light" || theme === "dark") {
      setCookie(c, "pgclaim_theme", theme, { path: "/", sameSite: "Lax", maxAge: 31_536_000 });
    }
    return c.redirect(localPath(c.req.query("back")), 303);
  });

  for (const [path, { content, type, etag }] of Object.entries(assets)) {
    app.get(path, (c) => {
      const headers = {
        "content-type": type,
        etag,
        "cache-control": "public, max-age=31536000, immutable",
        "x-content-type-options": "nosniff",
      };
      return c.req.header("if-none-match") === etag ? c.body(null, 304, headers) : c.body(content, 200, headers);
    });
  }
  return app;

  function page(path: string, make: PageMaker, { badges: shows } = { badges: true }): void {
    app.get(path, (c) =>
      guarded(c, async (context) => {
        const isRefresh = c.req.header("x-pgclaim-regions") === "1";
        const jump = jumpOf(context);
        if (jump !== null) return c.redirect(jump, 303);
        const badges: Promise<Badges> = shows ? load(context.claimer.inspect.overview()) : Promise.resolve(null);
        const made = await make(context, badges);
        return isRefresh ? refreshed(c, made, context, await badges) : shown(made, context, await badges);
      }),
    );
  }

  /** Runs `work` for who is logged in; what it throws is a page that says so, and a line in the log. */
  async function guarded(
    c: Context<Env<Bindings>>,
    work: (context: PageContext) => Promise<Response>,
  ): Promise<Response> {
    const secrets = secretsFor(c);
    const role =
      options.login === "none" ? "operate" : await readSession(getCookie(c, cookieName), secrets, clock.date());
    if (role === null) {
      if (!hasSecret(secrets)) return answerClosed(c);
      if (c.req.header("x-pgclaim-regions") === "1") return c.text("Log in.", 401, pageHeaders);
      const { pathname, search } = new URL(c.req.url);
      return c.redirect(hrefs.login(c.req.method === "GET" ? localPath(`${pathname}${search}`) : "/"), 303);
    }
    let context = contextOf(c, role, options.login === "secret", null);
    try {
      context = { ...context, claimer: await claimerOf(c.env as Bindings) };
      if (!isZone(context.zone)) {
        const fault = `tz is "${context.zone}"; expected a zone's name, as Europe/Berlin.`;
        return shown(problem("Not a time zone", faultsNote([fault]), 400), { ...context, zone: "UTC" }, null);
      }
      return await work(context);
    } catch (error) {
      const fault = faultOf(error);
      if (!(error instanceof UsageError)) logFailure(error, { route: `${c.req.method} ${c.req.routePath}`, log });
      const status = error instanceof UsageError && !fault.unreachable ? 400 : 503;
      return shown(
        problem(status === 400 ? "That does not work" : "Not now", alertOf(fault), status),
        { ...context, zone: "UTC" },
        null,
      );
    }
  }

  function contextOf(c: Context, role: Role, hasSession: boolean, claimer: Claimer | null): PageContext {
    const { pathname, search, searchParams } = new URL(c.req.url);
    const theme = getCookie(c, "pgclaim_theme");
    return {
      options,
      // Replaced before any page is made; pages that say why there is none ask it nothing.
      claimer: claimer as Claimer,
      role,
      hasSession,
      zone: searchParams.get("tz") || "UTC",
      theme: theme === "light" || theme === "dark" ? (theme satisfies Theme) : "system",
      here: localPath(`${pathname}${search}`),
      path: pathname,
      query: queryOf(searchParams),
      queries: (name) => searchParams.getAll(name),
    };
  }

  async function confirmPage(context: PageContext): Promise<Page> {
    const back = localPath(context.query.back);
    if (context.role !== "operate") return problem("Read only", readOnlyNote, 400);
    const question = await questionOf(context.query, context.queries("id"), context.claimer, context.zone);
    if ("sentence" in question) {
      return problem(
        "Nothing to do",
        html`<div class="ask"><h2>Nothing to do</h2><p>${question.sentence}</p><p class="acts"><a class="btn" href="${back}" data-back autofocus>Back</a></p></div>`,
        200,
      );
    }
    return { id: "confirm", title: "Confirm", now: null, refresh: null, parts: [askForm(question, back)] };
  }

  async function login(c: Context<Env<Bindings>>): Promise<Response> {
    const secrets = secretsFor(c);
    if (!hasSecret(secrets)) return answerClosed(c);
    const form = await formOf(c);
    const back = localPath(form?.get("back")?.toString());
    const role = await roleOf(String(form?.get("secret") ?? ""), secrets);
    if (role === null) return loginPage(c, back, true);
    setCookie(c, cookieName, await signSession(role, secrets, clock.date()), {
      ...cookieOptions,
      maxAge: sessionSeconds,
    });
    return c.redirect(back, 303);
  }

  function loginPage(c: Context, back: string, wrong: boolean): Response {
    const made: Page = { id: "login", title: "Log in", now: null, refresh: null, parts: [loginForm(back, wrong)] };
    return shown(made, contextOf(c, "read", false, null), null, wrong ? 401 : 200);
  }

  function answerClosed(c: Context): Response {
    const made: Page = { id: "login", title: "Closed", now: null, refresh: null, parts: [closed(secretCommand)] };
    return shown(made, contextOf(c, "read", false, null), null, 503);
  }

  function forbidden(context: PageContext): Response {
    return shown(problem("Read only", readOnlyNote, 400), context, null, 403);
  }
}

const readOnlyNote = html`<p class="note warn" role="alert">You are logged in with the read secret, which may look only. Log out, and in with the operate secret, to act.</p>`;

const cookieOptions = { path: "/", secure: true, httpOnly: true, sameSite: "Strict" } as const;

function problem(title: string, part: Html, status: 200 | 400 | 404 | 503): Page {
  return { id: "error", title, now: null, refresh: null, status, parts: [part] };
}

function shown(page: Page, context: PageContext, badges: Badges, status?: number): Response {
  const outcome = outcomeOf(context.query);
  const unreachable = badges !== null && "fault" in badges ? [alertOf(badges.fault)] : [];
  const parts = [...(outcome === null ? [] : [outcome]), ...unreachable, ...page.parts];
  const code = status ?? page.status ?? 200;
  const failed = code === 200 && badges !== null && "fault" in badges && badges.fault.unreachable ? 503 : code;
  return new Response(String(document({ ...page, parts }, context, badges)), {
    status: failed,
    headers: { ...pageHeaders, "content-type": "text/html; charset=utf-8" },
  });
}

/** The regions alone. Ages go on by themselves in the browser, so they do not make an answer a new one. */
async function refreshed(c: Context, page: Page, context: PageContext, badges: Badges): Promise<Response> {
  if (page.now === null || (badges !== null && "fault" in badges && badges.fault.unreachable)) {
    return c.text("The database was not reached.", 503, pageHeaders);
  }
  const body = String(regions(page, context, badges));
  const unaged = body.replaceAll(/(<time [^>]*data-t="[a-z]+">)[^<]*/g, "$1");
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(unaged));
  const etag = `"${[...new Uint8Array(digest).slice(0, 12)].map((byte) => byte.toString(16).padStart(2, "0")).join("")}"`;
  const headers = { ...pageHeaders, etag, "x-pgclaim-now": page.now, "content-type": "text/html; charset=utf-8" };
  return c.req.header("if-none-match") === etag
    ? new Response(null, { status: 304, headers })
    : new Response(body, { headers });
}

/** A job's id in the list's form leads to the job. */
function jumpOf({ path, query, zone }: PageContext): string | null {
  const id = query.q?.trim() ?? "";
  if (path !== "/jobs" || id === "") return null;
  return hrefs.job(assertJobId(id), { tz: zone === "UTC" ? undefined : zone });
}

function idOf(path: string): string {
  try {
    return decodeURIComponent(path.split("/")[2] ?? "");
  } catch {
    return ""; // half an escape
  }
}

/** Behind a proxy that ends TLS, the request's scheme is not the browser's; its host is. */
function isOwnHost(origin: string, c: Context): boolean {
  return URL.canParse(origin) && new URL(origin).host === new URL(c.req.url).host;
}

/** The first value of each name. */
function queryOf(values: URLSearchParams): Query {
  const query: Record<string, string> = Object.create(null) as Record<string, string>;
  for (const [name, value] of values) query[name] ??= value;
  return query;
}

/** A form's fields, or null for any other body: hono/csrf looks at forms only, so nothing else may act. Nor may one too long. */
async function formOf(c: Context): Promise<URLSearchParams | null> {
  const type = c.req.header("content-type") ?? "";
  if (!/^application\/x-www-form-urlencoded\b/i.test(type)) return null;
  const text = await readForm(c.req.raw, maxFormBytes);
  return text === null ? null : new URLSearchParams(text);
}
