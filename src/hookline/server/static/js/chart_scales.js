// The scales of a chart: tick labels, value ranges with or without outliers, and zoom steps.

/** The accepted error of a tick label, as a share of the distance to the next tick. */
const OFF = 1e-3;
const MAX_DIGITS = 17;

/** Tick distances of an axis of seconds: those of clocks. */
export const SECONDS_APART = [
  ...[1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1].flatMap((unit) => [unit, 2 * unit, 5 * unit]),
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60),
  ...[1, 2, 3, 6, 12].map((hours) => hours * 3600),
  ...[1, 10, 100, 1000].flatMap((unit) => [unit, 2 * unit, 5 * unit]).map((days) => days * 86400),
];

/**
 * @param {(number | null)[]} values null for no label
 * @param {boolean} isLog whether each has its own magnitude
 * @returns {string[]}
 */
export function numberMarks(values, isLog = false) {
  const largest = Math.max(...values.map(Math.abs));
  return marks(values, isLog, (value, digits) => sized(value, digits, isLog ? Math.abs(value) : largest));
}

/** @param {(number | null)[]} seconds null for no label @param {boolean} isLog @returns {string[]} */
export function durationMarks(seconds, isLog = false) {
  return marks(seconds, isLog, (value, digits) => parts(Number(value.toPrecision(digits))));
}

function marks(values, isLog, textOf) {
  const there = values.filter((value) => value !== null);
  return values.map((value) => {
    if (value === null) return "";
    const apart = isLog ? Math.min(Math.abs(value), distance(value, there)) : distance(value, there);
    if (Math.abs(value) <= apart * OFF) return "0";
    return textOf(value, digitsOf(value, apart)).replaceAll("-", "−");
  });
}

/** The distance to the closest other value. */
function distance(value, values) {
  const others = values.filter((other) => other !== value).map((other) => Math.abs(other - value));
  return others.length ? Math.min(...others) : Math.abs(value);
}

function digitsOf(value, apart) {
  for (let digits = 1; digits < MAX_DIGITS; digits++)
    if (Math.abs(Number(value.toPrecision(digits)) - value) <= apart * OFF) return digits;
  return MAX_DIGITS;
}

function sized(value, digits, size) {
  if (size >= 1e15 || size < 1e-3) return value.toExponential(digits - 1);
  if (size < 1e4) return String(Number(value.toPrecision(digits)));
  return Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: digits }).format(value);
}

/** Days, hours, minutes and seconds, without zeros. */
function parts(seconds) {
  const size = Math.abs(seconds);
  const minutes = Math.floor(size / 60);
  const rest = Number((size - minutes * 60).toPrecision(12));
  /** @type {[number, string][]} */
  const found = [
    [Math.floor(minutes / 1440), "d"],
    [Math.floor(minutes / 60) % 24, "h"],
    [minutes % 60, "min"],
    [rest, "s"],
  ];
  const texts = found.filter(([count]) => count > 0).map(([count, unit]) => `${count} ${unit}`);
  return (seconds < 0 ? "-" : "") + texts.join(" ");
}

/** Round values in a range, about five, as ticks. @returns {{value: number, text: string}[]} */
export function roundTicks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const apart = power * ([1, 2, 5, 10].find((each) => each * power >= rough) ?? 10);
  const values = [];
  for (let at = Math.ceil(low / apart - 1e-6); at * apart <= high + apart * 1e-6 && values.length < 12; at += 1)
    values.push(at * apart);
  const texts = numberMarks(values);
  return values.map((value, index) => ({ value, text: texts[index] }));
}

const FAR = 2.5;
const LAST_BITS = 1e-12;

/**
 * @param {number[]} values finite
 * @param {{isLog: boolean, leavesOut: boolean}} how
 * @returns {{low: number, high: number, outside: number}}
 */
export function valueRange(values, { isLog, leavesOut }) {
  const usable = isLog ? values.filter((value) => value > 0).map(Math.log10) : values;
  if (!usable.length) return isLog ? { low: 0.1, high: 10, outside: 0 } : { low: 0, high: 1, outside: 0 };
  const sorted = Float64Array.from(usable).sort();
  let [low, high] = [sorted[0], sorted[sorted.length - 1]];
  if (leavesOut && sorted.length >= 20) {
    const [near, far] = [quantile(sorted, 0.03), quantile(sorted, 0.97)];
    const reach = (far - near) * FAR;
    if (reach > 0) [low, high] = [Math.max(low, near - reach), Math.min(high, far + reach)];
    if (low > sorted[0]) low = least(sorted, low);
    if (high < sorted[sorted.length - 1]) high = most(sorted, high);
  }
  const outside = sorted.filter((value) => value < low || value > high).length;
  // A smoothed constant differs from itself in its last bits, between which no axis has ticks.
  const span = high - low > Math.max(Math.abs(low), Math.abs(high)) * LAST_BITS ? high - low : 0;
  const margin = span * 0.06 || Math.abs(high) * 0.1 || 0.5;
  if (isLog) return { low: roundedDown(10 ** (low - margin)), high: 10 ** (high + margin), outside };
  return { low: low - margin, high: high + margin, outside };
}

/** To one digit: the ticks of a logarithmic axis start at its lower end. */
function roundedDown(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return Math.floor(value / unit) * unit || value;
}

function quantile(sorted, share) {
  return sorted[Math.round((sorted.length - 1) * share)];
}

function least(sorted, limit) {
  return sorted.find((value) => value >= limit);
}

function most(sorted, limit) {
  return sorted.findLast((value) => value <= limit);
}

/** A narrower part has nothing between its ends that a number could tell apart. */
const LEAST = 1e-9;

/**
 * @param {[number, number] | null} zoom the visible part; null for everything
 * @param {[number, number]} extent everything
 * @param {"in" | "out" | "left" | "right"} how
 * @param {boolean} isLog whether the axis is
 * @returns {[number, number] | null}
 */
export function moved(zoom, extent, how, isLog = false) {
  const [to, from] = isLog ? [Math.log10, (value) => 10 ** value] : [(value) => value, (value) => value];
  const [first, last] = extent.map(to);
  const [low, high] = (zoom ?? extent).map(to);
  if (!Number.isFinite(first) || !(last > first)) return zoom;
  const width = (high - low) * { in: 0.5, out: 2, left: 1, right: 1 }[how];
  if (width >= last - first) return null;
  if (width < (last - first) * LEAST) return zoom;
  const shift = { in: 0, out: 0, left: -0.25, right: 0.25 }[how] * width;
  const begin = Math.max(first, Math.min(last - width, (low + high - width) / 2 + shift));
  return [from(begin), from(begin + width)];
}
