// Saved views of the table of runs: named addresses, kept in the browser. A view can be sent as a link as well.

import { fill, h } from "./dom.js";
import { recall, remember } from "./page_state.js";

const KEY = "views";
const MAX_NAME = 60;

/** @typedef {{name: string, address: string}} View */

export class SavedViews {
  #current;

  /** @param {() => string} current the address of what is shown now */
  constructor(current) {
    this.#current = current;
    this.list = h("ul", { class: "views" });
    this.name = h("input", { "aria-label": "Name of the view", placeholder: "Name of this view", maxlength: MAX_NAME, required: true });
    const form = h(
      "form",
      {
        class: "save-view",
        onsubmit: (event) => {
          event.preventDefault();
          this.#save(this.name.value.trim());
          this.name.value = "";
        },
      },
      this.name,
      h("button", {}, "Save"),
    );
    this.element = h("div", { class: "chooser" }, this.list, form);
    this.show();
  }

  /** @returns {View[]} */
  get #views() {
    const kept = recall(KEY, []);
    const isView = (each) => typeof each?.name === "string" && typeof each?.address === "string" && each.address.startsWith("#/runs");
    return Array.isArray(kept) ? kept.filter(isView) : [];
  }

  #keep(views) {
    remember(KEY, views);
    this.show();
  }

  #save(name) {
    if (!name) return;
    this.#keep([...this.#views.filter((each) => each.name !== name), { name, address: this.#current() }]);
  }

  #rename(view) {
    const field = h("input", { value: view.name, maxlength: MAX_NAME, required: true, "aria-label": `New name of ${view.name}` });
    const form = h(
      "form",
      {
        class: "save-view",
        onsubmit: (event) => {
          event.preventDefault();
          const name = field.value.trim();
          if (!name) return;
          const others = this.#views.filter((each) => each.name !== name || each.name === view.name);
          this.#keep(others.map((each) => (each.name === view.name ? { ...each, name } : each)));
        },
      },
      field,
      h("button", {}, "Rename"),
    );
    return form;
  }

  show() {
    const current = this.#current();
    const rows = this.#views.map((view) => {
      const row = h("li", { data: { view: view.name } });
      fill(
        row,
        h("a", { href: view.address, "aria-current": view.address === current ? "page" : null }, view.name),
        h(
          "button",
          { type: "button", class: "small", "aria-label": `Rename ${view.name}`, onclick: () => (fill(row, this.#rename(view)), row.querySelector("input").select()) },
          "Rename",
        ),
        h(
          "button",
          { type: "button", class: "small", "aria-label": `Delete the view ${view.name}`, onclick: () => this.#keep(this.#views.filter((each) => each.name !== view.name)) },
          "Delete",
        ),
      );
      return row;
    });
    fill(this.list, rows.length ? rows : h("li", { class: "muted" }, "No views are saved yet. They are kept in this browser."));
  }
}
