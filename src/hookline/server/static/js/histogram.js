// How values are spread, as bars; a bar can be clicked to see only its values.

import { h } from "./dom.js";
import { compact, whole } from "./format.js";

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
