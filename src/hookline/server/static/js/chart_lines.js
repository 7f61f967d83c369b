// The lines of a chart: the points that an axis can show, their raw range, the nearest line, and drawing.
//
// Lines keep their own x. uPlot draws axes and grid only: it needs one x for all its lines, which of 60 runs with
// different steps would be a table of millions of cells.

import { faint } from "./theme.js";

/**
 * @typedef {Omit<import("./chart.js").Line, "x" | "y" | "low" | "high"> & {x: Float64Array, y: Float64Array, low: Float64Array | null,
 *   high: Float64Array | null, raw: Points | null, range: Range | null, notAboveZero: number}} Prepared NaN is a gap; a
 *   smoothed line has its raw points besides
 * @typedef {{x: Float64Array, y: Float64Array}} Points
 * @typedef {{x: Float64Array, low: Float64Array, high: Float64Array}} Range
 * @typedef {{left: number, top: number, width: number, height: number, ratio: number, x: Scale, y: Scale}} Frame
 * @typedef {{min: number, max: number, isLog: boolean}} Scale
 */

/** The most buckets of a raw range. */
const BUCKETS = 120;
/** So many points of a line fall into a bucket: two are its extremes on the server, where its buckets may lie otherwise. */
const PER_BUCKET = 4;
/** More lines get their raw range only when they are highlighted: together, they would be a block. */
export const MAX_RANGES = 6;
/** More lines than this are drawn thinner: a pixel wide, which takes a twentieth of the time of a wider line. */
const MANY = 20;
/** The points of a piece of a line: lines are drawn in pieces, because the time grows faster than the length. */
const PIECE = 32;

/** The numbers of lines by their rows: a zoom draws the same rows again. @type {WeakMap<object, {how: string, columns: any}>} */
const known = new WeakMap();

/**
 * A line without the points that its axes cannot show.
 * @param {import("./chart.js").Line} line @param {import("./chart.js").Look} look @returns {Prepared}
 */
export function prepared(line, look) {
  const isLogX = look.logX && look.x !== "time";
  const smoothed = look.smoothing > 0 ? line.smoothed : null;
  const how = `${isLogX} ${look.logY} ${Boolean(smoothed)}`;
  const before = line.row && known.get(line.row);
  if (before?.how === how) return { ...line, ...before.columns };
  const raw = column(line, isLogX, look.logY);
  const main = smoothed ? column(smoothed, isLogX, look.logY) : raw;
  const edge = (values) => (values ? column({ x: line.x, y: values }, isLogX, look.logY).y : null);
  const notAboveZero = look.logY ? line.y.filter((value) => value !== null && !(value > 0)).length : 0;
  const range = smoothed ? rangeOf(raw) : null;
  const columns = { ...main, low: edge(line.low), high: edge(line.high), raw: smoothed ? raw : null, range, notAboveZero };
  if (line.row) known.set(line.row, { how, columns });
  return { ...line, ...columns };
}

/** @returns {Points} */
function column({ x, y }, isLogX, isLogY) {
  const kept = isLogX ? x.map((_, at) => at).filter((at) => x[at] > 0) : null;
  const xs = Float64Array.from(kept ? kept.map((at) => x[at]) : x);
  const ys = Float64Array.from(kept ? kept.map((at) => y[at]) : y, (value) => value ?? NaN);
  if (isLogY) ys.forEach((value, at) => value > 0 || (ys[at] = NaN));
  return { x: xs, y: ys };
}

/** The lowest and highest values of a line in equal parts of x. @param {Points} points @returns {Range} */
export function rangeOf({ x, y }, buckets = BUCKETS) {
  const [first, last] = [x[0], x[x.length - 1]];
  const width = (last - first) / Math.min(buckets, Math.max(1, Math.floor(x.length / PER_BUCKET)));
  if (!(width > 0)) return { x, low: y, high: y };
  const found = { x: [], low: [], high: [] };
  for (let at = 0, bucket = -1; at < x.length; at += 1) {
    if (Number.isNaN(y[at])) continue;
    const own = Math.floor((x[at] - first) / width);
    if (own !== bucket) {
      bucket = own;
      found.x.push(first + (own + 0.5) * width);
      found.low.push(y[at]);
      found.high.push(y[at]);
      continue;
    }
    const end = found.x.length - 1;
    found.low[end] = Math.min(found.low[end], y[at]);
    found.high[end] = Math.max(found.high[end], y[at]);
  }
  // The last point is a bucket of its own, and the outer ones reach the ends of the line.
  if (found.x.length) [found.x[0], found.x[found.x.length - 1]] = [first, last];
  return { x: Float64Array.from(found.x), low: Float64Array.from(found.low), high: Float64Array.from(found.high) };
}

/** A line in another unit of y. @param {Prepared} line @param {number} unit @returns {Prepared} */
export function inUnit(line, unit) {
  const scaled = (values) => values && values.map((value) => value / unit);
  const range = line.range && { ...line.range, low: scaled(line.range.low), high: scaled(line.range.high) };
  const raw = line.raw && { ...line.raw, y: scaled(line.raw.y) };
  return { ...line, y: scaled(line.y), low: scaled(line.low), high: scaled(line.high), raw, range };
}

/** The first place in sorted numbers that is not below a value. @param {Float64Array} values */
export function placeOf(values, value) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The value of a line at x, on the straight between its neighbouring points; NaN outside of the line. */
export function valueAt({ x, y }, at) {
  if (!x.length || at < x[0] || at > x[x.length - 1]) return NaN;
  let right = placeOf(x, at);
  let left = x[right] === at ? right : right - 1;
  while (left >= 0 && Number.isNaN(y[left])) left -= 1;
  while (right < y.length && Number.isNaN(y[right])) right += 1;
  if (left < 0 || right >= y.length) return NaN;
  const span = x[right] - x[left];
  return span > 0 ? y[left] + ((at - x[left]) / span) * (y[right] - y[left]) : y[left];
}

/** The recorded point of a line closest to x, of those near it. @returns {number} its place, or -1 */
export function pointNear({ x, y }, at, reach) {
  const right = placeOf(x, at);
  let best = -1;
  for (let place = Math.max(0, right - 2); place < Math.min(x.length, right + 2); place += 1) {
    if (Number.isNaN(y[place]) || Math.abs(x[place] - at) > reach) continue;
    if (best < 0 || Math.abs(x[place] - at) < Math.abs(x[best] - at)) best = place;
  }
  return best;
}

/** The pixel of a value. @param {Scale} scale */
function placer({ min, max, isLog }, start, length) {
  const [low, high] = isLog ? [Math.log10(min), Math.log10(max)] : [min, max];
  const factor = length / (high - low);
  return isLog ? (value) => start + (Math.log10(value) - low) * factor : (value) => start + (value - low) * factor;
}

/**
 * The functions that give the pixels of x and of y.
 * @param {Frame} frame @returns {[(value: number) => number, (value: number) => number]}
 */
export function placers(frame) {
  return [
    placer(frame.x, frame.left, frame.width),
    placer(frame.y, frame.top + frame.height, -frame.height),
  ];
}

/** The first and the last point to draw: those in sight, and one more on each side. */
function inSight(x, scale) {
  const first = Math.max(0, placeOf(x, scale.min) - 1);
  let last = placeOf(x, scale.max);
  while (last < x.length - 1 && x[last] <= scale.max) last += 1;
  return [first, Math.min(x.length - 1, last)];
}

/** Draw a line through points; returns the lone points between gaps. A piece ends where the next one begins. */
function trace(context, x, y, frame, [xOf, yOf], piece = PIECE) {
  const [first, last] = inSight(x, frame.x);
  const lone = [];
  let count = 0; // of the points in the path
  context.beginPath();
  for (let at = first; at <= last; at += 1) {
    if (Number.isNaN(y[at])) {
      count = 0;
      continue;
    }
    const [left, top] = [xOf(x[at]), yOf(y[at])];
    if (count) context.lineTo(left, top);
    else {
      context.moveTo(left, top);
      if (!(y[at + 1] === y[at + 1] && at < x.length - 1)) lone.push([left, top]);
    }
    count += 1;
    if (count < piece) continue;
    context.stroke();
    context.beginPath();
    context.moveTo(left, top);
    count = 1;
  }
  context.stroke();
  return lone;
}

/** Fill between two edges over the same x, interrupted where there is no value. */
function fillBetween(context, x, low, high, frame, [xOf, yOf]) {
  const [first, last] = inSight(x, frame.x);
  let begin = -1;
  for (let at = first; at <= last + 1; at += 1) {
    const isThere = at <= last && !Number.isNaN(low[at] + high[at]);
    if (isThere && begin < 0) begin = at;
    if (isThere || begin < 0) continue;
    context.beginPath();
    for (let each = begin; each < at; each += 1) context.lineTo(xOf(x[each]), yOf(high[each]));
    for (let each = at - 1; each >= begin; each -= 1) context.lineTo(xOf(x[each]), yOf(low[each]));
    context.closePath();
    context.fill();
    begin = -1;
  }
}

/** Whether lines are drawn with their raw range, their raw points, or neither. */
export function rawStyle(look, count) {
  if (look.raw !== "auto" && look.raw !== undefined) return look.raw;
  return count <= MAX_RANGES ? "band" : "none";
}

/** Draw lines over each other, beginning with the background.
 * @param {CanvasRenderingContext2D} context @param {Prepared[]} lines @param {Frame} frame
 * @param {{raw: string, width?: number}} style
 */
export function drawLines(context, lines, frame, { raw, width = 1.6 }) {
  const pixels = placers(frame);
  const { ratio } = frame;
  context.save();
  context.beginPath();
  context.rect(frame.left, frame.top, frame.width, frame.height);
  context.clip();
  const hasMany = lines.length > MANY;
  context.lineJoin = hasMany ? "bevel" : "round"; // which is drawn faster
  context.lineCap = hasMany ? "butt" : "round"; // where two pieces meet
  const alpha = Math.max(0.08, 0.3 / Math.sqrt(Math.max(1, lines.length / 2)));
  for (const line of lines) {
    if (line.low) {
      context.fillStyle = faint(line.colour, lines.length > 12 ? 0.1 : 0.2);
      fillBetween(context, line.x, line.low, line.high, frame, pixels);
    } else if (line.range && raw === "band") {
      context.fillStyle = faint(line.colour, lines.length > 3 ? 0.14 : 0.2);
      fillBetween(context, line.range.x, line.range.low, line.range.high, frame, pixels);
    } else if (line.raw && raw === "line") {
      context.strokeStyle = faint(line.colour, alpha);
      context.lineWidth = ratio;
      trace(context, line.raw.x, line.raw.y, frame, pixels, Infinity); // pieces of a faint line would show
    }
  }
  for (const line of lines) {
    context.strokeStyle = context.fillStyle = line.colour;
    context.lineWidth = hasMany ? Math.max(1, Math.floor(ratio)) : width * ratio;
    if (line.dash) context.lineCap = "butt";
    context.setLineDash((line.dash ?? []).map((each) => each * ratio));
    const lone = trace(context, line.x, line.y, frame, pixels, line.dash ? Infinity : PIECE);
    for (const [left, top] of lone) context.fillRect(left - 2.5 * ratio, top - 2.5 * ratio, 5 * ratio, 5 * ratio);
  }
  context.restore();
}
