// In which order subscribers run, by moment; runs with the same order share a table.

import { h } from "./dom.js";
import { whole } from "./format.js";
import { numberTable } from "./table.js";

const MOST_OPEN = 1;

/**
 * @typedef {{run: string, writer: string, moments: Record<string, string[]>, left_out: number, versions: number,
 *   step: number | null}} OrderRow
 */

/** @param {OrderRow[]} order @param {(id: string) => string} runName */
export function orderTables(order, runName) {
  const groups = new Map();
  for (const row of order) {
    const key = JSON.stringify(row.moments);
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  return [...groups.values()].map((rows, place) => orderTable(rows, runName, place < MOST_OPEN));
}

function orderTable(rows, runName, open) {
  const [first] = rows;
  const moments = Object.entries(first.moments);
  const lines = moments.map(([moment, names]) =>
    h(
      "tr",
      { data: { moment } },
      h("th", { scope: "row" }, moment),
      h("td", { class: "wide-text" }, h("ol", { class: "order" }, names.map((name) => h("li", {}, name)))),
    ),
  );
  const names = rows.map((row) => (row.writer === "main" ? runName(row.run) : `${runName(row.run)} · ${row.writer}`));
  const shown = names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
  const attributes = { tabindex: "0", role: "region", "aria-label": `The order in ${shown}` };
  return h(
    "details",
    { class: "order-of", open },
    h("summary", {}, shown, h("span", { class: "count" }, ` ${moments.length} moment${moments.length === 1 ? "" : "s"}`)),
    numberTable(["moment", "subscribers, in order"], lines, attributes),
    notes(rows).map((text) => h("p", { class: "muted" }, text)),
  );
}

function notes(rows) {
  const changed = rows.filter((row) => row.versions > 1);
  const [last] = changed;
  return [
    changed.length > 0 &&
      `It changed while training: this is the order since step ${whole(last.step)}, the last of ${whole(last.versions)}.`,
    rows[0].left_out > 0 && `${whole(rows[0].left_out)} more names did not fit into the record.`,
  ].filter((text) => text !== false);
}
