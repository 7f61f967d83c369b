// A metric as lines of a chart: one line per run, or a mean with a band per group of runs.

import { colourOf } from "./theme.js";

/** The attributes that runs of a group share. Stages of an arm are separate trainings. */
export const GROUPINGS = {
  run: [],
  arm: ["experiment", "arm", "stage"],
  group: ["project", "group", "stage"],
  experiment: ["experiment"],
};
export const SETTING = "config.";

/** The attributes or settings to group by: one of the usual groupings, or any setting. @param {string} by */
export function keysOf(by) {
  return Object.hasOwn(GROUPINGS, by) ? GROUPINGS[by] : [by];
}

/** Dashes distinguish axes: a run or group has one colour everywhere. */
const DASHES = [undefined, [6, 4], [2, 3], [10, 4, 2, 4]];

/**
 * @typedef {{kind: "lines" | "bands", by: string, rows: any[], problem: string}} Found the data to draw; the problem
 *   is why runs of a group are drawn one by one
 */

/**
 * Request a metric.
 * @param {import("./api.js").LatestRequest} question
 * @param {string} name
 * @param {string[]} ids
 * @param {{x: string, by: string, as?: string, maxPoints: number, rawPoints?: number, smoothing?: number,
 *   smoother?: string, part?: [number, number] | null}} how with a part of x, or all of it
 * @returns {Promise<Found | null>}
 */
export async function requestMetric(question, name, ids, how) {
  const { x, by, as = "bands", maxPoints, rawPoints, smoothing = 0, smoother = "ema", part = null } = how;
  const keys = as === "bands" ? keysOf(by) : [];
  const parameters = { run: ids, name, x: x === "relative" ? "elapsed" : x, max_points: maxPoints };
  if (smoothing) Object.assign(parameters, { smoothing, ...(smoother === "ema" ? {} : { smoother }) });
  if (part) [parameters.first_x, parameters.last_x] = part;
  let problem = "";
  if (keys.length) {
    const answer = await question.get("bands", { ...parameters, by: keys });
    if (!answer?.problem) return answer && { kind: "bands", by, rows: answer.bands, problem };
    problem = answer.problem;
  }
  const answer = await question.get("series", { ...parameters, ...(smoothing && rawPoints ? { raw_points: rawPoints } : {}) });
  return answer && { kind: "lines", by, rows: answer.lines, problem };
}

/**
 * The data with the lines of some runs replaced, in the order of before; new lines come last.
 * @param {Found} found @param {string[]} ids @param {Found} newer @returns {Found}
 */
export function withRuns(found, ids, newer) {
  const replaced = new Set(ids);
  const key = (row) => JSON.stringify([row.run, row.name, row.axis]);
  const fresh = new Map(newer.rows.map((row) => [key(row), row]));
  const rows = [];
  for (const row of found.rows) {
    const next = fresh.get(key(row));
    fresh.delete(key(row));
    if (next ?? !replaced.has(row.run)) rows.push(next ?? row);
  }
  return { ...newer, rows: [...rows, ...fresh.values()] };
}

/** Whether the server left out points. @param {Found} found */
export function isDownsampled(found) {
  return found.rows.some((row) => row.points > row.x.length);
}

/**
 * @param {Found} found
 * @param {import("./run_store.js").RunStore} store
 * @param {(run: string) => (string | null)[] | null} keyOf the group of a run, if runs are grouped
 * @returns {import("./chart.js").Line[]}
 */
export function linesOf(found, store, keyOf) {
  const axes = [...new Set(found.rows.map((row) => row.axis))].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  const suffix = (row) => (axes.length > 1 ? ` · ${row.axis}` : "");
  const dash = (row) => DASHES[axes.indexOf(row.axis) % DASHES.length];
  const labels = found.rows.map((row) => groupLabel(row.key ?? [], found.by));
  const isTwice = (row) =>
    found.rows.some((other, index) => labels[index] === groupLabel(row.key, found.by) && other.key[0] !== row.key[0]);
  const made =
    found.kind === "bands"
      ? found.rows.map((row) =>
          band(row, (isTwice(row) ? `${row.key[0]} · ` : "") + groupLabel(row.key, found.by), suffix(row), found.by),
        )
      : found.rows.map((row) => line(row, suffix(row), store, found.by === "run" ? null : keyOf(row.run), found.by));
  return made.map((each) => ({ ...each, dash: dash(each.row) }));
}

/** The main axis is drawn without dashes. */
function rank(axis) {
  return axis === "train" ? 0 : 1;
}

/** The colour of a group of runs. @param {(string | null)[]} key what its runs share @param {string} by */
export function groupColour(key, by = "arm") {
  return colourOf(JSON.stringify(key), `group by ${by}`);
}

function band(row, label, suffix, by) {
  const spread = (sign) => row.mean.map((mean, index) => (mean === null ? null : mean + sign * (row.std[index] ?? 0)));
  return {
    key: JSON.stringify(row.key) + suffix,
    label: label + suffix,
    colour: groupColour(row.key, by),
    x: row.x,
    y: row.mean,
    low: spread(-1),
    high: spread(1),
    n: row.n,
    row,
  };
}

/** The default grouping: by arm if arms have repeats. */
export function defaultGrouping(runs) {
  const arms = new Set(runs.map((run) => JSON.stringify(GROUPINGS.arm.map((name) => run[name]))));
  return runs.length > 1 && runs.every((run) => run.arm !== null) && arms.size < runs.length ? "arm" : "run";
}

/** @param {(string | null)[]} key @param {string} [by] */
export function groupLabel(key, by = "") {
  const name = by.startsWith(SETTING) ? by.slice(SETTING.length) : by;
  if (by && !Object.hasOwn(GROUPINGS, by)) return key[0] === null ? `no ${name}` : `${name} = ${key[0]}`;
  return (key.length > 1 ? key.slice(1) : key).filter((part) => part !== null).join(" · ") || "ungrouped";
}

/** The line of a run, in the colour of its group. */
function line(row, suffix, store, key, by) {
  const chip = key && { key: JSON.stringify(key), label: groupLabel(key, by), colour: groupColour(key, by) };
  return {
    key: row.run + suffix,
    label: store.nameOf(row.run) + suffix,
    colour: chip ? chip.colour : colourOf(row.run),
    chip,
    x: row.x,
    y: row.y,
    smoothed: row.smoothed_x.length ? { x: row.smoothed_x, y: row.smoothed_y } : null,
    row,
  };
}

/** The points as a table, for a file. @param {Found} found @param {[number, number] | null} part of x, or all of it */
export function tableOf(found, name, x, part = null) {
  const [first, last] = part ?? [-Infinity, Infinity];
  const isIn = (row) => row[2] >= first && row[2] <= last;
  const over = x === "relative" ? "elapsed" : x;
  if (found.kind === "bands") {
    const rows = found.rows.flatMap((row) =>
      row.x.map((value, i) => [
        groupLabel(row.key, found.by),
        row.axis,
        value,
        row.mean[i],
        row.std[i],
        row.min[i],
        row.max[i],
        row.n[i],
      ]),
    );
    return [["group", "axis", over, `${name} mean`, "std", "min", "max", "n"], ...rows.filter(isIn)];
  }
  const rows = found.rows.flatMap((row) => row.x.map((value, i) => [row.run, row.axis, value, row.y[i]]));
  return [["run", "axis", over, name], ...rows.filter(isIn)];
}
