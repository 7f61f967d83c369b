// What the arms scored in a benchmark, in all and by tag.

import { h } from "./dom.js";
import { number } from "./format.js";
import { end, numberTable, swatch } from "./table.js";

const MOST_METRICS = 6;
const MOST_TAGS = 30;

/** @param {any[]} scores of one benchmark @param {(arm: string) => string} colourOf */
export function benchmarkTable(scores, colourOf) {
  const metrics = distinct(scores.flatMap((score) => Object.keys(score.metrics))).slice(0, MOST_METRICS);
  const tags = distinct(scores.flatMap((score) => Object.keys(score.breakdowns))).slice(0, MOST_TAGS);
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

/** The interval that the benchmark gives for one run; of several the mean of its ends. */
function interval(scores, metric) {
  const ends = scores.map((score) => score.intervals[metric]).filter(Boolean);
  if (!ends.length) return null;
  const [low, high] = [0, 1].map((side) => ends.reduce((sum, each) => sum + each[side], 0) / ends.length);
  return h("span", { class: "muted" }, ` (${number(low, 3)} to ${number(high, 3)})`);
}

function distinct(values) {
  return [...new Set(values)];
}
