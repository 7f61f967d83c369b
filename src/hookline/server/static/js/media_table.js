// A recorded table: sorted, filtered and paged by the server, so that its length does not matter.

import { LatestRequest } from "./api.js";
import { empty, fill, h, later, select } from "./dom.js";
import { number, plural, whole } from "./format.js";
import { Overlays, mediumFigure } from "./media_parts.js";

const PAGE = 20;
/** The default settings of a table, unless the address has others. */
const DEFAULTS = { text: "", column: "", comparison: "contains", value: "", sort: "", order: "up", offset: 0 };
const COMPARISONS = ["contains", "=", "!=", "<", "<=", ">", ">="];

/** @typedef {{table: string, step: number, last_step: number, rows: number}} TableInfo */

export class MediaTable {
  #parameters;
  #tables;
  #offset;
  #sort;
  #order;
  #filter;
  #table;
  #changed;
  #page = new LatestRequest();
  #columns = [];

  /**
   * @param {{run: string, name: string, axis: string}} parameters
   * @param {TableInfo[]} tables by step
   * @param {Partial<typeof DEFAULTS> & {table?: string}} [state] filter, sorting, page and table, where they differ from the defaults
   * @param {(state: object) => void} [changed] is given them after each change
   */
  constructor(parameters, tables, state = {}, changed = () => {}) {
    this.#parameters = parameters;
    this.#tables = tables;
    const { text, column, comparison, value, sort, order, offset, table } = { ...DEFAULTS, ...state };
    this.#filter = { text, column, comparison, value };
    [this.#sort, this.#order, this.#offset] = [sort, order, offset];
    this.#table = table ?? this.#latest;
    this.#changed = changed;
    this.tools = h("form", { class: "toolbar filters", onsubmit: (event) => event.preventDefault() });
    this.body = h("div", { class: "scroll" }, h("p", { class: "muted" }, "Loading …"));
    this.foot = h("div", { class: "pager" });
    this.element = h("div", { class: "media-table" }, this.tools, this.body, this.foot);
    this.load();
  }

  destroy() {
    this.#page.cancel();
  }

  /** The table of the latest step, if there are several; otherwise all rows. */
  get #latest() {
    return this.#tables.length > 1 ? this.#tables.at(-1).table : "";
  }

  #keep() {
    const now = { ...this.#filter, sort: this.#sort, order: this.#order, offset: this.#offset };
    const differs = Object.entries(now).filter(([name, value]) => value !== DEFAULTS[name]);
    if (this.#table !== this.#latest) differs.push(["table", this.#table]);
    this.#changed(Object.fromEntries(differs));
  }

  /** Show rows that were added in the meantime. @param {TableInfo[]} tables */
  update(tables) {
    const isNew = tables.length !== this.#tables.length;
    const wasLatest = this.#table === this.#tables.at(-1)?.table;
    this.#tables = tables;
    if (isNew && wasLatest) this.#table = tables.at(-1).table;
    if (isNew) this.#showTools();
    this.load();
  }

  async load() {
    try {
      const parameters = { ...this.#parameters, ...this.#filter, table: this.#table, sort: this.#sort, order: this.#order };
      if (!parameters.column || parameters.value === "") parameters.column = parameters.value = "";
      const page = await this.#page.get("table", { ...parameters, limit: PAGE, offset: this.#offset });
      if (page) this.#show(page);
    } catch (error) {
      fill(this.body, empty("Loading the table failed", error.message));
    }
  }

  #find() {
    this.#offset = 0;
    this.#keep();
    this.load();
  }

  #showTools() {
    const set = (name) => (value) => {
      this.#filter[name] = value;
      if (name !== "comparison" || this.#filter.value !== "") this.#find();
    };
    const field = (name, label, attributes = {}) => {
      const input = h("input", {
        "aria-label": label,
        placeholder: label,
        value: this.#filter[name],
        oninput: later(() => set(name)(input.value), 250),
        ...attributes,
      });
      return input;
    };
    const steps = this.#tables.map((each) => [each.table, `step ${whole(each.step)} · ${plural(each.rows, "row")}`]);
    const columns = this.#columns.map((name) => [name, name.slice(0, 60)]);
    const pick = (table) => {
      this.#table = table;
      this.#find();
    };
    fill(
      this.tools,
      field("text", "Find in all cells", { type: "search" }),
      select("where", [["", "any column"], ...columns], this.#filter.column, set("column")),
      h(
        "span",
        { class: "pair" },
        h(
          "select",
          { "aria-label": "comparison", onchange: (event) => set("comparison")(event.target.value) },
          COMPARISONS.map((each) => h("option", { value: each, selected: each === this.#filter.comparison }, each)),
        ),
        field("value", "value"),
      ),
      this.#tables.length > 1 && select("table", [["", "all steps"], ...steps.reverse()], this.#table, pick),
    );
  }

  #show({ columns, total, rows }) {
    const isNew = columns.join("\0") !== this.#columns.join("\0");
    this.#columns = columns;
    if (isNew || !this.tools.children.length) this.#showTools();
    if (this.#offset >= total && this.#offset > 0) {
      this.#offset = Math.max(0, Math.floor((total - 1) / PAGE) * PAGE);
      return this.load();
    }
    const isNumeric = columns.map((_, at) => rows.some((row) => typeof row.cells[at] === "number"));
    const heads = columns.map((name, at) => this.#head(name, isNumeric[at]));
    const head = h("tr", {}, h("th", { scope: "col", class: "end" }, "step"), heads);
    const made = rows.map((row) =>
      h(
        "tr",
        {},
        h("td", { class: "end muted", title: `row ${whole(row.position)}` }, whole(row.step)),
        row.cells.map((cell, at) => this.#cell(cell, row, isNumeric[at])),
      ),
    );
    const isFiltered = this.#filter.text || this.#filter.value;
    fill(
      this.body,
      h("table", { class: "cells" }, h("thead", {}, head), h("tbody", {}, made)),
      !rows.length && h("p", { class: "muted" }, isFiltered ? "No row matches." : "This table has no rows yet."),
    );
    const last = Math.min(total, this.#offset + PAGE);
    const turn = (text, offset, isOff, label = null) => {
      const go = () => {
        this.#offset = Math.max(0, offset);
        this.#keep();
        this.load();
      };
      return h("button", { type: "button", disabled: isOff, "aria-label": label, onclick: go }, text);
    };
    const [isFirst, isLast] = [this.#offset === 0, last >= total];
    fill(
      this.foot,
      h("span", { class: "muted" }, total ? `${whole(this.#offset + 1)}–${whole(last)} of ${whole(total)}` : "0 rows"),
      total > PAGE && [
        turn("⇤", 0, isFirst, "First page"),
        turn("Previous", this.#offset - PAGE, isFirst),
        turn("Next", this.#offset + PAGE, isLast),
        turn("⇥", Math.floor((total - 1) / PAGE) * PAGE, isLast, "Last page"),
      ],
    );
  }

  #head(name, isNumber) {
    const isSorted = this.#sort === name;
    const turn = () => {
      // Up, down, and back to the recorded order. As it is now: the heading may be older than the last click.
      if (this.#sort !== name) [this.#sort, this.#order] = [name, "up"];
      else if (this.#order === "up") this.#order = "down";
      else [this.#sort, this.#order] = ["", "up"];
      this.#find();
    };
    const mark = isSorted ? (this.#order === "up" ? " ↑" : " ↓") : "";
    const sorted = isSorted ? (this.#order === "up" ? "ascending" : "descending") : null;
    return h(
      "th",
      { scope: "col", class: isNumber ? "end" : null, "aria-sort": sorted },
      h("button", { type: "button", class: "link", title: `Sort by ${name}`, onclick: turn }, name.slice(0, 80) + mark),
    );
  }

  #cell(cell, row, isNumber) {
    if (cell === null || cell === undefined) return h("td", { class: "muted" }, "");
    if (typeof cell === "object" && cell.media) {
      const { run, name } = this.#parameters;
      const unknown = { index: 0, size: 0, format: "", caption: "", blob: "", data: {} };
      const medium = { ...unknown, ...cell.media, run, name, step: row.step };
      return h("td", { class: "medium-cell" }, mediumFigure(medium, new Overlays()));
    }
    if (typeof cell.text === "string" && typeof cell.characters === "number")
      return h("td", { class: "long" }, `${cell.text} … (${whole(cell.characters)} characters)`);
    if (typeof cell === "object") return h("td", { class: "long" }, h("code", {}, JSON.stringify(cell)));
    if (typeof cell === "number") return h("td", { class: "end" }, number(cell));
    const text = String(cell);
    return h("td", { class: isNumber ? "end" : text.length > 40 ? "long" : null }, text);
  }
}
