// Charts of the selected runs: all metrics, or those of the machine (throughput, memory, processor, devices).

import { ChartBoard } from "../chart_board.js";
import { h } from "../dom.js";
import { RunList } from "../run_list.js";
import { MissingRuns, RunProblems } from "../run_status.js";

const HOOKS = /(^|\/)hooks\//;
const SYSTEM =
  /^(system|memory|throughput|gpu|perf|time)\/|(_per_second|step_time|seconds_per_step|_mib|_gib|utilization)/;

export class ChartsView {
  constructor(app, board = { name: "charts", nothing: "Select runs with recorded metrics.", accepts: () => true }) {
    this.board = new ChartBoard(app, { ...board, accepts: (name) => board.accepts(name) && !HOOKS.test(name) });
    this.list = new RunList(app, (run) => this.board.colourFor(run));
    this.board.onLook = () => this.list.show();
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
