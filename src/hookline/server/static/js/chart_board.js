// A board of charts of the selected runs, in sections, with shared controls.

import { LatestRequest } from "./api.js";
import { ChartPanel, button } from "./chart_panel.js";
import { moved } from "./chart_scales.js";
import { empty, fill, h, later, select, throttled, toggle } from "./dom.js";
import { groupColourOf, defaultGrouping } from "./metric_lines.js";
import { recall, remember } from "./page_state.js";
import { legendChips } from "./tables.js";
import { colourOf, listenToTheme } from "./theme.js";

const DEFAULTS = { x: "step", by: "auto", smoothing: 0, logX: false, logY: false, leavesOut: true, text: "" };
const NAMES_EVERY = 2500;
/** The zoom actions with their symbols, names and keys. */
const MOVES = [
  ["left", "‹", "Move left", ["ArrowLeft"]],
  ["right", "›", "Move right", ["ArrowRight"]],
  ["out", "−", "Zoom out", ["-"]],
  ["in", "+", "Zoom in", ["+", "="]],
];
const CLOSED_AT_FIRST = ["hooks", "system", "memory", "throughput"];

export class ChartBoard {
  #app;
  #name;
  #accepts;
  #look;
  #layout;
  #metrics = [];
  #recorded = [];
  #texts = new Set();
  #panels = new Map();
  #zoom = null;
  #lines = new Map();
  #names = new LatestRequest();
  #unsubscribe = [];

  /**
   * @param {any} app
   * @param {{name: string, accepts?: (metric: string) => boolean, nothing: string, closed?: string[]}} what
   */
  constructor(app, { name, accepts = () => true, nothing, closed = CLOSED_AT_FIRST }) {
    this.#app = app;
    this.#name = name;
    this.#accepts = accepts;
    this.nothing = nothing;
    this.onLook = () => {};
    this.#look = { ...DEFAULTS, ...recall(`${name}.look`, {}) };
    this.#layout = { closed, pinned: [], wide: [], ...recall(`${name}.layout`, {}) };
    this.legend = h("div", { class: "legend" });
    this.tools = h("div", { class: "toolbar" });
    this.body = h("div", { class: "board" });
    this.element = h("section", { class: "charts" }, this.tools, this.legend, this.body);
    this.observer = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "150px" });
    const [refresh, refreshNames] = [
      throttled(() => this.element.isConnected && this.#reload(), 1000),
      throttled(() => this.element.isConnected && this.#askNames(), NAMES_EVERY),
    ];
    this.#unsubscribe.push(
      app.store.listen((changed) => {
        if (!app.selection.ids.some((id) => changed.has(id))) return;
        refresh();
        refreshNames();
      }),
      app.selection.listen(() => this.#begin()),
      listenToTheme(() => this.#redraw()),
    );
    this.#begin();
  }

  /** What each line shows: a run, or all runs of an arm, a group or an experiment. */
  get grouping() {
    return this.#look.by === "auto" ? defaultGrouping(this.#app.selection.runs) : this.#look.by;
  }

  /** The colour of a run. @param {import("./run_store.js").Run} run */
  colourFor(run) {
    return this.grouping === "run" ? colourOf(run.id) : groupColourOf(run, this.grouping);
  }

  /** Keys that zoom all charts. @param {KeyboardEvent} event */
  press(event) {
    const move = MOVES.find(([, , , keys]) => keys.includes(event.key));
    if (event.key === "Escape") this.#zoomTo(null);
    else if (move) this.#move(move[0]);
    else return;
    event.preventDefault();
  }

  destroy() {
    this.#unsubscribe.forEach((stop) => stop());
    this.observer.disconnect();
    this.#names.cancel();
    this.#panels.forEach((panel) => panel.destroy());
  }

  #begin() {
    this.#zoom = null;
    this.#lines.clear();
    this.#panels.forEach((panel) => panel.forget());
    this.#askNames();
    this.#reload();
  }

  async #askNames() {
    const ids = this.#app.selection.requested;
    if (!ids.length) return this.#showNames([]);
    try {
      const answer = await this.#names.get("metrics", { run: ids });
      if (!answer) return;
      const recorded = [...new Set(answer.metrics.map((metric) => metric.name))];
      const numbers = new Set(answer.metrics.filter((each) => each.texts < each.points).map((each) => each.name));
      this.#texts = new Set(recorded.filter((name) => !numbers.has(name)));
      const isOther = JSON.stringify(recorded) !== JSON.stringify(this.#recorded);
      this.#recorded = recorded;
      if (isOther && this.tools.hasChildNodes()) this.#showTools();
      this.#showNames(this.#recorded.filter(this.#accepts));
    } catch (error) {
      fill(this.body, empty("Loading the metrics failed", error.message));
    }
  }

  #showNames(names) {
    if (this.body.hasChildNodes() && JSON.stringify(names) === JSON.stringify(this.#metrics)) return;
    this.#metrics = names;
    this.#showTools();
    this.#showSections();
  }

  #showTools() {
    const change = (changes, isNew = false) => {
      const isSmoothed = "smoothing" in changes;
      Object.assign(this.#look, changes);
      remember(`${this.#name}.look`, { ...this.#look, text: "" });
      this.onLook();
      if (isSmoothed) {
        this.#reload(); // the server smooths over all points; the old lines stay until it responds
      } else if (isNew) {
        this.#zoom = null;
        this.#lines.clear();
        this.#panels.forEach((panel) => panel.forget());
        this.#reload();
      } else this.#redraw();
    };
    const search = h("input", {
      type: "search",
      placeholder: "Find metrics",
      "aria-label": "Find metrics",
      value: this.#look.text,
      data: { find: "" },
      oninput: later(() => {
        this.#look.text = search.value;
        this.#showSections();
      }, 120),
    });
    const smoothSoon = later(() => change({ smoothing: Number(slider.value) }), 120);
    const weight = h("output", { class: "count" }, this.#look.smoothing);
    const slider = h("input", {
      type: "range",
      min: 0,
      max: 0.999,
      step: 0.001,
      value: this.#look.smoothing,
      "aria-label": "Smoothing",
      title: "The weight of earlier values in an exponential moving average over all points, as in TensorBoard",
      oninput: () => {
        weight.textContent = slider.value;
        smoothSoon();
      },
    });
    fill(
      this.tools,
      search,
      select(
        "x",
        this.#choicesOfX(),
        this.#look.x,
        (x) => change({ x }, true),
      ),
      select(
        "lines",
        [
          ["auto", "automatic"],
          ["run", "each run"],
          ["arm", "mean ± std, arms"],
          ["group", "mean ± std, groups"],
          ["experiment", "mean ± std, experiments"],
        ],
        this.#look.by,
        (by) => change({ by }, true),
      ),
      h("label", { class: "field" }, h("span", {}, "smoothing"), slider, weight),
      h(
        "span",
        { class: "moves", role: "group", "aria-label": "Zoom" },
        MOVES.map(([how, sign, title]) => button(sign, title, () => this.#move(how))),
      ),
      toggle("log y", this.#look.logY, (logY) => change({ logY })),
      toggle("log x", this.#look.logX, (logX) => change({ logX })),
      toggle("ignore outliers", this.#look.leavesOut, (leavesOut) => change({ leavesOut })),
    );
  }

  /** All recorded numbers, even those not drawn on this board, and an earlier choice for other runs. */
  #choicesOfX() {
    const known = ["step", "time", "relative", "elapsed"];
    const isNumber = (name) => !this.#texts.has(name) && !/(^|\/)hooks\//.test(name);
    const others = this.#recorded.filter((name) => !known.includes(name) && isNumber(name));
    const lost = ![...known, ...others].includes(this.#look.x);
    return [
      ["step", "step"],
      ["relative", "time since start"],
      ["time", "time of day"],
      ...others.map((name) => [name, name]),
      ...(lost ? [[this.#look.x, `${this.#look.x} (not recorded)`]] : []),
    ];
  }

  #showSections() {
    const words = this.#look.text.toLowerCase();
    const shown = this.#metrics.filter((name) => name.toLowerCase().includes(words));
    this.observer.disconnect();
    const pinned = this.#layout.pinned.filter((name) => shown.includes(name));
    const groups = new Map();
    for (const name of shown) if (!pinned.includes(name)) put(groups, sectionOf(name), name);
    const ordered = [...groups].sort(([a], [b]) => rank(a) - rank(b) || (a < b ? -1 : 1));
    const sections = [...(pinned.length ? [["pinned", pinned]] : []), ...ordered];
    if (!shown.length) {
      const message = this.#metrics.length
        ? ["No metric matches", ""]
        : ["No metrics yet", this.nothing];
      return void fill(this.body, empty(...message));
    }
    fill(
      this.body,
      sections.map(([title, names]) => this.#section(title, names, Boolean(words))),
    );
    for (const [name, panel] of this.#panels) if (!shown.includes(name)) panel.isSeen = false;
  }

  #section(title, names, isSearched) {
    const grid = h(
      "div",
      { class: "grid" },
      names.map((name) => this.#panel(name).element),
    );
    const isOpen = isSearched || !this.#layout.closed.includes(title);
    const onToggle = (event) => {
      if (isSearched) return;
      this.#layout.closed = this.#layout.closed
        .filter((each) => each !== title)
        .concat(event.target.open ? [] : [title]);
      this.#keepLayout();
    };
    return h(
      "details",
      { class: "section", open: isOpen, ontoggle: onToggle },
      h("summary", {}, title, h("span", { class: "count" }, names.length)),
      grid,
    );
  }

  #panel(name) {
    if (!this.#panels.has(name)) {
      const owner = {
        store: this.#app.store,
        ids: () => this.#app.selection.requested,
        look: () => ({ ...this.#look, by: this.grouping }),
        onZoom: (zoom) => this.#zoomTo(zoom),
        onLines: (lines) => this.#noteLines(lines),
        isText: () => this.#texts.has(name),
        buttons: (panel) => [
          this.#turn("pinned", "Pin", "Pin to the top", panel),
          this.#turn("wide", "Wide", "Full width", panel),
        ],
      };
      this.#panels.set(name, new ChartPanel(name, owner));
    }
    const panel = this.#panels.get(name);
    panel.element.classList.toggle("wide", this.#layout.wide.includes(name));
    this.observer.observe(panel.element);
    return panel;
  }

  #turn(list, text, title, panel) {
    const action = () => {
      const isOn = this.#layout[list].includes(panel.name);
      this.#layout[list] = isOn
        ? this.#layout[list].filter((name) => name !== panel.name)
        : [...this.#layout[list], panel.name];
      made.setAttribute("aria-pressed", String(!isOn));
      this.#keepLayout();
      this.#showSections();
    };
    const made = button(text, title, action, { "aria-pressed": String(this.#layout[list].includes(panel.name)) });
    return made;
  }

  #keepLayout() {
    remember(`${this.#name}.layout`, this.#layout);
  }

  #seen(entries) {
    for (const entry of entries) {
      const panel = this.#panels.get(entry.target.dataset.metric);
      if (!panel) continue;
      panel.isSeen = entry.isIntersecting;
      if (panel.isSeen && panel.isStale) panel.load();
      else if (panel.isSeen) {
        panel.draw();
        panel.catchUp();
      }
    }
  }

  #reload() {
    for (const panel of this.#panels.values()) {
      panel.isStale = true;
      if (panel.isSeen && panel.element.isConnected) panel.load();
    }
  }

  #redraw() {
    for (const panel of this.#panels.values()) if (panel.isSeen) panel.draw();
  }

  #zoomTo(zoom) {
    this.#zoom = zoom;
    for (const panel of this.#panels.values()) panel.zoomTo(zoom);
  }

  #move(how) {
    const extents = [...this.#panels.values()].map((panel) => panel.isSeen && panel.extent).filter(Boolean);
    if (!extents.length) return;
    const isLog = this.#look.logX && this.#look.x !== "time";
    const lows = extents.map(([low]) => low).filter((low) => !isLog || low > 0);
    this.#zoomTo(moved(this.#zoom, [Math.min(...lows), Math.max(...extents.map(([, high]) => high))], how, isLog));
  }

  #noteLines(lines) {
    const before = this.#lines.size;
    for (const line of lines) this.#lines.set(line.chip?.key ?? line.key, line.chip ?? line);
    if (this.#lines.size === before && this.legend.hasChildNodes()) return;
    const chips = legendChips([...this.#lines.values()].slice(0, 24));
    fill(this.legend, this.grouping === "run" ? [] : chips);
  }
}

function sectionOf(name) {
  const slash = name.indexOf("/");
  return slash > 0 ? name.slice(0, slash) : "metrics";
}

/** The main metrics first, system metrics last. */
function rank(section) {
  return section === "metrics" ? 0 : CLOSED_AT_FIRST.includes(section) ? 2 : 1;
}

function put(map, key, value) {
  if (!map.has(key)) map.set(key, []);
  map.get(key).push(value);
}
