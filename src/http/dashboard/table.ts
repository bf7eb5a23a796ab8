// Tables as every page has them: a caption, scopes, labels for narrow screens where a row becomes a card. Roles are written out,
// because a row that is laid out as a card is no row to a screen reader otherwise.

import { html } from "hono/html";
import type { Html, Part } from "./parts.ts";

export interface Column {
  readonly label: string;
  /** Numbers stand right. */
  readonly numeric?: boolean;
  /** On a narrow screen: first, and without its label. */
  readonly lead?: boolean;
  /** On a narrow screen: left out. */
  readonly wide?: boolean;
  /** A name: it is not squeezed to a letter a line. */
  readonly name?: boolean;
  /** Takes what width is left. */
  readonly grow?: boolean;
  /** For screen readers only. */
  readonly quiet?: boolean;
}

export interface Row {
  readonly cells: readonly Part[];
  /** Goes over the whole width below the row. */
  readonly below?: Part;
  /** Where `Enter` leads. */
  readonly href?: string;
  readonly tone?: "bad" | "warn" | "";
}

export interface TableOptions {
  readonly caption: string;
  readonly captionHidden?: boolean;
  readonly columns: readonly Column[];
  readonly rows: readonly Row[];
  /** Instead of the table where there are no rows. */
  readonly empty: Part;
}

export function table({ caption, captionHidden = false, columns, rows, empty }: TableOptions): Html {
  if (rows.length === 0) return html`<div class="empty">${empty}</div>`;
  return html`<table role="table" class="list">
    <caption class="${captionHidden ? "vh" : ""}">${caption}</caption>
    <thead role="rowgroup"><tr role="row">${columns.map(
      (column) =>
        html`<th scope="col" role="columnheader" class="${classesOf(column)}">${
          column.quiet === true ? html`<span class="vh">${column.label}</span>` : column.label
        }</th>`,
    )}</tr></thead>
    <tbody role="rowgroup">${rows.map((row) => rowOf(row, columns))}</tbody>
  </table>`;
}

function rowOf({ cells, below, href, tone = "" }: Row, columns: readonly Column[]): Html {
  return html`<tr role="row" class="${tone === "" ? "" : `t-${tone}`}" ${href === undefined ? "" : html`data-href="${href}"`}>${cells.map(
    (cell, i) => {
      const column = columns[i];
      return html`<td role="cell" class="${column === undefined ? "" : classesOf(column)}" data-label="${
        column === undefined || column.lead === true || column.quiet === true ? "" : column.label
      }">${cell}</td>`;
    },
  )}</tr>${
    below === undefined || below === null || below === false
      ? ""
      : html`<tr role="row" class="below"><td role="cell" colspan="${columns.length}">${below}</td></tr>`
  }`;
}

function classesOf({ numeric, lead, wide, grow, name }: Column): string {
  return [numeric && "num", lead && "lead", wide && "wide", grow && "grow", name && "name"].filter(Boolean).join(" ");
}
