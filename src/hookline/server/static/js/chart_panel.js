// A metric in a panel: its chart, its buttons, and notes about values that are not shown.

import { LatestRequest, request } from "./api.js";
import { Chart } from "./chart.js";
import { fill, h, later } from "./dom.js";
import { whole } from "./format.js";
import { requestMetric, isDownsampled, linesOf, tableOf } from "./metric_lines.js";
import { textTable } from "./tables.js";

/** Of all lines of a chart: more would not be visible and slow down the page. */
const MAX_POINTS = 40_000;
/** In the list of a metric of texts. */
const MAX_TEXTS = 50;
/** Of a line in a file: the server's limit. */
const MAX_IN_FILE = 20_000;
/** How much more than the visible part is requested on each side, so lines continue there. */
const MARGIN = 0.25;

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
  isSeen = false;
  isStale = true;

  /**
   * @param {string} name of the metric
   * @param {{store: import("./run_store.js").RunStore, ids: () => string[], look: () => any, onZoom: (zoom: any) => void,
   *   onLines?: (lines: any[]) => void, buttons?: (panel: ChartPanel) => any[], isText?: () => boolean}} owner
   */
  constructor(name, owner) {
    this.name = name;
    this.owner = owner;
    this.note = h("span", { class: "note" });
    this.why = h("p", { class: "why", hidden: true });
    this.texts = h("div", {});
    this.host = h("div", { class: "chart", role: "img", "aria-label": `Chart of ${name}` });
    const actions = [
      ...(owner.buttons?.(this) ?? []),
      button("PNG", "Save as PNG", () => this.#savePicture()),
      button("CSV", "Save as CSV", () => this.#saveTable()),
    ];
    this.element = h(
      "article",
      { class: "panel", data: { metric: name } },
      h("header", {}, h("h3", { title: name }, name), this.note, h("span", { class: "actions" }, actions)),
      this.why,
      this.texts,
      this.host,
    );
  }

  /** Drop the data: it is over another x, or of other groups. */
  forget() {
    this.#found = this.#part = this.#partOf = this.#zoom = null;
    this.isStale = true;
    this.element.classList.add("old");
    for (const name of ["points", "inSight", "lines", "kind"]) delete this.element.dataset[name];
  }

  /** Load the points and draw them. */
  async load() {
    this.isStale = false;
    if (!this.owner.ids().length) return;
    try {
      const found = await this.#ask(this.#request, null, this.#width);
      if (found === null) return;
      this.#found = found;
      this.#partOf = null;
      this.#texts = this.owner.isText?.() ? await this.#askTexts() : null;
      this.draw();
      if (this.#zoom) await this.#refine();
    } catch (error) {
      this.#say(error.message);
    }
  }

  /** Draw the loaded points with the current settings. */
  draw() {
    if (!this.#found || !this.element.isConnected) return;
    const look = this.owner.look();
    const lines = this.#lines();
    this.element.classList.remove("old");
    this.host.hidden = false;
    this.#chart ??= new Chart(this.host, this.owner.onZoom);
    this.#chart.show(lines, { ...look, zoom: this.#zoom });
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
    this.draw();
    this.catchUp();
  }

  /** Load finer points of the visible part if they are missing and the panel is in view. */
  catchUp() {
    if (this.isSeen && this.#zoom && this.#partOf !== this.#zoom) this.#refineSoon();
  }

  destroy() {
    this.#request.cancel();
    this.#finer.cancel();
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

  #ask(question, part, maxPoints) {
    const { x, by, smoothing } = this.owner.look();
    return requestMetric(question, this.name, this.owner.ids(), { x, by, maxPoints, smoothing, part });
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
      this.#say(error.message);
    }
  }

  #lines() {
    return linesOf(this.#part ?? this.#found, this.owner.store);
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

  async #savePicture() {
    if (this.#chart) download(await this.#chart.png(this.name), `${this.name}.png`);
  }

  async #saveTable() {
    try {
      const { x, by } = this.owner.look();
      const how = { x, by, maxPoints: MAX_IN_FILE, part: this.#zoom }; // raw values, without smoothing
      const found = await requestMetric(new LatestRequest(), this.name, this.owner.ids(), how);
      downloadTable(tableOf(found, this.name, x, this.#zoom), `${this.name}.csv`);
    } catch (error) {
      this.#say(error.message);
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
