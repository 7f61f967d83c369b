// Histograms over the steps of a run, on a canvas: as ridges (one curve per step, the latest in front) or a heat map.

import { roundTicks } from "./chart_scales.js";
import { fill, h } from "./dom.js";
import { number, plural, whole } from "./format.js";
import { colour, faint, listenToTheme } from "./theme.js";

/**
 * @typedef {{run: string, step: number, low: number, high: number, counts: number[], edges: number[] | null,
 *   count: number, mean: number | string | null, std: number | string | null, nonfinite: number}} Histogram
 */

const BINS = 128;
const MARGIN = { left: 52, right: 10, top: 8, bottom: 24 };

/** The range of values that holds all histograms, so that runs are comparable. @param {Histogram[]} histograms */
export function valueRange(histograms) {
  let [low, high] = [Infinity, -Infinity];
  for (const each of histograms) [low, high] = [Math.min(low, each.low), Math.max(high, each.high)];
  return low < high ? [low, high] : [low - 0.5, high + 0.5];
}

/** The density in equal bins over a range, from bins of any width. @returns {number[]} shares of all values per bin */
export function resampled({ low, high, counts, edges, count }, [first, last], bins = BINS) {
  const width = (last - first) / bins;
  const shares = new Array(bins).fill(0);
  const own = (high - low) / counts.length;
  for (let bin = 0; bin < counts.length; bin += 1) {
    const from = edges ? edges[bin] : low + own * bin;
    const to = edges ? edges[bin + 1] : low + own * (bin + 1);
    const share = counts[bin] / (count || 1);
    if (!share) continue;
    const begin = Math.max(0, Math.min(bins - 1, Math.floor((from - first) / width)));
    const end = Math.max(begin, Math.min(bins - 1, Math.ceil((to - first) / width) - 1));
    for (let place = begin; place <= end; place += 1) {
      const overlap = Math.min(to, first + width * (place + 1)) - Math.max(from, first + width * place);
      shares[place] += to > from ? share * Math.max(0, overlap / (to - from)) : share / (end - begin + 1);
    }
  }
  return shares;
}

/** The first and the last of some positions, and evenly spaced ones between. @returns {number[]} */
export function evenly(count, most) {
  const shown = Math.max(1, Math.min(count, most));
  if (shown === 1) return [count - 1];
  return Array.from({ length: shown }, (_, at) => Math.round((at * (count - 1)) / (shown - 1)));
}

/** One run's histograms. */
export class HistogramChart {
  #histograms;
  #range;
  #look;
  #line;
  #unsubscribe;
  #observer;

  /** @param {Histogram[]} histograms by step @param {number[]} range @param {"ridge" | "heat"} look @param {string} line */
  constructor(histograms, range, look, line) {
    this.#histograms = histograms;
    this.#range = range;
    this.#look = look;
    this.#line = line;
    this.canvas = h("canvas", {
      role: "img",
      "aria-label": `Histograms from step ${histograms[0].step} to ${histograms.at(-1).step}`,
      onpointermove: (event) => this.#point(event),
      onpointerleave: () => this.#report(histograms.at(-1)),
    });
    this.note = h("p", { class: "muted histogram-note" });
    this.element = h("div", { class: "histogram-chart", data: { look } }, this.canvas, this.note);
    this.#unsubscribe = listenToTheme(() => this.draw());
    this.#observer = new ResizeObserver(() => this.draw());
    this.#observer.observe(this.element);
    this.#report(histograms.at(-1));
  }

  destroy() {
    this.#unsubscribe();
    this.#observer.disconnect();
  }

  #report(histogram) {
    const lost = histogram.nonfinite ? ` · ${whole(histogram.nonfinite)} not finite` : "";
    const facts = histogram.mean === null ? "" : ` · mean ${number(histogram.mean, 3)} · std ${number(histogram.std, 3)}`;
    fill(this.note, `step ${whole(histogram.step)} · ${plural(histogram.count, "value")}${facts}${lost}`);
  }

  /** Tell of the histogram below the pointer. */
  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const share =
      this.#look === "heat"
        ? (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right)
        : (event.clientY - box.top - box.height * 0.3) / (box.height * 0.7 - MARGIN.bottom);
    const place = Math.floor(Math.max(0, Math.min(0.999, share)) * this.#histograms.length);
    this.#report(this.#histograms[place]);
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width) return;
    const height = 240;
    const density = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: Math.round(width * density), height: height * density });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = this.canvas.getContext("2d");
    context.scale(density, density);
    context.font = "11px system-ui, sans-serif";
    const bins = Math.max(24, Math.min(BINS, Math.floor(width / 4)));
    const shares = this.#histograms.map((each) => resampled(each, this.#range, bins));
    if (this.#look === "heat") this.#drawHeat(context, width, height, shares);
    else this.#drawRidges(context, width, height, shares);
  }

  #drawHeat(context, width, height, shares) {
    const [inner, tall] = [width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom];
    const most = Math.max(...shares.map((own) => Math.max(...own)));
    const column = inner / shares.length;
    const row = tall / shares[0].length;
    context.fillStyle = this.#line;
    shares.forEach((own, at) => {
      own.forEach((share, bin) => {
        if (!share) return;
        context.globalAlpha = 0.08 + 0.92 * Math.sqrt(share / most);
        const top = MARGIN.top + tall - (bin + 1) * row;
        context.fillRect(MARGIN.left + at * column, top, Math.max(1, column - (column > 4 ? 0.5 : -0.4)), row + 0.4);
      });
    });
    context.globalAlpha = 1;
    context.fillStyle = colour("muted");
    context.textAlign = "right";
    for (const { share, text } of this.#ticks())
      context.fillText(text, MARGIN.left - 6, MARGIN.top + tall * (1 - share) + 4);
    for (const at of evenly(shares.length, Math.min(5, Math.floor(inner / 60))))
      centred(context, whole(this.#histograms[at].step), MARGIN.left + (at + 0.5) * column, height - 6, width);
  }

  #drawRidges(context, width, height, shares) {
    const [inner, bottom] = [width - MARGIN.left - MARGIN.right, height - MARGIN.bottom];
    const top = height * 0.3;
    const most = Math.max(...shares.map((own) => Math.max(...own)));
    const lift = Math.max(26, (bottom - top) * 0.45);
    // By the room there is: more curves would only be a block.
    const every = Math.max(1, Math.ceil(shares.length / 30));
    const kept = [...shares.keys()].filter((at) => (shares.length - 1 - at) % every === 0);
    const back = colour("surface");
    kept.forEach((at, order) => {
      const share = kept.length > 1 ? order / (kept.length - 1) : 1;
      const base = top + share * (bottom - top);
      const own = shares[at];
      context.beginPath();
      context.moveTo(MARGIN.left, base);
      own.forEach((value, bin) => {
        context.lineTo(MARGIN.left + ((bin + 0.5) / own.length) * inner, base - (value / most) * lift);
      });
      context.lineTo(MARGIN.left + inner, base);
      context.closePath();
      context.fillStyle = back;
      context.fill();
      context.fillStyle = faint(this.#line, 0.12 + 0.5 * share);
      context.fill();
      context.strokeStyle = faint(this.#line, 0.35 + 0.65 * share);
      context.lineWidth = 1;
      context.stroke();
    });
    context.fillStyle = colour("muted");
    context.textAlign = "right";
    for (const order of evenly(kept.length, 6)) {
      const share = kept.length > 1 ? order / (kept.length - 1) : 1;
      context.fillText(whole(this.#histograms[kept[order]].step), MARGIN.left - 6, top + share * (bottom - top) + 2);
    }
    for (const { share, text } of this.#ticks()) centred(context, text, MARGIN.left + share * inner, height - 6, width);
  }

  /** The ticks of the values, with their places in the range, from 0 to 1. */
  #ticks() {
    const [low, high] = this.#range;
    return roundTicks(low, high).map(({ value, text }) => ({ share: (value - low) / (high - low), text }));
  }
}

/** Write a label below its place, as far right as it fits. */
function centred(context, text, x, y, width) {
  context.textAlign = "center";
  context.fillText(text, Math.min(x, width - 2 - context.measureText(text).width / 2), y);
}
