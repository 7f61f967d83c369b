// A field for a filter: completes names, operators and values, and marks an error at its place while it is typed.

import { LatestRequest } from "./api.js";
import { fill, h, later } from "./dom.js";
import { plural } from "./format.js";
import { asFilter, completionAt } from "./filter_words.js";

const CHECK_MS = 200;
const MAX_OPTIONS = 12;
const OPERATORS = [
  ["=", "equal"],
  ["!=", "not equal"],
  ["<", "less"],
  ["<=", "at most"],
  [">", "more"],
  [">=", "at least"],
  ["~", "matches a regular expression"],
  ["contains", "contains a text"],
  ["in (", "one of several"],
  ["is nan", "is not a number"],
  ["is missing", "has no value"],
];

export class FilterBox {
  #fields = [];
  #functions = [];
  #changed;
  #options = [];
  #active = -1;
  #checks = new LatestRequest();
  #values = new LatestRequest();
  #check = later(() => this.check(), CHECK_MS);

  /** @param {string} where @param {(where: string) => void} changed called with each filter that is valid */
  constructor(where, changed) {
    this.#changed = changed;
    this.problem = h("p", { class: "filter-problem", id: "filter-problem", role: "alert", hidden: true });
    this.mirror = h("div", { class: "filter-mirror", "aria-hidden": "true" });
    this.list = h("ul", { class: "options", id: "filter-options", role: "listbox", "aria-label": "Completions", hidden: true });
    this.input = h("input", {
      type: "search",
      value: where,
      placeholder: 'Filter: lr > 1e-4 and val/loss < 1.5 and tag = "ablation", or words',
      "aria-label": "Filter runs",
      "aria-describedby": "filter-problem",
      role: "combobox",
      "aria-expanded": "false",
      "aria-controls": "filter-options",
      "aria-autocomplete": "list",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      data: { find: "" },
      oninput: () => this.#typed(),
      onclick: () => this.input.value && this.#complete(),
      onscroll: () => (this.mirror.scrollLeft = this.input.scrollLeft),
      onkeydown: (event) => this.#press(event),
      onblur: () => this.#close(),
    });
    this.element = h("div", { class: "filter-box" }, this.mirror, this.input, this.problem, this.list);
  }

  destroy() {
    this.#checks.cancel();
    this.#values.cancel();
  }

  /** The names that are completed. @param {{fields: any[], functions: string[]}} known */
  know({ fields, functions }) {
    [this.#fields, this.#functions] = [fields, functions];
  }

  /** Show a filter that was changed elsewhere. @param {string} where */
  show(where) {
    if (asFilter(this.input.value) !== where) this.input.value = where;
    this.#mark(null);
  }

  /** Show a problem and its position. @param {string | null} problem @param {number} [position] */
  #mark(problem, position = 0) {
    this.problem.hidden = problem === null;
    this.problem.textContent = problem ?? "";
    this.input.setAttribute("aria-invalid", String(problem !== null));
    if (problem === null) {
      fill(this.mirror);
      return;
    }
    const text = [...this.input.value];
    const word = /^[\w./:@`"'-]+/u.exec(text.slice(position).join(""))?.[0] ?? text[position] ?? "\u00a0";
    fill(this.mirror, text.slice(0, position).join(""), h("mark", {}, word), text.slice(position + [...word].length).join(""));
    this.mirror.scrollLeft = this.input.scrollLeft;
  }

  #typed() {
    fill(this.mirror);
    this.#check();
    this.#complete();
  }

  /** Check the typed filter; a valid one is applied at once. */
  async check() {
    const text = this.input.value;
    const where = asFilter(text);
    if (where && where === text.trim()) {
      try {
        const found = await this.#checks.get("filter_check", { where: text });
        if (!found) return;
        this.#mark(found.problem, found.position);
        if (found.problem !== null) return;
      } catch (error) {
        this.#mark(error.message);
        return;
      }
    } else {
      this.#checks.cancel();
      this.#mark(null);
    }
    this.#changed(where);
  }

  async #complete() {
    const caret = this.input.selectionStart ?? this.input.value.length;
    const { kind, prefix, field } = completionAt(this.input.value.slice(0, caret), this.#functions);
    if (kind !== "value") this.#values.cancel(); // an answer for earlier text must not replace these
    const options = kind === "value" ? await this.#valuesOf(field, prefix) : this.#wordsFor(kind, prefix);
    if (options === null || document.activeElement !== this.input) return;
    this.#options = options.slice(0, MAX_OPTIONS).map(([text, hint]) => ({ text, hint, from: caret - prefix.length, to: caret }));
    this.#active = -1;
    this.#showOptions();
  }

  /** @returns {string[][]} texts with hints */
  #wordsFor(kind, prefix) {
    const wanted = prefix.toLowerCase();
    const begins = ([text]) => Number(!text.replaceAll("`", "").toLowerCase().startsWith(wanted));
    const matching = (options) =>
      options.filter(([text]) => text.toLowerCase().includes(wanted) && text !== prefix).sort((a, b) => begins(a) - begins(b));
    const named = (fields) => fields.map((each) => [each.field, each.kind === "attribute" ? "" : `${each.kind} · ${plural(each.runs, "run")}`]);
    if (kind === "name" && wanted) return matching([...named(this.#fields), ...this.#functions.map((name) => [`${name}(`, "of a metric"]), ["not", ""]]);
    if (kind === "metric") return matching(named(this.#fields.filter((each) => each.kind === "metric")));
    if (kind === "operator") return matching(OPERATORS);
    if (kind === "state") return matching([["nan", ""], ["missing", ""], ["not", ""]]);
    if (kind === "joint") return matching([["and", ""], ["or", ""]]);
    return [];
  }

  async #valuesOf(field, prefix) {
    try {
      const found = await this.#values.get("field_values", { field, find: prefix.replace(/^["']/, "") });
      return found && found.values.map(([value, runs]) => [written(value), plural(runs, "run")]);
    } catch {
      return []; // what is wrong with the field is shown by the check
    }
  }

  #showOptions() {
    const isOpen = this.#options.length > 0;
    this.list.hidden = !isOpen;
    this.input.setAttribute("aria-expanded", String(isOpen));
    const active = this.#options[this.#active] ? `filter-option-${this.#active}` : "";
    this.input.setAttribute("aria-activedescendant", active);
    const rows = this.#options.map((option, place) =>
      h(
        "li",
        {
          id: `filter-option-${place}`,
          role: "option",
          "aria-selected": String(place === this.#active),
          onmousedown: (event) => (event.preventDefault(), this.#accept(option)),
        },
        h("span", {}, option.text),
        option.hint && h("small", {}, option.hint),
      ),
    );
    fill(this.list, rows);
  }

  #accept({ text, from, to }) {
    const after = this.input.value.slice(to);
    const inserted = text.endsWith("(") || after.startsWith(" ") ? text : `${text} `;
    this.input.value = this.input.value.slice(0, from) + inserted + after;
    this.input.selectionStart = this.input.selectionEnd = from + inserted.length;
    this.#typed();
  }

  #close() {
    this.#options = [];
    this.#showOptions();
  }

  #press(event) {
    const count = this.#options.length;
    if (event.key === "Escape" && count) {
      event.preventDefault(); // which would empty the field
      this.#close();
    } else if (event.key === "ArrowDown" && !count) this.#complete();
    else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && count) {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.#active = this.#active < 0 ? (step > 0 ? 0 : count - 1) : (this.#active + step + count) % count;
      this.#showOptions();
    } else if ((event.key === "Enter" || event.key === "Tab") && this.#active >= 0) {
      event.preventDefault();
      this.#accept(this.#options[this.#active]);
    } else if (event.key === "Enter") {
      this.#close();
      this.check();
    }
  }
}

/** A value as a filter names it. @param {unknown} value */
function written(value) {
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  return /^[A-Za-z_]\w*$/.test(String(value)) ? String(value) : `"${String(value).replace(/(["\\])/g, "\\$1")}"`;
}
