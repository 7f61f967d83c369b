// The rows of a long table: only those in sight are in the document. Spacer rows stand for the others.

import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from "../vendor/virtual/index.js";
import { focusKey, focusedKey, h } from "./dom.js";

const OVERSCAN = 12;

/**
 * A row: it is created again when one of its sources is another object or value.
 * @typedef {{sources: any[], make: () => HTMLElement}} Row
 */

export class VirtualRows {
  #body;
  #rowAt;
  #virtualizer;
  #height;
  #unmount;
  /** @type {Map<number, {sources: any[], element: HTMLElement}>} */
  #shown = new Map();
  /** The row with the focus: it stays in the document when it is scrolled out of sight. */
  #focused = -1;
  #count = 0;
  #seen;

  /**
   * @param {HTMLElement} scroller @param {HTMLElement} body
   * @param {{height: number, rowAt: (index: number) => Row, seen: (first: number, last: number) => void}} options
   *   `seen` is called with the rows in sight
   */
  constructor(scroller, body, { height, rowAt, seen }) {
    this.#body = body;
    this.#rowAt = rowAt;
    this.#seen = seen;
    this.#height = height;
    this.scroller = scroller;
    this.#virtualizer = new Virtualizer(this.#options());
    this.#unmount = this.#virtualizer._didMount();
    body.addEventListener("focusin", (event) => (this.#focused = indexOf(event.target)));
    body.addEventListener("focusout", () => (this.#focused = -1));
    body.addEventListener("keydown", (event) => this.#press(event));
  }

  destroy() {
    this.#unmount();
  }

  #options() {
    return {
      count: this.#count,
      getScrollElement: () => this.scroller,
      estimateSize: () => this.#height,
      overscan: OVERSCAN,
      scrollToFn: elementScroll,
      observeElementRect,
      observeElementOffset,
      scrollPaddingStart: this.#height + 8, // the head of the table lies over the first row
      onChange: () => this.show(),
    };
  }

  /** @param {number} count */
  resize(count) {
    if (count !== this.#count) {
      this.#count = count;
      this.#virtualizer.setOptions(this.#options());
    }
    this.#virtualizer._willUpdate();
    this.show();
  }

  scrollTo(index) {
    this.#virtualizer.scrollToIndex(index);
  }

  /** Render the rows in sight. */
  show() {
    const places = this.#virtualizer.getVirtualItems().map((item) => item.index);
    const [first, last] = [places[0] ?? 0, places.at(-1) ?? -1];
    if (this.#focused >= this.#count) this.#focused = -1;
    if (this.#focused >= 0 && this.#focused < first) places.unshift(this.#focused);
    if (this.#focused > last) places.push(this.#focused);
    const focused = focusedKey(this.#body);
    const shown = new Map();
    const children = [];
    let next = 0;
    for (const index of places) {
      if (index > next) children.push(this.#spacer(children.length, index - next));
      const { sources, make } = this.#rowAt(index);
      const before = this.#shown.get(index);
      const isSame = before?.sources.length === sources.length && sources.every((each, at) => each === before.sources[at]);
      const element = isSame ? before.element : make();
      if (!isSame) {
        element.dataset.index = String(index);
        element.setAttribute("aria-rowindex", String(index + 2)); // the head is the first
      }
      shown.set(index, { sources, element });
      children.push(element);
      next = index + 1;
    }
    if (next < this.#count) children.push(this.#spacer(children.length, this.#count - next));
    this.#shown = shown;
    replace(this.#body, children);
    if (focused !== null && focusedKey(this.#body) === null) focusKey(this.#body, focused);
    this.#seen(first, last);
  }

  #spacer(key, rows) {
    const cell = h("td", { style: { height: `${rows * this.#height}px` } });
    return h("tr", { class: "spacer", "aria-hidden": "true", data: { spacer: key } }, cell);
  }

  /** Arrow keys move between rows, to the same control. */
  #press(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };
    const from = indexOf(event.target);
    if (!(event.key in moves) || from < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const index = Math.max(0, Math.min(this.#count - 1, from + moves[event.key]));
    const isBox = event.target.matches("input");
    this.#focused = index;
    this.#virtualizer.scrollToIndex(index);
    this.show();
    const control = this.#shown.get(index)?.element.querySelector(isBox ? "input" : "a, button");
    /** @type {HTMLElement | null} */ (control)?.focus({ preventScroll: true });
  }
}

function indexOf(element) {
  return Number(element.closest("tr")?.dataset.index ?? -1);
}

/** Replace children, without moving those that stay: a moved one loses the focus. */
function replace(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  let at = parent.firstChild;
  for (const child of children) {
    if (child === at) at = at.nextSibling;
    else parent.insertBefore(child, at);
  }
}
