// Parts of the sweep view: the options of an axis, the legend, importance of settings, the best runs, those apart.

import { fill, h, select } from "./dom.js";
import { number, percent, plural, whole } from "./format.js";
import { address } from "./page_state.js";
import { statusBadge } from "./run_status.js";
import { kept, levelItem, shades, valueText } from "./sweep_axes.js";
import { isDark } from "./theme.js";

/** @typedef {import("./sweep_axes.js").Axis} Axis */
/** @typedef {import("./sweep_axes.js").Brush} Brush */

const SURE = 0.05;
const MAX_LEVELS = 40;
const MAX_APART = 50;

/** The address of a run's page. @param {string} id */
export function runAddress(id) {
  return address("run", new URLSearchParams({ run: id }));
}

/**
 * The options of an axis: all that the pointer can do, and its scale.
 * @param {Axis} axis @param {Brush | undefined} brush @param {boolean} isMetric the metric's axis cannot be hidden
 * @param {{brush: (items: string[]) => void, scale: (scale: string) => void, move: (by: number) => void, hide: () => void,
 *   close: () => void}} does
 */
export function axisOptions(axis, brush, isMetric, does) {
  const { ranges, odd, missing } = kept(axis, brush ?? { field: axis.field, items: [] });
  const apart = [...(odd ? ["~nan"] : []), ...(missing ? ["~none"] : [])];
  const button = (text, action, label = text) => h("button", { type: "button", onclick: action, "aria-label": label }, text);
  return h(
    "fieldset",
    { class: "axis-options" },
    h("legend", {}, axis.field),
    axis.isNumber ? rangeInputs(ranges[0], (range) => does.brush([...range, ...apart])) : levelBoxes(axis, brush, does.brush),
    axis.canBeLog && select("scale", [["linear", "linear"], ["log", "log"]], axis.isLog ? "log" : "linear", does.scale),
    button("←", () => does.move(-1), "Move left"),
    button("→", () => does.move(1), "Move right"),
    brush && button("Clear brush", () => does.brush([])),
    !isMetric && button("Hide", does.hide),
    button("Close", does.close),
  );
}

function rangeInputs(range, changed) {
  const input = (label, value) =>
    h("input", { type: "number", step: "any", value: value ?? "", "aria-label": label, placeholder: label, onchange: () => change() });
  const [low, high] = [input("from", range?.[0]), input("to", range?.[1])];
  const change = () => {
    const isSet = low.value !== "" || high.value !== "";
    const most = Number.MAX_VALUE;
    changed(isSet ? [`${low.value === "" ? -most : low.value}..${high.value === "" ? most : high.value}`] : []);
  };
  const shown = (field) => Math.abs(Number(field.value)) === Number.MAX_VALUE && (field.value = "");
  [low, high].forEach(shown);
  return [low, high];
}

function levelBoxes(axis, brush, changed) {
  const items = brush?.items ?? [];
  return h(
    "div",
    { class: "levels" },
    axis.levels.slice(0, MAX_LEVELS).map((level) => {
      const item = levelItem(level);
      const toggle = () => changed(items.includes(item) ? items.filter((each) => each !== item) : [...items, item]);
      return h("label", { class: "toggle" }, h("input", { type: "checkbox", checked: items.includes(item), onchange: toggle }), h("span", {}, String(level)));
    }),
  );
}

/** The colours with the values at both ends. */
export function legend(metric, { worst, best }) {
  const stops = shades(isDark());
  const bar = h("i", { class: "shades", "aria-hidden": "true", style: { background: `linear-gradient(to right, ${stops.join(",")})` } });
  return h("p", { class: "legend" }, h("span", {}, metric), h("span", { class: "muted" }, number(worst)), bar, h("b", {}, number(best)), h("span", { class: "muted" }, "best"));
}

/** The name and values of a run next to the pointer. */
export class Tip {
  constructor() {
    this.element = h("div", { class: "sweep-tip", role: "tooltip", hidden: true });
  }

  /** @param {PointerEvent | null} event @param {string} name @param {string} status @param {Axis[]} axes @param {number} run */
  show(event, name, status, axes, run) {
    this.element.hidden = event === null;
    if (!event) return;
    fill(
      this.element,
      h("strong", {}, name),
      statusBadge(status),
      h("dl", {}, axes.map((axis) => [h("dt", {}, axis.field), h("dd", {}, valueText(axis, run))])),
    );
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = event.clientX + 18 + width > innerWidth ? event.clientX - 18 - width : event.clientX + 18;
    this.element.style.left = `${Math.max(4, left)}px`;
    this.element.style.top = `${Math.max(4, Math.min(innerHeight - height - 4, event.clientY - height / 2))}px`;
  }
}

/** The settings with their importance. @param {any} rated the answer of /api/importance @param {(setting: string) => void} chosen */
export function importanceTable(rated, chosen) {
  const better = rated.mode === "min" ? "lowest" : "highest";
  const left = rated.left_out ? ` ${plural(rated.left_out, "run")} without a result ${rated.left_out === 1 ? "is" : "are"} left out.` : "";
  const about = rated.problem || `The ${rated.best} ${better} of ${plural(rated.runs, "completed run")}, compared with all of them.${left}`;
  return [
    h("p", { class: "muted", data: { importanceAbout: "" } }, about),
    rated.note && h("p", { class: "muted" }, rated.note),
    rated.settings.length > 0 &&
      scrolled(
        "Importance of settings",
        { class: "numbers importance" },
        h("thead", {}, h("tr", {}, ["setting", "importance", "p-value", "rank correlation"].map((name, place) => h("th", { scope: "col", class: place ? "end" : null }, name)))),
        h("tbody", {}, rated.settings.map((each) => importanceRow(each, chosen))),
      ),
    h(
      "details",
      { class: "method" },
      h("summary", {}, "How this is computed"),
      h(
        "p",
        {},
        "PED-ANOVA (Watanabe et al., 2023) compares the values of a setting in the best runs (a tenth, at least ten) with its values in all completed " +
          "runs. The importance is the share of what the settings explain of being among the best, beyond what a random choice of runs would. " +
          "The p-value is how often such a choice differs as much. Diverged runs count as the worst. Each setting is seen by itself: one that " +
          "matters only together with another is rated too low, and settings that always change together are rated alike.",
      ),
      h("p", {}, "The rank correlation is Spearman's: above 0, a larger setting goes with a larger metric."),
    ),
  ];
}

/** A table that scrolls sideways where it does not fit. */
function scrolled(label, attributes, ...parts) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", attributes, parts));
}

function importanceRow({ setting, importance, p_value: p, correlation }, chosen) {
  const bar = h("i", { class: "weight", "aria-hidden": "true", style: { width: `${Math.round(importance * 100)}%` } });
  return h(
    "tr",
    { data: { setting, sure: String(p <= SURE) } },
    h("th", { scope: "row" }, h("button", { type: "button", class: "link", title: "Show in the scatter plot", onclick: () => chosen(setting) }, setting)),
    h("td", { class: "end share" }, h("div", {}, bar, h("span", {}, percent(importance)))),
    h("td", { class: "end" }, p < 0.01 ? "< 0.01" : p.toFixed(2)),
    h("td", { class: "end" }, correlation === null ? "–" : signed(correlation)),
  );
}

/** @param {number} value */
export function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
}

/**
 * The best runs with their settings.
 * @param {{ids: string[], statuses: string[]}} runs @param {number[]} order the best first
 * @param {Axis} metric @param {Axis[]} axes @param {(id: string) => string} nameOf
 * @param {(run: number, event: PointerEvent | null) => void} hovered
 */
export function bestTable({ ids, statuses }, order, metric, axes, nameOf, hovered) {
  const columns = [metric, ...axes.filter((axis) => axis !== metric)];
  const rows = order.map((run, place) =>
    h(
      "tr",
      { data: { best: ids[run] }, onpointerenter: () => hovered(run, null), onpointerleave: () => hovered(-1, null) },
      h("td", { class: "end muted" }, whole(place + 1)),
      h("th", { scope: "row" }, h("a", { href: runAddress(ids[run]) }, nameOf(ids[run]))),
      h("td", {}, statusBadge(statuses[run])),
      columns.map((axis) => h("td", { class: "end" }, axis === metric ? h("b", {}, valueText(axis, run)) : valueText(axis, run))),
    ),
  );
  const head = ["", "run", "status", ...columns.map((axis) => axis.field)].map((name, place) =>
    h("th", { scope: "col", class: place > 2 ? "end" : null }, name || h("span", { class: "hidden" }, "rank")),
  );
  return scrolled("Best runs", { class: "numbers" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
}

/** The runs without a result. */
export function apartList({ ids, statuses }, runs, metric, nameOf) {
  if (!runs.length) return false;
  const shown = runs.slice(0, MAX_APART).map((run) =>
    h(
      "li",
      {},
      h("a", { href: runAddress(ids[run]) }, nameOf(ids[run])),
      " ",
      statusBadge(statuses[run]),
      h("span", { class: "muted" }, ` ${metric ? `${metric.field} ${valueText(metric, run)}` : ""}`),
    ),
  );
  const left = runs.length - shown.length;
  return h(
    "details",
    { class: "apart-runs" },
    h("summary", {}, `${plural(runs.length, "run")} set apart: failed, killed, or without a finite value`),
    h("ul", {}, shown),
    left > 0 && h("p", { class: "muted" }, `${whole(left)} more are not listed.`),
  );
}
