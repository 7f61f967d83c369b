// A metric in a frame: its chart, what can be done with it, and what is not shown of it.

import { Question, ask } from "./api.js";
import { Chart } from "./chart.js";
import { fill, h, later } from "./dom.js";
import { download, downloadTable } from "./download.js";
import { whole } from "./format.js";
import { askForMetric, isThinned, linesOf, tableOf } from "./metric_lines.js";
import { textTable } from "./text_list.js";

/** Of all lines of a chart together: more would not be seen, and would make the page slow. */
const MOST_POINTS = 40_000;
/** Of a metric that is text, in its list. */
const MOST_TEXTS = 50;
/** Of a line in a file: as many as the server gives. */
const MOST_IN_FILE = 20_000;
/** How much more than what is in sight is asked for at each side, so that lines go on there. */
const MARGIN = 0.25;

export class ChartPanel {
  #question = new Question();
  #finer = new Question();
  #chart = null;
  #found = null;
  /** The finer points of a part of x, and the zoom that they are for. */
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
   * @param {{book: import("./run_book.js").RunBook, ids: () => string[], look: () => any, onZoom: (zoom: any) => void,
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
      button("PNG", "Save as a picture", () => this.#savePicture()),
      button("CSV", "Save the points as a table", () => this.#saveTable()),
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

  /** Have nothing to draw until something else is read: what is there is over another x, or of other groups. */
  forget() {
    this.#found = this.#part = this.#partOf = this.#zoom = null;
    this.isStale = true;
    this.element.classList.add("old");
    for (const name of ["points", "inSight", "lines", "kind"]) delete this.element.dataset[name];
  }

  /** Ask for the points, and draw them. */
  async load() {
    this.isStale = false;
    if (!this.owner.ids().length) return;
    try {
      const found = await this.#ask(this.#question, null, this.#width);
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

  /** Draw what is there, as it is to look now. */
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

  /** Show a part of x; it is drawn with what is there, and then with the finer points of the part. */
  zoomTo(zoom) {
    this.#zoom = zoom;
    if (zoom === null) {
      this.#part = this.#partOf = null;
      this.#finer.cancel();
    }
    this.draw();
    this.catchUp();
  }

  /** Ask for the finer points of what is in sight, where they are not there; nobody waits for those out of sight. */
  catchUp() {
    if (this.isSeen && this.#zoom && this.#partOf !== this.#zoom) this.#refineSoon();
  }

  destroy() {
    this.#question.cancel();
    this.#finer.cancel();
    this.#chart?.destroy();
  }

  /** From where to where there is something to see; null where there is nothing. @returns {[number, number] | null} */
  get extent() {
    const drawn = (this.#found?.rows ?? []).filter((row) => row.x.length);
    if (!drawn.length) return null;
    return [Math.min(...drawn.map((row) => row.x[0])), Math.max(...drawn.map((row) => row.x[row.x.length - 1]))];
  }

  get #width() {
    return Math.round(Math.max(200, Math.min(this.host.clientWidth * 1.5, MOST_POINTS / this.owner.ids().length)));
  }

  #ask(question, part, maxPoints) {
    const { x, by, smoothing } = this.owner.look();
    return askForMetric(question, this.name, this.owner.ids(), { x, by, maxPoints, smoothing, part });
  }

  #showTexts() {
    const key = JSON.stringify(this.#texts);
    if (this.texts.dataset.key === key) return; // where somebody has scrolled to stays
    this.texts.dataset.key = key;
    fill(this.texts, this.#texts && textTable(this.#texts, (id) => this.owner.book.nameOf(id)));
  }

  async #askTexts() {
    const answer = await ask("texts", { run: this.owner.ids(), name: this.name, limit: MOST_TEXTS });
    return answer.texts.slice(0, MOST_TEXTS);
  }

  async #refine() {
    const zoom = this.#zoom;
    if (!zoom || !this.#found || !isThinned(this.#found)) return;
    const margin = (zoom[1] - zoom[0]) * MARGIN;
    const most = Math.min(MOST_IN_FILE, Math.round(this.#width * (1 + 2 * MARGIN)));
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

  /** The lines as finely as they are there. */
  #lines() {
    return linesOf(this.#part ?? this.#found, this.owner.book);
  }

  #notes(lines) {
    const notFinite = lines.reduce((sum, line) => sum + (line.row.not_finite ?? 0), 0);
    const notes = [];
    if (this.#chart.notAboveZero) notes.push(`${whole(this.#chart.notAboveZero)} not above 0`);
    if (this.#chart.outside) notes.push(`${whole(this.#chart.outside)} off scale`);
    if (notFinite) notes.push(`${whole(notFinite)} not finite`);
    return notes.join(" · ");
  }

  /** Why there is no chart, or no band; nothing where there is. */
  #explanation(lines, look) {
    const isThere = lines.some((line) => line.x.length);
    if (this.#chart.isEmpty) {
      if (this.#texts) return textCount(this.#texts);
      if (isThere && (look.logY || look.logX)) return "A log axis shows only values above 0. There are none.";
      return lines.some((line) => line.row.not_finite) ? "No value is finite." : "Nothing was recorded over this x.";
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
      const how = { x, by, maxPoints: MOST_IN_FILE, part: this.#zoom }; // what was recorded, without smoothing
      const found = await askForMetric(new Question(), this.name, this.owner.ids(), how);
      downloadTable(tableOf(found, this.name, x, this.#zoom), `${this.name}.csv`);
    } catch (error) {
      this.#say(error.message);
    }
  }
}

/** How many texts are listed, where there are more. */
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
