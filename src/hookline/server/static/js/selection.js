// The runs that charts and tables are about: from the address, from the last visit, or the latest.

import { firstRuns } from "./api.js";
import { recall, remember } from "./settings.js";

export class Selection {
  #book;
  #router;
  #ids = null;
  #listeners = new Set();

  /** @param {import("./run_book.js").RunBook} book @param {import("./router.js").Router} router */
  constructor(book, router) {
    this.#book = book;
    this.#router = router;
    this.#ids = recall("selection", null);
  }

  /** The ids of the chosen runs that there are. */
  get ids() {
    const given = this.#router.parameters.getAll("run");
    const wanted = given.length ? given : (this.#ids ?? []);
    const known = wanted.filter((id) => this.#book.byId.has(id));
    return known.length || given.length || this.#ids?.length === 0 ? known : this.#book.latest();
  }

  /** The ids in the address that no run has. */
  get missing() {
    return this.#router.parameters.getAll("run").filter((id) => !this.#book.byId.has(id));
  }

  /** The ids that requests are about: all, or as many as the server reads at once. */
  get asked() {
    return firstRuns(this.ids);
  }

  get runs() {
    return this.ids.map((id) => this.#book.byId.get(id));
  }

  /** @param {string[]} ids */
  set(ids) {
    this.#ids = ids;
    remember("selection", this.#ids);
    this.#router.set({ run: this.#ids });
    for (const listener of [...this.#listeners]) listener();
  }

  /** @param {string[]} ids @param {boolean} on */
  turn(ids, on) {
    const turned = new Set(ids);
    const now = this.ids.filter((id) => !turned.has(id));
    this.set(on ? [...now, ...ids] : now);
  }

  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}
