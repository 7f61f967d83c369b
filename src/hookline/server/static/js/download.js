// Saves what is shown as a file.

import { h } from "./dom.js";

/** @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name.replace(/[^\w.-]+/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** @param {unknown[][]} rows @param {string} name */
export function downloadTable(rows, name) {
  download(new Blob([rows.map((row) => row.map(cell).join(",")).join("\r\n")], { type: "text/csv" }), name);
}

/** A cell of a CSV file; a text that a spreadsheet would run as a formula is marked as text. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
