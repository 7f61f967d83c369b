// What subscribers cost: a table of the last report of each, and lines of all reports.

import { h } from "./dom.js";
import { milliseconds, percent, whole } from "./format.js";
import { colourOf } from "./palette.js";
import { barCell, end, numberTable } from "./table.js";

const HEADS = ["subscriber", "", ">calls", ">total", ">mean", ">p95", ">max", ">share of the run", ">errors"];

/**
 * @typedef {{run: string, writer: string, name: string, calls: number | null, total_ms: any, mean_ms: any, p95_ms: any,
 *   max_ms: any, share: any, errors: number | null, disabled: boolean, error: string | null, error_at: string | null,
 *   step: number | null}} HookRow
 */

/** @param {HookRow[]} hooks @param {(id: string) => string} runName */
export function costTable(hooks, runName) {
  const several = new Set(hooks.map((row) => row.run)).size > 1;
  const most = Math.max(...hooks.map((row) => Number(row.total_ms) || 0), 1e-9);
  const rows = hooks.flatMap((row) => [costRow(row, most, several && runName(row.run)), errorRow(row)]);
  const attributes = { tabindex: "0", role: "region", "aria-label": "What subscribers cost" };
  return numberTable(
    HEADS,
    rows.filter((row) => row !== null),
    attributes,
  );
}

function costRow(row, most, run) {
  const under = [row.writer !== "main" && row.writer, run].filter(Boolean).join(" · ");
  const disabled = h("span", { class: "status", data: { status: "failed" } }, h("i"), "disabled");
  return h(
    "tr",
    { data: { hook: row.name } },
    h("th", { scope: "row" }, row.name, row.disabled && [" ", disabled], under && h("span", { class: "under" }, under)),
    barCell((Number(row.total_ms) || 0) / most),
    end(whole(row.calls)),
    [row.total_ms, row.mean_ms, row.p95_ms, row.max_ms].map((time) => end(milliseconds(time))),
    end(percent(row.share)),
    end(row.errors ? h("b", { class: "bad" }, whole(row.errors)) : "0"),
  );
}

function errorRow(row) {
  if (!row.error) return null;
  const text = h("div", {}, row.error_at && h("span", { class: "muted" }, `${row.error_at}: `), row.error);
  return h("tr", { class: "hook-error", data: { errorOf: row.name } }, h("td", { colspan: HEADS.length }, text));
}

/**
 * The time spent in all over steps, of those that were reported more than once. What a resume took back is left out.
 * @param {HookRow[]} history by time @param {(id: string) => string} runName
 */
export function costLines(history, runName) {
  const several = new Set(history.map((row) => row.run)).size > 1;
  const lines = new Map();
  for (const row of history) {
    const key = [row.name, row.writer !== "main" && row.writer, several && runName(row.run)].filter(Boolean).join(" · ");
    if (!lines.has(key)) lines.set(key, { key, label: key, colour: colourOf(key, "hook"), x: [], y: [] });
    const { x, y } = lines.get(key);
    while (x.length && x[x.length - 1] >= (row.step ?? 0)) [x.pop(), y.pop()];
    x.push(row.step ?? 0);
    y.push(typeof row.total_ms === "number" ? row.total_ms : null);
  }
  return [...lines.values()].filter((line) => line.x.length > 1);
}
