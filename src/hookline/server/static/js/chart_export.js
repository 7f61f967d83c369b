// A chart as a picture for papers and slides: PNG, or SVG with its lines as paths.

import { placers, rangeOf } from "./chart_lines.js";
import { h } from "./dom.js";
import { s } from "./svg_chart.js";
import { colour } from "./theme.js";

const ROW = 18;
/** Of a legend in a picture; more would be longer than the chart. */
const MAX_LEGEND = 40;
const FONT = "system-ui, sans-serif";

/** The lines that the legend of a picture names, each group once. */
function legendOf(lines) {
  const named = new Map(lines.map((line) => [line.chip?.label ?? line.label, line.colour]));
  return [...named].slice(0, MAX_LEGEND);
}

/** With title and legend. @param {import("./chart.js").Chart} chart @param {string} title @returns {Promise<Blob>} */
export function pngOf(chart, title) {
  const { plot, lines } = chart.picture;
  const drawn = plot.ctx.canvas;
  const scale = drawn.width / plot.width;
  const row = ROW * scale;
  const legend = legendOf(lines);
  const canvas = h("canvas");
  canvas.width = drawn.width;
  canvas.height = drawn.height + row * (2 + legend.length);
  const context = canvas.getContext("2d");
  context.fillStyle = colour("surface");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = colour("text");
  context.font = `600 ${13 * scale}px ${FONT}`;
  context.fillText(title, 12 * scale, 18 * scale);
  context.drawImage(drawn, 0, row * 1.5);
  context.font = `${11 * scale}px ${FONT}`;
  legend.forEach(([label, line], index) => {
    const y = drawn.height + row * (2.1 + index);
    context.fillStyle = line;
    context.fillRect(14 * scale, y - 8 * scale, 14 * scale, 3 * scale);
    context.fillStyle = colour("text");
    context.fillText(label, 36 * scale, y - 3 * scale);
  });
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** @param {import("./chart.js").Chart} chart @param {string} title @returns {Blob} */
export function svgOf(chart, title) {
  const { plot, lines, frame, raw } = chart.picture;
  const { ratio } = frame;
  const own = { ...frame, ratio: 1 };
  for (const side of ["left", "top", "width", "height"]) own[side] = frame[side] / ratio;
  own.top += ROW * 1.5;
  const legend = legendOf(lines);
  const [width, height] = [plot.width, plot.height + ROW * (2 + legend.length)];
  const text = (attributes, content) => s("text", { "font-size": 11, fill: colour("text"), ...attributes }, content);
  const picture = s(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height, "font-family": FONT },
    s("title", {}, title),
    s("rect", { width, height, fill: colour("surface") }),
    s("clipPath", { id: "plot" }, s("rect", { x: own.left, y: own.top, width: own.width, height: own.height })),
    text({ x: 12, y: ROW, "font-size": 13, "font-weight": 600 }, title),
    axes(plot, own),
    s("g", { "clip-path": "url(#plot)", fill: "none", "stroke-linejoin": "round" }, paths(lines, own, raw)),
    legend.map(([label, line], index) => {
      const y = plot.height + ROW * (2.1 + index);
      return [
        s("rect", { x: 14, y: y - 8, width: 14, height: 3, fill: line }),
        text({ x: 36, y: y - 3 }, label),
      ];
    }).flat(),
  );
  return new Blob([new XMLSerializer().serializeToString(picture)], { type: "image/svg+xml" });
}

/** Grid and labels where uPlot has put them. */
function axes(plot, frame) {
  const [right, bottom] = [frame.left + frame.width, frame.top + frame.height];
  const [xOf, yOf] = placers(frame);
  const [xs, ys] = plot.axes.map((axis) => (axis._splits ?? []).map((value, at) => [value, axis._values?.[at] ?? ""]));
  const line = { stroke: colour("grid"), "stroke-width": 1 };
  const label = { "font-size": 11, fill: colour("muted") };
  const isIn = (scale) => ([value]) => value !== null && value >= scale.min && value <= scale.max;
  return s(
    "g",
    {},
    xs.filter(isIn(frame.x)).map(([value, mark]) => [
      s("line", { x1: xOf(value), x2: xOf(value), y1: frame.top, y2: bottom, ...line }),
      s("text", { x: xOf(value), y: bottom + 16, "text-anchor": "middle", ...label }, mark),
    ]).flat(),
    ys.filter(isIn(frame.y)).map(([value, mark]) => [
      s("line", { x1: frame.left, x2: right, y1: yOf(value), y2: yOf(value), ...line }),
      s("text", { x: frame.left - 6, y: yOf(value) + 4, "text-anchor": "end", ...label }, mark),
    ]).flat(),
  );
}

function paths(lines, frame, raw) {
  const pixels = placers(frame);
  const behind = lines.map((line) => {
    const range = line.low ? line : raw === "band" && line.raw ? (line.range ?? rangeOf(line.raw)) : null;
    return range && s("path", { d: area(range, pixels), fill: line.colour, "fill-opacity": 0.18 });
  });
  const drawn = lines.map((line) =>
    s(
      "path",
      { d: path(line.x, line.y, pixels), stroke: line.colour, "stroke-width": 1.6, "stroke-dasharray": line.dash?.join(" ") },
      s("title", {}, line.label),
    ),
  );
  return [...behind, ...drawn];
}

function path(x, y, [xOf, yOf]) {
  const parts = [];
  for (let at = 0; at < x.length; at += 1) {
    if (Number.isNaN(y[at])) continue;
    const isStart = at === 0 || Number.isNaN(y[at - 1]);
    parts.push(`${isStart ? "M" : "L"}${xOf(x[at]).toFixed(1)} ${yOf(y[at]).toFixed(1)}`);
  }
  return parts.join("");
}

function area({ x, low, high }, pixels) {
  const places = [...x.keys()].filter((at) => !Number.isNaN(low[at] + high[at]));
  const back = places.toReversed();
  const edge = (own, order) => path(order.map((at) => x[at]), order.map((at) => own[at]), pixels);
  return places.length ? `${edge(high, places)}${edge(low, back).replace("M", "L")}Z` : "";
}
