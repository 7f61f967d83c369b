// A small chart as SVG, for plots that are recorded with their points: curves, figures of Plotly, confusion matrices.

import { roundTicks } from "./chart_scales.js";
import { h } from "./dom.js";
import { number, whole } from "./format.js";
import { legendChips } from "./tables.js";
import { colourOf } from "./theme.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 460;
const HEIGHT = 270;
const MARGIN = { left: 54, right: 14, top: 12, bottom: 40 };
const MIDDLE = HEIGHT / 2 - 10;
const MAX_MARKS = 3000;
const MAX_HEAT = 160;

/** An SVG element. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  for (const child of children.flat())
    if (child) element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  return element;
}

/**
 * @typedef {{kind: "line" | "marks" | "both" | "bar" | "heat", name: string, x: any[], y: any[], z?: number[][],
 *   colour?: string, isDashed?: boolean}} Trace
 * @typedef {{x?: string, y?: string, xRange?: number[], yRange?: number[], label?: string}} Look
 */

/** @param {Trace[]} traces @param {Look} look */
export function chart(traces, look = {}) {
  const has = (...kinds) => traces.some((trace) => kinds.includes(trace.kind));
  const xs = axis(traces.map((trace) => trace.x), look.xRange, has("bar", "heat"));
  const ys = axis(traces.map((trace) => trace.y), look.yRange, has("heat"), has("bar"));
  const place = {
    x: (value) => MARGIN.left + xs.share(value) * (WIDTH - MARGIN.left - MARGIN.right),
    y: (value) => HEIGHT - MARGIN.bottom - ys.share(value) * (HEIGHT - MARGIN.top - MARGIN.bottom),
  };
  const bars = traces.filter((trace) => trace.kind === "bar");
  const drawn = traces.map((trace, index) => {
    const colour = trace.colour ?? colourOf(trace.name || `trace ${index}`, "label");
    return drawTrace({ ...trace, colour }, place, xs, ys, { count: bars.length, index: bars.indexOf(trace) });
  });
  const picture = s(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "svg-chart", role: "img", "aria-label": look.label ?? "chart" },
    grid(xs, ys, place),
    s("g", {}, drawn),
    look.x ? s("text", { x: (WIDTH + MARGIN.left) / 2, y: HEIGHT - 6, class: "axis-title" }, look.x) : null,
    look.y
      ? s("text", { x: 12, y: MIDDLE, class: "axis-title", transform: `rotate(-90 12 ${MIDDLE})` }, look.y)
      : null,
  );
  const named = traces.filter((trace) => trace.name && trace.kind !== "heat");
  const legend = legendChips(
    named.map((trace) => ({ label: trace.name, colour: trace.colour ?? colourOf(trace.name, "label") })),
  );
  return h("div", { class: "svg-holder" }, picture, legend.length > 0 && h("div", { class: "legend" }, legend));
}

/** A scale from 0 to 1: of numbers, or of categories if a value is a text. */
function axis(columns, range, hasWidth = false, fromZero = false) {
  const values = columns.flat().filter((value) => value !== null && value !== undefined);
  const isNumeric = values.every((value) => typeof value === "number" || value === "NaN");
  if (!isNumeric) {
    const names = [...new Set(values.map(String))];
    return {
      share: (value) => (names.indexOf(String(value)) + 0.5) / names.length,
      width: 1 / names.length,
      ticks: names
        .map((name) => ({ value: name, text: name.slice(0, 14) }))
        .filter((_, at) => at % Math.ceil(names.length / 10) === 0),
    };
  }
  const finite = values.filter(Number.isFinite);
  let [low, high] = range ?? [least(finite), most(finite)];
  if (!Number.isFinite(low) || !Number.isFinite(high)) [low, high] = [0, 1];
  if (fromZero && !range) [low, high] = [Math.min(0, low), Math.max(0, high)];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const distinct = [...new Set(finite)].sort((a, b) => a - b);
  const gap = distinct.length > 1 ? least(distinct.slice(1).map((value, at) => value - distinct[at])) : 1;
  if (hasWidth && !range) [low, high] = [low - (fromZero ? 0 : gap / 2), high + (fromZero ? 0 : gap / 2)];
  if (!hasWidth && !range && !fromZero) [low, high] = [low - (high - low) * 0.02, high + (high - low) * 0.04];
  return { share: (value) => (value - low) / (high - low), width: gap / (high - low), ticks: roundTicks(low, high) };
}

function grid(xs, ys, place) {
  const [right, bottom] = [WIDTH - MARGIN.right, HEIGHT - MARGIN.bottom];
  return s(
    "g",
    { class: "axes" },
    ys.ticks.map(({ value, text }) => [
      s("line", { x1: MARGIN.left, x2: right, y1: place.y(value), y2: place.y(value) }),
      s("text", { x: MARGIN.left - 6, y: place.y(value) + 4, "text-anchor": "end" }, text),
    ]).flat(),
    xs.ticks.map(({ value, text }) => s("text", { x: place.x(value), y: bottom + 16, "text-anchor": "middle" }, text)),
    s("line", { x1: MARGIN.left, x2: right, y1: bottom, y2: bottom, class: "base" }),
  );
}

function drawTrace(trace, place, xs, ys, bar) {
  if (trace.kind === "heat") return drawHeat(trace, place, xs, ys);
  const points = trace.x
    .map((x, at) => [x, trace.y[at]])
    .filter(([x, y]) => isDrawn(x) && isDrawn(y));
  if (trace.kind === "bar") return drawBars(trace, points, place, xs, bar);
  const parts = [];
  if (trace.kind !== "marks") {
    const path = points.map(([x, y], at) => `${at ? "L" : "M"}${place.x(x).toFixed(1)} ${place.y(y).toFixed(1)}`).join("");
    const dashes = trace.isDashed ? "4 4" : null;
    parts.push(s("path", { d: path, class: "curve", stroke: trace.colour, "stroke-dasharray": dashes }));
  }
  if (trace.kind !== "line") {
    const every = Math.ceil(points.length / MAX_MARKS);
    const look = { r: points.length > 100 ? 2 : 3, fill: trace.colour };
    for (const [x, y] of points.filter((_, at) => at % every === 0))
      parts.push(s("circle", { cx: place.x(x), cy: place.y(y), ...look }, s("title", {}, `${textOf(x)}, ${textOf(y)}`)));
  }
  return s("g", {}, parts);
}

function drawBars(trace, points, place, xs, { count, index }) {
  const width = (xs.width * (WIDTH - MARGIN.left - MARGIN.right) * 0.8) / count;
  return s(
    "g",
    {},
    points.slice(0, MAX_MARKS).map(([x, y]) => {
      const [top, bottom] = [Math.min(place.y(y), place.y(0)), Math.max(place.y(y), place.y(0))];
      const left = place.x(x) - (width * count) / 2 + width * index;
      const box = { x: left, y: top, width: Math.max(0.5, width), height: bottom - top };
      return s("rect", { ...box, fill: trace.colour, opacity: 0.8 }, s("title", {}, `${textOf(x)}: ${textOf(y)}`));
    }),
  );
}

function drawHeat(trace, place, xs, ys) {
  const rows = trace.z.slice(0, MAX_HEAT).map((row) => row.slice(0, MAX_HEAT));
  const values = rows.flat().filter(Number.isFinite);
  const [low, high] = [least(values), most(values)];
  const width = xs.width * (WIDTH - MARGIN.left - MARGIN.right);
  const height = ys.width * (HEIGHT - MARGIN.top - MARGIN.bottom);
  return s(
    "g",
    {},
    rows.flatMap((row, r) =>
      row.map((value, c) => {
        const share = (value - low) / (high - low || 1);
        const [x, y] = [place.x(trace.x[c]) - width / 2, place.y(trace.y[r]) - height / 2];
        const box = { x, y, width: width + 0.3, height: height + 0.3 };
        const title = s("title", {}, `${textOf(trace.x[c])}, ${textOf(trace.y[r])}: ${textOf(value)}`);
        return s("rect", { ...box, class: "heat", "fill-opacity": Number.isFinite(share) ? 0.06 + 0.94 * share : 0 }, title);
      }),
    ),
  );
}

function isDrawn(value) {
  return typeof value === "number" ? Number.isFinite(value) : value !== null && value !== undefined && value !== "NaN";
}

function textOf(value) {
  return typeof value === "number" ? number(value) : String(value);
}

function least(values) {
  return values.reduce((a, b) => (b < a ? b : a), Infinity);
}

function most(values) {
  return values.reduce((a, b) => (b > a ? b : a), -Infinity);
}

/** A plot of `hl.plots`. @param {any} data @param {string} name */
export function plot(data, name) {
  if (data.plot === "confusion_matrix" && Array.isArray(data.counts)) return confusion(data);
  if (!Array.isArray(data.series)) return null;
  const isRoc = data.plot === "roc";
  const traces = data.series
    .filter((each) => Array.isArray(each?.x) && Array.isArray(each?.y))
    .slice(0, 50)
    .map((each) => {
      const area = isRoc ? each.area : each.average_precision;
      const colour = colourOf(String(each.label), "label");
      const label = `${each.label} (${isRoc ? "AUC" : "AP"} ${number(area, 3)})`;
      return { kind: "line", name: label, x: each.x, y: each.y, colour };
    });
  if (isRoc) traces.unshift({ kind: "line", name: "", x: [0, 1], y: [0, 1], colour: "var(--muted)", isDashed: true });
  const titles = isRoc
    ? { x: "false positive rate", y: "true positive rate" }
    : { x: "recall", y: "precision" };
  return chart(traces, { ...titles, xRange: [0, 1], yRange: [0, 1], label: name });
}

const MAX_CLASSES = 40;

/** A confusion matrix: rows are the true classes. */
function confusion({ labels, counts }) {
  const size = Math.min(counts.length, MAX_CLASSES);
  const names = Array.from({ length: size }, (_, at) => String(labels?.[at] ?? at));
  const head = h(
    "tr",
    {},
    h("th", { class: "corner" }, "true ↓ predicted →"),
    names.map((name) => h("th", { scope: "col", title: name }, name)),
    h("th", { class: "end" }, "recall"),
  );
  const rows = names.map((name, row) => {
    const own = counts[row].slice(0, size).map(Number);
    const all = counts[row].reduce((sum, each) => sum + Number(each), 0);
    const cells = own.map((count, column) => {
      const share = all ? count / all : 0;
      const strength = Math.round(share * 100);
      const vars = { share: `${strength / 2}%` }; // at most half: the numbers stay readable on it
      const title = `${name} as ${names[column]}: ${whole(count)} (${strength} %)`;
      return h("td", { class: column === row ? "hit" : "miss", title, vars }, count ? whole(count) : "");
    });
    const recall = all ? `${Math.round((100 * own[row]) / all)} %` : "–";
    return h("tr", {}, h("th", { scope: "row", title: name }, name), cells, h("td", { class: "end muted" }, recall));
  });
  const rest = counts.length - size;
  return h(
    "div",
    { class: "scroll" },
    h("table", { class: "confusion" }, h("thead", {}, head), h("tbody", {}, rows)),
    rest > 0 && h("p", { class: "muted" }, `${whole(rest)} more classes are not shown.`),
  );
}
