// Charts of the metrics of the selected runs.

import { ChartBoard } from "../chart_board.js";
import { h } from "../dom.js";
import { RunList } from "../run_list.js";
import { MissingRuns, RunProblems } from "../run_status.js";

export class ChartsView {
  constructor(app) {
    this.board = new ChartBoard(app, {
      name: "charts",
      nothing: "Select runs with recorded metrics.",
      accepts: (name) => !/(^|\/)hooks\//.test(name),
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
