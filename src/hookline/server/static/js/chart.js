// A chart: lines and bands over a common x, drawn by uPlot; zoom and cursor are shared by all charts.

import uPlot from "../vendor/uPlot.esm.js";
import { SECONDS_APART, durationMarks, numberMarks, valueRange } from "./chart_scales.js";
import { h } from "./dom.js";
import { dateTime, duration, number, timeMark } from "./format.js";
import { colour, faint, isDark } from "./theme.js";

/**
 * @typedef {{key: string, label: string, colour: string, x: number[], y: (number | null)[],
 *   low?: (number | null)[], high?: (number | null)[], n?: number[], dash?: number[],
 *   smoothed?: {x: number[], y: (number | null)[]} | null}} Line a band has low and high; a smoothed line
 *   has its smoothed points, too
 * @typedef {{x: string, logX: boolean, logY: boolean, smoothing: number, leavesOut: boolean,
 *   zoom: [number, number] | null}} Look
 */

const MAX_IN_TOOLTIP = 10;
const REACH = 400;
/** The minimum width of the y axis, and the width of its labels. */
const Y_WIDTH = { least: 52, character: 6.6, margin: 12 };

export class Chart {
  #host;
  #onZoom;
  #plot = null;
  #signature = "";
  #lines = [];
  #places = [];
  #look = null;
  #yRange = { low: 0, high: 1, outside: 0 };
  /** The unit of y: a power of ten if values are too large or too small for uPlot's ticks. */
  #unit = 1;
  #tooltip = h("div", { class: "tooltip", hidden: true });
  #isHovered = false;
  #resized;

  /** @param {HTMLElement} host @param {(zoom: [number, number] | null) => void} onZoom */
  constructor(host, onZoom) {
    this.#host = host;
    this.#onZoom = onZoom;
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
    return this.#lines.every((line) => line.y.every((value) => value === null));
  }

  /** The number of points, visible or not. */
  get points() {
    return this.#lines.reduce((sum, line) => sum + line.x.length, 0);
  }

  /** The number of visible points. */
  get pointsInSight() {
    const [from, to] = this.#look?.zoom ?? [-Infinity, Infinity];
    return this.#lines.reduce((sum, line) => sum + line.x.filter((x) => x >= from && x <= to).length, 0);
  }

  /** @param {Line[]} lines @param {Look} look */
  show(lines, look) {
    this.#look = look;
    this.#lines = lines.map((line) => usable(line, look));
    const range = valueRange(this.#seenValues(), { isLog: look.logY, leavesOut: look.leavesOut });
    this.#unit = unitOf(range);
    this.#yRange = { ...range, low: range.low / this.#unit, high: range.high / this.#unit };
    if (this.#unit !== 1) this.#lines = this.#lines.map((line) => inUnit(line, this.#unit));
    const { tables, series, bands, places } = this.#series();
    this.#places = places;
    const data = tables.length ? uPlot.join(tables) : [[], []];
    const signature = JSON.stringify([
      this.#lines.map((line) => [line.key, line.label, line.colour, line.dash]),
      series.length,
      look.x,
      look.logX,
      look.logY,
      isDark(),
    ]);
    if (this.#plot && signature === this.#signature) {
      this.#plot.setData(data, true);
    } else {
      this.#plot?.destroy();
      this.#plot = new uPlot(this.#options(series, bands), data, this.#host);
      this.#plot.over.append(this.#tooltip);
      this.#signature = signature;
    }
  }

  destroy() {
    this.#resized.disconnect();
    this.#plot?.destroy();
    this.#plot = null;
  }

  /** The chart as a picture with its title and legend. @param {string} title @returns {Promise<Blob>} */
  png(title) {
    const drawn = this.#plot.ctx.canvas;
    const scale = drawn.width / this.#plot.width;
    const row = 18 * scale;
    const canvas = h("canvas");
    canvas.width = drawn.width;
    canvas.height = drawn.height + row * (2 + this.#lines.length);
    const context = canvas.getContext("2d");
    context.fillStyle = colour("surface");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = colour("text");
    context.font = `600 ${13 * scale}px system-ui, sans-serif`;
    context.fillText(title, 12 * scale, 18 * scale);
    context.drawImage(drawn, 0, row * 1.5);
    context.font = `${11 * scale}px system-ui, sans-serif`;
    this.#lines.forEach((line, index) => {
      const y = drawn.height + row * (2.1 + index);
      context.fillStyle = line.colour;
      context.fillRect(14 * scale, y - 8 * scale, 14 * scale, 3 * scale);
      context.fillStyle = colour("text");
      context.fillText(line.label, 36 * scale, y - 3 * scale);
    });
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }

  #series() {
    const tables = [];
    const series = [{}];
    const bands = [];
    const places = [];
    this.#addRaw(tables, series);
    for (const line of this.#lines) {
      const thin = { stroke: line.colour, width: 1.6, dash: line.dash, points: pointsOf(line) };
      if (line.low) {
        tables.push([line.x, line.y, line.high, line.low]);
        places.push(series.length);
        bands.push({ series: [series.length + 1, series.length + 2], fill: faint(line.colour, 0.22) });
        const edge = { stroke: "transparent", width: 0, points: { show: false } };
        series.push({ ...thin, width: 1.7 }, edge, edge);
      } else if (line.smoothed) {
        tables.push([line.smoothed.x, line.smoothed.y]);
        places.push(series.length);
        series.push({ ...thin, width: 2 });
      } else {
        tables.push([line.x, line.y]);
        places.push(series.length);
        series.push(thin);
      }
    }
    return { tables, series, bands, places };
  }

  /** The raw values, faint below all smoothed lines; fainter with more lines. */
  #addRaw(tables, series) {
    const alpha = Math.max(0.05, 0.26 / Math.sqrt(Math.max(1, this.#lines.length / 2)));
    for (const line of this.#lines.filter((each) => each.smoothed)) {
      tables.push([line.x, line.y]);
      series.push({ stroke: faint(line.colour, alpha), width: 1, points: { show: false } });
    }
  }

  /** The values that the scale has to show: those of the visible part, smoothed if lines are. */
  #seenValues() {
    const [from, to] = this.#look.zoom ?? [-Infinity, Infinity];
    const found = [];
    for (const line of this.#lines) {
      const { x, y } = line.smoothed ?? line;
      for (const column of line.low ? [line.low, line.high] : [y]) {
        column.forEach((value, index) => {
          if (value !== null && x[index] >= from && x[index] <= to) found.push(value);
        });
      }
    }
    return found;
  }

  #options(series, bands) {
    const look = this.#look;
    const axis = {
      stroke: colour("muted"),
      font: "11px system-ui, sans-serif",
      ticks: { show: false },
      grid: { stroke: colour("grid"), width: 1 },
    };
    const isTime = look.x === "time";
    const isRelative = look.x === "relative";
    const xAxis = { ...axis, size: 26, gap: 4, space: isRelative ? durationSpace : 64, values: xMarks(look) };
    if (isRelative) xAxis.incrs = SECONDS_APART;
    return {
      width: Math.max(120, this.#host.clientWidth),
      height: Math.max(120, this.#host.clientHeight),
      padding: [8, isRelative ? 28 : 12, 0, 0],
      series,
      bands,
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
        points: { size: 6 },
        drag: { x: true, y: false, setScale: false },
        sync: { key: `hookline-${look.x}`, scales: ["x", null], filters: { pub: isMove, sub: isMove } },
        bind: { dblclick: () => () => (this.#onZoom(null), null) },
      },
      hooks: {
        setSelect: [(plot) => this.#select(plot)],
        setCursor: [(plot) => this.#point(plot)],
        ready: [(plot) => this.#watch(plot)],
      },
    };
  }

  #xRange(low, high) {
    if (this.#look.zoom) return this.#look.zoom;
    if (low === null) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  #watch(plot) {
    plot.over.addEventListener("mouseenter", () => (this.#isHovered = true));
    plot.over.addEventListener("mouseleave", () => {
      this.#isHovered = false;
      this.#tooltip.hidden = true;
    });
  }

  #select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const zoom = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#onZoom(zoom);
  }

  #point(plot) {
    const { left, top, idx } = plot.cursor;
    if (!this.#isHovered || idx === null || idx === undefined || left < 0) {
      this.#tooltip.hidden = true;
      return;
    }
    const rows = this.#valuesAt(plot, idx, top);
    this.#tooltip.hidden = rows.length === 0;
    this.#tooltip.replaceChildren(h("div", { class: "tooltip-x" }, this.#xText(plot.data[0][idx])), ...rows);
    const isRight = left > plot.over.clientWidth / 2;
    this.#tooltip.style.transform = `translate(${isRight ? `calc(${left - 14}px - 100%)` : `${left + 14}px`}, 6px)`;
  }

  #valuesAt(plot, idx, top) {
    const found = this.#lines
      .map((line, index) => ({ line, values: plot.data[this.#places[index]] }))
      .map(({ line, values }) => ({ line, values, place: near(values, idx) }))
      .filter(({ place }) => place !== null)
      .map(({ line, values, place }) => ({ line, value: values[place], x: plot.data[0][place] }));
    const closest = found
      .map((entry) => ({ ...entry, away: Math.abs(plot.valToPos(entry.value, "y") - top) }))
      .sort((a, b) => a.away - b.away)
      .slice(0, MAX_IN_TOOLTIP);
    return closest
      .sort((a, b) => b.value - a.value)
      .map(({ line, value, x }) =>
        h(
          "div",
          { class: "tooltip-row" },
          h("i", { vars: { line: line.colour } }),
          h("span", {}, line.label),
          h("b", {}, number(value * this.#unit)),
          line.n && h("em", {}, this.#spreadAt(line, line.x.indexOf(x))),
        ),
      );
  }

  /** The standard deviation of a band at a point, and its number of finite runs. */
  #spreadAt(line, place) {
    const runs = `${line.n[place]} ${line.n[place] === 1 ? "run" : "runs"}`;
    const [mean, high] = [line.y[place], line.high[place]];
    if (line.n[place] < 2 || mean === null || high === null) return runs;
    return `± ${number((high - mean) * this.#unit, 3)}, ${runs}`;
  }

  #xText(value) {
    if (this.#look.x === "time") return dateTime(value);
    if (this.#look.x === "relative") return duration(value);
    return this.#look.x === "step" ? `step ${number(value)}` : `${this.#look.x} ${number(value)}`;
  }

  #resize() {
    const { clientWidth: width, clientHeight: height } = this.#host;
    if (this.#plot && width > 0 && (width !== this.#plot.width || height !== this.#plot.height))
      this.#plot.setSize({ width, height });
  }
}

function isMove(type) {
  return type === "mousemove" || type === "mouseleave";
}

/** The index of a line's value closest to an index; null if there is none nearby. */
function near(values, idx) {
  for (let away = 0; away < REACH; away++) {
    for (const place of [idx - away, idx + away]) {
      const value = values[place];
      if (value !== null && value !== undefined) return place;
    }
  }
  return null;
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

function inUnit(line, unit) {
  const scaled = (column) => column?.map((value) => (value === null ? null : value / unit));
  const smoothed = line.smoothed && { ...line.smoothed, y: scaled(line.smoothed.y) };
  return { ...line, y: scaled(line.y), low: scaled(line.low), high: scaled(line.high), smoothed };
}

/** Points without a neighbour to draw a line to. */
function pointsOf(line) {
  const hasGaps = line.y.length < 2 || line.y.includes(null);
  return { show: false, size: 6, filter: (plot, index) => (hasGaps ? lonely(plot.data[index]) : null) };
}

/** The indexes of values between gaps. An undefined value belongs to other lines. */
function lonely(values) {
  const own = [...values.keys()].filter((place) => values[place] !== undefined);
  const isGap = (index) => (values[own[index]] ?? null) === null;
  return own.filter((_, index) => !isGap(index) && isGap(index - 1) && isGap(index + 1));
}

/** A line without the points that its axes cannot show. */
function usable(line, look) {
  const isShown = (x) => !look.logX || look.x === "time" || x > 0;
  const shown = (xs) => xs.map((x, index) => (isShown(x) ? index : -1)).filter((index) => index >= 0);
  const onAxis = (value) => (look.logY && !(value > 0) ? null : value);
  const keep = shown(line.x);
  const pick = (column) => column && keep.map((index) => onAxis(column[index]));
  const smoothed = look.smoothing > 0 ? line.smoothed : null;
  const kept = smoothed && shown(smoothed.x);
  return {
    ...line,
    x: keep.map((index) => line.x[index]),
    y: pick(line.y),
    low: pick(line.low),
    high: pick(line.high),
    n: line.n && keep.map((index) => line.n[index]),
    smoothed: smoothed && {
      x: kept.map((index) => smoothed.x[index]),
      y: kept.map((index) => onAxis(smoothed.y[index])),
    },
    notAboveZero: look.logY ? keep.filter((index) => line.y[index] !== null && !(line.y[index] > 0)).length : 0,
  };
}
