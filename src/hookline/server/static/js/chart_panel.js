// A metric in a frame: its chart, what can be done with it, and what is not shown of it.

import { Question } from "./api.js";
import { Chart } from "./chart.js";
import { h } from "./dom.js";
import { download, downloadTable } from "./download.js";
import { whole } from "./format.js";
import { askForMetric, linesOf, tableOf } from "./metric_lines.js";

/** Of all lines of a chart together: more would not be seen, and would make the page slow. */
const MOST_POINTS = 40_000;

export class ChartPanel {
  #question = new Question();
  #chart = null;
  #found = null;
  #zoom = null;
  isSeen = false;
  isStale = true;

  /**
   * @param {string} name of the metric
   * @param {{book: import("./run_book.js").RunBook, ids: () => string[], look: () => any, onZoom: (zoom: any) => void,
   *   onLines?: (lines: any[]) => void, buttons?: (panel: ChartPanel) => any[]}} owner
   */
  constructor(name, owner) {
    this.name = name;
    this.owner = owner;
    this.note = h("span", { class: "note" });
    this.host = h("div", { class: "chart", role: "img", "aria-label": `Chart of ${name}` });
    const actions = [
      ...(owner.buttons?.(this) ?? []),
      button("PNG", "Save as a picture", () => this.#savePicture()),
      button("CSV", "Save the points as a table", () =>
        downloadTable(tableOf(this.#found, name, owner.look().x), `${name}.csv`),
      ),
    ];
    this.element = h(
      "article",
      { class: "panel", data: { metric: name } },
      h("header", {}, h("h3", { title: name }, name), this.note, h("span", { class: "actions" }, actions)),
      this.host,
    );
  }

  /** Ask for the points, and draw them. */
  async load() {
    const ids = this.owner.ids();
    const look = this.owner.look();
    this.isStale = false;
    if (!ids.length) return;
    try {
      const maxPoints = Math.round(Math.max(200, Math.min(this.host.clientWidth * 1.5, MOST_POINTS / ids.length)));
      const found = await askForMetric(this.#question, this.name, ids, { x: look.x, by: look.by, maxPoints });
      if (found === null) return;
      this.#found = found;
      this.draw();
    } catch (error) {
      this.note.textContent = error.message;
    }
  }

  /** Draw what is there, as it is to look now. */
  draw() {
    if (!this.#found || !this.element.isConnected) return;
    const look = this.owner.look();
    const lines = linesOf(this.#found, this.owner.book, look.x);
    this.#chart ??= new Chart(this.host, this.owner.onZoom);
    this.#chart.show(lines, { ...look, zoom: this.#zoom });
    this.element.dataset.points = String(this.#chart.points);
    this.element.dataset.lines = String(lines.length);
    this.element.dataset.kind = this.#found.kind;
    this.note.textContent = this.#notes(lines);
    this.owner.onLines?.(lines);
  }

  /** @param {[number, number] | null} zoom */
  zoomTo(zoom) {
    this.#zoom = zoom;
    this.draw();
  }

  destroy() {
    this.#question.cancel();
    this.#chart?.destroy();
  }

  #notes(lines) {
    const notFinite = lines.reduce((sum, line) => sum + (line.row.not_finite ?? 0), 0);
    const notes = [];
    if (!lines.length) notes.push("nothing recorded over this x");
    if (this.#chart.outside) notes.push(`${whole(this.#chart.outside)} off scale`);
    if (notFinite) notes.push(`${whole(notFinite)} not finite`);
    return notes.join(" · ");
  }

  async #savePicture() {
    if (this.#chart) download(await this.#chart.png(this.name), `${this.name}.png`);
  }
}

export function button(text, title, action, attributes = {}) {
  return h(
    "button",
    { type: "button", class: "small", title, "aria-label": title, onclick: action, ...attributes },
    text,
  );
}
