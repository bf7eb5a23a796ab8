// The door: a form that takes the operate or the read secret, and the pages that say why there is none.

import { html } from "hono/html";
import type { Html } from "../parts.ts";

/** The form. `wrong`: the last secret opened nothing. */
export function loginForm(back: string, wrong: boolean): Html {
  return html`<form method="post" action="/login" class="ask">
<p>Give the operate secret to look and act, or the read secret to look only. It is kept nowhere: the browser gets a signed cookie for twelve hours.</p>
${wrong ? html`<p class="note bad" role="alert" id="wrong">This secret opens nothing here.</p>` : ""}
<input type="text" name="user" value="pgclaim" autocomplete="username" hidden>
<div class="field"><label for="secret">Secret</label>
<input id="secret" name="secret" type="password" required autocomplete="current-password" autofocus ${wrong ? html`aria-invalid="true" aria-describedby="wrong"` : ""}></div>
<input type="hidden" name="back" value="${back}">
<p><button class="btn primary">Log in</button></p>
</form>`;
}

/** Of a deployment that has no secret a person could log in with. */
export function closed(secretCommand: string): Html {
  return html`<div class="ask"><p class="note warn" role="alert">The dashboard stays closed: neither PGCLAIM_OPERATE_SECRET nor PGCLAIM_READ_SECRET is set in this deployment.</p>
<p>Set the one that may act, and the one that may only look if you want it:</p>
<pre tabindex="0" role="region" aria-label="Commands">${secretCommand} PGCLAIM_OPERATE_SECRET
${secretCommand} PGCLAIM_READ_SECRET</pre>
<p class="m">PGCLAIM_SECRET_MISSING</p></div>`;
}
