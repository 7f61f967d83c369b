// The state of a board of charts, in the address: only what differs from the defaults, in short names.
// A chart with its own settings is one parameter: its name and its settings, each with a letter, between stars.
//   c=val/loss*s0.9*y1*r0_2*tValidation

/**
 * @typedef {{smoothing?: number, x?: string, logY?: boolean, range?: [number | null, number | null],
 *   leavesOut?: boolean, title?: string}} Own the settings of one chart; those of the board where it has none
 * @typedef {{x: string, by: string, as: string, smoothing: number | null, smoother: string, raw: string, logX: boolean,
 *   logY: boolean, leavesOut: boolean, marks: boolean, text: string, columns: number, height: string,
 *   zoom: [number, number] | null, pinned: string[], wide: string[], turned: string[], own: Map<string, Own>}} State
 *   smoothing is null if it depends on the number of points; turned are the sections that differ from their initial state
 */

export const HEIGHTS = ["small", "medium", "large"];
const TEXTS = { x: "x", by: "by", as: "as", smoother: "alg", raw: "raw", text: "q", height: "h" };
const SWITCHES = { logX: "lx", logY: "ly", leavesOut: "fit", marks: "ev" };
const LISTS = { pinned: "pin", wide: "wide", turned: "fold" };
const CHOICES = { as: ["bands", "lines"], smoother: ["ema", "time_weighted"], raw: ["auto", "band", "line", "none"], height: HEIGHTS };
const MAX_COLUMNS = 8;
const MAX_WEIGHT = 0.999;
/** All parameters of a board. */
export const PARAMETERS = [
  ...Object.values(TEXTS),
  ...Object.values(SWITCHES),
  ...Object.values(LISTS),
  ...["s", "cols", "z", "c"],
];

/** @returns {State} */
export function defaults() {
  return {
    ...{ x: "step", by: "auto", as: "bands", smoothing: null, smoother: "ema", raw: "auto" },
    ...{ logX: false, logY: false, leavesOut: true, marks: true, text: "", columns: 0, height: "medium", zoom: null },
    ...{ pinned: [], wide: [], turned: [], own: new Map() },
  };
}

/** @param {URLSearchParams} parameters @returns {State} invalid values have their defaults */
export function readState(parameters) {
  const state = defaults();
  for (const [name, short] of Object.entries(TEXTS)) {
    const given = parameters.get(short);
    if (given !== null && (CHOICES[name]?.includes(given) ?? true)) state[name] = given;
  }
  for (const [name, short] of Object.entries(SWITCHES))
    if (parameters.has(short)) state[name] = parameters.get(short) === "1";
  for (const [name, short] of Object.entries(LISTS)) state[name] = [...new Set(parameters.getAll(short))];
  const [smoothing, columns] = [finite(parameters.get("s")), finite(parameters.get("cols"))];
  if (smoothing !== null) state.smoothing = Math.max(0, Math.min(MAX_WEIGHT, smoothing));
  if (columns !== null) state.columns = Math.max(0, Math.min(MAX_COLUMNS, Math.round(columns)));
  const zoom = readRange(parameters.get("z") ?? "");
  if (zoom[0] !== null && zoom[1] !== null && zoom[0] < zoom[1]) state.zoom = /** @type {[number, number]} */ (zoom);
  for (const text of parameters.getAll("c")) {
    const [name, own] = readOwn(text);
    if (name && Object.keys(own).length) state.own.set(name, own);
  }
  return state;
}

/** The parameters of a state; those with defaults are null. @param {State} state */
export function stateParameters(state) {
  const usual = defaults();
  const found = {};
  for (const [name, short] of Object.entries(TEXTS)) found[short] = state[name] === usual[name] ? null : state[name];
  for (const [name, short] of Object.entries(SWITCHES))
    found[short] = state[name] === usual[name] ? null : Number(state[name]);
  for (const [name, short] of Object.entries(LISTS)) found[short] = state[name];
  found.s = state.smoothing;
  found.cols = state.columns || null;
  found.z = state.zoom && writeRange(state.zoom);
  found.c = [...state.own].filter(([, own]) => Object.keys(own).length).map(([name, own]) => writeOwn(name, own));
  return found;
}

/** @param {string} text @returns {[string, Own]} */
function readOwn(text) {
  const [name, ...parts] = text.split("*").map((part) => decodeURIComponent(part.replace(/%(?![0-9A-F]{2})/g, "%25")));
  /** @type {Own} */
  const own = {};
  for (const part of parts) {
    const [letter, value] = [part[0], part.slice(1)];
    if (letter === "s" && finite(value) !== null) own.smoothing = Math.max(0, Math.min(MAX_WEIGHT, Number(value)));
    else if (letter === "x" && value) own.x = value;
    else if (letter === "y") own.logY = value === "1";
    else if (letter === "o") own.leavesOut = value === "1";
    else if (letter === "t" && value) own.title = value;
    else if (letter === "r") {
      const range = readRange(value);
      if (range.some((each) => each !== null)) own.range = range;
    }
  }
  return [name, own];
}

/** @param {string} name @param {Own} own */
function writeOwn(name, own) {
  const parts = [name];
  if (own.smoothing !== undefined) parts.push(`s${own.smoothing}`);
  if (own.x !== undefined) parts.push(`x${own.x}`);
  if (own.logY !== undefined) parts.push(`y${Number(own.logY)}`);
  if (own.leavesOut !== undefined) parts.push(`o${Number(own.leavesOut)}`);
  if (own.range) parts.push(`r${writeRange(own.range)}`);
  if (own.title) parts.push(`t${own.title}`);
  return parts.map((part) => part.replace(/[*%]/g, (sign) => (sign === "*" ? "%2A" : "%25"))).join("*");
}

/** @param {string} text @returns {[number | null, number | null]} */
function readRange(text) {
  const [low, high] = text.split("_");
  return [finite(low), finite(high)];
}

/** @param {[number | null, number | null]} range */
function writeRange(range) {
  return range.map((value) => (value === null ? "" : Number(value.toPrecision(9)))).join("_");
}

/** @param {string | null | undefined} text */
function finite(text) {
  const value = Number(text);
  return text === null || text === undefined || text === "" || !Number.isFinite(value) ? null : value;
}
