// The cost and the order of subscribers, and a timeline of events.

import { h } from "./dom.js";
import { clock, dateTime, milliseconds, percent, whole } from "./format.js";
import { barCell, end, numberTable } from "./tables.js";
import { colourOf } from "./theme.js";

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
  const attributes = { tabindex: "0", role: "region", "aria-label": "Cost of subscribers" };
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
 * The total time over steps of subscribers reported more than once. Reports that a resume discarded are left out.
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

const MAX_OPEN = 1;

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
  return [...groups.values()].map((rows, place) => orderTable(rows, runName, place < MAX_OPEN));
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
    changed.length > 0
      ? `It changed while training: this is the order since step ${whole(last.step)}, the last of ${whole(last.versions)}.`
      : "",
    rows[0].left_out > 0 ? `${whole(rows[0].left_out)} more names did not fit into the record.` : "",
  ].filter(Boolean);
}

const GRAVE = /error|fail|hang|not_finite|killed|lost|alert/;

/** @param {{run: string, kind: string, time: number, name: string, message: string, step: number | null}[]} events */
export function timeline(events) {
  if (events.length < 2) return null;
  const [first, last] = [events[0].time, events[events.length - 1].time];
  const span = last - first || 1;
  const marks = events.map((event) =>
    h("i", {
      class: "mark",
      data: { grave: String(isGrave(event)), kind: event.kind },
      style: { left: `${((event.time - first) / span) * 100}%` },
      title: `${event.name} · ${dateTime(event.time)}`,
    }),
  );
  return h(
    "div",
    { class: "timeline" },
    h("div", { class: "timeline-line" }, marks),
    h("div", { class: "ends" }, h("span", {}, clock(first)), h("span", {}, clock(last))),
  );
}

export function isGrave(event) {
  return GRAVE.test(event.name);
}
