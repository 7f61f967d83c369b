// A plot of points on a canvas: one per run, at two settings or metrics, with an optional line. Values that are not
// finite or missing have separate rows beside the axes.

import { h } from "./dom.js";
import { MISSING, NOT_FINITE, placeOf } from "./sweep_axes.js";
import { colour, listenToTheme } from "./theme.js";

/** @typedef {import("./sweep_axes.js").Axis} Axis */

const HEIGHT = 320;
const MARGIN = { left: 64, right: 16, top: 26, bottom: 40 };
const ROW = 22;
const REACH = 16;
const RADIUS = 4;
const MAX_TEXT = 12;
/** How far points of a category are spread, as a share of the distance between two levels. */
const SPREAD = 0.5;

/**
 * What is drawn: `colours` has one per run, `inside` whether it is inside the brushes, `apart` whether it has no result;
 * `line` are values of the vertical axis in steps, at places of the horizontal one.
 * @typedef {{x: Axis, y: Axis, colours: string[], inside: Uint8Array, apart: Uint8Array,
 *   line?: {at: number, value: number}[]}} Points
 */

export class PointPlot {
  #points = /** @type {Points | null} */ (null);
  #xs = new Float32Array();
  #ys = new Float32Array();
  #hovered = -1;
  #frame = 0;
  #listener;
  #observer;
  #unsubscribe;

  /** @param {string} label @param {{hovered: (run: number, event: PointerEvent | null) => void, opened: (run: number) => void}} listener */
  constructor(label, listener) {
    this.#listener = listener;
    this.canvas = h("canvas", {
      role: "img",
      "aria-label": label,
      onpointermove: (event) => this.#point(event),
      onpointerleave: () => this.#hover(-1, null),
      onclick: (event) => this.#open(event),
    });
    // Not on the canvas: the points need not be drawn again as the pointer moves.
    this.ring = h("i", { class: "ring", "aria-hidden": "true", hidden: true });
    this.element = h("div", { class: "point-plot" }, this.canvas, this.ring);
    this.#observer = new ResizeObserver(() => this.draw());
    this.#observer.observe(this.element);
    this.#unsubscribe = listenToTheme(() => this.draw());
  }

  destroy() {
    this.#observer.disconnect();
    this.#unsubscribe();
    cancelAnimationFrame(this.#frame);
  }

  /** @param {Points} points */
  show(points) {
    this.#points = points;
    this.draw();
  }

  /** @param {number} run -1 for none */
  highlight(run) {
    if (run === this.#hovered) return;
    this.#hovered = run;
    this.#showRing();
  }

  #showRing() {
    const run = this.#hovered;
    this.ring.hidden = run < 0 || run >= this.#xs.length;
    if (!this.ring.hidden) this.ring.style.transform = `translate(${this.#xs[run]}px, ${this.#ys[run]}px)`;
  }

  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#drawNow());
  }

  /** The area of the values, without the rows of those apart. */
  #area() {
    const { x, y } = this.#points;
    const rows = (axis) => [NOT_FINITE, MISSING].filter((code) => axis.places.includes(code));
    const [columns, lines] = [rows(x), rows(y)];
    const gap = (list) => (list.length ? 8 : 0);
    const left = MARGIN.left + columns.length * ROW * 1.6 + gap(columns);
    const bottom = HEIGHT - MARGIN.bottom - lines.length * ROW - gap(lines);
    return { left, right: this.element.clientWidth - MARGIN.right, top: MARGIN.top, bottom, columns, lines };
  }

  #drawNow() {
    const width = this.element.clientWidth;
    if (!this.#points || !width) return;
    const ratio = devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), HEIGHT * ratio];
    this.canvas.style.height = `${HEIGHT}px`;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const area = this.#area();
    this.#drawAxes(context, area);
    this.#place(area);
    this.#drawPoints(context);
    this.#drawLine(context, area);
    this.#showRing();
  }

  #drawAxes(context, area) {
    const { x, y } = this.#points;
    context.font = `11px ${getComputedStyle(this.element).fontFamily}`;
    context.lineWidth = 1;
    context.strokeStyle = colour("grid");
    context.fillStyle = colour("muted");
    [context.textAlign, context.textBaseline] = ["right", "middle"];
    for (const { at, text } of fitting(y.ticks, area.bottom - area.top, 16)) {
      const place = area.bottom - at * (area.bottom - area.top);
      line(context, MARGIN.left, place, area.right, place);
      context.fillText(cut(text), MARGIN.left - 8, place);
    }
    area.lines.forEach((code, row) => context.fillText(apartText(code), MARGIN.left - 8, rowOf(area, row)));
    [context.textAlign, context.textBaseline] = ["center", "top"];
    for (const { at, text } of fitting(x.ticks, area.right - area.left, 64)) {
      const place = area.left + at * (area.right - area.left);
      line(context, place, area.top, place, HEIGHT - MARGIN.bottom);
      context.fillText(cut(text), place, HEIGHT - MARGIN.bottom + 5);
    }
    area.columns.forEach((code, column) => context.fillText(apartText(code), columnOf(column), HEIGHT - MARGIN.bottom + 5));
    context.fillText(x.field.slice(0, 80), (area.left + area.right) / 2, HEIGHT - 16);
    [context.textAlign, context.textBaseline] = ["left", "middle"];
    context.fillText(y.field.slice(0, 80), 4, 8);
  }

  #place(area) {
    const { x, y } = this.#points;
    const width = area.right - area.left;
    const height = area.bottom - area.top;
    this.#xs = Float32Array.from(x.places, (place, run) =>
      place >= 0 ? area.left + spread(x, place, run, 0) * width : columnOf(area.columns.indexOf(place)) + ((run % 5) - 2) * 2,
    );
    this.#ys = Float32Array.from(y.places, (place, run) =>
      place >= 0 ? area.bottom - spread(y, place, run, 1) * height : rowOf(area, area.lines.indexOf(place)),
    );
  }

  #drawPoints(context) {
    const { colours, inside, apart } = this.#points;
    const radius = colours.length > 500 ? RADIUS - 1 : RADIUS;
    for (const isInside of [0, 1]) {
      context.globalAlpha = isInside ? 0.85 : 0.15;
      for (let run = 0; run < colours.length; run += 1) {
        if (inside[run] !== isInside) continue;
        const [at, height] = [this.#xs[run], this.#ys[run]];
        if (apart[run]) cross(context, at, height, radius, colour("bad"));
        else {
          context.fillStyle = colours[run];
          context.beginPath();
          context.arc(at, height, radius, 0, 2 * Math.PI);
          context.fill();
        }
      }
    }
    context.globalAlpha = 1;
  }

  #drawLine(context, area) {
    const { line: steps, x, y } = this.#points;
    if (!steps?.length) return;
    const at = (value) => area.left + placeOf(x, value) * (area.right - area.left);
    const height = (value) => area.bottom - placeOf(y, value) * (area.bottom - area.top);
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(at(steps[0].at), height(steps[0].value));
    steps.forEach((step, place) => {
      if (place) context.lineTo(at(step.at), height(steps[place - 1].value));
      context.lineTo(at(step.at), height(step.value));
    });
    context.lineTo(area.right, height(steps[steps.length - 1].value));
    context.stroke();
  }

  #point(event) {
    this.#hover(this.#nearest(event), event);
  }

  #hover(run, event) {
    this.highlight(run);
    this.canvas.style.cursor = run >= 0 ? "pointer" : "";
    this.#listener.hovered(run, event);
  }

  #open(event) {
    const run = this.#nearest(event);
    if (run >= 0) this.#listener.opened(run);
  }

  #nearest(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    let [found, least] = [-1, REACH];
    for (let run = 0; run < this.#xs.length; run += 1) {
      if (!this.#points.inside[run]) continue;
      const distance = Math.hypot(this.#xs[run] - event.clientX + left, this.#ys[run] - event.clientY + top);
      if (distance < least) [found, least] = [run, distance];
    }
    return found;
  }
}

/** A place on an axis; those of a category are spread, always in the same way, because many runs share a level. */
function spread(axis, place, run, salt) {
  if (axis.isNumber) return place;
  const random = ((run * 2654435761 + salt * 40503) % 1000) / 1000;
  return place + ((random - 0.5) * SPREAD) / axis.levels.length;
}

function rowOf(area, row) {
  return area.bottom + 8 + (row + 0.5) * ROW;
}

function columnOf(column) {
  return MARGIN.left + (column + 0.5) * ROW * 1.6;
}

function apartText(code) {
  return code === MISSING ? "none" : "NaN";
}

function fitting(ticks, length, each) {
  const every = Math.max(1, Math.ceil((ticks.length * each) / Math.max(1, length)));
  return ticks.filter((_, place) => place % every === 0);
}

function cut(text) {
  return text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT - 1)}…` : text;
}

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function cross(context, x, y, radius, shade) {
  context.strokeStyle = shade;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x - radius, y - radius);
  context.lineTo(x + radius, y + radius);
  context.moveTo(x + radius, y - radius);
  context.lineTo(x - radius, y + radius);
  context.stroke();
}
