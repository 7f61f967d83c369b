// The table of runs with status, progress and latest metrics, updated live.

import { request } from "../api.js";
import { empty, fill, h, later, select } from "../dom.js";
import { ago, dateTime, duration, number, whole } from "../format.js";
import { address, recall, remember } from "../page_state.js";
import { problemLines, statusBadge } from "../run_status.js";
import { isOver, shortName } from "../run_store.js";
import { latestTexts } from "../tables.js";

const STATUSES = ["running", "stalled", "finished", "stopped", "failed", "killed"];
const PAGE = 200;
const MAX_TAGS = 24;
const GROUPINGS = new Map([
  ["none", () => ""],
  ["project", (run) => run.project],
  ["arm", (run) => `${run.project}${run.arm ? ` · ${run.arm}` : ""}`],
  ["group", (run) => `${run.project}${run.group ? ` · ${run.group}` : ""}`],
]);
const COLUMNS = ["", "run", "status", "progress", "latest metrics", "started", "duration"];

export class RunsView {
  #app;
  #text;
  #status;
  #tags;
  #grouping = recall("runs.grouping", "project");
  #limit = PAGE;
  #rows = new Map();
  /** The ids of all matching runs, and by group, including runs not yet in the table. */
  #found = [];
  #groups = new Map();
  #open = new Set();
  #order = "";
  #unsubscribe = [];

  constructor(app) {
    this.#app = app;
    this.#text = app.router.parameters.get("find") ?? "";
    this.#status = app.router.parameters.get("status");
    this.#tags = app.router.parameters.getAll("tag");
    this.notes = h("div", { class: "notes", role: "note" });
    this.tags = h("div", { class: "chips tags", role: "group", "aria-label": "Tags" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Status" });
    this.compare = h("div", { class: "actions-bar" });
    this.body = h("tbody");
    this.more = h("div", { class: "more" });
    this.search = h("input", {
      type: "search",
      placeholder: "Find by name, tag, experiment, arm",
      "aria-label": "Find runs",
      value: this.#text,
      data: { find: "" },
      oninput: later(() => {
        this.#text = this.search.value;
        this.#filtered();
      }, 120),
    });
    const grouping = select(
      "group",
      [
        ["none", "none"],
        ["project", "by project"],
        ["arm", "by arm"],
        ["group", "by group"],
      ],
      this.#grouping,
      (value) => {
        this.#grouping = value;
        remember("runs.grouping", value);
        this.show();
      },
    );
    this.everything = h("input", {
      type: "checkbox",
      onchange: () => this.#app.selection.turn(this.#found, this.everything.checked),
    });
    const head = h(
      "thead",
      {},
      h(
        "tr",
        {},
        COLUMNS.map((title, index) =>
          h("th", { scope: "col", class: ["pick", "", "", "", "", "end", "end"][index] }, title || this.everything),
        ),
      ),
    );
    this.table = h("table", { class: "runs" }, head, this.body);
    this.element = h(
      "section",
      { class: "page" },
      this.notes,
      h("div", { class: "toolbar" }, this.search, this.chips, grouping, this.compare),
      this.tags,
      this.table,
      this.more,
    );
    this.#unsubscribe.push(
      app.store.listen(() => this.show()),
      app.selection.listen(() => this.#showChosen()),
    );
    this.show();
  }

  destroy() {
    this.#unsubscribe.forEach((stop) => stop());
  }

  show() {
    const all = this.#app.store.all;
    fill(
      this.notes,
      this.#app.store.notes.map((note) => h("p", { class: "message" }, note)),
    );
    this.#showChips(all);
    this.#showTags(all);
    const found = all.filter((run) => (!this.#status || run.status === this.#status) && this.#matches(run));
    const groups = Map.groupBy(found, GROUPINGS.get(this.#grouping) ?? GROUPINGS.get("project"));
    this.#found = found.map((run) => run.id);
    this.#groups = new Map([...groups].map(([title, runs]) => [title, runs.map((run) => run.id)]));
    const entries = this.#entries(groups, new Set(found.slice(0, this.#limit)));
    const order = entries.map(([key]) => key).join("\n");
    const elements = entries.map(([key, make, source]) => this.#element(key, make, source));
    if (order !== this.#order) this.body.replaceChildren(...elements);
    this.#order = order;
    this.table.hidden = !found.length;
    this.#showMore(all, found);
    this.#showChosen();
  }

  #showMore(all, found) {
    const rest = found.length - this.#limit;
    if (!all.length)
      fill(this.more, empty("No runs yet", "Record one with: hookline demo. It appears here as soon as it starts."));
    else if (!found.length) fill(this.more, empty("No run matches", "Change the filter."));
    else
      fill(
        this.more,
        rest > 0 &&
          h(
            "button",
            { type: "button", onclick: () => ((this.#limit += PAGE), this.show()) },
            `Show ${Math.min(rest, PAGE)} of ${whole(rest)} more`,
          ),
      );
  }

  /** Keys with functions that create their rows: a group heading, a run, or the details of a run. */
  #entries(groups, shown) {
    const entries = [];
    for (const [title, own] of groups) {
      const listed = own.filter((run) => shown.has(run));
      if (title && listed.length)
        entries.push([
          `group ${title}`,
          () => this.#heading(title, own),
          own.map((run) => `${run.id} ${run.status}`).join("\n"),
        ]);
      for (const run of listed) {
        entries.push([run.id, () => this.#row(run), run]);
        if (this.#open.has(run.id)) entries.push([`details ${run.id}`, () => this.#details(run), run.status]);
      }
    }
    return entries;
  }

  /** A row, created again only if its source changed, so focus and selection are kept. */
  #element(key, make, source) {
    const before = this.#rows.get(key);
    if (before?.source === source) return before.element;
    const element = make();
    before?.element.replaceWith(element);
    this.#rows.set(key, { source, element });
    return element;
  }

  #heading(title, runs) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": chooseAll(runs.length, title),
      data: { group: title },
      onchange: () => this.#app.selection.turn(this.#groups.get(title) ?? [], box.checked),
    });
    const counts = STATUSES.map((status) => [status, runs.filter((run) => run.status === status).length]).filter(
      ([, count]) => count,
    );
    return h(
      "tr",
      { class: "group" },
      h(
        "th",
        { colspan: COLUMNS.length, scope: "rowgroup" },
        box,
        h("a", { href: chartAddress(runs.map((run) => run.id)) }, title),
        h("span", { class: "count" }, counts.map(([status, count]) => `${count} ${status}`).join(", ")),
      ),
    );
  }

  #row(run) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Select ${run.id}`,
      data: { id: run.id },
      onchange: (event) => this.#app.selection.turn([run.id], event.target.checked),
    });
    const name = h(
      "button",
      {
        type: "button",
        class: "link name",
        "aria-expanded": String(this.#open.has(run.id)),
        onclick: () => this.#toggle(run.id),
      },
      shortName(run),
    );
    const under = [run.experiment === null ? run.id.slice(run.project.length + 1) : run.arm, run.stage]
      .filter(Boolean)
      .join(" · ");
    const tags = run.tags.map((tag) => this.#tag(tag));
    return h(
      "tr",
      { data: { run: run.id, status: run.status } },
      h("td", { class: "pick" }, box),
      h(
        "td",
        { class: "who" },
        name,
        h("div", { class: "tags" }, h("span", { class: "under" }, under), tags),
        problemLines(run),
      ),
      h("td", {}, statusBadge(run.status)),
      h("td", { class: "how-far" }, progress(run)),
      h("td", { class: "metrics" }, metrics(run)),
      h(
        "td",
        { class: "end" },
        h("time", { data: { since: run.started ?? "" }, title: dateTime(run.started) }, ago(run.started)),
      ),
      h("td", { class: "end" }, took(run)),
    );
  }

  #details(run) {
    const cell = h("td", { colspan: COLUMNS.length }, h("p", { class: "muted" }, "Loading …"));
    Promise.all([request("run", { id: run.id }), request("texts", { run: [run.id] })]).then(
      ([answer, { texts }]) => fill(cell, details(answer, texts)),
      (error) => fill(cell, empty("Loading failed", error.message)),
    );
    return h("tr", { class: "details" }, cell);
  }

  #toggle(id) {
    if (!this.#open.delete(id)) this.#open.add(id);
    this.#rows.delete(id);
    this.#rows.delete(`details ${id}`);
    this.#order = "";
    this.show();
  }

  /** A tag that toggles a filter for runs with it. */
  #tag(tag, count = null) {
    const isOn = this.#tags.includes(tag);
    return h(
      "button",
      {
        type: "button",
        class: "chip tag",
        "aria-pressed": String(isOn),
        title: isOn ? `Also show runs without ${tag}` : `Only runs with ${tag}`,
        onclick: () => {
          this.#tags = this.#tags.includes(tag) ? this.#tags.filter((each) => each !== tag) : [...this.#tags, tag];
          this.#rows.clear(); // their tags look different now
          this.#order = "";
          this.#filtered();
        },
      },
      tag,
      count !== null && h("b", {}, count),
    );
  }

  /** The most common tags, and the selected ones. */
  #showTags(all) {
    const counts = new Map(this.#tags.map((tag) => [tag, 0]));
    for (const run of all) for (const tag of run.tags) counts.set(tag, (counts.get(tag) ?? 0) + 1);
    const isChosen = (tag) => Number(this.#tags.includes(tag));
    const shown = [...counts]
      .sort(([a, m], [b, n]) => isChosen(b) - isChosen(a) || n - m || (a < b ? -1 : 1))
      .slice(0, MAX_TAGS);
    const key = JSON.stringify([shown, this.#tags]);
    if (this.tags.dataset.key === key) return;
    this.tags.dataset.key = key;
    this.tags.hidden = !shown.length;
    fill(
      this.tags,
      shown.map(([tag, count]) => this.#tag(tag, count)),
    );
  }

  /** The filter changed; it is kept in the URL, which can be copied. */
  #filtered() {
    this.#app.router.set({ find: this.#text, status: this.#status, tag: this.#tags });
    this.show();
  }

  #showChips(all) {
    const chip = (status, text, count) =>
      h(
        "button",
        {
          type: "button",
          class: "chip",
          data: { status: status ?? "" },
          "aria-pressed": String(this.#status === status),
          onclick: () => {
            this.#status = this.#status === status ? null : status;
            this.#filtered();
          },
        },
        text,
        h("b", {}, count),
      );
    const counts = STATUSES.map((status) => [status, all.filter((run) => run.status === status).length]);
    const key = JSON.stringify([counts, this.#status]);
    if (this.chips.dataset.key === key) return;
    this.chips.dataset.key = key;
    fill(
      this.chips,
      chip(null, "all", all.length),
      counts.filter(([, count]) => count).map(([status, count]) => chip(status, status, count)),
    );
  }

  #showChosen() {
    const ids = this.#app.selection.ids;
    const chosen = new Set(ids);
    for (const box of this.body.querySelectorAll("input[data-id]")) box.checked = chosen.has(box.dataset.id);
    for (const box of this.body.querySelectorAll("input[data-group]"))
      tick(box, this.#groups.get(box.dataset.group) ?? [], chosen);
    tick(this.everything, this.#found, chosen);
    this.everything.setAttribute("aria-label", chooseAll(this.#found.length));
    const latest = this.#app.store.all[0];
    fill(
      this.compare,
      latest && h("a", { class: "button", href: chartAddress([latest.id]) }, "Latest run"),
      h("a", { class: "button primary", href: chartAddress(ids) }, `Charts of ${ids.length} selected`),
    );
  }

  #matches(run) {
    if (!this.#tags.every((tag) => run.tags.includes(tag))) return false;
    const text = [run.id, run.name, run.experiment, run.arm, run.group, run.stage, ...run.tags, run.status]
      .join(" ")
      .toLowerCase();
    return this.#text
      .toLowerCase()
      .split(/\s+/)
      .every((word) => text.includes(word));
  }
}

/** Update the checkbox of several runs; indeterminate if only some are selected. */
function tick(box, ids, chosen) {
  const on = ids.filter((id) => chosen.has(id)).length;
  box.checked = on > 0 && on === ids.length;
  box.indeterminate = on > 0 && on < ids.length;
}

function chooseAll(count, title = "") {
  return `Select all ${whole(count)} runs${title && ` of ${title}`}`;
}

function chartAddress(ids) {
  return address("charts", new URLSearchParams(ids.map((id) => ["run", id])));
}

function progress(run) {
  const share = run.num_steps ? Math.min(1, run.step / run.num_steps) : null;
  const text = run.num_steps ? `${whole(run.step)} / ${whole(run.num_steps)}` : `${whole(run.step)} steps`;
  const left = !isOver(run) && run.eta_seconds ? ` · ${duration(run.eta_seconds)} left` : "";
  return [
    h(
      "div",
      { class: "meter", data: { status: run.status } },
      h("i", { style: { width: `${(share ?? (isOver(run) ? 1 : 0)) * 100}%` } }),
    ),
    h("span", { class: "under" }, text + left),
  ];
}

function metrics(run) {
  return Object.entries(run.metrics)
    .slice(0, 3)
    .map(([name, value]) => h("span", { class: "metric" }, h("span", {}, name), h("b", {}, number(value))));
}

function took(run) {
  if (!run.started) return "–";
  if (isOver(run)) return duration((run.ended ?? run.started) - run.started);
  return duration(Date.now() / 1000 - run.started);
}

function details({ run, metrics: latest, config, facts }, texts) {
  const known = {
    id: run.id,
    seed: run.seed,
    host: facts.host,
    started: dateTime(run.started),
    command: facts.command?.join?.(" "),
    commit: facts.git?.commit,
    python: facts.python,
  };
  const isText = new Set(texts.map((each) => each.name));
  const numbers = Object.entries(latest).filter(([name]) => !name.startsWith("hooks/") && !isText.has(name));
  return h(
    "div",
    { class: "details-grid" },
    run.message && h("p", { class: "message", data: { status: run.status } }, run.message),
    run.problems.map((problem) => h("p", { class: "message", data: { status: "stalled" } }, problem)),
    h("section", {}, h("h4", {}, "Run"), factList(Object.entries(known))),
    h("section", {}, h("h4", {}, "Latest values"), factList(numbers.map(([name, value]) => [name, number(value)]))),
    texts.length > 0 && h("section", { class: "texts" }, h("h4", {}, "Latest texts"), latestTexts(texts)),
    config !== null && h("section", {}, h("h4", {}, "Configuration"), h("pre", {}, JSON.stringify(config, null, 2))),
    h(
      "p",
      { class: "links" },
      ["charts", "rollouts", "hooks", "system"].map((view) =>
        h("a", { href: address(view, new URLSearchParams([["run", run.id]])) }, view),
      ),
    ),
  );
}

function factList(entries) {
  const there = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return there.length
    ? h(
        "dl",
        {},
        there.map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]),
      )
    : h("p", { class: "muted" }, "none");
}
