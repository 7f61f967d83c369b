// A metric in a panel: its chart, its buttons, and notes about values that are not shown.

import { LatestRequest, request } from "./api.js";
import { Chart } from "./chart.js";
import { pngOf, svgOf } from "./chart_export.js";
import { MAX_RANGES } from "./chart_lines.js";
import { fill, h, later, retryButton } from "./dom.js";
import { whole } from "./format.js";
import { requestMetric, isDownsampled, linesOf, tableOf, withRuns } from "./metric_lines.js";
import { textTable } from "./tables.js";

/** Of all lines of a chart: more would not be visible and slow down the page. */
const MAX_POINTS = 16_000;
/** Of the raw values behind a smoothed line, if there are so many lines that only the highlighted one shows them. */
const RAW_POINTS = 200;
/** How long charts are drawn before the page is painted and reacts again, in milliseconds. */
const DRAW_MS = 9;
/** In the list of a metric of texts. */
const MAX_TEXTS = 50;
/** Of a line in a file: the server's limit. */
const MAX_IN_FILE = 20_000;
/** How much more than the visible part is requested on each side, so lines continue there. */
const MARGIN = 0.25;

const waiting = new Set();
let scheduled = 0;

/** Draw a panel in one of the next frames: many charts that are drawn in one would make the page stutter. */
export function drawSoon(panel) {
  waiting.add(panel);
  scheduled ||= requestAnimationFrame(drawSome);
}

function drawSome() {
  scheduled = 0;
  const end = performance.now() + DRAW_MS;
  for (const panel of waiting) {
    waiting.delete(panel);
    panel.draw();
    if (performance.now() > end) break;
  }
  if (waiting.size) scheduled = requestAnimationFrame(drawSome);
}

export class ChartPanel {
  #request = new LatestRequest();
  #finer = new LatestRequest();
  #chart = null;
  #found = null;
  /** The finer points of a part of x, and their zoom. */
  #part = null;
  #partOf = null;
  #zoom = null;
  /** The texts of a metric that has no numbers. */
  #texts = null;
  #refineSoon = later(() => this.#refine(), 150);
  /** The runs that changed since their lines were loaded, with a number that grows. @type {Map<string, number>} */
  #changed = new Map();
  #changes = 0;
  /** The settings on which the loaded lines depend, besides the records. */
  #loadedFor = "";
  isSeen = false;
  isStale = true;
  /** Settled when the last loading is over. @type {Promise<void>} */
  loaded = Promise.resolve();

  /**
   * @param {string} name of the metric
   * @param {{store: import("./run_store.js").RunStore, ids: () => string[], look: () => any, onZoom: (zoom: any) => void,
   *   keyOf?: (run: string) => (string | null)[] | null, onLines?: (lines: any[]) => void,
   *   onHighlight?: (key: string | null, panel: ChartPanel) => void, marks?: (x: string) => any[],
   *   buttons?: (panel: ChartPanel) => any[], isText?: () => boolean}} owner
   */
  constructor(name, owner) {
    this.name = name;
    this.owner = owner;
    this.note = h("span", { class: "note" });
    this.why = h("p", { class: "why", hidden: true });
    this.texts = h("div", {});
    this.title = h("h3", { title: name }, name);
    this.state = h("div", { class: "panel-state", role: "status" }, "Loading …");
    this.host = h("div", {
      class: "chart",
      role: "group",
      "aria-label": `Chart of ${name}: the arrow keys follow its curves`,
    });
    const actions = [
      ...(owner.buttons?.(this) ?? []),
      button("PNG", "Save as PNG", () => this.#savePicture("png")),
      button("SVG", "Save as SVG", () => this.#savePicture("svg")),
      button("CSV", "Save as CSV", () => this.#saveTable()),
    ];
    this.element = h(
      "article",
      { class: "panel", data: { metric: name } },
      h("header", {}, this.title, this.note, h("span", { class: "actions" }, actions)),
      this.why,
      this.state,
      this.texts,
      this.host,
    );
  }

  /** Drop the data: it is over another x, or of other groups. */
  forget() {
    this.#found = this.#part = this.#partOf = this.#zoom = null;
    this.#changed.clear();
    this.isStale = true;
    this.element.classList.add("old");
    this.#showState("Loading …");
    for (const name of ["points", "inSight", "lines", "kind"]) delete this.element.dataset[name];
  }

  /** Give back the memory of a panel that is out of sight: it is loaded again when it is seen. */
  release() {
    if (!this.#chart) return;
    this.#request.cancel();
    this.#finer.cancel();
    this.#chart.destroy();
    this.#chart = this.#found = this.#part = this.#partOf = null;
    this.isStale = true;
    this.#showState("Loading …");
  }

  get isDrawn() {
    return this.#chart !== null;
  }

  /** Highlight a line by its key. @param {string | null} key */
  highlight(key) {
    if (this.isSeen) this.#chart?.highlight(key);
  }

  /** Some runs have changed: their lines have to be loaded again. @param {Iterable<string>} ids */
  noteChanges(ids) {
    this.#changes += 1;
    for (const id of ids) this.#changed.set(id, this.#changes);
    this.isStale = true;
  }

  /** Load the points and draw them; if only some lines changed since the last time, only those. */
  load() {
    this.loaded = this.#load();
    return this.loaded;
  }

  async #load() {
    this.isStale = false;
    const ids = this.owner.ids();
    if (!ids.length) return;
    const { x, by, as, smoothing, smoother } = this.owner.look();
    const loadedFor = JSON.stringify([ids, x, by, as, smoothing, smoother, this.#width]);
    const isEach = by === "run" || as === "lines";
    const isSame = this.#found?.kind === "lines" && isEach && loadedFor === this.#loadedFor;
    const changed = ids.filter((id) => this.#changed.has(id));
    const isPart = isSame && changed.length > 0 && changed.length < ids.length;
    const [before, changes] = [this.#found, this.#changes];
    try {
      const found = await this.#ask(this.#request, null, this.#width, isPart ? changed : ids);
      if (found === null) return;
      this.#found = isPart ? withRuns(before, changed, found) : found;
      this.#loadedFor = loadedFor;
      // Those that changed while this request was under way stay.
      for (const [id, number] of this.#changed) if (number <= changes) this.#changed.delete(id);
      this.#partOf = null;
      this.#texts = this.owner.isText?.() ? await this.#askTexts() : null;
      this.draw();
      if (this.#zoom) await this.#refine();
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Say what went wrong; earlier lines stay. */
  #fail(error) {
    this.isStale = true;
    this.#showState(this.#found ? `${error.message} The lines are older.` : error.message, () => this.load());
  }

  /** @param {string} text @param {(() => void) | null} retry */
  #showState(text, retry = null) {
    fill(this.state, text, retry && retryButton(retry));
    this.state.hidden = !text;
    this.state.dataset.kind = retry ? "error" : "loading";
  }

  /** Draw the loaded points with the current settings. */
  draw() {
    if (!this.#found || !this.element.isConnected) return;
    const look = this.owner.look();
    const lines = this.#lines();
    const marks = this.owner.marks?.(look.x) ?? [];
    this.element.classList.remove("old");
    this.#showState("");
    this.title.textContent = look.title || this.name;
    this.host.hidden = false;
    this.#chart ??= new Chart(this.host, this.owner.onZoom, (key) => this.owner.onHighlight?.(key, this));
    this.#chart.show(lines, { ...look, zoom: this.#zoom }, marks);
    this.element.dataset.points = String(this.#chart.points);
    this.element.dataset.inSight = String(this.#chart.pointsInSight);
    this.element.dataset.lines = String(lines.length);
    this.element.dataset.kind = this.#found.kind;
    this.#say(this.#notes(lines));
    this.host.hidden = this.#chart.isEmpty;
    this.why.textContent = this.#explanation(lines, look);
    this.why.hidden = !this.why.textContent;
    this.#showTexts();
    this.owner.onLines?.(lines);
  }

  /** Show a part of x: first with the loaded points, then with finer ones. */
  zoomTo(zoom) {
    this.#zoom = zoom;
    if (zoom === null) {
      this.#part = this.#partOf = null;
      this.#finer.cancel();
    }
    drawSoon(this);
    this.catchUp();
  }

  /** Load finer points of the visible part if they are missing and the panel is in view. */
  catchUp() {
    if (this.isSeen && this.#zoom && this.#partOf !== this.#zoom) this.#refineSoon();
  }

  destroy() {
    this.#request.cancel();
    this.#finer.cancel();
    waiting.delete(this);
    this.#chart?.destroy();
  }

  /** The range of x with data; null if there is none. @returns {[number, number] | null} */
  get extent() {
    const drawn = (this.#found?.rows ?? []).filter((row) => row.x.length);
    if (!drawn.length) return null;
    return [Math.min(...drawn.map((row) => row.x[0])), Math.max(...drawn.map((row) => row.x[row.x.length - 1]))];
  }

  get #width() {
    return Math.round(Math.max(200, Math.min(this.host.clientWidth * 1.5, MAX_POINTS / this.owner.ids().length)));
  }

  #ask(question, part, maxPoints, ids = this.owner.ids()) {
    const { x, by, as, smoothing, smoother, raw } = this.owner.look();
    const hasFew = this.owner.ids().length <= MAX_RANGES || raw === "line";
    const rawPoints = hasFew ? maxPoints : Math.min(maxPoints, RAW_POINTS);
    return requestMetric(question, this.name, ids, { x, by, as, maxPoints, rawPoints, smoothing, smoother, part });
  }

  #showTexts() {
    const key = JSON.stringify(this.#texts);
    if (this.texts.dataset.key === key) return; // keeps the scroll position
    this.texts.dataset.key = key;
    fill(this.texts, this.#texts && textTable(this.#texts, (id) => this.owner.store.nameOf(id)));
  }

  async #askTexts() {
    const answer = await request("texts", { run: this.owner.ids(), name: this.name, limit: MAX_TEXTS });
    return answer.texts.slice(0, MAX_TEXTS);
  }

  async #refine() {
    const zoom = this.#zoom;
    if (!zoom || !this.#found || !isDownsampled(this.#found)) return;
    const margin = (zoom[1] - zoom[0]) * MARGIN;
    const most = Math.min(MAX_IN_FILE, Math.round(this.#width * (1 + 2 * MARGIN)));
    try {
      const part = await this.#ask(this.#finer, [zoom[0] - margin, zoom[1] + margin], most);
      if (part === null || this.#zoom !== zoom) return;
      this.#part = part;
      this.#partOf = zoom;
      this.draw();
    } catch (error) {
      this.#fail(error);
    }
  }

  #lines() {
    return linesOf(this.#part ?? this.#found, this.owner.store, (run) => this.owner.keyOf?.(run) ?? null);
  }

  #notes(lines) {
    const notFinite = lines.reduce((sum, line) => sum + (line.row.not_finite ?? 0), 0);
    const notes = [];
    if (this.#chart.notAboveZero) notes.push(`${whole(this.#chart.notAboveZero)} not above 0`);
    if (this.#chart.outside) notes.push(`${whole(this.#chart.outside)} off scale`);
    if (notFinite) notes.push(`${whole(notFinite)} not finite`);
    return notes.join(" · ");
  }

  /** Why there is no chart or no band; empty if there is. */
  #explanation(lines, look) {
    const isThere = lines.some((line) => line.x.length);
    if (this.#chart.isEmpty) {
      if (this.#texts) return textCount(this.#texts);
      if (isThere && (look.logY || look.logX)) return "A log axis shows only values above 0; there are none.";
      return lines.some((line) => line.row.not_finite) ? "No value is finite." : "Nothing is recorded over this x.";
    }
    return this.#found.problem ? `No band: ${this.#found.problem}.` : "";
  }

  #say(text) {
    this.note.textContent = text;
  }

  /** @param {"png" | "svg"} format */
  async #savePicture(format) {
    if (!this.#chart) return;
    const title = this.owner.look().title || this.name;
    download(format === "png" ? await pngOf(this.#chart, title) : svgOf(this.#chart, title), `${title}.${format}`);
  }

  async #saveTable() {
    try {
      const { x, by, as } = this.owner.look();
      const how = { x, by, as, maxPoints: MAX_IN_FILE, part: this.#zoom }; // raw values, without smoothing
      const found = await requestMetric(new LatestRequest(), this.name, this.owner.ids(), how);
      downloadTable(tableOf(found, this.name, x, this.#zoom), `${this.name}.csv`);
    } catch (error) {
      this.#fail(error);
    }
  }
}

/** How many texts are listed, if there are more. */
function textCount(texts) {
  const metrics = new Map(texts.map((each) => [JSON.stringify([each.run, each.axis]), each.total]));
  const recorded = [...metrics.values()].reduce((sum, count) => sum + count, 0);
  return recorded > texts.length ? `The latest ${whole(texts.length)} texts` : "";
}

export function button(text, title, action, attributes = {}) {
  return h(
    "button",
    { type: "button", class: "small", title, "aria-label": title, onclick: action, ...attributes },
    text,
  );
}

/** @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name.replace(/[^\w.-]+/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** @param {unknown[][]} rows @param {string} name */
export function downloadTable(rows, name) {
  download(new Blob([rows.map((row) => row.map(cell).join(",")).join("\r\n")], { type: "text/csv" }), name);
}

/** A CSV cell; a text that a spreadsheet would run as a formula is escaped. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
