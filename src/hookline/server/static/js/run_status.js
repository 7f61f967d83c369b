// The status of runs, problems with their records, and notes about selected runs that are not shown.

import { fill, h } from "./dom.js";
import { whole } from "./format.js";

const MEANING = {
  running: "The run is making progress.",
  stalled: "The process is alive, but made no progress for a while.",
  finished: "The run completed.",
  stopped: "The run was stopped.",
  failed: "The run ended with an error.",
  killed: "The process died without reporting why.",
};

/** @param {string} status */
export function statusBadge(status) {
  return h(
    "span",
    { class: "status", data: { status }, title: MEANING[status] ?? "" },
    h("i", { "aria-hidden": "true" }),
    status,
  );
}

const MAX_RUNS = 20;

/** The problems of one run. @param {import("./run_store.js").Run} run @param {number} most how many are shown in full */
export function problemLines(run, most = 2) {
  const rest = run.problems.slice(most);
  return [
    ...run.problems.slice(0, most).map((problem) => h("p", { class: "problem" }, problem)),
    rest.length > 0 &&
      h("p", { class: "problem", title: rest.join("\n") }, `and ${rest.length} more: click the name to see all`),
  ];
}

/** The problems of the runs of a view; hidden if there are none. */
export class RunProblems {
  #store;
  #runs;
  #shown = "";
  #unsubscribe;

  /** @param {any} app @param {() => import("./run_store.js").Run[]} [runs] the selected ones by default */
  constructor(app, runs = () => app.selection.runs) {
    this.#store = app.store;
    this.#runs = runs;
    this.element = h("div", { class: "missing", role: "note", hidden: true });
    this.#unsubscribe = [app.store.listen(() => this.show()), app.selection.listen(() => this.show())];
    this.show();
  }

  destroy() {
    this.#unsubscribe.forEach((stop) => stop());
  }

  show() {
    const wrong = this.#runs().filter((run) => run?.problems.length);
    const key = JSON.stringify(wrong.map((run) => [this.#store.nameOf(run.id), run.problems]));
    if (key === this.#shown) return;
    this.#shown = key;
    this.element.hidden = !wrong.length;
    const which = wrong.length === 1 ? "one run" : `${wrong.length} runs`;
    const title = `Problems in the records of ${which}`;
    const rows = wrong
      .slice(0, MAX_RUNS)
      .map((run) => h("li", {}, h("b", {}, this.#store.nameOf(run.id)), `: ${run.problems.join("; ")}`));
    fill(this.element, h("details", { open: wrong.length < 3 }, h("summary", {}, title), h("ul", {}, rows)));
  }
}

const MAX_LISTED = 10;

export class MissingRuns {
  #app;
  #unsubscribe;

  constructor(app) {
    this.#app = app;
    this.element = h("div", { class: "notes", role: "note" });
    this.#unsubscribe = [app.store.listen(() => this.show()), app.selection.listen(() => this.show())];
    this.show();
  }

  destroy() {
    this.#unsubscribe.forEach((stop) => stop());
  }

  show() {
    const ids = this.#app.selection.missing;
    const lines = ids.slice(0, MAX_LISTED).map((id) => `There is no run ${id}.`);
    if (ids.length > MAX_LISTED) lines.push(`And ${ids.length - MAX_LISTED} more are missing.`);
    const [selected, requested] = [this.#app.selection.ids.length, this.#app.selection.requested.length];
    if (requested < selected)
      lines.push(
        `${whole(selected)} runs are selected; only the first ${whole(requested)} are shown.`,
      );
    fill(
      this.element,
      lines.map((text) => h("p", { class: "message", data: { status: "stalled" } }, text)),
    );
  }
}
