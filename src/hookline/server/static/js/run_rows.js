// The rows of the table of runs as the server gives them: pages are requested as they come into sight.

import { request } from "./api.js";

const PAGE = 100;
const MAX_REQUESTS = 3;

/**
 * @typedef {{id: string, name: string, project: string, status: string, message: string, problems: number, cells: any[]}} TableRow
 */

export class RunRows {
  /** @type {Map<number, TableRow[]>} */
  #pages = new Map();
  #requested = new Set();
  #query;
  #changed;
  #controller = new AbortController();
  #seen = [0, 0];
  total = 0;
  matching = 0;
  runs = 0;
  isKnown = false;

  /**
   * @param {Record<string, unknown>} query the parameters but for the page
   * @param {(error?: Error) => void} changed
   */
  constructor(query, changed) {
    [this.#query, this.#changed] = [query, changed];
  }

  destroy() {
    this.#controller.abort();
  }

  /** A row; undefined until it is received. @param {number} index @returns {TableRow | undefined} */
  at(index) {
    return this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  /** The rows that are known now. */
  get received() {
    return [...this.#pages.values()].flat();
  }

  /** Request the pages with some rows that are not known yet. @param {number} first @param {number} last */
  see(first, last) {
    this.#seen = [first, last];
    this.#next();
  }

  /** Request the rows in sight again; the others when they come into sight. */
  refresh() {
    const [first, last] = this.#seen.map((index) => Math.floor(index / PAGE));
    for (const page of [...this.#pages.keys()]) if (page < first || page > last) this.#pages.delete(page);
    for (let page = first; page <= Math.max(first, last); page += 1) this.#load(page);
  }

  /** Request only pages in sight now, not those that were scrolled past. */
  #next() {
    const [first, last] = this.#seen.map((index) => Math.floor(index / PAGE));
    for (let page = first; page <= Math.max(first, last) && this.#requested.size < MAX_REQUESTS; page += 1)
      if (!this.#pages.has(page)) this.#load(page);
  }

  async #load(page) {
    if (this.#requested.has(page)) return;
    this.#requested.add(page);
    try {
      const found = await request("run_table", { ...this.#query, limit: PAGE, offset: page * PAGE }, this.#controller.signal);
      this.#pages.set(page, found.rows);
      for (const key of [...this.#pages.keys()]) if (key * PAGE >= found.total && key > 0) this.#pages.delete(key);
      [this.total, this.matching, this.runs, this.isKnown] = [found.total, found.matching, found.runs, true];
      this.#requested.delete(page);
      if (this.#controller.signal.aborted) return;
      this.#changed();
      this.#next();
    } catch (error) {
      this.#requested.delete(page);
      if (!this.#controller.signal.aborted) this.#changed(error);
    }
  }
}
