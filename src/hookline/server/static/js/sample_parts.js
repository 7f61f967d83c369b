// Parts of the sample browser: completions with marks, rewards, and a histogram of them.

import { h } from "./dom.js";
import { compact, number, whole } from "./format.js";

/** @param {{completion: string, reasoning: string | null, answer: string | null, truncated: Record<string, number>}} sample */
export function completion(sample) {
  const marks = [
    ...mark(sample.completion, sample.reasoning, "reasoning", false),
    ...mark(sample.completion, sample.answer, "answer", true),
  ];
  const parts = [];
  let place = 0;
  for (const { begin, end, kind } of marks.sort((a, b) => a.begin - b.begin)) {
    if (begin < place) continue;
    parts.push(
      sample.completion.slice(place, begin),
      h("mark", { class: kind, title: kind }, sample.completion.slice(begin, end)),
    );
    place = end;
  }
  parts.push(sample.completion.slice(place));
  const cut = sample.truncated?.completion;
  return h("div", { class: "text" }, parts, cut ? h("span", { class: "muted" }, ` … ${cut} bytes in all`) : null);
}

/** The position of a part: the last one for the answer, the first one for the reasoning. */
function mark(text, part, kind, isLast) {
  if (!part) return [];
  const begin = isLast ? text.lastIndexOf(part) : text.indexOf(part);
  return begin < 0 ? [] : [{ begin, end: begin + part.length, kind }];
}

/**
 * @param {{edges: number[], counts: number[], without: number}} found
 * @param {(low: number, high: number) => void} choose
 */
export function histogram({ edges, counts, without }, choose) {
  const most = Math.max(1, ...counts);
  const bars = counts.map((count, index) => {
    const range = `${compact(edges[index])} to ${compact(edges[index + 1])}: ${whole(count)}`;
    return h(
      "button",
      {
        type: "button",
        class: "bar-of",
        title: range,
        "aria-label": `Rewards from ${range}`,
        onclick: () => choose(edges[index], edges[index + 1]),
      },
      h("i", { style: { height: `${count ? Math.max(3, (count / most) * 100) : 0}%` } }),
    );
  });
  const ends = edges.length
    ? [
        h("span", {}, compact(edges[0])),
        without > 0 && h("span", {}, `${whole(without)} without`),
        h("span", {}, compact(edges[edges.length - 1])),
      ]
    : h("span", {}, "no rewards");
  return h("div", { class: "histogram" }, h("div", { class: "bars" }, bars), h("div", { class: "ends" }, ends));
}

/** @param {number | string | null} value */
export function reward(value) {
  const sign = typeof value !== "number" ? "none" : value > 0 ? "plus" : value < 0 ? "minus" : "zero";
  return h("b", { class: "reward", data: { sign } }, number(value, 3));
}

/** The advantage of a sample in its group. @param {number | string | null} value */
export function advantage(value) {
  if (value === null) return null;
  const sign = Number(value) < 0 ? "minus" : "plus";
  return h("span", { class: "advantage", data: { sign } }, `${Number(value) > 0 ? "+" : ""}${number(value, 3)}`);
}

/** The value of each reward function. @param {{rewards: Record<string, any>, reward: any}} sample */
export function rewardBars(sample) {
  const entries = Object.entries(sample.rewards);
  if (!entries.length) return h("p", {}, reward(sample.reward));
  const most = Math.max(1e-12, ...entries.map(([, value]) => size(value)));
  const rows = entries.map(([name, value]) => row(name, value, size(value) / most));
  const total = h("div", { class: "reward-row total" }, h("span", {}, "total"), h("span"), reward(sample.reward));
  return h("div", { class: "rewards" }, rows, total);
}

function row(name, value, share) {
  const sign = Number(value) < 0 ? "minus" : "plus";
  const bar = h("span", { class: "track" }, h("i", { data: { sign }, style: { width: `${share * 100}%` } }));
  return h("div", { class: "reward-row" }, h("span", { title: name }, name), bar, reward(value));
}

function size(value) {
  const found = Math.abs(Number(value));
  return Number.isFinite(found) ? found : 0;
}
