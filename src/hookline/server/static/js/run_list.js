// The list beside charts and tables to select runs.

import { fill, focusKey, focusedKey, h, later, throttled } from "./dom.js";
import { address } from "./page_state.js";
import { compareAddress } from "./run_store.js";

const MAX_LISTED = 150;

export class RunList {
  #app;
  #text = "";
  #colourFor;
  #unsubscribe = [];
  #list = h("div", { class: "run-list" });
  #title = h("summary", {});
  #compare = h("p", { class: "under" });

  /** @param {any} app @param {(run: import("./run_store.js").Run) => string} [colourFor] */
  constructor(app, colourFor = null) {
    this.#app = app;
    this.#colourFor = colourFor;
    const search = h("input", {
      type: "search",
      placeholder: "Find runs",
      "aria-label": "Find runs",
      oninput: later(() => {
        this.#text = search.value.toLowerCase();
        this.show();
      }, 120),
    });
    this.element = h(
      "aside",
      { class: "side" },
      h("details", { open: innerWidth > 900 }, this.#title, search, this.#compare, this.#list),
    );
    this.#unsubscribe.push(
      app.store.listen(throttled(() => this.show(), 1000)),
      app.selection.listen(() => this.show()),
    );
    this.show();
  }

  destroy() {
    this.#unsubscribe.forEach((stop) => stop());
  }

  show() {
    const focused = focusedKey(this.#list);
    const chosen = new Set(this.#app.selection.ids);
    const found = this.#app.store.all.filter((run) => (!run.archived || chosen.has(run.id)) &&
      `${run.id} ${run.name} ${run.arm} ${run.status} ${run.tags.join(" ")}`.toLowerCase().includes(this.#text),
    );
    fill(this.#title, "Runs", h("span", { class: "count" }, `${chosen.size} of ${this.#app.store.all.length}`));
    fill(this.#compare, chosen.size > 1 && h("a", { href: compareAddress([...chosen]) }, `Compare the ${chosen.size} selected`));
    const groups = Map.groupBy(found, (run) => run.project);
    const listed = new Set(found.slice(0, MAX_LISTED));
    const more =
      found.length > MAX_LISTED ? h("p", { class: "muted" }, `${found.length - MAX_LISTED} more: search by name`) : null;
    fill(
      this.#list,
      [...groups].map(([project, runs]) => this.#group(project, runs, chosen, listed)),
      more,
    );
    focusKey(this.#list, focused);
  }

  /** A project with its matching runs; not all of them need to be listed. */
  #group(project, runs, chosen, listed) {
    const ids = runs.map((run) => run.id);
    const on = ids.filter((id) => chosen.has(id)).length;
    const box = h("input", {
      type: "checkbox",
      checked: on === ids.length,
      data: { key: `all ${project}` },
      onchange: () => this.#app.selection.turn(ids, on !== ids.length),
    });
    box.indeterminate = on > 0 && on < ids.length;
    return h(
      "fieldset",
      {},
      h("legend", {}, h("label", {}, box, h("span", {}, project)), h("span", { class: "count" }, `${on} of ${ids.length}`)),
      runs.filter((run) => listed.has(run)).map((run) => this.#row(run, chosen.has(run.id))),
    );
  }

  #row(run, isChosen) {
    const box = h("input", {
      type: "checkbox",
      checked: isChosen,
      data: { key: run.id },
      onchange: () => this.#app.selection.turn([run.id], !isChosen),
    });
    const swatch =
      this.#colourFor && h("i", { class: "swatch", vars: { line: isChosen ? this.#colourFor(run) : "transparent" } });
    const name = this.#app.store.nameOf(run.id);
    const href = address("run", new URLSearchParams([["run", run.id]]));
    const row = h(
      "label",
      { class: "run-row", title: run.id },
      box,
      swatch,
      h("span", {}, name.replace(`${run.project}/`, "")), // which is the heading
      run.problems.length > 0 && h("i", { class: "warn", title: run.problems.join("\n") }, "!"),
      h("i", { class: "dot", data: { status: run.status }, title: run.status }),
    );
    return h("div", { class: "run-line" }, row, h("a", { href, title: `Everything about ${name}` }, h("span", { class: "hidden" }, `Open ${name}`), h("span", { "aria-hidden": "true" }, "›")));
  }
}
