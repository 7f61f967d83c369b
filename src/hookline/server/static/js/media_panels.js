// Panels of the view of media: one for each name, with the media of several runs side by side at a step.

import { LatestRequest, NoAnswerError } from "./api.js";
import { failed, fill, h, toggle } from "./dom.js";
import { whole } from "./format.js";
import { HistogramChart, valueRange } from "./histogram_canvas.js";
import { Overlays, boxesOf, mediumFigure } from "./media_parts.js";
import { MediaTable } from "./media_table.js";
import { swatch } from "./tables.js";
import { colourOf } from "./theme.js";

const PER_RUN = 24;
/** The server's limit per request. */
const MOST_PER_RUN = 100;
/** How many runs are shown side by side. */
const MAX_RUNS = 8;

/** The panel of a name, which shows its kind of media at a step. */
export function panelFor(app, named, step) {
  if (named.type === "histogram") return new HistogramPanel(app, named, step);
  return named.type === "table" ? new TablePanel(app, named, step) : new StepPanel(app, named, step);
}

/** A panel, which loads its content while it is in sight. */
class Panel {
  isTable = false;
  #isVisible = false;
  #isStale = true;
  pending = new LatestRequest();

  constructor(app, named, step) {
    this.app = app;
    this.named = named;
    this.step = step;
    this.note = h("span", { class: "note" });
    this.actions = h("div", { class: "panel-tools" });
    this.body = h("div", { class: "media-body" }, h("p", { class: "muted" }, "Loading …"));
    const axis = named.axis === "train" ? "" : ` · ${named.axis}`;
    this.element = h(
      "article",
      { class: "panel media-panel", data: { name: named.name, type: named.type } },
      h("header", {}, h("h3", { title: named.name }, named.name), this.note, this.actions),
      this.body,
    );
    this.note.textContent = `${named.type}${axis}`;
  }

  destroy() {
    this.pending.cancel();
  }

  /** Request and show the content at the step; implemented by each kind. @returns {Promise<any>} */
  async load() {}

  setVisible(isVisible) {
    this.#isVisible = isVisible;
    if (isVisible && this.#isStale) this.refresh();
  }

  update(named, step) {
    const isNew = JSON.stringify(named) !== JSON.stringify(this.named);
    this.named = named;
    if (isNew || step !== this.step) this.setStep(step, isNew);
  }

  setStep(step, isNew = false) {
    if (step === this.step && !isNew) return;
    this.step = step;
    this.refresh();
  }

  async refresh() {
    this.#isStale = !this.#isVisible;
    if (!this.#isVisible) return;
    try {
      await this.load();
      this.element.dataset.loaded = String(this.step);
    } catch (error) {
      if (error instanceof NoAnswerError && this.element.dataset.loaded === String(this.step)) return;
      fill(this.body, failed(error, () => this.refresh()));
    }
  }

  get asked() {
    return { run: this.app.selection.requested, name: this.named.name, axis: this.named.axis };
  }

  /** Runs side by side: a heading for each, if there are several selected. */
  columns(parts) {
    const isSeveral = this.app.selection.ids.length > 1;
    const shown = parts.slice(0, MAX_RUNS);
    const columns = shown.map(({ run, step, elements, more }) =>
      h(
        "section",
        { class: "media-run", data: { run } },
        (isSeveral || step !== null) &&
          h(
            "h4",
            {},
            isSeveral && [swatch(colourOf(run)), h("span", { title: run }, this.app.store.nameOf(run))],
            step !== null && h("span", { class: "muted" }, `step ${whole(step)}`),
          ),
        h("div", { class: "media-items" }, elements),
        more,
      ),
    );
    const rest = parts.length - shown.length;
    return [
      h("div", { class: "media-runs" }, columns),
      rest > 0 && h("p", { class: "muted" }, `${whole(rest)} more runs are not shown.`),
    ];
  }
}

/** Media at a step. */
class StepPanel extends Panel {
  #overlays = new Overlays();
  #media = [];
  #totals = {};
  #limit = PER_RUN;

  async load() {
    const asked = { ...this.asked, type: this.named.type, step: this.step, limit: this.#limit };
    const page = await this.pending.get("media", asked);
    if (page) await this.#show(page);
  }

  async #show({ media, totals }) {
    this.#media = media;
    this.#totals = totals;
    this.#overlays.learn(media);
    const runs = Map.groupBy(media, ({ run }) => run);
    const parts = this.app.selection.ids
      .filter((id) => runs.has(id))
      .map((run) => {
        const own = runs.get(run);
        const rest = totals[run] - own.length;
        const grow = { type: "button", class: "small", onclick: () => this.#more() };
        const more = rest > 0 && (this.#limit < MOST_PER_RUN ? h("button", grow, `${whole(rest)} more`) : leftOut(rest));
        return { run, step: own[0].step, elements: own.map((medium) => mediumFigure(medium, this.#overlays)), more };
      });
    const nothing = () => h("p", { class: "muted" }, `Nothing up to step ${whole(this.step)}.`);
    const made = h("div", {}, parts.length ? this.columns(parts) : nothing());
    // The new pictures take the place of the old ones when they are decoded: the panel does not flicker.
    const ready = [...made.querySelectorAll(".picture, .fetched")].map((each) => each.ready);
    await Promise.race([Promise.all(ready), new Promise((resolve) => setTimeout(resolve, 500))]);
    fill(this.body, ...made.childNodes);
    this.#showTools();
  }

  #more() {
    this.#limit = MOST_PER_RUN;
    this.refresh();
  }

  #showTools() {
    const redraw = () => this.#show({ media: this.#media, totals: this.#totals });
    const masks = [...this.#overlays.masks].map(([name, on]) =>
      toggle(name, on, (isOn) => {
        this.#overlays.masks.set(name, isOn);
        redraw();
      }),
    );
    const hasBoxes = this.#media.some((medium) => boxesOf(medium).length > 0);
    fill(
      this.actions,
      hasBoxes &&
        toggle("boxes", this.#overlays.showsBoxes, (isOn) => {
          this.#overlays.showsBoxes = isOn;
          redraw();
        }),
      masks,
    );
  }
}

/** Histograms over the steps. */
class HistogramPanel extends Panel {
  #charts = [];
  /** @type {"ridge" | "heat"} */
  #look = "ridge";
  #histograms = [];

  destroy() {
    super.destroy();
    this.#charts.forEach((chart) => chart.destroy());
  }

  setStep(step, isNew = false) {
    if (isNew) this.refresh(); // they show all steps
  }

  async load() {
    this.#look = this.app.router.parameters.get("histograms") === "heat" ? "heat" : "ridge";
    const answer = await this.pending.get("media/histograms", this.asked);
    if (!answer) return;
    this.#histograms = answer.histograms;
    this.#show();
  }

  #show() {
    this.#charts.forEach((chart) => chart.destroy());
    this.#charts = [];
    const look = (name) =>
      h(
        "button",
        {
          type: "button",
          class: "small",
          "aria-pressed": String(this.#look === name),
          onclick: () => {
            this.#look = name;
            this.app.router.push({ histograms: name === "heat" ? name : null });
            this.#show();
          },
        },
        name === "heat" ? "heat map" : "ridges",
      );
    fill(this.actions, look("ridge"), look("heat"));
    if (!this.#histograms.length) return fill(this.body, h("p", { class: "muted" }, "No valid histograms."));
    const range = valueRange(this.#histograms);
    const runs = Map.groupBy(this.#histograms, ({ run }) => run);
    const parts = this.app.selection.ids
      .filter((id) => runs.has(id))
      .map((run) => {
        const chart = new HistogramChart(runs.get(run), range, this.#look, colourOf(run));
        this.#charts.push(chart);
        return { run, step: null, elements: chart.element, more: null };
      });
    fill(this.body, this.columns(parts));
  }
}

/** The object that a parameter of the address holds; an empty one if it holds none. */
function parsed(text) {
  try {
    return { ...JSON.parse(text ?? "{}") };
  } catch {
    return {};
  }
}

/** A table of one run; another run is one click away. */
class TablePanel extends Panel {
  isTable = true;
  #table = null;
  #run = "";

  destroy() {
    super.destroy();
    this.#table?.destroy();
  }

  setStep(step, isNew = false) {
    if (isNew) this.refresh(); // a table has its own choice of steps
  }

  async load() {
    const answer = await this.pending.get("tables", this.asked);
    if (!answer) return;
    const runs = Map.groupBy(answer.tables, ({ run }) => run);
    const known = this.app.selection.ids.filter((id) => runs.has(id));
    if (!known.length) return fill(this.body, h("p", { class: "muted" }, "No table."));
    const run = known.includes(this.#run) ? this.#run : known[0];
    if (this.#table && run === this.#run) this.#table.update(runs.get(run));
    else {
      this.#table?.destroy();
      this.#run = run;
      const parameter = `table.${this.named.axis}.${this.named.name}`;
      const { router } = this.app;
      const keep = (state) => router.set({ [parameter]: Object.keys(state).length ? JSON.stringify(state) : null });
      const asked = { run, name: this.named.name, axis: this.named.axis };
      this.#table = new MediaTable(asked, runs.get(run), parsed(router.parameters.get(parameter)), keep);
      fill(this.body, this.#table.element);
    }
    fill(this.actions, known.length > 1 && known.map((id) => this.#tab(id)));
  }

  #tab(run) {
    const pick = () => {
      this.#run = run;
      this.#table?.destroy();
      this.#table = null;
      this.refresh();
    };
    return h(
      "button",
      { type: "button", class: "small", "aria-pressed": String(run === this.#run), onclick: pick },
      swatch(colourOf(run)),
      this.app.store.nameOf(run),
    );
  }
}

function leftOut(count) {
  return h("p", { class: "muted" }, `${whole(count)} more are not shown.`);
}
