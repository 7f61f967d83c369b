// The data of a sweep: settings and metrics as axes, brushes on them as text and as filters, ranks and colours.

import { numberMarks, roundTicks } from "./chart_scales.js";
import { number } from "./format.js";

/**
 * A setting or a metric with the value of each run. `places` has where a run is on the axis: from 0 to 1, or one of
 * `NOT_FINITE` and `MISSING`, which are shown apart.
 * @typedef {{field: string, kind: string, values: any[], isExact: boolean, isNumber: boolean, isLog: boolean,
 *   canBeLog: boolean, low: number, high: number, levels: any[], places: Float64Array,
 *   ticks: {at: number, text: string}[]}} Axis
 */

/** The values that a brush keeps: ranges of numbers, levels of a category, and the values apart. One text each; see `brushText`. */
/** @typedef {{field: string, items: string[]}} Brush */

export const NOT_FINITE = -1;
export const MISSING = -2;
const ODD = new Set(["NaN", "Infinity", "-Infinity"]);
const ODD_ITEM = "~nan";
const MISSING_ITEM = "~none";
/** The ratio of the largest to the smallest value from which an axis is logarithmic by default. */
const LOG_RATIO = 50;
const FEW = 8;
const DIGITS = 4;

/**
 * @param {{field: string, kind: string, values: any[], is_exact: boolean}} column
 * @param {"log" | "linear" | null} [scale] null chooses
 * @returns {Axis}
 */
export function axisOf({ field, kind, values, is_exact }, scale = null) {
  const texts = values.map((value) => (Array.isArray(value) ? value.join(", ") : value));
  const present = texts.filter((value) => value !== null);
  const numbers = present.filter((value) => typeof value === "number");
  const isNumber = numbers.length > 0 && present.every((value) => typeof value === "number" || ODD.has(value));
  const base = { field, kind, values: texts, isExact: is_exact, isNumber };
  return isNumber ? numberAxis(base, numbers, scale) : categoryAxis(base, present);
}

function numberAxis(base, numbers, scale) {
  let [low, high] = extent(numbers);
  const canBeLog = low > 0 && high > low;
  const isLog = canBeLog && (scale === "log" || (scale === null && high / low >= LOG_RATIO));
  const distinct = [...new Set(numbers)].sort((a, b) => a - b);
  if (low === high) [low, high] = low === 0 ? [-1, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const axis = { ...base, isLog, canBeLog, low, high, levels: [] };
  axis.places = Float64Array.from(base.values, (value) =>
    value === null ? MISSING : typeof value === "number" ? placeOf(axis, value) : NOT_FINITE,
  );
  const isGrid = distinct.length <= FEW && base.kind === "setting";
  axis.ticks = isGrid ? ticksAt(axis, distinct) : isLog ? logTicks(axis) : linearTicks(axis);
  return axis;
}

function categoryAxis(base, present) {
  const levels = [...new Set(present)].sort((a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : 1,
  );
  const index = new Map(levels.map((level, place) => [level, place]));
  const at = (place) => (place + 0.5) / levels.length;
  const places = Float64Array.from(base.values, (value) => (value === null ? MISSING : at(index.get(value))));
  const ticks = levels.map((level, place) => ({ at: at(place), text: String(level) }));
  return { ...base, isLog: false, canBeLog: false, low: 0, high: levels.length, levels, places, ticks };
}

/** Where a number is on an axis: 0 at its low end, 1 at its high end. */
export function placeOf({ isLog, low, high }, value) {
  if (isLog) return (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low));
  return (value - low) / (high - low);
}

/** The number at a place of an axis. */
export function valueAt({ isLog, low, high }, place) {
  return isLog ? low * (high / low) ** place : low + (high - low) * place;
}

function ticksAt(axis, values) {
  const texts = numberMarks(values, axis.isLog);
  return values.map((value, index) => ({ at: placeOf(axis, value), text: texts[index] }));
}

function linearTicks(axis) {
  return roundTicks(axis.low, axis.high).map(({ value, text }) => ({ at: placeOf(axis, value), text }));
}

function logTicks(axis) {
  const first = Math.ceil(Math.log10(axis.low) - 1e-9);
  const last = Math.floor(Math.log10(axis.high) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first + 1) / 6));
  const values = [];
  for (let power = first; power <= last; power += every) values.push(10 ** power);
  return values.length > 1 ? ticksAt(axis, values) : linearTicks(axis);
}

/** The smallest and the largest of some numbers. @param {Iterable<number>} numbers */
export function extent(numbers) {
  let [low, high] = [Infinity, -Infinity];
  for (const each of numbers) [low, high] = [Math.min(low, each), Math.max(high, each)];
  return [low, high];
}

/** The text of a run's value. */
export function valueText(axis, index) {
  const value = axis.values[index];
  if (value === null) return "none";
  return typeof value === "number" || ODD.has(value) ? number(value) : String(value);
}

/**
 * A brush over a part of an axis.
 * @param {Axis} axis @param {number} from a place on the axis @param {number} to @param {{odd: boolean, missing: boolean}} apart
 * @returns {Brush | null} null if it keeps nothing that the axis has
 */
export function brushOver(axis, from, to, apart) {
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  const items = [];
  if (axis.isNumber && high >= 0 && low <= 1) {
    const ends = [Math.max(0, low), Math.min(1, high)].map((place) => valueAt(axis, place));
    // Rounded outwards at the ends of the axis: its first and last value must stay inside.
    const [first, last] = [low <= 0 ? axis.low : rounded(ends[0]), high >= 1 ? axis.high : rounded(ends[1])];
    items.push(`${first}..${last}`);
  } else if (!axis.isNumber) {
    items.push(...axis.ticks.flatMap(({ at }, place) => (at >= low && at <= high ? [levelItem(axis.levels[place])] : [])));
  }
  if (apart.odd) items.push(ODD_ITEM);
  if (apart.missing) items.push(MISSING_ITEM);
  return items.length ? { field: axis.field, items } : null;
}

function rounded(value) {
  return Number(value.toPrecision(DIGITS));
}

/** @param {any} level */
export function levelItem(level) {
  return encodeURIComponent(String(level)).replaceAll("~", "%7E");
}

/** A brush in the address: `0.001..0.01:lr`, `adam|sgd:optimizer`, `~none:momentum`. @param {Brush} brush */
export function brushText({ field, items }) {
  return `${items.join("|")}:${field}`;
}

/** @param {string} text @returns {Brush} */
export function parseBrush(text) {
  const end = text.indexOf(":");
  return { field: text.slice(end + 1), items: text.slice(0, Math.max(0, end)).split("|").filter(Boolean) };
}

/** The numbers of a range in a brush. @param {string} item @returns {[number, number] | null} */
export function rangeOf(item) {
  const match = /^([^~]+?)\.\.(.+)$/.exec(item);
  const ends = match ? [Number(match[1]), Number(match[2])] : [NaN];
  return ends.every(Number.isFinite) ? [ends[0], ends[1]] : null;
}

/** Which parts of an axis a brush keeps. @param {Axis} axis @param {Brush} brush */
export function kept(axis, { items }) {
  return {
    ranges: axis.isNumber ? items.map(rangeOf).filter((range) => range !== null) : [],
    levels: axis.isNumber ? [] : axis.levels.filter((level) => items.includes(levelItem(level))),
    odd: items.includes(ODD_ITEM),
    missing: items.includes(MISSING_ITEM),
  };
}

/** Whether each run is inside all brushes; a brush on an axis that is not there keeps all. @returns {Uint8Array} */
export function insideAll(/** @type {Axis[]} */ axes, /** @type {Brush[]} */ brushes, /** @type {number} */ count) {
  const inside = new Uint8Array(count).fill(1);
  for (const brush of brushes) {
    const axis = axes.find((each) => each.field === brush.field);
    if (!axis) continue;
    const { ranges, levels, odd, missing } = kept(axis, brush);
    const wanted = new Set(levels);
    for (let run = 0; run < count; run += 1) {
      const [value, place] = [axis.values[run], axis.places[run]];
      const isKept =
        place === MISSING
          ? missing
          : place === NOT_FINITE
            ? odd
            : axis.isNumber
              ? ranges.some(([low, high]) => value >= low && value <= high)
              : wanted.has(value);
      if (!isKept) inside[run] = 0;
    }
  }
  return inside;
}

/** A filter expression for the runs inside a brush; null if no filter can name them. @returns {string | null} */
export function filterOf(/** @type {Axis} */ axis, /** @type {Brush} */ brush) {
  if (!axis.isExact) return null;
  const { field } = axis;
  const { ranges, levels, odd, missing } = kept(axis, brush);
  const parts = ranges.map(([low, high]) => `${field} >= ${low} and ${field} <= ${high}`);
  if (levels.length === 1) parts.push(`${field} = ${literal(levels[0])}`);
  if (levels.length > 1) parts.push(`${field} in (${levels.map(literal).join(", ")})`);
  if (odd) {
    parts.push(`${field} is nan`);
    if (axis.values.includes("Infinity")) parts.push(`${field} > ${Number.MAX_VALUE}`);
    if (axis.values.includes("-Infinity")) parts.push(`${field} < ${-Number.MAX_VALUE}`);
  }
  if (missing) parts.push(`${field} is missing`);
  return parts.length > 1 ? `(${parts.join(" or ")})` : (parts[0] ?? null);
}

/** A value as a filter writes it. @param {any} value */
export function literal(value) {
  return typeof value === "string" ? `"${value.replace(/["\\]/g, "\\$&")}"` : String(value);
}

/** Ranks from 1; equal numbers share their mean rank. @param {number[]} numbers */
export function ranks(numbers) {
  const order = numbers.map((_, index) => index).sort((a, b) => numbers[a] - numbers[b]);
  const found = new Array(numbers.length);
  for (let start = 0; start < order.length; ) {
    let end = start;
    while (end + 1 < order.length && numbers[order[end + 1]] === numbers[order[start]]) end += 1;
    for (let at = start; at <= end; at += 1) found[order[at]] = (start + end) / 2 + 1;
    start = end + 1;
  }
  return found;
}

/**
 * Spearman's rank correlation of two numbers over the runs that have both.
 * @param {Axis} first @param {Axis} second @param {(run: number) => boolean} counts
 * @returns {{correlation: number | null, runs: number}}
 */
export function rankCorrelation(first, second, counts) {
  const runs = [...first.values.keys()].filter((run) => counts(run) && first.places[run] >= 0 && second.places[run] >= 0);
  // Categories have no order, but two of them can be seen as one.
  const isOrdered = [first, second].every((axis) => axis.isNumber || axis.levels.length === 2);
  const numbers = [first, second].map((axis) => ranks(runs.map((run) => axis.places[run])));
  const correlation = isOrdered && runs.length > 2 ? pearson(numbers[0], numbers[1]) : null;
  return { correlation, runs: runs.length };
}

function pearson(xs, ys) {
  const mean = (xs.length + 1) / 2;
  let [both, x2, y2] = [0, 0, 0];
  for (let at = 0; at < xs.length; at += 1) {
    both += (xs[at] - mean) * (ys[at] - mean);
    x2 += (xs[at] - mean) ** 2;
    y2 += (ys[at] - mean) ** 2;
  }
  return x2 && y2 ? both / Math.sqrt(x2 * y2) : null;
}

/** The best value so far after each run in an order; null before the first. @returns {(number | null)[]} */
export function bestSoFar(/** @type {(number | null)[]} */ values, /** @type {"min" | "max"} */ mode) {
  let best = null;
  return values.map((value) => {
    if (value !== null && (best === null || (mode === "min" ? value < best : value > best))) best = value;
    return best;
  });
}

export const SHADES = 48;
// From the worst to the best: the best stands out most from the background of each theme.
const LIGHT = [[214, 205, 176], [143, 200, 160], [43, 152, 160], [36, 84, 156], [38, 24, 94]];
const DARK = [[72, 54, 112], [52, 94, 141], [33, 145, 140], [110, 200, 100], [250, 230, 70]];

/** Colours from the worst to the best. @param {boolean} isDark */
export function shades(isDark) {
  const stops = isDark ? DARK : LIGHT;
  return Array.from({ length: SHADES }, (_, index) => {
    const at = (index / (SHADES - 1)) * (stops.length - 1);
    const [from, to] = [stops[Math.floor(at)], stops[Math.min(stops.length - 1, Math.floor(at) + 1)]];
    const mixed = from.map((each, channel) => Math.round(each + (to[channel] - each) * (at % 1)));
    return `rgb(${mixed.join(" ")})`;
  });
}

/**
 * The shade of each run by a number: the last shade for the best. The worst tenth shares the first one, so that a few
 * very bad runs do not make all others look the same.
 * @param {Axis} axis @param {"min" | "max"} mode
 * @returns {{of: Int16Array, worst: number, best: number}} -1 for a run without a value; the values at both ends
 */
export function shadesOf(axis, mode) {
  const sign = mode === "min" ? -1 : 1;
  const sorted = axis.places.filter((place) => place >= 0).map((place) => place * sign).sort();
  const [worst, best] = [sorted[Math.floor(sorted.length / 10)] ?? 0, sorted[sorted.length - 1] ?? 1];
  const width = best - worst || 1;
  const of = Int16Array.from(axis.places, (place) =>
    place < 0 ? -1 : Math.round(Math.max(0, (place * sign - worst) / width) * (SHADES - 1)),
  );
  return { of, worst: valueAt(axis, worst * sign), best: valueAt(axis, best * sign) };
}
