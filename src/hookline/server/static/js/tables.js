// Tables of names and numbers, and lists of texts that were recorded as metrics.

import { h } from "./dom.js";
import { whole } from "./format.js";

/**
 * A table that scrolls sideways if it is too wide.
 * @param {string[]} heads a leading ">" aligns right, for numbers
 * @param {HTMLElement[]} rows
 */
export function numberTable(heads, rows, attributes = {}) {
  const cells = heads.map((title) =>
    title.startsWith(">") ? h("th", { scope: "col", class: "end" }, title.slice(1)) : h("th", { scope: "col" }, title),
  );
  const table = h("table", { class: "numbers" }, h("thead", {}, h("tr", {}, cells)), h("tbody", {}, rows));
  return h("div", { class: "scroll", ...attributes }, table);
}

/** A cell with a number. */
export function end(...children) {
  return h("td", { class: "end" }, children);
}

/** A cell with a bar. @param {number} share from 0 to 1 @param {string} [colour] */
export function barCell(share, colour = "var(--accent)") {
  const bar = h("i", { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%`, background: colour } });
  return h("td", { class: "meter-cell" }, h("div", { class: "meter" }, bar));
}

/** A small square in the colour of a line. */
export function swatch(colour, isDashed = false) {
  return h("i", { class: isDashed ? "swatch dashed" : "swatch", vars: { line: colour } });
}

/** The legend of a chart. @param {{label: string, colour: string, dash?: number[]}[]} lines */
export function legendChips(lines) {
  return lines.map((line) => h("span", { class: "chip" }, swatch(line.colour, Boolean(line.dash)), line.label));
}

/**
 * @typedef {{run: string, name: string, axis: string, step: number, text: string, characters: number,
 *   total: number}} Text
 */

/** Texts of one metric by step, the latest first. @param {Text[]} texts @param {(id: string) => string} [nameOf] */
export function textTable(texts, nameOf = null) {
  const rows = texts.map((each) =>
    h(
      "tr",
      {},
      end(whole(each.step)),
      nameOf && h("td", { class: "muted" }, nameOf(each.run)),
      h("td", { class: "wide-text" }, shown(each)),
    ),
  );
  const attributes = { class: "scroll texts-by-step", tabindex: "0", role: "region", "aria-label": "Texts by step" };
  return numberTable([">step", ...(nameOf ? ["run"] : []), "text"], rows, attributes);
}

/** The latest text of each metric of a run, with the earlier ones. @param {Text[]} texts */
export function latestTexts(texts) {
  const metrics = Map.groupBy(texts, (each) => (each.axis === "train" ? each.name : `${each.name} · ${each.axis}`));
  const entries = [...metrics].map(([name, own]) => {
    const count = `${whole(own.length)} ${own.length < own[0].total ? `of ${whole(own[0].total)} ` : ""}by step`;
    return [
      h("dt", {}, name),
      h("dd", {}, h("p", {}, shown(own[0])), h("details", {}, h("summary", {}, count), textTable(own))),
    ];
  });
  return h("dl", {}, entries);
}

function shown({ text, characters }) {
  const left = characters - [...text].length;
  return left > 0 ? `${text} … (${whole(left)} more characters)` : text;
}
