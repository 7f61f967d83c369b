// What is missing or damaged in the record of runs, in words, where the runs are looked at.

import { fill, h } from "./dom.js";

const MOST_RUNS = 20;

/** The problems of one run. @param {import("./run_book.js").Run} run @param {number} most how many are said in full */
export function problemLines(run, most = 2) {
  const rest = run.problems.slice(most);
  return [
    ...run.problems.slice(0, most).map((problem) => h("p", { class: "problem" }, problem)),
    rest.length > 0 &&
      h("p", { class: "problem", title: rest.join("\n") }, `and ${rest.length} more: a click on the name shows all`),
  ];
}

/** The problems of the runs that a view is about; nothing where there are none. */
export class RunProblems {
  #book;
  #runs;
  #said = "";
  #ends;

  /** @param {any} app @param {() => import("./run_book.js").Run[]} [runs] those that are chosen by default */
  constructor(app, runs = () => app.selection.runs) {
    this.#book = app.book;
    this.#runs = runs;
    this.element = h("div", { class: "missing", role: "note", hidden: true });
    this.#ends = [app.book.listen(() => this.show()), app.selection.listen(() => this.show())];
    this.show();
  }

  destroy() {
    this.#ends.forEach((end) => end());
  }

  show() {
    const wrong = this.#runs().filter((run) => run?.problems.length);
    const said = JSON.stringify(wrong.map((run) => [this.#book.nameOf(run.id), run.problems]));
    if (said === this.#said) return;
    this.#said = said;
    this.element.hidden = !wrong.length;
    const which = wrong.length === 1 ? "one run" : `${wrong.length} runs`;
    const title = `Something is missing from ${which}`;
    const rows = wrong
      .slice(0, MOST_RUNS)
      .map((run) => h("li", {}, h("b", {}, this.#book.nameOf(run.id)), `: ${run.problems.join("; ")}`));
    fill(this.element, h("details", { open: wrong.length < 3 }, h("summary", {}, title), h("ul", {}, rows)));
  }
}
