// Console: what a run printed, and why it failed.

import { ansiText } from "../ansi.js";
import { LatestRequest, NoAnswerError } from "../api.js";
import { empty, failed, fill, h, later, select, throttled, toggle } from "../dom.js";
import { clock, dateTime, whole } from "../format.js";
import { RunList } from "../run_list.js";
import { MissingRuns } from "../run_status.js";
import { isOver } from "../run_store.js";

const LINES = 500;
const MAX_LINES = 2000;
const REFRESH_MS = 1500;

/** Why a run failed, as elements. @param {any[]} failures @param {string} [heading] of a failure of the first rank */
export function failureParts(failures, heading = "Failure") {
  return failures.map((failure) => {
    const title = failure.rank ? `Failure of rank ${failure.rank}` : heading;
    const place = failure.place && `${failure.place.file}:${failure.place.line}`;
    if (failure.is_interrupt)
      return h(
        "p",
        { class: "message", data: { status: "stopped" } },
        `Interrupted by ${failure.type}${place ? ` at ${place}` : ""}`,
      );
    return h(
      "section",
      { class: "failure" },
      title && h("h4", {}, title),
      h("p", {}, h("b", {}, failure.type), failure.message && `: ${failure.message}`),
      place && h("p", { class: "muted" }, place),
      h("pre", { tabindex: "0" }, failure.traceback),
    );
  });
}

export class ConsoleView {
  #app;
  #run = "";
  #filter;
  #limit = LINES;
  #follows = true;
  #requests = { console: new LatestRequest(), failures: new LatestRequest() };
  #unsubscribe = [];
  #timer = 0;
  #ranks = "";
  #shownFor = "";

  constructor(app) {
    this.#app = app;
    const given = app.router.parameters;
    this.#run = given.get("shown") ?? "";
    this.#filter = { search: given.get("find") ?? "", stream: given.get("stream") ?? "shown", rank: given.get("rank") ?? "" };
    this.list = new RunList(app);
    this.missing = new MissingRuns(app);
    this.runs = h("div");
    this.ranks = h("div");
    this.failures = h("div");
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.#showMore() }, "Earlier lines");
    this.lines = h("div", { class: "log console", role: "log", tabindex: "0", "aria-label": "Console" });
    const search = h("input", {
      type: "search",
      value: this.#filter.search,
      placeholder: "Find in lines",
      "aria-label": "Find in lines",
      data: { find: "" },
      oninput: later(() => this.#ask({ search: search.value }), 250),
    });
    const streams = [
      ["shown", "output and error"],
      ["stdout", "output"],
      ["stderr", "error"],
      ["log", "log records"],
    ];
    this.element = h(
      "div",
      { class: "with-side" },
      this.list.element,
      h(
        "div",
        { class: "page hooks" },
        this.missing.element,
        h(
          "div",
          { class: "toolbar" },
          this.runs,
          search,
          select("stream", streams, this.#filter.stream, (stream) => this.#ask({ stream })),
          this.ranks,
          toggle("follow", true, (on) => {
            this.#follows = on;
            this.#load();
          }),
        ),
        this.failures,
        this.more,
        this.lines,
      ),
    );
    const refresh = throttled(() => this.element.isConnected && this.#load(), REFRESH_MS);
    this.#unsubscribe.push(
      app.store.listen((changed) => changed.has(this.#run) && refresh()),
      app.selection.listen(() => this.#choose()),
    );
    // Lines may come without any change of the run that the list would show.
    this.#timer = setInterval(() => {
      const run = this.#app.store.byId.get(this.#run);
      if (this.#follows && run && !isOver(run)) refresh();
    }, REFRESH_MS);
    this.#choose();
  }

  destroy() {
    clearInterval(this.#timer);
    this.list.destroy();
    this.missing.destroy();
    this.#unsubscribe.forEach((stop) => stop());
    Object.values(this.#requests).forEach((pending) => pending.cancel());
  }

  #choose() {
    const ids = this.#app.selection.requested;
    if (!ids.includes(this.#run)) this.#run = ids[0] ?? "";
    const options = ids.map((id) => [id, this.#app.store.nameOf(id)]);
    const change = (id) => {
      this.#run = id;
      this.#app.router.push({ shown: id });
      this.#load();
    };
    fill(this.runs, ids.length > 1 && select("run", options, this.#run, change));
    this.#limit = LINES;
    this.#load();
  }

  #ask(changes) {
    Object.assign(this.#filter, changes);
    const { search, stream, rank } = this.#filter;
    this.#app.router.set({ find: search, stream: stream === "shown" ? null : stream, rank });
    this.#limit = LINES;
    this.#load();
  }

  #showMore() {
    this.#limit = Math.min(MAX_LINES, this.#limit + LINES);
    this.#load();
  }

  async #load() {
    if (!this.#run) {
      fill(this.failures);
      return void fill(this.lines, empty("Select a run"));
    }
    try {
      const parameters = { id: this.#run, ...this.#filter, limit: this.#limit };
      const [answer, tracebacks] = await Promise.all([
        this.#requests.console.get("console", parameters),
        this.#requests.failures.get("failures", { id: this.#run }),
      ]);
      if (tracebacks) fill(this.failures, failureParts(tracebacks.failures));
      if (!answer) return;
      this.#show(answer);
      this.#shownFor = this.#question;
    } catch (error) {
      if (error instanceof NoAnswerError && this.#shownFor === this.#question) return;
      this.#shownFor = "";
      fill(this.lines, failed(error, () => this.#load()));
    }
  }

  /** What decides which lines are shown. */
  get #question() {
    return JSON.stringify([this.#run, this.#filter]);
  }

  #show({ lines, has_earlier: hasEarlier, ranks }) {
    const isAtEnd = this.lines.scrollTop + this.lines.clientHeight >= this.lines.scrollHeight - 8;
    if (JSON.stringify(ranks) !== this.#ranks) {
      this.#ranks = JSON.stringify(ranks);
      const options = [["", "all"], ...ranks.map((rank) => [String(rank), whole(rank)])];
      fill(this.ranks, ranks.length > 1 && select("rank", options, this.#filter.rank, (rank) => this.#ask({ rank })));
    }
    const isAll = !this.#filter.search && !this.#filter.rank && this.#filter.stream === "shown";
    this.more.hidden = !hasEarlier || this.#limit >= MAX_LINES;
    fill(
      this.lines,
      lines.map((line) =>
        h(
          "div",
          { class: "line", data: { stream: line.stream, level: line.level } },
          h("time", { title: dateTime(line.time) + atStep(line) }, clock(line.time)),
          (line.actor || ranks.length > 1) && h("b", {}, line.actor || `rank ${line.rank}`),
          line.level && h("b", {}, line.level),
          h("span", {}, ansiText(line.text)),
        ),
      ),
      !lines.length && h("p", { class: "muted" }, isAll ? "This run printed nothing." : "No line matches."),
    );
    if (isAtEnd && this.#follows) this.lines.scrollTop = this.lines.scrollHeight;
  }
}

function atStep(line) {
  return line.step === null ? "" : `, step ${whole(line.step)}`;
}
