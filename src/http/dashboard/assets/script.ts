// The dashboard's script, as it is sent. Everything works without it; it adds refresh, dialogs, keys, and times that go on. Runs
// in the browser only: it reads the browser's clock for ages, after setting it by the database's.

export const script = /* js */ `(() => {
"use strict";
const $ = (q, at = document) => at.querySelector(q), $$ = (q, at = document) => [...at.querySelectorAll(q)];
const body = document.body, store = {
  get: (k) => { try { return localStorage.getItem("pgclaim." + k); } catch { return null; } },
  set: (k, v) => { try { localStorage.setItem("pgclaim." + k, v); } catch {} },
};
for (const one of $$(".script")) one.hidden = false;

// --- times
let skew = body.dataset.now ? Date.parse(body.dataset.now) - Date.now() : 0, readAt = Date.now();
const now = () => Date.now() + skew;
const pair = (a, x, b, y) => a + " " + x + (b ? " " + b + " " + y : "");
const roughly = (ms) => {
  let s = Math.floor(ms / 1000);
  if (s < 60) return s + " s";
  if (s < 3600) return pair(Math.floor(s / 60), "min", s % 60, "s");
  const m = Math.round(ms / 60000);
  if (m < 1440) return pair(Math.floor(m / 60), "h", m % 60, "min");
  const h = Math.round(ms / 3600000);
  return pair(Math.floor(h / 24), "d", h % 24, "h");
};
const said = (ms, how) => how === "slack"
  ? (ms >= 0 ? roughly(ms) + " left" : "missed by " + roughly(-ms))
  : Math.abs(ms) < 1000 ? "just now" : ms > 0 ? "in " + roughly(ms) : roughly(-ms) + " ago";
const put = (el, text) => { if (el && el.textContent !== text) el.textContent = text; };
const zone = body.dataset.zone || "UTC";
let clockText;
try { const f = new Intl.DateTimeFormat("en-GB", { timeZone: zone, hourCycle: "h23", hour: "2-digit", minute: "2-digit", second: "2-digit" }); clockText = (t) => f.format(t); }
catch { clockText = (t) => new Date(t).toISOString().slice(11, 19); }
const tickTimes = () => {
  for (const el of $$("time[data-t]")) put(el, said(Date.parse(el.dateTime) - now(), el.dataset.t));
  if (body.dataset.now) put($("#db-clock"), clockText(now()));
  put($("#live-age"), "updated " + roughly(Date.now() - readAt) + " ago");
};

// --- refresh
const every = $("#live-every"), pause = $("#live-pause"), note = $("#live-note");
let timer, etag = "", wait = 0, asking = false, paused = false, input = Date.now(), spoke = 0, nextAt = 0;
const idleMs = 600000;
const chosen = () => every && every.value !== "off" ? Number(every.value) * 1000 : 0;
const say = (text, label, act) => {
  note.textContent = text;
  if (label) { const b = document.createElement("button"); b.type = "button"; b.className = "btn"; b.textContent = label; b.onclick = act; note.append(" ", b); }
  note.hidden = false;
};
const quiet = () => { note.hidden = true; };
const selecting = () => $$("input[name=id]:checked").length;
const held = () => document.hidden || $("dialog[open]") || selecting() || String(getSelection() || "") !== "";
const keepOpen = (from, to) => { for (const d of $$("details[id]", from)) { const other = to.querySelector("#" + CSS.escape(d.id)); if (other) other.open = d.open; } };
// Without ages: a region in which only they went on is not put anew, and not read out anew.
const bare = (at) => { const copy = at.cloneNode(true); for (const t of $$("time[data-t]", copy)) t.textContent = ""; for (const d of $$("details", copy)) d.open = false; return copy.innerHTML; };
const swap = (text) => {
  let changed = 0;
  for (const fresh of $$("[data-region]", new DOMParser().parseFromString(text, "text/html"))) {
    const old = document.getElementById(fresh.id);
    if (!old || old.contains(document.activeElement) || bare(old) === bare(fresh)) continue;
    keepOpen(old, fresh);
    const current = $("tr.cur", old)?.dataset.href;
    old.replaceChildren(...document.adoptNode(fresh).childNodes);
    if (current) $$("tr[data-href]", old).find((tr) => tr.dataset.href === current)?.classList.add("cur");
    changed++;
  }
  counted();
  return changed;
};
const refresh = async () => {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  const busy = $$("[data-region]");
  for (const one of busy) one.setAttribute("aria-busy", "true");
  body.classList.add("loading");
  try {
    const headers = { "x-pgclaim-regions": "1" };
    if (etag) headers["if-none-match"] = etag;
    const answer = await fetch(location.href, { headers, credentials: "same-origin", redirect: "manual", cache: "no-store" });
    if (answer.status === 401) { body.classList.add("stale"); say("You are logged out.", "Log in", () => location.reload()); paused = true; return; }
    if (answer.status !== 200 && answer.status !== 304) throw new Error(String(answer.status));
    const at = answer.headers.get("x-pgclaim-now");
    if (at) { body.dataset.now = at; skew = Date.parse(at) - Date.now(); }
    if (answer.status === 200) {
      const text = await answer.text();
      if (!held()) {
        etag = answer.headers.get("etag") || "";
        if (swap(text) && Date.now() - spoke > 60000) { spoke = Date.now(); put($("#live-say"), "Numbers updated"); }
      }
    }
    readAt = Date.now();
    wait = 0;
    body.classList.remove("stale");
    quiet();
  } catch {
    wait = Math.min(Math.max(wait * 2, chosen() || 5000, 5000), 60000);
    body.classList.add("stale");
  } finally {
    asking = false;
    body.classList.remove("loading");
    for (const one of busy) one.removeAttribute("aria-busy");
    plan();
    tickTimes();
  }
};
const plan = () => {
  clearTimeout(timer);
  if (!every || paused || !chosen()) return;
  nextAt = Date.now() + (wait || chosen());
  timer = setTimeout(turn, nextAt - Date.now());
};
const turn = () => {
  if (Date.now() - input > idleMs) {
    paused = true;
    return say("Live updates stopped after 10 minutes so your database can sleep.", "Resume", resume);
  }
  if (held()) return plan();
  refresh();
};
const resume = () => { paused = false; wait = 0; input = Date.now(); quiet(); pauseText(); refresh(); };
const pauseText = () => { if (pause) { pause.setAttribute("aria-pressed", String(paused)); put(pause, paused ? "Resume" : "Pause"); } };
const staleText = () => {
  if (!wait || paused) return;
  const left = Math.max(0, Math.ceil((nextAt - Date.now()) / 1000));
  const text = "These numbers are from " + clockText(readAt + skew) + " (" + roughly(Date.now() - readAt) + " ago). Retrying in " + left + " s.";
  if (note.hidden || !note.firstChild || !$("button", note)) say(text, "Retry now", refresh); else note.firstChild.nodeValue = text;
};
if (every) {
  const kept = store.get("every");
  if (kept && [...every.options].some((o) => o.value === kept)) every.value = kept;
  every.onchange = () => { store.set("every", every.value); paused = false; pauseText(); plan(); };
  pause.onclick = () => { if (paused) resume(); else { paused = true; clearTimeout(timer); pauseText(); } };
  const spoken = document.createElement("p");
  spoken.id = "live-say"; spoken.className = "vh"; spoken.setAttribute("role", "status");
  body.append(spoken);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden && every && !paused && Date.now() - readAt > (chosen() || Infinity)) refresh(); });
for (const type of ["pointerdown", "keydown", "wheel", "touchstart"]) addEventListener(type, () => { input = Date.now(); }, { passive: true });
setInterval(() => { tickTimes(); staleText(); }, 1000);
tickTimes();
plan();

// --- what an action said is not said again at a reload
{
  const u = new URL(location.href);
  if (u.searchParams.has("did")) { for (const n of ["did", "n", "left", "of", "was"]) u.searchParams.delete(n); history.replaceState(null, "", u); }
}

// --- confirm pages as dialogs
const ask = $("#ask");
let opener = null;
const openAsk = async (address, from) => {
  try {
    const answer = await fetch(address, { credentials: "same-origin", redirect: "manual" });
    const content = $(".ask", new DOMParser().parseFromString(await answer.text(), "text/html"));
    if (!answer.ok || !content) throw new Error("no question");
    ask.replaceChildren(document.adoptNode(content));
    const title = $("h2", ask);
    if (title) title.id = "ask-title";
    opener = from;
    ask.showModal();
    ($("[autofocus]", ask) || ask).focus();
  } catch { location.href = address; }
};
ask.addEventListener("close", () => {
  ask.replaceChildren();
  const row = opener && !opener.isConnected && opener.id ? document.getElementById(opener.id) : opener;
  if (row && row.isConnected) row.focus();
});
document.addEventListener("click", (event) => {
  const el = event.target instanceof Element ? event.target : null;
  if (!el || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const link = el.closest("a[data-confirm]");
  if (link) { event.preventDefault(); openAsk(link.href, link); return; }
  const back = el.closest("#ask a[data-back]");
  if (back) { event.preventDefault(); ask.close(); return; }
  const theme = el.closest("[data-theme-choice]");
  if (theme) {
    event.preventDefault();
    const to = theme.dataset.themeChoice;
    if (to === "system") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = to;
    document.cookie = "pgclaim_theme=" + to + ";path=/;max-age=31536000;samesite=lax";
    for (const one of $$("[data-theme-choice]")) if (one === theme) one.setAttribute("aria-current", "true"); else one.removeAttribute("aria-current");
    return;
  }
  const copy = el.closest("button[data-copy]");
  if (copy) {
    const from = document.getElementById(copy.dataset.copy);
    navigator.clipboard.writeText(from ? from.textContent : "").then(() => put(copy, "Copied"), () => put(copy, "Copying is not allowed here"));
  }
  if (el.id === "help-open") $("#help").showModal();
  if (el.closest("#select-page")) { for (const box of $$("input[name=id]")) box.checked = true; counted(); }
});
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.matches("form[data-confirm]")) {
    event.preventDefault();
    const data = new FormData(form, event.submitter);
    openAsk(form.action + "?" + new URLSearchParams(data), event.submitter);
  } else if (form.method === "post") for (const b of $$("button", form)) setTimeout(() => { b.disabled = true; });
});

// --- selection
const counted = () => {
  const n = selecting(), at = $("#selected");
  if (at) put(at, n ? n + " selected, live updates paused" : "Nothing selected");
  for (const b of $$("[data-needs-selection]")) b.disabled = !n;
};
document.addEventListener("change", (event) => { if (event.target.name === "id") counted(); });
counted();

// --- zone
const local = $("#zone-local");
if (local) {
  try {
    const u = new URL(local.href, location.href), mine = Intl.DateTimeFormat().resolvedOptions().timeZone;
    u.searchParams.set("tz", mine);
    local.href = u.href;
    local.title = mine;
  } catch {}
}

// --- filters fold on narrow screens
for (const fold of $$("details.fold")) if (matchMedia("(max-width:640px)").matches && !fold.dataset.open) fold.open = false;

// --- keys
const keysOn = $("#keys-on");
keysOn.checked = store.get("keys") !== "off";
keysOn.onchange = () => store.set("keys", keysOn.checked ? "on" : "off");
const rows = () => $$("tr[data-href]");
const move = (by) => {
  const all = rows(), i = all.findIndex((r) => r.classList.contains("cur"));
  const to = all[i < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(i + by, 0), all.length - 1)];
  if (!to) return;
  all[i]?.classList.remove("cur");
  to.classList.add("cur");
  (to.querySelector("a.id") || to.querySelector("a"))?.focus({ preventScroll: true });
  to.scrollIntoView({ block: "nearest" });
};
let going = 0;
document.addEventListener("keydown", (event) => {
  const t = event.target;
  if (!keysOn.checked && event.key !== "?") return;
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]") || t.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(t.tagName) && t.type !== "checkbox") return;
  const key = event.key, current = $("tr.cur");
  if (Date.now() - going < 1500) {
    going = 0;
    const link = $('[data-go="' + CSS.escape(key) + '"]');
    if (link) { event.preventDefault(); link.click(); return; }
  }
  const does = {
    "/": () => { const f = $("[data-filter]"), d = f?.closest("details"); if (d) d.open = true; f?.focus(); },
    j: () => move(1),
    k: () => move(-1),
    x: () => { const box = current && $("input[name=id]", current); if (box) { box.checked = !box.checked; counted(); } },
    r: () => { if (every) { input = Date.now(); refresh(); } },
    g: () => { going = Date.now(); },
    "?": () => $("#help").showModal(),
  }[key];
  if (does) { event.preventDefault(); does(); }
  else if (key === "Enter" && current && t === body) location.href = current.dataset.href;
});
})();
`;
