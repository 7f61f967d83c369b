// A chart: lines and bands over x. uPlot draws axes and grid and zooms; zoom and cursor are shared by all charts.

import untypedPlot from "../vendor/uPlot.esm.js";
import {
  MAX_RANGES,
  drawLines,
  inUnit,
  placeOf,
  placers,
  pointNear,
  prepared,
  rawStyle,
  valueAt,
} from "./chart_lines.js";
import { SECONDS_APART, durationMarks, numberMarks, valueRange } from "./chart_scales.js";
import { fill, h } from "./dom.js";
import { dateTime, duration, number, timeMark } from "./format.js";
import { colour, isDark } from "./theme.js";

/** @type {any} The library's functions are classes that the type checker does not recognize. */
const uPlot = untypedPlot;

/**
 * @typedef {{key: string, label: string, colour: string, x: number[], y: (number | null)[],
 *   low?: (number | null)[], high?: (number | null)[], n?: number[], dash?: number[],
 *   smoothed?: {x: number[], y: (number | null)[]} | null, row?: object, chip?: any}} Line a band has low and high; a
 *   smoothed line has its smoothed points, too; row is what it was made of
 * @typedef {{x: string, logX: boolean, logY: boolean, smoothing: number, leavesOut: boolean, raw?: string,
 *   range?: [number | null, number | null], zoom: [number, number] | null}} Look
 * @typedef {{x: number, kind: string, sign: string, text: string}} Mark an event in the life of a run
 */

const MAX_IN_TOOLTIP = 8;
/** How far the tooltip is from the cursor, in pixels. */
const BESIDE = 14;
/** How far from the cursor a point may be to count as the value there, in pixels. */
const REACH = 30;
/** Events closer together share a flag. */
const FLAG_WIDTH = 12;
const MAX_IN_FLAG = 12;
/** One press of an arrow key moves the cursor by this share of the width. */
const KEY_STEP = 0.02;
/** How much of the other lines a highlighted line covers. */
const FADE = 0.72;
/** The minimum width of the y axis, and the width of its labels. */
const Y_WIDTH = { least: 52, character: 6.6, margin: 12 };

export class Chart {
  #host;
  #onZoom;
  #onHighlight;
  #plot = null;
  #signature = "";
  /** @type {import("./chart_lines.js").Prepared[]} */
  #lines = [];
  /** @type {Look | null} */
  #look = null;
  #given = { points: 0, isEmpty: true };
  #yRange = { low: 0, high: 1, outside: 0 };
  /** The unit of y: a power of ten if values are too large or too small for uPlot's ticks. */
  #unit = 1;
  #tooltip = h("div", { class: "tooltip", hidden: true });
  #announcement = h("div", { class: "hidden", "aria-live": "polite" });
  #flags = h("div", { class: "flags" });
  /** @type {{left: number, marks: Mark[], texts: string[]}[]} the flags in sight */
  #placed = [];
  /** @type {Mark[]} */
  #marks = [];
  #isHovered = false;
  #frame = 0;
  /** The key of the highlighted line, and its picture above the others. */
  #key = null;
  #above = h("canvas", { class: "above", "aria-hidden": "true" });
  #resized;
  #drawn = { width: 0, height: 0 };

  /**
   * @param {HTMLElement} host
   * @param {(zoom: [number, number] | null) => void} onZoom
   * @param {(key: string | null) => void} [onHighlight] another line is nearest to the pointer
   */
  constructor(host, onZoom, onHighlight = () => {}) {
    this.#host = host;
    this.#onZoom = onZoom;
    this.#onHighlight = onHighlight;
    host.tabIndex = 0;
    host.append(this.#announcement);
    host.addEventListener("keydown", (event) => this.#press(event));
    host.addEventListener("blur", () => this.#leave());
    this.#resized = new ResizeObserver(() => this.#resize());
    this.#resized.observe(host);
  }

  /** The number of points outside the scale. */
  get outside() {
    return this.#yRange.outside;
  }

  /** The number of points that a logarithmic y axis cannot show. */
  get notAboveZero() {
    return this.#lines.reduce((sum, line) => sum + line.notAboveZero, 0);
  }

  /** Whether there is nothing to draw. */
  get isEmpty() {
    return this.#given.isEmpty;
  }

  /** The number of points, visible or not. */
  get points() {
    return this.#given.points;
  }

  /** The number of visible points. */
  get pointsInSight() {
    const [from, to] = this.#look?.zoom ?? [-Infinity, Infinity];
    return this.#lines.reduce((sum, line) => {
      const { x } = line.raw ?? line;
      let end = placeOf(x, to);
      while (end < x.length && x[end] <= to) end += 1;
      return sum + end - placeOf(x, from);
    }, 0);
  }

  /** The data for an exported picture: the lines in their unit, and all positions. */
  get picture() {
    const style = rawStyle(this.#look, this.#lines.length);
    return { plot: this.#plot, lines: this.#lines, frame: this.#frameOf(this.#plot), raw: style, look: this.#look };
  }

  /** @param {Line[]} lines @param {Look} look @param {Mark[]} [marks] */
  show(lines, look, marks = []) {
    this.#look = look;
    this.#marks = marks;
    this.#lines = lines.map((line) => prepared(line, look));
    const range = rangeOfY(this.#seenValues(), look);
    this.#unit = unitOf(range);
    this.#yRange = { ...range, low: range.low / this.#unit, high: range.high / this.#unit };
    if (this.#unit !== 1) this.#lines = this.#lines.map((line) => inUnit(line, this.#unit));
    this.#given = {
      points: this.#lines.reduce((sum, line) => sum + (line.raw ?? line).x.length, 0),
      isEmpty: this.#lines.every((line) => line.y.every(Number.isNaN)),
    };
    const ends = this.#ends();
    const data = [ends, ends.map(() => null)];
    const signature = JSON.stringify([look.x, look.logX, look.logY, isDark()]);
    if (this.#plot && signature === this.#signature) {
      this.#plot.setData(data, true);
    } else {
      this.#plot?.destroy();
      this.#plot = new uPlot(this.#options(), data, this.#host);
      this.#plot.over.append(this.#tooltip, this.#flags);
      this.#signature = signature;
    }
  }

  destroy() {
    cancelAnimationFrame(this.#frame);
    this.#resized.disconnect();
    this.#plot?.destroy();
    this.#plot = null;
  }

  /** Draw one line above all others, which fade; null for none. @param {string | null} key */
  highlight(key) {
    if (key === this.#key) return;
    this.#key = key;
    this.#drawAbove();
  }

  /** The first and last x, for uPlot's scale; empty if there is none. */
  #ends() {
    let [low, high] = [Infinity, -Infinity];
    for (const { x, raw } of this.#lines) {
      for (const own of raw ? [x, raw.x] : [x]) {
        if (own.length) [low, high] = [Math.min(low, own[0]), Math.max(high, own[own.length - 1])];
      }
    }
    return low <= high ? [low, high] : [];
  }

  /** The values that the scale has to show: those of the visible part, smoothed if lines are. */
  #seenValues() {
    const [from, to] = this.#look.zoom ?? [-Infinity, Infinity];
    const found = [];
    const add = (x, y) => {
      for (let at = placeOf(x, from); at < x.length && x[at] <= to; at += 1) if (!Number.isNaN(y[at])) found.push(y[at]);
    };
    const hasRange = rawStyle(this.#look, this.#lines.length) === "band" && this.#lines.length <= MAX_RANGES;
    for (const { x, y, low, high, range } of this.#lines) {
      if (low) [low, high].forEach((edge) => add(x, edge));
      else add(x, y);
      if (range && hasRange) [range.low, range.high].forEach((edge) => add(range.x, edge));
    }
    return found;
  }

  #options() {
    const look = this.#look;
    const axis = {
      stroke: colour("muted"),
      font: "11px system-ui, sans-serif",
      ticks: { show: false },
      grid: { stroke: colour("grid"), width: 1 },
    };
    const isTime = look.x === "time";
    const isRelative = look.x === "relative";
    const xAxis = {
      ...axis,
      ...(isRelative && { incrs: SECONDS_APART }),
      size: 26,
      gap: 4,
      space: isRelative ? durationSpace : 64,
      values: xMarks(look),
    };
    return {
      width: Math.max(120, this.#host.clientWidth),
      height: Math.max(120, this.#host.clientHeight),
      padding: [8, isRelative ? 28 : 16, 0, 0],
      series: [{}, { stroke: "transparent", points: { show: false } }],
      legend: { show: false },
      scales: {
        x: { time: isTime, distr: look.logX && !isTime ? 3 : 1, range: (_, low, high) => this.#xRange(low, high) },
        y: { distr: look.logY ? 3 : 1, range: () => [this.#yRange.low, this.#yRange.high] },
      },
      axes: [
        xAxis,
        {
          ...axis,
          size: yWidth,
          gap: 4,
          values: (_, splits) =>
            numberMarks(
              splits.map((value) => (value === null ? null : value * this.#unit)),
              look.logY,
            ),
        },
      ],
      cursor: {
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        sync: { key: `hookline-${look.x}`, scales: ["x", null], filters: { pub: isMove, sub: isMove } },
        bind: { dblclick: () => () => (this.#onZoom(null), null) },
      },
      hooks: {
        draw: [(plot) => this.#draw(plot)],
        setSelect: [(plot) => this.#select(plot)],
        setCursor: [(plot) => this.#isHovered && this.#pointSoon(plot)],
        ready: [(plot) => this.#watch(plot)],
      },
    };
  }

  #xRange(low, high) {
    if (this.#look.zoom) return this.#look.zoom;
    if (low === null) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  /** @returns {import("./chart_lines.js").Frame} */
  #frameOf(plot) {
    const { x, y } = plot.scales;
    const isLogX = this.#look.logX && this.#look.x !== "time";
    return {
      ...plot.bbox,
      ratio: plot.ctx.canvas.width / plot.width,
      x: { min: x.min, max: x.max, isLog: isLogX },
      y: { min: y.min, max: y.max, isLog: this.#look.logY },
    };
  }

  #draw(plot) {
    if (plot.scales.x.min === null || plot.scales.x.min === undefined) return;
    drawLines(plot.ctx, this.#lines, this.#frameOf(plot), { raw: rawStyle(this.#look, this.#lines.length) });
    // uPlot calls this while it is constructed, too, before it is known here.
    queueMicrotask(() => {
      if (this.#plot !== plot) return;
      this.#placeFlags(plot);
      if (this.#key !== null) this.#drawAbove();
    });
  }

  /** Draw the highlighted line on a separate canvas, so that the others are not redrawn. */
  #drawAbove() {
    const line = this.#lines.find((each) => each.key === this.#key);
    if (!line || !this.#plot || this.#lines.length < 2) return this.#above.remove();
    const { canvas } = this.#plot.ctx;
    if (this.#above.width !== canvas.width || this.#above.height !== canvas.height)
      Object.assign(this.#above, { width: canvas.width, height: canvas.height });
    const context = this.#above.getContext("2d");
    const frame = this.#frameOf(this.#plot);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.globalAlpha = FADE;
    context.fillStyle = colour("surface");
    context.fillRect(frame.left, frame.top, frame.width, frame.height);
    context.globalAlpha = 1;
    drawLines(context, [line], frame, { raw: rawStyle(this.#look, 1), width: 2.4 });
    if (!this.#above.isConnected) canvas.after(this.#above);
  }

  #watch(plot) {
    plot.over.addEventListener("mouseenter", () => (this.#isHovered = true));
    plot.over.addEventListener("mouseleave", () => this.#leave());
  }

  #leave() {
    this.#isHovered = false;
    this.#tooltip.hidden = true;
    if (this.#key === null) return;
    this.highlight(null);
    this.#onHighlight(null);
  }

  #select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const zoom = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#onZoom(/** @type {[number, number]} */ (zoom));
  }

  /** Once per picture, however often the pointer moves. */
  #pointSoon(plot) {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      if (this.#isHovered && this.#plot === plot) this.#point(plot.cursor.left, plot.cursor.top);
    });
  }

  /** Show the values at a place, and highlight the line nearest to it. */
  #point(left, top, wanted = null) {
    if (left < 0 || left === undefined) return void (this.#tooltip.hidden = true);
    const x = this.#plot.posToVal(left, "x");
    const found = this.#valuesAt(x, left);
    const nearest = wanted ? found.find(({ line }) => line.key === wanted) : least(found, ({ at }) => Math.abs(at - top));
    this.#tooltip.hidden = !nearest;
    if (!nearest) return null;
    const shown = found
      .toSorted((a, b) => Math.abs(a.at - nearest.at) - Math.abs(b.at - nearest.at))
      .slice(0, MAX_IN_TOOLTIP)
      .sort((a, b) => a.at - b.at);
    fill(
      this.#tooltip,
      h("div", { class: "tooltip-x" }, this.#xText(nearest.x)),
      shown.map((entry) => this.#row(entry, entry === nearest && found.length > 1)),
      found.length > shown.length && h("div", { class: "tooltip-x" }, `${found.length - shown.length} more`),
      this.#eventsAt(left).map((text) => h("div", { class: "tooltip-event" }, text)),
    );
    this.#tooltip.style.transform = `translate(${this.#besides(left)}px, 6px)`;
    if (nearest.line.key !== this.#key) {
      this.highlight(nearest.line.key);
      this.#onHighlight(nearest.line.key);
    }
    return nearest;
  }

  /** Where the tooltip begins: right of a place, or left of it if there is more room; always within the window. */
  #besides(left) {
    const { left: edge, width } = this.#plot.over.getBoundingClientRect();
    const own = Math.ceil(this.#tooltip.getBoundingClientRect().width);
    const from = left > width / 2 ? left - BESIDE - own : left + BESIDE;
    return Math.max(-edge, Math.min(from, document.documentElement.clientWidth - edge - own));
  }

  /** The lines that have a value at x, with the value, its pixel and the x of the closest point. */
  #valuesAt(x, left) {
    const [xOf, yOf] = placers(this.#frameOf(this.#plot));
    const { ratio, top } = this.#frameOf(this.#plot);
    const reach = Math.abs(this.#plot.posToVal(left + REACH, "x") - x);
    const found = [];
    for (const line of this.#lines) {
      const place = pointNear(line, x, reach);
      // Between two points far apart there is a line to point at, too.
      const value = place < 0 ? valueAt(line, x) : line.y[place];
      if (Number.isNaN(value)) continue;
      const own = place < 0 ? x : line.x[place];
      found.push({ line, place, value, x: own, at: (yOf(value) - top) / ratio, left: xOf(own) / ratio });
    }
    return found;
  }

  #row({ line, value, place }, isNearest) {
    return h(
      "div",
      { class: "tooltip-row", data: isNearest ? { nearest: "" } : {} },
      h("i", { vars: { line: line.colour } }),
      h("span", {}, line.label),
      h("b", {}, number(value * this.#unit)),
      line.n && place >= 0 && h("em", {}, this.#spreadAt(line, place)),
    );
  }

  /** The standard deviation of a band at a point, and its number of finite runs. */
  #spreadAt(line, place) {
    const runs = `${line.n[place]} ${line.n[place] === 1 ? "run" : "runs"}`;
    const [mean, high] = [line.y[place], line.high[place]];
    if (line.n[place] < 2 || Number.isNaN(mean) || Number.isNaN(high)) return runs;
    return `± ${number((high - mean) * this.#unit, 3)}, ${runs}`;
  }

  /** With the keyboard: arrows move along the highlighted line, and between lines. */
  #press(event) {
    if (!this.#plot || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const across = { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0;
    const along = { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
    if (event.key === "Escape" && this.#key !== null) this.#leave();
    else if (across || along) this.#step(across, along);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #step(across, along) {
    const { over, cursor } = this.#plot;
    const { clientWidth: width, clientHeight: height } = over;
    const isFirst = this.#key === null;
    let left = cursor.left >= 0 ? cursor.left : width / 2;
    if (!isFirst) left = Math.max(0, Math.min(width, left + across * width * KEY_STEP));
    const found = this.#valuesAt(this.#plot.posToVal(left, "x"), left).sort((a, b) => a.at - b.at);
    if (!found.length) return;
    const place = found.findIndex(({ line }) => line.key === this.#key);
    const next = place < 0 ? 0 : (place + along + found.length) % found.length;
    this.#plot.setCursor({ left, top: Math.max(0, Math.min(height, found[next].at)) });
    const { line, value, x } = this.#point(left, found[next].at, found[next].line.key) ?? found[next];
    const texts = [`${line.label}, ${this.#xText(x)}: ${number(value * this.#unit)}`, ...this.#eventsAt(left)];
    this.#announcement.textContent = texts.join("; ");
  }

  /** What happened near a place, as its flag says: a flag is too small to touch, and not reached with the keyboard. */
  #eventsAt(left) {
    const near = this.#placed.filter((flag) => Math.abs(flag.left - left) < FLAG_WIDTH);
    return least(near, (flag) => Math.abs(flag.left - left))?.texts ?? [];
  }

  #xText(value) {
    if (this.#look.x === "time") return dateTime(value);
    if (this.#look.x === "relative") return duration(value);
    return this.#look.x === "step" ? `step ${number(value)}` : `${this.#look.x} ${number(value)}`;
  }

  /** Flags at the top edge for what happened to the runs; those too close to each other share one. */
  #placeFlags(plot) {
    const { min, max } = plot.scales.x;
    const placed = this.#marks
      .filter(({ x }) => x >= min && x <= max)
      .map((mark) => ({ ...mark, left: plot.valToPos(mark.x, "x") }))
      .sort((a, b) => a.left - b.left);
    const flags = [];
    for (const mark of placed) {
      const last = flags.at(-1);
      if (last && mark.left - last.left < FLAG_WIDTH) last.marks.push(mark);
      else flags.push({ left: mark.left, marks: [mark] });
    }
    this.#placed = flags.map(({ left, marks }) => {
      const texts = marks.slice(0, MAX_IN_FLAG).map(({ text }) => text);
      if (marks.length > texts.length) texts.push(`${marks.length - texts.length} more`);
      return { left, marks, texts };
    });
    fill(
      this.#flags,
      this.#placed.map(({ left, marks, texts }) => {
        const kinds = new Set(marks.map(({ kind }) => kind));
        const first = marks.find(({ kind }) => kind === "alert") ?? marks[0];
        return h(
          "i",
          { class: "flag", title: texts.join("\n"), data: { kind: first.kind }, style: { left: `${left}px` } },
          kinds.size > 1 ? "+" : first.sign,
        );
      }),
    );
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.#host;
    if (!this.#plot || width <= 0 || (width === this.#drawn.width && height === this.#drawn.height)) return;
    this.#drawn = { width, height };
    if (width !== this.#plot.width || height !== this.#plot.height) this.#plot.setSize({ width, height });
  }
}

function least(entries, size) {
  return entries.reduce((best, each) => (best === null || size(each) < size(best) ? each : best), null);
}

/** The range of y: as chosen, or of the values. @param {number[]} values @param {Look} look */
function rangeOfY(values, look) {
  const range = valueRange(values, { isLog: look.logY, leavesOut: look.leavesOut });
  const [low, high] = look.range ?? [null, null];
  const isUsable = (value) => value !== null && (!look.logY || value > 0);
  const chosen = { ...range, low: isUsable(low) ? low : range.low, high: isUsable(high) ? high : range.high };
  if (!(chosen.low < chosen.high)) return range;
  if (chosen.low === range.low && chosen.high === range.high) return range;
  return { ...chosen, outside: values.filter((value) => value < chosen.low || value > chosen.high).length };
}

function isMove(type) {
  return type === "mousemove" || type === "mouseleave";
}

/** The tick labels of the x axis. */
function xMarks(look) {
  if (look.x === "relative") return (_, splits) => durationMarks(splits, look.logX);
  if (look.x !== "time") return (_, splits) => numberMarks(splits, look.logX);
  return (_plot, splits, _axis, _space, apart) =>
    splits.map((value) => (value === null ? "" : timeMark(value, apart)));
}

/** Labels of short durations have minutes and seconds. */
function durationSpace(_plot, _axis, low, high) {
  return high - low < 600 ? 90 : 64;
}

function yWidth(_, marks) {
  const longest = Math.max(0, ...(marks ?? []).map((mark) => mark.length));
  return Math.max(Y_WIDTH.least, longest * Y_WIDTH.character + Y_WIDTH.margin);
}

/** uPlot finds no ticks for numbers of more than 17 digits. */
function unitOf({ low, high }) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  return size >= 1e15 || size < 1e-12 ? 10 ** Math.floor(Math.log10(size)) : 1;
}
