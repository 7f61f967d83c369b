// Tables of names and numbers.

import { h } from "./dom.js";

/**
 * A table that scrolls sideways where it is too wide.
 * @param {string[]} heads those that begin with ">" stand over numbers, at the right
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

/** What the colours of a chart mean. @param {{label: string, colour: string, dash?: number[]}[]} lines */
export function legendChips(lines) {
  return lines.map((line) => h("span", { class: "chip" }, swatch(line.colour, Boolean(line.dash)), line.label));
}
