// Charts of the selected runs: all metrics, or those of the machine (throughput, memory, processor, devices).

import { ChartBoard } from "../chart_board.js";
import { h } from "../dom.js";
import { RunList } from "../run_list.js";
import { MissingRuns, RunProblems } from "../run_status.js";

const HOOKS = /(^|\/)hooks\//;
const SYSTEM =
  /^(system|memory|throughput|gpu|perf|time)\/|(_per_second|step_time|seconds_per_step|_mib|_gib|utilization)/;

const ALL = { name: "charts", nothing: "Select runs with recorded metrics.", accepts: (_name) => true, hasMedia: true };

export class ChartsView {
  /** @param {any} app @param {{name: string, nothing: string, accepts: (name: string) => boolean, closed?: string[],
   *   hasMedia?: boolean}} board */
  constructor(app, board = ALL) {
    this.board = new ChartBoard(app, { ...board, accepts: (name) => board.accepts(name) && !HOOKS.test(name) });
    this.list = new RunList(app, (run) => this.board.colourFor(run));
    this.board.onLook = () => this.list.show();
    // A row of the list has the id of its run as its title.
    const pointed = (event) => this.board.highlightRun(event.target.closest?.(".run-row")?.title ?? null);
    for (const kind of ["pointerover", "focusin"]) this.list.element.addEventListener(kind, pointed);
    for (const kind of ["pointerleave", "focusout"]) this.list.element.addEventListener(kind, () => this.board.highlightRun(null));
    this.problems = new RunProblems(app);
    this.missing = new MissingRuns(app);
    this.element = h("div", { class: "with-side" }, this.list.element, this.board.element);
    this.board.element.prepend(this.missing.element, this.problems.element);
  }

  press(event) {
    this.board.press(event);
  }

  destroy() {
    for (const part of [this.list, this.problems, this.missing, this.board]) part.destroy();
  }
}

export class SystemView extends ChartsView {
  constructor(app) {
    const nothing = 'Add the callbacks "throughput_monitor" and "resource_monitor" to a run to record system metrics.';
    super(app, { name: "system", nothing, accepts: (name) => SYSTEM.test(name), closed: [] });
  }
}
