// The table of runs: filtered, sorted, grouped and paged by the server, updated live. Its whole state is in the address.

import { LatestRequest, request } from "../api.js";
import { ColumnChooser } from "../column_chooser.js";
import { empty, failed, fill, h, menu, select, throttled } from "../dom.js";
import { FilterBox } from "../filter_box.js";
import { conjuncts, joined } from "../filter_words.js";
import { plural, whole } from "../format.js";
import { address } from "../page_state.js";
import { permissions } from "../post.js";
import { editRuns, showProblems } from "../run_actions.js";
import { PROGRESS, columnWidth, groupCell, isRightAligned, runCell } from "../run_cells.js";
import { RunRows } from "../run_rows.js";
import { statusBadge } from "../run_status.js";
import { shortName } from "../run_store.js";
import { SavedViews } from "../saved_views.js";
import { changeButtons, selectionLinks, tick } from "../selected_runs.js";
import { VirtualRows } from "../virtual_rows.js";

const STATUSES = ["running", "stalled", "finished", "stopped", "failed", "killed"];
const ROW_HEIGHT = 34;
const REFRESH_MS = 1000;
const MAX_TAGS = 24;
const MAX_GROUPS = 1000;
const STATUS_FILTER = /^status = (\w+)$/;
const ONE_PROJECT = /^project\s*=\s*("[^"]*"|[\w.-]+)$/;
const [PICK_WIDTH, STATUS_WIDTH, DOT_WIDTH, STAR_WIDTH] = [34, 104, 40, 16];
/** On narrower pages, statuses are dots. */
const PHONE = 600;
/** The width of the first column: what names need, and the most if there are messages beside them. */
const NAMES = { phone: 150, least: 170, most: 280, character: 7.4, space: 64 };

export class RunsView {
  #app;
  #fields = null;
  #state = { where: "", sort: "", group: "", columns: [], parts: [] };
  /** @type {string[]} */
  #columns = [];
  /** The columns if none are chosen. @type {string[]} */
  #standard = [];
  /** The columns that the server knows. @type {string[]} */
  #serverColumns = [];
  /** The column that the runs are sorted by, if the first run does best in it. */
  #ranked = "";
  /** The ids of the selected runs. */
  #chosen = new Set();
  #permissions = { edits: false, needs_token: false, reason: "" };
  /** @type {RunRows | null} the rows, if they are not grouped */
  #rows = null;
  /** @type {{group: any, rows: RunRows | null}[] | null} */
  #groups = null;
  /** The numbers of the whole table, if it is grouped. */
  #found = null;
  #isOpen = new Set();
  #groupRequest = new LatestRequest();
  #matchRequest = new LatestRequest();
  /** The ids of all matching runs; null until they are known. */
  #matching = null;
  #isTyping = false;
  /** Whether the table could not be loaded: it is loaded with the next news of the server. */
  #isLost = false;
  #table;
  #unsubscribe = [];

  constructor(app) {
    this.#app = app;
    this.#adopt();
    this.#readAddress();
    this.notes = h("div", { class: "notes", role: "note" });
    this.filter = new FilterBox(this.#state.where, (where) => this.#filtered(where));
    this.filter.input.addEventListener("focus", () => (this.#isTyping = false));
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Status" });
    this.tags = h("div", { class: "chips tags", role: "group", "aria-label": "Tags" });
    this.count = h("p", { class: "muted count-line", role: "status" }, "Loading runs …");
    this.actions = h("div", { class: "actions-bar" });
    this.grouping = h("span");
    this.chooser = new ColumnChooser((columns) => this.#change({ column: columns }));
    this.views = new SavedViews(() => address("runs", this.#viewParameters()));
    this.everything = h("input", { type: "checkbox", onchange: () => this.#select(this.#matching ?? [], this.everything.checked) });
    this.columns = h("colgroup");
    this.head = h("tr");
    this.body = h("tbody");
    this.table = h("table", { class: "runs-table" }, this.columns, h("thead", {}, this.head), this.body);
    this.scroller = h("div", { class: "runs-scroller", role: "region", tabindex: "0", "aria-label": "Table of runs" }, this.table);
    this.more = h("div", { class: "more" });
    this.element = h(
      "section",
      { class: "page runs-page" },
      this.notes,
      h("div", { class: "toolbar" }, this.filter.element, this.grouping, menu("Columns", this.chooser.element), menu("Views", this.views.element)),
      h("div", { class: "quick" }, this.chips, this.tags),
      h("div", { class: "bar-line" }, this.count, this.actions),
      this.scroller,
      this.more,
    );
    this.#table = new VirtualRows(this.scroller, this.body, {
      height: ROW_HEIGHT,
      rowAt: (index) => this.#lineAt(index),
      seen: (first, last) => this.#see(first, last),
    });
    const refresh = throttled(() => this.#refresh(), REFRESH_MS);
    this.#unsubscribe.push(
      app.store.listen(() => (this.#showLive(), refresh())),
      app.selection.listen(() => this.#showSelected()),
      () => this.#table.destroy(),
      () => this.filter.destroy(),
    );
    this.#showLive();
    this.#start();
  }

  destroy() {
    this.#unsubscribe.forEach((stop) => stop());
    this.#clear();
    this.#groupRequest.cancel();
    this.#matchRequest.cancel();
  }

  /** Read the address, once per change of it: rows that are scrolled into sight ask for it again and again. */
  #readAddress() {
    const given = this.#app.router.parameters;
    const [where, sort, group] = ["where", "sort", "group"].map((name) => given.get(name) ?? "");
    this.#state = { where, sort, group, columns: given.getAll("column"), parts: conjuncts(where) };
    if (!this.#fields) return;
    // Without chosen columns: how far a run is says more than its step.
    const isOneProject = this.#state.parts.some((part) => ONE_PROJECT.test(part));
    const several = !isOneProject && new Set(this.#app.store.all.map((run) => run.project)).size > 1 ? ["project"] : [];
    const sorted = sort.replace(/^-/, "");
    const usual = [...several, ...this.#fields.columns.filter((name) => name !== "step")];
    // On a phone, there is room for one of them: the column by which runs are sorted.
    const isNarrow = innerWidth < PHONE;
    const first = isNarrow && usual.includes(sorted) ? [sorted] : [];
    const others = usual.filter((name) => !first.includes(name) && name !== group); // whose values are the groups
    const progress = group ? [] : [PROGRESS];
    this.#standard = isNarrow ? [...first, ...others, ...progress] : [...progress, ...others];
    this.#columns = this.#state.columns.length ? this.#state.columns : this.#standard;
    this.#serverColumns = this.#columns.filter((name) => name !== PROGRESS);
    const metric = /\(\s*([^,)]+)/.exec(sorted)?.[1].trim() ?? sorted;
    const field = this.#fields.fields.find((each) => each.field === metric);
    this.#ranked = field?.better === (sort.startsWith("-") ? "max" : "min") ? sorted : "";
  }

  #viewParameters() {
    const kept = [...this.#app.router.parameters].filter(([name]) => name !== "run");
    return new URLSearchParams(kept);
  }

  /** Addresses with find, status and tag, of which each is a part of a filter. */
  #adopt() {
    const given = this.#app.router.parameters;
    const words = (given.get("find") ?? "").split(/\s+/).filter(Boolean).map((word) => JSON.stringify(word));
    const [status, project] = [given.get("status"), given.get("project")];
    const parts = [...words, ...given.getAll("tag").map(tagFilter)];
    if (status) parts.push(`status = ${status}`);
    if (project) parts.push(`project = ${JSON.stringify(project)}`);
    if (parts.length)
      this.#app.router.set({ where: joined([given.get("where") ?? "", ...parts]), find: null, status: null, tag: null, project: null });
  }

  async #start() {
    this.#isLost = false;
    try {
      [this.#fields, this.#permissions] = await Promise.all([request("run_fields"), permissions()]);
    } catch (error) {
      this.#isLost = true;
      this.count.textContent = "";
      fill(this.more, failed(error, () => this.#start()));
      return;
    }
    this.#readAddress();
    this.filter.know(this.#fields);
    // A filter that is wrong is not requested: it would be an error of the network.
    if (this.#state.where) this.filter.check();
    else this.#load();
  }

  #filtered(where) {
    if (!this.#fields) return;
    if (where !== this.#state.where) {
      // A filter that is typed is one step of the history, however often it is tried on the way.
      if (this.#isTyping) this.#app.router.set({ where });
      else this.#app.router.push({ where });
      this.#isTyping = document.activeElement === this.filter.input;
      this.#readAddress();
    }
    this.#load();
  }

  /** Each change is a step of the browser's history. */
  #change(changes) {
    this.#app.router.push(changes);
    this.#readAddress();
    if ("where" in changes) this.filter.show(this.#state.where); // otherwise the typed text is about to be checked
    this.#load();
  }

  #clear() {
    this.#rows?.destroy();
    this.#groups?.forEach(({ rows }) => rows?.destroy());
    [this.#rows, this.#groups] = [null, null];
  }

  /** Load everything: the filter, the order, the columns or the groups are others. */
  #load() {
    this.#clear();
    this.#matching = null;
    this.#isOpen.clear();
    this.scroller.scrollTop = 0;
    const { group } = this.#state;
    this.#showTools();
    this.#showLive();
    if (group) this.#loadGroups();
    else {
      this.#rows = new RunRows(this.#query(this.#state.where), (error) => this.#loaded(error));
      this.#rows.see(0, 0);
    }
    this.#match();
  }

  #query(where) {
    return { where, sort: this.#state.sort, column: this.#serverColumns };
  }

  async #loadGroups() {
    const { where, sort, group } = this.#state;
    try {
      const found = await this.#groupRequest.get("run_table", { where, sort, group, column: this.#serverColumns, limit: MAX_GROUPS });
      if (!found) return;
      const before = new Map(this.#groups?.map((each) => [each.group.where, each.rows]));
      this.#groups = found.groups.map((each) => ({ group: each, rows: before.get(each.where) ?? null }));
      this.#found = found;
      this.#loaded();
    } catch (error) {
      this.#loaded(error);
    }
  }

  /** The ids of all matching runs, for the checkboxes. */
  async #match() {
    const { where } = this.#state;
    try {
      const found = await this.#matchRequest.get("matching_runs", { where });
      if (!found) return;
      this.#matching = found.ids;
      this.#showSelected();
    } catch {
      // The table shows the error.
    }
  }

  #refresh() {
    if (!this.#fields) {
      if (this.#isLost) this.#start();
      return;
    }
    if (this.filter.input.getAttribute("aria-invalid") === "true") return;
    if (this.#groups || (this.#isLost && this.#state.group)) this.#loadGroups();
    this.#rows?.refresh();
    this.#groups?.forEach(({ rows }) => rows?.refresh());
    this.#match();
  }

  #loaded(error = null) {
    if (error && (this.#groups || this.#rows?.isKnown)) {
      fill(this.more, h("p", { class: "message", role: "alert", data: { status: "failed" } }, error.message));
      return;
    }
    if (error) {
      this.#isLost = true;
      this.count.textContent = "No runs are shown.";
      this.scroller.hidden = true; // its rows are those of another filter or order
      fill(this.more, failed(error, () => this.#load()));
      return;
    }
    this.#isLost = false;
    const found = this.#groups ? this.#found : this.#rows;
    const groups = this.#groups ? `, ${plural(found.total, "group")}` : "";
    const archived = this.#app.store.all.filter((run) => run.archived).length;
    const hidden = archived && !/\barchived\b/.test(this.#state.where) ? ` · ${whole(archived)} archived` : "";
    this.count.textContent = `${whole(found.matching)} of ${plural(found.runs - (hidden ? archived : 0), "run")}${groups}${hidden}`;
    const isEmpty = !found.matching;
    this.scroller.hidden = isEmpty;
    fill(
      this.more,
      isEmpty && (found.runs ? empty("No run matches", "Change the filter.") : empty("No runs yet", "Record one with: hookline demo. It appears here as soon as it starts.")),
      !isEmpty && this.#groups && found.total > MAX_GROUPS && h("p", { class: "muted" }, `The first ${whole(MAX_GROUPS)} groups are shown.`),
    );
    this.#leaveOutEmpty();
    this.#showHead();
    this.table.setAttribute("aria-rowcount", String(this.#count + 1));
    this.#table.resize(this.#count);
    this.#showSelected();
  }

  /** Without chosen columns, settings and metrics that no run of the table has are left out, if all its runs are known. */
  #leaveOutEmpty() {
    if (this.#state.columns.length || !this.#rows) return;
    const rows = this.#rows.received;
    const recorded = new Set(this.#fields.fields.filter((each) => each.kind !== "attribute").map((each) => each.field));
    const isEmpty = (name) => recorded.has(name) && rows.every((row) => (row.cells[this.#serverColumns.indexOf(name)] ?? null) === null);
    const sorted = this.#state.sort.replace(/^-/, "");
    const isWhole = rows.length === this.#rows.total;
    const columns = this.#standard.filter((name) => !isWhole || name === sorted || !isEmpty(name));
    if (columns.join("\n") !== this.#columns.join("\n")) this.#columns = columns; // otherwise the rows stay
  }

  get #count() {
    if (!this.#groups) return this.#rows?.total ?? 0;
    return this.#groups.reduce((sum, each) => sum + 1 + this.#sizeOf(each), 0);
  }

  #sizeOf({ group, rows }) {
    if (!this.#isOpen.has(group.where) || !rows) return 0;
    return rows.isKnown ? rows.total : group.runs;
  }

  /** What stands in a line of the table: a group, or a run. */
  #lineAt(index) {
    if (!this.#groups) return this.#runLine(this.#rows?.at(index), index === 0);
    let left = index;
    for (const each of this.#groups) {
      if (left === 0) return this.#groupLine(each);
      left -= 1;
      const size = this.#sizeOf(each);
      if (left < size) return this.#runLine(each.rows.at(left), left === 0);
      left -= size;
    }
    return this.#runLine(undefined, false);
  }

  /** Request the rows that have come into sight. */
  #see(first, last) {
    if (last < first) return;
    if (!this.#groups) {
      this.#rows?.see(first, last);
      return;
    }
    let start = 0;
    for (const each of this.#groups) {
      const size = this.#sizeOf(each);
      const [from, to] = [Math.max(first, start + 1), Math.min(last, start + size)];
      if (size && from <= to) each.rows.see(from - start - 1, to - start - 1);
      start += 1 + size;
    }
  }

  #toggle(each) {
    const { where } = each.group;
    if (!this.#isOpen.delete(where)) {
      this.#isOpen.add(where);
      each.rows ??= new RunRows(this.#query(joined([this.#state.where, where])), (error) => this.#loaded(error));
    }
    this.#loaded();
  }

  #runLine(row, isFirst) {
    if (!row) return { sources: ["pending"], make: () => this.#pendingRow() };
    const run = this.#app.store.byId.get(row.id);
    const isBest = isFirst && this.#ranked !== "";
    return { sources: [row, run, isBest, this.#permissions, this.#state, this.#columns], make: () => this.#row(row, run, isBest) };
  }

  #pendingRow() {
    return h("tr", { class: "pending" }, h("td", {}), h("th", { scope: "row" }, "…"), h("td", { colspan: this.#columns.length + 1 }));
  }

  #row(row, run, isBest) {
    const status = run?.status ?? row.status;
    const message = run?.message ?? row.message;
    const problems = run?.problems.length ?? row.problems;
    const box = h("input", {
      type: "checkbox",
      checked: this.#chosen.has(row.id),
      "aria-label": `Select ${row.id}`,
      data: { id: row.id, key: `select ${row.id}` },
      onchange: () => this.#select([row.id], box.checked),
    });
    const name = run ? shortName(run) : row.name;
    const link = h("a", { href: address("run", new URLSearchParams([["run", row.id]])), title: row.id, data: { key: row.id } }, name);
    const badge =
      problems > 0 &&
      h("button", { type: "button", class: "small problem", "aria-label": `${plural(problems, "problem")} in the record of ${name}`, title: run?.problems.join("\n"), onclick: () => showProblems(run) }, problems);
    const edit =
      this.#permissions.edits &&
      h("button", { type: "button", class: "small edit", "aria-label": `Edit ${name}`, title: "Edit name, tags and notes", onclick: () => editRuns(this.#app.store, [row.id], () => this.#refresh()) }, "✎");
    const cells = this.#columns.map((column) => {
      const at = this.#serverColumns.indexOf(column);
      const value = at < 0 ? null : row.cells[at];
      const marked = isBest && column === this.#ranked && typeof value === "number";
      return runCell(column, value, run, { isBest: marked, tagged: (tag) => this.#tag(tag) });
    });
    return h(
      "tr",
      { data: { run: row.id, status } },
      h("td", { class: "pick" }, box),
      h("th", { scope: "row" }, h("div", { class: "who" }, link, badge, message && !["finished", "running"].includes(status) && h("span", { class: "under", title: message }, message), edit)),
      h("td", {}, statusBadge(status)),
      cells,
    );
  }

  #groupLine(each) {
    const { group } = each;
    const isOpen = this.#isOpen.has(group.where);
    return { sources: [group, isOpen], make: () => this.#groupRow(each, isOpen) };
  }

  #groupRow(each, isOpen) {
    const { group } = each;
    const title = group.value === null ? "none" : String(group.value);
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Select all ${plural(group.runs, "run")} of ${title}`,
      data: { group: "", key: `select ${title}` },
      onchange: () => this.#select(group.ids, box.checked),
    });
    box.ids = group.ids;
    const counts = STATUSES.filter((status) => group.statuses[status]).map((status) => `${group.statuses[status]} ${status}`);
    const values = new Map(this.#serverColumns.map((name, at) => [name, group.cells[at]]));
    const inside = new URLSearchParams([["where", joined([this.#state.where, group.where])]]);
    const row = h(
      "tr",
      { class: "group", data: { group: "" } },
      h("td", { class: "pick" }, box),
      h(
        "th",
        { scope: "row", colspan: 2 },
        h(
          "div",
          { class: "who" },
          group.where &&
            h("button", { type: "button", class: "small", "aria-expanded": String(isOpen), "aria-label": `Runs of ${title}`, data: { key: `open ${title}` }, onclick: () => this.#toggle(each) }, isOpen ? "▾" : "▸"),
          group.where ? h("a", { href: address("runs", inside), title: `Only the runs of ${title}`, data: { key: title } }, title) : title,
          h("span", { class: "count" }, counts.join(", ")),
        ),
      ),
      this.#columns.map((name) => groupCell(name === PROGRESS || isRightAligned(name) && name !== "duration" ? null : values.get(name))),
    );
    tick(box, group.ids, this.#chosen);
    return row;
  }

  /** Everything but the rows: notes, chips, and the rows' parts that change while runs are running. */
  #showLive() {
    const { all, notes } = this.#app.store;
    fill(this.notes, notes.map((note) => h("p", { class: "message" }, note)));
    const listed = all.filter((run) => !run.archived);
    this.#showChips(listed);
    this.#showTags(listed);
    if (this.#fields) this.#table.show();
    this.#showSelected();
  }

  #showTools() {
    const { group } = this.#state;
    const options = this.#fields.fields.filter((each) => each.kind === "config" || each.kind === "attribute");
    const names = [...new Set([...options.map((each) => each.field), ...(group ? [group] : [])])];
    const choices = [["", "none"], ...names.map((name) => [name, name.slice(0, 60)])];
    fill(this.grouping, select("group by", choices, group, (value) => this.#change({ group: value })));
    this.chooser.know(this.#fields.fields, this.#columns);
    this.views.show();
  }

  #showHead() {
    const columns = this.#columns;
    const rows = Array.from({ length: 40 }, (_, index) => this.#rows?.at(index)).filter(Boolean);
    const samples = (at) => (this.#groups ? [] : rows.map((row) => row.cells[at]));
    const first = [PICK_WIDTH, this.#nameWidth(rows), innerWidth < PHONE && !this.#groups ? DOT_WIDTH : STATUS_WIDTH];
    const least = this.#groups ? 190 : 0;
    const star = (name) => (name === this.#ranked ? STAR_WIDTH : 0);
    const widths = [...first, ...columns.map((name) => Math.max(least, star(name) + columnWidth(name, samples(this.#serverColumns.indexOf(name)))))];
    const key = JSON.stringify([widths, columns, this.#state.sort, this.#state.group]);
    if (this.head.dataset.key === key) return;
    this.head.dataset.key = key;
    const focused = document.activeElement instanceof HTMLElement && this.head.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    fill(this.columns, widths.map((width) => h("col", { style: { width: `${width}px` } })));
    this.table.style.width = `${widths.reduce((sum, width) => sum + width, 0)}px`;
    fill(
      this.head,
      h("th", { scope: "col", class: "pick" }, this.everything),
      this.#headCell(this.#state.group || "name"),
      this.#headCell("status"),
      columns.map((name) => this.#headCell(name)),
    );
    this.head.setAttribute("aria-rowindex", "1");
    if (focused) this.head.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  /** @param {import("../run_rows.js").TableRow[]} rows */
  #nameWidth(rows) {
    if (innerWidth < PHONE) return NAMES.phone;
    if (this.scroller.clientWidth < 900) return NAMES.least;
    if (this.#groups || rows.some((row) => row.message)) return NAMES.most;
    const longest = Math.max(0, ...rows.map((row) => row.name.length));
    return Math.min(NAMES.most, Math.max(NAMES.least, Math.round(longest * NAMES.character + NAMES.space)));
  }

  /** A heading that sorts: up, down, and back to the latest first. */
  #headCell(name) {
    if (name === PROGRESS) return h("th", { scope: "col" }, name);
    const { sort } = this.#state;
    const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : null;
    const next = order === "ascending" ? `-${name}` : order === "descending" ? "" : name;
    const mark = order === "ascending" ? " ↑" : order === "descending" ? " ↓" : "";
    const button = h("button", { type: "button", class: "link", title: name, data: { key: name }, onclick: () => this.#change({ sort: next }) }, h("span", {}, name), mark);
    return h("th", { scope: "col", class: this.#isNumeric(name) ? "end" : null, "aria-sort": order }, button);
  }

  #isNumeric(name) {
    if (isRightAligned(name)) return true;
    const at = this.#serverColumns.indexOf(name);
    return at >= 0 && (this.#groups ? this.#groups.some(({ group }) => group.cells[at]) : this.#rows?.received.some(({ cells }) => typeof cells[at] === "number"));
  }

  /** Add a part to the filter, or remove it. @param {string} clause @param {RegExp} [instead] of parts like this */
  #quick(clause, instead = null) {
    const { parts } = this.#state;
    const others = parts.filter((part) => part !== clause && !instead?.test(part));
    this.#change({ where: joined(parts.includes(clause) ? others : [...others, clause].filter(Boolean)) });
  }

  #showChips(listed) {
    const active = this.#state.parts.map((part) => STATUS_FILTER.exec(part)?.[1]).find(Boolean) ?? null;
    const chip = (status, text, count) =>
      h(
        "button",
        { type: "button", class: "chip", data: { status: status ?? "" }, "aria-pressed": String(active === status), onclick: () => this.#quick(status === null ? "" : `status = ${status}`, STATUS_FILTER) },
        text,
        h("b", {}, count),
      );
    const counts = STATUSES.map((status) => [status, listed.filter((run) => run.status === status).length]);
    const key = JSON.stringify([counts, active]);
    if (this.chips.dataset.key === key) return;
    this.chips.dataset.key = key;
    fill(this.chips, chip(null, "all", listed.length), counts.filter(([, count]) => count).map(([status, count]) => chip(status, status, count)));
  }

  /** A tag that toggles a filter for runs with it. */
  #tag(tag, count = null) {
    const isOn = this.#state.parts.includes(tagFilter(tag));
    return h(
      "button",
      { type: "button", class: "chip tag", "aria-pressed": String(isOn), title: isOn ? `Also show runs without ${tag}` : `Only runs with ${tag}`, onclick: () => this.#quick(tagFilter(tag)) },
      h("span", {}, tag),
      count !== null && h("b", {}, count),
    );
  }

  /** The most common tags, and those of the filter. */
  #showTags(listed) {
    const { parts } = this.#state;
    const counts = new Map();
    for (const run of listed) for (const tag of run.tags) counts.set(tag, (counts.get(tag) ?? 0) + 1);
    const isChosen = (tag) => Number(parts.includes(tagFilter(tag)));
    const shown = [...counts].sort(([a, m], [b, n]) => isChosen(b) - isChosen(a) || n - m || (a < b ? -1 : 1)).slice(0, MAX_TAGS);
    const key = JSON.stringify([shown, shown.map(([tag]) => isChosen(tag))]);
    if (this.tags.dataset.key === key) return;
    this.tags.dataset.key = key;
    this.tags.hidden = !shown.length;
    fill(this.tags, shown.map(([tag, count]) => this.#tag(tag, count)));
  }

  /** Only ticked runs are selected here: the runs that other views show by default may be out of sight. */
  #select(ids, on) {
    const { selection } = this.#app;
    selection.turn(ids, on, selection.chosen);
  }

  #showSelected() {
    const { selection, store } = this.#app;
    const ids = selection.chosen;
    const chosen = (this.#chosen = new Set(ids));
    for (const box of this.body.querySelectorAll("input[data-id]")) box.checked = chosen.has(box.dataset.id);
    for (const box of this.body.querySelectorAll("input[data-group]")) tick(box, box.ids, chosen);
    const matching = this.#matching ?? [];
    this.everything.disabled = this.#matching === null;
    tick(this.everything, matching, chosen);
    this.everything.setAttribute("aria-label", `Select all ${plural(matching.length, "run")}`);
    const isKnown = this.#matching !== null;
    const key = JSON.stringify([ids, isKnown, this.#permissions, store.all[0]?.id, ids.map((id) => store.byId.get(id)?.archived)]);
    if (this.actions.dataset.key === key) return;
    this.actions.dataset.key = key;
    const acts = { done: () => this.#refresh(), failed: (error) => this.#loaded(error) };
    fill(this.actions, changeButtons(store, ids, () => this.#matching, this.#permissions, acts), selectionLinks(selection, ids, store.all));
  }
}

function tagFilter(tag) {
  return `tag = "${tag.replace(/(["\\])/g, "\\$1")}"`;
}
