// Chooses the columns of the table of runs and their order: from attributes, settings, the summary and metrics.

import { fill, focusKey, focusedKey, h, later } from "./dom.js";
import { plural } from "./format.js";

const MAX_LISTED = 100;
export const MAX_COLUMNS = 60;
const KINDS = [
  ["attribute", "Attributes"],
  ["config", "Settings"],
  ["metric", "Metrics"],
  ["summary", "Summary"],
];
const STATISTICS = ["last", "min", "max", "mean"];

export class ColumnChooser {
  #fields = [];
  #columns = [];
  #changed;
  #latest = 100;

  /** @param {(columns: string[]) => void} changed called with no columns for the default ones */
  constructor(changed) {
    this.#changed = changed;
    this.search = h("input", {
      type: "search",
      placeholder: "Find settings, metrics, attributes",
      "aria-label": "Find columns",
      oninput: later(() => this.show(), 100),
    });
    this.chosen = h("ol", { class: "chosen-columns", "aria-label": "Columns shown" });
    this.offered = h("div", { class: "offered-columns" });
    const latest = h("input", {
      type: "number",
      min: 1,
      value: this.#latest,
      "aria-label": "How many of the last values mean(…, n) uses",
      onchange: () => {
        this.#latest = Math.max(1, Math.floor(Number(latest.value)) || 100);
        this.show();
      },
    });
    this.element = h(
      "div",
      { class: "chooser" },
      h("div", { class: "chooser-head" }, h("b", {}, "Columns"), h("button", { type: "button", onclick: () => this.#changed([]) }, "Reset")),
      this.chosen,
      h("div", { class: "chooser-find" }, this.search, h("label", {}, "n ", latest)),
      this.offered,
    );
  }

  /** @param {any[]} fields @param {string[]} columns */
  know(fields, columns) {
    [this.#fields, this.#columns] = [fields, columns];
    this.show();
  }

  show() {
    const focused = focusedKey(this.element);
    fill(this.chosen, this.#columns.map((name, place) => this.#chosen(name, place)));
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.#fields.filter((each) => words.every((word) => each.field.toLowerCase().includes(word)));
    // Settings that are the same in all runs come last.
    found.sort((a, b) => Number(b.varies) - Number(a.varies) || b.runs - a.runs);
    const listed = found.slice(0, MAX_LISTED);
    fill(
      this.offered,
      KINDS.map(([kind, title]) => {
        const own = listed.filter((each) => each.kind === kind);
        return own.length > 0 && h("fieldset", {}, h("legend", {}, title), own.map((each) => this.#offered(each)));
      }),
      found.length > listed.length && h("p", { class: "muted" }, `${plural(found.length - listed.length, "more field")}: search by name.`),
      !found.length && h("p", { class: "muted" }, "No field has this name."),
    );
    focusKey(this.element, focused);
  }

  #chosen(name, place) {
    const move = (by, arrow, direction) =>
      h(
        "button",
        {
          type: "button",
          class: "small",
          "aria-label": `Move ${name} ${direction}`,
          data: { key: `${direction} ${name}` },
          disabled: place + by < 0 || place + by >= this.#columns.length,
          onclick: () => {
            const columns = [...this.#columns];
            [columns[place], columns[place + by]] = [columns[place + by], columns[place]];
            this.#changed(columns);
          },
        },
        arrow,
      );
    const remove = () => this.#changed(this.#columns.filter((each) => each !== name));
    return h(
      "li",
      {},
      h("span", { title: name }, name),
      move(-1, "↑", "up"),
      move(1, "↓", "down"),
      h("button", { type: "button", class: "small", "aria-label": `Remove ${name}`, disabled: this.#columns.length < 2, onclick: remove }, "×"),
    );
  }

  #offered({ field, kind, runs }) {
    const names = kind === "metric" ? [...STATISTICS.map((each) => `${each}(${field})`), `mean(${field}, ${this.#latest})`] : [];
    return h(
      "div",
      { class: "offered" },
      this.#box(field, field, plural(runs, "run")),
      names.length > 0 && h("span", { class: "statistics" }, names.slice(1).map((name) => this.#box(name, name.replace(field, "").replace("(, ", " (").replace("()", ""), ""))),
    );
  }

  #box(name, label, hint) {
    const box = h("input", {
      type: "checkbox",
      checked: this.#columns.includes(name),
      disabled: !this.#columns.includes(name) && this.#columns.length >= MAX_COLUMNS,
      "aria-label": name,
      data: { key: name },
      onchange: () => {
        const others = this.#columns.filter((each) => each !== name);
        this.#changed(box.checked ? [...others, name] : others.length ? others : this.#columns);
      },
    });
    return h("label", {}, box, h("span", { title: name }, label), hint && h("small", {}, hint));
  }
}
