// Throughput, memory, processor and devices: the metrics that say how well the machine is used.

import { ChartBoard } from "../chart_board.js";
import { h } from "../dom.js";
import { RunList } from "../run_list.js";
import { MissingRuns, RunProblems } from "../run_status.js";

const SYSTEM =
  /^(system|memory|throughput|gpu|perf|time)\/|(_per_second|step_time|seconds_per_step|_mib|_gib|utilization)/;

export class SystemView {
  constructor(app) {
    const nothing =
      'Add the callbacks "throughput_monitor" and "resource_monitor" to a run to see how well it uses its machine.';
    this.board = new ChartBoard(app, {
      name: "system",
      accepts: (name) => SYSTEM.test(name) && !/(^|\/)hooks\//.test(name),
      nothing,
      closed: [],
    });
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
    this.list.destroy();
    this.problems.destroy();
    this.missing.destroy();
    this.board.destroy();
  }
}
