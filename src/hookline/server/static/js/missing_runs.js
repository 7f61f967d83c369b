// The runs that were chosen and are not shown, in words: because they are not here, or because they are too many.

import { fill, h } from "./dom.js";
import { whole } from "./format.js";

const MOST = 10;

export class MissingRuns {
  #app;
  #ends;

  constructor(app) {
    this.#app = app;
    this.element = h("div", { class: "notes", role: "note" });
    this.#ends = [app.book.listen(() => this.show()), app.selection.listen(() => this.show())];
    this.show();
  }

  destroy() {
    this.#ends.forEach((end) => end());
  }

  show() {
    const ids = this.#app.selection.missing;
    const lines = ids.slice(0, MOST).map((id) => `There is no run ${id} here.`);
    if (ids.length > MOST) lines.push(`Nor are ${ids.length - MOST} more.`);
    const [chosen, asked] = [this.#app.selection.ids.length, this.#app.selection.asked.length];
    if (asked < chosen)
      lines.push(
        `${whole(chosen)} runs are chosen. The first ${whole(asked)} of them are shown: choose fewer to see the others.`,
      );
    fill(
      this.element,
      lines.map((text) => h("p", { class: "message", data: { status: "stalled" } }, text)),
    );
  }
}
