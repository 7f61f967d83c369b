// A sweep: parallel coordinates over the settings that differ and a metric, scatter, importance, best so far, best runs.
// The runs are those that the address selects; otherwise those of the latest project with several configurations.

import { LatestRequest } from "../api.js";
import { empty, fill, h, later, retryButton, select, throttled, toggle } from "../dom.js";
import { plural, whole } from "../format.js";
import { address } from "../page_state.js";
import { ParallelAxes } from "../parallel_axes.js";
import { PointPlot } from "../point_plot.js";
import {
  axisOf,
  bestSoFar,
  brushText,
  extent,
  filterOf,
  insideAll,
  literal,
  parseBrush,
  rankCorrelation,
  shades,
  shadesOf,
} from "../sweep_axes.js";
import { Tip, apartList, axisOptions, bestTable, importanceTable, legend, signed } from "../sweep_parts.js";
import { colour, colourOf, isDark, listenToTheme } from "../theme.js";

/** @typedef {import("../sweep_axes.js").Axis} Axis */
/** @typedef {import("../sweep_axes.js").Brush} Brush */

const REFRESH_MS = 2000;
const DEFAULT_AXES = 7;
const BEST = 20;
/** Longer addresses are not understood everywhere. */
const MAX_WHERE = 4000;
const MAX_NAMED = 200;
const IS_SEED = /(^|[._])seed`?$/;
const STATISTICS = [
  ["", "last value"],
  ["min", "minimum"],
  ["max", "maximum"],
  ["mean", "mean"],
];

export class SweepView {
  #app;
  #data = /** @type {any} */ (null);
  #rated = /** @type {any} */ (null);
  #requests = [new LatestRequest(), new LatestRequest()];
  #axes = /** @type {Axis[]} */ ([]);
  #isApart = /** @type {Uint8Array} */ (new Uint8Array());
  #inside = /** @type {Uint8Array} */ (new Uint8Array());
  #chosen = "";
  #unsubscribe;

  constructor(app) {
    this.#app = app;
    this.tip = new Tip();
    const hovered = (run, event) => this.#hover(run, event);
    const opened = (run) => app.router.go("run", new URLSearchParams({ run: this.#data.ids[run] }));
    this.parallel = new ParallelAxes({
      hovered,
      opened,
      brushed: (field, brush, isDone) => this.#brush(field, brush, isDone),
      moved: (field, place) => this.#move(field, place),
      chosen: (field) => this.#showOptions(field === this.#chosen ? "" : field),
    });
    this.scatter = new PointPlot("Scatter plot of runs", { hovered, opened });
    this.progress = new PointPlot("Best value so far, by start of the runs", { hovered, opened });
    this.filter = h("input", {
      type: "search",
      value: app.router.parameters.get("where") ?? "",
      placeholder: 'project = "sweep" and lr > 1e-4',
      "aria-label": "Filter runs",
      spellcheck: "false",
      data: { find: "" },
      oninput: later(() => this.#filterRuns(), 400),
    });
    this.tools = h("div", { class: "toolbar" });
    this.message = h("p", { class: "message", role: "alert", hidden: true, data: { status: "failed" } });
    this.count = h("p", { class: "muted", role: "status" }, "Loading runs …");
    this.brushed = h("div", { class: "brushed" });
    this.options = h("div");
    this.parts = Object.fromEntries(["legend", "importance", "scatter-tools", "trend", "best"].map((name) => [name, h("div", { class: name })]));
    this.body = h("div", { hidden: true }, this.#sections());
    this.element = h("section", { class: "page sweep" }, h("div", { class: "toolbar" }, this.filter), this.tools, this.message, this.count, this.body, this.tip.element);
    this.#unsubscribe = [
      app.store.listen(throttled(() => this.load(), REFRESH_MS)),
      app.selection.listen(() => this.load()),
      listenToTheme(() => this.#show()),
    ];
    this.load();
  }

  destroy() {
    this.#unsubscribe.forEach((stop) => stop());
    this.#requests.forEach((each) => each.cancel());
    for (const each of [this.parallel, this.scatter, this.progress]) each.destroy();
  }

  #sections() {
    const section = (title, ...parts) => h("section", { class: "card", "aria-label": title }, h("h2", {}, title), parts);
    return [
      section("Parallel coordinates", this.brushed, this.options, this.parallel.element, this.parts.legend),
      h("div", { class: "pair" }, section("Importance", this.parts.importance), section("Best so far", this.progress.element)),
      section("Scatter", this.parts["scatter-tools"], this.scatter.element, this.parts.trend),
      section("Best runs", this.parts.best),
    ];
  }

  get #state() {
    const given = this.#app.router.parameters;
    const text = (name) => given.get(name) ?? "";
    return {
      metric: text("metric"),
      mode: text("mode"),
      axes: given.getAll("axis"),
      brushes: given.getAll("brush").map(parseBrush),
      scales: new Map([...given.getAll("linear").map((each) => [each, "linear"]), ...given.getAll("log").map((each) => [each, "log"])]),
      x: text("x"),
      y: text("y"),
      color: text("color"),
      showsApart: text("apart") !== "0",
    };
  }

  /** Each change is a step of the browser's history. @param {Record<string, any>} changes */
  #change(changes, isLoading = false) {
    this.#app.router.push(changes);
    if (isLoading) this.load();
    else this.#show();
  }

  async #filterRuns() {
    this.#app.router.push({ where: this.filter.value.trim(), run: null });
    await this.#app.selection.follow();
    this.load();
  }

  /** What selects the runs: in requests, and as a filter. */
  get #selected() {
    if (this.#app.router.parameters.has("run")) return { run: this.#app.selection.requested };
    return { where: this.#app.selection.filter };
  }

  async load() {
    const { metric, mode, x, y, color } = this.#state;
    const parameters = { ...this.#selected, metric, mode };
    try {
      const [data, rated] = await Promise.all([
        this.#requests[0].get("sweep", { ...parameters, column: [...new Set([x, y, color])].filter(Boolean) }),
        this.#requests[1].get("importance", parameters),
      ]);
      if (!data || !rated) return;
      this.message.hidden = true;
      fill(this.message);
      if (data === this.#data && rated === this.#rated && this.#axes.length) return; // nothing was recorded since
      [this.#data, this.#rated] = [data, rated];
      this.#show();
    } catch (error) {
      this.message.hidden = false;
      fill(this.message, error.message, " ", retryButton(() => this.load()));
      if (!this.#data) this.count.textContent = "No runs are shown.";
    }
  }

  #show() {
    const data = this.#data;
    if (!data) return;
    const { scales } = this.#state;
    this.#axes = data.columns.map((column) => axisOf(column, scales.get(column.field) ?? null));
    const metric = this.#axis(data.metric);
    const has = data.ids.length > 0 && (data.settings > 0 || metric !== undefined);
    this.body.hidden = !has;
    this.#showTools();
    this.#showCount();
    if (!has) return;
    this.#isApart = Uint8Array.from(data.statuses, (status, run) =>
      Number(status === "failed" || status === "killed" || (metric !== undefined && metric.places[run] < 0)),
    );
    this.#inside = this.#insideNow(this.#state.brushes);
    this.#showLines();
    fill(this.parts.importance, importanceTable(this.#rated, (setting) => this.#change({ x: setting })));
    this.#showProgress();
    this.#showScatter();
    this.#showBest();
    this.#showBrushed();
    this.#showOptions(this.#chosen);
  }

  #axis(field) {
    return this.#axes.find((axis) => axis.field === field);
  }

  /** The axes that are shown, from left to right; by default the most important settings, and the metric. */
  get #shownAxes() {
    const { metric } = this.#data;
    const rated = this.#rated.settings.map((each) => each.setting);
    const settings = this.#axes.filter((axis) => axis.kind === "setting");
    const useful = settings.filter((axis) => !IS_SEED.test(axis.field) && (axis.isNumber || axis.levels.length < Math.max(3, axis.values.length / 2)));
    const order = (axis) => (rated.indexOf(axis.field) + rated.length + 1) % (rated.length + 1);
    const byDefault = [...useful].sort((a, b) => order(a) - order(b)).slice(0, DEFAULT_AXES);
    const given = this.#state.axes.map((field) => this.#axis(field)).filter(Boolean);
    const shown = given.length ? given : [...byDefault].sort((a, b) => settings.indexOf(a) - settings.indexOf(b));
    const last = this.#axis(metric);
    return [...new Set(last && !shown.includes(last) ? [...shown, last] : shown)];
  }

  #insideNow(brushes) {
    const inside = insideAll(this.#axes, brushes, this.#data.ids.length);
    if (!this.#state.showsApart) this.#isApart.forEach((isApart, run) => isApart && (inside[run] = 0));
    return inside;
  }

  #showTools() {
    const { metric, mode, metrics } = this.#data;
    const [, statistic, name] = /^(?:(min|max|mean|last|first)\()?(.*?)\)?$/.exec(metric) ?? [];
    const named = (each, of) => (of ? `${of}(${each})` : each);
    const plain = statistic ? name : metric;
    const choices = [...new Set([...metrics, ...(plain ? [plain] : [])])].map((each) => [each, each]);
    fill(
      this.tools,
      metrics.length > 0 && [
        select("metric", choices, plain, (value) => this.#change({ metric: named(value, statistic), mode: null }, true)),
        select("value", STATISTICS, statistic ?? "", (value) => this.#change({ metric: named(plain, value) }, true)),
        select("better", [["min", "lower"], ["max", "higher"]], mode, (value) => this.#change({ mode: value }, true)),
      ],
      toggle("runs without a result", this.#state.showsApart, (on) => this.#change({ apart: on ? null : "0" })),
      this.#axisBoxes(),
    );
  }

  #axisBoxes() {
    const shown = this.#data.ids.length ? this.#shownAxes.map((axis) => axis.field) : [];
    const boxes = this.#axes
      .filter((axis) => axis.kind === "setting")
      .map(({ field }) => {
        const box = h("input", { type: "checkbox", checked: shown.includes(field), onchange: () => this.#turnAxis(field, box.checked) });
        return h("label", { class: "run-row" }, box, h("span", {}, field));
      });
    const isOpen = this.tools.querySelector("details")?.open ?? false;
    return h("details", { open: isOpen }, h("summary", {}, "Axes"), h("div", { class: "scroll tall" }, boxes));
  }

  #turnAxis(field, on) {
    const shown = this.#shownAxes.map((axis) => axis.field).filter((each) => each !== field);
    const brushes = this.#state.brushes.filter((brush) => on || brush.field !== field);
    this.#change({ axis: on ? [field, ...shown] : shown, brush: brushes.map(brushText) });
  }

  #showCount() {
    const { runs, ids, settings, columns, project, metric } = this.#data;
    const sent = columns.filter((column) => column.kind === "setting").length;
    const chosen = project || this.#app.router.parameters.get("project");
    const texts = [
      chosen ? `${plural(runs, "run")} of the project ${chosen}` : plural(runs, "run"),
      ids.length < runs && `the latest ${whole(ids.length)} are shown`,
      `${plural(settings, "setting")} ${settings === 1 ? "differs" : "differ"}`,
      sent < settings && `${whole(sent)} of them are shown`,
      !metric && "no metric was recorded",
    ];
    fill(this.count, runs ? texts.filter(Boolean).join(", ") : empty("No runs", "Change the filter, or record runs with different settings."));
  }

  #showLines() {
    const metric = this.#axis(this.#data.metric);
    const { of, worst, best } = metric ? shadesOf(metric, this.#data.mode) : { of: new Int16Array(this.#data.ids.length), worst: 0, best: 0 };
    this.parallel.show(this.#shownAxes, this.#state.brushes, { inside: this.#inside, shade: of, apart: this.#isApart });
    const isApart = this.#isApart.includes(1);
    fill(
      this.parts.legend,
      metric && legend(metric.field, { worst, best }),
      isApart && h("p", { class: "legend" }, h("i", { class: "dashes", "aria-hidden": "true" }), h("span", { class: "muted" }, "failed, killed or without a finite value")),
    );
  }

  // Brushes

  #brush(field, brush, isDone) {
    const others = this.#state.brushes.filter((each) => each.field !== field);
    const brushes = brush ? [...others, brush] : others;
    if (isDone) {
      this.#change({ brush: brushes.map(brushText) });
      return;
    }
    this.#inside = this.#insideNow(brushes);
    this.parallel.setBrushes(brushes, this.#inside);
  }

  #move(field, place) {
    const shown = this.#shownAxes.map((axis) => axis.field).filter((each) => each !== field);
    this.#change({ axis: shown.toSpliced(Math.max(0, Math.min(shown.length, place)), 0, field) });
  }

  #showOptions(field) {
    this.#chosen = field;
    const axis = this.#axis(field);
    const shown = this.#shownAxes;
    const brush = this.#state.brushes.find((each) => each.field === field);
    fill(
      this.options,
      axis &&
        axisOptions(axis, brush, field === this.#data.metric, {
          brush: (items) => this.#brush(field, items.length ? { field, items } : null, true),
          scale: (scale) => this.#rescale(field, scale),
          move: (by) => this.#move(field, shown.indexOf(axis) + by),
          hide: () => ((this.#chosen = ""), this.#turnAxis(field, false)),
          close: () => this.#showOptions(""),
        }),
    );
  }

  #rescale(field, scale) {
    const { scales } = this.#state;
    scales.set(field, scale);
    const of = (wanted) => [...scales].filter(([, each]) => each === wanted).map(([name]) => name);
    this.#change({ log: of("log"), linear: of("linear") });
  }

  /** The runs inside the brushes as a filter; null if none can name them. */
  #where() {
    const { brushes } = this.#state;
    const { project, ids } = this.#data;
    const active = brushes.map((brush) => [this.#axis(brush.field), brush]).filter(([axis]) => axis);
    const clauses = active.map(([axis, brush]) => filterOf(axis, brush));
    const isNamed = this.#selected.run || clauses.includes(null);
    const names = ids.filter((_, run) => this.#inside[run]);
    const selected = project ? `project = ${literal(project)}` : this.#selected.where;
    const scope = active.length && /\bor\b|\bnot\b/i.test(selected ?? "") ? `(${selected})` : selected;
    const where = isNamed ? `id in (${names.map(literal).join(", ")})` : [scope, ...clauses].filter(Boolean).join(" and ");
    return (isNamed && (!names.length || names.length > MAX_NAMED)) || where.length > MAX_WHERE ? null : where;
  }

  #showBrushed() {
    const { brushes } = this.#state;
    const count = this.#inside.reduce((sum, each) => sum + each, 0);
    const where = this.#where();
    const link = (text, view) =>
      where !== null && h("a", { class: "button", href: address(view, new URLSearchParams({ where })) }, text);
    fill(
      this.brushed,
      h("span", { role: "status", data: { inside: String(count) } }, brushes.length ? `${whole(count)} of ${plural(this.#data.ids.length, "run")} inside the brushes` : "Drag along an axis to keep a range."),
      link("Open in table", "runs"),
      link("Show charts", "charts"),
      where === null && h("span", { class: "muted" }, "No filter can name these runs."),
      brushes.length > 0 && [
        where !== null && h("code", { class: "where" }, where),
        h("button", { type: "button", onclick: () => this.#change({ brush: null }) }, "Clear brushes"),
      ],
    );
  }

  // The other parts

  #showProgress() {
    const metric = this.#axis(this.#data.metric);
    this.progress.element.parentElement.hidden = !metric;
    if (!metric) return;
    const { ids, started, mode } = this.#data;
    const order = [...ids.keys()].sort((a, b) => (started[a] ?? 0) - (started[b] ?? 0) || b - a);
    const trial = new Array(ids.length);
    order.forEach((run, place) => (trial[run] = place + 1));
    const best = bestSoFar(order.map((run) => (this.#isApart[run] ? null : metric.values[run])), mode);
    const line = best.flatMap((value, place) => (value !== null && value !== best[place - 1] ? [{ at: place + 1, value }] : []));
    const x = axisOf({ field: "runs by start", kind: "metric", values: trial, is_exact: true }, "linear");
    const shade = colour("muted");
    this.progress.show({ x, y: metric, colours: ids.map(() => shade), inside: this.#inside, apart: this.#isApart, line });
  }

  #showScatter() {
    const { x, y, color } = this.#state;
    const { metric, metrics } = this.#data;
    const settings = this.#axes.filter((axis) => axis.kind === "setting").map((axis) => axis.field);
    // A trend is seen best over numbers: the most important one.
    const rated = this.#rated.settings.map((each) => each.setting).filter((each) => settings.includes(each));
    const first = rated.find((each) => this.#axis(each)?.isNumber) ?? rated[0] ?? settings[0] ?? metric;
    const chosen = { x: x || first, y: y || metric || first, color: color || metric };
    const fields = [...new Set([...settings, ...(metric ? [metric] : []), ...metrics])].map((each) => [each, each]);
    const axes = { x: this.#axis(chosen.x), y: this.#axis(chosen.y), color: this.#axis(chosen.color) };
    const isThere = (name) => this.#axis(name) !== undefined;
    const pick = (name, label) => select(label, fields, chosen[name], (value) => this.#change({ [name]: value }, !isThere(value)));
    const log = (name) => {
      const axis = axes[name];
      return axis?.canBeLog && toggle(`log ${name}`, axis.isLog, (on) => this.#rescale(axis.field, on ? "log" : "linear"));
    };
    fill(this.parts["scatter-tools"], h("div", { class: "toolbar" }, pick("x", "x"), log("x"), pick("y", "y"), log("y"), pick("color", "color")));
    if (!axes.x || !axes.y) return;
    this.scatter.show({ x: axes.x, y: axes.y, colours: this.#colours(axes.color), inside: this.#inside, apart: this.#isApart });
    const { correlation, runs } = rankCorrelation(axes.x, axes.y, (run) => Boolean(this.#inside[run] && !this.#isApart[run]));
    const trend =
      correlation === null
        ? "No rank correlation: it needs two numbers that differ between at least three runs."
        : `Rank correlation ${signed(correlation)} over ${plural(runs, "run")}: ${trendText(correlation)}.`;
    fill(this.parts.trend, h("p", { class: "muted", data: { trend: "" } }, trend), axes.color && this.#colourLegend(axes.color));
  }

  #colours(axis) {
    const count = this.#data.ids.length;
    if (!axis) return new Array(count).fill(colour("muted"));
    if (!axis.isNumber) return axis.values.map((value) => (value === null ? colour("muted") : colourOf(`${axis.field}=${value}`, "label")));
    const palette = shades(isDark());
    return [...shadesOf(axis, this.#modeOf(axis)).of].map((shade) => (shade < 0 ? colour("muted") : palette[shade]));
  }

  /** The metric's best values are the most visible; of anything else, the largest ones. */
  #modeOf(axis) {
    return axis.field === this.#data.metric ? this.#data.mode : "max";
  }

  #colourLegend(axis) {
    if (axis.isNumber) {
      const [low, high] = extent(axis.values.filter((value) => typeof value === "number"));
      const isMetric = axis.field === this.#data.metric;
      return isMetric ? false : h("p", { class: "legend" }, legend(axis.field, { worst: low, best: high }).firstChild, ` ${low} … ${high}`);
    }
    const shown = axis.levels.slice(0, 12).map((level) =>
      h("span", { class: "key" }, h("i", { "aria-hidden": "true", style: { background: colourOf(`${axis.field}=${level}`, "label") } }), String(level)),
    );
    return h("p", { class: "legend" }, shown);
  }

  #showBest() {
    const metric = this.#axis(this.#data.metric);
    const nameOf = (id) => this.#app.store.nameOf(id);
    const apart = [...this.#isApart.keys()].filter((run) => this.#isApart[run]);
    if (!metric) {
      fill(this.parts.best, empty("No metric", "The runs recorded no number to sort by."));
      return;
    }
    const sign = this.#data.mode === "min" ? 1 : -1;
    const order = [...this.#inside.keys()]
      .filter((run) => this.#inside[run] && !this.#isApart[run])
      .sort((a, b) => sign * (metric.values[a] - metric.values[b]))
      .slice(0, BEST);
    fill(
      this.parts.best,
      order.length
        ? bestTable(this.#data, order, metric, this.#shownAxes, nameOf, (run) => this.#hover(run, null))
        : empty("No run has a result", "Change the brushes or the metric."),
      apartList(this.#data, apart, metric, nameOf),
    );
  }

  #hover(run, event) {
    for (const each of [this.parallel, this.scatter, this.progress]) each.highlight(run);
    if (!this.#data || run < 0) return this.tip.show(null, "", "", [], run);
    const { ids, statuses } = this.#data;
    return this.tip.show(event, this.#app.store.nameOf(ids[run]), statuses[run], this.#shownAxes, run);
  }
}

/** @param {number} correlation */
function trendText(correlation) {
  const size = Math.abs(correlation);
  if (size < 0.1) return "no trend";
  return `${size < 0.3 ? "weak" : size < 0.6 ? "moderate" : "strong"} ${correlation < 0 ? "fall" : "rise"}`;
}
