// Everything about one run, in sections with anchors in the address: `#/run?run=ID&section=configuration`.

import { ansiText } from "../ansi.js";
import { NoAnswerError, request } from "../api.js";
import { configTree } from "../config_tree.js";
import { empty, failed, fill, h, later, select, throttled } from "../dom.js";
import { codeParts, environmentParts } from "../environment.js";
import { ago, clock, dateTime, duration, milliseconds, number, plural, whole } from "../format.js";
import { costTable, orderTables } from "../hook_tables.js";
import { Overlays, mediumFigure } from "../media_parts.js";
import { address } from "../page_state.js";
import { permissions } from "../post.js";
import { archive, deleteRuns, editRuns } from "../run_actions.js";
import { artifactList, checkpointTable, eventParts, runAddress, sinkTable, valueTable } from "../run_parts.js";
import { statusBadge } from "../run_status.js";
import { isOver } from "../run_store.js";
import { latestTexts } from "../tables.js";
import { failureParts } from "./console.js";

const REFRESH_MS = 2000;
const CONSOLE_LINES = 30;
const MAX_MEDIA = 12;
const MAX_COMPARED = 60;
const LINKS = ["charts", "media", "rollouts", "hooks", "system", "console"];
const IS_TABLE = new Set(["table", "histogram"]);

/** A section: its request to the server and its content; it is hidden while it has nothing to show, unless it has a
 * text for that. Those that are `once` do not change while a run records.
 * @typedef {{name: string, title: string, once?: boolean, none?: string, load: () => Promise<any>,
 *   show: (answer: any) => any}} Section
 */

export class RunView {
  #app;
  #id;
  /** @type {Section[]} */
  #sections = [];
  #shown = new Map();
  #elements = new Map();
  #controller = new AbortController();
  #unsubscribe = [];
  #timer = 0;
  /** Whether the section of the address is kept in sight while sections above it are filled. */
  #holds = true;
  #head = "";
  #isEditable = false;

  constructor(app) {
    this.#app = app;
    const given = app.router.parameters.get("run");
    this.#id = given ?? app.selection.ids[0] ?? "";
    this.head = h("header", { class: "run-head" });
    this.problem = h("p", { class: "bad", role: "alert" });
    this.nav = h("nav", { class: "run-nav", "aria-label": "Sections" });
    this.body = h("div", { class: "run-sections" });
    this.element = h("div", { class: "page run-page" }, this.head, h("div", { class: "run-columns" }, this.nav, this.body));
    this.#begin();
  }

  destroy() {
    this.#controller.abort();
    clearInterval(this.#timer);
    this.#unsubscribe.forEach((stop) => stop());
  }

  get #run() {
    return this.#app.store.byId.get(this.#id);
  }

  #begin() {
    if (!this.#run) {
      const text = this.#id ? `There is no run ${this.#id}. It was deleted, or is in another directory.` : "Record one with: hookline demo.";
      return void fill(this.element, empty(this.#id ? "There is no such run" : "No runs yet", text));
    }
    this.#sections = this.#allSections();
    for (const { name, title } of this.#sections) {
      const content = h("div", {}, h("p", { class: "muted" }, "Loading …"));
      const section = h("section", { class: "run-section", id: `section-${name}`, data: { section: name }, hidden: true }, h("h2", {}, title), content);
      this.#elements.set(name, { section, content });
      this.body.append(section);
    }
    this.#showHead();
    this.#showChanges();
    for (const section of this.#sections) this.#load(section);
    const refresh = throttled(() => this.element.isConnected && this.#refresh(), REFRESH_MS);
    this.#unsubscribe.push(
      this.#app.store.listen((changed) => {
        if (!changed.has(this.#id)) return;
        this.#showHead();
        refresh();
      }),
    );
    // Lines of the console come without any change of the run that the list would show.
    this.#timer = setInterval(() => this.#run && !isOver(this.#run) && refresh(), REFRESH_MS);
    for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"])
      this.element.addEventListener(kind, () => (this.#holds = false), { passive: true, signal: this.#controller.signal });
  }

  #ask(path, parameters) {
    return request(path, parameters, this.#controller.signal);
  }

  #refresh() {
    for (const section of this.#sections) if (!section.once) this.#load(section);
  }

  /** Load a section; if the answer is unchanged, unfolded, selected and focused parts are kept. */
  async #load(section) {
    const { section: element, content } = this.#elements.get(section.name);
    try {
      const answer = await section.load();
      const key = JSON.stringify(answer);
      if (this.#shown.get(section.name) === key) return;
      this.#shown.set(section.name, key);
      const parts = section.show(answer);
      element.hidden = parts === null && !section.none;
      const log = content.querySelector(".log");
      const isAtEnd = !log || log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
      fill(content, parts ?? h("p", { class: "muted" }, section.none));
      const next = content.querySelector(".log");
      if (next) next.scrollTop = isAtEnd ? next.scrollHeight : log.scrollTop;
    } catch (error) {
      if (this.#controller.signal.aborted || (error instanceof NoAnswerError && this.#shown.has(section.name))) return;
      element.hidden = false;
      this.#shown.delete(section.name);
      fill(content, failed(error, () => this.#load(section)));
    }
    this.#showNav();
    this.#hold();
  }

  #hold() {
    const wanted = this.#elements.get(this.#app.router.parameters.get("section"))?.section;
    if (this.#holds && wanted && !wanted.hidden) wanted.scrollIntoView();
  }

  #showNav() {
    const wanted = this.#app.router.parameters.get("section");
    const links = this.#sections
      .filter(({ name }) => !this.#elements.get(name).section.hidden)
      .map(({ name, title }) =>
        h(
          "a",
          {
            href: runAddress("run", this.#id, { section: name }),
            "aria-current": wanted === name ? "true" : null,
            onclick: (event) => {
              if (event.ctrlKey || event.metaKey || event.shiftKey) return;
              event.preventDefault(); // the view stays
              this.#app.router.push({ run: this.#id, section: name });
              this.#showNav();
              this.#elements.get(name).section.scrollIntoView();
            },
          },
          title,
        ),
      );
    const key = links.map((link) => `${link.textContent} ${link.getAttribute("aria-current")}`).join();
    if (this.nav.dataset.key === key) return;
    this.nav.dataset.key = key;
    fill(this.nav, links);
  }

  #showHead() {
    const run = this.#run;
    if (!run) return void fill(this.head, empty("The run was deleted"));
    const key = JSON.stringify([run, this.#isEditable]);
    if (key === this.#head) return;
    this.#head = key;
    document.title = `${this.#app.store.nameOf(run.id)} · hookline`;
    const took = run.started ? (isOver(run) ? (run.ended ?? run.started) : Date.now() / 1000) - run.started : null;
    const facts = [
      ["run", h("span", { class: "path" }, run.id)],
      ["experiment", [run.experiment, run.arm, run.stage, run.repeat !== null && `repeat ${run.repeat}`].filter(Boolean).join(" · ")],
      ["seed", run.seed],
      ["started", run.started && h("time", { data: { since: run.started }, title: dateTime(run.started) }, ago(run.started))],
      [isOver(run) ? "duration" : "running for", took === null ? "" : duration(took)],
      ["time per step", typeof run.seconds_per_step === "number" ? milliseconds(run.seconds_per_step * 1000) : ""],
    ];
    fill(
      this.head,
      h("div", { class: "run-title" }, h("h1", {}, this.#app.store.nameOf(run.id)), statusBadge(run.status), run.archived && h("span", { class: "muted" }, "archived"), this.#isEditable && this.#changes(run), this.#compareWith(run)),
      this.problem,
      run.tags.length > 0 && h("div", { class: "tags" }, run.tags.map((tag) => h("a", { class: "chip tag", href: address("runs", new URLSearchParams({ tag })) }, tag))),
      progress(run),
      run.message && h("p", { class: "message", data: { status: run.status } }, run.message),
      run.problems.map((problem) => h("p", { class: "message problem-line", data: { status: "stalled" } }, problem)),
      h("dl", { class: "facts" }, facts.filter(([, value]) => value !== "" && value !== null && value !== undefined).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      h("p", { class: "links" }, [...LINKS, ...(isOver(run) ? [] : ["control"])].map((view) => h("a", { href: runAddress(view, run.id) }, view[0].toUpperCase() + view.slice(1)))),
    );
  }

  /** Show the buttons that change the run, if it may be changed from here. */
  async #showChanges() {
    try {
      this.#isEditable = (await permissions()).edits;
    } catch {
      return; // the sections say that the server does not answer
    }
    if (!this.#controller.signal.aborted) this.#showHead();
  }

  #changes(run) {
    const { store, router } = this.#app;
    const button = (label, act) => h("button", { type: "button", class: "small", onclick: act }, label);
    const turnArchived = async () => {
      fill(this.problem);
      try {
        await archive([run.id], !run.archived);
      } catch (error) {
        fill(this.problem, error.message);
      }
    };
    return h(
      "span",
      { class: "run-changes" },
      button("Edit …", () => editRuns(store, [run.id], () => this.#refresh())),
      button(run.archived ? "Unarchive" : "Archive", turnArchived),
      button("Delete …", () => deleteRuns(store, [run.id], new Set([run.id]), () => router.go("runs", new URLSearchParams()))),
    );
  }

  /** Other runs of the project; choosing one opens the comparison. */
  #compareWith(run) {
    const others = this.#app.store.all.filter((other) => other.id !== run.id && other.project === run.project).slice(0, MAX_COMPARED);
    if (!others.length) return null;
    const options = [["", "choose a run"], ...others.map((other) => [other.id, this.#app.store.nameOf(other.id)])];
    return select("compare with", options, "", (id) => {
      if (id) location.hash = address("compare", new URLSearchParams([["run", id], ["run", run.id]]));
    });
  }

  /** @returns {Section[]} */
  #allSections() {
    const id = this.#id;
    const parameters = this.#app.router.parameters;
    const nameOf = (other) => this.#app.store.nameOf(other);
    const hasAny = (list, show) => (list.length ? show(list) : null);
    return [
      { name: "failure", title: "Failure", load: () => this.#ask("failures", { id }), show: ({ failures }) => hasAny(failures, (each) => failureParts(each, "")) },
      { name: "notes", title: "Notes", load: async () => (await this.#ask("run", { id })).notes, show: (notes) => (notes ? h("p", { class: "run-notes" }, notes) : null) },
      { name: "values", title: "Latest and best values", none: "No metrics were recorded.", load: () => this.#ask("run/values", { run: id }), show: (found) => this.#values(found) },
      { name: "texts", title: "Latest texts", load: () => this.#ask("texts", { run: [id] }), show: ({ texts }) => hasAny(texts, (each) => h("div", { class: "run-texts" }, latestTexts(each))) },
      {
        name: "configuration",
        title: "Configuration",
        none: "No configuration was recorded.",
        load: async () => (await this.#ask("run", { id })).config,
        show: (config) =>
          config === null || config === undefined
            ? null
            : configTree(config, { find: parameters.get("find") ?? "", found: (find) => this.#app.router.set({ find }) }),
      },
      { name: "code", title: "Code and command", once: true, none: "No command and no code were recorded.", load: () => this.#environment(), show: (found) => codeParts(id, found) },
      { name: "environment", title: "Environment", once: true, none: "No environment was recorded.", load: () => this.#environment(), show: environmentParts },
      { name: "console", title: "Console", none: "This run printed nothing.", load: () => this.#ask("console", { id, limit: CONSOLE_LINES }), show: (page) => hasAny(page.lines, () => this.#console(page)) },
      { name: "events", title: "Alerts and events", none: "No events were recorded.", load: () => this.#ask("events", { run: [id], limit: 500 }), show: (found) => (found.events.length ? eventParts(found) : null) },
      { name: "checkpoints", title: "Checkpoints", none: "No checkpoints were saved.", load: () => this.#ask("run/checkpoints", { run: id }), show: ({ checkpoints }) => hasAny(checkpoints, checkpointTable) },
      { name: "artifacts", title: "Artifacts", none: "No artifacts were saved or used.", load: () => this.#ask("run/artifacts", { run: id }), show: ({ artifacts, total }) => hasAny(artifacts, (list) => [artifactList(list, nameOf), total > list.length && h("p", { class: "muted" }, `The first ${list.length} of ${whole(total)}`)]) },
      { name: "media", title: "Media", load: () => this.#media(), show: (media) => (media.shown.length ? this.#mediaParts(media) : null) },
      { name: "sinks", title: "Sinks", none: "The run has no sinks; its records are in its journal.", load: () => this.#ask("sinks", { run: [id] }), show: ({ sinks }) => hasAny(sinks, sinkTable) },
      {
        name: "hooks",
        title: "Hooks",
        none: "No costs are recorded. They are recorded about once a minute and when a run ends.",
        load: async () => ({ ...(await this.#ask("hooks", { run: [id] })), ...(await this.#ask("order", { run: [id] })) }),
        show: ({ hooks, order }) => (hooks.length || order.length ? [hooks.length > 0 && costTable(hooks, nameOf), orderTables(order, nameOf)] : null),
      },
    ];
  }

  /** The diff is loaded when it is opened. */
  #environment() {
    return this.#ask("environment", { id: this.#id, diff_characters: "0" });
  }

  #values(found) {
    if (!found.metrics.length) return null;
    const body = h("div");
    const show = () => fill(body, valueTable(this.#id, found, search.value));
    const search = h("input", { type: "search", placeholder: "Find a metric", "aria-label": "Find a metric", value: this.metricFind ?? "", oninput: later(() => {
      this.metricFind = search.value; // kept when a live run adds values
      show();
    }, 120) });
    show();
    return [found.metrics.length > 8 && h("div", { class: "toolbar" }, search), body];
  }

  #console({ lines, has_earlier: hasEarlier, ranks }) {
    return [
      h(
        "div",
        { class: "log console", tabindex: "0", role: "log", "aria-label": "The last lines of the console" },
        lines.map((line) =>
          h("div", { class: "line", data: { stream: line.stream, level: line.level } }, h("time", { title: dateTime(line.time) }, clock(line.time)), ranks.length > 1 && h("b", {}, line.actor || `rank ${line.rank}`), h("span", {}, ansiText(line.text))),
        ),
      ),
      h("p", {}, h("a", { href: runAddress("console", this.#id) }, hasEarlier ? `The last ${plural(lines.length, "line")}: open the console` : "Open the console")),
    ];
  }

  /** The latest of each name. */
  async #media() {
    const run = [this.#id];
    const { names, total } = await this.#ask("media/names", { run });
    const chosen = names.slice(0, MAX_MEDIA);
    const pages = await Promise.all(chosen.map(({ name, axis, type }) => (IS_TABLE.has(type) ? null : this.#ask("media", { run, name, axis, type, limit: 1 }))));
    return { total, shown: chosen.map((each, place) => ({ ...each, medium: pages[place]?.media[0] ?? null })) };
  }

  #mediaParts({ total, shown }) {
    const cards = shown.map(({ name, type, items, last_step: step, medium }) =>
      h(
        "article",
        { class: "panel", data: { media: name } },
        h("header", {}, h("h3", {}, name), h("span", { class: "count" }, `${type}, ${plural(items, "item")}, step ${whole(step)}`)),
        medium ? mediumFigure(medium, new Overlays()) : h("p", { class: "muted" }, "Shown in the view of media."),
      ),
    );
    const link = h("a", { href: runAddress("media", this.#id) }, total > shown.length ? `All ${whole(total)} names` : "All steps");
    return [h("div", { class: "run-media" }, cards), h("p", {}, link)];
  }
}

function progress(run) {
  const share = run.num_steps ? Math.min(1, run.step / run.num_steps) : isOver(run) ? 1 : 0;
  const text = run.num_steps ? `step ${whole(run.step)} of ${whole(run.num_steps)} (${number(share * 100, 3)} %)` : plural(run.step, "step");
  const left = !isOver(run) && run.eta_seconds ? ` · ${duration(Number(run.eta_seconds))} left` : "";
  return h("div", { class: "run-progress" }, h("div", { class: "meter", data: { status: run.status } }, h("i", { style: { width: `${share * 100}%` } })), h("span", { class: "under" }, text + left));
}
