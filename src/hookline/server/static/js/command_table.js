// The commands that were sent to a run or an experiment, and what became of each.

import { empty, h } from "./dom.js";
import { dateTime } from "./format.js";

const FINAL = new Set(["applied", "refused", "failed", "expired"]);

/**
 * @param {{name: string, arguments: Record<string, unknown>, author: string, time: number, step: number | null, state: string,
 *   result: string}[]} commands
 * @param {string} otherwise the text shown if there are none
 */
export function commandTable(commands, otherwise) {
  if (!commands.length) return empty(otherwise);
  const names = ["sent", "step", "command", "author", "state", "result"];
  const rows = commands.map((each) =>
    h(
      "tr",
      { data: { state: each.state } },
      h("td", {}, dateTime(each.time)),
      h("td", { class: "number" }, each.step ?? ""),
      h("td", {}, each.name, Object.entries(each.arguments).map(([key, value]) => ` ${key}=${JSON.stringify(value)}`)),
      h("td", {}, each.author),
      h("td", {}, h("span", { class: `state ${each.state}` }, FINAL.has(each.state) ? each.state : `${each.state} …`)),
      h("td", {}, each.result),
    ),
  );
  const head = names.map((name) => h("th", { scope: "col", class: name === "step" ? "number" : "" }, name));
  return h("table", { class: "commands" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
}
