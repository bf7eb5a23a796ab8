// The page around every page: head, navigation with its badges, the database's clock, the controls, what an action said. And
// the answer to a refresh, which is the regions alone.

import { html } from "hono/html";
import type { Overview } from "../../inspection.ts";
import { assetPaths } from "./assets.ts";
import type { PageContext } from "./context.ts";
import type { Loaded } from "./faults.ts";
import { absolute, clock, count, visible } from "./format.ts";
import { type Html, type Part, region, text } from "./parts.ts";
import { hrefs, type PageId, pages, type Query, url } from "./routes.ts";

/** A page's parts in their order. Those with a name are refreshed by themselves. */
export interface Page {
  readonly id: PageId;
  readonly title: string;
  /** Beside the title. */
  readonly aside?: Part;
  readonly parts: readonly PagePart[];
  /** The database's clock when the page was read; null where it was not. */
  readonly now: string | null;
  readonly status?: 200 | 400 | 404 | 503;
  /** Seconds between two refreshes, unless the person chooses; null: nothing to refresh. */
  readonly refresh?: 5 | 15 | null;
}

export type PagePart = Html | { readonly region: string; readonly content: Part; readonly label?: string };

/** What the navigation shows on every page. */
export type Badges = Loaded<Overview> | null;

/** The whole document. */
export function document(page: Page, context: PageContext, badges: Badges): Html {
  const { options, theme } = context;
  const title = `${page.title} · pgclaim${options.name === null ? "" : ` @ ${options.name}`}`;
  return html`<!doctype html>
<html lang="en" ${theme === "system" ? "" : html`data-theme="${theme}"`}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${visible(title)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="${assetPaths.style}">
<script src="${assetPaths.script}" defer></script>
</head>
<body data-now="${page.now ?? ""}" data-zone="${context.zone}">
<a class="skip" href="#main">Skip to the content</a>
${header(page, context, badges)}
<main id="main" tabindex="-1">
<div class="title"><h1>${visible(page.title)}</h1>${page.aside ?? ""}</div>
<p id="live-note" class="note warn" role="status" hidden></p>
${page.parts.map((part) => ("region" in part ? region(part.region, part.content, part.label) : part))}
</main>
<dialog id="ask" aria-labelledby="ask-title"></dialog>
${help()}
</body>
</html>`;
}

/** The answer to a refresh: every region, and the navigation's. */
export function regions(page: Page, context: PageContext, badges: Badges): Html {
  return html`${region("nav", navigation(page, context, badges))}${page.parts.map((part) =>
    "region" in part ? region(part.region, part.content, part.label) : "",
  )}`;
}

function header(page: Page, context: PageContext, badges: Badges): Html {
  const { options, zone } = context;
  const overview = badges !== null && "value" in badges ? badges.value : null;
  const name = options.name ?? overview?.database ?? null;
  return html`<header class="stripe-${options.colour}">
<div class="bar">
<a class="brand" href="${url("/", keepOf(context))}">pgclaim${name === null ? "" : html` <span class="m">@</span> ${text(name, 40)}`}</a>
${region("nav", navigation(page, context, badges))}
</div>
<div class="bar tools">
${
  page.now === null
    ? page.refresh === null
      ? ""
      : html`<span class="m">database time not known</span>`
    : html`<span>database time <time id="db-clock" datetime="${page.now}" title="${absolute(page.now, zone)}">${clock(page.now, zone)}</time> ${zone}</span>`
}
${page.refresh === null ? "" : live(page.refresh ?? 15)}
<span class="push"></span>
${zoneSwitch(context)}
${themeSwitch(context)}
<button type="button" class="btn script" id="help-open" hidden>Keys <kbd>?</kbd></button>
${
  context.hasSession
    ? html`<form method="post" action="/logout"><span class="m">${context.role === "read" ? "read only" : "operator"}</span> <button class="btn">Log out</button></form>`
    : ""
}
</div>
</header>`;
}

/** Only there with the script, which fills it with life. */
function live(seconds: number): Html {
  return html`<span id="live" class="script" hidden>
<span id="live-age" class="m"></span>
<label><span class="vh">Refresh</span><select id="live-every">${["2", "5", "15", "60", "off"].map(
    (choice) =>
      html`<option value="${choice}" ${choice === String(seconds) ? html`selected` : ""}>${choice === "off" ? "no refresh" : `every ${choice} s`}</option>`,
  )}</select></label>
<button type="button" class="btn" id="live-pause" aria-pressed="false">Pause</button>
</span>`;
}

function navigation(page: Page, context: PageContext, badges: Badges): Html {
  const overview = badges !== null && "value" in badges ? badges.value : null;
  const silent = overview?.triggers.filter(({ status }) => status === "silent").length ?? 0;
  const badgeOf = (id: string): Html | "" => {
    if (overview === null) return "";
    if (id === "dead" && overview.dead.n > 0) return badge(count(overview.dead), "dead letters");
    if (id === "keys" && overview.haltedKeys.n > 0) return badge(`${count(overview.haltedKeys)}!`, "halted keys");
    if (id === "overview" && silent > 0) return badge(`${silent}!`, "silent triggers");
    return "";
  };
  return html`<nav aria-label="Pages"><ul>${pages.map(
    ({ id, path, label, key }) =>
      html`<li><a href="${url(path, keepOf(context))}" data-go="${key}" ${id === page.id ? html`aria-current="page"` : ""}>${label}${badgeOf(id)}</a></li>`,
  )}</ul></nav>`;
}

function badge(shown: string, what: string): Html {
  return html` <span class="badge">${shown}<span class="vh"> ${what}</span></span>`;
}

function zoneSwitch(context: PageContext): Html {
  const { zone, here } = context;
  const { pathname, searchParams } = new URL(here, "http://local.invalid");
  searchParams.delete("tz");
  const query = Object.fromEntries(searchParams);
  return html`<span class="switch" role="group" aria-label="Time zone">
<a href="${url(pathname, query)}" ${zone === "UTC" ? html`aria-current="true"` : ""}>UTC</a>
<a class="script" hidden id="zone-local" href="${url(pathname, query)}" ${zone === "UTC" ? "" : html`aria-current="true"`}>local</a>
${zone === "UTC" ? "" : html`<noscript>${zone}</noscript>`}
</span>`;
}

function themeSwitch({ theme, here }: PageContext): Html {
  return html`<span class="switch" role="group" aria-label="Theme">${(["system", "light", "dark"] as const).map(
    (choice) =>
      html`<a href="${hrefs.prefer({ theme: choice, back: here })}" data-theme-choice="${choice}" ${choice === theme ? html`aria-current="true"` : ""}>${choice}</a>`,
  )}</span>`;
}

function help(): Html {
  const keys: readonly (readonly [string, string])[] = [
    ["/", "go to the filter"],
    ["j k", "next row, row before"],
    ["Enter", "open the row"],
    ["x", "pick the row"],
    ["r", "refresh now"],
    ["g then o j d k s i h", "go to a page"],
    ["Esc", "close"],
    ["?", "this list"],
  ];
  return html`<dialog id="help" aria-labelledby="help-title"><h2 id="help-title">Keys</h2>
<dl class="keys">${keys.map(([key, does]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${does}</dd></div>`)}</dl>
<p><label><input type="checkbox" id="keys-on" checked> Single keys are on</label></p>
<form method="dialog"><button class="btn">Close</button></form></dialog>`;
}

/** What goes along from page to page. */
export function keepOf({ zone }: Pick<PageContext, "zone">): Query {
  return { tz: zone === "UTC" ? undefined : zone };
}
