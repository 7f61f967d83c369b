// Parallel coordinates: one line per run over axes side by side. Lines are on a canvas, so thousands of them stay fluid;
// axes, their names and brushes are elements, so they can be focused and read. The nearest line is found by distance.

import { fill, h } from "./dom.js";
import { MISSING, NOT_FINITE, brushOver, kept, placeOf, shades } from "./sweep_axes.js";
import { colour, isDark, listenToTheme } from "./theme.js";

/** @typedef {import("./sweep_axes.js").Axis} Axis */
/** @typedef {import("./sweep_axes.js").Brush} Brush */
/**
 * Of each run: whether it is inside the brushes, its shade (-1 without a result), and whether it is set apart.
 * @typedef {{inside: Uint8Array, shade: Int16Array, apart: Uint8Array}} Lines
 */

const HEIGHT = 380;
const TOP = 46;
const BOTTOM = 14;
const SIDE = 70;
const ROW = 24;
/** The smallest distance between two axes; with more of them, the chart scrolls sideways. */
const APART = 118;
/** How far the pointer may be from a line, in pixels. */
const REACH = 14;
const MOVED = 4;
const MAX_TICK_TEXT = 14;
/** With more lines than this they are one pixel wide: wider ones take the browser ten times as long. */
const MANY = 150;
const HAIRLINE = 1;

export class ParallelAxes {
  #axes = /** @type {Axis[]} */ ([]);
  #brushes = /** @type {Brush[]} */ ([]);
  #runs = /** @type {Lines} */ ({ inside: new Uint8Array(), shade: new Int16Array(), apart: new Uint8Array() });
  #order = /** @type {number[]} */ ([]);
  #ys = /** @type {Float32Array[]} */ ([]);
  #rows = { odd: 0, missing: 0, bottom: HEIGHT - BOTTOM };
  #hovered = -1;
  #isDragged = false;
  #frame = 0;
  #listener;
  #observer;
  #unsubscribe;

  /**
   * @param {{hovered: (run: number, event: PointerEvent | null) => void, opened: (run: number) => void,
   *   brushed: (field: string, brush: Brush | null, isDone: boolean) => void, moved: (field: string, place: number) => void,
   *   chosen: (field: string) => void}} listener
   */
  constructor(listener) {
    this.#listener = listener;
    // All lines, drawn once; those inside the brushes, drawn as the brushes move; the one under the pointer.
    this.ground = h("canvas", { "aria-hidden": "true" });
    this.lines = h("canvas", { "aria-hidden": "true" });
    this.over = h("canvas", { "aria-hidden": "true" });
    this.axes = h("div", { class: "parallel-axes" });
    this.inner = h(
      "div",
      {
        class: "parallel-inner",
        style: { height: `${HEIGHT}px` },
        onpointermove: (event) => this.#point(event),
        onpointerleave: () => this.#hover(-1, null),
        onclick: (event) => this.#open(event),
      },
      this.ground,
      this.lines,
      this.over,
      this.axes,
    );
    this.element = h("div", { class: "parallel scroll", tabindex: "0", role: "region", "aria-label": "Parallel coordinates" }, this.inner);
    this.#observer = new ResizeObserver(() => this.#layout());
    this.#observer.observe(this.element);
    this.#unsubscribe = listenToTheme(() => this.#layout());
  }

  destroy() {
    this.#observer.disconnect();
    this.#unsubscribe();
    cancelAnimationFrame(this.#frame);
  }

  /** @param {Axis[]} axes @param {Brush[]} brushes @param {Lines} runs */
  show(axes, brushes, runs) {
    this.#axes = axes;
    this.#brushes = brushes;
    this.#runs = runs;
    // The best lines are drawn last, over the others.
    this.#order = [...runs.shade.keys()].sort((a, b) => runs.shade[a] - runs.shade[b]);
    this.#layout();
  }

  /** Brushes and the runs inside them changed. @param {Brush[]} brushes @param {Uint8Array} inside */
  setBrushes(brushes, inside) {
    this.#brushes = brushes;
    this.#runs = { ...this.#runs, inside };
    this.#showBrushes();
    this.#draw();
  }

  /** Highlight a run; -1 for none. @param {number} run */
  highlight(run) {
    if (run === this.#hovered) return;
    this.#hovered = run;
    this.#drawHovered();
  }

  get #width() {
    return Math.max(this.element.clientWidth, SIDE * 2 + APART * (this.#axes.length - 1));
  }

  #x(place) {
    const count = this.#axes.length;
    return count > 1 ? SIDE + ((this.#width - 2 * SIDE) * place) / (count - 1) : this.#width / 2;
  }

  #y(place) {
    if (place === NOT_FINITE) return this.#rows.odd;
    if (place === MISSING) return this.#rows.missing;
    return this.#rows.bottom - place * (this.#rows.bottom - TOP);
  }

  #layout() {
    // New elements would lose the pointer: with live runs, new data may come at any time. The end of a drag draws all.
    if (!this.#axes.length || this.#isDragged) return;
    // Special values have separate rows below all axes.
    const has = (code) => this.#axes.some((axis) => axis.places.includes(code));
    let bottom = HEIGHT - BOTTOM;
    const rows = { odd: 0, missing: 0, bottom };
    if (has(MISSING)) [rows.missing, bottom] = [bottom - ROW / 2, bottom - ROW];
    if (has(NOT_FINITE)) [rows.odd, bottom] = [bottom - ROW / 2, bottom - ROW];
    rows.bottom = bottom - (bottom < HEIGHT - BOTTOM ? 10 : 0);
    this.#rows = rows;
    this.#ys = this.#axes.map((axis) => Float32Array.from(axis.places, (place) => this.#y(place)));
    this.inner.style.width = `${this.#width}px`;
    this.inner.style.setProperty("--apart", `${Math.max(60, this.#x(1) - this.#x(0) - 4)}px`);
    const ratio = devicePixelRatio || 1;
    for (const canvas of [this.ground, this.lines, this.over]) {
      [canvas.width, canvas.height] = [Math.round(this.#width * ratio), HEIGHT * ratio];
      [canvas.style.width, canvas.style.height] = [`${this.#width}px`, `${HEIGHT}px`];
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.#showAxes();
    this.#drawGround();
    this.#draw();
  }

  #showAxes() {
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.axisName : null;
    fill(
      this.axes,
      this.#axes.map((axis, place) => this.#axis(axis, place)),
    );
    if (focused) this.axes.querySelector(`[data-axis-name="${CSS.escape(focused)}"]`)?.focus();
    this.#showBrushes();
  }

  #axis(axis, place) {
    const { field } = axis;
    const name = h(
      "button",
      {
        type: "button",
        class: "axis-name",
        title: `${field}: drag to move, click for options`,
        data: { axisName: field },
        onpointerdown: (event) => this.#drag(event, field, place),
        onclick: (event) => event.stopPropagation(),
        onkeydown: (event) => this.#press(event, field, place),
      },
      // Cut at the front: long names differ at their ends.
      h("span", { class: "clip" }, h("bdi", {}, field)),
    );
    const zone = h("div", {
      class: "brush-zone",
      data: { zone: field },
      style: { top: `${TOP - 8}px`, height: `${HEIGHT - TOP - BOTTOM + 16}px` },
      onpointerdown: (event) => this.#brush(event, axis),
      onclick: (event) => event.stopPropagation(),
    });
    const marks = shownTicks(axis, this.#rows.bottom - TOP).map(({ at, text }) => mark(this.#y(at), text));
    if (axis.places.includes(NOT_FINITE)) marks.push(mark(this.#rows.odd, "NaN", true));
    if (axis.places.includes(MISSING)) marks.push(mark(this.#rows.missing, "none", true));
    return h(
      "div",
      { class: "parallel-axis", data: { axis: field }, style: { left: `${this.#x(place)}px` } },
      name,
      h("i", { class: "axis-line", style: { top: `${TOP}px`, height: `${this.#rows.bottom - TOP}px` } }),
      marks,
      h("div", { class: "axis-brushes" }),
      zone,
    );
  }

  #showBrushes() {
    for (const element of this.axes.children) {
      const axis = this.#axes.find((each) => each.field === element.dataset.axis);
      const brush = this.#brushes.find((each) => each.field === element.dataset.axis);
      element.dataset.brushed = String(Boolean(brush));
      fill(element.querySelector(".axis-brushes"), brush && this.#extents(axis, brush).map(brushBox));
    }
  }

  /** The parts of an axis that a brush covers, in pixels. @returns {[number, number][]} */
  #extents(axis, brush) {
    const { ranges, levels, odd, missing } = kept(axis, brush);
    const clipped = (value) => Math.min(1, Math.max(0, axis.isLog && value <= 0 ? 0 : placeOf(axis, value)));
    const half = 0.5 / Math.max(1, axis.levels.length);
    /** @type {[number, number][]} */
    const found = ranges.map(([low, high]) => [this.#y(clipped(high)), this.#y(clipped(low))]);
    for (const level of levels) {
      const at = (axis.levels.indexOf(level) + 0.5) / axis.levels.length;
      found.push([this.#y(at + half), this.#y(at - half)]);
    }
    if (odd && this.#rows.odd) found.push([this.#rows.odd - ROW / 2 + 2, this.#rows.odd + ROW / 2 - 2]);
    if (missing && this.#rows.missing) found.push([this.#rows.missing - ROW / 2 + 2, this.#rows.missing + ROW / 2 - 2]);
    return found;
  }

  // Drawing

  #drawGround() {
    const context = this.ground.getContext("2d");
    context.lineWidth = HAIRLINE / (devicePixelRatio || 1);
    this.#strokeAll(context, this.#order, colour("outside-line"), []);
  }

  #draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => {
      const context = this.lines.getContext("2d");
      context.clearRect(0, 0, this.#width, HEIGHT);
      const { inside, shade, apart } = this.#runs;
      const shown = this.#order.filter((run) => inside[run]);
      const isMany = shown.length > MANY;
      context.lineWidth = isMany ? HAIRLINE / (devicePixelRatio || 1) : 1.5;
      this.#strokeAll(context, shown.filter((run) => apart[run]), colour("bad"), [5, 4]);
      const palette = shades(isDark());
      context.globalAlpha = isMany ? 0.7 : 0.9;
      for (let from = 0; from < shown.length; ) {
        let to = from;
        while (to < shown.length && shade[shown[to]] === shade[shown[from]]) to += 1;
        const own = shown.slice(from, to).filter((run) => !apart[run]);
        this.#strokeAll(context, own, palette[Math.max(0, shade[shown[from]])], []);
        from = to;
      }
      context.globalAlpha = 1;
      this.#drawHovered();
    });
  }

  /** Lines of one colour are one path: a stroke per line would be much slower. */
  #strokeAll(context, runs, line, dash) {
    if (!runs.length) return;
    context.strokeStyle = line;
    context.setLineDash(dash);
    context.beginPath();
    for (const run of runs) this.#trace(context, run);
    context.stroke();
    context.setLineDash([]);
  }

  #trace(context, run) {
    this.#ys.forEach((ys, place) => (place ? context.lineTo(this.#x(place), ys[run]) : context.moveTo(this.#x(0), ys[run])));
  }

  #drawHovered() {
    const context = this.over.getContext("2d");
    context.clearRect(0, 0, this.#width, HEIGHT);
    const run = this.#hovered;
    this.inner.classList.toggle("hovered", run >= 0);
    if (run < 0 || run >= this.#runs.inside.length) return;
    context.lineJoin = "round";
    for (const [width, line] of [[6, colour("surface")], [3, colour("accent")]]) {
      context.lineWidth = Number(width);
      this.#strokeAll(context, [run], line, []);
    }
    context.fillStyle = colour("accent");
    this.#ys.forEach((ys, place) => {
      context.beginPath();
      context.arc(this.#x(place), ys[run], 4, 0, 2 * Math.PI);
      context.fill();
    });
  }

  // The pointer

  #position(event) {
    const { left, top } = this.inner.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  #point(event) {
    if (event.buttons) return;
    this.#hover(this.nearest(this.#position(event)), event);
  }

  #hover(run, event) {
    this.highlight(run);
    this.#listener.hovered(run, event);
  }

  #open(event) {
    const run = this.nearest(this.#position(event));
    if (run >= 0) this.#listener.opened(run);
  }

  /** The run whose line is nearest to a point, among those inside the brushes; -1 if none is near. */
  nearest({ x, y }) {
    const count = this.#axes.length;
    if (y < TOP - REACH || count < 1) return -1;
    const step = count > 1 ? this.#x(1) - this.#x(0) : 1;
    const left = Math.max(0, Math.min(count - 2, Math.floor((x - this.#x(0)) / step)));
    const share = count > 1 ? Math.max(0, Math.min(1, (x - this.#x(left)) / step)) : 0;
    const [before, after] = [this.#ys[left], this.#ys[Math.min(count - 1, left + 1)]];
    let [found, least] = [-1, REACH];
    for (let run = 0; run < this.#runs.inside.length; run += 1) {
      if (!this.#runs.inside[run]) continue;
      const rise = after[run] - before[run];
      // The vertical distance, times the cosine of the line's slope.
      const distance = Math.abs(before[run] + share * rise - y) / Math.hypot(1, rise / step);
      if (distance < least || (distance === least && this.#runs.shade[run] > this.#runs.shade[found])) [found, least] = [run, distance];
    }
    return found;
  }

  #brush(event, axis) {
    if (event.button) return;
    event.preventDefault();
    const zone = event.currentTarget;
    const from = this.#position(event).y;
    zone.setPointerCapture(event.pointerId);
    const moved = (to, isDone) => {
      const brush = Math.abs(to - from) < MOVED ? null : this.#brushBetween(axis, Math.min(from, to), Math.max(from, to));
      this.#listener.brushed(axis.field, brush, isDone);
    };
    this.#follow(zone, (last, isDone) => moved(this.#position(last).y, isDone));
  }

  #brushBetween(axis, top, bottom) {
    const { odd, missing, bottom: end } = this.#rows;
    const placeAt = (y) => (end - y) / (end - TOP);
    const covers = (row, code) => row > 0 && axis.places.includes(code) && top <= row && bottom >= row;
    return brushOver(axis, placeAt(bottom), placeAt(top), { odd: covers(odd, NOT_FINITE), missing: covers(missing, MISSING) });
  }

  /** Drag an axis by its name; a click without a movement opens its options. */
  #drag(event, field, place) {
    if (event.button) return;
    const name = event.currentTarget;
    const axis = name.parentElement;
    const start = event.clientX;
    name.setPointerCapture(event.pointerId);
    this.#follow(name, (last, isDone) => {
      const by = last.clientX - start;
      const isMove = Math.abs(by) >= MOVED || axis.classList.contains("dragged");
      axis.classList.toggle("dragged", isMove && !isDone);
      axis.style.left = `${this.#x(place) + (isMove ? by : 0)}px`;
      if (!isDone) return;
      const step = this.#axes.length > 1 ? this.#x(1) - this.#x(0) : Infinity;
      const target = Math.max(0, Math.min(this.#axes.length - 1, Math.round(place + by / step)));
      axis.style.left = `${this.#x(place)}px`;
      if (target !== place) this.#listener.moved(field, target);
      else if (!isMove) this.#listener.chosen(field);
    });
  }

  /** Call something with each movement of a captured pointer, and with its end. */
  #follow(element, moved) {
    this.#isDragged = true;
    const end = (event) => {
      this.#isDragged = false;
      element.removeEventListener("pointermove", move);
      element.removeEventListener("pointerup", end);
      element.removeEventListener("pointercancel", end);
      this.#layout();
      moved(event, true);
    };
    const move = (event) => moved(event, false);
    element.addEventListener("pointermove", move);
    element.addEventListener("pointerup", end);
    element.addEventListener("pointercancel", end);
  }

  #press(event, field, place) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      event.preventDefault();
      event.stopPropagation();
      if (place + by >= 0 && place + by < this.#axes.length) this.#listener.moved(field, place + by);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.#listener.chosen(field);
    }
  }
}

/** Ticks that fit: with many levels, evenly spaced ones. */
function shownTicks({ ticks }, height) {
  const every = Math.max(1, Math.ceil((ticks.length * 15) / height));
  return ticks.filter((_, place) => place % every === 0);
}

function mark(y, text, isApart = false) {
  const shown = text.length > MAX_TICK_TEXT ? `${text.slice(0, MAX_TICK_TEXT - 1)}…` : text;
  return h("span", { class: "axis-tick", title: text, data: isApart ? { apart: "" } : {}, style: { top: `${y}px` } }, h("bdi", {}, shown));
}

function brushBox([top, bottom]) {
  return h("div", { class: "brush", style: { top: `${top}px`, height: `${Math.max(4, bottom - top)}px` } });
}
