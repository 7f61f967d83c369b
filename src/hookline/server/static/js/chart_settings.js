// The controls of a board of charts: its toolbar, and the settings of one chart.

import { button } from "./chart_panel.js";
import { HEIGHTS } from "./chart_state.js";
import { h, later, select, toggle } from "./dom.js";

const SMOOTHERS = [
  ["ema", "by points (TensorBoard)"],
  ["time_weighted", "by x (W&B)"],
];
const RAW = [
  ["auto", "automatic"],
  ["band", "range"],
  ["line", "lines"],
  ["none", "hidden"],
];
const SMOOTHING_TITLE =
  "The weight of earlier values in a moving average over all points. Automatic: over about a fiftieth of each run.";

/**
 * @typedef {{state: import("./chart_state.js").State, choicesOfX: string[][], choicesOfGroup: string[][],
 *   usualSmoothing: number, isGrouped: boolean, change: (changes: object, how?: string) => void}} Controls
 */

/**
 * Controls of all charts.
 * @param {Controls} controls @param {any} moves the buttons that zoom @returns {any[]}
 */
export function boardTools({ state, choicesOfX, choicesOfGroup, usualSmoothing, isGrouped, change }, moves) {
  const search = h("input", {
    type: "search",
    placeholder: "Find metrics",
    "aria-label": "Find metrics",
    title: "A part of the name, or a regular expression: val/.*loss|reward",
    value: state.text,
    spellcheck: "false",
    data: { find: "" },
    oninput: later(() => change({ text: search.value.trim() }, "search"), 120),
  });
  const isOwn = state.smoothing !== null;
  const weight = h("output", { class: "count" }, isOwn ? state.smoothing : "auto");
  const slider = h("input", {
    type: "range",
    min: 0,
    max: 0.999,
    step: 0.001,
    value: state.smoothing ?? usualSmoothing,
    "aria-label": "Smoothing",
    title: SMOOTHING_TITLE,
    oninput: () => {
      weight.textContent = slider.value;
      automatic.hidden = false;
      smoothSoon();
    },
  });
  const smoothSoon = later(() => change({ smoothing: Number(slider.value) }, "load"), 120);
  const automatic = button("auto", "Choose automatically", () => {
    slider.value = usualSmoothing;
    weight.textContent = "auto";
    automatic.hidden = true;
    change({ smoothing: null }, "load");
  });
  automatic.hidden = !isOwn;
  return [
    search,
    select("x", choicesOfX, state.x, (x) => change({ x, zoom: null }, "new")),
    select("lines", choicesOfGroup, state.by, (by) => change({ by }, "new")),
    isGrouped &&
      select("draw", [["bands", "mean ± std"], ["lines", "all runs"]], state.as, (as) => change({ as }, "new")),
    h("label", { class: "field" }, h("span", {}, "smoothing"), slider, weight),
    automatic,
    moves,
    toggle("log y", state.logY, (logY) => change({ logY })),
    toggle("log x", state.logX, (logX) => change({ logX })),
    toggle("ignore outliers", state.leavesOut, (leavesOut) => change({ leavesOut })),
    toggle("events", state.marks, (marks) => change({ marks })),
    h(
      "details",
      { class: "more-settings" },
      h("summary", {}, "Layout"),
      h(
        "div",
        { class: "popover" },
        select("smooth", SMOOTHERS, state.smoother, (smoother) => change({ smoother }, "load")),
        select("raw values", RAW, state.raw, (raw) => change({ raw }, "load")),
        select(
          "charts per row",
          [["0", "automatic"], ...["1", "2", "3", "4", "5", "6"].map((count) => [count, count])],
          String(state.columns),
          (columns) => change({ columns: Number(columns) }, "layout"),
        ),
        select(
          "height",
          HEIGHTS.map((each) => [each, each]),
          state.height,
          (height) => change({ height }, "layout"),
        ),
      ),
    ),
  ];
}

/** Edit the settings of one chart; empty ones follow the board.
 * @param {string} name of the metric
 * @param {import("./chart_state.js").Own} own
 * @param {string[][]} choicesOfX
 * @param {(own: import("./chart_state.js").Own) => void} changed
 */
export function editChart(name, own, choicesOfX, changed) {
  const field = (label, input) => h("label", { class: "field" }, h("span", {}, label), input);
  const text = (label, value, attributes = {}) =>
    h("input", { "aria-label": label, value: value ?? "", onchange: apply, ...attributes });
  const number = (label, value, attributes = {}) =>
    text(label, value, { type: "number", step: "any", placeholder: "auto", ...attributes });
  const choice = (label, options, value) => {
    const holder = select(label, options, value, () => apply());
    return { holder, list: holder.querySelector("select") };
  };
  const title = text("Title", own.title, { placeholder: name, maxlength: 200 });
  const smoothing = number("Smoothing of this chart", own.smoothing, { min: 0, max: 0.999, placeholder: "as the board" });
  const [low, high] = [number("Lowest y", own.range?.[0]), number("Highest y", own.range?.[1])];
  const x = choice("x axis", [["", "as the board"], ...choicesOfX], own.x ?? "");
  const scale = choice(
    "y axis",
    [["", "as the board"], ["0", "linear"], ["1", "logarithmic"]],
    own.logY === undefined ? "" : String(Number(own.logY)),
  );
  const outliers = choice(
    "outliers",
    [["", "as the board"], ["1", "ignored"], ["0", "shown"]],
    own.leavesOut === undefined ? "" : String(Number(own.leavesOut)),
  );
  const numberOf = (input) => (input.value === "" || !input.validity.valid ? null : Number(input.value));

  function apply() {
    /** @type {import("./chart_state.js").Own} */
    const next = {};
    if (title.value.trim()) next.title = title.value.trim();
    if (numberOf(smoothing) !== null) next.smoothing = numberOf(smoothing);
    if (x.list.value) next.x = x.list.value;
    if (scale.list.value) next.logY = scale.list.value === "1";
    if (outliers.list.value) next.leavesOut = outliers.list.value === "1";
    if (numberOf(low) !== null || numberOf(high) !== null) next.range = [numberOf(low), numberOf(high)];
    changed(next);
  }
  const reset = () => {
    dialog.close();
    changed({});
  };
  const dialog = h(
    "dialog",
    { class: "chart-settings", "aria-label": `Settings of ${name}`, onclose: () => dialog.remove() },
    h("h2", {}, name),
    field("title", title),
    field("smoothing", smoothing),
    x.holder,
    scale.holder,
    h("div", { class: "pair" }, field("y from", low), field("to", high)),
    outliers.holder,
    h(
      "footer",
      {},
      h("button", { type: "button", onclick: reset }, "Reset"),
      h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close"),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
}
