// Figures of Plotly, drawn without Plotly (which is larger than the rest of the page together): lines, markers, bars,
// histograms and heat maps. What cannot be drawn is named; the whole figure can be downloaded as JSON.

import { h } from "./dom.js";
import { chart } from "./svg_chart.js";

const MAX_TRACES = 40;
const ARRAYS = {
  f8: Float64Array,
  f4: Float32Array,
  i1: Int8Array,
  u1: Uint8Array,
  i2: Int16Array,
  u2: Uint16Array,
  i4: Int32Array,
  u4: Uint32Array,
};

/** @param {string} text the figure as JSON @param {string} name */
export function plotlyFigure(text, name) {
  let figure;
  try {
    figure = JSON.parse(text);
  } catch {
    return h("p", { class: "muted" }, "This figure is not valid JSON.");
  }
  const given = Array.isArray(figure?.data) ? figure.data.slice(0, MAX_TRACES) : [];
  const missing = new Set();
  const traces = given.map((trace) => asTrace(trace, missing)).filter(Boolean);
  const layout = figure?.layout ?? {};
  const title = titleOf(layout.title);
  const note = [...missing].join(", ");
  return h(
    "div",
    { class: "plotly" },
    title && h("h4", {}, title),
    traces.length > 0 &&
      chart(traces, { x: titleOf(layout.xaxis?.title), y: titleOf(layout.yaxis?.title), label: title || name }),
    note && h("p", { class: "muted" }, `Not drawn here: ${note}. Download the figure to open it with Plotly.`),
  );
}

function titleOf(title) {
  const text = typeof title === "string" ? title : title?.text;
  return typeof text === "string" ? text.replace(/<[^>]*>/g, "").slice(0, 200) : "";
}

function asTrace(trace, missing) {
  const type = trace?.type ?? "scatter";
  const name = typeof trace?.name === "string" ? trace.name.slice(0, 100) : "";
  let x = values(trace?.x);
  let y = values(trace?.y);
  if (type === "scatter" || type === "scattergl") {
    if (!y.length) return null;
    const mode = typeof trace.mode === "string" ? trace.mode : "lines";
    const kind = !mode.includes("markers") ? "line" : mode.includes("lines") ? "both" : "marks";
    const isDashed = Boolean(trace.line?.dash) && trace.line.dash !== "solid";
    return { kind, name, x: x.length ? x : [...y.keys()], y, isDashed };
  }
  if (type === "bar" && trace.orientation !== "h") return { kind: "bar", name, x: x.length ? x : [...y.keys()], y };
  if (type === "histogram" && x.length) return { kind: "bar", name, ...counted(x) };
  if (type === "heatmap" || type === "imshow") {
    const z = matrix(trace.z);
    if (z.length) {
      if (x.length < z[0].length) x = [...z[0].keys()];
      if (y.length < z.length) y = [...z.keys()];
      return { kind: "heat", name, x, y, z };
    }
  }
  missing.add(String(type).slice(0, 40));
  return null;
}

/** A column: a list, or an array that Plotly encoded as base64. */
function values(given) {
  if (Array.isArray(given)) return given;
  const Typed = ARRAYS[given?.dtype];
  if (!Typed || typeof given.bdata !== "string") return [];
  try {
    const text = atob(given.bdata);
    const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    return [...new Typed(bytes.buffer, 0, Math.floor(bytes.length / Typed.BYTES_PER_ELEMENT))];
  } catch {
    return [];
  }
}

function matrix(given) {
  if (Array.isArray(given)) return given.map(values).filter((row) => row.length);
  const flat = values(given);
  const columns = Number(String(given?.shape ?? "").split(",")[1]);
  if (!columns || !flat.length) return [];
  const rows = Math.floor(flat.length / columns);
  return Array.from({ length: rows }, (_, row) => flat.slice(row * columns, (row + 1) * columns));
}

/** The bars of a histogram. */
function counted(given) {
  const finite = given.filter(Number.isFinite);
  if (!finite.length) {
    const groups = Map.groupBy(given, String);
    return { x: [...groups.keys()], y: [...groups.values()].map((own) => own.length) };
  }
  const low = finite.reduce((a, b) => Math.min(a, b));
  const width = (finite.reduce((a, b) => Math.max(a, b)) - low) / 30 || 1;
  const y = new Array(30).fill(0);
  for (const value of finite) y[Math.min(29, Math.floor((value - low) / width))] += 1;
  return { x: y.map((_, at) => low + (at + 0.5) * width), y };
}
