// Hooks: the cost and order of subscribers, sinks, events and log lines.

import { LatestRequest, NoAnswerError } from "../api.js";
import { Chart } from "../chart.js";
import { empty, failed, fill, h, later, select, throttled } from "../dom.js";
import { clock, dateTime, whole } from "../format.js";
import { costLines, costTable, isGrave, orderTables, timeline } from "../hook_tables.js";
import { RunList } from "../run_list.js";
import { sinkTable } from "../run_parts.js";
import { MissingRuns } from "../run_status.js";
import { end, legendChips, numberTable } from "../tables.js";
import { listenToTheme } from "../theme.js";

const LINES = 300;
const MAX_EVENTS = 100;

export class HooksView {
  #app;
  #level;
  #text;
  #history = [];
  #orderShown = "";
  #chart = null;
  #zoom = null;
  #requests = {
    hooks: new LatestRequest(),
    history: new LatestRequest(),
    order: new LatestRequest(),
    sinks: new LatestRequest(),
    events: new LatestRequest(),
    logs: new LatestRequest(),
  };
  #unsubscribe = [];

  constructor(app) {
    this.#app = app;
    this.#level = app.router.parameters.get("level") ?? "";
    this.#text = app.router.parameters.get("find") ?? "";
    this.list = new RunList(app);
    this.missing = new MissingRuns(app);
    this.costs = h("div");
    this.legend = h("div", { class: "legend" });
    this.chartHost = h("div", { class: "chart" });
    this.unknown = h("div"); // why there is no curve
    this.curve = h(
      "article",
      { class: "panel", hidden: true, data: { metric: "hook costs" } },
      h("header", {}, h("h3", {}, "Total time in milliseconds over steps"), this.legend),
      this.chartHost,
    );
    this.order = h("div");
    this.control = h("p", {}, h("a", { href: "#/control" }, "Control the selected run"));
    this.sinks = h("div");
    this.events = h("div");
    this.logs = h("div", { class: "log", role: "log", tabindex: "0", "aria-label": "Log lines" });
    this.logCount = h("span", { class: "count" });
    const search = h("input", {
      type: "search",
      value: this.#text,
      placeholder: "Find in log lines",
      "aria-label": "Find in log lines",
      data: { find: "" },
      oninput: later(() => {
        this.#text = search.value;
        app.router.set({ find: this.#text });
        this.#loadLogs();
      }, 250),
    });
    const level = select(
      "level",
      [
        ["", "all"],
        ["DEBUG", "debug"],
        ["INFO", "info"],
        ["WARNING", "warning"],
        ["ERROR", "error"],
      ],
      this.#level,
      (value) => {
        this.#level = value;
        app.router.push({ level: value });
        this.#loadLogs();
      },
    );
    const parts = [
      [h("h2", {}, "Cost of subscribers"), this.costs, this.unknown, this.curve],
      [h("h2", {}, "Order of subscribers"), this.order, this.control, h("p", {}, h("a", { href: "#/alerts" }, "Alerts of all runs"))],
      [h("h2", {}, "Sinks"), this.sinks],
      [h("h2", {}, "Events"), this.events],
      [h("h2", {}, "Log ", this.logCount), h("div", { class: "toolbar" }, search, level), this.logs],
    ];
    this.element = h(
      "div",
      { class: "with-side" },
      this.list.element,
      h(
        "div",
        { class: "page hooks" },
        this.missing.element,
        parts.map((part) => h("section", {}, part)),
      ),
    );
    const refresh = throttled(() => this.element.isConnected && this.#load(), 1500);
    this.#unsubscribe.push(
      app.store.listen((changed) => app.selection.ids.some((id) => changed.has(id)) && refresh()),
      app.selection.listen(() => this.#load()),
      listenToTheme(() => this.#drawHistory()),
    );
    this.#load();
  }

  destroy() {
    this.list.destroy();
    this.missing.destroy();
    this.#chart?.destroy();
    this.#unsubscribe.forEach((stop) => stop());
    Object.values(this.#requests).forEach((pending) => pending.cancel());
  }

  #load() {
    const run = this.#app.selection.requested;
    const [first = ""] = run;
    this.control.hidden = run.length !== 1;
    this.control.firstElementChild.setAttribute("href", `#/control?run=${encodeURIComponent(first)}`);
    if (!run.length) {
      this.curve.hidden = true;
      fill(this.unknown);
      this.#orderShown = "";
      const parts = [this.costs, this.order, this.sinks, this.events, this.logs];
      return void parts.forEach((part) => fill(part, empty("Select runs")));
    }
    this.#ask("hooks", "hooks", { run }, this.costs, (answer) => this.#showCosts(answer.hooks));
    this.#ask("history", "hooks", { run, history: "yes" }, this.unknown, (answer) => this.#showHistory(answer.hooks));
    this.#ask("order", "order", { run }, this.order, (answer) => this.#showOrder(answer.order));
    this.#ask("sinks", "sinks", { run }, this.sinks, (answer) => this.#showSinks(answer.sinks));
    this.#ask("events", "events", { run, limit: 300 }, this.events, (answer) => this.#showEvents(answer));
    this.#loadLogs();
  }

  #loadLogs() {
    const parameters = { run: this.#app.selection.requested, level: this.#level, text: this.#text, limit: LINES };
    if (parameters.run.length) this.#ask("logs", "logs", parameters, this.logs, (answer) => this.#showLogs(answer));
  }

  async #ask(question, path, parameters, part, show) {
    try {
      const answer = await this.#requests[question].get(path, parameters);
      if (!answer) return;
      show(answer);
      part.dataset.asked = JSON.stringify(parameters);
    } catch (error) {
      if (error instanceof NoAnswerError && part.dataset.asked === JSON.stringify(parameters)) return;
      if (part === this.order) this.#orderShown = "";
      fill(part, failed(error, () => this.#ask(question, path, parameters, part, show)));
    }
  }

  #runName(id) {
    return this.#app.store.nameOf(id);
  }

  #showCosts(hooks) {
    if (hooks.length) return void fill(this.costs, costTable(hooks, (id) => this.#runName(id)));
    const text = "No costs are recorded yet. They are recorded about once a minute and when a run ends.";
    fill(this.costs, h("p", { class: "muted" }, text));
  }

  #showHistory(hooks) {
    this.#history = hooks;
    fill(this.unknown);
    this.#drawHistory();
  }

  #showOrder(order) {
    const key = JSON.stringify(order);
    if (key === this.#orderShown) return; // keeps unfolded parts open
    this.#orderShown = key;
    const text = "No order is recorded: these runs have no subscribers, or have not started training.";
    fill(this.order, order.length ? orderTables(order, (id) => this.#runName(id)) : h("p", { class: "muted" }, text));
  }

  #drawHistory() {
    const lines = costLines(this.#history, (id) => this.#runName(id));
    this.curve.hidden = !lines.length;
    if (!lines.length) return;
    fill(this.legend, legendChips(lines.slice(0, 8)));
    this.#chart ??= new Chart(this.chartHost, (zoom) => {
      this.#zoom = zoom;
      this.#drawHistory();
    });
    this.#chart.show(lines, {
      x: "step",
      logX: false,
      logY: false,
      smoothing: 0,
      leavesOut: false,
      zoom: this.#zoom,
    });
  }

  #showSinks(sinks) {
    if (!sinks.length)
      return void fill(
        this.sinks,
        h("p", { class: "muted" }, "These runs have no sinks; their records are in their journals."),
      );
    fill(this.sinks, sinkTable(sinks, (sink) => this.#runName(sink.run)));
  }

  #showEvents({ total, events }) {
    if (!events.length) return void fill(this.events, h("p", { class: "muted" }, "No events yet."));
    const shown = events.toReversed().slice(0, MAX_EVENTS);
    const rows = shown.map((event) =>
      h(
        "tr",
        { data: { grave: String(isGrave(event)) } },
        h("td", {}, h("time", { title: dateTime(event.time) }, clock(event.time))),
        end(event.step === null ? "" : whole(event.step)),
        h("th", { scope: "row" }, event.name),
        h("td", { class: "wide-text" }, event.message || dataText(event.data)),
        h("td", { class: "muted" }, this.#runName(event.run)),
      ),
    );
    const left = total > rows.length && h("p", { class: "muted" }, `The latest ${rows.length} of ${whole(total)}`);
    const attributes = { class: "scroll tall events", tabindex: "0", role: "region", "aria-label": "Events" };
    const table = numberTable(["time", ">step", "event", "", "run"], rows, attributes);
    fill(this.events, timeline(events), table, left);
  }

  #showLogs({ total, lines }) {
    const isAtEnd = this.logs.scrollTop + this.logs.clientHeight >= this.logs.scrollHeight - 8;
    this.logCount.textContent = total > lines.length ? `the latest ${lines.length} of ${whole(total)}` : whole(total);
    fill(
      this.logs,
      lines.map((line) =>
        h(
          "div",
          { class: "line", data: { level: line.level } },
          h("time", { title: dateTime(line.time) }, clock(line.time)),
          h("b", {}, line.level),
          h("span", { class: "muted" }, line.logger),
          h("span", {}, line.message),
        ),
      ),
      !lines.length && h("p", { class: "muted" }, "No log lines."),
    );
    if (isAtEnd) this.logs.scrollTop = this.logs.scrollHeight;
  }
}

function dataText(data) {
  return Object.entries(data)
    .map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(" · ");
}
