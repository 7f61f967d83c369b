// A metric of some runs as lines of a chart: a line a run, or a mean with its band a group of runs.

import { colourOf } from "./palette.js";
import { shortName } from "./run_book.js";

/** What runs can be put together by: what they must have in common. Stages of an arm are trainings of their own. */
export const GROUPINGS = {
  run: [],
  arm: ["experiment", "arm", "stage"],
  group: ["project", "group", "stage"],
  experiment: ["experiment"],
};

/**
 * Ask for a metric.
 * @param {import("./api.js").Question} question
 * @param {string} name
 * @param {string[]} ids
 * @param {{x: string, by: string, maxPoints: number}} how
 * @returns {Promise<{kind: string, rows: any[]} | null>}
 */
export async function askForMetric(question, name, ids, { x, by, maxPoints }) {
  const keys = GROUPINGS[by];
  if (keys.length && x === "step") {
    const answer = await question.ask("bands", { run: ids, name, by: keys, max_points: maxPoints });
    return answer && { kind: "bands", rows: answer.bands };
  }
  const asked = x === "relative" ? "time" : x;
  const answer = await question.ask("series", { run: ids, name, x: asked, max_points: maxPoints });
  return answer && { kind: "lines", rows: answer.lines };
}

/** @returns {import("./chart.js").Line[]} */
export function linesOf(found, book, x) {
  const hasSeveralAxes = new Set(found.rows.map((row) => row.axis)).size > 1;
  const suffix = (row) => (hasSeveralAxes ? ` · ${row.axis}` : "");
  const labels = found.rows.map((row) => groupLabel(row.key ?? []));
  const isTwice = (row) =>
    found.rows.some((other, index) => labels[index] === groupLabel(row.key) && other.key[0] !== row.key[0]);
  return found.kind === "bands"
    ? found.rows.map((row) => band(row, (isTwice(row) ? `${row.key[0]} · ` : "") + groupLabel(row.key), suffix(row)))
    : found.rows.map((row) => line(row, suffix(row), book, x));
}

/** The colour of a group of runs. @param {(string | null)[]} key what its runs have in common */
export function groupColour(key) {
  return colourOf(JSON.stringify(key), "group");
}

/** The colour of the group that a run belongs to. */
export function groupColourOf(run, by) {
  return groupColour(GROUPINGS[by].map((name) => run[name]));
}

function band(row, label, suffix) {
  const spread = (sign) => row.mean.map((mean, index) => (mean === null ? null : mean + sign * (row.std[index] ?? 0)));
  return {
    key: JSON.stringify(row.key) + suffix,
    label: label + suffix,
    colour: suffix ? colourOf(JSON.stringify(row.key) + suffix, "group") : groupColour(row.key),
    x: row.x,
    y: row.mean,
    low: spread(-1),
    high: spread(1),
    row,
  };
}

/** What runs are put together by when nobody chose: arms, where there are repeats of them. */
export function usualGrouping(runs) {
  const arms = new Set(runs.map((run) => JSON.stringify(GROUPINGS.arm.map((name) => run[name]))));
  return runs.length > 1 && runs.every((run) => run.arm !== null) && arms.size < runs.length ? "arm" : "run";
}

/** @param {(string | null)[]} key */
export function groupLabel(key) {
  return (key.length > 1 ? key.slice(1) : key).filter((part) => part !== null).join(" · ") || "ungrouped";
}

function line(row, suffix, book, x) {
  const run = book.byId.get(row.run);
  const begin = x === "relative" ? (run?.started ?? row.x[0] ?? 0) : 0;
  const label = (run ? shortName(run) : row.run) + suffix;
  return {
    key: row.run + suffix,
    label,
    colour: colourOf(row.run + suffix),
    x: begin ? row.x.map((value) => value - begin) : row.x,
    y: row.y,
    row,
  };
}

/** The points as a table, for a file. @param {{kind: string, rows: any[]}} found */
export function tableOf(found, name, x) {
  if (found.kind === "bands") {
    const rows = found.rows.flatMap((row) =>
      row.x.map((step, i) => [
        groupLabel(row.key),
        row.axis,
        step,
        row.mean[i],
        row.std[i],
        row.min[i],
        row.max[i],
        row.n[i],
      ]),
    );
    return [["group", "axis", "step", `${name} mean`, "std", "min", "max", "n"], ...rows];
  }
  return [
    ["run", "axis", x === "relative" ? "time" : x, name],
    ...found.rows.flatMap((row) => row.x.map((value, i) => [row.run, row.axis, value, row.y[i]])),
  ];
}
