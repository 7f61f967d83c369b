// Texts that were recorded as metrics: the latest of each, and a list of them by step.

import { h } from "./dom.js";
import { whole } from "./format.js";
import { end, numberTable } from "./table.js";

/**
 * @typedef {{run: string, name: string, axis: string, step: number, text: string, characters: number,
 *   total: number}} Text
 */

/** Some texts of one metric by step, the latest first. @param {Text[]} texts @param {(id: string) => string} [nameOf] */
export function textTable(texts, nameOf = null) {
  const rows = texts.map((each) =>
    h(
      "tr",
      {},
      end(whole(each.step)),
      nameOf && h("td", { class: "muted" }, nameOf(each.run)),
      h("td", { class: "wide-text" }, shown(each)),
    ),
  );
  const attributes = { class: "scroll texts-by-step", tabindex: "0", role: "region", "aria-label": "Texts by step" };
  return numberTable([">step", ...(nameOf ? ["run"] : []), "text"], rows, attributes);
}

/** What a run recorded as text: the latest text of each metric, with those before it. @param {Text[]} texts */
export function latestTexts(texts) {
  const metrics = Map.groupBy(texts, (each) => (each.axis === "train" ? each.name : `${each.name} · ${each.axis}`));
  const entries = [...metrics].map(([name, own]) => {
    const count = `${whole(own.length)} ${own.length < own[0].total ? `of ${whole(own[0].total)} ` : ""}by step`;
    return [
      h("dt", {}, name),
      h("dd", {}, h("p", {}, shown(own[0])), h("details", {}, h("summary", {}, count), textTable(own))),
    ];
  });
  return h("dl", {}, entries);
}

function shown({ text, characters }) {
  const left = characters - [...text].length;
  return left > 0 ? `${text} … (${whole(left)} more characters)` : text;
}
