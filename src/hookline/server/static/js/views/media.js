// Media of the selected runs: one panel for each name, side by side for several runs at the same step.

import { LatestRequest, request } from "../api.js";
import { empty, failed, fill, h, later, throttled } from "../dom.js";
import { whole } from "../format.js";
import { panelFor } from "../media_panels.js";
import { RunList } from "../run_list.js";
import { MissingRuns, RunProblems } from "../run_status.js";
import { colourOf } from "../theme.js";

const MAX_PANELS = 200;
const ORDER = ["image", "video", "audio", "figure", "plot", "histogram", "table", "markdown", "text", "html", "file"];
const KINDS = new Map([
  ["image", "images"],
  ["video", "videos"],
  ["audio", "audio"],
  ["figure", "figures"],
  ["plot", "plots"],
  ["histogram", "histograms"],
  ["table", "tables"],
  ["markdown", "Markdown"],
  ["text", "texts"],
  ["html", "HTML"],
  ["file", "files"],
]);

export class MediaView {
  #app;
  #names = [];
  #steps = [];
  #at = -1; // the place in the steps; -1 follows the latest
  #find = "";
  #kind = "";
  #panels = new Map();
  #pending = new LatestRequest();
  #unsubscribe = [];
  #observer;

  constructor(app) {
    this.#app = app;
    this.#find = app.router.parameters.get("find") ?? "";
    this.#kind = app.router.parameters.get("kind") ?? "";
    this.list = new RunList(app, (run) => colourOf(run.id));
    this.problems = new RunProblems(app);
    this.missing = new MissingRuns(app);
    this.tools = h("form", { class: "toolbar", onsubmit: (event) => event.preventDefault() });
    this.slider = h("div", { class: "step-slider", hidden: true });
    this.kinds = h("div", { class: "chips" });
    this.board = h("div", { class: "media-board" }, empty("Loading media …"));
    this.element = h(
      "div",
      { class: "with-side" },
      this.list.element,
      h(
        "section",
        { class: "media-view" },
        this.missing.element,
        this.problems.element,
        h("div", { class: "media-head" }, this.tools, this.slider),
        this.kinds,
        this.board,
      ),
    );
    // Panels are filled when they come into sight: a run may have hundreds of names.
    this.#observer = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries)
          this.#panels.get(/** @type {HTMLElement} */ (target).dataset.key)?.setVisible(isIntersecting);
      },
      { rootMargin: "400px" },
    );
    const search = h("input", {
      type: "search",
      placeholder: "Find media",
      "aria-label": "Find media",
      value: this.#find,
      data: { find: "" },
      oninput: later(() => {
        this.#find = search.value.trim();
        app.router.set({ find: this.#find });
        this.#showPanels();
      }, 150),
    });
    fill(this.tools, search);
    const refresh = throttled(() => this.element.isConnected && this.#refresh(), 2000);
    this.#unsubscribe.push(
      app.store.listen((changed) => app.selection.ids.some((id) => changed.has(id)) && refresh()),
      app.selection.listen(() => this.#begin()),
    );
    this.#begin(Number(app.router.parameters.get("step") ?? NaN));
  }

  destroy() {
    for (const part of [this.list, this.problems, this.missing]) part.destroy();
    this.#unsubscribe.forEach((stop) => stop());
    this.#pending.cancel();
    this.#observer.disconnect();
    this.#clear();
  }

  press(event) {
    const step = { j: 1, k: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !this.#steps.length) return;
    event.preventDefault();
    this.#move((this.#at < 0 ? this.#steps.length - 1 : this.#at) + step);
  }

  #clear() {
    for (const panel of this.#panels.values()) panel.destroy();
    this.#panels.clear();
  }

  async #begin(step = NaN) {
    const run = this.#app.selection.requested;
    this.#clear();
    if (!run.length) return this.#showNothing("Select runs", "Their images, histograms, tables and files are shown here.");
    try {
      if (!(await this.#read(run))) return;
    } catch (error) {
      return this.#showInstead(failed(error, () => this.#begin(step), "Loading the media failed"));
    }
    const place = Number.isFinite(step) ? this.#steps.findLastIndex((each) => each <= step) : -1;
    this.#at = place < 0 || place === this.#steps.length - 1 ? -1 : place;
    this.#show();
  }

  async #read(run) {
    const [names, steps] = await Promise.all([this.#pending.get("media/names", { run }), request("media/steps", { run })]);
    if (!names) return false;
    this.#names = names.names.toSorted((a, b) => rank(a.type) - rank(b.type) || (a.name < b.name ? -1 : 1));
    this.#steps = steps.steps;
    return true;
  }

  /** Show what running runs have added. */
  async #refresh() {
    const before = this.#steps[this.#at];
    const known = JSON.stringify([this.#names, this.#steps]);
    try {
      if (!(await this.#read(this.#app.selection.requested))) return;
    } catch {
      return; // shown as not live
    }
    if (this.#at >= 0) this.#at = this.#steps.findLastIndex((step) => step <= before);
    const hasTable = this.#names.some(({ type }) => type === "table");
    if (known !== JSON.stringify([this.#names, this.#steps])) this.#show();
    else if (hasTable) for (const panel of this.#panels.values()) if (panel.isTable) panel.refresh();
  }

  #showNothing(title, text) {
    this.#showInstead(empty(title, text));
  }

  #showInstead(message) {
    this.slider.hidden = true;
    fill(this.kinds);
    fill(this.board, message);
  }

  #show() {
    if (!this.#names.length)
      return this.#showNothing(
        "No media yet",
        "Log them beside the numbers: run.log(samples=hl.Image(x), weights=hl.Histogram(w)).",
      );
    this.#showKinds();
    this.#showSlider();
    this.#showPanels();
  }

  #showKinds() {
    const types = Map.groupBy(this.#names, ({ type }) => type);
    if (!types.has(this.#kind)) this.#kind = "";
    const chip = (type, text, count) =>
      h(
        "button",
        {
          type: "button",
          class: "chip",
          "aria-pressed": String(this.#kind === type),
          onclick: () => {
            this.#kind = type;
            this.#app.router.push({ kind: type });
            this.#showKinds();
            this.#showPanels();
          },
        },
        text,
        h("b", {}, whole(count)),
      );
    fill(
      this.kinds,
      chip("", "all", this.#names.length),
      [...types].map(([type, own]) => chip(type, KINDS.get(type) ?? type, own.length)),
    );
  }

  get #step() {
    return this.#at < 0 ? this.#steps.at(-1) : this.#steps[this.#at];
  }

  #showSlider() {
    this.slider.hidden = this.#steps.length < 2;
    const last = this.#steps.length - 1;
    const place = this.#at < 0 ? last : this.#at;
    if (!this.range) {
      const slide = () => this.#move(Number(this.range.value));
      this.range = h("input", { type: "range", min: 0, "aria-label": "Step", oninput: slide });
      this.shown = h("output");
      const button = (text, label, by) => {
        const title = `${label} (${by < 0 ? "k" : "j"})`;
        const go = () => this.#move(Number(this.range.value) + by);
        return h("button", { type: "button", class: "icon", "aria-label": label, title, onclick: go }, text);
      };
      fill(
        this.slider,
        h("span", { class: "muted" }, "step"),
        button("‹", "Previous step", -1),
        this.range,
        button("›", "Next step", 1),
        this.shown,
      );
    }
    this.range.max = String(last);
    this.range.value = String(place);
    this.shown.textContent = this.#at < 0 ? `${whole(this.#step)} (latest)` : whole(this.#step);
    this.range.setAttribute("aria-valuetext", this.shown.textContent);
  }

  #move(place) {
    const last = this.#steps.length - 1;
    const next = Math.max(0, Math.min(last, place));
    this.#at = next === last ? -1 : next;
    this.#app.router.set({ step: this.#at < 0 ? "" : this.#steps[next] });
    this.#showSlider();
    this.#load();
  }

  #load = later(() => {
    for (const panel of this.#panels.values()) panel.setStep(this.#step);
  }, 60);

  #showPanels() {
    const wanted = this.#names.filter(
      ({ name, type }) => (!this.#kind || type === this.#kind) && name.toLowerCase().includes(this.#find.toLowerCase()),
    );
    const shown = wanted.slice(0, MAX_PANELS);
    const keys = new Set(shown.map(keyOf));
    for (const [key, panel] of this.#panels)
      if (!keys.has(key)) {
        this.#observer.unobserve(panel.element);
        panel.destroy();
        this.#panels.delete(key);
      }
    const elements = shown.map((each) => {
      const key = keyOf(each);
      let panel = this.#panels.get(key);
      if (panel) panel.update(each, this.#step);
      else {
        panel = panelFor(this.#app, each, this.#step);
        panel.element.dataset.key = key;
        this.#panels.set(key, panel);
        this.#observer.observe(panel.element);
      }
      return panel.element;
    });
    this.board.classList.toggle("several", this.#app.selection.ids.length > 1);
    const before = [...this.board.children];
    const isSame = elements.length === before.length && elements.every((each, at) => before[at] === each);
    if (isSame && elements.length) return;
    fill(
      this.board,
      elements,
      wanted.length > shown.length &&
        h("p", { class: "muted" }, `${whole(wanted.length - shown.length)} more: search by name.`),
      !wanted.length && empty("No media match", "Change the filter."),
    );
  }
}

function rank(type) {
  const place = ORDER.indexOf(type);
  return place < 0 ? ORDER.length : place;
}

function keyOf({ name, axis, type }) {
  return JSON.stringify([type, name, axis]);
}
