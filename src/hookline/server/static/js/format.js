// Formats numbers, times and sizes.

/** @param {unknown} value */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value === "Infinity" ? "∞" : value === "-Infinity" ? "−∞" : value;
  const size = Math.abs(Number(value));
  if (!Number.isFinite(size)) return String(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return minus(Number(value).toExponential(digits - 2));
  if (Number.isInteger(value)) return minus(Number(value).toLocaleString("en-US"));
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size || 1)));
  return minus(
    Number(value).toLocaleString("en-US", {
      minimumFractionDigits: Math.min(places, 6),
      maximumFractionDigits: Math.min(places, 6),
    }),
  );
}

/** A number in few characters, for axes and badges. */
export function compact(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 1e4)
    return minus(Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 }).format(value));
  if (size !== 0 && size < 1e-3) return minus(value.toExponential(0));
  return minus(String(Number(value.toPrecision(4))));
}

export function whole(value) {
  return value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US");
}

/** A number with its noun: 1 run, 1,200 runs. */
export function plural(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || typeof seconds === "string" || !Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48
    ? `${hours} h ${String(minutes % 60).padStart(2, "0")} min`
    : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** How long ago a time was. */
export function ago(time, now = Date.now() / 1000) {
  if (!time) return "–";
  const seconds = now - time;
  if (seconds < 5) return "now";
  return `${duration(seconds)} ago`;
}

export function clock(time) {
  return time ? new Date(time * 1000).toLocaleTimeString("en-GB") : "–";
}

/** A tick label of a time axis with a tick distance in seconds; at midnight it shows the date. */
export function timeMark(time, apart) {
  const date = new Date(time * 1000);
  const isMidnight = date.getHours() + date.getMinutes() + date.getSeconds() === 0;
  if (apart >= 86400 || (isMidnight && apart >= 60)) return date.toLocaleDateString("sv-SE").slice(5);
  const text = date.toLocaleTimeString("en-GB");
  if (apart >= 60) return text.slice(0, 5);
  return apart >= 1 ? text : `${text.slice(3)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export function dateTime(time) {
  if (!time) return "–";
  const date = new Date(time * 1000);
  return `${date.toLocaleDateString("sv-SE")} ${date.toLocaleTimeString("en-GB")}`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  let size = value;
  while (size >= 1000 && unit < units.length - 1) [size, unit] = [size / 1000, unit + 1];
  return `${unit ? size.toFixed(1) : size} ${units[unit]}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined || typeof value === "string") return number(value);
  if (value >= 1000) return `${number(value / 1000, 3)} s`;
  return value < 0.1 ? `${number(value * 1000, 3)} µs` : `${number(value, 3)} ms`;
}

/** A share in percent. @param {number | string | null | undefined} share */
export function percent(share) {
  if (typeof share !== "number" || !Number.isFinite(share)) return "–";
  const points = share * 100;
  return points !== 0 && points < 0.01 ? "< 0.01 %" : `${number(points, points < 1 ? 2 : 3)} %`;
}

function minus(text) {
  return text.replace("-", "−");
}
