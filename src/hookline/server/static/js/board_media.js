// Histograms and other media between the charts: one panel for each name, with the latest of the first runs.

import { LatestRequest, NoAnswerError } from "./api.js";
import { empty, failed, fill, h } from "./dom.js";
import { whole } from "./format.js";
import { HistogramChart, valueRange } from "./histogram_canvas.js";
import { Overlays, mediumFigure } from "./media_parts.js";
import { address } from "./page_state.js";
import { swatch } from "./tables.js";
import { colourOf } from "./theme.js";

/** How many runs a panel shows; the view of media shows more. */
const MAX_RUNS = 4;
const PER_RUN = 2;
const MAX_STEPS = 40;
/** Tables need more room than a chart has. */
const LEFT_OUT = ["table"];

/** @typedef {{name: string, axis: string, type: string, last_step: number}} MediaName */

/** The names that can be shown between charts. @param {MediaName[]} names */
export function shownMedia(names) {
  return names.filter(({ type }) => !LEFT_OUT.includes(type));
}

/** The name of a medium's panel, which no metric has. @param {MediaName} medium */
export function panelName({ type, name, axis }) {
  return `${type} ${name} ${axis}`;
}

export class MediaPanel {
  #request = new LatestRequest();
  #app;
  #medium;
  #charts = [];
  isSeen = false;
  isStale = true;
  isDrawn = false;

  /** @param {any} app @param {MediaName} medium */
  constructor(app, medium) {
    this.#app = app;
    this.#medium = medium;
    this.name = panelName(medium);
    this.body = h("div", { class: "media-inline" }, h("p", { class: "muted" }, "Loading …"));
    this.link = h("a", { class: "button small" }, "Open");
    const title = medium.axis === "train" ? medium.name : `${medium.name} · ${medium.axis}`;
    this.element = h(
      "article",
      { class: "panel", data: { metric: this.name, media: medium.type } },
      h("header", {}, h("h3", { title }, title), h("span", { class: "note" }, medium.type), this.link),
      this.body,
    );
  }

  async load() {
    this.isStale = false;
    const { name, axis, type } = this.#medium;
    const ids = this.#app.selection.requested;
    const runs = ids.slice(0, MAX_RUNS);
    this.link.href = address("media", new URLSearchParams([...ids.map((id) => ["run", id]), ["find", name]]));
    try {
      const isHistogram = type === "histogram";
      const asked = { run: runs, name, axis };
      const answer = isHistogram
        ? await this.#request.get("media/histograms", { ...asked, max_steps: MAX_STEPS })
        : await this.#request.get("media", { ...asked, type, limit: PER_RUN });
      if (!answer) return;
      this.release();
      this.isDrawn = true;
      this.isStale = false;
      const rows = isHistogram ? answer.histograms : answer.media;
      if (!rows.length) return void fill(this.body, empty("Nothing here", "The first selected runs have none."));
      const byRun = Map.groupBy(rows, (row) => row.run);
      const range = isHistogram && valueRange(rows);
      fill(
        this.body,
        [...byRun].map(([run, own]) =>
          h(
            "section",
            {},
            h("p", { class: "muted" }, swatch(colourOf(run)), ` ${this.#app.store.nameOf(run)} · step ${whole(own.at(-1).step)}`),
            isHistogram ? this.#histogram(own, range, run) : own.map((each) => mediumFigure(each, new Overlays())),
          ),
        ),
      );
    } catch (error) {
      this.isStale = true;
      if (error instanceof NoAnswerError && this.isDrawn) return;
      fill(this.body, failed(error, () => this.load()));
    }
  }

  #histogram(histograms, range, run) {
    const chart = new HistogramChart(histograms, range, "ridge", colourOf(run));
    this.#charts.push(chart);
    return chart.element;
  }

  /** Give back the memory of a panel that is out of sight. */
  release() {
    this.#charts.forEach((chart) => chart.destroy());
    this.#charts = [];
    fill(this.body, h("p", { class: "muted" }, "Loading …"));
    this.isDrawn = false;
    this.isStale = true;
  }

  destroy() {
    this.#request.cancel();
    this.#charts.forEach((chart) => chart.destroy());
  }
}
