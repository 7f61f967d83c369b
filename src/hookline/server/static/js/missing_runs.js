// The runs that the address names and that are not here, in words: nothing else is shown in their place.

import { fill, h } from "./dom.js";

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
    fill(
      this.element,
      lines.map((text) => h("p", { class: "message", data: { status: "stalled" } }, text)),
    );
  }
}
