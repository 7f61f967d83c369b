// Tables of an experiment: the results of its arms, their differences, and their benchmark scores.

import { h } from "./dom.js";
import { duration, number, whole } from "./format.js";
import { barCell, end, numberTable, swatch } from "./tables.js";

/** @param {any} found the response of /api/experiment @param {(arm: string) => string} colourOf */
export function armTable(found, colourOf) {
  const best = bestArm(found);
  const means = found.table.map((row) => row.mean).filter(isNumber);
  const [low, high] = [Math.min(0, ...means), Math.max(...means, 1e-12)];
  const rows = found.table.map((row) =>
    h(
      "tr",
      { class: row.arm === best ? "best" : null, data: { arm: row.arm } },
      h("th", { scope: "row" }, swatch(colourOf(row.arm)), row.arm),
      isNumber(row.mean) ? barCell((row.mean - low) / (high - low || 1), colourOf(row.arm)) : h("td"),
      end(h("b", {}, number(row.mean)), row.std !== null && h("span", { class: "muted" }, ` ± ${number(row.std, 3)}`)),
      end(number(row.best)),
      end(number(row.worst)),
      end(`${row.n} of ${row.runs}`, row.failed > 0 && h("span", { class: "warn" }, ` ${row.failed} failed`)),
      end(duration(row.seconds)),
    ),
  );
  return numberTable(["arm", "", `>${found.metric ?? "result"}`, ">best", ">worst", ">repeats", ">time"], rows);
}

/** @param {any} found the response of /api/experiment */
export function differenceTable(found) {
  const rows = found.differences.map((row) =>
    h(
      "tr",
      { data: { separated: String(row.separated) } },
      h("th", { scope: "row" }, row.b, h("span", { class: "muted" }, " − "), row.a),
      end(`${Number(row.difference) > 0 ? "+" : ""}${number(row.difference, 3)}`),
      end(row.interval ? `${number(row.interval[0], 3)} to ${number(row.interval[1], 3)}` : "–"),
      h("td", {}, verdict(row)),
    ),
  );
  return numberTable(["difference", `>${found.metric}`, ">95% interval", ""], rows, { class: "scroll differences" });
}

function verdict(row) {
  if (row.separated) return h("b", { class: "yes" }, "separated");
  const needed = row.repeats_to_separate;
  return h("span", { class: "muted" }, needed ? `not separated; ${whole(needed)} repeats would` : "not separated");
}

function bestArm(found) {
  const there = found.table.filter((row) => isNumber(row.mean));
  const sign = found.mode === "min" ? 1 : -1;
  return there.toSorted((a, b) => sign * (a.mean - b.mean))[0]?.arm;
}

function isNumber(value) {
  return typeof value === "number";
}

const MAX_METRICS = 6;
const MAX_TAGS = 30;

/** @param {any[]} scores of one benchmark @param {(arm: string) => string} colourOf */
export function benchmarkTable(scores, colourOf) {
  const metrics = distinct(scores.flatMap((score) => Object.keys(score.metrics))).slice(0, MAX_METRICS);
  const tags = distinct(scores.flatMap((score) => Object.keys(score.breakdowns))).slice(0, MAX_TAGS);
  const rows = distinct(scores.map((score) => score.arm)).flatMap((arm) => {
    const own = scores.filter((score) => score.arm === arm);
    return [wholeRow(arm, own, metrics, colourOf(arm)), ...tags.map((tag) => partRow(tag, own, metrics))];
  });
  return numberTable(["arm", "tasks", ...metrics.map((metric) => `>${metric}`)], rows);
}

function wholeRow(arm, scores, metrics, colour) {
  const cells = metrics.map((metric) =>
    end(h("b", {}, spread(scores.map((score) => score.metrics[metric]))), interval(scores, metric)),
  );
  return h("tr", {}, h("th", { scope: "row" }, swatch(colour), arm), h("td", {}, "all"), cells);
}

function partRow(tag, scores, metrics) {
  const cells = metrics.map((metric) => end(spread(scores.map((score) => score.breakdowns[tag]?.[metric]))));
  return h("tr", { class: "part" }, h("td"), h("td", {}, tag), cells);
}

/** Mean ± standard deviation of a sample. */
function spread(values) {
  const numbers = values.filter((value) => typeof value === "number");
  if (!numbers.length) return "–";
  const mean = numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
  if (numbers.length < 2) return number(mean);
  const std = Math.sqrt(numbers.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (numbers.length - 1));
  return `${number(mean)} ± ${number(std, 3)}`;
}

/** The benchmark's interval of a run; of several runs the mean of its ends. */
function interval(scores, metric) {
  const ends = scores.map((score) => score.intervals[metric]).filter(Boolean);
  if (!ends.length) return null;
  const [low, high] = [0, 1].map((side) => ends.reduce((sum, each) => sum + each[side], 0) / ends.length);
  return h("span", { class: "muted" }, ` (${number(low, 3)} to ${number(high, 3)})`);
}

function distinct(values) {
  return [...new Set(values)];
}
