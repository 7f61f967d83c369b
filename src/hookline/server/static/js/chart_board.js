// A board of charts of the selected runs, in sections, with shared controls. Its whole state is in the address.

import { LatestRequest, request } from "./api.js";
import { RunMarks } from "./chart_marks.js";
import { ChartPanel, button, drawSoon } from "./chart_panel.js";
import { moved } from "./chart_scales.js";
import { boardTools, editChart } from "./chart_settings.js";
import { readState, stateParameters } from "./chart_state.js";
import { empty, failed, fill, h, throttled } from "./dom.js";
import { plural } from "./format.js";
import { MediaPanel, panelName, shownMedia } from "./board_media.js";
import { GROUPINGS, SETTING, defaultGrouping, groupColour, keysOf } from "./metric_lines.js";
import { remember } from "./page_state.js";
import { legendChips } from "./tables.js";
import { colourOf, listenToTheme } from "./theme.js";

const NAMES_EVERY = 2500;
/** The zoom actions with their symbols, names and keys. */
const MOVES = [
  ["left", "‹", "Move left", ["ArrowLeft"]],
  ["right", "›", "Move right", ["ArrowRight"]],
  ["out", "−", "Zoom out", ["-"]],
  ["in", "+", "Zoom in", ["+", "="]],
];
const CLOSED_AT_FIRST = ["hooks", "system", "memory", "throughput", "media"];
const MEDIA = "media";
/** Charts out of sight beyond this number give their memory back. */
const MAX_DRAWN = 24;
const MAX_CHIPS = 24;
/** Automatic smoothing averages over this share of a run, if it has more points than this. */
const SHARE = 0.02;
const LEAST_POINTS = 100;
/** Metrics that are usual as x, before all others. */
const COUNTS = /(^|\/)(num_|total_|cumulative_)?(tokens|samples|examples|epoch)(_seen|_total)?$/;

export class ChartBoard {
  #app;
  #name;
  #accepts;
  #closed;
  /** @type {import("./chart_state.js").State} */
  #state;
  #metrics = [];
  /** The points per run of each metric, for automatic smoothing. */
  #sizes = new Map();
  #recorded = [];
  #texts = new Set();
  #fields = [];
  #media = [];
  /** @type {Map<string, any>} */
  #panels = new Map();
  #lines = new Map();
  /** The groups of runs by a setting, and the setting. */
  #groups = { by: "", ids: "", keys: new Map() };
  #marks = new RunMarks();
  #names = new LatestRequest();
  #groupRequest = new LatestRequest();
  #mediaRequest = new LatestRequest();
  #unsubscribe = [];

  /**
   * @param {any} app
   * @param {{name: string, accepts?: (metric: string) => boolean, nothing: string, closed?: string[], hasMedia?: boolean}} what
   */
  constructor(app, { name, accepts = () => true, nothing, closed = CLOSED_AT_FIRST, hasMedia = false }) {
    this.#app = app;
    this.#name = name;
    this.#accepts = accepts;
    this.#closed = closed;
    this.nothing = nothing;
    this.hasMedia = hasMedia;
    this.onLook = () => {};
    this.#state = readState(app.router.parameters);
    this.legend = h("div", { class: "legend" });
    this.tools = h("div", { class: "toolbar" });
    this.problem = h("p", { class: "muted", role: "status", hidden: true });
    this.body = h("div", { class: "board" }, empty("Loading the metrics …"));
    this.element = h("section", { class: "charts" }, this.tools, this.problem, this.legend, this.body);
    this.observer = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "150px" });
    const whenShown = (action) => () => this.element.isConnected && action();
    const [refresh, refreshNames] = [
      throttled(whenShown(() => this.#loadStale()), 1000),
      throttled(whenShown(() => this.#askNames()), NAMES_EVERY),
    ];
    this.#unsubscribe.push(
      app.store.listen((changed) => {
        const own = app.selection.ids.filter((id) => changed.has(id));
        if (!own.length) return;
        for (const panel of this.#panels.values()) panel.noteChanges?.(own);
        refresh();
        refreshNames();
      }),
      app.selection.listen(() => this.#begin(null)),
      listenToTheme(() => this.#redraw()),
    );
    this.#begin(this.#state.zoom);
  }

  /** The grouping of runs: "run" if each has its own line. */
  get grouping() {
    return this.#state.by === "auto" ? defaultGrouping(this.#app.selection.runs) : this.#state.by;
  }

  /** The colour of a run. @param {import("./run_store.js").Run} run */
  colourFor(run) {
    const key = this.#keyOf(run.id);
    return this.grouping === "run" || !key ? colourOf(run.id) : groupColour(key, this.grouping);
  }

  /** Highlight the line of a run in all charts. @param {string | null} id */
  highlightRun(id) {
    for (const panel of this.#panels.values()) panel.highlight?.(id);
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
    [this.#names, this.#groupRequest, this.#mediaRequest, this.#marks].forEach((pending) => pending.cancel());
    this.#panels.forEach((panel) => panel.destroy());
  }

  /** The values that a run shares with those of its group; null if it is in none, or not yet known. */
  #keyOf(id) {
    const by = this.grouping;
    if (!Object.hasOwn(GROUPINGS, by)) return this.#groups.keys.get(id) ?? null;
    const run = this.#app.store.byId.get(id);
    return run ? GROUPINGS[by].map((name) => run[name]) : null;
  }

  #begin(zoom) {
    this.#state.zoom = zoom;
    this.#renew();
    this.#askFields();
    // Charts first: for events and media, the server reads the same records once more.
    this.#askNames().then(() => this.#askMedia());
  }

  /** Everything is loaded again: it is over another x, or of other runs or groups. */
  #renew() {
    this.#lines.clear();
    this.#panels.forEach((panel) => (panel.forget ? panel.forget() : panel.release()));
    for (const panel of this.#panels.values()) panel.zoomTo?.(this.#state.zoom);
    this.#askGroups();
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
      this.#sizes = new Map(answer.metrics.map((metric) => [metric.name, metric.points / Math.max(1, metric.runs)]));
      const isOther = JSON.stringify(recorded) !== JSON.stringify(this.#recorded);
      this.#recorded = recorded;
      if (isOther && this.tools.hasChildNodes()) this.#showTools();
      this.#showNames(this.#recorded.filter(this.#accepts));
      this.#loadStale();
      await this.#chartsInSight();
      if (this.#state.marks && (await this.#marks.load(ids))) this.#redraw();
    } catch (error) {
      if (!this.#metrics.length) fill(this.body, failed(error, () => this.#askNames(), "Loading the metrics failed"));
    }
  }

  /** The settings that the selected runs have, and their values if runs are grouped by one. */
  async #askGroups() {
    const [by, ids] = [this.grouping, this.#app.selection.requested];
    if (Object.hasOwn(GROUPINGS, by) || !ids.length) return;
    if (this.#groups.by === by && this.#groups.ids === ids.join("\n")) return;
    try {
      const answer = await this.#groupRequest.get("run_groups", { run: ids, by: keysOf(by) });
      if (!answer) return;
      this.#groups = { by, ids: ids.join("\n"), keys: new Map(answer.groups.map(({ run, key }) => [run, key])) };
      // Colours are given in the order of the groups, not in that of the list of runs.
      this.#groups.keys.forEach((key) => groupColour(key, by));
      this.#lines.clear();
      this.#say("");
      this.onLook();
      this.#redraw();
    } catch (error) {
      this.#say(error.message);
    }
  }

  /** Wait until the charts in sight are loaded. */
  async #chartsInSight() {
    // The observer reports which ones are in sight after the next frame.
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    await Promise.all([...this.#panels.values()].map((panel) => panel.loaded));
  }

  async #askMedia() {
    const ids = this.#app.selection.requested;
    if (!this.hasMedia || !ids.length || !this.element.isConnected) return;
    try {
      const answer = await this.#mediaRequest.get("media/names", { run: ids });
      if (!answer) return;
      const media = shownMedia(answer.names);
      if (JSON.stringify(media) === JSON.stringify(this.#media)) return;
      this.#media = media;
      if (this.#metrics.length) this.#showSections();
    } catch {
      // Charts are shown without media; the media view shows the error.
    }
  }

  /** The settings by which runs can be grouped: those that differ first. */
  async #askFields() {
    if (this.#fields.length) return;
    const { fields } = await request("run_fields").catch(() => ({ fields: [] }));
    const settings = fields.filter((each) => each.kind === "config" && each.runs > 1);
    this.#fields = settings.toSorted((a, b) => Number(b.varies) - Number(a.varies)).map((each) => each.name);
    if (this.tools.hasChildNodes() && !this.tools.contains(document.activeElement)) this.#showTools();
  }

  #showNames(names) {
    if (this.tools.hasChildNodes() && JSON.stringify(names) === JSON.stringify(this.#metrics)) return;
    this.#metrics = names;
    this.#showTools();
    this.#showSections();
  }

  /** @param {object} changes @param {string} [how] what they have an effect on */
  #change(changes, how = "draw") {
    Object.assign(this.#state, changes);
    this.#keep(how !== "search" && !("smoothing" in changes));
    if (how === "search" || how === "layout") return this.#showSections();
    this.onLook();
    if (how === "new") {
      this.#showTools();
      this.#renew();
    } else if (how === "load") {
      this.#reload(); // the server smooths over all points; the old lines stay until it responds
      if (this.#state.raw !== "auto") this.#redraw();
    } else this.#redraw();
  }

  /** Write the state to the address, as a step of the browser's history or in place of the last. */
  #keep(isStep = true) {
    const { router } = this.#app;
    const parameters = stateParameters(this.#state);
    if (isStep) router.push(parameters);
    else router.set(parameters);
    const kept = Object.entries(parameters).flatMap(([name, value]) =>
      (Array.isArray(value) ? value : [value]).filter((each) => each !== null && each !== "").map((each) => [name, String(each)]),
    );
    remember(`${this.#name}.parameters`, new URLSearchParams(kept).toString());
  }

  #showTools() {
    const moves = h(
      "span",
      { class: "moves", role: "group", "aria-label": "Zoom" },
      MOVES.map(([how, sign, title]) => button(sign, title, () => this.#move(how))),
    );
    const controls = {
      state: this.#state,
      isGrouped: this.grouping !== "run",
      choicesOfX: this.#choicesOfX(),
      choicesOfGroup: this.#choicesOfGroup(),
      usualSmoothing: Math.max(0, ...this.#metrics.map((name) => this.#usualSmoothing(name))),
      change: (changes, how) => this.#change(changes, how),
    };
    fill(this.tools, boardTools(controls, moves).filter(Boolean));
  }

  /** All recorded numbers, even those not drawn on this board, and an earlier choice for other runs. */
  #choicesOfX() {
    const known = ["step", "time", "relative", "elapsed"];
    const isNumber = (name) => !this.#texts.has(name) && !/(^|\/)hooks\//.test(name);
    const others = this.#recorded.filter((name) => !known.includes(name) && isNumber(name));
    const ordered = others.toSorted((a, b) => Number(COUNTS.test(b)) - Number(COUNTS.test(a)));
    const lost = ![...known, ...others].includes(this.#state.x);
    return [
      ["step", "step"],
      ["relative", "time since start"],
      ["time", "time of day"],
      ...ordered.map((name) => [name, name]),
      ...(lost ? [[this.#state.x, `${this.#state.x} (not recorded)`]] : []),
    ];
  }

  #choicesOfGroup() {
    const usual = [
      ["auto", "automatic"],
      ["run", "each run"],
      ["arm", "by arm"],
      ["group", "by group"],
      ["experiment", "by experiment"],
      ["tag", "by tags"],
    ];
    const settings = this.#fields.map((name) => [SETTING + name, `by ${name}`]);
    const all = [...usual, ...settings];
    const { by } = this.#state;
    return all.some(([value]) => value === by) ? all : [...all, [by, `by ${by.replace(SETTING, "")}`]];
  }

  /** The weight of the average over a share of a run; of many points only a power of two, as runs grow. */
  #usualSmoothing(name) {
    const points = this.#sizes.get(name) ?? 0;
    if (points <= LEAST_POINTS) return 0;
    const length = 2 ** Math.floor(Math.log2(points)) * SHARE;
    return Math.min(0.999, Math.round((1 - 1 / (1 + length)) * 1000) / 1000);
  }

  /** The settings of one chart. */
  #lookOf(name) {
    const { own, smoothing, ...board } = this.#state;
    return { smoothing: smoothing ?? this.#usualSmoothing(name), ...board, by: this.grouping, ...own.get(name) };
  }

  /** The metrics that the search finds: a regular expression, or else a part of the name. */
  #found(names) {
    const { text } = this.#state;
    try {
      const pattern = new RegExp(text, "i");
      this.#say("");
      return names.filter((name) => pattern.test(name));
    } catch (error) {
      this.#say(`${error.message}. Showing the metrics with this text in their names.`);
      return names.filter((name) => name.toLowerCase().includes(text.toLowerCase()));
    }
  }

  #say(text) {
    this.problem.textContent = text;
    this.problem.hidden = !text;
  }

  #showSections() {
    const shown = this.#found(this.#metrics);
    const media = this.#found(this.#media.map(({ name }) => name));
    const items = this.#media.filter(({ name }) => media.includes(name)).map((each) => this.#mediaPanel(each).name);
    this.observer.disconnect();
    const pinned = this.#state.pinned.filter((name) => shown.includes(name));
    const groups = Map.groupBy(
      shown.filter((name) => !pinned.includes(name)),
      sectionOf,
    );
    const ordered = [...groups].sort(([a], [b]) => rank(a) - rank(b) || (a < b ? -1 : 1));
    /** @type {[string, string[]][]} */
    const sections = [...ordered];
    if (pinned.length) sections.unshift(["pinned", pinned]);
    if (items.length) sections.push([MEDIA, items]);
    for (const [name, panel] of this.#panels) if (!shown.includes(name)) panel.isSeen = false;
    if (!sections.length) {
      const message = this.#metrics.length
        ? ["No metric matches", "Change the search."]
        : ["No metrics yet", this.nothing];
      return void fill(this.body, empty(...message));
    }
    this.body.dataset.height = this.#state.height;
    if (this.#state.columns) this.body.dataset.columns = "";
    else delete this.body.dataset.columns;
    this.body.style.setProperty("--columns", String(this.#state.columns || 1));
    fill(
      this.body,
      sections.map(([title, names]) => this.#section(title, names)),
    );
  }

  #section(title, names) {
    const isSearched = Boolean(this.#state.text);
    const isOpenAtFirst = !this.#closed.includes(title);
    const isOpen = isSearched || isOpenAtFirst !== this.#state.turned.includes(title);
    const grid = h("div", { class: "grid" });
    // The panels of a folded section are made when it is opened.
    const show = () => grid.hasChildNodes() || fill(grid, names.map((name) => this.#panel(name).element));
    const onToggle = (event) => {
      const { open } = event.target;
      if (open) show();
      if (isSearched || open === (isOpenAtFirst !== this.#state.turned.includes(title))) return;
      const turned = this.#state.turned.filter((each) => each !== title);
      this.#state.turned = open === isOpenAtFirst ? turned : [...turned, title];
      this.#keep();
    };
    if (isOpen) show();
    return h(
      "details",
      { class: "section", open: isOpen, ontoggle: onToggle },
      h("summary", {}, title, h("span", { class: "count" }, names.length)),
      grid,
    );
  }

  #mediaPanel(medium) {
    const name = panelName(medium);
    if (!this.#panels.has(name)) this.#panels.set(name, new MediaPanel(this.#app, medium));
    return this.#panels.get(name);
  }

  #panel(name) {
    if (!this.#panels.has(name)) {
      const owner = {
        store: this.#app.store,
        ids: () => this.#app.selection.requested,
        look: () => this.#lookOf(name),
        keyOf: (run) => this.#keyOf(run),
        marks: (x) => (this.#state.marks ? this.#marks.over(x, this.#app.store) : []),
        onZoom: (zoom) => this.#zoomTo(zoom),
        onLines: (lines) => this.#noteLines(lines),
        onHighlight: (key, from) => this.#highlight(key, from),
        isText: () => this.#texts.has(name),
        buttons: (panel) => [
          this.#turn("pinned", "Pin", "Pin to the top", panel),
          this.#turn("wide", "Wide", "Full width", panel),
          button("Settings", "Settings of this chart", () => this.#edit(panel)),
        ],
      };
      const made = new ChartPanel(name, owner);
      made.zoomTo(this.#state.zoom);
      this.#panels.set(name, made);
    }
    const panel = this.#panels.get(name);
    panel.element.classList.toggle("wide", this.#state.wide.includes(name));
    this.observer.observe(panel.element);
    return panel;
  }

  #turn(list, text, title, panel) {
    const action = () => {
      const isOn = this.#state[list].includes(panel.name);
      this.#state[list] = isOn
        ? this.#state[list].filter((name) => name !== panel.name)
        : [...this.#state[list], panel.name];
      made.setAttribute("aria-pressed", String(!isOn));
      this.#keep();
      this.#showSections();
    };
    const made = button(text, title, action, { "aria-pressed": String(this.#state[list].includes(panel.name)) });
    return made;
  }

  #edit(panel) {
    const { own } = this.#state;
    const changed = (next) => {
      const before = this.#lookOf(panel.name);
      if (Object.keys(next).length) own.set(panel.name, next);
      else own.delete(panel.name);
      this.#keep();
      const after = this.#lookOf(panel.name);
      if (after.x !== before.x) panel.forget();
      if (after.x !== before.x || after.smoothing !== before.smoothing) panel.load();
      else panel.draw();
    };
    editChart(panel.name, own.get(panel.name) ?? {}, this.#choicesOfX(), changed);
  }

  #seen(entries) {
    for (const entry of entries) {
      const panel = this.#panels.get(entry.target.dataset.metric);
      if (!panel) continue;
      panel.isSeen = entry.isIntersecting;
      if (panel.isSeen && panel.isStale) panel.load();
      else if (panel.isSeen && panel.catchUp) {
        drawSoon(panel);
        panel.catchUp();
      }
    }
    const unseen = [...this.#panels.values()].filter((panel) => panel.isDrawn && !panel.isSeen);
    for (const panel of unseen.slice(0, Math.max(0, unseen.length - MAX_DRAWN))) panel.release();
  }

  #reload() {
    for (const panel of this.#panels.values()) panel.isStale = true;
    this.#loadStale();
  }

  /** Load the charts in view that are out of date. */
  #loadStale() {
    for (const panel of this.#panels.values())
      if (panel.isStale && panel.isSeen && panel.element.isConnected) panel.load();
  }

  #redraw() {
    for (const panel of this.#panels.values()) if (panel.isSeen && panel.draw) drawSoon(panel);
  }

  #highlight(key, from) {
    for (const panel of this.#panels.values()) if (panel !== from) panel.highlight?.(key);
  }

  #zoomTo(zoom) {
    this.#state.zoom = zoom;
    this.#keep();
    for (const panel of this.#panels.values()) panel.zoomTo?.(zoom);
  }

  #move(how) {
    const extents = [...this.#panels.values()].map((panel) => panel.isSeen && panel.extent).filter(Boolean);
    if (!extents.length) return;
    const isLog = this.#state.logX && this.#state.x !== "time";
    const lows = extents.map(([low]) => low).filter((low) => !isLog || low > 0);
    const extent = /** @type {[number, number]} */ ([Math.min(...lows), Math.max(...extents.map(([, high]) => high))]);
    this.#zoomTo(moved(this.#state.zoom, extent, how, isLog));
  }

  /** The legend: of groups, which many lines share; a run is named where it is pointed at. */
  #noteLines(lines) {
    const before = this.#lines.size;
    for (const line of lines) this.#lines.set(line.chip?.key ?? line.key, line.chip ?? line);
    if (this.#lines.size === before && this.legend.hasChildNodes()) return;
    const order = [...new Set([...this.#groups.keys.values()].map((key) => JSON.stringify(key)))];
    const placed = [...this.#lines].sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
    const shown = placed.slice(0, MAX_CHIPS).map(([, chip]) => chip);
    const more = this.#lines.size - shown.length;
    const rest = more > 0 && h("span", { class: "muted" }, `and ${plural(more, "group")} more`);
    fill(this.legend, this.grouping === "run" ? [] : [legendChips(shown), rest]);
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
