// What stands at the marks of an axis: as many digits as the distance of the marks needs, so that no two read the same.

/** How far a mark may be from what stands at it, as a share of the distance to the next one. */
const OFF = 1e-3;
const MOST_DIGITS = 17;

/** Steps of an axis of seconds: those that clocks have. */
export const SECONDS_APART = [
  ...[1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1].flatMap((unit) => [unit, 2 * unit, 5 * unit]),
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60),
  ...[1, 2, 3, 6, 12].map((hours) => hours * 3600),
  ...[1, 10, 100, 1000].flatMap((unit) => [unit, 2 * unit, 5 * unit]).map((days) => days * 86400),
];

/**
 * @param {(number | null)[]} values null where nothing is to stand
 * @param {boolean} isLog whether each is of a size of its own
 * @returns {string[]}
 */
export function numberMarks(values, isLog = false) {
  const largest = Math.max(...values.map(Math.abs));
  return marks(values, isLog, (value, digits) => sized(value, digits, isLog ? Math.abs(value) : largest));
}

/** @param {(number | null)[]} seconds null where nothing is to stand @param {boolean} isLog @returns {string[]} */
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

/** How far the closest other value is. */
function distance(value, values) {
  const others = values.filter((other) => other !== value).map((other) => Math.abs(other - value));
  return others.length ? Math.min(...others) : Math.abs(value);
}

function digitsOf(value, apart) {
  for (let digits = 1; digits < MOST_DIGITS; digits++)
    if (Math.abs(Number(value.toPrecision(digits)) - value) <= apart * OFF) return digits;
  return MOST_DIGITS;
}

function sized(value, digits, size) {
  if (size >= 1e15 || size < 1e-3) return value.toExponential(digits - 1);
  if (size < 1e4) return String(Number(value.toPrecision(digits)));
  return Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: digits }).format(value);
}

/** Days, hours, minutes and seconds, those that there are. */
function parts(seconds) {
  const size = Math.abs(seconds);
  const minutes = Math.floor(size / 60);
  const rest = Number((size - minutes * 60).toPrecision(12));
  const found = [
    [Math.floor(minutes / 1440), "d"],
    [Math.floor(minutes / 60) % 24, "h"],
    [minutes % 60, "min"],
    [rest, "s"],
  ];
  const said = found.filter(([count]) => count > 0).map(([count, unit]) => `${count} ${unit}`);
  return (seconds < 0 ? "-" : "") + said.join(" ");
}
