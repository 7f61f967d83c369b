// What the arms of an experiment reached, and how much they differ.

import { h } from "./dom.js";
import { duration, number, whole } from "./format.js";
import { barCell, end, numberTable, swatch } from "./table.js";

/** @param {any} found the answer of /api/experiment @param {(arm: string) => string} colourOf */
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

/** @param {any} found the answer of /api/experiment */
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
